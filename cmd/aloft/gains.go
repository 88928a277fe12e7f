package main

import (
	"maps"

	"aloft/arbiter"
)

// gains compares a moment with a static split, in compute slices:
//
//   - gained are those on which jobs run beyond what a static split leaves them:
//     all healthy slices less each model's static share;
//   - missed are those that could be lent besides, but are not because the mode
//     is static or observe: what the arbiter calls lendable, as far as jobs wait.
//
// Both are estimates: jobs that run earlier now leave less work for later, and
// missed slices would have cost their way out and back.
func gains(v arbiter.View) (gained, missed float64) {
	s := v.Snapshot
	units, healthy, runs, lent := 0.0, 0, 0, 0
	for _, sl := range s.Slices {
		if sl.Phase == arbiter.Unhealthy {
			continue
		}
		healthy++
		units += float64(max(1, sl.Shape.ComputeSlices))
		if sl.Lent() {
			lent++
		}
		if sl.Lent() && sl.Phase == arbiter.JobRuns {
			runs++
		}
	}
	if healthy == 0 {
		return 0, 0
	}
	share := healthy
	for _, m := range s.Models {
		static := m.Static
		if static == 0 {
			static = m.Max
		}
		share -= static
	}
	each := units / float64(healthy) // slices of several shapes: the mean
	gained = each * float64(max(0, runs-max(0, share)))
	if v.Policy.Mode == arbiter.ModeLend {
		return gained, 0
	}
	wanted := 0
	for _, j := range s.Jobs {
		wanted += max(0, min(j.MaxWidth, healthy)-j.Have)
	}
	lendable := 0
	for _, n := range v.Plan.Needs { // the same for all models
		lendable = n.Lendable
	}
	return gained, each * float64(max(0, min(lendable, lent+wanted)-lent))
}

// clone copies the maps of an hour too.
func (x hour) clone() hour {
	x.SliceS, x.QueuedS, x.Moves, x.Reclaims = maps.Clone(x.SliceS), maps.Clone(x.QueuedS), maps.Clone(x.Moves), maps.Clone(x.Reclaims)
	return x
}
