package arbiter

import (
	"math"
	"testing"
	"time"
)

func f32(v ...float64) (out []float32) {
	for _, x := range v {
		out = append(out, float32(x))
	}
	return out
}

// TestTrial replays five seconds by hand: a share of 4, a replica comes one
// second after it is wanted, nobody waits (slack 1 s, so late at 0.9 s of work).
func TestTrial(t *testing.T) {
	p := Past{Level: f32(1, 1, 3, 1, 1), Work: f32(0.5, 0.5, 3, 0.5, 0.5)}
	o := LearnOptions{Share: 4, Fast: time.Second, Slack: time.Second}
	for _, c := range []struct {
		name string
		law  Law
		cost time.Duration
		want Trial
	}{
		// Wanted: 1 1 3 1 1; there: 1 1 1 1 1. The third second brings 3 of work to
		// one replica: level 3 > 1.2. After it 2 wait, of which 1.5 in the fourth
		// (0.5 + 2 − 1 > 0.9) and 1 in the fifth: late are 3 + 0.5 + 0.5 of 5.
		// Lent 3 3 1 3 3 = 13 of 5 seconds; loans: 3 at once and 2 after the third.
		{"no rise, no hold", Law{Quantile: 1}, 0, Trial{Lent: 13.0 / 5, Late: 4.0 / 5, Moves: 5 * 720}},
		// Five loans at 1 s each come off.
		{"with what going out costs", Law{Quantile: 1}, time.Second, Trial{Lent: 8.0 / 5, Late: 4.0 / 5, Moves: 5 * 720}},
		// Rise 2: wanted 3 3 7→4 3 3; there 3 3 3 3 3: 3 of work a second go through.
		{"a rise", Law{Quantile: 1, Fast: 2}, 0, Trial{Lent: 4.0 / 5, Moves: 2 * 720}},
		// Held for 1 s: wanted 3 3 4 4 3.
		{"a hold", Law{Quantile: 1, Fast: 2, Hold: time.Second}, 0, Trial{Lent: 3.0 / 5, Moves: 2 * 720}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o.OutBack = c.cost
			r := newReplay(p, o)
			r.measure(0.5)
			got := r.try(c.law)
			if math.Abs(got.Lent-c.want.Lent) > 1e-6 || math.Abs(got.Late-c.want.Late) > 1e-6 || got.Static != 0 || math.Abs(got.Moves-c.want.Moves) > 1e-6 {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}

// TestTrialStatic: what the full share misses too is not the law's.
func TestTrialStatic(t *testing.T) {
	p := Past{Level: f32(1, 9, 1), Work: f32(1, 2, 1)}
	// Level 9 > 4: late with everything ready; nothing is left over.
	r := newReplay(p, LearnOptions{Share: 4, Slack: time.Second})
	r.measure(0.5)
	got := r.try(Law{Quantile: 1, Fast: 9})
	if got.Late != 0 || math.Abs(got.Static-0.5) > 1e-6 {
		t.Errorf("late %v, static %v, want 0 and 2 of 4", got.Late, got.Static)
	}
}

// wave is an hour and a half of a level that rises by jump within one second,
// every period seconds, for five of them.
func wave(period int, low, jump float64) (p Past) {
	for i := range 5400 {
		l := low
		if i%period < 5 {
			l += jump
		}
		p.Level, p.Work = append(p.Level, float32(l)), append(p.Work, float32(l/2))
	}
	return p
}

func TestLearn(t *testing.T) {
	o := LearnOptions{Share: 10, Fast: 4 * time.Second, Slow: 30 * time.Second, Slack: time.Second, OutBack: 20 * time.Second, Budget: 1e-5}
	flat := Learn(wave(5400, 2, 0), o)
	// Nothing ever rises: everything above the level is lent.
	if flat.Lent < 7.9 || flat.Late != 0 || flat.Fast != 0 {
		t.Errorf("a flat level: %+v, want 8 lent", flat)
	}
	rare := Learn(wave(600, 2, 5), o)
	// Jumps of 5 at level 2 must be covered whenever they come: 3 are left to lend,
	// be it by a rise of 5 or by a top that is held from one jump to the next.
	if rare.Late > 1e-5 || rare.Lent > 3 || rare.Lent < 2.9 {
		t.Errorf("rare jumps: %+v, want 3 lent", rare)
	}
	// At level 2 one power is as good as another; a level of 8 sees the same jump as
	// one of 2 did: without a power the rise that was learned is no larger there.
	mixed := wave(600, 2, 5)
	for _, l := range wave(600, 8, 5).Level {
		mixed.Level, mixed.Work = append(mixed.Level, l), append(mixed.Work, l/2)
	}
	o.Share = 20
	if m := Learn(mixed, o); m.Power != learnPowers[0] || m.Late > 1e-5 {
		t.Errorf("the same jumps at two levels: %+v, want the smallest power, %v", m, learnPowers[0])
	}
	o.Share = 10
	o.Budget = 1 // whatever comes of it
	if bold := Learn(wave(600, 2, 5), o); bold.Lent <= rare.Lent || bold.Late == 0 {
		t.Errorf("with no budget %+v lends no more than %+v", bold, rare)
	}
	o.Strict = true
	if s := Learn(wave(600, 2, 5), o); s.Late != 0 || s.Lent >= rare.Lent || s.Fast*s.scale(2) < 1.25*5-1e-9 {
		t.Errorf("strict: %+v, want more than the worst rise", s)
	}
	o.Strict = false
	// Jumps once a minute: what gives the slices back in between and takes them again
	// moves 5 replicas 60 times an hour. At 20 s each that is 6,000 s of the 36,000
	// that ten have: more than 2.4 %. So they stay.
	if calm := Learn(wave(60, 2, 5), o); calm.Moves*20 > learnCost*36000 {
		t.Errorf("jumps each minute: %+v, want at most %g s spent an hour", calm, learnCost*36000)
	}
	o.OutBack = time.Second // 300 s: they may go
	if quick := Learn(wave(60, 2, 5), o); quick.Moves < 200 {
		t.Errorf("cheap loans: %+v, want some in each minute", quick)
	}
	if l := Learn(Past{Level: make([]float32, 3599), Work: make([]float32, 3599)}, o); l.Learned() {
		t.Errorf("%+v learned from less than an hour", l)
	}
}
