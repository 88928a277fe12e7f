package loadgen

import (
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"aloft/loadgen/arrivals"
)

// collector owns the figures of a run. One goroutine feeds it.
type collector struct {
	opt     Options
	plans   []arrivals.Plan
	start   time.Time
	started time.Time // wall clock, for people
	series  [][]*series
	open    atomic.Int64
}

// series is what is known of one phase of one workload.
type series struct {
	tally    Tally
	failed   map[Outcome]int
	problems map[Outcome]string // the first of each kind

	latency, service, lag, ttft, tpot *hdrhistogram.Histogram

	sent               int
	lastSent           time.Duration
	prompt, completion int
	noUsage            int
}

func newCollector(opt Options, plans []arrivals.Plan, start time.Time) *collector {
	c := &collector{opt: opt, plans: plans, start: start, started: start.Round(0)}
	for _, p := range plans {
		row := make([]*series, len(p.Spans))
		for i := range row {
			row[i] = &series{
				failed: map[Outcome]int{}, problems: map[Outcome]string{},
				latency: histogram(), service: histogram(), lag: histogram(), ttft: histogram(), tpot: histogram(),
			}
		}
		c.series = append(c.series, row)
	}
	return c
}

// histogram counts microseconds up to the longest possible request (timeout
// plus drain) with three significant digits: 0.1 %.
func histogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, (maxTimeout + maxDrain).Microseconds(), 3)
}

// collect takes results until the channel is closed, and reports in between.
func (c *collector) collect(results <-chan sample) {
	tick := time.NewTicker(c.opt.SampleEvery)
	defer tick.Stop()
	for {
		select {
		case s, more := <-results:
			if !more {
				c.show()
				return
			}
			c.series[s.workload][s.phase].add(&s)
		case <-tick.C:
			c.show()
		}
	}
}

func (c *collector) show() {
	if c.opt.OnSample != nil {
		c.opt.OnSample(c.snapshot())
	}
}

// add enters one result.
//
// The latency histograms hold every request that was answered, and those that
// the generator gave up, with their age then: leaving those out would make a
// server look quicker the more it fails to answer. Refusals and faults are
// counted and stay out, since a quick error is not a quick answer.
func (r *series) add(s *sample) {
	r.tally.Offered++
	switch s.outcome {
	case OK:
		r.tally.OK++
	case Late:
		r.tally.Late++
	case Shed:
		r.tally.Shed++
	default:
		r.tally.Failed++
		r.failed[s.outcome]++
	}
	count := func(n *int, is bool) {
		if is {
			*n++
		}
	}
	count(&r.tally.Unfinished, s.unfinished)
	count(&r.tally.Waited, s.waited)
	count(&r.tally.RetryAfter, s.outcome == Shed && s.retryAfter)
	if s.problem != "" && r.problems[s.outcome] == "" {
		r.problems[s.outcome] = s.problem
	}
	if s.wasSent {
		r.sent++
		r.lastSent = max(r.lastSent, s.sent)
		record(r.lag, s.sent-s.intended)
	}
	answered := s.outcome == OK || s.outcome == Late
	if answered || s.outcome == Timeout {
		record(r.latency, s.latency())
		if s.wasSent {
			record(r.service, s.end-s.sent)
		}
	}
	if !answered || s.unfinished {
		return
	}
	r.prompt, r.completion = r.prompt+s.prompt, r.completion+s.completion
	count(&r.noUsage, s.estimated)
	if s.first > 0 {
		record(r.ttft, s.first-s.intended)
	}
	if t := s.perToken(); t > 0 {
		record(r.tpot, t)
	}
}

// record enters a duration; one outside the histogram's range at its end.
func record(h *hdrhistogram.Histogram, d time.Duration) {
	_ = h.RecordValue(min(max(d.Microseconds(), 0), h.HighestTrackableValue()))
}

// Snapshot is the state of a run so far. Results counts a request when it is
// over, so Offered in it lags behind by what is in flight.
type Snapshot struct {
	Elapsed  time.Duration
	InFlight int
	Results  []Result // of the phases that have begun, by workload, then in order
}

func (c *collector) snapshot() Snapshot {
	now := time.Since(c.start)
	return Snapshot{Elapsed: max(now, 0), InFlight: int(c.open.Load()), Results: c.results(now)}
}

// results are the figures of the phases that have begun by now.
func (c *collector) results(now time.Duration) []Result {
	var out []Result
	for i := range c.series {
		for j, r := range c.series[i] {
			if span := c.plans[i].Spans[j]; span.From <= now {
				out = append(out, r.result(&c.opt.Workloads[i], span, now))
			}
		}
	}
	return out
}
