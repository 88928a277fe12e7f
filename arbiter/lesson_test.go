package arbiter

import (
	"testing"
	"time"
)

// bursts is traffic of one model: half a replica's work, and once in two minutes
// two replicas more for five seconds.
func (w *world) bursts(model string, n int) {
	for range n {
		w.traffic(model, 0.5)
		pass(115 * time.Second)
		w.traffic(model, 2.5)
		pass(5 * time.Second)
	}
	w.traffic(model, 0.5)
	pass(100 * time.Second)
}

// traffic is work and sequences in flight of so many replicas.
func (w *world) traffic(model string, level float64) {
	w.load(model, level)
	w.set(func() {
		for i := range w.models {
			if m := &w.models[i]; m.Name == model {
				m.Work = []float64{level}
			}
		}
	})
}

// bursty is a world of one model on four slices, and jobs that take them all.
func bursty(t *testing.T) *world {
	w := newWorld(t, 4, chat("m", 0.5, 1, 4))
	w.ready("m", "s0", "s1", "s2", "s3")
	for _, id := range []string{"a", "b", "c"} {
		w.submit(job(id, "embed"))
	}
	return w
}

// stands is what the model may need within the fast horizon, which quantile that
// is, and how many slices are lent.
func (r *running) stands(t *testing.T, when string, fast int, quantile float64, lent int) {
	t.Helper()
	if n := r.View().Plan.Needs["m"]; n.Fast != fast || n.Quantile != quantile || n.Lent != lent {
		t.Errorf("%s: %d within the fast horizon at %g, %d lent; want %d at %g, %d", when, n.Fast, n.Quantile, n.Lent, fast, quantile, lent)
	}
}

// TestLoopLearns: until there is an hour of history the quantile of the options is
// covered, here the median, which the bursts are beyond. Then the law is learned
// that they do not break, noted with what it would have done, followed, and by the
// next loop from its first look on. A changed risk is learned for at once.
func TestLoopLearns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := bursty(t)
		r := begin(w, nil)
		w.bursts("m", 20)
		r.stands(t, "after 40 minutes", 2, 0.5, 2) // the forecast knows of the bursts, and is below them
		w.bursts("m", 12)
		// One level is never late with three replicas, and a floor costs less than
		// loans between bursts: 2.5 always ready, one of four lent, out and back once.
		r.stands(t, "after an hour", 3, 1e-9, 1)
		equal(t, "learned", r.did("learned"), []string{"follow  m from_past"})
		kept := r.Memories()
		if law := kept["m"].Trial; law.Floor != 2.5 || law.Late != 0 || !near(law.Lent, 1-5.0/3600) || len(kept["m"].Past.Level) != 4001 {
			t.Errorf("kept %+v and %d s, want one lent all the hour, less 5 s out and back, and 4041 s less 40", law, len(kept["m"].Past.Level))
		}

		if err := r.SetPolicy(strict(testPolicy())); err != nil {
			t.Fatal(err)
		}
		pass(10 * time.Second)
		r.stands(t, "strict", 3, 1.25, 1) // 0.5 + 1.25 × the worst rise of 2
		r.end()
		said := ""
		for _, x := range r.records {
			if x.Outcome == "learned" {
				said = x.String()
			}
		}
		if want := "learned from 1h7m0s of m: keep level + 2.50 × level^0.25 ready, never below 0.50 (what it may need within 5s at 1.25 times the worst rise held 1m0s); " +
			"it would have lent 0.44 of 4 replicas on average in 29.7 loans an hour and made 0.0000 % of the work late, beside 0.0000 % without lending"; said != want {
			t.Errorf("said %q\nwant %q", said, want)
		}

		for _, c := range []struct {
			when     string
			policy   Policy
			fast     int
			quantile float64
			lent     int
		}{
			{"at once after a restart", testPolicy(), 3, 1e-9, 1},
			{"after one with another risk", strict(testPolicy()), 3, 1.25, 1},
		} {
			next := begin(bursty(t), func(o *Options) { o.Memories, o.Core.Policy = kept, c.policy })
			pass(10 * time.Second)
			next.stands(t, c.when, c.fast, c.quantile, c.lent)
			next.end()
		}
	})
}

func strict(p Policy) Policy { p.Risk = Strict; return p }

// TestLoopStrictUnlearned: without a law nothing below the worst rise is lent.
func TestLoopStrictUnlearned(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := begin(bursty(t), func(o *Options) { o.Core.Policy = strict(o.Core.Policy) })
		defer r.end()
		r.world.bursts("m", 3)
		r.stands(t, "after three bursts", 3, 1, 1)
	})
}

// TestRisePast: what is kept of two runs has neither the begin of the second nor a
// step between them, and a law is followed as if it had been before.
func TestRisePast(t *testing.T) {
	h := Horizons{Fast: 2 * time.Second, Slow: 4 * time.Second, Quantile: 1}
	var r Rise
	for i := range 100 {
		r.Add(noon.Add(time.Duration(i)*time.Second), 1, 0.5, h)
	}
	if p := r.Past(); len(p.Level) != 100-warmUp || r.Seconds() != len(p.Level) {
		t.Fatalf("%d s of a first run of 100, %d counted, want %d", len(p.Level), r.Seconds(), 100-warmUp)
	}
	var next Rise
	next.Recall(r.Past(), h)
	if p := next.Past(); len(p.Level) != 60 || p.Work[59] != 0.5 {
		t.Fatalf("%d s are recalled, want 60", len(p.Level))
	}
	for i := range 100 {
		next.Add(noon.Add(time.Duration(i)*time.Hour), 7, 3, h)
	}
	p := next.Past()
	if len(p.Level) != 60+bridgeLength+60 || len(p.Work) != len(p.Level) || p.Level[60+bridgeLength-1] != 7 || next.Seconds() != 120 {
		t.Fatalf("%d s, %d of them seen, want 60, a bridge of %d and 60", len(p.Level), next.Seconds(), bridgeLength)
	}
	if got := rises(p.Level, 4, 0); quantile(got, 1) > 4*6.0/bridgeLength+1e-3 {
		t.Errorf("a rise of %g within 4 s, want that of the bridge: 6 in 600 s", quantile(got, 1))
	}
	next.Follow(Law{Quantile: 1, Hold: 3 * time.Second, Fast: 2})
	var l Learned
	if next.fill(&l, noon); l.HeldFast != 9 {
		t.Errorf("the line is at %g at once, want 7 + 2", l.HeldFast)
	}
}
