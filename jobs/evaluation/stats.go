package evaluation

import (
	"math"
	"math/rand/v2"
	"slices"

	"aloft/loadgen/binomial"
)

const (
	// z are the normal deviates of a 95 % interval.
	z = 1.959964
	// resamples of a bootstrap: its 2.5 % ends are then the 25th values from
	// either side, whose own error is about a tenth of the interval.
	resamples = 1000
)

// share is good of n, with Wilson's interval.
func share(good, n int) *Estimate {
	if n == 0 {
		return nil
	}
	low, high := binomial.Wilson(float64(good), float64(n), z)
	return &Estimate{Value: float64(good) / float64(n), Low: low, High: high, N: n}
}

// mean is that of the values.
func mean(values []float64) *Estimate {
	ones := make([]float64, len(values))
	for i := range ones {
		ones[i] = 1
	}
	return ratio(values, ones, func(v float64) float64 { return v })
}

// ratio is f(sum of over / sum of under), f being monotonous: rows are drawn
// again with their two parts together. The generator's seed is fixed, so that
// the same rows give the same interval.
func ratio(over, under []float64, f func(float64) float64) *Estimate {
	n := len(over)
	if n == 0 {
		return nil
	}
	of := func(row func(i int) int) float64 {
		a, b := 0.0, 0.0
		for i := range n {
			a, b = a+over[row(i)], b+under[row(i)]
		}
		return f(a / b)
	}
	draw := rand.New(rand.NewPCG(1, uint64(n)))
	again := make([]float64, resamples)
	for i := range again {
		again[i] = of(func(int) int { return draw.IntN(n) })
	}
	slices.Sort(again)
	const tail = resamples / 40
	return &Estimate{Value: of(func(i int) int { return i }), Low: again[tail], High: again[resamples-1-tail], N: n}
}

// quantile is the smallest value that a share q of all does not exceed. Its
// interval is of values between whose ranks the quantile lies with 95 %: at 99 %
// of few rows the upper one is the largest there is.
func quantile(values []float64, q float64) *Estimate {
	n := len(values)
	if n == 0 {
		return nil
	}
	s := slices.Sorted(slices.Values(values))
	at := func(share float64) float64 { return s[min(max(int(math.Ceil(share*float64(n)))-1, 0), n-1)] }
	low, high := binomial.Wilson(q*float64(n), float64(n), z)
	return &Estimate{Value: at(q), Low: at(low), High: at(high), N: n}
}
