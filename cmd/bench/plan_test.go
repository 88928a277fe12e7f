package main

import (
	"fmt"
	"math"
	"reflect"
	"testing"

	"aloft/arbiter"
	"aloft/gpu"
)

func BenchmarkPlan(b *testing.B) {
	for _, gpus := range []int{100, 1000, 10_000} {
		b.Run(fmt.Sprintf("%d GPUs", gpus), func(b *testing.B) {
			s, p := fleetSnapshot(gpus, 1), fleetPolicy()
			b.ReportAllocs()
			for b.Loop() {
				p.Decide(s)
			}
		})
	}
}

// TestFleetSnapshot: what the plan benchmark decides about is a possible fleet,
// and there is something to decide.
func TestFleetSnapshot(t *testing.T) {
	s := fleetSnapshot(200, 1)
	if !reflect.DeepEqual(s, fleetSnapshot(200, 1)) {
		t.Error("a seed gives another fleet the second time")
	}
	if len(s.Slices) != 1000 || len(s.GPUs) != 200 {
		t.Errorf("%d slices on %d GPUs", len(s.Slices), len(s.GPUs))
	}
	f, _ := gpu.Lookup(planFamily)
	on := map[int][]gpu.Placement{}
	phases := map[arbiter.Phase]int{}
	for _, sl := range s.Slices {
		on[sl.GPU] = append(on[sl.GPU], sl.Placement())
		phases[sl.Phase]++
	}
	for _, g := range s.GPUs {
		mask := uint8(0)
		for _, pl := range on[g.Index] {
			mask |= pl.Mask()
		}
		if err := f.Legal(on[g.Index]); err != nil || mask != g.Mask {
			t.Fatalf("gpu %d: %v, mask %08b, instances %08b", g.Index, err, g.Mask, mask)
		}
	}
	for _, p := range []arbiter.Phase{arbiter.Ready, arbiter.JobRuns, arbiter.Free, arbiter.Asleep} {
		if phases[p] < 20 {
			t.Errorf("%d slices are %s", phases[p], p)
		}
	}
	if err := fleetPolicy().Validate(); err != nil {
		t.Error(err)
	}
	plan := fleetPolicy().Decide(s)
	done := map[arbiter.Action]int{}
	for _, m := range plan.Moves {
		done[m.Action]++
	}
	if done[arbiter.Lend] == 0 || done[arbiter.Wake]+done[arbiter.Start]+done[arbiter.Reclaim] == 0 {
		t.Errorf("moves %v: nothing to decide", done)
	}
}

func TestTimePlans(t *testing.T) {
	p := timePlans(20, 3)
	if p.slices != 100 || p.jobs < 200 || p.plan.min <= 0 || p.guard.min <= 0 || math.IsNaN(p.plan.max) || p.allocated <= 0 || p.snapshot <= 0 {
		t.Errorf("%+v", p)
	}
}
