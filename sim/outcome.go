package sim

import (
	"cmp"
	"math"
	"slices"
	"time"

	"aloft/arbiter"
	"aloft/sim/scenario"
	"aloft/sim/serving"
)

// figures are what came of a model's requests.
type figures struct {
	judged     [2]int
	count      Served
	bits       []uint64
	good, late time.Duration // knee work
	endedIn    int           // judged requests that ended
	ttft, tpot histogram
	used       []float64 // part of its target that each request of the minute used
	rowsDone   time.Duration
}

func newFigures(t *scenario.Traffic, w *scenario.World) figures {
	from, to := w.Scenario.Measure.WarmUpS.Duration(), w.Horizon-w.Scenario.Measure.TailS.Duration()
	at := func(d time.Duration) int {
		i, _ := slices.BinarySearchFunc(t.Arrivals, d, func(a scenario.Arrival, d time.Duration) int { return cmp.Compare(a.At, d) })
		return i
	}
	f := figures{judged: [2]int{at(from), at(max(from, to))}, bits: make([]uint64, (len(t.Arrivals)+63)/64)}
	f.count.Requests = f.judged[1] - f.judged[0]
	s := &t.Model.Service
	for _, a := range t.Arrivals[f.judged[0]:f.judged[1]] {
		if hopeless(s, &t.Model.SLO, a) {
			f.count.Hopeless++
		}
	}
	return f
}

// hopeless: it would miss on a replica that does nothing else.
func hopeless(s *scenario.Service, slo *scenario.SLO, a scenario.Arrival) bool {
	if s.Merged() {
		return s.AlphaMs+s.BetaMsPerToken*float64(a.In) > slo.TTFT(a.In).Seconds()*1000
	}
	return s.Prefill(float64(a.In)) > slo.TTFT(a.In).Seconds() || s.Step(1)*1000 > slo.TPOTMs
}

// answered takes how a request ended.
func (r *engine) answered(m *served, o serving.Outcome) {
	a := m.traffic.Arrivals[o.Index]
	judged := o.Index >= m.judged[0] && o.Index < m.judged[1]
	if judged {
		m.endedIn++
	}
	switch o.Ending {
	case serving.Refused:
		if judged {
			m.count.Refused++
		}
		return
	case serving.Cut:
		if judged {
			m.count.Cut++
		}
		return
	}
	ttft := o.First - a.At
	slo := &m.traffic.Model.SLO
	used := ttft.Seconds() / slo.TTFT(a.In).Seconds()
	tpot := 0.0
	if slo.TPOTMs > 0 {
		tpot = (o.End - o.First).Seconds() / float64(max(1, a.Out))
		used = max(used, 1000*tpot/slo.TPOTMs)
	}
	m.used = append(m.used, used)
	if judged {
		m.ttft.add(ttft.Seconds())
		m.tpot.add(tpot)
	}
	work := time.Duration(m.traffic.Knee(a.In, a.Out) * float64(time.Second))
	if !o.Good {
		m.late += work
		return
	}
	m.good += work
	m.bits[o.Index/64] |= 1 << (o.Index % 64)
	if judged {
		m.count.Good++
	}
}

// rows is what batch rows have done in the model's replicas.
func (m *served) rows(now time.Duration) time.Duration {
	m.rowsDone = time.Duration(m.server.RowsUseful(now) * float64(time.Second))
	return m.rowsDone
}

// credits are the requests' and rows' slice time so far.
func (r *engine) credits() (c credit) {
	for i := range r.serving {
		m := &r.serving[i]
		_, units := r.needs(m.traffic.Model.Name)
		c.good, c.late = c.good+m.good*time.Duration(units), c.late+m.late*time.Duration(units)
		if r.world.Rows {
			c.rows += m.rows(r.now)
		}
	}
	return c
}

// histogram counts values in buckets that grow by 1 %, from a tenth of a
// millisecond to a day.
type histogram struct {
	n      int
	sum    float64
	max    float64
	bucket []uint32
}

const (
	smallest = 1e-4
	growth   = 1.01
)

var (
	logGrowth = math.Log(growth)
	buckets   = int(math.Log(86400/smallest)/logGrowth) + 2
)

func (h *histogram) add(v float64) {
	if h.bucket == nil {
		h.bucket = make([]uint32, buckets)
	}
	i := 0
	if v > smallest {
		i = min(buckets-1, 1+int(math.Log(v/smallest)/logGrowth))
	}
	h.bucket[i]++
	h.n++
	h.sum += v
	h.max = max(h.max, v)
}

// at is the q-quantile: the upper end of its bucket, at most 1 % too much.
func (h *histogram) at(q float64) float64 {
	if h.n == 0 {
		return 0
	}
	rank := uint64(math.Ceil(q * float64(h.n)))
	seen := uint64(0)
	for i, n := range h.bucket {
		if seen += uint64(n); seen >= max(rank, 1) {
			return min(h.max, smallest*math.Pow(growth, float64(i)))
		}
	}
	return h.max
}

