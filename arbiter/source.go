package arbiter

import (
	"cmp"
	"slices"
	"time"

	"aloft/gpu"
)

// source is a slice on which a model could have one more replica.
type source struct {
	i        int
	wait     int // until it is ready, in steps of five seconds
	priority int // of the job that has to go; who waits least in the queue last
	leave    time.Duration
	cost     time.Duration
}

// lastResort is added to the steps until a replica is ready where it would keep a
// GPU from being cut for it and others.
const lastResort = 1000

// nobody is the priority of a slice on which no job runs.
const nobody = -1 << 30

// nearer orders the sources of one model.
func nearer(a, b source) int {
	return cmp.Or(a.wait-b.wait, cmp.Compare(a.priority, b.priority), cmp.Compare(a.cost, b.cost), a.i-b.i)
}

// ranking is all slices for one more replica, worked out once a decision, if at
// all. What a slice costs is the same to every model but the one that sleeps
// there, and how long it takes differs by the time of its own start alone: so the
// slices of one shape, which are left equally soon, have one order for all models.
// With an order for each, a fleet of ten times the size took a hundred times as long.
type ranking struct {
	ranked bool
	kinds  []*sourceKind
}

// sourceKind is the slices of one shape that are left after the same time.
type sourceKind struct {
	shape gpu.Shape
	leave time.Duration
	alone bool     // on GPUs that could be cut for smaller ones
	all   []source // but for wait; the nearest first once sorted
	sort  bool
}

// sourcing is what of the ranking is one model's.
type sourcing struct {
	own      []source // slices on which it sleeps, free or lent
	sorted   bool
	onItsWay int // those of them that are just being lent
}

// rank lists all sources.
func (d *decision) rank() {
	d.ranked = true
	type key struct {
		shape gpu.Shape
		leave time.Duration
		alone bool
	}
	at := map[key]*sourceKind{}
	for i := range d.slices {
		s := &d.slices[i]
		c := d.model(s.Model)
		if c != nil && s.Moving && s.Lent() {
			c.onItsWay++
		}
		if s.Moving || s.Phase == Unhealthy || d.closed(s) {
			continue
		}
		f := source{i: i, priority: nobody, cost: time.Duration(units(s.Shape)) * time.Microsecond}
		other := time.Millisecond // what it costs another than the model that sleeps there
		switch {
		case s.Lent():
			j := d.holderOf(i)
			f.leave, f.priority = j.leaving(), j.Priority
			f.cost += d.preemptCost(j)
		case s.Phase == Free:
			f.cost, other = f.cost+time.Millisecond, 0
		case s.Phase == Asleep:
			other = 2 * time.Millisecond
		default:
			continue
		}
		if d.claimed(i) { // as a last resort: who gathers would have to begin anew
			f.cost += time.Minute
		}
		if c != nil && fits(s.Shape, c.Needs) {
			c.own = append(c.own, f)
		}
		f.cost += other
		k := key{s.Shape, f.leave, units(s.Shape) >= wholeUnits && d.family(s.GPU) != "" && d.alone(i)}
		if at[k] == nil {
			at[k] = &sourceKind{shape: s.Shape, leave: f.leave, alone: k.alone}
			d.kinds = append(d.kinds, at[k])
		}
		at[k].all = append(at[k].all, f)
	}
}

// nearest takes the best source for the model; idle is false if only lent slices
// are looked for.
func (d *decision) nearest(c *serving, idle bool) (best source, found bool) {
	steps := func(d time.Duration) int { return int(d / (5 * time.Second)) }
	if !c.sorted {
		c.sorted = true
		for k := range c.own {
			c.own[k].wait = steps(c.Back + c.own[k].leave)
			if d.misfit(c.own[k].i, c.Needs) {
				c.own[k].wait += lastResort
			}
		}
		slices.SortFunc(c.own, nearer)
	}
	for _, f := range c.own {
		if s := &d.slices[f.i]; !s.Moving && (idle || s.Lent()) {
			best, found = f, true
			break
		}
	}
	for _, k := range d.kinds {
		if !fits(k.shape, c.Needs) {
			continue
		}
		if f, ok := d.nearestOf(k, c, idle); ok {
			f.wait = steps(c.Cold + f.leave)
			if k.alone && units(k.shape) >= 2*units(c.Needs) {
				f.wait += lastResort
			}
			if !found || nearer(f, best) < 0 {
				best, found = f, true
			}
		}
	}
	return best, found
}

// nearestOf is the best of one kind that is not the model's own.
func (d *decision) nearestOf(k *sourceKind, c *serving, idle bool) (source, bool) {
	if !k.sort {
		k.sort = true
		slices.SortFunc(k.all, nearer) // wait is still 0
	}
	for len(k.all) > 0 && d.slices[k.all[0].i].Moving { // gone for good
		k.all = k.all[1:]
	}
	for _, f := range k.all {
		if s := &d.slices[f.i]; !s.Moving && s.Model != c.Name && (idle || s.Lent()) {
			return f, true
		}
	}
	return source{}, false
}
