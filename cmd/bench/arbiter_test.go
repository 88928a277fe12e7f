package main

import (
	"math"
	"testing"

	"aloft/sim"
	"aloft/sim/scenario"
	lending "aloft/sim/study"
)

// run is a run with the few figures that a mark is made of.
func runOf(policy string, seed uint64, aloft float64, edit func(*lending.Run)) lending.Run {
	r := lending.Run{Variant: lending.AsIs, Result: sim.Result{Policy: policy, Seed: seed, Aloft: aloft, Total: sim.Served{Requests: 1000, Attainment: 0.999},
		Models: []sim.ModelResult{{Name: "chat", Served: sim.Served{Attainment: 1}}, {Name: "code", Served: sim.Served{Attainment: 0.998}}},
		Jobs:   sim.JobFigures{Queueing: sim.Spread{Mean: 100}, Completion: sim.Spread{Mean: 200, P95: 900}}}}
	r.Caused = []sim.Cause{{Model: "chat"}, {Model: "code"}, {}}
	if edit != nil {
		edit(&r)
	}
	return r
}

// Two seeds by hand. Ours reaches 0.66 and 0.72 where static has 0.6: factors 1.1
// and 1.2, median 1.15. Queueing falls from 100 to 40 and 20 where the pilot has
// 10: 60/90 and 80/90 of the gap, median 0.778. Code falls 0.1 and 0.3 points
// short: the worst is 0.3, above its mark. 1 and 3 requests of 1,000 were missed
// because of lending: 300 in 100,000 in the worst seed.
func TestArbiterMarks(t *testing.T) {
	b := &bout{scenario: bursty, seeds: []uint64{1, 2}}
	b.found = b.study(nil, false)
	for i, seed := range b.seeds {
		x := float64(i)
		b.found.Runs = append(b.found.Runs, runOf(staticArm, seed, 0.6, nil), runOf(pilotArm, seed, 0.84, func(r *lending.Run) { r.Jobs.Queueing.Mean, r.Jobs.Completion.Mean = 10, 110 }),
			runOf(oursArm, seed, 0.66+0.06*x, func(r *lending.Run) {
				r.Jobs.Queueing.Mean, r.Jobs.Completion.Mean = 40-20*x, 140-20*x
				r.Models[1].Attainment -= 0.001 + 0.002*x
				r.Caused[2] = sim.Cause{Requests: 1000, Gross: 1 + 2*i, GrossPer: 100 + 200*x}
				r.Reclaims = []sim.ReclaimTime{{Kept: 1998, Broken: 1, Faulted: 1}}
				r.Incidents = []sim.Incident{{Kind: "bound_broken"}, {Kind: "gpu_failed"}, {Kind: "bound_broken"}}
			}))
	}
	r := &result{}
	w := marksOf[bursty]
	b.serving(r, w)
	b.gains(r, w)
	b.jobs(r, w)
	b.reclaims(r)
	want := map[string]struct {
		value float64
		ok    bool
	}{
		"bursty: attainment of code below static, worst seed, points":                  {0.3, false},
		"bursty: attainment below static, worst seed, points":                          {0, true},
		"bursty: misses caused per 100,000 requests, worst seed":                       {300, false},
		"bursty: aloft ratio, ours / static":                                           {1.15, true},
		"bursty: aloft ratio, ours / pilot":                                            {0.8214, true}, // 0.69/0.84
		"bursty: aloft ratio, pilot / static (the pilot is a good one)":                {1.4, true},
		"bursty: gap between static and pilot closed, mean queueing":                   {0.7778, false},
		"bursty: p95 completion, ours / static, worst seed":                            {1, true},
		"bursty: reclaims within the bound, % of 3998 not hit by a fault":              {99.95, true},
		"bursty: reclaims broken that raised an incident, of 4 (2 of them by a fault)": {4, true},
	}
	found := 0
	for _, m := range r.marks {
		if x, ok := want[m.Name]; ok {
			found++
			if math.Abs(m.Value-x.value) > 1e-3*max(1, x.value) || m.OK != x.ok {
				t.Errorf("%s is %v, held %v, want %v, %v", m.Name, m.Value, m.OK, x.value, x.ok)
			}
		}
	}
	if found != len(want) {
		t.Errorf("%d of %d marks are there: %+v", found, len(want), r.marks)
	}
}

// Every world's runs are listed one after the other, so that two workers hold two
// worlds at most, and every policy meets static in every seed.
func TestArbiterFights(t *testing.T) {
	for _, full := range []bool{false, true} {
		seen := map[*ground]bool{}
		var last *ground
		for _, f := range fights(bouts(full, false)) {
			if f.ground != last && seen[f.ground] {
				t.Fatalf("the runs of %s, seed %d are not together", f.bout.scenario, f.seed)
			}
			last = f.ground
			seen[last] = true
		}
		for g := range seen {
			if g.left == 0 {
				t.Errorf("%s, seed %d has no run", g.bout.scenario, g.seed)
			}
		}
		for _, b := range bouts(full, false) {
			if b.entries[0] != (entry{staticArm, 0}) {
				t.Errorf("%s begins with %v, want static in all seeds", b.scenario, b.entries[0])
			}
		}
		want := scenario.Hours(6)
		if full {
			want = 0
		}
		if b := boutOf(bouts(full, false), day); b.from != want {
			t.Errorf("full %v: the day begins at hour %v, want %v", full, b.from, want)
		}
	}
}

// An hour of the bursty scenario, all the way: static, ours and the bound.
func TestArbiterBout(t *testing.T) {
	b := &bout{scenario: bursty, to: 0.25, seeds: []uint64{1}, entries: []entry{{staticArm, 0}, {oursArm, 0}, {boundArm, 0}}}
	if err := runBouts(t.Context(), &lab{}, []*bout{b}); err != nil {
		t.Fatal(err)
	}
	r := &result{}
	for _, e := range b.entries {
		b.line(r, b.found, e.policy, "")
	}
	b.models(r)
	b.seedBySeed(r)
	if len(r.rows) != 3 || len(r.notes) != 2 || b.found.Find(lending.AsIs, oursArm, 1).Models[0].GoodBits != nil {
		t.Errorf("rows %q, notes %q", r.rows, r.notes)
	}
	if x := b.found.Find(lending.AsIs, boundArm, 1).Aloft; x < 0.95 || x > 1 {
		t.Errorf("the bound's aloft ratio is %v, want about 1: there is a backlog", x)
	}
}

func TestMiddle(t *testing.T) {
	m := middle([]float64{1, 2, 10})
	if m.Value != 2 || m.Low != 1 || m.High != 10 {
		t.Errorf("%+v, want the median 2 and the extremes: three values say no more", m)
	}
}
