package arbiter

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// TestAllows: what is allowed leaves the level at n; more raises it above.
func TestAllows(t *testing.T) {
	p := testPolicy()
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 3))
		m := chat("m", 6*rng.Float64(), 0, 9)
		m.Target = time.Duration(1+rng.IntN(5000)) * time.Millisecond
		if rng.IntN(2) == 0 {
			m.Slots, m.InFlight = 0, 0
		}
		for range 60 {
			m.Work = append(m.Work, rng.Float64()*4)
		}
		n := int(math.Ceil(p.level(m) - 1e-9))
		work, sequences := p.allows(&m, n)
		after := func(work, sequences float64) float64 {
			m := m
			m.Work = append([]float64(nil), m.Work...)
			m.Work[59] += work
			m.InFlight += sequences
			return p.level(m)
		}
		if n >= m.Max {
			if !math.IsInf(work, 1) || !math.IsInf(sequences, 1) {
				t.Errorf("seed %d: %d of %d needed, allows %v and %v: nothing could be done about it", seed, n, m.Max, work, sequences)
			}
			continue
		}
		if l := after(work-1e-6, 0); l > float64(n) {
			t.Errorf("seed %d: %v more work is allowed, level is then %v of %d", seed, work, l, n)
		}
		if l := after(work+1e-3, 0); l <= float64(n) {
			t.Errorf("seed %d: more than %v work is too much, level is then %v of %d", seed, work, l, n)
		}
		if m.Slots == 0 {
			continue
		}
		if l := after(0, sequences-1e-6); l > float64(n) {
			t.Errorf("seed %d: %v more sequences are allowed, level is then %v of %d", seed, sequences, l, n)
		}
		if l := after(0, sequences+1e-3); l <= float64(n) {
			t.Errorf("seed %d: more than %v sequences are too many, level is then %v of %d", seed, sequences, l, n)
		}
	}
}

// TestArrivals: a burst between two looks is acted on within 50 ms, whatever it
// is short of and even just after another; a trickle, or one that changes nothing,
// makes no looks.
func TestArrivals(t *testing.T) {
	burst := func(w *world, sequences int, work float64) {
		for range sequences {
			w.arrive("m", work/float64(sequences))
		}
	}
	reclaims := func(r *running) int { return len(r.did("")) - 2 } // two are lent first
	ready := func(t *testing.T) (*world, *running) {
		w := newWorld(t, 3, chat("m", 0.2, 1, 3))
		w.models[0].Work = make([]float64, 60)
		w.ready("m", "s0", "s1", "s2")
		w.submit(trainer("a"))
		w.submit(trainer("b"))
		r := begin(w, nil)
		pass(20*time.Second + 150*time.Millisecond)
		if n := r.View().Stats.Loans; n != 2 {
			t.Fatalf("%d loans, want 2", n)
		}
		return w, r
	}
	for _, c := range []struct {
		name      string
		sequences int
		work      float64 // seconds; 1.8 is what one replica may get within a second
		want      int
	}{
		{"sequences", 20, 0.1, 1}, // 4 + 20 > 19
		{"as many as fit", 15, 0.1, 0},
		{"work", 4, 1.9, 1},
		{"as much as fits", 4, 1.7, 0},
		{"much of both", 50, 5, 2},
	} {
		bubble(t, func(t *testing.T) {
			w, r := ready(t)
			defer r.end()
			burst(w, c.sequences, c.work)
			pass(49 * time.Millisecond)
			if got := reclaims(r); got != c.want {
				t.Errorf("%s: %d reclaims after 49 ms, want %d: %q", c.name, got, c.want, r.did(""))
			}
		})
	}
	bubble(t, func(t *testing.T) {
		w, r := ready(t)
		defer r.end()
		burst(w, 20, 0.1)
		pass(time.Millisecond)
		if got := reclaims(r); got != 1 {
			t.Errorf("%d reclaims after 1 ms, want 1", got)
		}
		burst(w, 20, 0.1) // 44 > 38
		pass(49 * time.Millisecond)
		if got := reclaims(r); got != 2 {
			t.Errorf("%d reclaims after a second burst, want 2", got)
		}
	})
	bubble(t, func(t *testing.T) {
		w, r := ready(t)
		defer r.end()
		before := w.looks()
		for range 1000 { // each of them breaks what the look before allowed
			w.set(func() { w.models[0].InFlight = 0.2 * 19 })
			burst(w, 16, 0)
			pass(time.Millisecond)
		}
		if n := w.looks() - before; n < 40 || n > 55 { // 1 s: two guards, and at most one each 20 ms
			t.Errorf("%d looks in a second", n)
		}
	})
}

// TestArrivedCosts: it is called for every request.
func TestArrivedCosts(t *testing.T) {
	w := newWorld(t, 1, chat("m", 0.2, 1, 3))
	a, err := New(Options{Core: coreOptions(), Serving: w, Work: w, Inventory: w, MoveTimeout: 1}, testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	a.Arrived("m", time.Second) // before the first look
	all := a.core.allowances()
	a.allowed.Store(&all)
	a.Arrived("unknown", time.Second)
	if n := testing.AllocsPerRun(100, func() { a.Arrived("m", time.Millisecond) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
