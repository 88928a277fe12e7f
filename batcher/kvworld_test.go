package batcher

import (
	"container/heap"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"aloft/backends"
)

// sequence is a generation at a simulated engine.
type sequence struct {
	b       *Batch
	out     int // tokens that its answer will have
	written int
	unread  int // tokens to be read before the next one is written
}

func (s *sequence) kv() int { return s.b.Tokens + s.written }

// batching is an engine as vLLM and SGLang are: a step reads the prompts that
// joined it and gives each sequence a token; who comes waits inside for a seat and
// for room for its prompt; when the cache is full the newest sequence is thrown out
// and reads everything again later.
type batching struct {
	seats, cache     int
	running, waiting []*sequence
	stepping         bool

	evicted, reread int
	inside          int // most that waited
}

// genWorld runs a core against such engines in virtual time.
type genWorld struct {
	t       *testing.T
	core    *Core
	now     time.Time
	queue   eventHeap
	seq     int
	engines map[string]*batching
	length  map[*Work]int
	first   map[*Work]time.Duration // from the arrival
	whole   map[*Work]time.Duration
	refused map[string]int
	check   func()
}

func (w *genWorld) at(at time.Time, do func() []Action) {
	w.seq++
	heap.Push(&w.queue, happening{at, w.seq, do})
}

func (w *genWorld) apply(acts []Action) {
	for _, a := range acts { // before any of them is carried out
		if a.Kind != Dispatch {
			continue
		}
		r := a.Batch.replica
		if most := w.core.peak(r, nil); r.busy > 1 && w.core.room(r) > 0 && most > w.core.room(r) || r.busy > r.Slots {
			w.t.Errorf("%s: %d tokens of %d promised, %d of %d slots", r.ID, most, w.core.room(r), r.busy, r.Slots)
		}
	}
	for _, a := range slices.Clone(acts) {
		switch a.Kind {
		case Fail:
			var retry *backends.RetryError
			if w.first[a.Work] > 0 || !errors.As(a.Err, &retry) {
				w.t.Errorf("failed after %v: %v", w.first[a.Work], a.Err)
			} else {
				w.refused[retry.Reason]++
			}
		case Dispatch:
			e := w.engines[a.Batch.Replica.ID]
			e.waiting = append(e.waiting, &sequence{b: a.Batch, out: w.length[a.Batch.Segs[0].Work], unread: a.Batch.Tokens})
			if !e.stepping {
				w.step(e)
			}
		}
	}
	if w.check != nil {
		w.check()
	}
}

// step begins a step of e: 8 ms, 0.1 ms a sequence, 0.1 ms a prompt token.
func (w *genWorld) step(e *batching) {
	used := 0
	for _, s := range e.running {
		used += s.kv() + 1
	}
	for used > e.cache && len(e.running) > 1 {
		last := e.running[len(e.running)-1]
		e.running = e.running[:len(e.running)-1]
		used -= last.kv() + 1
		last.unread = last.kv()
		e.evicted++
		e.reread += last.unread
		e.waiting = slices.Insert(e.waiting, 0, last)
	}
	for len(e.waiting) > 0 && len(e.running) < e.seats && (used+e.waiting[0].kv() < e.cache || len(e.running) == 0) {
		used += e.waiting[0].kv() + 1
		e.running, e.waiting = append(e.running, e.waiting[0]), e.waiting[1:]
	}
	e.inside = max(e.inside, len(e.waiting))
	if e.stepping = len(e.running) > 0; !e.stepping {
		return
	}
	took := ms(8 + 0.1*float64(len(e.running)))
	for _, s := range e.running {
		took += ms(0.1 * float64(s.unread))
		s.unread = 0
	}
	w.at(w.now.Add(took), func() []Action { return w.stepped(e) })
}

func (w *genWorld) stepped(e *batching) []Action {
	var ended []*sequence
	for _, s := range e.running {
		x := s.b.Segs[0].Work
		if s.written++; s.written == 1 {
			w.first[x] = w.now.Sub(x.Arrival)
			w.apply(w.core.First(w.now, s.b, w.now.Sub(s.b.At)))
		}
		if s.written%streamStep == 0 {
			w.apply(w.core.Streamed(w.now, s.b, s.written))
		}
		if s.written == s.out {
			ended = append(ended, s)
		}
	}
	e.running = slices.DeleteFunc(e.running, func(s *sequence) bool { return s.written == s.out })
	for _, s := range ended {
		x := s.b.Segs[0].Work
		w.whole[x] = w.now.Sub(x.Arrival)
		w.apply(w.core.Done(w.now, s.b, Result{Took: w.now.Sub(s.b.At), Output: s.out}))
	}
	w.step(e)
	return nil
}

func (w *genWorld) run() {
	for len(w.queue) > 0 {
		if at := w.core.Wake(); !at.IsZero() && at.Before(w.queue[0].at) {
			if at.After(w.now) {
				w.now = at
			}
			w.apply(w.core.Tick(w.now))
			if w.core.Wake().Equal(at) {
				panic(fmt.Sprintf("BUG: Tick at %v asks to be woken at %v again", w.now, at))
			}
			continue
		}
		e := heap.Pop(&w.queue).(happening)
		w.now = e.at
		w.apply(e.do())
	}
}

