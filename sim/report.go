package sim

import (
	"cmp"
	"math"
	"slices"
	"time"

	"aloft/arbiter"
	"aloft/sim/scenario"
)

// result sums a run up at its horizon.
func (r *engine) result() *Result {
	for _, j := range r.jobs { // progress that is kept at the end counts
		if j.stint != nil {
			r.gain(j.stint)
		}
	}
	for _, s := range r.slots {
		if s.stint != nil && s.stint.job.backlog {
			r.gain(s.stint)
			r.totals.backlog += s.stint.made
		}
		r.spans.close(r, s)
	}
	res := &Result{Scenario: r.world.Scenario.Name, Policy: r.opt.Name, Seed: r.world.Seed,
		HorizonS: seconds(r.world.Horizon), Slices: r.total, Ledger: map[arbiter.Account]float64{},
		LendingCap: r.lowestCap, Looks: r.looking.count, Checks: r.checks, Incidents: r.incidents, IncidentsLeftOut: r.leftOut}
	accounts := r.book.accounts(r.credits())
	r.checkSum(accounts)
	for a, d := range accounts {
		res.Ledger[a] = seconds(d)
	}
	useful := accounts[arbiter.ServingUseful] + accounts[arbiter.JobUseful]
	res.Aloft = useful.Seconds() / (time.Duration(r.total) * r.world.Horizon).Seconds()
	for i := range r.serving {
		m := r.serving[i].result(r.world)
		res.Models = append(res.Models, m)
		res.Total.plus(m.Served)
	}
	res.Jobs = r.jobFigures(accounts)
	r.countMoves(res)
	res.Series = r.minutes.series(r)
	res.Spans = r.spans.result(r)
	return res
}

// plus adds counts and works the attainment out again.
func (s *Served) plus(o Served) {
	s.Requests, s.Good, s.Refused = s.Requests+o.Requests, s.Good+o.Good, s.Refused+o.Refused
	s.Cut, s.Unfinished, s.Hopeless = s.Cut+o.Cut, s.Unfinished+o.Unfinished, s.Hopeless+o.Hopeless
	s.Attainment = 1
	if s.Requests > 0 {
		s.Attainment = float64(s.Good) / float64(s.Requests)
	}
}

func (m *served) result(w *scenario.World) ModelResult {
	m.sum(w.Horizon)
	s := Served{}
	m.count.Unfinished = m.count.Requests - m.endedIn
	s.plus(m.count)
	return ModelResult{Name: m.traffic.Model.Name, Static: m.traffic.Model.Static, Served: s, TTFT: m.ttft.spread(), TPOT: m.tpot.spread(),
		KneeGood: seconds(m.good), KneeLate: seconds(m.late), ReadyMean: round(m.readyTime.Seconds() / w.Horizon.Seconds()),
		Copies: m.traffic.Copies, TimeScale: m.traffic.TimeScale, Judged: m.judged, GoodBits: m.bits}
}

// jobFigures counts the jobs that came before the horizon.
func (r *engine) jobFigures(accounts map[arbiter.Account]time.Duration) JobFigures {
	f := JobFigures{ProgressS: seconds(r.totals.progress), LostS: seconds(r.totals.lost), BacklogS: seconds(r.totals.backlog),
		OverheadS:   seconds(accounts[arbiter.JobStarting] + accounts[arbiter.Checkpointing]),
		Preemptions: r.totals.preemptions,
		QueuedBy:    QueuedBy{seconds(r.book.capacity), seconds(r.book.shape), seconds(r.book.policy)}}
	if f.ProgressS > 0 {
		f.Lost, f.Overhead = f.LostS/f.ProgressS, f.OverheadS/f.ProgressS
	}
	var queued, completion []float64
	offered := 0.0
	for _, j := range r.jobs {
		if j.backlog || j.At >= r.world.Horizon {
			continue
		}
		offered += j.Work()
		f.Submitted++
		took := j.result.FinishS - j.result.AtS
		if j.ended {
			f.Finished++
		} else {
			f.Unfinished++
			took = (r.world.Horizon - j.At).Seconds()
		}
		if j.waits() {
			j.result.QueuedS += (r.world.Horizon - j.queuedAt).Seconds()
		}
		j.result.QueuedS = round(j.result.QueuedS)
		queued, completion = append(queued, j.result.QueuedS), append(completion, took)
		f.List = append(f.List, j.result)
	}
	f.Queueing, f.Completion = spreadOf(queued), spreadOf(completion)
	if share := float64(r.world.Scenario.Cluster.Jobs); share > 0 {
		f.OfferedLoad = offered / (share * r.world.Horizon.Seconds())
	}
	return f
}

