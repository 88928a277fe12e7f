// Package search finds the highest rate at which a server keeps its promise,
// and draws the curve of what it does at others.
//
// # What it means that a rate holds
//
// An SLO such as "ttft_p99<800ms,tpot_p99<50ms" at an attainment A (0.99) is a
// promise about requests, and it is judged over offered requests: what was
// refused, failed, cut off or never answered counts as missed (research notes
// on load generation, sections 6.1 and 7, points 5 to 7; issue 4). A server
// cannot win by refusing the slow ones, and figures of failures never enter an
// average.
//
//   - A clause on a quantile of a figure that a request has one of (ttfb, role, ttft,
//     visible, tpot, e2e) whose quantile is A bounds each request, and so does one on
//     the max of what it has many of (itl, gap): its longest. A request is
//     good if it is ok and within all such bounds, and the share of good among
//     offered requests must be at least A. This is stricter than each quantile
//     alone: 1 % slow to start and another 1 % slow to go on are 2 % bad.
//   - A clause whose quantile is above A (p99.9 at 0.99) bounds each request too,
//     and its own quantile must be within the bound besides. One whose quantile is
//     below A (p50) does not bound single requests: its quantile must be within
//     the bound, and a request that failed before it had the figure counts as
//     beyond.
//   - A clause on a mean, and one on a quantile of a figure of which an answer has
//     many (itl, gap; pooled over all answers), is held against the report's figure. What
//     failed has none, and is counted by the attainment.
//
// The last two kinds are held against each window by itself: a rate holds if all
// its windows do, and fails by them if none does.
//
// A rate holds if a test says so, fails if a test says so or if the queue
// grows over the window while the rate stays, and is open in between. See
// evidence.go for the tests and for what they cannot see.
package search

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"aloft/loadgen"
)

// Options is a search or a sweep. The zero values of all but Base, and of what
// Sweep names, have defaults.
type Options struct {
	// Base is the profile. Its rates say in which proportion workloads and
	// phases stand; every try multiplies them by one factor before anything is
	// drawn, so that gaps are never rescaled after drawing. Targets in it hold
	// where the SLO has no clause on the same figure.
	Base loadgen.Options
	SLO  SLO
	// Attain is the share of offered requests that must be good; 0 means 0.99.
	Attain float64

	// Start is the first rate a search tries, in arrivals per second over all
	// workloads; 0 means the profile's own, or the end of [Min, Max] that
	// is next to it. The search never leaves them; 0 means Start/1024 and
	// Start·1024. They also are the ends of a sweep's grid.
	Start, Min, Max float64
	// Resolution is how far, as a share, the ends of the interval may be apart
	// from what is tried next to them; 0 means 0.05.
	Resolution float64
	// Confidence is what the interval promises; 0 means 0.95.
	Confidence float64

	// Window is how long a rate is measured (0: 30 s), or as long as it takes to
	// offer Requests (0: as many as have 20 bad ones at Attain),
	// but never longer than MaxWindow (0: 10 times Window). A clear rate ends
	// earlier. WarmUp runs before each; 0 means that of the
	// profile, or a sixth of Window.
	Window, MaxWindow, WarmUp time.Duration
	Requests                  int
	// Repeats is how many whole windows both ends of the answer rest on, and the
	// most that an open rate is given; of a sweep, the runs of each point. 0
	// means 3, in a sweep 1.
	Repeats int
	// Limit bounds the time of it all; no run is begun that could pass it. 0
	// means 30 min.
	Limit time.Duration

	// Points is how many rates a sweep's grid has; 0 means 8. It ends early after
	// Hopeless (0: 2) points in a row that failed with less than half of Attain,
	// or with a growing queue.
	Points, Hopeless int

	// Run does one run; nil means loadgen.Run. It must call OnSample as that does
	// and end soon after its context does.
	Run func(context.Context, loadgen.Options) (*loadgen.Report, error)
	// OnBegin is called before each run with what is planned of it, and OnTry
	// after it.
	OnBegin func(Try)
	OnTry   func(Try)
}

// maxTries bounds a search, whatever the resolution.
const maxTries = 128

// withDefaults fills in what was left at zero.
func (o Options) withDefaults() Options {
	o.Attain = cmp.Or(o.Attain, 0.99)
	o.Resolution = cmp.Or(o.Resolution, 0.05)
	o.Confidence = cmp.Or(o.Confidence, 0.95)
	if o.Start == 0 {
		o.Start = max(baseRate(o.Base), o.Min)
		if o.Max > 0 {
			o.Start = min(o.Start, o.Max)
		}
	}
	o.Min = cmp.Or(o.Min, o.Start/1024)
	o.Max = cmp.Or(o.Max, min(o.Start*1024, maxRate))
	o.Window = cmp.Or(o.Window, 30*time.Second)
	o.MaxWindow = cmp.Or(o.MaxWindow, 10*o.Window)
	o.WarmUp = cmp.Or(o.WarmUp, o.Base.WarmUp, o.Window/6)
	o.Requests = cmp.Or(o.Requests, int(math.Ceil(20/max(1-o.Attain, 1e-4))))
	o.Limit = cmp.Or(o.Limit, 30*time.Minute)
	o.Points = cmp.Or(o.Points, 8)
	o.Hopeless = cmp.Or(o.Hopeless, 2)
	if o.Run == nil {
		o.Run = loadgen.Run
	}
	return o
}

// Validate reports the first thing that is wrong. Zero values that have a
// default are right. What is wrong with the profile the first run says.
func (o Options) Validate() error {
	if err := o.fits(); err != nil {
		return err
	}
	if rate := baseRate(o.Base); !(rate > 0) {
		return errors.New("search: the profile plans no arrivals, so that it has no rate to scale")
	}
	o = o.withDefaults()
	for _, v := range []struct {
		key        string
		is, lo, hi float64
	}{
		{"attain", o.Attain, 0.5, 0.9999}, {"confidence", o.Confidence, 0.5, 0.999}, {"resolution", o.Resolution, 0.001, 1},
		{"repeats", float64(cmp.Or(o.Repeats, 1)), 1, 20}, {"points", float64(o.Points), 2, 64}, {"hopeless", float64(o.Hopeless), 1, 64},
		{"requests", float64(o.Requests), 1, 1e6},
		{"window in seconds", o.Window.Seconds(), 0.64, 86400}, {"max_window in seconds", o.MaxWindow.Seconds(), o.Window.Seconds(), 86400},
		{"warm_up in seconds", o.WarmUp.Seconds(), 0, 86400},
		{"limit in seconds", o.Limit.Seconds(), 0.64, 7 * 86400},
	} {
		if !(v.is >= v.lo && v.is <= v.hi) { // so that NaN fails too
			return fmt.Errorf("search: %s is %v, want %v to %v", v.key, v.is, v.lo, v.hi)
		}
	}
	if !(o.Min > 0 && o.Min <= o.Start && o.Start <= o.Max && o.Max <= maxRate) {
		return fmt.Errorf("search: min %v, start %v, max %v arrivals per second, want 0 < min <= start <= max <= %.0f", o.Min, o.Start, o.Max, maxRate)
	}
	return nil
}
