package serving

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// tiny is a law with round figures: a prompt token takes 1 ms, a step over one
// sequence 20 ms, over two 30 ms.
var tiny = Law{Alpha: 0.01, Beta: 0.01, Slots: 2, Prefill: 1000, DecodeSpeed: 0.5}

// chat is the law of the standard scenarios.
var chat = Law{Alpha: 0.012, Beta: 0.0006, Slots: 16, Prefill: 6000, DecodeSpeed: 0.5, DecodeBound: true}

const ms = time.Millisecond

// ask is one planned request.
type ask struct {
	at      time.Duration
	in, out int
}

// server makes one with so many replicas, which writes outcomes to out.
func server(t testing.TB, o Options, replicas int, out map[int]Outcome) *Server {
	t.Helper()
	o.Model = cmp.Or(o.Model, "m")
	if o.SLO.TTFT == 0 {
		o.SLO.TTFT = time.Second
	}
	o.Done = func(a Outcome) {
		if _, twice := out[a.Index]; twice {
			t.Fatalf("request %d ended twice", a.Index)
		}
		out[a.Index] = a
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	for r := range replicas {
		s.Add(0, r)
	}
	return s
}

// play lets all requests arrive, and time pass until nothing is left.
func play(s *Server, asks []ask) {
	for i, a := range asks {
		s.Arrive(a.at, i, a.in, a.out)
	}
	for s.Next() < never {
		s.Step(s.Next())
	}
}

// near is the rounding of an event's time: up to the next nanosecond, a few times.
const near = 20 * time.Nanosecond

func wantTimes(t *testing.T, got Outcome, first, end time.Duration) {
	t.Helper()
	if (got.First-first).Abs() > near || (got.End-end).Abs() > near {
		t.Errorf("request %d: first token at %v, end at %v; want %v and %v", got.Index, got.First, got.End, first, end)
	}
}

func TestTimesByHand(t *testing.T) {
	out := map[int]Outcome{}
	play(server(t, Options{Law: tiny}, 1, out), []ask{
		{0, 100, 10},        // read by 100 ms; five steps of 20 ms by 200
		{200 * ms, 100, 5},  // read by 300 ms: request 0 does 100/40 = 2.5 steps meanwhile
		{210 * ms, 100, 1},  // both slots are taken until request 0 ends
		{5000 * ms, 100, 1}, // an idle replica again
	})
	wantTimes(t, out[0], 100*ms, 375*ms)   // 2.5 steps of 30 ms after 300
	wantTimes(t, out[1], 300*ms, 475*ms)   // 2.5 steps by 375; 2.5 at half pace, 40 ms each, while 2 is read
	wantTimes(t, out[2], 475*ms, 495*ms)   // read from 375 on, then one step of 20 ms
	wantTimes(t, out[3], 5100*ms, 5120*ms) // as request 0's begin
	for i := range 4 {
		if !out[i].Good || out[i].Ending != Finished {
			t.Errorf("request %d: %+v, want finished and good", i, out[i])
		}
	}
}

func TestGood(t *testing.T) {
	for _, c := range []struct {
		name string
		slo  SLO
		want bool
	}{ // an idle replica: first token after 100 ms, 10 tokens in 200 ms
		{"in time", SLO{TTFT: 100 * ms, TPOT: 20 * ms}, true},
		{"first token late", SLO{TTFT: 99 * ms}, false},
		{"allowed for its length", SLO{TTFT: 50 * ms, PerInput: 500 * time.Microsecond}, true},
		{"tokens late", SLO{TTFT: time.Second, TPOT: 19 * ms}, false},
	} {
		out := map[int]Outcome{}
		play(server(t, Options{Law: tiny, SLO: c.slo}, 1, out), []ask{{0, 100, 10}})
		if out[0].Good != c.want {
			t.Errorf("%s: good is %v, want %v", c.name, out[0].Good, c.want)
		}
	}
}

func TestMergedCalls(t *testing.T) {
	law := Law{Alpha: 0.01, Beta: 0.001, MaxTokens: 20}
	out := map[int]Outcome{}
	play(server(t, Options{Law: law, Merge: true, SLO: SLO{TTFT: 50 * ms}}, 1, out), []ask{
		{0, 10, 0},      // alone: 10 + 10 ms
		{5 * ms, 5, 0},  // wait for it,
		{6 * ms, 5, 0},  // then share a call of 10 + 10 ms
		{30 * ms, 5, 0}, // and this one waits for that: 10 + 5 ms
	})
	for i, end := range []time.Duration{20 * ms, 40 * ms, 40 * ms, 55 * ms} {
		wantTimes(t, out[i], end, end)
	}
}

func TestDrainEndsWhatRuns(t *testing.T) {
	out := map[int]Outcome{}
	s := server(t, Options{Law: tiny}, 2, out)
	s.Arrive(0, 0, 100, 10)
	on := 0
	if s.Idle(0) {
		on = 1
	}
	s.Remove(50*ms, on)
	s.Arrive(60*ms, 1, 100, 1)
	if s.Running(on) != 1 || s.Running(1-on) != 1 {
		t.Fatalf("running: %d on the drained replica, %d on the other; want 1 and 1", s.Running(on), s.Running(1-on))
	}
	s.Step(299 * ms)
	if s.Idle(on) {
		t.Error("the drained replica is idle before its sequence has ended")
	}
	s.Step(301 * ms)
	if !s.Idle(on) {
		t.Error("the drained replica is not idle after its sequence has ended")
	}
	wantTimes(t, out[0], 100*ms, 300*ms)
	if s.Ready() != 1 {
		t.Errorf("%d replicas are ready, want 1", s.Ready())
	}
}

func TestFailedReplica(t *testing.T) {
	out := map[int]Outcome{}
	s := server(t, Options{Law: tiny}, 1, out)
	s.Arrive(0, 0, 100, 10)      // has its first token at 100 ms
	s.Arrive(100*ms, 1, 100, 10) // is being read when the replica fails
	s.Add(120*ms, 1)
	s.Fail(150*ms, 0)
	for s.Next() < never {
		s.Step(s.Next())
	}
	if got := out[0]; got.Ending != Cut || got.Good || got.End != 150*ms {
		t.Errorf("request 0: %+v, want cut off at 150ms", got)
	}
	wantTimes(t, out[1], 250*ms, 450*ms) // from the start on the other one
	if !s.Idle(0) || s.Ready() != 1 {
		t.Errorf("failed replica idle: %v, %d ready; want true, 1", s.Idle(0), s.Ready())
	}

	out = map[int]Outcome{}
	s = server(t, Options{Law: tiny}, 1, out)
	s.Arrive(0, 0, 100, 10)
	s.Fail(50*ms, 0) // and nobody is there to try again
	if got := out[0]; got.Ending != Cut || got.First >= 0 {
		t.Errorf("%+v, want cut off without a first token", got)
	}
	if l := s.Load(50 * ms); l.Waiting+l.Running != 0 {
		t.Errorf("%d wait and %d run, want none", l.Waiting, l.Running)
	}
}

func TestLoad(t *testing.T) {
	s := server(t, Options{Law: tiny, SLO: SLO{TTFT: time.Second, PerInput: 10 * ms}}, 1, map[int]Outcome{})
	for i := range 4 {
		s.Arrive(time.Duration(i)*500*ms, i, 100, 1)
	}
	// Four of 0.1 s of prefill, at 0, 0.5, 1 and 1.5 s. The seconds are those until
	// now: whenever it is looked at within the second after it, a burst is in the last.
	l := s.Load(2400 * ms)
	if n := len(l.Work); math.Abs(l.Work[n-3]-0.1) > 1e-9 || math.Abs(l.Work[n-2]-0.2) > 1e-9 || math.Abs(l.Work[n-1]-0.1) > 1e-9 {
		t.Errorf("work of the last three seconds is %v, want 0.1 0.2 0.1", l.Work[n-3:])
	}
	// each first token after 100 ms, of the 2 s that its 100 prompt tokens allow: as
	// 50 ms of one second
	if l.Samples != 4 || (l.P99-50*ms).Abs() > near || l.Waiting+l.Running != 0 {
		t.Errorf("%d samples, p99 %v, %d waiting, %d running; want 4, 50ms, 0, 0", l.Samples, l.P99, l.Waiting, l.Running)
	}
	if l = s.Load(60900 * ms); l.Samples != 0 || math.Abs(l.Work[0]-0.2) > 1e-9 || slices.Max(l.Work[1:]) != 0 {
		t.Errorf("after 60.9 s: %d samples, work %v; want 0, and first 0.2 of 1 and 1.5 s", l.Samples, l.Work)
	}
	if l = s.Load(61500 * ms); slices.Max(l.Work) != 0 {
		t.Errorf("after 61.5 s: work %v, want none", l.Work)
	}
}

// TestWindow: latencies are judged over the window that is set. First tokens come at
// 0.1, 10.1 and 20.1 s.
func TestWindow(t *testing.T) {
	for window, want := range map[time.Duration]int{0: 1, 10 * time.Second: 1, 15 * time.Second: 2, 30 * time.Second: 3} {
		s := server(t, Options{Law: tiny, SLO: SLO{TTFT: time.Second}, Window: window}, 1, map[int]Outcome{})
		for i := range 3 {
			s.Arrive(time.Duration(i)*10*time.Second, i, 100, 1)
		}
		if got := s.Load(21 * time.Second).Samples; got != want {
			t.Errorf("window %v: %d samples after 21 s, want %d", window, got, want)
		}
	}
	if _, err := New(Options{Law: tiny, SLO: SLO{TTFT: time.Second}, Window: -1, Done: func(Outcome) {}}); err == nil {
		t.Error("a window below 0 is accepted")
	}
}

func TestP99(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		took := make([]time.Duration, 1+rnd.IntN(700))
		for i := range took {
			took[i] = time.Duration(rnd.IntN(50))
		}
		got := new(load).p99(took)
		slices.Sort(took)
		if want := took[(len(took)*99+99)/100-1]; got != want {
			t.Fatalf("p99 of %d values is %d, want %d", len(took), got, want)
		}
	}
}

