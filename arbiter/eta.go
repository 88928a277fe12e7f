package arbiter

// settings turns the batchers' patience up while jobs wait and headroom allows,
// and lets batch rows ride only while it does.
func (d *decision) settings() {
	wait := false
	for i := range d.Jobs {
		if d.Jobs[i].Waits() {
			wait = true
			break
		}
	}
	d.plan.Settings = make([]Setting, len(d.models))
	for i := range d.models {
		c := &d.models[i]
		d.plan.Settings[i] = Setting{Model: c.Name, Rows: c.Room == nil || *c.Room >= d.ReclaimBelow}
		// Generation is not merged: patience there only crowds replicas. (bursty-8gpu-code
		// lost 32 requests in 100,000 by it and gained nothing.)
		if wait && c.Room != nil && c.Slots == 0 {
			d.plan.Settings[i].Eta = d.eta(*c.Room)
		}
	}
}

// eta is the patience that a headroom pays for: only what is above the mark is
// spent, so that lending stays allowed.
func (p Policy) eta(room float64) float64 {
	if room <= p.LendAbove {
		return 0
	}
	return p.MaxEta * min(1, (room-p.LendAbove)/(1-p.LendAbove))
}

// warmUp fills idle slices with replicas while no job waits, one at a time:
// they cost nothing then, and a later reclaim finds a sleeper instead of an
// empty slice.
func (d *decision) warmUp() {
	if d.Mode == ModeStatic { // a ready replica is never lent there
		return
	}
	for i := range d.Jobs {
		if d.Jobs[i].Waits() {
			return
		}
	}
	for i := range d.slices {
		if s := &d.slices[i]; s.Moving || s.Phase == Loading {
			return
		}
	}
	for i := range d.models {
		c := &d.models[i]
		if c.Have == 0 || c.Have >= c.Max {
			continue
		}
		best, action := -1, Start
		for k := range d.slices {
			s := &d.slices[k]
			if s.Lent() || !fits(s.Shape, c.Needs) || d.closed(s) || d.claimed(k) || d.misfit(k, c.Needs) {
				continue
			}
			if s.Phase == Asleep && s.Model == c.Name {
				best, action = k, Wake
				break
			}
			if s.Phase == Free && (best < 0 || s.Shape.Weight() < d.slices[best].Shape.Weight()) {
				best = k
			}
		}
		if best >= 0 {
			d.apply(best, Move{Action: action, Model: c.Name, Reason: WarmPool, Why: c.Numbers})
			c.Have++
			return
		}
	}
}
