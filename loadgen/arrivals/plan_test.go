package arrivals

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestConstantIsExact(t *testing.T) {
	plan, err := Build(Spec{Phases: []Phase{
		{Name: "a", Duration: time.Second, Process: Process{Kind: Constant, Rate: 4}},
		{Name: "b", Duration: time.Second, Process: Process{Kind: Constant, Rate: 3}},
	}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := []time.Duration{
		0, 250 * time.Millisecond, 500 * time.Millisecond, 750 * time.Millisecond,
		time.Second, time.Second + 333333333, time.Second + 666666666,
	}
	if !slices.Equal(plan.Offsets, want) {
		t.Errorf("offsets %v, want %v", plan.Offsets, want)
	}
	spans := []Span{{"a", 0, time.Second, 0, 4}, {"b", time.Second, 2 * time.Second, 4, 3}}
	if !slices.Equal(plan.Spans, spans) {
		t.Errorf("spans %v, want %v", plan.Spans, spans)
	}
	if plan.End() != 2*time.Second {
		t.Errorf("end %v, want 2s", plan.End())
	}
}

// Rounding must not add up: the last of many arrivals at 3 per second is where
// the index says.
func TestConstantDoesNotDrift(t *testing.T) {
	plan, err := Build(Spec{Seed: 1, Stream: 0, Phases: []Phase{{Name: "a", Duration: 24 * time.Hour, Process: Process{Kind: Constant, Rate: 3}}}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(plan.Offsets); n != 3*86400 {
		t.Fatalf("%d arrivals, want %d", n, 3*86400)
	}
	if got, want := plan.Offsets[3*86399], 86399*time.Second; got != want {
		t.Errorf("arrival 3·86399 at %v, want %v", got, want)
	}
}

func TestPoissonHasItsRateAndVariation(t *testing.T) {
	plan, err := Build(Spec{Seed: 7, Stream: 0, Phases: []Phase{{Name: "a", Duration: 1000 * time.Second, Process: Process{Kind: Poisson, Rate: 100}}}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	// 100,000 expected with a standard deviation of 316.
	if n := float64(len(plan.Offsets)); math.Abs(n-100_000) > 4*316 {
		t.Errorf("%.0f arrivals, want 100,000 ± 1,264", n)
	}
	mean, cv := meanAndCV(plan.Offsets)
	if math.Abs(mean-0.01) > 0.0002 || math.Abs(cv-1) > 0.02 {
		t.Errorf("gaps: mean %.5f s and CV %.3f, want 0.01 and 1", mean, cv)
	}
}

func meanAndCV(at []time.Duration) (mean, cv float64) {
	var sum, sq float64
	for i := 1; i < len(at); i++ {
		g := (at[i] - at[i-1]).Seconds()
		sum, sq = sum+g, sq+g*g
	}
	n := float64(len(at) - 1)
	mean = sum / n
	return mean, math.Sqrt(sq/n-mean*mean) / mean
}

func TestBurstTakesTurns(t *testing.T) {
	p := Process{Kind: Burst, Rate: 200, Base: 10, On: time.Second, Off: 3 * time.Second}
	plan, err := Build(Spec{Seed: 3, Stream: 0, Phases: []Phase{{Name: "a", Duration: 400 * time.Second, Process: p}}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	var on, off int
	for _, at := range plan.Offsets {
		if at%(4*time.Second) < time.Second {
			on++
		} else {
			off++
		}
	}
	// 100 turns: 20,000 ± 141 while on, 3,000 ± 55 while off.
	if math.Abs(float64(on)-20000) > 4*141 || math.Abs(float64(off)-3000) > 4*55 {
		t.Errorf("%d on and %d off, want about 20,000 and 3,000", on, off)
	}
	if got := p.expected(400 * time.Second); got != 23000 {
		t.Errorf("expected %v arrivals, want 23000", got)
	}
	if got := p.expected(4500 * time.Millisecond); got != 200+30+100 {
		t.Errorf("expected %v arrivals in 4.5 s, want 330", got)
	}
	quiet := Process{Kind: Burst, Rate: 50, On: time.Second, Off: time.Second}
	plan, err = Build(Spec{Seed: 3, Stream: 0, Phases: []Phase{{Name: "a", Duration: 10 * time.Second, Process: quiet}}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range plan.Offsets {
		if at%(2*time.Second) >= time.Second {
			t.Fatalf("arrival at %v, while a burst with base 0 is off", at)
		}
	}
}

func TestPlanDependsOnSeedAlone(t *testing.T) {
	phases := func(first time.Duration) []Phase {
		return []Phase{
			{Name: "calm", Duration: first, Process: Process{Kind: Poisson, Rate: 20}},
			{Name: "burst", Duration: 20 * time.Second, Process: Process{Kind: Burst, Rate: 90, Base: 5, On: time.Second, Off: time.Second}},
		}
	}
	build := func(seed, stream uint64, first time.Duration) Plan {
		plan, err := Build(Spec{Seed: seed, Stream: stream, Phases: phases(first)}, 0)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.IsSorted(plan.Offsets) {
			t.Fatalf("seed %d: offsets are not sorted", seed)
		}
		return plan
	}
	a := build(5, 1, 10*time.Second)
	if b := build(5, 1, 10*time.Second); a.Hash() != b.Hash() || !slices.Equal(a.Offsets, b.Offsets) {
		t.Error("the same seed planned another schedule")
	}
	if b := build(6, 1, 10*time.Second); a.Hash() == b.Hash() {
		t.Error("another seed planned the same schedule")
	}
	if b := build(5, 2, 10*time.Second); a.Hash() == b.Hash() {
		t.Error("another stream planned the same schedule")
	}
	// A longer first phase moves the second but leaves its gaps alone.
	b := build(5, 1, 11*time.Second)
	sa, sb := a.Spans[1], b.Spans[1]
	if sa.N != sb.N {
		t.Fatalf("second phase has %d arrivals, and %d after the first grew", sa.N, sb.N)
	}
	for i := range sa.N {
		if a.Offsets[sa.First+i]-sa.From != b.Offsets[sb.First+i]-sb.From {
			t.Fatalf("arrival %d of the second phase moved when the first phase grew", i)
		}
	}
}

func TestBuildRefuses(t *testing.T) {
	ok := Process{Kind: Poisson, Rate: 1}
	for name, c := range map[string]struct {
		phases []Phase
		limit  int
		want   string
	}{
		"nothing":        {nil, 0, "no phases"},
		"no name":        {[]Phase{{Duration: 1, Process: ok}}, 0, "no name"},
		"no duration":    {[]Phase{{Name: "a", Process: ok}}, 0, "lasts 0s"},
		"no rate":        {[]Phase{{Name: "a", Duration: 1, Process: Process{Kind: Poisson}}}, 0, "rate is 0"},
		"NaN":            {[]Phase{{Name: "a", Duration: 1, Process: Process{Kind: Poisson, Rate: math.NaN()}}}, 0, "rate is NaN"},
		"unknown kind":   {[]Phase{{Name: "a", Duration: 1, Process: Process{Kind: "pareto", Rate: 1}}}, 0, `unknown arrival kind "pareto"`},
		"turns too fast": {[]Phase{{Name: "a", Duration: 1, Process: Process{Kind: Burst, Rate: 1, On: 1, Off: 1}}}, 0, "want 10ms to"},
		"stray on":       {[]Phase{{Name: "a", Duration: 1, Process: Process{Kind: Constant, Rate: 1, On: 1}}}, 0, "on: belongs to kind burst"},
		"negative base":  {[]Phase{{Name: "a", Duration: 1, Process: Process{Kind: Burst, Rate: 1, Base: -1, On: time.Second, Off: time.Second}}}, 0, "base is -1"},
		"too many":       {[]Phase{{Name: "a", Duration: time.Hour, Process: Process{Kind: Poisson, Rate: 1e6}}}, 0, "at most 5000000"},
		"limit":          {[]Phase{{Name: "a", Duration: time.Second, Process: Process{Kind: Constant, Rate: 10.5}}}, 10, "about 10 arrivals"},
	} {
		_, err := Build(Spec{Seed: 1, Phases: c.phases}, c.limit)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, c.want)
		}
	}
	// A Poisson draw may pass a limit that its mean does not: about half of the
	// seeds do here, and none may be cut short without an error.
	passed := 0
	for seed := range uint64(20) {
		plan, err := Build(Spec{Seed: seed, Stream: 0, Phases: []Phase{{Name: "a", Duration: time.Second, Process: Process{Kind: Poisson, Rate: 1000}}}}, 1000)
		if err == nil && len(plan.Offsets) > 1000 {
			t.Fatalf("seed %d: %d arrivals with a limit of 1000", seed, len(plan.Offsets))
		}
		if err != nil && strings.Contains(err.Error(), "passes the limit") {
			passed++
		}
	}
	if passed == 0 || passed == 20 {
		t.Errorf("%d of 20 seeds passed the limit, want some", passed)
	}
}