func TestRows(t *testing.T) {
	s := server(t, Options{Law: chat}, 2, map[int]Outcome{})
	s.SetRows(time.Second, true)
	// two idle replicas for 2 s: 2 × 2 × 0.85 × 0.8
	if got := s.RowsUseful(3 * time.Second); math.Abs(got-2.72) > 1e-9 {
		t.Errorf("rows of two idle replicas did %g s in 2 s, want 2.72", got)
	}
	s.SetRows(3*time.Second, false)
	s.Arrive(4*time.Second, 0, 6000, 1000) // a prompt of 1 s, which takes 1 - 0.5 of a replica
	s.SetRows(4*time.Second, true)
	// in that second 0.85 of one and 0.35 of the other, times 0.8
	if got := s.RowsUseful(5 * time.Second); math.Abs(got-2.72-0.96) > 1e-6 {
		t.Errorf("rows beside a prompt did %g s in 1 s, want 0.96", got-2.72)
	}
	// one sequence decodes: (1/12.6 ms) × 21.6 ms/16 = 0.10714 of its replica
	got := s.RowsUseful(6*time.Second) - 2.72 - 0.96
	if want := 0.8 * (0.85 + 0.85 - 0.0216/16/0.0126); math.Abs(got-want) > 1e-6 {
		t.Errorf("rows beside a sequence did %g s in 1 s, want %g", got, want)
	}
}