// newGenWorld has two engines of 32 seats and a cache of 12,000 tokens each; what
// the core knows of them is in its options.
func newGenWorld(t *testing.T, o Options) *genWorld {
	w := &genWorld{t: t, core: NewCore(o), now: t0, engines: map[string]*batching{}, length: map[*Work]int{},
		first: map[*Work]time.Duration{}, whole: map[*Work]time.Duration{}, refused: map[string]int{}}
	var rs []Replica
	for i, id := range []string{"a", "b"} {
		w.engines[id] = &batching{seats: 32, cache: 12_000}
		rs = append(rs, Replica{ID: id, Slots: 32, Shape: "s", Index: i})
	}
	w.core.SetReplicas(t0.Add(-time.Minute), rs)
	return w
}

// poisson sends prompts of a median of 300 tokens whose answers have one of 200,
// both log-normal; every caller allows 2,048.
func (w *genWorld) poisson(r *rand.Rand, rate float64, d time.Duration) (all []*Work) {
	for at := t0; at.Before(t0.Add(d)); at = at.Add(time.Duration(r.ExpFloat64() / rate * float64(time.Second))) {
		x := gen(fmt.Sprint("tenant ", r.IntN(4)), at, 1+min(int(300*math.Exp(0.8*r.NormFloat64())), 4000), 2048)
		w.length[x] = 1 + min(int(200*math.Exp(0.8*r.NormFloat64())), 2047)
		all = append(all, x)
		w.at(at, func() []Action { return w.core.Arrive(w.now, x) })
	}
	return all
}

// TestGenerationUnderOverload: what each part of admission is for. By slots alone
// engines run out of cache and throw work away, and beyond what they can serve
// nearly every first token is late. With the cache they are not overcommitted; with
// prediction, too, those that are let in are in time.
func TestGenerationUnderOverload(t *testing.T) {
	const target = time.Second
	type outcome struct {
		evicted, inside int
		good, late      float64 // of all; of those with an answer
		tokens          int
	}
	run := func(seed uint64, rate float64, kv int, o Options) (out outcome) {
		o.KVTokens = kv
		w := newGenWorld(t, o)
		w.check = func() {
			for _, r := range w.core.replicas {
				sum := 0
				for _, b := range w.core.flying {
					if b.replica == r {
						sum += b.cache()
					}
				}
				if sum != r.kv || r.busy > r.Slots {
					t.Fatalf("%s: %d tokens promised, %d by its calls; %d of %d slots", r.ID, r.kv, sum, r.busy, r.Slots)
				}
			}
		}
		all := w.poisson(rand.New(rand.NewPCG(seed, 6)), rate, 60*time.Second)
		w.run()
		for _, e := range w.engines {
			out.evicted += e.evicted
			out.inside = max(out.inside, e.inside)
		}
		late := 0
		for _, x := range all {
			switch took, ok := w.first[x]; {
			case ok && took <= target:
				out.good++
			case ok:
				late++
			}
			if w.whole[x] > 0 {
				out.tokens += w.length[x]
			}
		}
		out.late = float64(late) / max(1, out.good+float64(late))
		out.good /= float64(len(all))
		s := w.core.Signals(w.now)
		if s.BusySlots != 0 || s.Engines.KVKept != 0 || s.Engines.Prefilling != 0 {
			t.Errorf("left over: %+v", s.Engines)
		}
		t.Logf("seed %d, %2.0f/s, kv %5d, target %v: %d evicted, %d waited inside, good %.3f, late %.3f, %d tokens; refused %v", seed, rate, kv, o.Target, out.evicted, out.inside, out.good, out.late, out.tokens, w.refused)
		return out
	}
	blind := Options{Model: "m", MaxQueue: 1 << 20}
	prudent := blind
	prudent.Target = target
	for seed := range uint64(3) {
		// the engines serve about 11 a second
		if got := run(seed, 7, 12_000, prudent); got.good < 0.95 {
			t.Errorf("seed %d: below the knee %.3f are good, want 0.95", seed, got.good)
		}
		without, with, whole := run(seed, 24, 0, blind), run(seed, 24, 12_000, blind), run(seed, 24, 12_000, prudent)
		if without.evicted < 100 || with.evicted+whole.evicted > 3 {
			t.Errorf("seed %d: %d evicted by slots alone, %d and %d with the cache, want more than 100, at most 3", seed, without.evicted, with.evicted, whole.evicted)
		}
		if with.tokens < without.tokens {
			t.Errorf("seed %d: %d tokens served with the cache, %d by slots alone", seed, with.tokens, without.tokens)
		}
		if with.late < 0.8 || whole.late > 0.1 || whole.good < 5*with.good {
			t.Errorf("seed %d: late %.3f and good %.3f without prediction, %.3f and %.3f with it, want 0.8, at most 0.1, five times the good", seed, with.late, with.good, whole.late, whole.good)
		}
	}
}
