package search

import (
	"fmt"
	"math"
	"time"

	"aloft/loadgen/binomial"
)

// # The tests
//
// Attainment. The number of bad requests is held against the binomial law at
// 1-A, exactly. Requests that wait in one queue are late together, so that a
// window holds fewer independent ones than it has requests: it is cut into
// slices, the variance of their bad counts over that of independent ones is the
// inflation, and all counts are divided by it (batch means; at least 1). Student's
// law takes the place of the normal one for as many slices as there are.
//
// Growing queue. The requests in flight at the edges of the slices make steps.
// Their mean over its standard error is Student's t of a random walk without
// drift. A queue that is steady swings back, which a random walk does not: the
// error is too large for it, never too small. Where nothing ended in a quarter of
// the slices, a stall made the steps, and nothing is said.
//
// Several looks. A rate is judged when 1/8, 1/4 and 1/2 of its first window are
// over and after each whole window. Each look may be wrong with a share of half
// of 1-Confidence, and the shares add up to one (Bonferroni, which holds however
// much the looks depend on each other): 0.1 for the early looks together, 0.3
// for the whole windows before the last, the rest for the last, which knows most
// (as O'Brien and Fleming 1979 spend it). So stopping at a look that is clear is
// paid for, and costs the last look little. Windows that ended early are left
// out once there is a whole one, since they ended because of what they showed.
//
// # What they cannot see
//
// A queue near saturation may be calm for longer than any window and then late
// for as long. A rate only holds if its windows are at least minStretches times
// as long as the queue in them remembers (by the correlation of what is in flight
// from one sample to the next); windows grow up to MaxWindow for that. What
// returns more rarely is not seen. A request that is still open at an early look
// is not counted then, except that what is in flight beyond the median of the
// window so far counts as bad where the rate would hold otherwise.

const (
	cuts         = 16 // of a window, for the errors of both tests
	samples      = 64 // looks of OnSample a window
	leastSteps   = 8  // below, nothing is said about a queue
	minStretches = 5
	leastGrowth  = 4 // requests; a queue that grew less is not called growing
)

var earlyLooks = [...]float64{1. / 8, 1. / 4, 1. / 2} // shares of a window

// slice is a part of a window.
type slice struct{ offered, ok float64 }

// window is what one run showed while it was measured.
type window struct {
	slices []slice   // one for each sample
	queue  []float64 // in flight at each sample
	step   time.Duration
	// extra are those in flight that an early look counts as bad.
	extra float64
}

// Evidence is what one or several windows at a rate say.
type Evidence struct {
	Offered    int     `json:"offered"`
	OK         int     `json:"ok"`
	Attainment float64 `json:"attainment"`
	// Low and High are Wilson's interval of the attainment at the confidence
	// asked for, its counts divided by Inflation.
	Low       float64 `json:"attainment_low"`
	High      float64 `json:"attainment_high"`
	Inflation float64 `json:"variance_inflation"`
	// Growth is by how much what is in flight grew, in requests per second, and
	// its standard error.
	Growth      float64 `json:"queue_growth_per_s"`
	GrowthError float64 `json:"queue_growth_error_per_s"`
	// Memory is for how long the queue remembers, in seconds; 0 = less than can
	// be seen. Stretches is how many such times were measured.
	Memory    float64 `json:"queue_memory_s"`
	Stretches float64 `json:"stretches"`

	// The probabilities to see this where the attainment is no more than asked
	// for, no less, and where the queue does not grow.
	pHolds, pFails, pGrows float64
}

// weigh makes evidence of the windows of one rate.
func weigh(windows []window, attain, confidence float64) Evidence {
	var e Evidence
	var parts []slice
	var steps []float64
	var seconds, grown, extra float64
	for _, w := range windows {
		parts = append(parts, merged(w.slices)...)
		extra += w.extra
		edges := thinned(w.queue)
		for i := 1; i < len(edges); i++ {
			steps = append(steps, edges[i]-edges[i-1])
		}
		if n := len(w.queue); n > 1 {
			seconds += float64(n-1) * w.step.Seconds()
			grown += w.queue[n-1] - w.queue[0]
			e.Stretches += stretches(w.queue)
		}
	}
	if e.Stretches > 0 && seconds/e.Stretches > 1.5*windows[0].step.Seconds() {
		e.Memory = seconds / e.Stretches
	}
	var sum slice
	alive := 0
	for _, s := range parts {
		sum.offered, sum.ok = sum.offered+s.offered, sum.ok+s.ok
		if s.offered > 0 {
			alive++
		}
	}
	e.Offered, e.OK = int(sum.offered), int(sum.ok)
	e.attainment(parts, sum, attain, confidence)
	if bad := (sum.offered - sum.ok + extra) / e.Inflation; extra > 0 {
		// What is still open may be bad, and may be good: it only stands against.
		e.pHolds = max(e.pHolds, 1-binomial.AtLeast(bad+1, (sum.offered+extra)/e.Inflation, 1-attain))
	}
	e.growth(steps, seconds, grown)
	if 4*alive < 3*len(parts) {
		e.pGrows = 1 // it grew while nothing ended: that is a stall, of whomever, and no trend
	}
	return e
}

