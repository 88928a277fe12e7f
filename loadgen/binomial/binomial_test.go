package binomial

import (
	"math"
	"testing"
)

func TestWilson(t *testing.T) {
	for _, c := range []struct{ k, n, low, high float64 }{ // from the formula, by hand
		{95, 100, 0.888250, 0.978457},
		{10, 10, 0.722467, 1}, // 10 / (10 + 1.96²)
		{0, 10, 0, 0.277533},
		{0, 0, 0, 1},
		{990_000, 1_000_000, 0.989803, 0.990193},
	} {
		low, high := Wilson(c.k, c.n, 1.959964)
		if math.Abs(low-c.low) > 2e-6 || math.Abs(high-c.high) > 2e-6 {
			t.Errorf("%v of %v: %v to %v, want %v to %v", c.k, c.n, low, high, c.low, c.high)
		}
	}
}

// The continued fraction against the sum that it stands for.
func TestAtLeast(t *testing.T) {
	for _, c := range []struct {
		n int
		p float64
	}{{1, 0.3}, {10, 0.5}, {20, 0.5}, {50, 0.01}, {100, 0.99}, {1000, 0.999}, {3000, 0.01}, {5000, 0.95}} {
		lg := func(v int) float64 { l, _ := math.Lgamma(float64(v) + 1); return l }
		sum := 0.0
		for k := c.n; k >= 0; k-- {
			sum += math.Exp(lg(c.n) - lg(k) - lg(c.n-k) + float64(k)*math.Log(c.p) + float64(c.n-k)*math.Log1p(-c.p))
			if got := AtLeast(float64(k), float64(c.n), c.p); math.Abs(got-sum) > 1e-9+1e-8*sum {
				t.Fatalf("P(X >= %d) of %d at %v is %v, want %v", k, c.n, c.p, got, sum)
			}
		}
	}
	for _, c := range []struct{ k, n, p, want, within float64 }{
		{0, 10, 0.1, 1, 0}, {10.5, 10, 0.1, 0, 0},
		{2_500_000, 5_000_000, 0.5, 0.5, 0.001}, // as many values as a run has
	} {
		if got := AtLeast(c.k, c.n, c.p); math.Abs(got-c.want) > c.within {
			t.Errorf("P(X >= %v) of %v at %v is %v, want %v", c.k, c.n, c.p, got, c.want)
		}
	}
}
