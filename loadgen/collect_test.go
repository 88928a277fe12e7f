package loadgen

import (
	"math"
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
	r := col.results(time.Second)[0]
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
	near(t, "TTFT p50", r.TTFT.P50, 40) // 20, 20, 40, 41, 95
	near(t, "TTFT max", r.TTFT.Max, 95)
	near(t, "TPOT max", r.TPOT.Max, 10.333)
	near(t, "planned", r.Planned, 10)
	near(t, "achieved", r.Achieved, 10)
	near(t, "good", r.Good, 2)
	if want := (Tokens{Prompt: 25, Completion: 26}); r.Tokens != want {
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

func TestWarnings(t *testing.T) {
	good := Result{Quantiles: Quantiles{N: 1}, SendLag: Quantiles{P99: 0.9}, Rates: Rates{Planned: 100, Achieved: 99.5}}
	if got := good.warnings(false); len(got) != 0 {
		t.Errorf("warnings %q, want none", got)
	}
	slow := Result{
		SendLag: Quantiles{P99: 6}, Targets: Targets{E2E: 500}, Tally: Tally{Waited: 3},
		Rates: Rates{Planned: 100, Achieved: 98},
	}
	if got := slow.warnings(false); len(got) != 3 {
		t.Errorf("warnings %q, want lag, rate and slots", got)
	}
	if got := slow.warnings(true); len(got) != 2 {
		t.Errorf("warnings of an interrupted run %q, want lag and slots", got)
	}
	slow.Targets.E2E = 1000 // 1 % of which is 10 ms
	slow.Waited, slow.Achieved = 0, 100
	if got := slow.warnings(false); len(got) != 0 {
		t.Errorf("warnings %q, want none: 6 ms of lag are little against 1 s", got)
	}
}
