package loadgen

import (
	"sync/atomic"
	"time"

	"aloft/loadgen/arrivals"
)

// collector owns the figures of a run. One goroutine feeds it.
type collector struct {
	opt     Options
	plans   []arrivals.Plan
	start   time.Time
	started time.Time     // wall clock, for people
	began   time.Time     // with the warm-up
	cpu     time.Duration // of this process then
	series  [][]*series
	cuts    []cuts // one for each workload
	warm    *Tally
	lines   *lines // nil without Options.Lines
	open    atomic.Int64
}

// series is what is known of one phase of one workload.
type series struct {
	tally    Tally
	failed   map[Outcome]int
	problems map[Outcome]string // the first of each kind
	dist     [metrics]dist
	stream   bool
	line     timeline

	sent, further int // further: of sent, turns that no plan has
	starved       int // of sent: this machine could not connect
	lastSent      time.Duration
	tokens        Tokens
}

func newCollector(opt Options, plans []arrivals.Plan, start time.Time) *collector {
	c := &collector{opt: opt, plans: plans, start: start, started: start.Round(0), began: time.Now(), cpu: ProcessCPU()}
	var end time.Duration
	for _, p := range plans {
		end = max(end, p.End())
	}
	step := stepFor(end + opt.Drain)
	for i, p := range plans {
		row := make([]*series, len(p.Spans))
		for j := range row {
			row[j] = &series{failed: map[Outcome]int{}, problems: map[Outcome]string{}, stream: opt.Workloads[i].Stream, line: timeline{step: step}}
		}
		c.series = append(c.series, row)
		c.cuts = append(c.cuts, newCuts(&opt.Workloads[i]))
	}
	if opt.WarmUp > 0 {
		c.warm = &Tally{}
	}
	if opt.Lines != nil {
		c.lines = newLines(opt.Lines)
	}
	return c
}

// collect takes results until the channel is closed, and reports in between.
func (c *collector) collect(results <-chan sample) {
	tick := time.NewTicker(c.opt.SampleEvery)
	defer tick.Stop()
	defer c.lines.close()
	for {
		select {
		case s, more := <-results:
			if !more {
				c.show()
				return
			}
			c.add(&s)
		case <-tick.C:
			c.lines.flush()
			c.show()
		}
	}
}

func (c *collector) show() {
	if c.opt.OnSample != nil {
		c.opt.OnSample(c.snapshot())
	}
}

// add enters one result wherever it counts. Those of the warm-up are tallied
// apart and nowhere else.
func (c *collector) add(s *sample) {
	w := &c.opt.Workloads[s.workload]
	c.lines.add(s, w, c.plans[s.workload].Spans[s.phase].Name)
	if s.warm {
		if c.warm == nil {
			c.warm = &Tally{}
		}
		c.warm.add(s)
	} else {
		c.series[s.workload][s.phase].add(s)
		c.cuts[s.workload].add(s)
	}
	s.recycle()
}

// add counts a request by how it ended. A client that left as planned has said
// nothing about the server: it is neither good nor bad, and not offered.
func (t *Tally) add(s *sample) {
	t.Retries += s.retries
	if s.left() {
		t.Abandoned++
		return
	}
	t.Offered++
	switch {
	case s.outcome == OK:
		t.OK++
	case s.outcome == Late:
		t.Late++
	case s.outcome == Shed:
		t.Shed++
		if s.retryAfter {
			t.RetryAfter++
		}
	default:
		t.Failed++
	}
	if s.unfinished {
		t.Unfinished++
	}
	if s.waited {
		t.Waited++
	}
}

// left: the client was planned to leave early, and did before it was too late
// for a good answer.
func (s *sample) left() bool { return s.abandoned && s.outcome == Cancelled }

// answered: whole, whether in time or not.
func (s *sample) answered() bool {
	return s.outcome == OK || s.outcome == Late && !s.unfinished && !s.abandoned
}

