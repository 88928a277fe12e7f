package sim

import (
	"slices"
	"time"

	"aloft/arbiter"
	"aloft/sim/scenario"
)

// Queued is why the queue rule moves something.
const Queued arbiter.Reason = "queue"

// patience is how long a gang waits before GPUs are kept for it.
const patience = 10 * time.Minute

// Queue is the rule by which jobs get slices, the same for static and every
// rival: first in, first out, and who does not fit is skipped. Foreground jobs
// preempt the backlog. A gang that has waited for patience has its place kept:
// whole GPUs are reserved for it, for one gang at a time, since what is reserved
// waits for its last job while others queue; single slices are gathered as they
// come. The zero value is ready.
type Queue struct {
	reserved map[string][]int // job → GPUs
	floor    floor
	orders   []arbiter.Order
}

// floor is what one look can give.
type floor struct {
	v       *View
	backlog string
	ok      [classes][]bool // may a job of the class take the slice
	taken   []bool
	gpus    []gpuState
	idle    [classes]int // small slices by who may take them, not taken
	soft    [classes]int // of the backlog's
	// vacating is how many slices somebody is being moved off, for any job.
	vacating int
}

// Class is what a policy may tell jobs apart by when it gives slices away.
type Class int

// The classes.
const (
	Stops Class = iota // gives its slice back at once: embeddings, the backlog
	Loses              // at once too, and loses all it has done
	Saves              // needs a checkpoint first
	Gang               // takes whole GPUs
	classes
)

// gpuState is what the queue knows of a GPU.
type gpuState struct {
	first, n int    // its slices
	owner    string // reserved for
}

// Orders gives what may be given: may tells of a slice (an index into v.Slices)
// whether a job of a class may take it now. The orders are good until the next call.
func (q *Queue) Orders(o arbiter.Observation, v *View, may func(slice int, c Class) bool) []arbiter.Order {
	q.orders = q.orders[:0]
	q.look(o, v, may)
	for i := range o.Jobs {
		j := &o.Jobs[i]
		if j.Priority < 0 || j.Queued.IsZero() {
			continue
		}
		if j.Needs == v.Whole {
			q.whole(o, j)
		} else {
			q.small(o, j)
		}
	}
	q.rest(o)
	return q.orders
}

// look takes stock.
func (q *Queue) look(o arbiter.Observation, v *View, may func(int, Class) bool) {
	f := &q.floor
	f.v, f.backlog, f.vacating = v, "", 0
	for id := range q.reserved {
		if !slices.ContainsFunc(o.Jobs, func(j arbiter.Job) bool { return j.ID == id && !j.Queued.IsZero() }) {
			delete(q.reserved, id)
		}
	}
	for i := range o.Jobs {
		if o.Jobs[i].Priority < 0 {
			f.backlog = o.Jobs[i].ID
		}
	}
	n := len(v.Slices)
	f.taken = append(f.taken[:0], make([]bool, n)...)
	f.gpus = append(f.gpus[:0], make([]gpuState, len(v.GPUs))...)
	for k := range f.ok {
		f.ok[k], f.idle[k], f.soft[k] = append(f.ok[k][:0], f.taken...), 0, 0
	}
	for id, gpus := range q.reserved {
		for _, g := range gpus {
			f.gpus[g].owner = id
		}
	}
	for i := range v.Slices {
		s := &v.Slices[i]
		g := &f.gpus[s.GPU]
		if g.n == 0 {
			g.first = i
		}
		g.n++
		if s.Moving && s.To != "" {
			f.vacating++
		}
		for k := range classes {
			f.ok[k][i] = v.GPUs[s.GPU].Health.OK && may(i, k)
			f.count(i, k, +1)
		}
	}
}

// count counts a small slice in or out that is not taken or reserved.
func (f *floor) count(i int, k Class, by int) {
	s := &f.v.Slices[i]
	if !f.ok[k][i] || s.Shape != f.v.Slice || f.gpus[s.GPU].owner != "" {
		return
	}
	switch {
	case idle(s):
		f.idle[k] += by
	case f.isSoft(s):
		f.soft[k] += by
	}
}

func (f *floor) take(i int) {
	if !f.taken[i] {
		f.taken[i] = true
		for k := range classes {
			f.count(i, k, -1)
		}
	}
}

