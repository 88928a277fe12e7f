package arbiter

import (
	"slices"
	"time"

	"aloft/gpu"
)

// recast makes the shape of the first single job that waits for one which is cut
// nowhere, or only where others are: the cheapest GPU is found on which an instance
// of it has a place once idle slices, spare replicas and jobs of lower priority have
// gone, and that place is claimed. The claim empties it, has it cut and lends it.
func (l *lender) recast(singles []queued) {
	if !l.Plan || l.veto != "" || l.Frozen {
		return
	}
	asked := map[search]bool{} // as in dry: what one job did not find its like does not either
	looks := mostGathers       // each goes through all GPUs
	for _, x := range singles {
		f := search{l.kind(x.job), x.tenant.Tenant}
		if x.job.Have > 0 || asked[f] || looks == 0 || l.claims(x.job.ID) || l.helped(x.job) {
			continue
		}
		asked[f] = true
		if t := x.tenant; !t.fits(partsOf(x.job.Needs, 1)) || t.gang != noGang && l.level(x.job) <= t.gang || l.cut(x.job) {
			continue
		}
		if l.carve(x.job, x.tenant, &looks) {
			return // one at a time: what it does to headroom is to be seen first
		}
	}
}

// helped reports whether the plan gives the job a slice.
func (l *lender) helped(j *Job) bool {
	return slices.ContainsFunc(l.plan.Moves, func(m Move) bool { return m.Action == Lend && m.Job == j.ID })
}

// cut reports whether there is, or comes, a slice of the job's shape that no job has:
// it waits for that one.
func (l *lender) cut(j *Job) bool {
	for i := range l.slices {
		s := &l.slices[i]
		if !s.Lent() && s.Phase != Unhealthy && fits(s.Shape, j.Needs) && (!l.oversize(s, j.Needs) || l.misfit(i, j.Needs)) {
			return true
		}
	}
	return slices.ContainsFunc(l.Claims, func(c Claim) bool { return c.Cut.Size > 0 && !c.Resting() })
}

// carve claims the place of a new slice for the job.
func (l *lender) carve(j *Job, t *tenant, looks *int) bool {
	shut := l.uncut()
	at := make(map[string]int, len(l.slices))
	for i := range l.slices {
		at[l.slices[i].ID] = i
	}
	s := *l.Snapshot
	s.Slices, s.GPUs = l.slices, slices.DeleteFunc(slices.Clone(s.GPUs), func(g GPU) bool { return shut[g.Index] })
	geo := NewGeometries(s.GPUs, s.wants())
	for ; *looks > 0; *looks-- { // each that comes to nothing shuts the GPU it came to
		e, ok := Victims(s, j.Needs, geo, func(s Slice) (time.Duration, bool) {
			return l.loses(at[s.ID], j)
		})
		if !ok {
			*looks--
			return false
		}
		var on []int
		for _, id := range e.Slices {
			on = append(on, at[id])
		}
		if l.leavesRoom(e, on) && l.clear(e, on, j, t) {
			return true
		}
		s.GPUs = slices.DeleteFunc(slices.Clone(s.GPUs), func(g GPU) bool { return g.Index == e.GPU })
	}
	return false
}

// uncut are the GPUs that may not be cut now: one of a server at a time, none that
// was within the dwell, and so many in an hour.
func (l *lender) uncut() map[int]bool {
	shut, busy, hour := map[int]bool{}, map[int]bool{}, map[int]int{}
	for _, g := range l.GPUs {
		busy[g.Server] = busy[g.Server] || g.Shaping
		if !g.Reshaped.IsZero() && l.Now.Sub(g.Reshaped) < time.Hour {
			hour[g.Server]++
		}
	}
	for _, g := range l.GPUs {
		if busy[g.Server] || hour[g.Server] >= reshapesHourly || !g.Reshaped.IsZero() && l.Now.Sub(g.Reshaped) < reshapeDwell {
			shut[g.Index] = true
		}
	}
	return shut
}

