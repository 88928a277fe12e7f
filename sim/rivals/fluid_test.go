package rivals

import (
	"math"
	"testing"
	"time"

	"aloft/sim/scenario"
)

// TestFluid: 7 slices for 10 s, no traffic. Job a needs 7 slices for 2 s, b one
// slice for 3 s, both from 0 on; c comes at 4 s and needs one for 20 s.
func TestFluid(t *testing.T) {
	s := &scenario.Scenario{Cluster: scenario.Cluster{GPUs: 1}}
	w := &scenario.World{Scenario: s, Horizon: 10 * time.Second, Jobs: []scenario.Job{
		{ID: "a", GPUs: 1, Run: 2 * time.Second},
		{ID: "b", Slices: 1, Run: 3 * time.Second},
		{ID: "c", Slices: 1, At: 4 * time.Second, Run: 20 * time.Second},
	}}
	// b is shorter and takes 1 slice for 3 s; a gets 6, 6 and then 2 of its 14 slice-
	// seconds: both are done after 3 s, a 1 s later than its run. c does 6 of its 20 s
	// by 10 s and counts with its age of 6. Used: 3 + 14 + 6 of 70.
	want := Bound{Aloft: 23.0 / 70, Queueing: 1.0 / 3, Completion: (3.0 + 3 + 6) / 3, P95: 6}
	got := Fluid(w)
	for _, c := range []struct {
		name      string
		got, want float64
	}{{"aloft", got.Aloft, want.Aloft}, {"queueing", got.Queueing, want.Queueing}, {"completion", got.Completion, want.Completion}, {"p95", got.P95, want.P95}} {
		if math.Abs(c.got-c.want) > 1e-9 {
			t.Errorf("%s is %g, want %g", c.name, c.got, c.want)
		}
	}
	w.Backlog = &scenario.Job{ID: "backlog", Slices: 1}
	if got := Fluid(w).Aloft; math.Abs(got-1) > 1e-9 {
		t.Errorf("with a backlog %g is aloft, want all", got)
	}
}
