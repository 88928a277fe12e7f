package binomial

import (
	"math"
	"testing"
)

func TestStudent(t *testing.T) {
	for _, c := range []struct {
		df                     int
		confidence, want, from float64
	}{ // from the printed tables
		{1, 0.95, 12.7062, 1e-4}, {2, 0.95, 4.3027, 1e-4}, {4, 0.95, 2.7764, 1e-4}, {9, 0.95, 2.2622, 1e-4}, {30, 0.95, 2.0423, 1e-4}, {1, 0.99, 63.657, 1e-3}, {1_000_000, 0.95, 1.95996, 1e-4},
	} {
		if got := Student(c.df, c.confidence); math.Abs(got-c.want) > c.from {
			t.Errorf("%d degrees of freedom at %v: %v, want %v", c.df, c.confidence, got, c.want)
		}
	}
}
