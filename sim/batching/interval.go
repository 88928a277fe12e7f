package batching

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Interval is an estimate, and between which values 95 in 100 of its resamplings lie.
type Interval struct{ Value, Low, High float64 }

// resamplings is how many; the ends of the interval then move by a few
// hundredths of its length.
const resamplings = 1000

// Ratio estimates sum(num)/sum(den) of paired figures, [seed][window], by the
// bootstrap: seeds are drawn with replacement, then windows of each. A ratio over
// nothing is 1 if there is nothing above it either.
func Ratio(num, den [][]float64) Interval {
	return resample(func(sum []float64) float64 { return divide(sum[0], sum[1]) }, num, den)
}

// Quotient estimates (a/b)/(c/d) in the same way.
func Quotient(a, b, c, d [][]float64) Interval {
	return resample(func(sum []float64) float64 { return divide(divide(sum[0], sum[1]), divide(sum[2], sum[3])) }, a, b, c, d)
}

func divide(n, d float64) float64 {
	if n == 0 && d == 0 {
		return 1
	}
	return n / d
}

// resample estimates what of makes of the figures' sums.
func resample(of func(sums []float64) float64, figures ...[][]float64) Interval {
	r := rand.New(rand.NewPCG(1, 1))
	seeds := figures[0]
	sums := make([]float64, len(figures))
	add := func(s, w int) {
		for i, f := range figures {
			sums[i] += f[s][w]
		}
	}
	for s := range seeds {
		for w := range seeds[s] {
			add(s, w)
		}
	}
	out := Interval{Value: of(sums)}
	drawn := make([]float64, resamplings)
	for i := range drawn {
		clear(sums)
		for range seeds {
			s := r.IntN(len(seeds))
			for range seeds[s] {
				add(s, r.IntN(len(seeds[s])))
			}
		}
		drawn[i] = of(sums)
	}
	slices.Sort(drawn)
	at := func(q float64) float64 { return drawn[int(math.Round(q*(resamplings-1)))] }
	out.Low, out.High = at(0.025), at(0.975)
	return out
}
