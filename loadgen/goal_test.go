package loadgen

import (
	"testing"
	"time"
)

// The first byte and the first token that a reader sees have targets of their
// own, from the intended start; an answer without such a token misses none.
func TestJudgeFirstByteAndFirstVisibleToken(t *testing.T) {
	w := Workload{Goal: Goal{TTFBTarget: 10 * time.Millisecond, VisibleTarget: 50 * time.Millisecond}}
	at := func(ms int) time.Duration { return time.Duration(100+ms) * time.Millisecond }
	for _, c := range []struct {
		byte, visible time.Duration
		want          Outcome
	}{
		{at(10), at(50), OK}, {at(11), at(50), Late}, {at(10), at(51), Late}, {at(10), 0, OK},
	} {
		s := sample{times: times{intended: at(0), byte: c.byte, visible: c.visible, end: at(60)}}
		if got := w.judge(&s); got != c.want {
			t.Errorf("first byte at %v, visible at %v: %s, want %s", c.byte, c.visible, got, c.want)
		}
	}
}

// Every latency that has a name can be a target: an answer that is over one of
// them alone is late, and one that is at each of them is good.
func TestJudgeEveryTarget(t *testing.T) {
	at := func(ms int) time.Duration { return time.Duration(100+ms) * time.Millisecond }
	// 4 tokens in 4 chunks and 4 reads: 10, 30 and 20 ms apart.
	s := sample{
		times:  times{intended: at(0), byte: at(10), role: at(20), first: at(30), visible: at(40), last: at(90), end: at(95)},
		tokens: tokens{completion: 4, chunks: 4},
		gaps:   []gap{{10 * time.Millisecond, 1}, {30 * time.Millisecond, 1}, {20 * time.Millisecond, 1}},
	}
	exact := Goal{
		TTFBTarget: 10 * time.Millisecond, RoleTarget: 20 * time.Millisecond, TTFTTarget: 30 * time.Millisecond, VisibleTarget: 40 * time.Millisecond,
		Target: 95 * time.Millisecond, TPOTTarget: 20 * time.Millisecond, ITLTarget: 30 * time.Millisecond, GapTarget: 30 * time.Millisecond,
	}
	if got := (&Workload{Goal: exact}).judge(&s); got != OK {
		t.Errorf("at each of its targets: %s, want ok", got)
	}
	for name, target := range map[string]func(*Goal) *time.Duration{
		"ttfb": func(g *Goal) *time.Duration { return &g.TTFBTarget }, "role": func(g *Goal) *time.Duration { return &g.RoleTarget },
		"ttft": func(g *Goal) *time.Duration { return &g.TTFTTarget }, "visible": func(g *Goal) *time.Duration { return &g.VisibleTarget },
		"e2e": func(g *Goal) *time.Duration { return &g.Target }, "tpot": func(g *Goal) *time.Duration { return &g.TPOTTarget },
		"itl": func(g *Goal) *time.Duration { return &g.ITLTarget }, "gap": func(g *Goal) *time.Duration { return &g.GapTarget },
	} {
		g := exact
		*target(&g)--
		if got := (&Workload{Goal: g}).judge(&s); got != Late {
			t.Errorf("%s over by 1 ns: %s, want late", name, got)
		}
	}
	// Two tokens came with each chunk: a token took half the gap.
	s.completion = 8
	if got := (&Workload{Goal: Goal{ITLTarget: 15 * time.Millisecond}}).judge(&s); got != OK {
		t.Errorf("two tokens a chunk: %s, want ok", got)
	}
}

// A client that leaves after its answer was too late for a target made it late,
// whichever came first.
func TestLeaveAfterATarget(t *testing.T) {
	at := func(ms int) time.Duration { return time.Duration(100+ms) * time.Millisecond }
	w := Workload{Goal: Goal{TTFBTarget: 10 * time.Millisecond, TTFTTarget: 50 * time.Millisecond}}
	for _, c := range []struct {
		byte, first, end time.Duration
		want             Outcome
	}{
		{at(5), 0, at(40), Cancelled}, {0, 0, at(9), Cancelled}, {0, 0, at(10), Late}, {at(11), 0, at(12), Late},
		{at(5), 0, at(50), Late}, {at(5), at(51), at(60), Late}, {at(5), at(50), at(60), Cancelled},
	} {
		s := sample{times: times{intended: at(0), byte: c.byte, first: c.first, end: c.end}}
		if got := w.leave(&s); got != c.want {
			t.Errorf("byte %v, first token %v, left %v: %s, want %s", c.byte, c.first, c.end, got, c.want)
		}
	}
}

// The limit of the send lag is 1 ms or 1 % of the target; of two that of the stricter.
func TestLagLimit(t *testing.T) {
	for _, c := range []struct {
		t    Targets // ms
		want float64
	}{
		{Targets{}, 1}, {Targets{E2E: 50}, 1}, {Targets{E2E: 2000}, 20}, {Targets{E2E: 2000, TTFT: 300}, 3}, {Targets{TTFT: 300}, 3},
		{Targets{E2E: 2000, TTFT: 50}, 1}, {Targets{E2E: 200, TTFT: 3000}, 2}, {Targets{E2E: 2000, TTFBTarget: 200}, 2},
		{Targets{E2E: 2000, VisibleTarget: 400}, 4}, {Targets{RoleTarget: 500}, 5}, {Targets{E2E: 2000, TPOT: 150, GapTarget: 150}, 20},
	} {
		r := Result{Targets: c.t}
		if got := r.LagLimit(); got != c.want {
			t.Errorf("targets %+v: %v ms, want %v", c.t, got, c.want)
		}
		r.SendLag.P99 = c.want
		if faults := r.faults(false); faults != nil {
			t.Errorf("a lag of %v ms: %q", c.want, faults)
		}
		r.SendLag.P99 += 0.01
		if faults := r.faults(false); len(faults) != 1 {
			t.Errorf("a lag of %v ms: %q, want one", r.SendLag.P99, faults)
		}
	}
}
