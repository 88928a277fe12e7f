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
