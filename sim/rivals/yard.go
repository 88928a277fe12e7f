package rivals

import (
	"math"
	"time"

	"aloft/arbiter"
	"aloft/sim"
)

// yard is the slices as one look sees them, with what is ordered so far.
type yard struct {
	*rules
	v    *sim.View
	now  time.Time
	jobs []arbiter.Job

	fleets []fleet
	taken  []bool // by slice: it moves, is broken, or was ordered about in this look
	mine   []bool // ordered about in this look; what moves for a job is the queue's to know
	slow   []bool // by slice: work that is slow to return it may have it
	orders []arbiter.Order
}

// fleet is one model's replicas.
type fleet struct {
	name   string
	static int
	flight float64 // sequences that wait or run
	slots  int     // 0 = merged calls
	ready  []int   // slices
	coming int
	want   int
	line   int // what it may need while work that is slow to return holds a slice
	soon   int // what it needs before such work could be gone; 0 = the rival does not look
}

func backlog(j *arbiter.Job) bool { return j.Priority < 0 }

func whole(s *arbiter.Slice) bool { return s.Shape.ComputeSlices == 7 }

// begin reads the slices.
func (y *yard) begin(r *rules, o arbiter.Observation, v *sim.View) {
	y.rules, y.v, y.now, y.jobs = r, v, o.Now, o.Jobs
	y.orders = y.orders[:0]
	if len(y.fleets) == 0 {
		y.fleets = make([]fleet, len(o.Models))
	}
	for i := range y.fleets {
		f := &y.fleets[i]
		m := &o.Models[i]
		f.name, f.static, f.flight, f.slots = m.Name, m.Static, m.InFlight, m.Slots
		f.ready, f.coming, f.want, f.line = f.ready[:0], 0, 0, 0
		f.soon = 0
	}
	y.taken = append(y.taken[:0], make([]bool, len(v.Slices))...)
	y.mine = append(y.mine[:0], y.taken...)
	for i := range v.Slices {
		s := &v.Slices[i]
		y.taken[i] = s.Moving || s.Phase != arbiter.Free && s.Phase != arbiter.Asleep && s.Phase != arbiter.Ready && s.Job == ""
		switch {
		case s.Phase == arbiter.Ready && !s.Moving:
			f := y.fleet(s.Model)
			f.ready = append(f.ready, i)
		case s.Moving && s.Phase != arbiter.Unhealthy:
			if f := y.fleet(s.To); f != nil {
				f.coming++
			}
		}
	}
}

// fleet finds a model's; nil = it is none.
func (y *yard) fleet(name string) *fleet {
	for i := range y.fleets {
		if y.fleets[i].name == name {
			return &y.fleets[i]
		}
	}
	return nil
}

// job finds a job by its name.
func (y *yard) job(id string) *arbiter.Job {
	for i := range y.jobs {
		if y.jobs[i].ID == id {
			return &y.jobs[i]
		}
	}
	return nil
}

// share is the model whose static share slice i lies in; −1 = the job share.
func (y *yard) share(i int) int { return y.v.Share[sim.Unit(y.v.Slices[i])] }

// order gives out a move of slice i; a job leaves all its slices.
func (y *yard) order(i int, m arbiter.Move) {
	s := &y.v.Slices[i]
	m.Slice = s.ID
	y.orders = append(y.orders, arbiter.Order{Move: m})
	y.taken[i], y.mine[i] = true, true
	j := y.job(s.Job)
	for k := range y.v.Slices {
		if j != nil && !backlog(j) && y.v.Slices[k].Job == j.ID {
			y.taken[k], y.mine[k] = true, true
		}
	}
}

// serve brings the replicas that are wanted and puts those away that are not, the
// highest first, so that those that stay lie together.
func (y *yard) serve() {
	for i := range y.fleets {
		f := &y.fleets[i]
		for f.have() < f.want && y.grow(i) {
			f.coming++
		}
		for short := f.soon - f.have() - y.quick(f.name); short > 0 && y.clear(f.name); short-- {
			f.coming++
		}
		over := min(f.have()-max(f.want, f.soon-y.quick(f.name)), len(f.ready))
		for k := len(f.ready) - 1; k >= 0 && over > 0; k, over = k-1, over-1 {
			y.order(f.ready[k], arbiter.Move{Action: arbiter.Vacate, Reason: arbiter.Surplus})
		}
	}
}

// quick is how many sleepers of a model can be woken at once: nothing slow is in
// their way.
func (y *yard) quick(model string) (n int) {
	for i := range y.v.Slices {
		s := &y.v.Slices[i]
		if y.taken[i] || s.Model != model || s.Phase == arbiter.Ready {
			continue
		}
		if j := y.job(s.Job); j == nil || backlog(j) || j.Fast() {
			n++
		}
	}
	return n
}

