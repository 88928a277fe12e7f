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

// add brings one more replica of the model: it wakes one, starts one on an idle
// slice, or reclaims a slice for one, whichever is ready first; of those that
// take about as long, the one that costs least.
func (d *decision) add(c *serving, reason Reason, idle bool) bool {
	if !d.ranked {
		d.rank()
	}
	f, ok := d.nearest(c, idle)
	if !ok {
		return false
	}
	s := &d.slices[f.i]
	if reason == RiseAhead && s.Phase == Free && d.misfit(f.i, c.Needs) { // there is time to cut it
		d.reshape(s.GPU, c.Needs, Move{Model: c.Name})
		c.Have++
		return true
	}
	if s.Model != c.Name && s.Lent() && c.onItsWay > 0 {
		c.onItsWay-- // a sleeper's slice whose loan has not begun yet will do sooner
		return false
	}
	d.bring(c, f, reason)
	return true
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
	all := d.slowFirst()
	for k := range d.models {
		c := &d.models[k]
		for slow > d.slowMax && c.Have < min(c.Slow, c.Max) {
			n := slices.IndexFunc(all, func(i int) bool { return !d.slices[i].Moving && fits(d.slices[i].Shape, c.Needs) })
			if n < 0 {
				break
			}
			slow -= units(d.slices[all[n]].Shape)
			d.bring(c, source{i: all[n]}, RiseAhead)
			all = all[:copy(all[n:], all[n+1:])+n]
		}
	}
}

// slowFirst are the slices that work holds which must save first, what costs least
// to stop first.
func (d *decision) slowFirst() (all []int) {
	cost := make([]time.Duration, len(d.slices))
	for i := range d.slices {
		s := &d.slices[i]
		if !s.Lent() || s.Moving || s.Phase == Unhealthy || d.closed(s) {
			continue
		}
		if j := d.holderOf(i); !j.Fast() {
			all, cost[i] = append(all, i), d.preemptCost(j)
		}
	}
	slices.SortFunc(all, func(a, b int) int { return cmp.Or(cmp.Compare(cost[a], cost[b]), a-b) })
	return all
}

// slowLent is what work that must save first has borrowed.
func (d *decision) slowLent() int {
	slow := 0
	for i := range d.slices {
		if s := &d.slices[i]; s.Lent() && s.Phase != Unhealthy && !d.holderOf(i).Fast() {
			slow += units(s.Shape)
		}
	}
	return slow
}
