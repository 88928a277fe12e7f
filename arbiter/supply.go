package arbiter

import (
	"cmp"
	"slices"
	"time"
)

// supply gives the models the replicas that they need within the fast horizon,
// the most urgent step of all of them first: one model's rise ahead must not
// take the slice that another needs to serve at all.
func (d *decision) supply() {
	for _, step := range []struct {
		reason Reason
		want   func(*serving) int
	}{
		{BelowMin, func(c *serving) int { return c.Min }},
		{NeedsMore, func(c *serving) int { return c.Need }},
		{RiseAhead, func(c *serving) int { return c.Fast }},
	} {
		for i := range d.models {
			c := &d.models[i]
			for c.Have < step.want(c) && d.add(c, step.reason, true) {
			}
		}
	}
}

// restoreSpare reclaims when needs have grown into the shared spare.
func (d *decision) restoreSpare() {
	for d.lent > d.lendable {
		var most *serving // the model whose rise is the largest may need it first
		for i := range d.models {
			if c := &d.models[i]; c.Have < c.Max && (most == nil || c.RiseFast > most.RiseFast) {
				most = c
			}
		}
		if most == nil || !d.add(most, SpareGone, false) {
			return
		}
	}
}

// source is a slice on which a model could have one more replica.
type source struct {
	i        int
	wait     int // until it is ready, in steps of five seconds
	priority int // of the job that has to go; who waits least in the queue last
	cost     time.Duration
}

// nobody is the priority of a slice on which no job runs.
const nobody = -1 << 30

// add brings one more replica of the model: it wakes one, starts one on an idle
// slice, or reclaims a slice for one, whichever is ready first; of those that
// take about as long, the one that costs least.
func (d *decision) add(c *serving, reason Reason, idle bool) bool {
	if !c.ranked {
		c.from, c.ranked = d.sources(c), true
	}
	for k, f := range c.from {
		s := &d.slices[f.i]
		if s.Moving || !idle && !s.Lent() { // taken meanwhile, or not what is looked for
			continue
		}
		if s.Model != c.Name && s.Lent() && c.onItsWay > 0 {
			c.onItsWay-- // a sleeper's slice whose loan has not begun yet will do sooner
			return false
		}
		c.from = slices.Delete(c.from, k, k+1)
		d.bring(c, f, reason)
		return true
	}
	return false
}

// sources ranks all slices for one more replica.
func (d *decision) sources(c *serving) (all []source) {
	for i := range d.slices {
		s := &d.slices[i]
		if s.Moving && s.Lent() && s.Model == c.Name {
			c.onItsWay++
		}
		if s.Moving || s.Phase == Unhealthy || !fits(s.Shape, c.Needs) || d.closed(s) {
			continue
		}
		back := c.Cold
		if s.Model == c.Name {
			back = c.Back
		}
		f := source{i: i, priority: nobody, cost: time.Duration(units(s.Shape)) * time.Microsecond}
		switch {
		case s.Lent():
			j := d.job(s.Job)
			back += j.leaving()
			f.priority = j.Priority
			if f.cost += d.preemptCost(j); s.Model != c.Name {
				f.cost += time.Millisecond
			}
		case s.Phase == Asleep && s.Model == c.Name:
		case s.Phase == Free:
			f.cost += time.Millisecond
		case s.Phase == Asleep:
			f.cost += 2 * time.Millisecond
		default:
			continue
		}
		if d.claimed(i) { // as a last resort: who gathers would have to begin anew
			f.cost += time.Minute
		}
		f.wait = int(back / (5 * time.Second))
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b source) int {
		return cmp.Or(a.wait-b.wait, cmp.Compare(a.priority, b.priority), cmp.Compare(a.cost, b.cost), a.i-b.i)
	})
	return all
}

// bring makes the move that a source calls for.
func (d *decision) bring(c *serving, f source, reason Reason) {
	s := &d.slices[f.i]
	m := Move{Action: Start, Model: c.Name, Reason: reason, Why: c.Numbers}
	switch {
	case s.Lent():
		j := d.job(s.Job)
		m.Action, m.Job, m.Bound = Reclaim, s.Job, d.Bound(*j, *c.Model)
		if s.Model != c.Name {
			m.Bound = d.coldBound(*j, *c.Model)
		}
		m.Why.Cost, m.Why.For = j.Cost(), d.Now.Sub(s.Since)
		d.lent -= units(s.Shape)
		d.loans--
	case s.Phase == Asleep && s.Model == c.Name:
		m.Action = Wake
	}
	d.apply(f.i, m)
	c.Have++
}

// giveBackSlow reclaims from work that must save first when needs have grown so
// far that it may be asked to leave too late.
func (d *decision) giveBackSlow() {
	slow := d.slowLent()
	if slow <= d.slowMax {
		return
	}
	for k := range d.models {
		c := &d.models[k]
		for slow > d.slowMax && c.Have < min(c.Slow, c.Max) {
			best := -1
			var cost time.Duration
			for i := range d.slices {
				s := &d.slices[i]
				if !s.Lent() || s.Moving || s.Phase == Unhealthy || !fits(s.Shape, c.Needs) || d.job(s.Job).Fast() || d.closed(s) {
					continue
				}
				if x := d.preemptCost(d.job(s.Job)); best < 0 || x < cost {
					best, cost = i, x
				}
			}
			if best < 0 {
				break
			}
			slow -= units(d.slices[best].Shape)
			d.bring(c, source{i: best}, RiseAhead)
		}
	}
}

// slowLent is what work that must save first has borrowed.
func (d *decision) slowLent() int {
	slow := 0
	for i := range d.slices {
		if s := &d.slices[i]; s.Lent() && s.Phase != Unhealthy && !d.job(s.Job).Fast() {
			slow += units(s.Shape)
		}
	}
	return slow
}
