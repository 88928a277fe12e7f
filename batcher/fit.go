package batcher

import (
	"math"
	"math/bits"
	"time"
)

// Constants of the service-time model (docs/batching.md).
const (
	fitCount     = 50   // a cell's count stops here, so that it stays able to move
	fitFloor     = 0.05 // weight of a new sample in a full cell
	fitPull      = 0.01 // pull towards the prior slope, as a share of the samples' weight
	marginStep   = 0.1  // step of the margin's quantile tracking
	marginShare  = 0.95 // share of calls that should stay below the promise
	marginMin    = 1.02
	marginMax    = 2.0
	kneeOverhead = 0.15 // at the knee a call's fixed cost is this share of its time
	outlier      = 5.0  // a call slower than this many predictions counts as that many
)

// Fit learns T = alpha + beta*tokens for one shape. Samples are kept as one
// running mean per power of two of tokens, so that hours of small calls never
// make it forget what large ones cost.
type Fit struct {
	prior       struct{ alpha, beta float64 }
	cells       [32]cell
	alpha, beta float64 // seconds, seconds a token
	margin      float64
	samples     int
}

type cell struct{ n, tokens, seconds float64 }

// NewFit starts from a prior (seconds, seconds a token).
func NewFit(alpha, beta float64) *Fit {
	f := &Fit{alpha: alpha, beta: beta, margin: 1.2}
	f.prior.alpha, f.prior.beta = alpha, beta
	return f
}

// Observe learns from one finished call.
func (f *Fit) Observe(tokens int, took time.Duration) {
	if tokens <= 0 || took <= 0 {
		return
	}
	s, t := float64(tokens), took.Seconds()
	if p := f.Seconds(tokens); f.samples > 0 {
		below := 0.0
		if t <= p*f.margin {
			below = 1
		}
		f.margin = min(max(f.margin+marginStep*(marginShare-below), marginMin), marginMax)
		if f.samples > fitCount {
			t = min(t, outlier*p)
		}
	}
	c := &f.cells[min(bits.Len(uint(tokens)), len(f.cells)-1)]
	w := max(1/(c.n+1), fitFloor)
	c.tokens += w * (s - c.tokens)
	c.seconds += w * (t - c.seconds)
	c.n = min(c.n+1, fitCount)
	f.samples++
	f.solve()
}

// solve is weighted least squares over the cells. A cell weighs count/time², so
// that relative errors count alike, and the slope is pulled weakly to its prior,
// which decides it while all calls have one size.
func (f *Fit) solve() {
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
func (f *Fit) Seconds(tokens int) float64 { return f.alpha + f.beta*float64(tokens) }

// Promise is the time that such a call takes in 95 of 100 cases.
func (f *Fit) Promise(tokens int) time.Duration {
	return time.Duration(f.margin * f.Seconds(tokens) * float64(time.Second))
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

// Largest is the largest useful call for a target when replicas are staggered
// and a request therefore waits about T/replicas: K* of 3.4.
func (f *Fit) Largest(target time.Duration, replicas int) int {
	return f.Within(time.Duration(float64(target) / (1 + 1/float64(max(replicas, 1)))))
}
