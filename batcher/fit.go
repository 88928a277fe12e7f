package batcher

import (
	"math"
	"math/bits"
	"time"
)

// Constants of the service-time model (docs/batching.md).
const (
	fitCount     = 50   // a cell's count stops here, so that it stays able to move
	fitPull      = 0.01 // pull towards the prior slope, as a share of the samples' weight
	marginStep   = 0.4  // step of the margin's quantile tracking, as a share of what it adds
	marginShare  = 0.95 // share of calls that should stay below the promise
	marginMin    = 1.02
	marginMax    = 2.0
	kneeOverhead = 0.15 // at the knee a call's fixed cost is this share of its time
	outlier      = 1.6  // log ratio, a factor of 5: a slower call counts as no slower
	missWeight   = 0.05 // of a new sample in the mean miss of a law
	better       = 0.8  // the other law is taken when it misses by so much less
	leastRise    = 1e-3 // how fast the quickest call is forgotten, a call
	giveUpShare  = 0.8  // of a prediction: less than that no call takes
	useful       = 0.01 // overhead from which larger calls gain nothing
	surely       = 1.6  // times the margin, for what is held back until the last moment
	shiftCount   = 4    // what a cell weighs after a shift
	shiftMargin  = 1.2  // and the margin then
)

// Fit learns T = alpha + beta*tokens for one shape. Samples are kept as one
// running mean per power of two of tokens, so that hours of small calls never
// make it forget what large ones cost.
//
// Engines that pad compute rows × longest instead of the sum of all lengths: Fit
// learns both laws and uses the one that has predicted better.
type Fit struct {
	line         // the one in use
	other   line // what it would be if engines padded, or did not
	padded  bool // which of the two is in use
	margin  float64
	least   float64 // seconds: the quickest call of late
	samples int
	early   bool      // all that was seen are first calls to new replicas, which are slow
	reach   int       // twice what a call cost, as if padded, that was quick enough
	proven  time.Time // when the last call ended that was evidence of a drift
}

// line is one law and what it was learned from.
type line struct {
	prior       struct{ alpha, beta float64 }
	cells       [32]cell
	alpha, beta float64 // seconds, seconds a token
	miss        float64 // recent mean of |log(actual/predicted)|
	drift       drift
	n           int // samples
}

type cell struct{ n, tokens, seconds float64 }

// Size is how large a call is.
type Size struct {
	Rows, Tokens int
	Longest      int // tokens of the longest row
}

// with is the size with a row of so many tokens more.
func (s Size) with(tokens int) Size {
	return Size{s.Rows + 1, s.Tokens + tokens, max(s.Longest, tokens)}
}

// cost is what the engine computes of a call, in tokens.
func (s Size) cost(padded bool) int {
	if padded {
		return s.Rows * s.Longest
	}
	return s.Tokens
}

// NewFit starts from a prior (seconds, seconds a token).
func NewFit(alpha, beta float64) *Fit {
	l := line{alpha: alpha, beta: beta}
	l.prior.alpha, l.prior.beta = alpha, beta
	return &Fit{line: l, other: l, margin: 1.2, early: true}
}

// Observe learns from one finished call that ran alone.
func (f *Fit) Observe(size Size, took time.Duration) { f.learn(size, took, true) }

// ObserveFrom learns from one that began then, perhaps beside others. Those that ran
// at one time are one piece of evidence that calls take longer now: a pause of the
// machine, or of the network, is in all of them, and is over.
func (f *Fit) ObserveFrom(began time.Time, size Size, took time.Duration) {
	alone := !began.Before(f.proven)
	if alone {
		f.proven = began.Add(took)
	}
	f.learn(size, took, alone)
}

func (f *Fit) learn(size Size, took time.Duration, evidence bool) {
	cost := size.cost(f.padded)
	if cost <= 0 || took <= 0 {
		return
	}
	t := took.Seconds()
	if f.samples > 0 {
		below := 0.0
		if t <= f.margin*f.Seconds(cost) {
			below = 1
		}
		f.margin = min(max(f.margin+marginStep*(f.margin-1)*(marginShare-below), marginMin), marginMax)
		f.least += leastRise * (t - f.least)
	} else {
		f.least = t
	}
	f.least = min(f.least, t)
	f.samples++
	if slower := f.observe(cost, t, evidence); slower {
		f.margin = max(f.margin, shiftMargin)
	}
	f.other.observe(size.cost(!f.padded), t, evidence)
	if !f.cold() && f.other.miss < better*f.miss {
		f.line, f.other, f.padded = f.other, f.line, !f.padded
	}
}

// observe learns from a call that took t seconds, and reports whether it has shown,
// if it is evidence, that calls take longer now than they did.
func (f *line) observe(cost int, t float64, evidence bool) (slower bool) {
	s := float64(cost)
	z := math.Log(t / f.Seconds(cost))
	if f.n > fitCount {
		z = min(z, outlier)
		t = min(t, math.Exp(outlier)*f.Seconds(cost))
		if evidence {
			by := f.drift.add(z, f.miss)
			if by != 1 {
				f.scale(by)
			}
			slower = by > 1
		}
	}
	f.n++
	f.miss += missWeight * (math.Abs(z) - f.miss)
	c := &f.cells[min(bits.Len(uint(cost)), len(f.cells)-1)]
	c.n = min(c.n+1, fitCount)
	c.tokens += (s - c.tokens) / c.n
	c.seconds += (t - c.seconds) / c.n
	f.solve()
	return slower
}

