package batcher

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"aloft/backends"
)

// gen is a chat request that streams.
func gen(tenant string, at time.Time, prompt, most int) *Work {
	return &Work{Tenant: tenant, Alone: true, RowTokens: []int{prompt}, Output: most, Arrival: at}
}

// learned gives a core's only shape the law of alpha + beta a token, sure of itself.
func learned(c *Core, alpha, beta float64) {
	f := NewFit(alpha, beta)
	f.samples, f.margin = coldSamples, 1
	*c.fits["s"] = *f
}

func TestLengths(t *testing.T) {
	for _, tc := range []struct {
		name string
		add  []int
		want int
	}{
		{"too few", []int{1, 2, 3, 4, 5, 6, 7}, 0},
		{"eight: the seventh of them", []int{8, 7, 6, 5, 4, 3, 2, 1}, 7}, // ceil(0.8 * 8) = 7
		{"ten: the eighth", []int{10, 9, 8, 7, 6, 5, 4, 3, 2, 1}, 8},
		{"all alike", slices.Repeat([]int{5}, 10), 5},
		{"no token is still one", slices.Repeat([]int{0}, 10), 1},
		{"what is old is forgotten", append(slices.Repeat([]int{1000}, 64), slices.Repeat([]int{3}, 64)...), 3},
		// 64 remembered, 13 of them 1000: the 52nd is the last 3; with 14 it is a 1000
		{"13 of 64", append(slices.Repeat([]int{3}, 100), slices.Repeat([]int{1000}, 12)...), 3},
		{"14 of 64", append(slices.Repeat([]int{3}, 100), slices.Repeat([]int{1000}, 14)...), 1000},
	} {
		var l lengths
		for _, n := range tc.add {
			l.add(n)
		}
		if got := l.p80(); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
}

// The window is right whatever goes in: against sorting it anew.
func TestLengthsAgainstSorting(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var l lengths
	var all []int
	for range 1000 {
		v := r.IntN(50)
		l.add(v)
		all = append(all, v)
		last := slices.Sorted(slices.Values(all[max(0, len(all)-outputWindow):]))
		if n := len(last); n >= outputSamples && l.p80() != max(1, last[(4*n+4)/5-1]) {
			t.Fatalf("after %d: %d, want %d of %v", len(all), l.p80(), last[(4*n+4)/5-1], last)
		}
	}
}

func TestOutputEstimate(t *testing.T) {
	o := newOutputs(2)
	expect := func(name, tenant string, most, want int) {
		t.Helper()
		if got := o.expect(&Work{Tenant: tenant, Output: most}); got != want {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
	}
	expect("nothing known", "a", 0, 256)
	expect("nothing known, bounded", "a", 100, 100)
	expect("what generates nothing", "a", -1, 0)
	for range 8 {
		o.add("a", 40)
	}
	expect("its own", "a", 0, 40)
	expect("its own, bounded", "a", 10, 10)
	expect("a bound above is no estimate", "a", 4096, 40)
	expect("a new tenant: the model's", "b", 0, 40)
	for range 8 {
		o.add("b", 900)
	}
	expect("the other's own", "b", 0, 900)
	expect("is not this one's", "a", 0, 40)
	o.add("c", 1) // a third tenant: the table holds two
	if n := o.tenants.Len(); n != 2 {
		t.Errorf("%d tenants remembered, want 2", n)
	}
}

// TestAdmission: steps on a core of one shape, whose fit is 10 ms + 1 ms a token,
// with a target of 500 ms.
func TestAdmission(t *testing.T) {
	opt := Options{Model: "m", Target: ms(500)}
	at := func(d float64) time.Time { return t0.Add(ms(d)) }
	type step struct {
		name string
		do   func(c *Core, flying *[]*Batch) []Action
		want string
		hold Hold // counted last; Holds = none in this step
	}
	arrive := func(now float64, tenant string, prompt, most int) func(*Core, *[]*Batch) []Action {
		return func(c *Core, _ *[]*Batch) []Action { return c.Arrive(at(now), gen(tenant, at(now), prompt, most)) }
	}
	done := func(now float64, n, out int) func(*Core, *[]*Batch) []Action {
		return func(c *Core, f *[]*Batch) []Action {
			return c.Done(at(now), (*f)[n], Result{Output: out, Took: ms(1)})
		}
	}
	first := func(now float64, n int) func(*Core, *[]*Batch) []Action {
		return func(c *Core, f *[]*Batch) []Action { return c.First(at(now), (*f)[n], at(now).Sub((*f)[n].At)) }
	}
	streamed := func(now float64, n, out int) func(*Core, *[]*Batch) []Action {
		return func(c *Core, f *[]*Batch) []Action { return c.Streamed(at(now), (*f)[n], out) }
	}
	reads := func(now float64, r backends.Reading) func(*Core, *[]*Batch) []Action {
		return func(c *Core, _ *[]*Batch) []Action { return c.SetReading(at(now), "a", r) }
	}
	kv := Replica{ID: "a", Slots: 8, Shape: "s"}
	for _, tc := range []struct {
		name  string
		r     Replica
		kv    int // tokens; 900 of 1000 may be promised
		cold  bool
		steps []step
	}{
		{"slots", Replica{ID: "a", Slots: 2, Shape: "s"}, 0, false, []step{
			{"one", arrive(0, "", 10, 5), "a:1/10 idle", Holds},
			{"two", arrive(0, "", 10, 5), "a:1/10 idle", Holds},
			{"all taken", arrive(0, "", 10, 5), "", HoldSlots},
			{"one ends", done(1, 0, 5), "a:1/10 idle", Holds},
		}},
		// A sequence counts its tokens and 15 of a block that it may leave empty.
		{"kv: what all need at most at once", kv, 1000, true, []step{
			{"100 and 256 to come", arrive(0, "", 100, 0), "a:1/100 idle", Holds},
			{"two of 115 + 256: 742", arrive(0, "", 100, 0), "a:1/100 idle", Holds},
			{"three: 1113", arrive(0, "", 100, 0), "", HoldKV},
			// two of 115 + 256 are 742; when 64 more are written, 115 + 115 + 307 + 3*64 = 729
			{"192 of the first's 256 are there", streamed(1, 0, 192), "a:1/100 idle", Holds},
		}},
		{"kv: a short answer ends before the others have grown", kv, 1000, true, []step{
			{"115 + 256", arrive(0, "", 100, 0), "a:1/100 idle", Holds},
			{"742", arrive(0, "", 100, 0), "a:1/100 idle", Holds},
			// all three at its end: 115 + 115 + 305 + 3*16 = 583
			{"290 and 16 allowed: at its end 583, then 742 again", arrive(0, "", 290, 16), "a:1/290 idle", Holds},
			{"one more of those: 115 + 115 + 305 + 305 + 4*16 = 904", arrive(0, "", 290, 16), "", HoldKV},
		}},
		{"kv: an estimate that a stream passes is raised", kv, 1000, true, []step{
			{"16 of 600 allowed: 256 expected", arrive(0, "", 16, 600), "a:1/16 idle", Holds},
			{"16", arrive(0, "", 16, 0), "a:1/16 idle", Holds},
			{"320 are there, so 384 are expected", streamed(1, 0, 320), "", Holds},
			// 31 + 327 + 2*256 = 870; when 64 more are written, 31 + 327 + 351 + 3*64 = 901
			{"312: one too many", arrive(1, "", 312, 0), "", HoldKV},
			// its bound counts: 10 more at most, 31 + 327 + 621 + 3*10 = 1009
			{"590 of 600 are there", streamed(2, 0, 590), "", HoldKV},
			{"it ends: 870", done(3, 0, 600), "a:1/312 idle", Holds},
		}},
		{"kv: what is larger than the cache goes where nothing runs", kv, 1000, false, []step{
			{"5000 tokens: the engine says what becomes of it", arrive(0, "", 5000, 5), "a:1/5000 idle", Holds},
			{"the next waits", arrive(0, "", 5, 5), "", HoldKV},
		}},
		{"kv: the engine's own figures", Replica{ID: "a", Slots: 8, Shape: "s"}, 0, true, []step{
			{"it holds 640 in blocks of 10: 576 may be promised", reads(0, backends.Reading{KVTokens: 640, KVBlock: 10}), "", Holds},
			{"29 + 256", arrive(0, "", 20, 0), "a:1/20 idle", Holds},
			{"two: 570", arrive(0, "", 20, 0), "a:1/20 idle", Holds},
			{"it says that 95 % are taken", reads(1, backends.Reading{KVTokens: 640, KVBlock: 10, KVUsage: 0.95}), "", Holds},
			{"so none for a short one", arrive(1, "", 5, 5), "", HoldKV},
			{"20 % are", reads(1000, backends.Reading{KVTokens: 640, KVBlock: 10, KVUsage: 0.2}), "a:1/5 idle", Holds},
			{"three of 285: 855", arrive(1001, "", 20, 0), "", HoldKV},
		}},
		{"prefill: prompts before its own", Replica{ID: "a", Slots: 8, Shape: "s"}, 0, false, []step{
			{"400 tokens: 410 ms", arrive(0, "", 400, 5), "a:1/400 idle", Holds},
			{"50 more, behind 400 ms: 460 ms of 500", arrive(0, "", 50, 5), "a:1/50 idle", Holds},
			{"50 more, behind 450 ms: 510 ms", arrive(0, "", 50, 5), "", HoldPrefill},
			{"the first prompt is read: 50 before it, 60 of its own, 120 left", first(380, 0), "a:1/50 idle", Holds},
		}},
		{"prefill: too late anyway, the backlog stays within a target", Replica{ID: "a", Slots: 8, Shape: "s"}, 0, false, []step{
			{"400", arrive(0, "", 400, 5), "a:1/400 idle", Holds},
			{"600 take 610 ms: never in time, 400 before it", arrive(0, "", 600, 5), "a:1/600 idle", Holds},
			{"1000 before it", arrive(0, "", 600, 5), "", HoldPrefill},
			{"400 are read, 600 still before it", first(410, 0), "", HoldPrefill},
			{"nothing before it", first(1000, 1), "a:1/600 idle", Holds},
		}},
		{"prefill: nothing is held before the fit is known", Replica{ID: "a", Slots: 8, Shape: "s"}, 0, true, []step{
			{"9000", arrive(0, "", 9000, 5), "a:1/9000 idle", Holds},
			{"9000 more", arrive(0, "", 9000, 5), "a:1/9000 idle", Holds},
		}},
		{"the queue inside the engine", Replica{ID: "a", Slots: 8, Shape: "s"}, 0, true, []step{
			{"1", arrive(0, "", 1, 5), "a:1/1 idle", Holds},
			{"2", arrive(0, "", 1, 5), "a:1/1 idle", Holds},
			{"3", arrive(0, "", 1, 5), "a:1/1 idle", Holds},
			{"4", arrive(0, "", 1, 5), "a:1/1 idle", Holds},
			{"it runs one: two may wait there", reads(1, backends.Reading{Running: 1, Waiting: 3}), "", Holds},
			{"no more", arrive(1, "", 1, 5), "", HoldEngine},
			{"three left there", done(2, 0, 5), "", HoldEngine},
			{"two left", done(3, 1, 5), "a:1/1 idle", Holds},
			{"it runs more than thought", reads(1000, backends.Reading{Running: 2, Waiting: 1}), "", Holds},
			{"so one more", arrive(1000, "", 1, 5), "a:1/1 idle", Holds},
		}},
		{"stale figures: one at a time", Replica{ID: "a", Slots: 8, Shape: "s"}, 0, true, []step{
			{"it speaks", reads(0, backends.Reading{}), "", Holds},
			{"1", arrive(0, "", 1, 5), "a:1/1 idle", Holds},
			{"2, 3 s later", arrive(3000, "", 1, 5), "a:1/1 idle", Holds},
			{"silent for more", arrive(3001, "", 1, 5), "", HoldStale},
			{"one ends, one still runs", done(3002, 0, 5), "", HoldStale},
			{"nothing runs", done(3003, 1, 5), "a:1/1 idle", Holds},
			{"busy", arrive(3004, "", 1, 5), "", HoldStale},
			{"it speaks again", reads(3005, backends.Reading{}), "a:1/1 idle", Holds},
		}},
		{"an engine that never said anything is judged by our counts", Replica{ID: "a", Slots: 2, Shape: "s"}, 0, true, []step{
			{"1", arrive(0, "", 1, 5), "a:1/1 idle", Holds},
			{"a minute later", arrive(60_000, "", 1, 5), "a:1/1 idle", Holds},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			opt.KVTokens = tc.kv
			c := NewCore(opt)
			c.SetReplicas(t0, []Replica{tc.r}) // too new to teach the fit
			if !tc.cold {
				learned(c, 0.010, 0.001)
			}
			var flying []*Batch
			for _, s := range tc.steps {
				before := c.calls.Holds
				acts := s.do(c, &flying)
				for _, a := range acts {
					if a.Kind == Dispatch {
						flying = append(flying, a.Batch)
					}
				}
				if got := script(acts); got != s.want {
					t.Fatalf("%s: got %q, want %q", s.name, got, s.want)
				}
				for h := Hold(0); h < Holds; h++ {
					if more := c.calls.Holds[h] - before[h]; (more > 0) != (h == s.hold) {
						t.Errorf("%s: %d held for %v, want it for %v alone", s.name, more, h, s.hold)
					}
				}
			}
		})
	}
}

// An adapter that no replica has holds up a row of a batch, and is counted so.
func TestHoldForAdapter(t *testing.T) {
	c := NewCore(Options{Model: "m"})
	c.SetReplicas(t0, []Replica{{ID: "a", Slots: 1}})
	w := gen("", t0, 1, 1)
	w.Class, w.Place.Adapter = backends.Offline, "lora"
	if got := script(c.Arrive(t0, w)); got != "" || c.calls.Holds[HoldAdapter] != 1 {
		t.Errorf("%q, %v holds", got, c.calls.Holds)
	}
}

// An answer that is no stream says nothing of its first token: the fit does.
func TestPrefillOfAnswersThatAreNoStreams(t *testing.T) {
	c := NewCore(Options{Model: "m", Target: ms(500)})
	c.SetReplicas(t0.Add(-time.Hour), []Replica{{ID: "a", Slots: 8, Shape: "s"}})
	learned(c, 0.010, 0.001)
	whole := gen("", t0, 600, 5)
	whole.Unary = true
	c.Arrive(t0, whole)
	if got := script(c.Arrive(t0, gen("", t0, 10, 5))); got != "" || c.calls.Holds[HoldPrefill] != 1 {
		t.Fatalf("%q, %v holds, want it to wait for 600 tokens", got, c.calls.Holds)
	}
	if want := t0.Add(ms(610)); !c.Wake().Equal(want) { // 10 ms and 600 tokens
		t.Fatalf("wakes at %v, want %v", c.Wake(), want)
	}
	if got := script(c.Tick(c.Wake())); got != "a:1/10 idle" {
		t.Errorf("then %q", got)
	}
}

// Tenants pay for tokens as they come: 100 tokens of prompt at once, 2 for each of
// the answer, no more at its end.
func TestChargedAsItStreams(t *testing.T) {
	c := NewCore(Options{Model: "m"})
	c.SetReplicas(t0, []Replica{{ID: "a", Slots: 1}})
	b := c.Arrive(t0, gen("x", t0, 100, 0))[0].Batch
	served := func() float64 { return c.order.classes[0].accounts["x"].served }
	for _, s := range []struct {
		do   func()
		want float64
	}{
		{func() {}, 100},
		{func() { c.Streamed(t0, b, 64) }, 228},
		{func() { c.Streamed(t0, b, 64) }, 228}, // the same news twice
		{func() { c.Streamed(t0, b, 128) }, 356},
		{func() { c.Done(t0, b, Result{Output: 130}) }, 360},
		{func() { c.Streamed(t0, b, 192) }, 360}, // late news of what has ended
	} {
		if s.do(); served() != s.want {
			t.Errorf("served %v, want %v", served(), s.want)
		}
	}
	if r := c.byID["a"]; r.kv != 0 || len(r.prefills) != 0 || c.outputs.all.n != 1 {
		t.Errorf("left: %d tokens promised, %d prompts, %d lengths", r.kv, len(r.prefills), c.outputs.all.n)
	}
}

// TestLateFirst: with 2 slots, each held for 1 s on average, a target of 1 s and a
// fit of 10 ms + 1 ms a token.
func TestLateFirst(t *testing.T) {
	for _, tc := range []struct {
		name    string
		class   backends.Class
		running int // 10-token prompts, first bytes there
		waiting int
		seen    int // finished generations
		want    string
	}{
		{"a slot is free", 0, 1, 0, 20, "a:1/10 idle"},
		// one ahead: (1+1) * 1 s / 2 = 1 s, and 20 ms of its own
		{"it would wait 1 s", 0, 2, 1, 20, "fail would_be_late"},
		{"first in the queue: 0.5 s", 0, 2, 0, 20, ""},
		{"nothing is known yet", 0, 2, 1, 19, ""},
		// due after 5 s: 9 ahead are 5 s, 8 are 4.5 s
		{"standard", backends.Standard, 2, 9, 20, "fail would_be_late"},
		{"standard, in time", backends.Standard, 2, 8, 20, ""},
		{"offline waits", backends.Offline, 2, 100, 20, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := NewCore(Options{Model: "m", Target: time.Second})
			c.SetReplicas(t0.Add(-time.Hour), []Replica{{ID: "a", Slots: 2, Shape: "s"}})
			learned(c, 0.010, 0.001)
			for range tc.running {
				b := c.Arrive(t0, gen("", t0, 10, 5))[0].Batch
				c.First(t0, b, ms(20))
			}
			for range tc.waiting {
				if acts := c.Arrive(t0, gen("", t0, 10, 5)); len(acts) > 0 {
					t.Fatalf("a waiting one: %s", script(acts))
				}
			}
			for range tc.seen {
				c.slotSeconds.add(1)
			}
			w := gen("", t0, 10, 5)
			w.Class = tc.class
			if got := script(c.Arrive(t0, w)); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
	// one in 200 is let in all the same
	c := NewCore(Options{Model: "m", Target: time.Second})
	c.SetReplicas(t0.Add(-time.Hour), []Replica{{ID: "a", Slots: 1, Shape: "s"}})
	learned(c, 0.010, 0.001)
	for range 20 {
		c.slotSeconds.add(10)
	}
	c.Arrive(t0, gen("", t0, 10, 5))
	in := 0
	for range 400 {
		if len(c.Arrive(t0, gen("", t0, 10, 5))) == 0 {
			in++
		}
	}
	if in != 2 || c.calls.Drops[DropLate] != 398 {
		t.Errorf("%d of 400 let in, %d refused, want 2 and 398", in, c.calls.Drops[DropLate])
	}
}
