package sim

import (
	"math"
	"testing"
	"time"

	"aloft/arbiter"
	"aloft/sim/scenario"
)

// By hand, on one GPU of 7 slices for 100 s. A request of 6,000 tokens at 6,000
// tokens/s costs 1 slice-second where prefill binds: 20 of them in second 0 fill
// two seconds and 6 of the third. j1, 2 slices for 30 s, and j2, 6 for 10 s, have
// 60 slice-seconds each. The tie goes to j1 by name: it gets the 1 that is left in
// second 2, and 2 in second 3, where j2 gets 5. Now j2 has the shorter rest, 55
// against 57: 6 a second from second 4 on, j1 the seventh slice. j2 is done with 1
// more in second 13, that is at 14 s, and j1, which has 48 then, after two a
// second from second 13 on: at 37 s.
func TestFluidByHand(t *testing.T) {
	s := &scenario.Scenario{Name: "hand", Cluster: scenario.Cluster{GPUs: 1, Jobs: 7}}
	m := &scenario.Model{Name: "code", Service: scenario.Service{AlphaMs: 1, Slots: 16, PrefillPerS: 6000, SpeedWhenPrefill: 0.5}}
	w := &scenario.World{Scenario: s, Seed: 1, Horizon: 100 * time.Second, Traffic: []scenario.Traffic{{Model: m}},
		Jobs: []scenario.Job{{ID: "j1", Run: 30 * time.Second, Slices: 2}, {ID: "j2", Run: 10 * time.Second, Slices: 6}}}
	for range 20 {
		w.Traffic[0].Arrivals = append(w.Traffic[0].Arrivals, scenario.Arrival{At: 100 * time.Millisecond, In: 6000, Out: 1})
	}
	r := Fluid(w)
	// 20 of serving and 120 of jobs in 700 slice-seconds.
	if math.Abs(r.Aloft-0.2) > 1e-9 || math.Abs(r.Ledger[arbiter.ServingUseful]-20) > 1e-9 || math.Abs(r.Ledger[arbiter.FreeEmpty]-560) > 1e-9 {
		t.Errorf("aloft %v, ledger %v, want 0.2 of 700: 20 served, 120 of jobs", r.Aloft, r.Ledger)
	}
	if f := r.Jobs; f.Submitted != 2 || f.Finished != 2 || f.Completion.Max != 37 || f.Completion.Mean != (37+14)/2. {
		t.Errorf("jobs %+v, want one done at 14 s and one at 37 s", f)
	}
	// With a backlog nothing is left over.
	w.Backlog = &scenario.Job{ID: "backlog", Slices: 1}
	if r := Fluid(w); math.Abs(r.Aloft-1) > 1e-9 || math.Abs(r.Jobs.BacklogS-560) > 1e-9 {
		t.Errorf("with a backlog aloft is %v and the backlog gets %v, want 1 and 560", r.Aloft, r.Jobs.BacklogS)
	}
}
