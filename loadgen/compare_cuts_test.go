package loadgen

import "testing"

// What changed for a tenant, a class or a length is listed, the furthest apart
// where there is too much, and only where the intervals do not overlap.
func TestCompareCuts(t *testing.T) {
	a, b := sampleReport(t, 900, 100*msec, 1), sampleReport(t, 980, 50*msec, 2)
	c := Compare(a, b)
	if len(c.Cuts) != mostCuts || c.CutsMore == 0 {
		t.Errorf("%d figures of cuts and %d more, want %d and some", len(c.Cuts), c.CutsMore, mostCuts)
	}
	tenant := false
	for _, f := range c.Cuts {
		tenant = tenant || f.Cut == "tenant=big"
		if apart, below := f.IntervalB.apart(f.IntervalA); !apart || f.Verdict != Better || below == (f.Unit == "") && f.Figure == "attainment" {
			t.Errorf("%+v: want intervals apart, and better", f)
		}
	}
	if !tenant {
		t.Error("nothing of tenant big")
	}
	if same := Compare(a, sampleReport(t, 900, 100*msec, 1)); len(same.Cuts) != 0 {
		t.Errorf("equal runs: %+v", same.Cuts)
	}
	b.Failed = []string{"too slow"}
	if silent := Compare(a, b); len(silent.Cuts) != 0 {
		t.Errorf("of a run that does not count: %+v", silent.Cuts)
	}
}

// A cut's requests were bad together, as those of its workload were: its share is
// less certain than its count says.
func TestCutsOfClumpedRuns(t *testing.T) {
	report := func(ok int, clumped bool) *Report {
		r := &Report{Results: []Result{{Name: "w", Phase: "p", Tally: Tally{Offered: 20_000, OK: 15_000}, Attainment: 0.75}},
			Cuts: []Cut{{Workload: "w", By: byTenant, Name: "a", Tally: Tally{Offered: 1000, OK: ok}, Attainment: float64(ok) / 1000}}}
		for i := range 20 {
			p := Point{Offered: 1000, Good: 750}
			if clumped {
				p.Good = 1000 * min(i%4, 1)
			}
			r.Results[0].Timeline = append(r.Results[0].Timeline, p)
		}
		return r
	}
	for _, c := range []struct {
		clumped bool
		want    int
	}{{false, 1}, {true, 0}} {
		if got := Compare(report(700, c.clumped), report(800, c.clumped)).Cuts; len(got) != c.want {
			t.Errorf("clumped %v: %+v, want %d", c.clumped, got, c.want)
		}
	}
}