// loses is what is lost if a slice is emptied for the job; false: it must stay.
func (l *lender) loses(i int, j *Job) (time.Duration, bool) {
	s := &l.slices[i]
	if s.Moving || l.closed(s) || l.pinned(s) || l.claimed(i) || l.keptForGang(i, j) {
		return 0, false
	}
	switch c := l.model(s.Model); {
	case s.Lent():
		v := l.holderOf(i)
		return l.preemptCost(v), l.aged(l.Now, v) < j.Priority
	case s.Phase == Free:
		return 0, true
	case s.Phase == Asleep: // its model will have to start from cold
		if c == nil {
			return 0, true
		}
		return max(0, c.Cold-c.Back), true
	case s.Phase == Ready && c != nil && l.Mode != ModeStatic && c.Have > c.Fast:
		if _, ok := l.mayLend(j, c, c, units(s.Shape)); !ok {
			return 0, false
		}
		return c.Out + max(c.Back, c.Cold), true
	}
	return 0, false
}

// leavesRoom reports whether the models still have the slices that they may need
// within the slow horizon: units say how much there is, not whether it fits. As a gang's
// members, the parts of a shape go at once, but never one that is needed within the
// fast horizon.
func (l *lender) leavesRoom(e Eviction, on []int) bool {
	for k := range l.models {
		c := &l.models[k]
		have, gone, ready, need := 0, 0, 0, 0
		for i := range l.slices {
			if s := &l.slices[i]; s.Phase != Unhealthy && fits(s.Shape, c.Needs) {
				have++
			}
		}
		for _, i := range on {
			s := &l.slices[i]
			if fits(s.Shape, c.Needs) {
				gone++
			}
			if s.Phase == Ready && s.Model == c.Name {
				ready++
			}
		}
		if made, err := gpu.ShapeOf(l.family(e.GPU), e.Place.Profile); gone > 0 && err == nil && fits(made, c.Needs) {
			gone--
		}
		for m := range l.models { // what needs as much as this one or more stands on the same slices
			if o := &l.models[m]; fits(o.Needs, c.Needs) {
				need += max(o.Min, o.Slow)
			}
		}
		if gone > 0 && have-gone < need || ready > max(0, c.Have-c.Fast) {
			return false
		}
	}
	return true
}

// clear claims the place if what is gained over the dwell pays for what it loses,
// and begins to empty it.
func (l *lender) clear(e Eviction, on []int, j *Job, t *tenant) bool {
	u, cost, leave := 0, room{}, time.Duration(0)
	for _, i := range on {
		s := &l.slices[i]
		more := costOf(j, units(s.Shape))
		if u += more.all; s.Lent() {
			v := l.holderOf(i)
			if leave, more.all = max(leave, v.leaving()), 0; !v.Fast() {
				more.slow = 0
			}
		}
		cost.all, cost.slow = cost.all+more.all, cost.slow+more.slow
	}
	if len(on) == 0 { // bare memory: nothing that may be lent is used up
		cost, u = room{}, 0
	}
	w := Worth{Idle: reshapeDwell, Rest: j.Rest, Chance: 1, Stop: j.Restart + min(j.Grace, j.Save), OutBack: e.Cost + j.Restart}
	if !l.spare().holds(cost) || l.loans >= l.Cap || len(on) > 0 && l.overbooks(j, on[0], cost) || w.Value() <= 0 {
		return false
	}
	if len(on) > 0 {
		l.book(j, on[0], cost)
	}
	t.add(partsOf(j.Needs, 1))
	for _, i := range on {
		if s := &l.slices[i]; s.Phase == Ready && !s.Lent() {
			l.gave[s.Model]++
			l.model(s.Model).Have--
			l.vacate(i, ForJob)
		}
	}
	c := Claim{Job: j.ID, GPUs: []int{e.GPU}, Cut: e.Place, Since: l.Now, Until: l.Now.Add(gatherFor + leave)}
	if l.advance(&c, j, on) {
		l.enterClaim(c, on...)
		l.kept += u
	}
	return true
}

// cutAt gives a GPU an instance at that place, for the job that the move names.
func (d *decision) cutAt(g int, pl gpu.Placement, m Move) {
	s := *d.Snapshot
	s.GPUs = slices.DeleteFunc(slices.Clone(s.GPUs), func(o GPU) bool { return o.Index != g || o.Shaping })
	s.Slices = d.slices
	for _, c := range cards(s, func(Slice) bool { return false }) {
		layout := c.with(pl)
		if c.family.Legal(layout) != nil {
			return
		}
		d.own()
		for i := range d.slices {
			if s := &d.slices[i]; s.GPU == g && pl.Mask()&gpu.Mask(s.Start, s.Shape.MemorySlices) != 0 {
				s.Moving = true
			}
		}
		m.Action, m.GPU, m.Layout, m.Reason = Reshape, g, layout, OtherShape
		d.plan.Moves = append(d.plan.Moves, m)
	}
}
