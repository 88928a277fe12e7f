package arbiter

import (
	"cmp"
	"container/heap"
	"slices"
	"time"
)

// queue gives the waiting jobs in their order: by priority, which rises with waiting
// (see steps); of equals the tenant
// that has borrowed least for its weight; of one tenant who must start now to meet
// its deadline, who has least, and who is oldest for what is left to do.
type queue struct {
	levels []level // highest priority first
	shares map[string]*tenant
	whole  parts // what there is to share
}

type level struct {
	priority int
	lines    []*line // in the order of their first job
}

// line is the waiting jobs of one tenant at one priority.
type line struct {
	tenant *tenant
	ranks  []rank
}

type rank struct {
	job    *Job
	level  int // its aged priority
	urgent int // 0 = it must start now
	have   int
	ratio  float64 // of age and rest to rest
	seq    int     // in the snapshot
}

func (l *line) Len() int      { return len(l.ranks) }
func (l *line) Swap(i, j int) { l.ranks[i], l.ranks[j] = l.ranks[j], l.ranks[i] }
func (l *line) Push(x any)    { l.ranks = append(l.ranks, x.(rank)) }
func (l *line) Pop() any {
	last := l.ranks[len(l.ranks)-1]
	l.ranks = l.ranks[:len(l.ranks)-1]
	return last
}

func (l *line) Less(i, j int) bool {
	a, b := &l.ranks[i], &l.ranks[j]
	return cmp.Or(a.urgent-b.urgent, a.have-b.have, cmp.Compare(b.ratio, a.ratio), a.job.Created.Compare(b.job.Created), a.seq-b.seq) < 0
}

// usual is how long a job of a kind runs when nobody knows better.
var usual = map[string]time.Duration{"batch": 5 * time.Minute, "quantize": 6 * time.Minute, "evaluate": 10 * time.Minute,
	"train": time.Hour, "session": 4 * time.Hour}

// response is the response ratio, (age + rest)/rest: short jobs go first, and
// nobody starves, since with age every ratio grows without end. Mean waiting is far
// shorter than first come first served.
//
// It counts from when the job came, not from when it was last put back: a job that
// is stopped for another would otherwise stand behind all that came meanwhile, be
// given the first slice that serving wants back, and be stopped again. In an
// overloaded day jobs of ten minutes waited three hours that way.
func (j *Job) response(now time.Time) float64 {
	return 1 + max(0, now.Sub(j.Created).Seconds())/max(j.rest().Seconds(), 1)
}

// startBy is how long before its latest start a job goes ahead of its equals.
const startBy = 10 * time.Minute

// newQueue orders the jobs that wait.
func (p Policy) newQueue(s *Snapshot) *queue {
	now, jobs := s.Now, s.Jobs
	q := &queue{shares: map[string]*tenant{}}
	for _, s := range p.Tenants {
		q.shares[s.Tenant] = &tenant{Share: s, whole: &q.whole, gang: noGang}
	}
	q.measure(s)
	at := map[int]int{}
	for i := range jobs {
		j := &jobs[i]
		if !j.Waits() {
			continue
		}
		t := q.tenant(j.Tenant)
		r := rank{job: j, urgent: 1, have: j.Have, ratio: j.response(now), seq: i}
		if by := j.latestStart(); !by.IsZero() && by.Add(-startBy).Before(now) {
			r.urgent = 0
		}
		r.level = p.aged(now, j) + p.steps(now, j)
		n, ok := at[r.level]
		if !ok {
			n = len(q.levels)
			at[r.level] = n
			q.levels = append(q.levels, level{priority: r.level})
		}
		q.levels[n].add(t, r)
	}
	slices.SortFunc(q.levels, func(a, b level) int { return b.priority - a.priority })
	for _, l := range q.levels {
		for _, x := range l.lines {
			heap.Init(x)
		}
	}
	return q
}

func (l *level) add(t *tenant, r rank) {
	for _, x := range l.lines {
		if x.tenant == t {
			x.ranks = append(x.ranks, r)
			return
		}
	}
	l.lines = append(l.lines, &line{tenant: t, ranks: []rank{r}})
}

// aged is a job's priority: one more once it has been stopped too often within
// the hour, so that nobody is stopped for ever.
func (p Policy) aged(now time.Time, j *Job) int {
	if len(j.Preempted) > 0 && j.stopped(now) >= p.mostStops() && !j.Light() {
		return j.Priority + 1
	}
	return j.Priority
}

// mostStops is how often a job is stopped within an hour before others are.
func (p Policy) mostStops() int {
	if p.MaxPreempts > 0 {
		return p.MaxPreempts
	}
	return 4
}

func (q *queue) tenant(name string) *tenant {
	t := q.shares[name]
	if t == nil {
		t = &tenant{Share: Share{Tenant: name, Weight: 1}, whole: &q.whole, gang: noGang}
		q.shares[name] = t
	}
	return t
}

// queued is a job that was taken off the queue, with whose it is.
type queued struct {
	rank
	tenant *tenant
}

// next takes the first job off; no tenant at the end.
func (q *queue) next() queued {
	for i := range q.levels {
		var best *line
		for _, x := range q.levels[i].lines {
			if len(x.ranks) > 0 && (best == nil || x.tenant.share < best.tenant.share) {
				best = x
			}
		}
		if best != nil {
			return queued{heap.Pop(best).(rank), best.tenant}
		}
	}
	return queued{}
}

// line finds where the jobs of a priority and a tenant stand.
func (q *queue) line(x queued) (*level, *line) {
	for i := range q.levels {
		l := &q.levels[i]
		for _, y := range l.lines {
			if l.priority == x.level && y.tenant == x.tenant {
				return l, y
			}
		}
	}
	return nil, nil
}

// refill puts jobs back that were all taken off, in that order: what is sorted is a
// heap as it is.
func (q *queue) refill(list []queued) {
	for _, x := range list {
		if _, y := q.line(x); y != nil {
			y.ranks = append(y.ranks, x.rank)
		}
	}
}

// push puts a job back that has got a slice and wants more; false: it is alone at
// its priority and may as well go on.
func (q *queue) push(x queued) bool {
	l, y := q.line(x)
	if x.have >= x.job.MaxWidth || l == nil {
		return true
	}
	alone := true
	for _, z := range l.lines {
		alone = alone && len(z.ranks) == 0
	}
	if !alone {
		heap.Push(y, x.rank)
	}
	return !alone
}
