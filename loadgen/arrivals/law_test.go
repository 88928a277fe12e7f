package arrivals

import (
	"math"
	"testing"
)

func TestFunctionsAgreeWithMath(t *testing.T) {
	r := Rand(1, 1)
	for range 200_000 {
		x := math.Exp(1400*r.Float64() - 700)
		if got, want := ln(x), math.Log(x); math.Abs(got-want) > 4e-16*max(1, math.Abs(want)) && math.Abs(got-want) > 1e-15*math.Abs(want) {
			t.Fatalf("ln %v = %v, want %v", x, got, want)
		}
		near := 1 + (r.Float64()-0.5)*1e-3 // where digits are lost
		if got, want := ln(near), math.Log(near); math.Abs(got-want) > 1e-15*math.Abs(want) {
			t.Fatalf("ln %v = %v, want %v", near, got, want)
		}
		x = 1400*r.Float64() - 700
		if got, want := exp(x), math.Exp(x); math.Abs(got/want-1) > 1.6e-15 {
			t.Fatalf("exp %v = %v, want %v", x, got, want)
		}
		x = 20*r.Float64() - 10
		if got, want := sine(x), math.Sin(2*math.Pi*x); math.Abs(got-want) > 2e-14 { // math's own argument is rounded
			t.Fatalf("sine of %v turns = %v, want %v", x, got, want)
		}
	}
	for x, want := range map[float64]float64{0: 1, -800: 0, -745.5: 0, 710: math.Inf(1)} {
		if got := exp(x); got != want {
			t.Errorf("exp %v = %v, want %v", x, got, want)
		}
	}
	if ln(1) != 0 || sine(0) != 0 || math.Abs(sine(0.25)-1) > 2e-16 || sine(-0.25) != -sine(0.25) || sine(0.5) != 0 {
		t.Errorf("ln 1 = %v, sines %v %v %v %v", ln(1), sine(0), sine(0.25), sine(-0.25), sine(0.5))
	}
}

func TestLaws(t *testing.T) {
	r := Rand(1, 2)
	const n = 100_000
	draw := func(one func() float64) []float64 {
		out := make([]float64, n)
		for i := range out {
			out[i] = one()
		}
		return out
	}
	phi := func(x float64) float64 { return math.Erfc(-x/math.Sqrt2) / 2 }
	v := math.Log(1 + 0.8*0.8)
	for name, c := range map[string]struct {
		one func() float64
		cdf func(float64) float64
	}{
		"uniform":     {func() float64 { return uniform(r) }, func(x float64) float64 { return x }},
		"exponential": {func() float64 { return exponential(r) }, func(x float64) float64 { return 1 - math.Exp(-x) }},
		"normal":      {func() float64 { return normal(r) }, phi},
		"lognormal":   {func() float64 { return lognormal(r, 50, 0.8) }, func(x float64) float64 { return phi((math.Log(x/50) + v/2) / math.Sqrt(v)) }},
		"gamma, 3.7":  {func() float64 { return gamma(r, 3.7) / 3.7 }, gammaCDF(1 / math.Sqrt(3.7))},
		"gamma, 0.2":  {func() float64 { return gamma(r, 0.2) / 0.2 }, gammaCDF(1 / math.Sqrt(0.2))},
	} {
		if d := ks(draw(c.one), math.Inf(-1), c.cdf); d > 1 {
			t.Errorf("%s: the distance from the law is %.2f of what chance allows", name, d)
		}
	}
}

func TestDist(t *testing.T) {
	r := Rand(1, 3)
	for name, c := range map[string]struct {
		d        Dist
		mean, sd float64 // of what is drawn
		min, max int
	}{
		"fixed":      {Dist{Kind: "fixed", Mean: 7}, 7, 0, 7, 7},
		"cut":        {Dist{Kind: "fixed", Mean: 7, Max: 5}, 5, 0, 5, 5},
		"uniform":    {Dist{Kind: "uniform", Min: 3, Max: 12}, 7.5, 2.872, 3, 12},
		"normal":     {Dist{Kind: "normal", Mean: 1000, CV: 0.1}, 1000, 100, 400, 1600},
		"lognormal":  {Dist{Kind: "lognormal", Mean: 1000, CV: 0.5}, 1000, 500, 50, 30_000},
		"no spread":  {Dist{Kind: "lognormal", Mean: 10}, 10, 0, 10, 10},
		"at least 1": {Dist{Kind: "normal", Mean: 1, CV: 1, Max: 1}, 1, 0, 1, 1},
	} {
		if err := c.d.Validate(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		const n = 40_000
		sum, sq := 0.0, 0.0
		for range n {
			x := c.d.Draw(r)
			if x < c.min || x > c.max {
				t.Fatalf("%s: drew %d, want %d to %d", name, x, c.min, c.max)
			}
			sum, sq = sum+float64(x), sq+float64(x)*float64(x)
		}
		mean := sum / n
		sd := math.Sqrt(max(0, sq/n-mean*mean))
		if math.Abs(mean-c.mean) > 4*c.sd/math.Sqrt(n)+1e-9 || math.Abs(sd-c.sd) > 0.05*c.sd+1e-6 {
			t.Errorf("%s: mean %.3f and standard deviation %.3f, want %v and %v", name, mean, sd, c.mean, c.sd)
		}
	}
	for want, d := range map[string]Dist{
		`kind is "zipf"`:        {Kind: "zipf"},
		"mean is 0":             {Kind: "fixed"},
		"mean is NaN":           {Kind: "normal", Mean: math.NaN()},
		"mean is 1e+08":         {Kind: "fixed", Mean: 1e8},
		"cv is 1, which":        {Kind: "fixed", Mean: 1, CV: 1},
		"cv is -1":              {Kind: "normal", Mean: 1, CV: -1},
		"max is 1, below min 2": {Kind: "uniform", Min: 2, Max: 1},
		"min is -1":             {Kind: "uniform", Min: -1, Max: 1},
		"kind uniform takes":    {Kind: "uniform", Mean: 3, Max: 4},
	} {
		if err := d.Validate(); err == nil || len(err.Error()) < len(want) || err.Error()[:len(want)] != want {
			t.Errorf("%+v: error %v, want %q", d, err, want)
		}
	}
}