// world is a random small world.
func world(seed uint64) (law Law, replicas int, asks []ask) {
	rnd := rand.New(rand.NewPCG(seed, 7))
	law = Law{Alpha: 0.005 + 0.02*rnd.Float64(), Beta: 0.002 * rnd.Float64(), Slots: 1 + rnd.IntN(6),
		Prefill: 500 + 5000*rnd.Float64(), DecodeSpeed: 0.2 + 0.8*rnd.Float64()}
	replicas = 1 + rnd.IntN(4)
	at := time.Duration(0)
	for range 40 {
		if rnd.IntN(3) > 0 { // else a burst
			at += time.Duration(rnd.ExpFloat64() * float64(100*ms))
		}
		asks = append(asks, ask{at, 1 + rnd.IntN(600), 1 + rnd.IntN(60)})
	}
	return law, replicas, asks
}

// TestStepper compares with a stepper of 20 µs that is told only what was sent
// where and when.
func TestStepper(t *testing.T) {
	for seed := range uint64(12) {
		law, replicas, asks := world(seed)
		out := map[int]Outcome{}
		s := server(t, Options{Law: law, SLO: SLO{TTFT: time.Minute}}, replicas, out)
		sent := make([][]dispatch, replicas)
		seen := map[int]bool{}
		look := func() {
			for _, r := range s.replicas {
				for _, b := range r.prompts {
					if i := b.Segs[0].Work.Load.(*request).index; !seen[i] {
						seen[i] = true
						sent[r.number] = append(sent[r.number], dispatch{asks[i], i, b.At.Sub(epoch)})
					}
				}
			}
		}
		for i, a := range asks {
			for s.Next() <= a.at {
				s.Step(s.Next())
				look()
			}
			s.Arrive(a.at, i, a.in, a.out)
			look()
		}
		for s.Next() < never {
			s.Step(s.Next())
			look()
		}
		if len(seen) != len(asks) || len(out) != len(asks) {
			t.Fatalf("seed %d: %d of %d requests sent, %d ended", seed, len(seen), len(asks), len(out))
		}
		for r := range sent {
			for i, want := range brute(law, sent[r]) {
				got := out[i]
				if (got.First-want.First).Abs() > ms || (got.End-want.End).Abs() > 2*ms {
					t.Fatalf("seed %d: request %d has its first token at %v and ends at %v; the stepper says %v and %v",
						seed, i, got.First, got.End, want.First, want.End)
				}
			}
		}
	}
}

