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

// The limit of the send lag is 1 ms or 1 % of the target; of two that of the stricter.
func TestLagLimit(t *testing.T) {
	for _, c := range []struct {
		e2e, ttft, want float64 // ms
	}{{0, 0, 1}, {50, 0, 1}, {2000, 0, 20}, {2000, 300, 3}, {0, 300, 3}, {2000, 50, 1}, {200, 3000, 2}} {
		r := Result{Targets: Targets{E2E: c.e2e, TTFT: c.ttft}}
		if got := r.LagLimit(); got != c.want {
			t.Errorf("targets of %v and %v ms: %v ms, want %v", c.e2e, c.ttft, got, c.want)
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