// gaveUp: the generator, or its client, waited no longer.
func (s *sample) gaveUp() bool {
	return s.outcome == Timeout || s.unfinished || s.outcome == Late && s.abandoned
}

// add enters one result.
//
// The latencies hold every request that was answered, and those that the
// generator gave up, with their age then: leaving those out would make a server
// look quicker the more it fails to answer. Refusals and faults are counted and
// stay out, since a quick error is not a quick answer; how many are out stands
// beside every quantile.
func (r *series) add(s *sample) {
	r.tally.add(s)
	if s.wasSent {
		r.sent++
		if s.further {
			r.further++
		}
		if !s.further && s.due <= s.intended { // further turns, attempts and steps may be sent long after the phase, and are not behind for that
			r.lastSent = max(r.lastSent, s.sent)
		}
		r.dist[sendLag].one(s.lag(), false)
	}
	if s.starved {
		r.starved++
	}
	r.line.add(s)
	if s.left() {
		return
	}
	if s.outcome.Failed() {
		r.failed[s.outcome]++
	}
	if s.problem != "" && r.problems[s.outcome] == "" {
		r.problems[s.outcome] = s.problem
	}
	if !s.answered() && !s.gaveUp() {
		return
	}
	r.mark(e2e, s, s.end)
	r.mark(ttfb, s, s.byte)
	if r.stream {
		r.mark(roleChunk, s, s.role)
		r.mark(ttft, s, s.first)
		r.mark(visible, s, s.visible)
	}
	if s.answered() {
		r.addTokens(s)
	}
}

// mark enters when something came, in m from the intended start and in the
// metric after it from the send. What had not come when the request was given
// up took at least its age.
func (r *series) mark(m metric, s *sample, at time.Duration) {
	gaveUp := s.gaveUp() && (at == 0 || m == e2e)
	if gaveUp {
		at = s.end
	}
	if at == 0 && m != e2e { // an end there always is
		return
	}
	r.dist[m].one(at-s.intended, gaveUp)
	if s.wasSent {
		r.dist[m+1].one(at-s.sent, gaveUp)
	}
}

// addTokens enters what a whole answer says of its tokens.
func (r *series) addTokens(s *sample) {
	r.tokens.Prompt += s.prompt
	r.tokens.Completion += s.completion
	if s.outcome == OK {
		r.tokens.Good += s.completion
	}
	if s.estimated {
		r.tokens.Estimated++
	}
	if t := s.perToken(); t > 0 {
		r.dist[tpot].one(t, false)
	}
	if s.first > 0 {
		r.dist[lateness].one(s.worst, false)
	}
	if len(s.gaps) == 0 {
		return
	}
	s.eachGap(func(took time.Duration, tokens int64) {
		r.dist[chunkGap].add(took, 1)
		r.dist[itl].add(took/time.Duration(tokens), tokens)
	})
	r.dist[chunkGap].requests++
	r.dist[itl].requests++
}

// Snapshot is the state of a run so far. Results counts a request when it is
// over, so Offered in it lags behind by what is in flight.
type Snapshot struct {
	Elapsed  time.Duration // 0 while the warm-up lasts
	End      time.Duration // when the last phase ends; the drain comes after it
	InFlight int
	Results  []Result // of the phases that have begun, by workload, then in order
}

func (c *collector) snapshot() Snapshot {
	now := time.Since(c.start)
	out := Snapshot{Elapsed: max(now, 0), InFlight: int(c.open.Load()), Results: c.results(now, false)}
	for _, p := range c.plans {
		out.End = max(out.End, p.End())
	}
	return out
}

// results are the figures of the phases that have begun by now, with their
// whole distributions and time lines or without.
func (c *collector) results(now time.Duration, whole bool) []Result {
	var out []Result
	for i := range c.series {
		for j, r := range c.series[i] {
			if span := c.plans[i].Spans[j]; span.From <= now {
				out = append(out, r.result(&c.opt.Workloads[i], span, now, whole))
			}
		}
	}
	return out
}
