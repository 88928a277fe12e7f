package rivals

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"aloft/arbiter"
	"aloft/sim"
	"aloft/sim/scenario"
)

// world draws hours of a scenario that the project holds.
func world(t testing.TB, name string, seed uint64, from, to scenario.Hours) *scenario.World {
	t.Helper()
	s, err := scenario.Load("../../configs/scenarios/" + name + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	w, err := s.Draw(seed, scenario.DrawOptions{From: from, To: to})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// TestRivals runs every rival: no order is refused, the same run gives the same
// result, the pilot lends more than the static split, and takes back as its
// machine allows: from sleepers, which it leaves where it shrinks.
func TestRivals(t *testing.T) {
	w := world(t, "stress", 21, 0, 0.3)
	var static float64
	for _, name := range Names() {
		var said [2]string
		for i := range said {
			p, err := New(name)
			if err != nil {
				t.Fatal(err)
			}
			r, err := sim.Run(w, p, sim.Options{Name: name})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			said[i] = fmt.Sprint(r.Aloft, r.Total, r.Ledger[arbiter.JobUseful], r.Moves)
			for _, m := range r.Moves {
				if m.Refused > 0 {
					t.Errorf("%s: %d orders to %s for %s refused", name, m.Refused, m.Action, m.Reason)
				}
			}
			for _, c := range r.Reclaims {
				if name == Pilot && strings.HasSuffix(c.Class, "cold") && c.Kept+c.Broken > 0 {
					t.Errorf("the pilot takes %d slices back with no sleeper there", c.Kept+c.Broken)
				}
			}
			if name == Static {
				static = r.Aloft
			} else if name == Pilot && r.Aloft <= static || r.Aloft > 1 {
				t.Errorf("%s: aloft ratio %.3f, want more than the static split's %.3f", name, r.Aloft, static)
			}
		}
		if said[0] != said[1] {
			t.Errorf("%s: two runs differ:\n%s\n%s", name, said[0], said[1])
		}
	}
	if _, err := New("none"); err == nil {
		t.Error("there is a policy \"none\"")
	}
}

func TestClamp(t *testing.T) {
	for _, c := range []struct {
		static int
		x      float64
		want   int
	}{{10, 3.2, 4}, {10, 3.0000000001, 3}, {10, 0, 1}, {10, 12, 10}, {0, 3, 1}} {
		if got := (&fleet{static: c.static}).clamp(c.x); got != c.want {
			t.Errorf("clamp(%g) with a share of %d is %d, want %d", c.x, c.static, got, c.want)
		}
	}
}

func TestPeak(t *testing.T) {
	var p peak
	for _, c := range []struct {
		at        time.Duration
		add, want int
	}{{0, 5, 5}, {10, 3, 5}, {20, 4, 5}, {30, 1, 5}, {31, 1, 4}, {50, 2, 4}, {51, 0, 2}} { // 5 is 31 s old at 31, 4 is 31 s old at 51
		if got := p.add(c.at*time.Second, 30*time.Second, c.add); got != c.want {
			t.Errorf("at %d s: the largest of 30 s is %d, want %d", c.at, got, c.want)
		}
	}
}

func TestAhead(t *testing.T) {
	if got := ahead([]float64{1, 5, 2, 3, 0, 0}, 2*time.Second); !slices.Equal(got, []float32{5, 5, 3, 3, 0, 0}) {
		t.Errorf("largest within 2 s ahead: %v, want [5 5 3 3 0 0]", got)
	}
	rnd := rand.New(rand.NewPCG(3, 3))
	need := make([]float64, 300)
	for i := range need {
		need[i] = float64(rnd.IntN(20))
	}
	for i, got := range ahead(need, 7*time.Second) {
		if want := slices.Max(need[i:min(i+8, len(need))]); float64(got) != want {
			t.Fatalf("second %d: %g, want %g", i, got, want)
		}
	}
}

// TestCost: which slice a rival takes for a replica, the least cost first.
func TestCost(t *testing.T) {
	now := time.Unix(1e9, 0)
	small := func(phase arbiter.Phase, model, job string, age time.Duration) arbiter.Slice {
		s := arbiter.Slice{Phase: phase, Model: model, Job: job, Since: now.Add(-age)}
		s.Shape.ComputeSlices = 1
		return s
	}
	v := &sim.View{Share: []int{0, 0, 0, 0, 0, 0, -1}, Slices: []arbiter.Slice{
		small(arbiter.JobRuns, "chat", "embed", time.Minute),
		small(arbiter.JobRuns, "chat", "train", time.Hour),
		small(arbiter.JobRuns, "chat", "backlog", time.Minute),
		small(arbiter.Asleep, "chat", "", 0),
		small(arbiter.Free, "", "", 0),
		small(arbiter.Ready, "chat", "", 0),
		small(arbiter.Asleep, "chat", "", 0),
	}}
	for i := range v.Slices {
		v.Slices[i].Start = i
	}
	jobs := []arbiter.Job{{ID: "embed"}, {ID: "train", Unsaved: time.Minute, Slices: []string{"a"}}, {ID: "backlog", Priority: -1}}
	for _, c := range []struct {
		name string
		rules
		want []int // slices in order of taking; the others never
	}{
		{"sleepers, cheapest victim", rules{preempt: true}, []int{3, 6, 2, 0, 1, 4}},
		{"sleepers, latest victim", rules{preempt: true, recent: true}, []int{3, 6, 2, 0, 1, 4}},
		{"nobody is preempted", rules{cold: true, files: true}, []int{3, 4, 6}},
		{"cold", rules{cold: true, preempt: true}, []int{3, 4, 6, 2, 0, 1}},
	} {
		y := &yard{rules: &c.rules, v: v, now: now, jobs: jobs, fleets: []fleet{{name: "chat", static: 6}}, taken: make([]bool, len(v.Slices)), mine: make([]bool, len(v.Slices))}
		var got []int
		for y.grow(0) {
			for i, taken := range y.taken {
				if taken && !slices.Contains(got, i) {
					got = append(got, i)
				}
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: slices %v are taken, want %v", c.name, got, c.want)
		}
	}
}

// TestClear: what the pilot will need before a slow job could be gone is taken back
// in time, from the job that loses least.
func TestClear(t *testing.T) {
	v := &sim.View{Share: []int{0, 0, 0, 0, -1}, Slices: []arbiter.Slice{
		{Phase: arbiter.JobRuns, Model: "chat", Job: "long"},
		{Phase: arbiter.JobRuns, Model: "chat", Job: "short"},
		{Phase: arbiter.JobRuns, Model: "chat", Job: "backlog"},
		{Phase: arbiter.Ready, Model: "chat"},
		{Phase: arbiter.JobRuns, Job: "short"},
	}}
	for i := range v.Slices {
		v.Slices[i].Start = i
		v.Slices[i].ID = fmt.Sprint("s", i)
	}
	grace := arbiter.Stopping{Leave: 30 * time.Second}
	jobs := []arbiter.Job{{ID: "long", Unsaved: 3 * time.Minute, Slices: []string{"s0"}, Stopping: grace},
		{ID: "short", Unsaved: time.Minute, Slices: []string{"s1", "s4"}, Stopping: grace}, {ID: "backlog", Kind: "batch", Priority: -1}}
	for _, c := range []struct {
		soon int
		want []string
	}{
		{1, nil},                  // one is ready
		{2, nil},                  // and one sleeper is under the backlog
		{3, []string{"s1"}},       // 1 min on two slices is less than 3 min on one
		{4, []string{"s1", "s0"}}, // both
		{9, []string{"s1", "s0"}}, // there are no more
	} {
		y := &yard{rules: &rules{lines: true}, v: v, jobs: jobs, taken: make([]bool, len(v.Slices)), mine: make([]bool, len(v.Slices)),
			fleets: []fleet{{name: "chat", static: 4, ready: []int{3}, want: 1, soon: c.soon}}}
		y.serve()
		var got []string
		for _, o := range y.orders {
			if o.Move.Action != arbiter.Reclaim {
				t.Errorf("soon %d: an order to %s, want reclaims alone", c.soon, o.Move.Action)
			}
			got = append(got, o.Move.Slice)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("soon %d: %v taken back, want %v", c.soon, got, c.want)
		}
	}
}
