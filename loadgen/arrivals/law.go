package arrivals

import (
	"math"
	"math/rand/v2"
)

// A seed must plan the same on every machine. The language lets a compiler fuse
// x*y+z on some machines, and the functions of math are written in assembly on
// others, so that last bits differ. Here are the few functions that planning
// needs, made of what IEEE 754 fixes to the bit: + - * / and the square root. A
// product that is added to something stands in float64(…), which forbids fusing.

// uniform draws from (0, 1), both ends left out. Every value is exact.
func uniform(r *rand.Rand) float64 { return (float64(r.Uint64()>>12) + 0.5) / (1 << 52) }

// exponential draws from the exponential law with mean 1.
func exponential(r *rand.Rand) float64 { return -ln(uniform(r)) }

// normal draws from the standard normal law (Marsaglia's polar method).
func normal(r *rand.Rand) float64 {
	for {
		u, v := float64(2*uniform(r))-1, float64(2*uniform(r))-1
		if s := float64(u*u) + float64(v*v); s < 1 && s > 0 {
			return float64(u * math.Sqrt(float64(-2*ln(s))/s))
		}
	}
}

// gamma draws from the gamma law with this shape and scale 1 (Marsaglia and
// Tsang, "A simple method for generating gamma variables", 2000).
func gamma(r *rand.Rand, shape float64) float64 {
	if shape < 1 {
		return float64(gamma(r, shape+1) * exp(ln(uniform(r))/shape))
	}
	d := shape - 1./3
	c := 1 / math.Sqrt(9*d)
	for {
		x := normal(r)
		v := 1 + float64(c*x)
		if v <= 0 {
			continue
		}
		v = float64(v * v * v)
		if ln(uniform(r)) < float64(x*x/2)+float64(d*(1-v+ln(v))) {
			return float64(d * v)
		}
	}
}

// gaps is a renewal process: independent gaps of mean 1, gamma distributed with
// this coefficient of variation. 1 is the Poisson process.
type gaps struct{ cv float64 }

func (g gaps) next(r *rand.Rand) float64 {
	if g.cv == 1 {
		return exponential(r)
	}
	k := 1 / (g.cv * g.cv)
	return gamma(r, k) / k
}

// first is the time to the first arrival as seen by one who comes at any time: a
// uniform part of a gap that was met in proportion to its length. Beginning with
// a whole gap instead would begin on an arrival, and with a burst where gaps
// vary: (cv²-1)/2 arrivals too many in every phase.
func (g gaps) first(r *rand.Rand) float64 {
	if g.cv == 1 {
		return exponential(r)
	}
	k := 1 / (g.cv * g.cv)
	return uniform(r) * gamma(r, k+1) / k
}

const (
	ln2High = 6.93147180369123816490e-01 // ln 2 in two parts: a whole number times the first is exact
	ln2Low  = 1.90821492927058770002e-10
)

// ln is the natural logarithm of a positive number, to about 1e-15 of itself.
func ln(x float64) float64 {
	m, e := math.Frexp(x) // m in [0.5, 1)
	if m < math.Sqrt2/2 {
		m, e = m*2, e-1
	}
	// ln m = 2 artanh s, whose series is short for |s| ≤ 0.172.
	s := (m - 1) / (m + 1)
	z, sum := s*s, 0.0
	for n := 23; n > 1; n -= 2 {
		sum = float64((sum + 1/float64(n)) * z)
	}
	k := float64(e)
	return float64(k*ln2High) + (float64(2*s) + (float64(2*s*sum) + float64(k*ln2Low)))
}

// exp is e to the x, 0 below the smallest number.
func exp(x float64) float64 {
	if x < -745 {
		return 0
	}
	if x > 709 {
		return math.Inf(1)
	}
	k := math.Floor(float64(x/math.Ln2) + 0.5)
	r := x - float64(k*ln2High) - float64(k*ln2Low)
	sum := 1.0
	for n := 15; n > 0; n-- {
		sum = 1 + float64(sum*r/float64(n))
	}
	return math.Ldexp(sum, int(k))
}

// power is x to the y, for a positive x.
func power(x, y float64) float64 { return exp(y * ln(x)) }

// sine is the sine of so many turns.
func sine(turns float64) float64 {
	turns -= math.Floor(turns) // 0 to 1
	switch {                   // to -¼ … ¼, where the series is short
	case turns > 0.75:
		turns--
	case turns > 0.25:
		turns = 0.5 - turns
	}
	x := 2 * math.Pi * turns
	z, sum := x*x, 1.0
	for n := 22; n > 0; n -= 2 {
		sum = 1 - float64(sum*z/float64(n*(n+1)))
	}
	return float64(x * sum)
}
