package arrivals

import (
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
)

const sec = time.Second

func build(t *testing.T, seed uint64, d time.Duration, p Process) Plan {
	t.Helper()
	plan, err := Build(Spec{Seed: seed, Phases: []Phase{{Name: "a", Duration: d, Process: p}}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := plan.check(); err != nil {
		t.Fatal(err)
	}
	return plan
}

// ks is the distance of Kolmogorov and Smirnov between values and a law, over
// the distance that one in a million samples of the law exceeds: √(ln(2·10⁶)/2n).
// Values below least are counted and not compared: bursts have many gaps that
// are below the nanosecond to which time is kept.
func ks(values []float64, least float64, cdf func(float64) float64) float64 {
	slices.Sort(values)
	n, d := float64(len(values)), 0.0
	for i, v := range values {
		if v < least {
			continue
		}
		c := cdf(v)
		d = max(d, c-float64(i)/n, float64(i+1)/n-c)
	}
	return d / math.Sqrt(math.Log(2e6)/2/n)
}

func seconds(at []time.Duration) []float64 {
	out := make([]float64, len(at))
	for i, a := range at {
		out[i] = a.Seconds()
	}
	return out
}

func differences(v []float64) []float64 {
	out := make([]float64, len(v)-1)
	for i := range out {
		out[i] = v[i+1] - v[i]
	}
	return out
}

// gammaCDF is the gamma law's with mean 1 (the series of the incomplete gamma
// function).
func gammaCDF(cv float64) func(float64) float64 {
	k := 1 / (cv * cv)
	lg, _ := math.Lgamma(k + 1)
	return func(x float64) float64 {
		if x <= 0 {
			return 0
		}
		x *= k
		term, sum := 1.0, 1.0
		for n := 1.0; term > 1e-16*sum; n++ {
			term *= x / (k + n)
			sum += term
		}
		return math.Exp(k*math.Log(x)-x-lg) * sum
	}
}

func TestGammaHasItsLaw(t *testing.T) {
	for _, cv := range []float64{0.1, 0.5, 1, 2, 6} {
		plan := build(t, 11, 1000*sec, Process{Kind: Gamma, Rate: 100, CV: cv})
		n := float64(len(plan.Offsets))
		// The count's standard deviation is cv·√100,000 (renewal theorem).
		if bound := 4 * cv * math.Sqrt(1e5); math.Abs(n-1e5) > bound {
			t.Errorf("CV %v: %.0f arrivals, want 100,000 ± %.0f", cv, n, bound)
		}
		// That of the gaps' CV is about cv·√((excess kurtosis+2)/4n + …); 3 % holds it
		// fourfold up to a CV of 6, whose gaps have a kurtosis of 216.
		if _, got := meanAndCV(plan.Offsets); math.Abs(got/cv-1) > 0.03*max(1, cv/2) {
			t.Errorf("CV %v: gaps have %.4f", cv, got)
		}
		g := differences(seconds(plan.Offsets))
		for i := range g {
			g[i] *= 100
		}
		if d := ks(g, 1e-4, gammaCDF(cv)); d > 1 {
			t.Errorf("CV %v: the gaps' distance from the gamma law is %.2f of what chance allows", cv, d)
		}
	}
}

// A CV of 1 is the Poisson process, to the arrival.
func TestGammaOfOneIsPoisson(t *testing.T) {
	a := build(t, 3, 100*sec, Process{Kind: Gamma, Rate: 20, CV: 1})
	b := build(t, 3, 100*sec, Process{Kind: Poisson, Rate: 20})
	if !slices.Equal(a.Offsets, b.Offsets) {
		t.Error("the two differ")
	}
	if d := ks(seconds(b.Offsets), 0, func(x float64) float64 { return x / 100 }); d > 1 {
		t.Errorf("arrivals are not uniform: %.2f", d)
	}
}

// Every phase has rate times duration arrivals in the mean, however short it is:
// begun on an arrival instead, these would have (25-1)/2 = 12 more than 10.
func TestPhasesBeginAtAnyTime(t *testing.T) {
	const runs = 4000
	sum, sq, first := 0.0, 0.0, []float64{}
	for seed := range uint64(runs) {
		plan := build(t, seed, sec, Process{Kind: Gamma, Rate: 10, CV: 5})
		n := float64(len(plan.Offsets))
		sum, sq = sum+n, sq+n*n
		plan = build(t, seed, 5*sec, Process{Kind: Gamma, Rate: 10, CV: 0.5})
		first = append(first, plan.Offsets[0].Seconds()*10)
	}
	mean := sum / runs
	if sd := math.Sqrt((sq/runs - mean*mean) / runs); math.Abs(mean-10) > 4*sd {
		t.Errorf("%.2f arrivals in the mean, want 10 ± %.2f", mean, 4*sd)
	}
	// The time to the first has the density 1-F(x): with F that of the sum of four
	// exponentials, its own law is the even mixture of the sums of one to four.
	erlang := func(x float64) float64 {
		term, tail, out := 1.0, 0.0, 0.0
		for j := 1.0; j <= 4; j++ {
			tail += term
			term *= 4 * x / j
			out += 1 - math.Exp(-4*x)*tail
		}
		return out / 4
	}
	if d := ks(first, 0, erlang); d > 1 {
		t.Errorf("the time to the first arrival is %.2f of what chance allows from its law", d)
	}
}

// Times at which a clock has so many arrivals behind it, by hand.
func TestClocks(t *testing.T) {
	for name, c := range map[string]struct {
		p    Process
		d    time.Duration
		want map[float64]float64 // arrivals: seconds
	}{
		"even":        {Process{Kind: Poisson, Rate: 4}, sec, map[float64]float64{0: 0, 1: 0.25, 4: 1}},
		"ramp up":     {Process{Kind: Ramp, To: 10}, 10 * sec, map[float64]float64{12.5: 5, 50: 10, 0.5: 1}},
		"ramp down":   {Process{Kind: Ramp, Rate: 10}, 10 * sec, map[float64]float64{37.5: 5, 50: 10, 9.5: 1}},
		"ramp across": {Process{Kind: Ramp, Rate: 2, To: 6}, 4 * sec, map[float64]float64{2.5: 1, 6: 2, 16: 4}},
		"level ramp":  {Process{Kind: Ramp, Rate: 5, To: 5}, 4 * sec, map[float64]float64{5: 1, 20: 4}},
		"burst": {Process{Kind: Burst, Rate: 10, Base: 1, On: sec, Off: 4 * sec}, 10 * sec,
			map[float64]float64{5: 0.5, 10: 1, 12: 3, 19: 5.5, 28: 10}},
		"silent between": {Process{Kind: Burst, Rate: 10, On: sec, Off: 4 * sec}, 10 * sec, map[float64]float64{9: 0.9, 11: 5.1}},
		"steps": {Process{Kind: Steps, Steps: []Step{{0, sec}, {2, 3 * sec}, {0, sec}, {8, sec}}}, 6 * sec,
			map[float64]float64{1: 1.5, 5: 3.5, 10: 5.5}},
		"day": {Process{Kind: Diurnal, Day: Day{Low: 0, High: 20, Period: 40 * sec}}, 80 * sec,
			// At a quarter the swing has added all that it adds: 10·10 + 10·40/2π. (At
			// 20 s the rate is 0 and the inverse is of no use to a digit.)
			map[float64]float64{100 + 200/math.Pi: 10, 300 - 200/math.Pi: 30, 400: 40, 500 + 200/math.Pi: 50}},
		"day from its low": {Process{Kind: Diurnal, Day: Day{Low: 10, High: 30, Period: 60 * sec, Peak: 30 * sec}}, 60 * sec,
			map[float64]float64{600: 30, 1200: 60, 300 - 300/math.Pi: 15}},
	} {
		for _, x := range slices.Sorted(maps.Keys(c.want)) {
			if got := c.p.clock(c.d)(x); math.Abs(got-c.want[x]) > 1e-8 {
				t.Errorf("%s: %v arrivals after %.9f s, want %.9f", name, x, got, c.want[x])
			}
		}
		last := 0.0
		clock := c.p.clock(c.d)
		for x := 0.0; x < 30; x += 0.01 { // asked in order, as it is used
			if got := clock(x); got < last || math.IsNaN(got) {
				t.Fatalf("%s: the clock goes from %v back to %v at %v", name, last, got, x)
			} else {
				last = got
			}
		}
	}
}

// Seen through its own integral (taken here from the formula), a process whose
// rate moves is a Poisson process again: its times are uniform, its gaps
// exponential and its count what was expected.
func TestRatesThatMove(t *testing.T) {
	for name, c := range map[string]struct {
		p        Process
		d        time.Duration
		integral func(t float64) float64
	}{
		"ramp":     {Process{Kind: Ramp, Rate: 5, To: 95}, 1000 * sec, func(t float64) float64 { return 5*t + 90*t*t/2000 }},
		"downward": {Process{Kind: Ramp, Rate: 100}, 1000 * sec, func(t float64) float64 { return 100*t - t*t/20 }},
		"day": {Process{Kind: Diurnal, Day: Day{Low: 2, High: 98, Period: 300 * sec, Peak: 70 * sec}}, 1000 * sec, func(t float64) float64 {
			w := 2 * math.Pi / 300
			return 50*t + 48/w*(math.Sin(w*(t-70))+math.Sin(w*70))
		}},
		"steps": {Process{Kind: Steps, Steps: []Step{{10, 500 * sec}, {90, 500 * sec}}}, 1000 * sec, func(t float64) float64 {
			return 10*t + 80*max(0, t-500)
		}},
	} {
		plan := build(t, 5, c.d, c.p)
		want, n := c.integral(c.d.Seconds()), float64(len(plan.Offsets))
		if math.Abs(n-want) > 4*math.Sqrt(want) {
			t.Errorf("%s: %.0f arrivals, want %.0f ± %.0f", name, n, want, 4*math.Sqrt(want))
		}
		if got := c.p.expected(c.d); math.Abs(got/want-1) > 1e-9 {
			t.Errorf("%s: expected %v arrivals, want %v", name, got, want)
		}
		at := seconds(plan.Offsets)
		for i := range at {
			at[i] = c.integral(at[i])
		}
		if d := ks(differences(at), 0, func(x float64) float64 { return 1 - math.Exp(-x) }); d > 1 {
			t.Errorf("%s: gaps are %.2f of what chance allows from exponential", name, d)
		}
		if d := ks(at, 0, func(x float64) float64 { return x / want }); d > 1 {
			t.Errorf("%s: times are %.2f of what chance allows from the wanted rate", name, d)
		}
		// With a CV of 3 the same rate is kept, and the gaps are the gamma law's.
		c.p.CV = 3
		at = seconds(build(t, 5, c.d, c.p).Offsets)
		for i := range at {
			at[i] = c.integral(at[i])
		}
		if d := ks(differences(at), 1e-4, gammaCDF(3)); d > 1 {
			t.Errorf("%s, CV 3: gaps are %.2f of what chance allows from the gamma law", name, d)
		}
	}
}

func TestMixIsItsParts(t *testing.T) {
	a := Process{Kind: Constant, Rate: 10}
	b := Process{Kind: Poisson, Rate: 30}
	c := Process{Kind: Ramp, To: 40}
	two, three := build(t, 9, 100*sec, Process{Kind: Mix, Parts: []Process{a, b}}), build(t, 9, 100*sec, Process{Kind: Mix, Parts: []Process{a, b, c}})
	n := float64(len(three.Offsets)) // 1000 of a, and 3000+2000 that vary
	if math.Abs(n-6000) > 4*math.Sqrt(5000) {
		t.Errorf("%.0f arrivals, want 6,000 ± %.0f", n, 4*math.Sqrt(5000))
	}
	i := 0
	for _, at := range two.Offsets { // one part more leaves the others' arrivals
		for i < len(three.Offsets) && three.Offsets[i] < at {
			i++
		}
		if i == len(three.Offsets) || three.Offsets[i] != at {
			t.Fatalf("arrival at %v is gone with a third part", at)
		}
	}
	for i := range 1000 {
		if at := time.Duration(i) * 100 * time.Millisecond; !slices.Contains(two.Offsets, at) {
			t.Fatalf("the constant part has no arrival at %v", at)
		}
	}
}

func TestClientsAreUnequal(t *testing.T) {
	p := Process{Kind: Many, Rate: 200, Clients: Clients{N: 2412, Skew: 1.57}}
	rates := p.Clients.rates(200)
	sum, top := 0.0, 0.0
	for i, r := range rates {
		if sum += r; i < 29 {
			top += r
		}
	}
	if math.Abs(sum-200) > 1e-9 || math.Abs(top/sum-0.9) > 0.001 {
		t.Errorf("rates sum up to %v, the first 29 have %.4f of it; want 200 and 0.9", sum, top/sum)
	}
	plan := build(t, 2, 1000*sec, p)
	// The count's variance is the sum of cv²·rate·time, with cv at most 8.5 and
	// for the most active client, which has 0.37 of the rate, whatever it drew.
	if n := float64(len(plan.Offsets)); math.Abs(n-2e5) > 4*8.5*math.Sqrt(2e5) {
		t.Errorf("%.0f arrivals, want 200,000", n)
	}
	if _, cv := meanAndCV(plan.Offsets); cv < 1.1 {
		t.Errorf("the gaps of all have a CV of %.2f: no burst of a client is left", cv)
	}
	// Equal and patient clients superpose to a Poisson process (Palm, Khinchin).
	even := build(t, 2, 1000*sec, Process{Kind: Many, Rate: 100, Clients: Clients{N: 2000, MinCV: 0.9, MaxCV: 1.1}})
	if _, cv := meanAndCV(even.Offsets); math.Abs(cv-1) > 0.02 {
		t.Errorf("2,000 equal clients: CV %.3f, want 1", cv)
	}
}

// Clients' sizes differ between clients, and planning them moves no arrival.
func TestClientsHaveSizesOfTheirOwn(t *testing.T) {
	c := Clients{N: 50, Spread: 1, Input: &Dist{Kind: "lognormal", Mean: 1000, CV: 0.1}, Output: &Dist{Kind: "uniform", Min: 10, Max: 20}}
	with := build(t, 6, 500*sec, Process{Kind: Many, Rate: 100, Clients: c})
	c.Input, c.Output = nil, nil
	c.Spread = 0
	if without := build(t, 6, 500*sec, Process{Kind: Many, Rate: 100, Clients: c}); !slices.Equal(with.Offsets, without.Offsets) || without.Shapes != nil {
		t.Error("sizes moved the arrivals, or are there without having been asked for")
	}
	sum, sq := 0.0, 0.0
	for _, s := range with.Shapes {
		if s.Input == 0 || s.Output == 0 {
			t.Fatalf("shape %+v", s)
		}
		sum, sq = sum+float64(s.Input), sq+float64(s.Input)*float64(s.Input)
	}
	mean := sum / float64(len(with.Shapes))
	// 50 clients' means with CV 1: that over all is within 4/√50 of 1000.
	cv := math.Sqrt(sq/float64(len(with.Shapes))-mean*mean) / mean
	if math.Abs(mean-1000) > 566 || cv < 0.4 {
		t.Errorf("input %.0f tokens, CV %.2f; want about 1000, and much more than a client's own 0.1", mean, cv)
	}
}

func TestTenantsByShare(t *testing.T) {
	spec := func(tenants ...Tenant) Plan {
		plan, err := Build(Spec{Seed: 8, Stream: 2, Tenants: tenants, Phases: []Phase{{Name: "a", Duration: 400 * sec, Process: Process{Kind: Poisson, Rate: 100}}}}, 0)
		if err != nil {
			t.Fatal(err)
		}
		return plan
	}
	three := spec(Tenant{"big", 6}, Tenant{"none", 0}, Tenant{"small", 2})
	counts := [3]float64{}
	for _, s := range three.Shapes {
		counts[s.Tenant]++
	}
	n := float64(len(three.Shapes))
	if bound := 4 * math.Sqrt(n*0.75*0.25); math.Abs(counts[0]-0.75*n) > bound || counts[1] != 0 {
		t.Errorf("tenants have %v of %.0f requests, want three quarters ± %.0f, none and the rest", counts, n, bound)
	}
	if one := spec(); one.Shapes != nil || !slices.Equal(one.Offsets, three.Offsets) || !slices.Equal(one.Offsets, spec(Tenant{"x", 1}).Offsets) {
		t.Error("tenants moved the arrivals")
	}
}

func TestSizesAreDrawnApart(t *testing.T) {
	in, out := &Dist{Kind: "lognormal", Mean: 500, CV: 1}, &Dist{Kind: "uniform", Min: 1, Max: 9}
	shapes := func(in, out *Dist) []Shape {
		plan, err := Build(Spec{Seed: 8, Input: in, Output: out, Phases: []Phase{{Name: "a", Duration: 10 * sec, Process: Process{Kind: Constant, Rate: 100}}}}, 0)
		if err != nil {
			t.Fatal(err)
		}
		return plan.Shapes
	}
	both, inputs, outputs := shapes(in, out), shapes(in, nil), shapes(nil, out)
	for i, s := range both {
		if s.Input != inputs[i].Input || s.Output != outputs[i].Output || inputs[i].Output != 0 || outputs[i].Input != 0 {
			t.Fatalf("request %d: %+v with both, %+v and %+v with one", i, s, inputs[i], outputs[i])
		}
	}
}

func TestWarmUpComesFirst(t *testing.T) {
	phases := []Phase{{Name: "a", Duration: 10 * sec, Process: Process{Kind: Poisson, Rate: 50}}, {Name: "b", Duration: sec, Process: Process{Kind: Constant, Rate: 5}}}
	cold, err := Build(Spec{Seed: 1, Phases: phases}, 0)
	if err != nil {
		t.Fatal(err)
	}
	warm, err := Build(Spec{Seed: 1, Phases: phases, WarmUp: 20 * sec}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if n := float64(len(warm.Warm.Offsets)); math.Abs(n-1000) > 4*math.Sqrt(1000) {
		t.Errorf("%.0f arrivals in the warm-up, want about 1,000", n)
	}
	if err := warm.check(); err != nil || warm.WarmUp() != 20*sec || warm.End() != 11*sec {
		t.Errorf("a warm-up of %v before %v: %v", warm.WarmUp(), warm.End(), err)
	}
	if !slices.Equal(cold.Offsets, warm.Offsets) || cold.Hash() == warm.Hash() || slices.Equal(warm.Offsets[:100], warm.Warm.Offsets[:100]) {
		t.Error("the warm-up moved the plan, is not in its hash, or is the plan's own begin")
	}
	for want, p := range map[float64]Process{
		3:  {Kind: Ramp, Rate: 3, To: 9},
		7:  {Kind: Steps, Steps: []Step{{7, sec}, {1, sec}}},
		20: {Kind: Diurnal, Day: Day{Low: 10, High: 20, Period: sec}},
		10: {Kind: Diurnal, Day: Day{Low: 10, High: 20, Period: sec, Peak: sec / 2}},
	} {
		if got := p.begin(); got.Kind != Poisson || math.Abs(got.Rate-want) > 1e-9 {
			t.Errorf("%s begins at %v per second, want %v", p.Kind, got.Rate, want)
		}
	}
}

func TestClosedPlansNoArrivals(t *testing.T) {
	plan, err := Build(Spec{Closed: true, WarmUp: sec, Phases: []Phase{{Name: "a", Duration: sec, Process: Process{Kind: Poisson, Rate: 1e6}}, {Name: "b", Duration: sec, Process: Process{Kind: Poisson, Rate: 1e6}}}}, 1)
	if err != nil || len(plan.Offsets) != 0 || plan.End() != 2*sec || plan.check() != nil {
		t.Errorf("plan %v, error %v", plan, err)
	}
}

// What each kind plans with seed 1, to the nanosecond: the same on any machine
// and with any compiler. (A change of the draws changes these: then say so, since
// profiles plan other schedules from then on.)
func TestPlansAreTheSameEverywhere(t *testing.T) {
	for kind, c := range map[Kind]struct {
		p    Process
		want string
	}{
		Constant: {Process{Kind: Constant, Rate: 7}, "1b2f92cd95c92b32"},
		Poisson:  {Process{Kind: Poisson, Rate: 700}, "978318e2832bbbd2"},
		Gamma:    {Process{Kind: Gamma, Rate: 700, CV: 2.5}, "144fbe46eb873387"},
		Burst:    {Process{Kind: Burst, Rate: 900, Base: 10, On: sec, Off: sec, CV: 0.3}, "67ab10c869518720"},
		Ramp:     {Process{Kind: Ramp, Rate: 3, To: 900}, "9cc37c9d2f86f245"},
		Steps:    {Process{Kind: Steps, Steps: []Step{{300, 30 * sec}, {900, 30 * sec}}}, "0768d418c72ce05e"},
		Diurnal:  {Process{Kind: Diurnal, Day: Day{Low: 3, High: 900, Period: 17 * sec, Peak: 5 * sec}}, "04c09fdad242dfd2"},
		Many:     {Process{Kind: Many, Rate: 700, Clients: Clients{N: 200, Skew: 1.3, Spread: 0.7, Input: &Dist{Kind: "lognormal", Mean: 900, CV: 2}, Output: &Dist{Kind: "normal", Mean: 90, CV: 0.3}}}, "9a34c1ee31097c24"},
		Mix:      {Process{Kind: Mix, Parts: []Process{{Kind: Poisson, Rate: 5}, {Kind: Gamma, Rate: 300, CV: 4}}}, "8beb8b0543341f4c"},
	} {
		if got := build(t, 1, 60*sec, c.p).Hash(); got != c.want {
			t.Errorf("%s: hash %s, want %s", kind, got, c.want)
		}
	}
}

func TestProcessRefuses(t *testing.T) {
	gammaOf := func(cv float64) Process { return Process{Kind: Gamma, Rate: 1, CV: cv} }
	for _, c := range []struct {
		p    Process
		want string
	}{
		{Process{}, `kind: unknown arrival kind ""`},
		{gammaOf(0), "cv is 0"},
		{gammaOf(31), "cv is 31"},
		{gammaOf(math.NaN()), "cv is NaN"},
		{Process{Kind: Poisson, Rate: 1, CV: 1}, "cv: belongs to kind gamma, burst, ramp, step, diurnal, not to poisson"},
		{Process{Kind: Poisson, Rate: 1, To: 1}, "to: belongs to kind ramp"},
		{Process{Kind: Poisson, Rate: 1, Steps: []Step{}}, "steps: belongs"},
		{Process{Kind: Poisson, Rate: 1, Day: Day{Low: 1}}, "low, high, period and peak: belongs to kind diurnal"},
		{Process{Kind: Poisson, Rate: 1, Trace: Trace{Speed: 2}}, "belongs to kind trace"},
		{Process{Kind: Poisson, Rate: 1, Clients: Clients{N: 2}}, "belongs to kind clients"},
		{Process{Kind: Poisson, Rate: 1, Parts: []Process{}}, "parts: belongs to kind mix"},
		{Process{Kind: Diurnal, Rate: 1}, "rate: belongs to"},
		{Process{Kind: Ramp}, "rate is 0 per second, want more than 0"},
		{Process{Kind: Ramp, Rate: 1, To: -1}, "to is -1"},
		{Process{Kind: Ramp, Rate: -1, To: 1}, "rate is -1 per second, want 0 or more"},
		{Process{Kind: Steps}, "steps are 0"},
		{Process{Kind: Steps, Steps: []Step{{0, sec}}}, "steps: every rate is 0"},
		{Process{Kind: Steps, Steps: []Step{{1, sec}, {1, 1}}}, "step 2: for is 1ns"},
		{Process{Kind: Steps, Steps: []Step{{math.Inf(1), sec}}}, "step 1: rate is +Inf"},
		{Process{Kind: Diurnal, Day: Day{High: 0, Period: sec}}, "high is 0"},
		{Process{Kind: Diurnal, Day: Day{Low: 3, High: 2, Period: sec}}, "low is 3, above high 2"},
		{Process{Kind: Diurnal, Day: Day{High: 2}}, "period is 0s"},
		{Process{Kind: Diurnal, Day: Day{High: 2, Period: sec, Peak: -1}}, "peak is -1ns"},
		{Process{Kind: Many, Rate: 1}, "clients is 0"},
		{Process{Kind: Many, Clients: Clients{N: 1}}, "rate is 0"},
		{Process{Kind: Many, Rate: 1, Clients: Clients{N: 1, Skew: -1}}, "skew is -1"},
		{Process{Kind: Many, Rate: 1, Clients: Clients{N: 1, MinCV: 2, MaxCV: 1}}, "min_cv is 2 and max_cv is 1"},
		{Process{Kind: Many, Rate: 1, Clients: Clients{N: 1, Spread: 1}}, "spread needs input or output"},
		{Process{Kind: Many, Rate: 1, Clients: Clients{N: 1, Spread: -1}}, "spread is -1"},
		{Process{Kind: Many, Rate: 1, Clients: Clients{N: 1, Input: &Dist{}}}, `input: kind is ""`},
		{Process{Kind: Mix}, "parts are 0"},
		{Process{Kind: Mix, Parts: []Process{{Kind: Mix}}}, "part 1: kind: a part of a mix may not be a mix"},
		{Process{Kind: Mix, Parts: []Process{{Kind: Poisson, Rate: 1}, {Kind: Poisson}}}, "part 2: rate is 0"},
	} {
		if err := c.p.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: error %v, want one with %q", c.p, err, c.want)
		}
	}
	steps := Process{Kind: Steps, Steps: []Step{{1, sec}, {2, sec}}}
	if err := (Phase{Name: "p", Process: steps}).Validate(); err != nil {
		t.Errorf("steps that say how long they last: %v", err)
	}
	if err := (Phase{Name: "p", Duration: 3 * sec, Process: steps}).Validate(); err == nil || !strings.Contains(err.Error(), "lasts 3s and its steps 2s") {
		t.Errorf("steps that do not fill their phase: %v", err)
	}
	for _, tenants := range [][]Tenant{{{"a", -1}}, {{"a", math.NaN()}}, make([]Tenant, maxTenants+1)} {
		if _, err := Build(Spec{Tenants: tenants, Phases: []Phase{{Name: "p", Process: steps}}}, 0); err == nil {
			t.Errorf("tenants %v were taken", tenants[:1])
		}
	}
}

// A process as a profile writes it.
func TestProcessAsYAML(t *testing.T) {
	var got []Process
	err := yaml.UnmarshalWithOptions([]byte(`
- {kind: ramp, rate: 1, to: 9}
- {kind: step, steps: [{rate: 1, for: 2s}]}
- {kind: diurnal, low: 1, high: 9, period: 24h, peak: 14h}
- {kind: trace, file: x.csv, format: azure, speed: 2, from: 1m, most: 5, copies: 2}
- {kind: clients, rate: 5, clients: 7, skew: 1.5, min_cv: 1, max_cv: 2, spread: 0.5, input: {kind: fixed, mean: 3}}
- {kind: mix, parts: [{kind: gamma, rate: 3, cv: 2}]}
`), &got, yaml.Strict())
	if err != nil {
		t.Fatal(err)
	}
	if want := (Trace{"x.csv", AzureFormat, 2, 2, time.Minute, 5, "", ""}); got[3].Trace != want {
		t.Errorf("trace %+v, want %+v", got[3].Trace, want)
	}
	for _, p := range got {
		if err := p.Validate(); err != nil {
			t.Errorf("%+v: %v", p, err)
		}
	}
	if got[4].N != 7 || got[4].Input.Mean != 3 || got[5].Parts[0].CV != 2 || got[2].Peak != 14*time.Hour {
		t.Errorf("got %+v", got)
	}
}