// clear takes the slice of a sleeper back from the slow job that loses least.
func (y *yard) clear(model string) bool {
	best, least := -1, time.Duration(math.MaxInt64)
	for i := range y.v.Slices {
		s := &y.v.Slices[i]
		j := y.job(s.Job)
		if y.taken[i] || s.Model != model || j == nil || j.Fast() || backlog(j) {
			continue
		}
		if lost := j.Unsaved * time.Duration(len(j.Slices)); lost < least {
			best, least = i, lost
		}
	}
	if best < 0 {
		return false
	}
	y.order(best, arbiter.Move{Action: arbiter.Reclaim, Model: model, Job: y.v.Slices[best].Job, Reason: arbiter.RiseAhead})
	return true
}

func (f *fleet) have() int { return len(f.ready) + f.coming }

// grow brings a replica of a model on the slice that costs least.
func (y *yard) grow(model int) bool {
	best, least := -1, math.MaxFloat64
	for i := range y.v.Slices {
		if cost := y.cost(model, i); cost < least {
			best, least = i, cost
		}
	}
	if best < 0 {
		return y.preempt && y.growWhole(model)
	}
	s, name := &y.v.Slices[best], y.fleets[model].name
	m := arbiter.Move{Action: arbiter.Start, Model: name, Job: s.Job, Reason: arbiter.NeedsMore}
	switch {
	case s.Job != "" && y.cold:
		m.Action = arbiter.Vacate
	case s.Job != "":
		m.Action = arbiter.Reclaim
	case s.Model == name && !y.cold:
		m.Action = arbiter.Wake
	}
	y.order(best, m)
	return true
}

// growWhole makes room on a GPU that is one slice: it is split if idle, else the
// gang that borrowed last has to leave.
func (y *yard) growWhole(model int) bool {
	victim := -1
	for i := range y.v.Slices {
		s := &y.v.Slices[i]
		switch {
		case !whole(s) || y.taken[i]:
		case s.Job == "":
			y.orders = append(y.orders, arbiter.Order{Move: arbiter.Move{Action: arbiter.Reshape, GPU: s.GPU, Layout: y.v.Layout(false),
				Model: y.fleets[model].name, Reason: arbiter.NeedsMore}})
			y.taken[i], y.mine[i] = true, true
			return true
		case victim < 0 || s.Since.After(y.v.Slices[victim].Since):
			victim = i
		}
	}
	if victim < 0 {
		return false
	}
	y.order(victim, arbiter.Move{Action: arbiter.Vacate, Job: y.v.Slices[victim].Job, Model: y.fleets[model].name, Reason: arbiter.NeedsMore})
	return true
}

// cost orders the slices on which a model's replica might come, the least first; at
// math.MaxFloat64 it may not. A sleeper there is worth the wait for what is in the
// way.
func (y *yard) cost(model, i int) float64 {
	s := &y.v.Slices[i]
	share := y.share(i)
	if y.taken[i] || whole(s) {
		return math.MaxFloat64
	}
	cost := 0.0
	if !y.cold && s.Model != y.fleets[model].name {
		cost += 20 // no sleeper
	}
	if share != model {
		cost++
	}
	cost += float64(i) / float64(2*len(y.v.Slices)) // the lowest, so that the high ones stay free
	if s.Job == "" {
		if s.Phase == arbiter.Ready {
			return math.MaxFloat64
		}
		return cost
	}
	j := y.job(s.Job)
	switch {
	case j == nil:
		return math.MaxFloat64
	case backlog(j):
		if y.files && y.now.Sub(s.Since) < fileTime {
			return math.MaxFloat64
		}
		return cost + 2
	case !y.preempt:
		return math.MaxFloat64
	case y.recent:
		age := y.now.Sub(s.Since).Hours()
		return cost + 4 + 4*age/(1+age)
	}
	return cost + 4 + min(10, j.Unsaved.Seconds()*float64(len(j.Slices))/1000)
}

// fileTime is how long the backlog holds a slice at least where nobody is
// preempted: the mean file of the scenarios.
const fileTime = 600 * time.Second

// mark works out which slices work that is slow to return may have: the job share,
// and of the others the highest, as many as no model needs meanwhile.
func (y *yard) mark() {
	y.slow = append(y.slow[:0], make([]bool, len(y.v.Slices))...)
	over := 0
	for i := range y.v.Slices {
		if y.share(i) >= 0 && y.v.Slices[i].Phase != arbiter.Unhealthy {
			over += y.v.Slices[i].Shape.ComputeSlices
		}
	}
	for i := range y.fleets {
		over -= y.fleets[i].line
	}
	for i := len(y.v.Slices) - 1; i >= 0; i-- {
		if y.share(i) < 0 {
			y.slow[i] = true
		} else if n := y.v.Slices[i].Shape.ComputeSlices; over >= n {
			y.slow[i], over = true, over-n
		}
	}
}

// may tells the queue whether a job of a class may have slice i. A gang takes whole
// GPUs, on which no sleeper survives: it keeps to the job share where there are any.
func (y *yard) may(i int, c sim.Class) bool {
	switch {
	case y.mine[i]:
		return false
	case c == sim.Gang:
		return y.cold || y.share(i) < 0
	case y.lines && c != sim.Stops:
		return y.slow[i]
	}
	return true
}
