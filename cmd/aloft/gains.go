package main

import (
	"maps"

	"aloft/arbiter"
	"aloft/gpu"
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
	healthy, count, runs, lent := 0, 0, 0, 0
	for _, sl := range s.Slices {
		if sl.Phase == arbiter.Unhealthy {
			continue
		}
		u := sl.Units()
		count++
		healthy += u
		if sl.Lent() {
			lent += u
		}
		if sl.Lent() && sl.Phase == arbiter.JobRuns {
			runs += u
		}
	}
	if healthy == 0 {
		return 0, 0
	}
	// Who needs no shape takes any slice, the mean one.
	size := func(s gpu.Shape) float64 {
		if s.ComputeSlices > 0 {
			return float64(s.ComputeSlices)
		}
		return float64(healthy) / float64(count)
	}
	share := float64(healthy)
	for _, m := range s.Models {
		static := m.Static
		if static == 0 {
			static = m.Max
		}
		share -= float64(static) * size(m.Needs)
	}
	gained = max(0, float64(runs)-max(0, share))
	if v.Policy.Mode == arbiter.ModeLend {
		return gained, 0
	}
	wanted := 0.0
	for _, j := range s.Jobs {
		wanted += float64(max(0, min(j.MaxWidth, count)-j.Have)) * size(j.Needs)
	}
	lendable := 0
	for _, n := range v.Plan.Needs { // the same for all models
		lendable = n.Lendable
	}
	return gained, max(0, min(float64(lendable), float64(lent)+wanted)-float64(lent))
}

// clone copies the maps of an hour too.
func (x hour) clone() hour {
	x.SliceS, x.QueuedS, x.Moves, x.Reclaims = maps.Clone(x.SliceS), maps.Clone(x.QueuedS), maps.Clone(x.Moves), maps.Clone(x.Reclaims)
	return x
}