func (h *histogram) spread() Spread {
	s := Spread{N: h.n, P50: round(h.at(0.50)), P95: round(h.at(0.95)), P99: round(h.at(0.99)), Max: round(h.max)}
	if h.n > 0 {
		s.Mean = round(h.sum / float64(h.n))
	}
	return s
}

// spreadOf is the distribution of a list.
func spreadOf(list []float64) Spread {
	if len(list) == 0 {
		return Spread{}
	}
	sorted := slices.Sorted(slices.Values(list))
	sum := 0.0
	for _, v := range sorted {
		sum += v
	}
	at := func(q float64) float64 {
		return round(sorted[min(len(sorted)-1, max(0, int(math.Ceil(q*float64(len(sorted))))-1))])
	}
	return Spread{N: len(list), Mean: round(sum / float64(len(list))), P50: at(0.50), P95: at(0.95), P99: at(0.99), Max: at(1)}
}

// round to a microsecond.
func round(s float64) float64 { return math.Round(s*1e6) / 1e6 }

// ending is how a move ended.
type ending int

const (
	done ending = iota
	failed
	refused
)

// tallies count moves and reclaims, and keep the first incidents.
type tallies struct {
	moves     map[moveKind]*MoveCount
	reclaims  map[string]*ReclaimTime
	took      map[string][]float64
	incidents []Incident
	leftOut   int
	minutes   minutes
}

type moveKind struct {
	action arbiter.Action
	reason arbiter.Reason
}

// maxIncidents bounds the list in a result.
const maxIncidents = 1000

func (r *engine) incident(i Incident) {
	if len(r.incidents) == maxIncidents {
		r.leftOut++
		return
	}
	i.AtS = seconds(r.now)
	r.incidents = append(r.incidents, i)
}

func (r *engine) tally(m *move, how ending) {
	if r.moves == nil {
		r.moves = map[moveKind]*MoveCount{}
	}
	k := moveKind{m.Action, m.Reason}
	c := r.moves[k]
	if c == nil {
		c = &MoveCount{Action: m.Action, Reason: m.Reason}
		r.moves[k] = c
	}
	switch how {
	case done:
		c.Done++
	case failed:
		c.Failed++
	case refused:
		c.Refused++
	}
}

// classOf names the class of a reclaim: how the job stops, and whether a replica
// of the claimant sleeps there.
func classOf(j *scenario.Job, asleep bool) string {
	class := "fast"
	if j.Grace > 0 {
		class = "saves"
	}
	if !asleep {
		class += " cold"
	}
	return class
}

// boundOf is the sum of the budgets of a reclaim's rungs, fixed by the scenario
// before the run. It holds for whoever promises none of its own: ours names one
// with each loan, which is what it is then held to.
func (r *engine) boundOf(j *scenario.Job, model int, asleep bool) time.Duration {
	return Bound(j, r.serving[model].traffic.Model.Start, asleep)
}

const (
	// killBudget is what a kill may take: nothing here, half a second live.
	killBudget = 500 * time.Millisecond
	// startSigmas is how far out on its distribution a start's budget lies: one in
	// 30,000 takes longer.
	startSigmas = 4
)

// Bound is the promised time from the decision to a ready replica: what the job
// may take to leave (its grace, or twice what it takes to stop), a kill, and the
// start of a replica that sleeps there or comes from cold.
func Bound(j *scenario.Job, start scenario.Start, asleep bool) time.Duration {
	leave, back := 2*j.Stop, start.ColdMedianS
	if j.Grace > 0 {
		leave = j.Grace
	}
	if asleep {
		back = start.WakeMedianS
	}
	return leave + killBudget + times(back.Duration(), math.Exp(startSigmas*start.Sigma))
}

// reclaimed judges a reclaim that has ended.
func (r *engine) reclaimed(m *move) {
	if r.reclaims == nil {
		r.reclaims, r.took = map[string]*ReclaimTime{}, map[string][]float64{}
	}
	c := r.reclaims[m.class]
	if c == nil {
		c = &ReclaimTime{Class: m.class}
		r.reclaims[m.class] = c
	}
	took := r.now - m.at
	c.BoundS = max(c.BoundS, seconds(m.bound))
	if m.err == nil {
		r.took[m.class] = append(r.took[m.class], took.Seconds())
	}
	if m.err == nil && took <= m.bound {
		c.Kept++
		return
	}
	if m.fault {
		c.Faulted++
	} else {
		c.Broken++
	}
	i := Incident{Kind: "bound_broken", Slice: m.Slice, Model: m.Model, TookS: seconds(took), Bound: seconds(m.bound), Fault: m.fault}
	if m.job != nil {
		i.Job = m.job.ID
	}
	r.incident(i)
}