// scale believes that everything takes by times as long from now on: engines slow
// down, and speed up, as a whole. What was learned of sizes stays, lightly.
func (f *line) scale(by float64) {
	for i := range f.cells {
		c := &f.cells[i]
		c.seconds, c.n = c.seconds*by, min(c.n, shiftCount)
	}
}

// solve is weighted least squares over the cells. A cell weighs count/time², so
// that relative errors count alike, and the slope is pulled weakly to its prior,
// which decides it while all calls have one size.
func (f *line) solve() {
	var sw, ss, st float64
	for _, c := range f.cells {
		if c.n > 0 {
			w := c.n / (c.seconds * c.seconds)
			sw, ss, st = sw+w, ss+w*c.tokens, st+w*c.seconds
		}
	}
	s, t := ss/sw, st/sw
	// around the weighted mean the intercept drops out of the slope's equation
	pull := fitPull * sw * s * s
	num, den := pull*f.prior.beta, pull
	for _, c := range f.cells {
		if c.n > 0 {
			w := c.n / (c.seconds * c.seconds)
			num += w * (c.tokens - s) * (c.seconds - t)
			den += w * (c.tokens - s) * (c.tokens - s)
		}
	}
	// Both stay positive: neither a free call nor a free token is believed.
	f.beta = min(max(num/den, 0.02*t/s), 0.98*t/s)
	f.alpha = t - f.beta*s
}

// Seconds is the expected time of a call over so many tokens.
func (f *line) Seconds(tokens int) float64 { return f.alpha + f.beta*float64(tokens) }

// Promise is the time that such a call takes in 95 of 100 cases.
func (f *Fit) Promise(tokens int) time.Duration {
	return time.Duration(f.margin * f.Seconds(tokens) * float64(time.Second))
}

// Surely is Promise with a wider margin: what is held back until the last moment
// is late whenever the promise is broken, which is 5 times in 100.
func (f *Fit) Surely(tokens int) time.Duration {
	return time.Duration((1 + surely*(f.margin-1)) * f.Seconds(tokens) * float64(time.Second))
}

// Least is the least time that a call of so many tokens may take: what cannot be
// answered even so is given up. It errs on the side of hope.
func (f *Fit) Least(tokens int) time.Duration {
	return time.Duration(max(0.9*f.least, giveUpShare*f.beta*float64(tokens)) * float64(time.Second))
}

// Useful is the size beyond which a larger call is hardly cheaper per token and
// only makes its first rows wait for its last: where calls cost nothing to start,
// one row is best.
func (f *Fit) Useful() int {
	return int(min(f.alpha*(1-useful)/(useful*f.beta), math.MaxInt32)) + 1
}

// Within is the largest call, in tokens, whose promise is at most d; 0 = none.
func (f *Fit) Within(d time.Duration) int {
	return int(max(0, min((d.Seconds()/f.margin-f.alpha)/f.beta, math.MaxInt32)))
}

// Knee is the size from which a call's fixed cost is a small share of its time,
// so that waiting for more buys little.
func (f *Fit) Knee() int {
	return int(min(f.alpha*(1-kneeOverhead)/(kneeOverhead*f.beta), math.MaxInt32)) + 1
}

// Known reports whether calls of different sizes were seen: until then the split
// between alpha and beta is the prior's, good for sizing batches but not for
// deciding that waiting is useless.
func (f *Fit) Known() bool {
	lo, hi := math.Inf(1), 0.0
	for _, c := range f.cells {
		if c.n >= 3 {
			lo, hi = min(lo, c.tokens), max(hi, c.tokens)
		}
	}
	return hi >= 2*lo
}

// settle forgets what new replicas took, but for the laws that they taught.
func (f *Fit) settle() {
	for _, l := range []*line{&f.line, &f.other} {
		l.prior.alpha, l.prior.beta = l.alpha, l.beta
		l.cells, l.drift, l.n = [32]cell{}, drift{}, 0
	}
	f.early = false
}

// cold reports whether too little was seen to size calls by it.
func (f *Fit) cold() bool { return f.samples < coldSamples }

// sure reports whether enough was seen to refuse requests by it.
func (f *Fit) sure() bool { return !f.early && f.n >= coldSamples }

// Largest is the largest useful call for a target when replicas are staggered
// and a request therefore waits about T/replicas: K* of 3.4.
func (f *Fit) Largest(target time.Duration, replicas int) int {
	return f.Within(time.Duration(float64(target) / (1 + 1/float64(max(replicas, 1)))))
}

// drift notices that calls take longer, or shorter, than they used to: a two-sided
// CUSUM (Page 1954) on the log of actual over predicted.
type drift struct {
	sum [2]float64 // evidence for slower and for faster
	run [2]float64 // log ratios that it is made of
	n   [2]float64
}

const (
	driftSlack = 0.1 // log ratio that is no evidence, or the usual miss if that is more
	driftMark  = 8   // slacks of evidence that count as proof
)

// add takes one log ratio and returns by which factor times have changed; 1 = they
// have not.
func (d *drift) add(z, usual float64) float64 {
	slack := max(driftSlack, usual)
	for i, sign := range [2]float64{1, -1} {
		if d.sum[i] += sign*z - slack; d.sum[i] <= 0 {
			d.sum[i], d.run[i], d.n[i] = 0, 0, 0
			continue
		}
		d.run[i], d.n[i] = d.run[i]+z, d.n[i]+1
		if d.sum[i] > driftMark*slack && d.n[i] > 2 {
			by := math.Exp(d.run[i] / d.n[i])
			*d = drift{}
			return by
		}
	}
	return 1
}
