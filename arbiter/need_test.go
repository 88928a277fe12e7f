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

func TestRise(t *testing.T) {
	for _, c := range []struct {
		name   string
		levels []float64
		within time.Duration
		q      float64
		want   float64
	}{
		{"no history", nil, time.Second, 0.9, 0},
		{"history shorter than the horizon", []float64{1, 5}, 2 * time.Second, 0.9, 0},
		// Rises within 1 s: 2/√1, 0 (falls), 3/√1, 0: sorted 0 0 2 3.
		{"median", []float64{1, 3, 1, 4, 4}, time.Second, 0.5, 2},
		{"largest", []float64{1, 3, 1, 4, 4}, time.Second, 1, 3},
		{"smallest", []float64{1, 3, 1, 4, 4}, time.Second, 0, 0},
		// Within 2 s the top counts: max(3,1)−1 = 2, max(1,4)−3 = 1/√3, 4−1 = 3.
		{"two seconds, smallest", []float64{1, 3, 1, 4, 4}, 2 * time.Second, 0, 1 / math.Sqrt(3)},
		{"1.5 s is two whole ones", []float64{1, 3, 1, 4, 4}, 1500 * time.Millisecond, 0, 1 / math.Sqrt(3)},
		// Scaled by the level it began at: (12 − 4)/√4; below level 1 not enlarged.
		{"scaled", []float64{4, 12}, time.Second, 1, 4},
		{"from nothing", []float64{0.25, 1.25}, time.Second, 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r Rise
			for _, l := range c.levels {
				r.Add(l)
			}
			if got := r.Within(c.within, c.q); math.Abs(got-c.want) > 1e-9 {
				t.Errorf("rise %.4f, want %.4f", got, c.want)
			}
		})
	}
}

func TestRiseForgets(t *testing.T) {
	var r Rise
	r.Add(0)
	for range riseMemory {
		r.Add(9) // the rise from 0 leaves the memory with the last of these
	}
	if got := r.Within(time.Second, 1); got != 0 {
		t.Errorf("rise %.1f after an hour of calm, want 0", got)
	}
	if len(r.levels) != riseMemory {
		t.Errorf("%d levels kept, want %d", len(r.levels), riseMemory)
	}
}