// attainment fills in what the slices say of the share of good requests.
func (e *Evidence) attainment(parts []slice, sum slice, attain, confidence float64) {
	e.Inflation, e.Low, e.High, e.pHolds, e.pFails = 1, 0, 1, 1, 1
	if sum.offered == 0 {
		return
	}
	e.Attainment = sum.ok / sum.offered
	var square float64
	for _, s := range parts {
		d := s.ok - e.Attainment*s.offered
		square += d * d
	}
	dof := -1 // nothing was estimated: all were good, or all bad
	if independent := sum.offered * e.Attainment * (1 - e.Attainment); independent > 0 && len(parts) > 1 {
		dof = len(parts) - 1
		e.Inflation = max(1, square/float64(dof)/(independent/float64(len(parts))))
	}
	n, bad := sum.offered/e.Inflation, (sum.offered-sum.ok)/e.Inflation
	e.Low, e.High = binomial.Wilson(n-bad, n, studentT(normalAbove((1-confidence)/2), dof))
	e.pHolds = student(1-binomial.AtLeast(bad+1, n, 1-attain), dof)
	e.pFails = student(binomial.AtLeast(bad, n, 1-attain), dof)
}

// student is a probability of the normal law as that of Student's.
func student(p float64, dof int) float64 {
	p = min(max(p, 1e-300), 1)
	if p > 0.5 {
		return p
	}
	return normalTail(studentZ(normalAbove(p), dof))
}

// growth fills in what the steps say of the queue.
func (e *Evidence) growth(steps []float64, seconds, grown float64) {
	e.pGrows = 1
	if len(steps) < leastSteps || seconds == 0 {
		return
	}
	k := float64(len(steps))
	mean, square := grown/k, 0.0
	for _, s := range steps {
		square += (s - mean) * (s - mean)
	}
	// A count moves by whole requests: an error below that of rounding is none.
	deviation := math.Sqrt(max(square/(k-1), 1./12))
	e.Growth, e.GrowthError = grown/seconds, deviation*math.Sqrt(k)/seconds
	if grown >= leastGrowth {
		e.pGrows = normalTail(studentZ(mean/deviation*math.Sqrt(k), len(steps)-1))
	}
}

// stretches is how many independent looks at the queue a series is worth: that
// of a process whose correlation falls by the same share with each sample.
func stretches(queue []float64) float64 {
	n := float64(len(queue))
	if n < leastSteps {
		return 0
	}
	mean := 0.0
	for _, v := range queue {
		mean += v / n
	}
	var square, product float64
	for i, v := range queue {
		square += (v - mean) * (v - mean)
		if i > 0 {
			product += (v - mean) * (queue[i-1] - mean)
		}
	}
	if square == 0 {
		return n
	}
	r := max(product/square, 0)
	return n * (1 - r) / (1 + r)
}

// merged joins what each sample showed into at most so many slices as there
// are in a window.
func merged(in []slice) []slice {
	out := make([]slice, min(len(in), cuts))
	for i, s := range in {
		j := i * len(out) / len(in)
		out[j].offered, out[j].ok = out[j].offered+s.offered, out[j].ok+s.ok
	}
	return out
}

// thinned is the queue at the edges of the slices.
func thinned(in []float64) []float64 {
	n := min(len(in), cuts+1)
	out := make([]float64, n)
	for i := range out {
		out[i] = in[i*(len(in)-1)/max(n-1, 1)]
	}
	return out
}

// Verdict is what is known of a rate.
type Verdict string

// The verdicts.
const (
	Holds Verdict = "holds"
	Fails Verdict = "fails"
	Open  Verdict = "open" // not enough evidence for either
)

// Reason is why a rate has its verdict.
type Reason string

// The reasons.
const (
	Attained    Reason = "attained"      // the attainment is above what was asked for
	Missed      Reason = "missed"        // it is below
	Growing     Reason = "queue_grows"   // the server does not keep up, whatever it attains so far
	ClauseMiss  Reason = "clause_missed" // a quantile or mean is over its bound
	Unclear     Reason = "unclear"       // the attainment is too near to what was asked for
	Remembering Reason = "queue_memory"  // the window is too short for what the queue remembers
	NoFigures   Reason = "no_figures"    // a clause's figure has no samples
	Unsent      Reason = "generator"     // the generator failed: nothing is known of the server
)

// judge says what the evidence means when each look may be wrong with
// probability alpha. clauses is what the clauses beside the attainment say.
func (e Evidence) judge(alpha float64, clauses Reason) (Verdict, Reason) {
	switch {
	case e.pGrows < alpha:
		return Fails, Growing
	case e.pFails < alpha:
		return Fails, Missed
	case clauses == ClauseMiss:
		return Fails, clauses
	case clauses != "":
		return Open, clauses
	case e.pHolds >= alpha:
		return Open, Unclear
	case e.Stretches < minStretches:
		return Open, Remembering
	}
	return Holds, Attained
}

// weight is the share of the allowed error that a look may spend: an early one,
// at 0 whole windows, or that after so many of them.
func (o Options) weight(whole int) float64 {
	const early, middle = 0.1, 0.3
	switch {
	case whole == 0:
		return early / float64(len(earlyLooks))
	case whole < o.Repeats:
		return middle / float64(o.Repeats-1)
	case o.Repeats == 1:
		return 1 - early
	}
	return 1 - early - middle
}

// alpha is the probability with which a look may be wrong.
func (o Options) alpha(whole int) float64 { return (1 - o.Confidence) / 2 * o.weight(whole) }

func (e Evidence) String() string {
	return fmt.Sprintf("%d of %d good, %.2f %% (%.2f to %.2f)", e.OK, e.Offered, 100*e.Attainment, 100*e.Low, 100*e.High)
}
