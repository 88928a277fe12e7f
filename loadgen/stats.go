package loadgen

import (
	"math"

	"aloft/loadgen/binomial"
)

// Confidence is that of every interval of a comparison.
const Confidence = 0.95

// Interval is where a figure lies with Confidence. All intervals are of a run
// that is repeated under the same conditions; none knows of a noisy neighbour.
type Interval struct {
	Lo float64 `json:"lo"`
	Hi float64 `json:"hi"`
	// Open: there are too few values for an upper end; Hi is the greatest seen.
	Open bool `json:"open,omitempty"`
}

// apart reports whether the intervals have nothing in common, and whether i is
// the lower one.
func (i Interval) apart(j Interval) (apart, below bool) {
	switch {
	case !i.Open && i.Hi < j.Lo:
		return true, true
	case !j.Open && j.Hi < i.Lo:
		return true, false
	}
	return false, false
}

// scaled by a factor of at least 0.
func (i Interval) scaled(by float64) Interval { return Interval{i.Lo * by, i.Hi * by, i.Open} }

// around is the interval of a share v, by a factor of at least 1 as far from it.
func (i Interval) around(v, by float64) Interval {
	return Interval{max(v-(v-i.Lo)*by, 0), min(v+(i.Hi-v)*by, 1), i.Open}
}

// hull is the smallest interval that holds both.
func (i Interval) hull(j Interval) Interval {
	return Interval{min(i.Lo, j.Lo), max(i.Hi, j.Hi), i.Open || j.Open}
}

// normal is the z of a two-sided interval.
func normal(confidence float64) float64 { return math.Sqrt2 * math.Erfinv(confidence) }

// wilson is the interval of a share of which k of n were seen.
func wilson(k, n int) Interval {
	lo, hi := binomial.Wilson(float64(k), float64(n), normal(Confidence))
	return Interval{Lo: lo, Hi: hi}
}

// quantileRanks are the order statistics of n values between which the quantile q
// lies with at least the confidence, whatever the distribution: from 1 to n, or 0
// and n+1 where n values do not say.
func quantileRanks(n int, q, confidence float64) (lo, hi int) {
	tail := (1 - confidence) / 2
	// The count of values below the quantile is binomial. lo is the greatest rank
	// with P(count < lo) ≤ tail, hi the least with P(count ≥ hi) ≤ tail.
	search := func(holds func(k int) bool) int { // the first of 0..n for which it holds, else n+1
		low, high := 0, n+1
		for low < high {
			if k := (low + high) / 2; holds(k) {
				high = k
			} else {
				low = k + 1
			}
		}
		return low
	}
	atLeast := func(k int) float64 { return binomial.AtLeast(float64(k), float64(n), q) }
	lo = search(func(k int) bool { return 1-atLeast(k+1) > tail })
	hi = search(func(k int) bool { return atLeast(k) <= tail })
	return lo, hi
}

// interval of the quantile q of a distribution, from its order statistics. Values
// of one request hang together (the gaps of a stream), so that there are only as
// many independent ones as requests.
func (q *Quantiles) interval(at float64, offered int) Interval {
	if q.HDR == nil || q.N == 0 {
		return Interval{Hi: q.Max, Open: true}
	}
	n := int(min(q.N, int64(max(offered-q.LeftOut, 1))))
	lo, hi := quantileRanks(n, at, Confidence)
	out := Interval{Hi: q.Max, Open: hi > n}
	if lo > 0 {
		out.Lo = q.HDR.Quantile(float64(lo) / float64(n))
	}
	if !out.Open {
		out.Hi = q.HDR.Quantile(float64(hi) / float64(n))
	}
	return out
}

// meanInterval is the mean's, by the central limit theorem.
func (q *Quantiles) meanInterval(offered int) Interval {
	if q.HDR == nil || q.N == 0 {
		return Interval{Hi: q.Max, Open: true}
	}
	n := float64(min(q.N, int64(max(offered-q.LeftOut, 1))))
	half := normal(Confidence) * q.HDR.whole().StdDev() / 1000 / math.Sqrt(n)
	return Interval{Lo: max(q.Mean-half, 0), Hi: q.Mean + half, Open: n < 30}
}

const (
	batches  = 10
	student9 = 2.2622 // Student's t with 9 degrees of freedom, at Confidence
)

// batchMeans is the interval of Σ num / Σ den over the steps of a time line, from
// how much ten stretches of it differ. Requests that come together share what the
// server goes through then, which no formula for independent requests knows, and
// stretches are long enough to share little (Law, "Simulation Modeling and
// Analysis", 9.5.3; the ratio's variance as in Cochran, "Sampling Techniques", 2.11).
func batchMeans(points []Point, num, den func(*Point) float64) Interval {
	if len(points) < batches {
		return Interval{Open: true}
	}
	var n, d [batches]float64
	var allN, allD, square float64
	for i := range points {
		j, p := i*batches/len(points), &points[i]
		n[j], d[j] = n[j]+num(p), d[j]+den(p)
		allN, allD = allN+num(p), allD+den(p)
	}
	if allD == 0 {
		return Interval{Open: true}
	}
	seen := allN / allD
	for j := range batches {
		off := n[j] - seen*d[j]
		square += off * off
	}
	half := student9 * math.Sqrt(square*batches/(batches-1)) / allD
	return Interval{Lo: max(seen-half, 0), Hi: seen + half}
}

// shareInterval is the wider of Wilson's and that of batch means: the first is
// right when requests are independent, and the second when they are not but many.
func (r *Result) shareInterval(k int, of func(*Point) float64) Interval {
	out := wilson(k, r.Offered)
	offered := func(p *Point) float64 { return float64(p.Offered) }
	if b := batchMeans(r.Timeline, of, offered); !b.Open {
		b.Hi = min(b.Hi, 1)
		out = out.hull(b)
	}
	return out
}
