package batcher

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"aloft/backends"
)

func TestFitFindsTheLawFromWrongPriors(t *testing.T) {
	const alpha, beta = 0.004, 50e-6
	for _, wrong := range [][2]float64{{1, 1}, {3, 3}, {1. / 3, 1. / 3}, {3, 1. / 3}, {1. / 3, 3}, {100, 0.01}} {
		t.Run(fmt.Sprintf("%.2v", wrong), func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 1))
			f := NewFit(alpha*wrong[0], beta*wrong[1])
			for range 300 {
				n := 1 + int(math.Exp(r.Float64()*7)) // 1 to 1,100 tokens
				f.Observe(Size{1, n, n}, time.Duration((alpha+beta*float64(n))*(1+0.05*r.NormFloat64())*1e9))
			}
			for _, n := range []int{1, 30, 300, 1000, 4000} {
				if got, want := f.Seconds(n), alpha+beta*float64(n); math.Abs(got/want-1) > 0.07 {
					t.Errorf("%d tokens: %.5f s, want %.5f", n, got, want)
				}
			}
			if f.margin < marginMin || f.margin > 1.25 || !f.Known() {
				t.Errorf("margin %.3f after noise of 5 %%, known %v", f.margin, f.Known())
			}
			// alpha(1-e)/(e beta) with e = 0.15
			if got := f.Knee(); got < 400 || got > 510 {
				t.Errorf("knee %d, want about 453", got)
			}
		})
	}
}

// While every call has the same size the split is a guess, but what was seen is
// still predicted, and both parameters stay positive.
func TestFitOfOneSize(t *testing.T) {
	for _, prior := range [][2]float64{{0.005, 20e-6}, {1, 1}, {1e-9, 1e-9}} {
		f := NewFit(prior[0], prior[1])
		for range 100 {
			f.Observe(Size{1, 100, 100}, 10*time.Millisecond)
		}
		if got := f.Seconds(100); math.Abs(got-0.010) > 1e-6 {
			t.Errorf("prior %v: 100 tokens take %.6f s, want 0.010", prior, got)
		}
		if f.alpha <= 0 || f.beta <= 0 || f.Known() {
			t.Errorf("prior %v: alpha %v, beta %v, known %v", prior, f.alpha, f.beta, f.Known())
		}
	}
}

// Hours of small calls must not make it forget what large ones cost.
func TestFitRemembersLargeCalls(t *testing.T) {
	f := NewFit(0.005, 20e-6)
	for _, n := range []int{10, 100, 1000, 5000} {
		for range 20 {
			f.Observe(Size{1, n, n}, time.Duration(5e6+2e4*float64(n)))
		}
	}
	for range 100_000 {
		f.Observe(Size{1, 8, 8}, ms(5.16))
	}
	if got := f.Seconds(5000); math.Abs(got/0.105-1) > 0.05 {
		t.Errorf("5,000 tokens: %.4f s, want 0.105", got)
	}
}

func TestFitIgnoresWhatCannotBe(t *testing.T) {
	f := NewFit(0.005, 20e-6)
	f.Observe(Size{1, 0, 0}, time.Second)
	f.Observe(Size{1, 10, 10}, 0)
	f.Observe(Size{1, -1, -1}, -1)
	if f.samples != 0 || f.Seconds(1000) != 0.025 {
		t.Errorf("%d samples, %v s", f.samples, f.Seconds(1000))
	}
	if got := f.Within(-time.Second); got != 0 {
		t.Errorf("%d tokens within a negative time", got)
	}
}

func TestAttainmentAfterASlowdown(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	before, after := law(0.006, 10e-6, r), law(0.006*1.6, 10e-6*1.6, r)
	var w *world
	w = newWorld(paper, func(b *Batch) time.Duration {
		if w.now.Sub(t0) > 5*time.Second {
			return after(b)
		}
		return before(b)
	}, shared("a", "b", "c", "d")...)
	works := w.poisson(r, 900, 20*time.Second, backends.Interactive, "")
	w.run()
	if got := w.attained(works, paper.Target); got < 0.97 {
		t.Errorf("attainment %.4f at 53 %% of the knee, 1.6 times slower from 5 s on; want 0.97", got)
	}
}

// A tenant that comes back from idle has no credit for the time away, and one
// that was served much is not punished for ever.
func TestReturningTenantIsLifted(t *testing.T) {
	c := NewCore(Options{Model: "m", Merge: true, MaxBatchRows: 1})
	served := map[string]int{}
	var b *Batch
	note := func(acts []Action) {
		for _, a := range acts {
			if a.Kind == Dispatch {
				b = a.Batch
				served[b.Segs[0].Work.Tenant]++
			}
		}
	}
	note(c.SetReplicas(t0, shared("a")))
	for range 200 { // "late" is not there yet
		note(c.Arrive(t0, work(0, "early", t0, 10)))
	}
	for range 100 {
		note(c.Done(t0, b, Result{Took: ms(1)}))
	}
	for range 100 {
		note(c.Arrive(t0, work(0, "late", t0, 10)))
	}
	clear(served)
	for range 50 {
		note(c.Done(t0, b, Result{Took: ms(1)}))
	}
	if d := served["early"] - served["late"]; d < -2 || d > 2 {
		t.Errorf("served %v of 50 after the return, want halves", served)
	}
}

