package main

import (
	"fmt"
	"math"
	"slices"
)

// spread is how the rounds of one figure lie.
type spread struct{ min, median, max float64 }

func spreadOf(v []float64) spread {
	if len(v) == 0 {
		return spread{math.NaN(), math.NaN(), math.NaN()}
	}
	s := slices.Sorted(slices.Values(v))
	n := len(s)
	return spread{s[0], (s[(n-1)/2] + s[n/2]) / 2, s[n-1]}
}

// show writes the median and, in brackets, the extremes.
func (s spread) show(format string) string {
	return fmt.Sprintf(format+" ("+format+" to "+format+")", s.median, s.min, s.max)
}

// each combines the rounds of two figures that were measured side by side.
func each(a, b []float64, f func(a, b float64) float64) []float64 {
	out := make([]float64, len(a))
	for i := range a {
		out[i] = f(a[i], b[i])
	}
	return out
}

func ratio(a, b float64) float64      { return a / b }
func difference(a, b float64) float64 { return a - b }

// quantile of samples in any order, by the nearest rank.
func quantile(v []float64, q float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[min(len(s)-1, max(0, int(math.Ceil(q*float64(len(s))))-1))]
}