func (r *engine) countMoves(res *Result) {
	for _, c := range r.moves {
		res.Moves = append(res.Moves, *c)
	}
	slices.SortFunc(res.Moves, func(a, b MoveCount) int {
		return cmp.Or(cmp.Compare(a.Action, b.Action), cmp.Compare(a.Reason, b.Reason))
	})
	for class, c := range r.reclaims {
		c.Took = spreadOf(r.took[class])
		res.Reclaims = append(res.Reclaims, *c)
	}
	slices.SortFunc(res.Reclaims, func(a, b ReclaimTime) int { return cmp.Compare(a.Class, b.Class) })
}

// minutes are the series under way.
type minutes struct {
	Series
	last map[arbiter.Account]time.Duration // booked up to the last minute
	debt map[arbiter.Account]time.Duration // credited to a minute that had no room for it
	sum  []time.Duration                   // ready time of each model up to the last minute
}

// minutely closes a minute, now and every minute from now on.
func (r *engine) minutely() {
	m := &r.minutes
	m.last, m.debt = r.book.accounts(credit{}), map[arbiter.Account]time.Duration{}
	m.Slices = map[arbiter.Account][]float32{}
	for i := range r.serving {
		m.Models = append(m.Models, ModelSeries{Name: r.serving[i].traffic.Model.Name})
		m.sum = append(m.sum, 0)
	}
	var tick func()
	tick = func() {
		r.closeMinute()
		r.checkAll()
		if r.opt.Progress != nil {
			r.opt.Progress(r.now, r.world.Horizon)
		}
		r.after(time.Minute, tick)
	}
	r.after(time.Minute, tick)
}

func (r *engine) closeMinute() {
	r.advance()
	m := &r.minutes
	m.Minutes++
	now := r.book.accounts(r.credits())
	for _, a := range arbiter.Accounts {
		// Work is credited when it ends and loss charged when it comes: what a minute
		// has no room for goes to the next.
		d := now[a] - m.last[a] + m.debt[a]
		m.debt[a] = min(d, 0)
		m.Slices[a] = append(m.Slices[a], short(max(d, 0).Seconds()/60))
	}
	m.last = now
	lent := make([]int, len(r.serving))
	all := 0
	for _, s := range r.slots {
		if s.stint != nil {
			all += s.units
			if h := s.host(); h >= 0 {
				lent[h] += s.units
			}
		}
	}
	waiting := 0
	for _, w := range r.book.want {
		waiting += w.jobs
	}
	m.Queued, m.Lent = append(m.Queued, float32(waiting)), append(m.Lent, float32(all))
	for i := range r.serving {
		s, a := &r.serving[i], &m.Models[i]
		s.sum(r.now)
		a.Ready = append(a.Ready, short((s.readyTime-m.sum[i]).Seconds()/60))
		m.sum[i] = s.readyTime
		a.Lent = append(a.Lent, float32(lent[i]))
		p99, room := -1.0, 1.0
		if n := len(s.used); n > 0 {
			slices.Sort(s.used)
			p99 = s.used[min(n-1, (n*99+99)/100-1)]
			room = 1 - p99
		}
		s.used = s.used[:0]
		a.P99, a.Headroom = append(a.P99, short(p99)), append(a.Headroom, short(room))
	}
}

// short keeps three decimals.
func short(v float64) float32 { return float32(math.Round(v*1000) / 1000) }

// series adds the requirement, which is known for the whole run at once.
func (m *minutes) series(r *engine) Series {
	for i := range m.Models {
		need := r.need(i)
		for k := range m.Minutes {
			top := 0.0
			for _, n := range need[min(60*k, len(need)):min(60*k+60, len(need))] {
				top = max(top, n)
			}
			m.Models[i].Need = append(m.Models[i].Need, short(top))
		}
	}
	return m.Series
}
