package loadgen

import (
	"math"
	"math/rand/v2"
	"slices"
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

// hull is the smallest interval that holds both.
func (i Interval) hull(j Interval) Interval {
	return Interval{min(i.Lo, j.Lo), max(i.Hi, j.Hi), i.Open || j.Open}
}

// normal is the z of a two-sided interval.
func normal(confidence float64) float64 { return math.Sqrt2 * math.Erfinv(confidence) }

// Wilson is the interval of a share of which k of n were seen (E. B. Wilson,
// 1927): unlike the textbook one it stays right near 0 and 1, where attainment is.
func Wilson(k, n int, confidence float64) Interval {
	if n <= 0 {
		return Interval{Lo: 0, Hi: 1}
	}
	z, p, m := normal(confidence), float64(k)/float64(n), float64(n)
	mid := (p + z*z/(2*m)) / (1 + z*z/m)
	half := z / (1 + z*z/m) * math.Sqrt(p*(1-p)/m+z*z/(4*m*m))
	out := Interval{Lo: max(mid-half, 0), Hi: min(mid+half, 1)}
	if k == 0 { // rounding must not keep an end off the bound that it has
		out.Lo = 0
	}
	if k == n {
		out.Hi = 1
	}
	return out
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
	lo = search(func(k int) bool { return binomialCDF(k, n, q) > tail })
	hi = search(func(k int) bool { return k > 0 && 1-binomialCDF(k-1, n, q) <= tail })
	return lo, hi
}

// binomialCDF is P(X ≤ k) of n trials at p.
func binomialCDF(k, n int, p float64) float64 {
	switch {
	case k < 0:
		return 0
	case k >= n:
		return 1
	}
	return incompleteBeta(float64(n-k), float64(k+1), 1-p)
}

// incompleteBeta is the regularised I_x(a, b), by its continued fraction (Press
// et al., Numerical Recipes, 6.4) after Lentz.
func incompleteBeta(a, b, x float64) float64 {
	if x <= 0 {
		return 0
	}
	if x >= 1 {
		return 1
	}
	if x > (a+1)/(a+b+2) { // where the fraction converges slowly
		return 1 - incompleteBeta(b, a, 1-x)
	}
	lgamma := func(v float64) float64 { l, _ := math.Lgamma(v); return l }
	front := math.Exp(lgamma(a+b)-lgamma(a)-lgamma(b)+a*math.Log(x)+b*math.Log1p(-x)) / a
	const tiny = 1e-300
	away := func(v float64) float64 { // from 0
		if math.Abs(v) < tiny {
			return tiny
		}
		return v
	}
	c, d := 1.0, 1/away(1-(a+b)*x/(a+1))
	f := d
	for m := 1.0; m < 100_000; m++ { // it takes some √max(a, b) steps
		even := m * (b - m) * x / ((a + 2*m - 1) * (a + 2*m))
		d, c = 1/away(1+even*d), away(1+even/c)
		f *= d * c
		odd := -(a + m) * (a + b + m) * x / ((a + 2*m) * (a + 2*m + 1))
		d, c = 1/away(1+odd*d), away(1+odd/c)
		f *= d * c
		if math.Abs(d*c-1) < 1e-14 {
			break
		}
	}
	return front * f
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
	half := normal(Confidence) * q.HDR.h.StdDev() / 1000 / math.Sqrt(n)
	return Interval{Lo: max(q.Mean-half, 0), Hi: q.Mean + half, Open: n < 30}
}

const (
	fewestSteps = 10   // of a time line for a bootstrap
	resamples   = 2000 // of which 50 lie beyond each end of a 95 % interval
)

// bootstrap is the interval of Σ num / Σ den over the steps of a time line, from
// steps drawn with replacement. Requests of one step share what the server went
// through then, which no formula for independent requests knows.
func bootstrap(points []Point, num, den func(*Point) float64) Interval {
	if len(points) < fewestSteps {
		return Interval{Open: true}
	}
	draw := rand.New(rand.NewPCG(1, uint64(len(points)))) // the same report has the same interval
	var found []float64
	for range resamples {
		n, d := 0.0, 0.0
		for range points {
			p := &points[draw.IntN(len(points))]
			n, d = n+num(p), d+den(p)
		}
		if d > 0 {
			found = append(found, n/d)
		}
	}
	if len(found) == 0 {
		return Interval{Open: true}
	}
	slices.Sort(found)
	tail := int((1 - Confidence) / 2 * float64(len(found)))
	return Interval{Lo: found[tail], Hi: found[len(found)-1-tail]}
}

// shareInterval is the wider of Wilson's and the bootstrap's: the first is right
// when requests are independent, and the second when they are not but many.
func (r *Result) shareInterval(k int, of func(*Point) float64) Interval {
	out := Wilson(k, r.Offered, Confidence)
	offered := func(p *Point) float64 { return float64(p.Offered) }
	if b := bootstrap(r.Timeline, of, offered); !b.Open {
		out = out.hull(b)
	}
	return out
}
