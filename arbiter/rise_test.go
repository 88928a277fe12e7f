package arbiter

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// add records a level and nothing else.
func (r *Rise) add(level float64) { r.levels = keepLast(r.levels, level) }

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
				r.add(l)
			}
			if got := r.Within(c.within, c.q); math.Abs(got-c.want) > 1e-9 {
				t.Errorf("rise %.4f, want %.4f", got, c.want)
			}
		})
	}
}

func TestRiseForgets(t *testing.T) {
	var r Rise
	r.add(0)
	for range riseMemory {
		r.add(9) // the rise from 0 leaves the memory with the last of these
	}
	if got := r.Within(time.Second, 1); got != 0 {
		t.Errorf("rise %.1f after an hour of calm, want 0", got)
	}
}

// TestRiseHistoryBounded: two days of entries keep the last one, in order.
func TestRiseHistoryBounded(t *testing.T) {
	var r Rise
	for i := range 5 * historyMemory / 2 {
		r.levels, r.work = keepLast(r.levels, float64(i)), keepLast(r.work, 0)
	}
	if got := r.Past().Level; len(got) != historyMemory || got[0] != 1.5*historyMemory || cap(r.levels) > 3*historyMemory {
		t.Errorf("%d levels from %v, capacity %d; want the last %d", len(got), got[0], cap(r.levels), historyMemory)
	}
}

// TestPeak: against the largest of the last entries, looked up one by one.
func TestPeak(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for n := range 6 {
		p := peak{n: n}
		var all []float64
		for range 200 {
			all = append(all, float64(rng.IntN(20)))
			p.add(all[len(all)-1])
			if want := slices.Max(all[max(0, len(all)-1-n):]); p.top() != want {
				t.Fatalf("n %d after %v: %v, want %v", n, all, p.top(), want)
			}
		}
	}
}

// TestLawLines: a line rises at once and falls only after the hold.
func TestLawLines(t *testing.T) {
	var r Rise
	r.Follow(Law{Quantile: 1, Power: 0.5, Hold: 2 * time.Second, Fast: 0.5, Slow: 1})
	for i, c := range []struct{ level, fast, slow float64 }{
		{4, 5, 6},     // 4 + 0.5 × √4, 4 + 1 × √4
		{9, 10.5, 12}, // 9 + 0.5 × 3, 9 + 3
		{1, 10.5, 12}, // 1 + 0.5 is lower: held for one second
		{1, 10.5, 12}, // for two
		{1, 1.5, 2},   // no longer
		{0, 1.5, 2},   // below level 1 the root is 1, and 1.5 is held
	} {
		r.Add(noon.Add(time.Duration(i)*time.Second), c.level, 0, Horizons{Fast: time.Second, Slow: time.Second})
		var l Learned
		r.fill(&l, noon)
		if !l.Law.Learned() || !near(l.HeldFast, c.fast) || !near(l.HeldSlow, c.slow) || l.RiseFast != 0.5 || l.RiseSlow != 1 {
			t.Errorf("second %d: %+v, want lines %v and %v", i, l, c.fast, c.slow)
		}
	}
}

func TestBeyond(t *testing.T) {
	values := []float64{0, 1, 2, 8}
	// Index 0.5 × 4; the last; the largest one and a half times.
	for q, want := range map[float64]float64{0.5: 2, 1: 8, 1.5: 12, 0: 0} {
		if got := beyond(values, q); got != want {
			t.Errorf("quantile %v: %v, want %v", q, got, want)
		}
	}
	if beyond(nil, 1) != 0 {
		t.Error("a rise out of no history")
	}
}
