package arrivals

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// Dist is a distribution of whole numbers: of tokens, or of turns.
type Dist struct {
	Kind string  `yaml:"kind"` // fixed, uniform, normal, lognormal
	Mean float64 `yaml:"mean,omitempty"`
	CV   float64 `yaml:"cv,omitempty"` // standard deviation by mean: normal, lognormal
	Min  int     `yaml:"min,omitempty"`
	Max  int     `yaml:"max,omitempty"`
}

// maxSize bounds what a distribution may draw: ten million tokens are above any
// context window.
const maxSize = 10_000_000

// Validate reports the first thing that is wrong with the distribution.
func (d Dist) Validate() error {
	if d.Min < 0 || d.Max < 0 || d.Max > maxSize || d.Min > maxSize {
		return fmt.Errorf("min is %d and max is %d, want 0 to %d", d.Min, d.Max, maxSize)
	}
	if d.Max != 0 && d.Max < d.Min {
		return fmt.Errorf("max is %d, below min %d", d.Max, d.Min)
	}
	switch d.Kind {
	case "uniform":
		if d.Mean != 0 || d.CV != 0 || d.Max == 0 {
			return fmt.Errorf("kind uniform takes min and max and nothing else")
		}
		return nil
	case "fixed":
		if d.CV != 0 {
			return fmt.Errorf("cv is %v, which does not belong to kind fixed", d.CV)
		}
	case "normal", "lognormal":
		if !(d.CV >= 0 && d.CV <= maxCV) {
			return fmt.Errorf("cv is %v, want 0 to %d", d.CV, maxCV)
		}
	default:
		return fmt.Errorf("kind is %q, want fixed, uniform, normal or lognormal", d.Kind)
	}
	if !(d.Mean > 0 && d.Mean <= maxSize) {
		return fmt.Errorf("mean is %v, want more than 0 and at most %d", d.Mean, maxSize)
	}
	return nil
}

// Draw draws a number, cut at min (0: at 1) and max (0: at ten million). Cutting
// moves the mean. The distribution must be valid.
func (d Dist) Draw(r *rand.Rand) int {
	x := d.Mean
	switch d.Kind {
	case "uniform":
		return d.Min + int(r.Uint64N(uint64(d.Max-d.Min+1)))
	case "normal":
		x += float64(d.Mean * d.CV * normal(r))
	case "lognormal":
		x = lognormal(r, d.Mean, d.CV)
	}
	low, high := max(d.Min, 1), d.Max
	if high == 0 {
		high = maxSize
	}
	return int(math.Floor(min(max(x, float64(low)), float64(high)) + 0.5))
}

// lognormal draws from the lognormal law with this mean and coefficient of
// variation.
func lognormal(r *rand.Rand, mean, cv float64) float64 {
	v := ln(1 + float64(cv*cv)) // variance of the logarithm
	return float64(mean * exp(float64(math.Sqrt(v)*normal(r))-v/2))
}