// dispatch is a request that a replica was given.
type dispatch struct {
	ask
	index int
	at    time.Duration
}

// brute lets one replica work in steps of 20 µs.
func brute(law Law, sent []dispatch) map[int]Outcome {
	const dt = 20 * time.Microsecond
	out := map[int]Outcome{}
	type running struct {
		dispatch
		left float64
	}
	var prompts []running
	var decodes []running
	for now := time.Duration(0); len(out) < len(sent) || len(decodes) > 0; now += dt {
		for len(sent) > len(prompts)+len(decodes)+ended(out, decodes) && sent[len(prompts)+len(decodes)+ended(out, decodes)].at <= now {
			d := sent[len(prompts)+len(decodes)+ended(out, decodes)]
			prompts = append(prompts, running{d, float64(d.in)})
		}
		pace := dt.Seconds() / law.step(len(decodes))
		if len(prompts) > 0 {
			pace *= law.DecodeSpeed
		}
		for i := 0; i < len(decodes); i++ {
			if decodes[i].left -= pace; decodes[i].left <= 0 {
				o := out[decodes[i].index]
				o.End = now + dt
				out[decodes[i].index] = o
				decodes = slices.Delete(decodes, i, i+1)
				i--
			}
		}
		if len(prompts) > 0 {
			if prompts[0].left -= dt.Seconds() * law.Prefill; prompts[0].left <= 0 {
				d := prompts[0]
				prompts = prompts[1:]
				out[d.index] = Outcome{First: now + dt}
				decodes = append(decodes, running{d.dispatch, float64(d.out)})
			}
		}
	}
	return out
}

// ended is how many have all their tokens.
func ended[T any](out map[int]Outcome, decodes []T) int { return len(out) - len(decodes) }

// TestRandomWorlds adds, drains and fails replicas at random: every request ends
// once, nothing is left, slots are kept (a panic says so), and the same seed gives
// the same outcomes.
func TestRandomWorlds(t *testing.T) {
	for seed := range uint64(60) {
		for _, merge := range []bool{false, true} {
			a, b := random(t, seed, merge), random(t, seed, merge)
			if fmt.Sprint(a) != fmt.Sprint(b) {
				t.Fatalf("seed %d, merge %v: two runs differ", seed, merge)
			}
		}
	}
}

func random(t *testing.T, seed uint64, merge bool) map[int]Outcome {
	law, replicas, asks := world(seed)
	law.MaxTokens = 2000
	out := map[int]Outcome{}
	s := server(t, Options{Law: law, Merge: merge, Target: 300 * ms}, replicas, out)
	rnd := rand.New(rand.NewPCG(seed, 8))
	for i, a := range asks {
		s.Arrive(a.at, i, a.in, a.out)
		n := rnd.IntN(replicas + 1)
		switch rnd.IntN(6) {
		case 0:
			if n >= len(s.replicas) || !s.replicas[n].ready {
				s.Add(a.at, n)
			}
		case 1:
			if n < len(s.replicas) && s.replicas[n].ready {
				s.Remove(a.at, n)
			}
		case 2:
			if n < len(s.replicas) {
				s.Fail(a.at, n)
			}
		case 3:
			s.SetEta(a.at, rnd.Float64())
		}
		l := s.Load(a.at)
		if l.Waiting < 0 || l.Running < 0 || l.Waiting+l.Running+len(out) != i+1 {
			t.Fatalf("seed %d: %d wait, %d run, %d ended, of %d", seed, l.Waiting, l.Running, len(out), i+1)
		}
	}
	for s.Next() < never {
		s.Step(s.Next())
	}
	if len(out) != len(asks) {
		t.Fatalf("seed %d: %d of %d requests ended", seed, len(out), len(asks))
	}
	return out
}

func TestOptions(t *testing.T) {
	done := func(Outcome) {}
	for name, o := range map[string]Options{
		"no name":     {Law: tiny, SLO: SLO{TTFT: 1}, Done: done},
		"nobody told": {Model: "m", Law: tiny, SLO: SLO{TTFT: 1}},
		"no slo":      {Model: "m", Law: tiny, Done: done},
		"no law":      {Model: "m", SLO: SLO{TTFT: 1}, Done: done},
		"no size":     {Model: "m", Law: tiny, Merge: true, SLO: SLO{TTFT: 1}, Done: done},
		"no slots":    {Model: "m", Law: Law{Alpha: 1, Prefill: 1, DecodeSpeed: 1}, SLO: SLO{TTFT: 1}, Done: done},
		"no pace":     {Model: "m", Law: Law{Alpha: 1, Slots: 1, Prefill: 1}, SLO: SLO{TTFT: 1}, Done: done},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