// idle: nothing but sleepers on it, and nobody is moving there.
func idle(s *arbiter.Slice) bool {
	return !s.Moving && s.Job == "" && (s.Phase == arbiter.Free || s.Phase == arbiter.Asleep)
}

// isSoft: the backlog is there and can be told to leave.
func (f *floor) isSoft(s *arbiter.Slice) bool { return !s.Moving && s.Job != "" && s.Job == f.backlog }

// comes: somebody is being moved off it for this job.
func comes(s *arbiter.Slice, job string) bool { return s.Moving && s.To == job }

func class(j *arbiter.Job) Class {
	switch {
	case j.Kind == "quantize":
		return Loses
	case j.Fast():
		return Stops
	}
	return Saves
}

// small gives a job single slices: all that it needs or none.
func (q *Queue) small(o arbiter.Observation, j *arbiter.Job) {
	f, k, want := &q.floor, class(j), j.MaxWidth
	late := j.MinWidth > 1 && o.Now.Sub(j.Queued) > patience
	coming := 0
	if f.idle[k]+f.soft[k]+f.vacating < want && !late {
		return // not even if all that is being vacated were for it
	}
	for i := range f.v.Slices {
		if comes(&f.v.Slices[i], j.ID) {
			coming++
		}
	}
	got := f.pick(k, want-coming, idle)
	if coming == 0 && len(got) == want {
		m := arbiter.Move{Action: arbiter.Lend, Slice: f.v.Slices[got[0]].ID, Job: j.ID, Reason: Queued}
		for _, i := range got[1:] {
			m.Gang = append(m.Gang, f.v.Slices[i].ID)
		}
		q.order(m)
	} else if rest := want - coming - len(got); f.soft[k] >= rest {
		q.vacate(f.pick(k, rest, f.isSoft), j)
	} else if !late {
		return // skipped: it holds nothing
	}
	for _, i := range got {
		f.take(i)
	}
}

// pick finds up to n small slices that are as asked, from GPUs with the fewest
// of their kind, so that whole ones stay whole. It does not take them.
func (f *floor) pick(k Class, n int, is func(*arbiter.Slice) bool) []int {
	if n <= 0 {
		return nil
	}
	var per [scenario.SlicesPerGPU + 1][]int
	for g := range f.gpus {
		d := &f.gpus[g]
		if d.owner != "" {
			continue
		}
		loose := 0 // what a whole job could have
		var fit [scenario.SlicesPerGPU]int
		m := 0
		for i := d.first; i < d.first+d.n; i++ {
			s := &f.v.Slices[i]
			if s.Shape != f.v.Slice || f.taken[i] || !f.ok[k][i] {
				continue
			}
			if idle(s) || f.isSoft(s) {
				loose++
			}
			if is(s) {
				fit[m] = i
				m++
			}
		}
		per[loose] = append(per[loose], fit[:m]...)
	}
	var out []int
	for _, list := range per {
		out = append(out, list[:min(len(list), n-len(out))]...)
	}
	return out
}

func (q *Queue) vacate(list []int, j *arbiter.Job) {
	for _, i := range list {
		q.floor.take(i)
		q.order(arbiter.Move{Action: arbiter.Vacate, Slice: q.floor.v.Slices[i].ID, Job: j.ID, Reason: Queued})
	}
}

func (q *Queue) order(m arbiter.Move) { q.orders = append(q.orders, arbiter.Order{Move: m}) }

// whole gives a job whole GPUs, of one server if it fits one: it has them
// emptied of the backlog and given their shape first.
func (q *Queue) whole(o arbiter.Observation, j *arbiter.Job) {
	f := &q.floor
	gpus := q.place(j, func(g int) int { return f.effort(g, j.ID) })
	if gpus == nil {
		if len(q.reserved) == 0 && o.Now.Sub(j.Queued) > patience {
			if gpus = q.place(j, func(g int) int { return f.wait(g) }); gpus != nil {
				if q.reserved == nil {
					q.reserved = map[string][]int{}
				}
				q.reserved[j.ID] = gpus
				f.reserve(gpus, j.ID)
			}
		}
		return
	}
	var ready []string
	for _, g := range gpus {
		d := &f.gpus[g]
		empty := true
		for i := d.first; i < d.first+d.n; i++ {
			s := &f.v.Slices[i]
			if f.isSoft(s) {
				q.order(arbiter.Move{Action: arbiter.Vacate, Slice: s.ID, Job: j.ID, Reason: Queued})
			}
			empty = empty && idle(s)
			f.take(i)
		}
		switch {
		case empty && d.n == 1:
			ready = append(ready, f.v.Slices[d.first].ID)
		case empty:
			q.order(arbiter.Move{Action: arbiter.Reshape, GPU: g, Layout: f.v.Layout(true), Job: j.ID, Reason: Queued})
		}
	}
	if len(ready) == len(gpus) {
		q.order(arbiter.Move{Action: arbiter.Lend, Slice: ready[0], Gang: ready[1:], Job: j.ID, Reason: Queued})
	}
}