func TestFixedDelay(t *testing.T) {
	c := NewCore(Options{Model: "m", Merge: true, MaxQueueDelay: ms(8), MaxBatchRows: 4})
	c.SetReplicas(t0, shared("a", "b"))
	at := func(d float64) time.Time { return t0.Add(ms(d)) }
	if got := script(c.Arrive(at(0), work(0, "", at(0), 1))); got != "" || !c.Wake().Equal(at(8)) {
		t.Fatalf("first: %q, wake in %v; want a wait of 8 ms", got, c.Wake().Sub(t0))
	}
	if got := script(c.Arrive(at(5), work(0, "", at(5), 1))); got != "" || !c.Wake().Equal(at(8)) {
		t.Fatalf("second: %q, wake in %v; want the first one's 8 ms", got, c.Wake().Sub(t0))
	}
	if got := script(c.Tick(at(8))); got != "a:2/2 deadline" {
		t.Fatalf("at 8 ms: %q", got)
	}
	if got := script(c.Arrive(at(9), work(0, "", at(9), 1, 1, 1, 1))); got != "b:4/4 full" {
		t.Fatalf("a full call: %q", got)
	}
}

func TestOptions(t *testing.T) {
	for name, o := range map[string]Options{
		"no name":  {},
		"rows":     {Model: "m", MaxBatchRows: -1},
		"tokens":   {Model: "m", MaxBatchTokens: -1},
		"delay":    {Model: "m", MaxQueueDelay: -1},
		"queue":    {Model: "m", MaxQueue: -1},
		"timeout":  {Model: "m", QueueTimeout: -1},
		"target":   {Model: "m", Target: -1},
		"too late": {Model: "m", Target: ms(5), MaxQueueDelay: ms(5)},
		"window":   {Model: "m", Window: -1},
	} {
		if err := o.Validate(); err == nil {
			t.Errorf("%s: %+v is accepted", name, o)
		}
	}
	if err := (Options{Model: "m"}).Validate(); err != nil {
		t.Errorf("defaults: %v", err)
	}
}

func TestSignals(t *testing.T) {
	o := Options{Model: "m", Merge: true, Target: ms(100), MinSamples: 2, Window: time.Second}
	c := NewCore(o)
	c.SetReplicas(t0, shared("a"))
	b := c.Arrive(t0, work(0, "", t0, 10))[0].Batch
	c.Arrive(t0, work(0, "", t0, 20, 20))
	c.Arrive(t0, work(backends.Offline, "", t0, 7))
	at := t0.Add(ms(50))
	s := c.Signals(at)
	if i := s.Class[0]; i.Queue != 1 || i.Rows != 2 || i.Tokens != 40 || i.InFlight != 1 || i.InFlightTokens != 10 || i.OldestWait != ms(50) {
		t.Errorf("interactive %+v", i)
	}
	if _, ok := s.First.Headroom(); ok || s.BusyReplicas != 1 || s.Slots != 1 || s.Fits[0].Replicas != 1 {
		t.Errorf("%+v", s)
	}
	b = c.Done(at, b, Result{Took: ms(50)})[0].Batch
	at = t0.Add(ms(75))
	c.Done(at, b, Result{Took: ms(25)})
	s = c.Signals(at)
	if h, ok := s.First.Headroom(); !ok || h != 0.25 || s.First.P50 != ms(50) {
		t.Errorf("headroom %v %v of %+v, want 0.25", h, ok, s.First)
	}
	if s = c.Signals(at.Add(2 * time.Second)); s.First.Samples != 0 {
		t.Errorf("%d samples after the window, want 0", s.First.Samples)
	}
	if got := s.Load.Buckets[Seconds-3]; got != (Bucket{2, 50}) {
		t.Errorf("bucket %+v, want 2 requests of 50 tokens; %+v", got, s.Load.Buckets)
	}
	if s = c.Signals(t0.Add(time.Hour)); s.Load != (Load{}) {
		t.Errorf("load an hour later: %+v", s.Load)
	}
}

// TestFitPause: one pause of the machine is in all calls that run at the time, and
// says nothing of the next. A call takes 10 ms, on four replicas; a pause of 20 ms
// once stretches four that run at one time to 30. Four that take 30 one after the
// other have shown that calls take that now.
func TestFitPause(t *testing.T) {
	learned := func() (*Fit, time.Time) {
		f, now := NewFit(0.005, 50e-6), time.Unix(1000, 0)
		for range 60 {
			f.ObserveFrom(now, Size{1, 100, 100}, 10*time.Millisecond)
			now = now.Add(10 * time.Millisecond)
		}
		return f, now
	}
	paused, now := learned()
	for k := range 4 {
		paused.ObserveFrom(now.Add(time.Duration(k)*time.Millisecond), Size{1, 100, 100}, 30*time.Millisecond)
	}
	// Four of 54 that the cell weighs: 10 ms and 8 % of 20 more at most.
	if got := paused.Seconds(100); got < 0.010 || got > 0.012 {
		t.Errorf("after a pause 100 tokens take %.4f s, want 0.010 to 0.012", got)
	}
	slower, now := learned()
	for range 4 {
		slower.ObserveFrom(now, Size{1, 100, 100}, 30*time.Millisecond)
		now = now.Add(30 * time.Millisecond)
	}
	if got := slower.Seconds(100); got < 0.025 || got > 0.035 {
		t.Errorf("after four slow calls 100 tokens take %.4f s, want about 0.030", got)
	}
}
