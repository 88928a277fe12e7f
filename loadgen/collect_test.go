package loadgen

import (
	"math"
	"strings"
	"testing"
	"time"

	"aloft/loadgen/arrivals"
)

const msec = time.Millisecond

// Ten requests, counted by hand.
func TestAttainmentByHand(t *testing.T) {
	opt := Options{Workloads: []Workload{{
		Name: "chat", Kind: Chat, Model: "m", Stream: true, Goal: Goal{Target: 100 * msec, TTFTTarget: 40 * msec, TPOTTarget: 10 * msec},
	}}}
	w := &opt.Workloads[0]
	plan := arrivals.Plan{Offsets: make([]time.Duration, 10), Spans: []arrivals.Span{{Name: "steady", To: time.Second, N: 10}}}
	col := newCollector(opt, []arrivals.Plan{plan}, time.Now())
	complete := func(sent, first, last, end time.Duration, n int) sample {
		s := sample{times: times{intended: 100 * msec, sent: sent, first: first, last: last, end: end}, wasSent: true, tokens: tokens{prompt: 5, completion: n}}
		s.outcome = w.judge(&s)
		return s
	}
	for i, c := range []struct {
		s    sample
		want Outcome
	}{
		{complete(100*msec, 120*msec, 160*msec, 170*msec, 5), OK},
		{complete(101*msec, 140*msec, 200*msec, 200*msec, 7), OK},   // every target met exactly
		{complete(190*msec, 195*msec, 200*msec, 205*msec, 5), Late}, // quick from its send, late from its intended start
		{complete(100*msec, 141*msec, 160*msec, 170*msec, 5), Late}, // first token
		{complete(100*msec, 120*msec, 151*msec, 151*msec, 4), Late}, // 10.33 ms a token
		{sample{times: times{intended: 100 * msec, sent: 100 * msec, end: 101 * msec}, wasSent: true, outcome: refusal(429), retryAfter: true}, Shed},
		{sample{times: times{intended: 100 * msec, sent: 100 * msec, end: 101 * msec}, wasSent: true, outcome: refusal(503)}, Shed},
		{sample{times: times{intended: 100 * msec, sent: 100 * msec, end: 101 * msec}, wasSent: true, outcome: refusal(500)}, HTTPError},
		{sample{times: times{intended: 100 * msec, sent: 100 * msec, end: 900 * msec}, wasSent: true, outcome: Timeout}, Timeout},
		{sample{times: times{intended: 100 * msec, sent: 100 * msec, end: 130 * msec}, wasSent: true, outcome: Truncated}, Truncated},
	} {
		if c.s.outcome != c.want {
			t.Errorf("request %d is %s, want %s", i, c.s.outcome, c.want)
		}
		col.series[0][0].add(&c.s)
	}
	r := col.results(time.Second, true)[0]
	if want := (Tally{Offered: 10, OK: 2, Late: 3, Shed: 2, Failed: 3, RetryAfter: 1}); r.Tally != want {
		t.Errorf("tally %+v, want %+v", r.Tally, want)
	}
	if r.Attainment != 0.2 {
		t.Errorf("attainment %v, want 0.2", r.Attainment)
	}
	if r.FailedBy[HTTPError] != 1 || r.FailedBy[Timeout] != 1 || r.FailedBy[Truncated] != 1 || len(r.FailedBy) != 3 {
		t.Errorf("failed by %v", r.FailedBy)
	}
	// Latencies 51, 70, 70, 100, 105 of the answered and 800 of the timeout; the quick
	// errors are not among them.
	near(t, "N", float64(r.N), 6)
	near(t, "p50", r.P50, 70)
	near(t, "p99", r.P99, 800)
	near(t, "p99 from send", r.FromSend.P99, 800)
	near(t, "send lag max", r.SendLag.Max, 90)
	near(t, "TTFT p50", r.TTFT.P50, 40) // 20, 20, 40, 41, 95 and the timeout's 800
	near(t, "TTFT max", r.TTFT.Max, 800)
	near(t, "TPOT max", r.TPOT.Max, 10.333)
	near(t, "planned", r.Planned, 10)
	near(t, "achieved", r.Achieved, 10)
	near(t, "good", r.Good, 2)
	if want := (Tokens{Prompt: 25, Completion: 26, Good: 12}); r.Tokens != want {
		t.Errorf("tokens %+v, want %+v", r.Tokens, want)
	}
}

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > want/500 {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

func TestUnfinishedAtTheDrainDeadline(t *testing.T) {
	for _, c := range []struct {
		target, age time.Duration
		want        Outcome
	}{
		{100 * msec, 101 * msec, Late},
		{100 * msec, 99 * msec, Timeout}, // it might still have been in time
		{0, time.Hour, Timeout},
	} {
		w, s := Workload{Goal: Goal{Target: c.target}}, sample{times: times{end: c.age}}
		if w.settle(&s, errDrain); s.outcome != c.want || !s.unfinished {
			t.Errorf("target %v, age %v: %s (unfinished %v), want %s", c.target, c.age, s.outcome, s.unfinished, c.want)
		}
	}
}

// A client that leaves says nothing of the server, unless it had waited too long.
func TestWhoeverLeaves(t *testing.T) {
	for _, c := range []struct {
		goal       Goal
		age, first time.Duration
		want       Outcome
	}{
		{Goal{}, time.Hour, 0, Cancelled},
		{Goal{Target: 100 * msec}, 99 * msec, 0, Cancelled},
		{Goal{Target: 100 * msec}, 100 * msec, 0, Late},
		{Goal{TTFTTarget: 50 * msec}, 60 * msec, 0, Late},
		{Goal{TTFTTarget: 50 * msec}, 60 * msec, 40 * msec, Cancelled},
	} {
		opt := Options{Workloads: []Workload{{Name: "w", Stream: true, Goal: c.goal}}}
		s := sample{wasSent: true, times: times{first: c.first, end: c.age}}
		opt.Workloads[0].settle(&s, errLeft)
		if s.outcome != c.want {
			t.Errorf("%+v, age %v: %s, want %s", c.goal, c.age, s.outcome, c.want)
		}
		col := collecting(opt, 1)
		col.add(&s)
		r := col.report(false).Results[0]
		want, n := Tally{Abandoned: 1}, int64(0)
		if c.want == Late {
			want, n = Tally{Offered: 1, Late: 1}, 1
		}
		if r.Tally != want || r.N != n || r.AtLeast != int(n) || r.Tokens != (Tokens{}) {
			t.Errorf("%+v, age %v: %+v, %d in the latencies, %d at least, want %+v", c.goal, c.age, r.Tally, r.N, r.AtLeast, want)
		}
	}
}

func TestVerdict(t *testing.T) {
	good := Result{Quantiles: Quantiles{N: 1}, SendLag: Quantiles{P99: 0.9}, Rates: Rates{Planned: 100, Achieved: 99.5}}
	if got := append(good.faults(false), good.warnings()...); len(got) != 0 {
		t.Errorf("%q, want nothing", got)
	}
	if got := (&Result{Tally: Tally{}}).warnings(); len(got) != 1 || !strings.Contains(got[0], "no request in it") {
		t.Errorf("a phase without a request: %q", got)
	}
	slow := Result{
		SendLag: Quantiles{P99: 6}, Targets: Targets{E2E: 500}, Tally: Tally{Waited: 3},
		Rates: Rates{Planned: 100, Achieved: 98},
	}
	if got, more := slow.faults(false), slow.warnings(); len(got) != 2 || len(more) != 1 {
		t.Errorf("%q and %q, want lag and rate, and slots", got, more)
	}
	if got := slow.faults(true); len(got) != 1 {
		t.Errorf("an interrupted run: %q, want the lag alone", got)
	}
	slow.Targets.E2E = 1000 // 1 % of which is 10 ms
	slow.Achieved = 100
	if got := slow.faults(false); len(got) != 0 {
		t.Errorf("%q, want nothing: 6 ms of lag are little against 1 s", got)
	}
	slow.Targets.TTFT = 500 // the first token's is the stricter
	if got := slow.faults(false); len(got) != 1 {
		t.Errorf("%q, want the lag", got)
	}
	if starving := (&Result{Closed: 8, Starved: 3}).faults(true); len(starving) != 1 || !strings.Contains(starving[0], "for 3 requests") {
		t.Errorf("%q, want that the machine had nothing to connect with", starving)
	}
	slow.Achieved = 0
	if slow.Closed = 8; len(slow.faults(false)) != 0 || len(slow.warnings()) != 2 {
		t.Errorf("a closed loop: %q and %q, want no fault and a mark", slow.faults(false), slow.warnings())
	}
	if err := (&Report{Failed: []string{"a", "b"}}).Verdict(); err == nil || !strings.HasPrefix(err.Error(), "THE RUN DOES NOT COUNT: a; b\n") || !strings.Contains(err.Error(), WhatHelps) {
		t.Errorf("verdict %v", err)
	}
	if err := (&Report{}).Verdict(); err != nil {
		t.Errorf("verdict %v, want none", err)
	}
}
