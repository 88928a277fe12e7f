package arbiter

import "aloft/gpu"

// misfit reports whether a slice is most of a GPU that has nothing else on it and
// could be cut into slices of the size that is asked for.
func (d *decision) misfit(i int, needs gpu.Shape) bool {
	s := &d.slices[i]
	return units(s.Shape) >= wholeUnits && d.oversize(s, needs) && d.alone(i)
}

// alone reports whether nothing is on the other slices of the slice's GPU, or on
// its way there. The slices of a GPU lie side by side.
func (d *decision) alone(i int) bool {
	g, from, to := d.slices[i].GPU, i, i+1
	for from > 0 && d.slices[from-1].GPU == g {
		from--
	}
	for to < len(d.slices) && d.slices[to].GPU == g {
		to++
	}
	for k := from; k < to; k++ {
		if o := &d.slices[k]; k != i && (o.Phase != Free || o.Moving || o.Lent() || d.claimed(k)) {
			return false
		}
	}
	return true
}

// recut gives GPUs that are one slice, for which nobody waits, back to those who
// wait for smaller ones: idle ones are cut, and a small replica that woke or
// started on one moves out. Whole GPUs are gathered for jobs all day; without a
// way back, a night later each held one small replica and seven eighths of the
// node stood still (small-8gpu-conv, seed 22).
func (l *lender) recut() {
	var wants *Job
	for i := range l.Jobs {
		j := &l.Jobs[i]
		if j.Waits() && units(j.Needs) < wholeUnits && (wants == nil || units(j.Needs) < units(wants.Needs)) {
			wants = j
		}
	}
	if wants == nil {
		return
	}
	moved := false
	for i := range l.slices {
		s := &l.slices[i]
		if s.Moving || s.Lent() || l.claimed(i) || l.closed(s) || l.reserved != nil && l.reserved[i] != nil || !l.misfit(i, wants.Needs) {
			continue
		}
		switch c := l.model(s.Model); {
		case s.Phase == Free:
			l.reshape(s.GPU, wants.Needs, Move{Job: wants.ID})
		case c == nil || l.pinned(s) || c.Frozen || moved || !l.oversize(s, c.Needs):
		case s.Phase == Asleep:
			l.vacate(i, OtherShape)
			moved = true
		case s.Phase == Ready && c.Have > c.Need && l.veto == "": // supply brings another
			c.Have--
			l.vacate(i, OtherShape)
			moved = true
		}
	}
}
