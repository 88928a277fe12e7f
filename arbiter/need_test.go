package arbiter

import (
	"math"
	"testing"
	"time"
)

func TestLevel(t *testing.T) {
	p := Policy{Rho: 0.8}
	for _, c := range []struct {
		name string
		m    Model
		want float64
	}{
		{"idle", Model{Slots: 4, Work: []float64{0, 0, 0}, Target: time.Second}, 0},
		{"no history yet", Model{Target: time.Second}, 0},
		// Slots bind: 19 sequences / (0.95 × 10).
		{"slots", Model{Slots: 10, InFlight: 19, Target: time.Second}, 2},
		// Prefill binds: 1 s → 3/(1+0.8) = 1.667; 2 s → 4/(2+0.8) = 1.429; 3 s → 4/3.8.
		{"prefill burst", Model{Slots: 100, InFlight: 1, Work: []float64{0, 1, 3}, Target: time.Second}, 3 / 1.8},
		// A steady 0.9 a second: the longest window says most, 40 × 0.9 / 40.8.
		{"prefill steady", Model{Slots: 100, Work: steady(40, 0.9), Target: time.Second}, 36 / 40.8},
		// Seven seconds fill the windows 1, 2, 3 and 5 only: 5 × 0.9 / 5.8.
		{"half a window does not count", Model{Slots: 100, Work: steady(7, 0.9), Target: time.Second}, 4.5 / 5.8},
		// Merged calls wait at a batch's end: 40 × 0.4 / 0.8 / (40 + 0.8 × 0.5).
		{"merged", Model{Work: steady(40, 0.4), Target: 500 * time.Millisecond}, 20 / 40.4},
		// More than 40 seconds of work: the older ones are not looked at.
		{"long history", Model{Slots: 100, Work: append(steady(10, 50), steady(40, 0)...), Target: time.Second}, 0},
		// A longer target gives the burst more time: 3 / (1 + 0.8 × 4), 2 s: 4 / 5.2, 3 s: 4 / 6.2.
		{"patient", Model{Slots: 100, Work: []float64{0, 1, 3}, Target: 4 * time.Second}, 4 / 5.2},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := p.level(c.m); math.Abs(got-c.want) > 1e-9 {
				t.Errorf("level %.4f, want %.4f", got, c.want)
			}
		})
	}
}

func steady(n int, each float64) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = each
	}
	return out
}