// beyond is the effort of what cannot be had.
const beyond = 1 << 20

// effort is what it takes until a GPU is whole and empty for a job.
func (f *floor) effort(g int, job string) int {
	d := &f.gpus[g]
	if d.n == 0 || d.owner != "" && d.owner != job {
		return beyond
	}
	sum := 0
	if d.n > 1 {
		sum = 1
	}
	for i := d.first; i < d.first+d.n; i++ {
		s := &f.v.Slices[i]
		switch {
		case f.taken[i] || !f.ok[Gang][i]:
			return beyond
		case idle(s), comes(s, job):
		case f.isSoft(s):
			sum++
		default:
			return beyond
		}
	}
	return sum
}

// wait is how many foreground slices a GPU that jobs may have is still waiting for.
func (f *floor) wait(g int) int {
	d := &f.gpus[g]
	if d.n == 0 || d.owner != "" {
		return beyond
	}
	sum := 0
	for i := d.first; i < d.first+d.n; i++ {
		s := &f.v.Slices[i]
		if !f.ok[Gang][i] {
			return beyond
		}
		if !idle(s) && !f.isSoft(s) {
			sum += s.Shape.ComputeSlices
		}
	}
	return sum
}

func (f *floor) reserve(gpus []int, job string) {
	for _, g := range gpus {
		d := &f.gpus[g]
		for i := d.first; i < d.first+d.n; i++ {
			if !f.taken[i] {
				for k := range classes {
					f.count(i, k, -1)
				}
			}
		}
		d.owner = job
	}
}

// place chooses the GPUs that cost least: of one server, or, wider than one, of
// all. nil = there are not enough.
func (q *Queue) place(j *arbiter.Job, cost func(g int) int) []int {
	f := &q.floor
	per := f.v.Scenario.Cluster.ServerGPUs
	if j.MaxWidth > per {
		per = len(f.gpus)
	}
	var best []int
	least := beyond
	for from := 0; from < len(f.gpus); from += per {
		var can []int
		for g := from; g < min(from+per, len(f.gpus)); g++ {
			if cost(g) < beyond {
				can = append(can, g)
			}
		}
		if len(can) < j.MaxWidth {
			continue
		}
		slices.SortStableFunc(can, func(a, b int) int { return cost(a) - cost(b) })
		can = can[:j.MaxWidth]
		sum := 0
		for _, g := range can {
			sum += cost(g)
		}
		if sum < least {
			best, least = can, sum
		}
	}
	return best
}

// rest gives the backlog what nobody has taken, reserved GPUs too, since it
// leaves at once. A whole GPU that nobody wants is split again.
func (q *Queue) rest(o arbiter.Observation) {
	f := &q.floor
	wanted := f.backlog != "" || slices.ContainsFunc(o.Jobs, func(j arbiter.Job) bool { return !j.Queued.IsZero() && j.Needs == f.v.Slice })
	for i := range f.v.Slices {
		s := &f.v.Slices[i]
		if f.taken[i] || !f.ok[Stops][i] || !idle(s) {
			continue
		}
		switch {
		case s.Shape == f.v.Whole && wanted && f.gpus[s.GPU].owner == "":
			q.order(arbiter.Move{Action: arbiter.Reshape, GPU: s.GPU, Layout: f.v.Layout(false), Reason: Queued})
		case s.Shape == f.v.Slice && f.backlog != "":
			q.order(arbiter.Move{Action: arbiter.Lend, Slice: s.ID, Job: f.backlog, Reason: Queued})
		}
	}
}
