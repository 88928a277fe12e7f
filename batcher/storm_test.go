package batcher

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"aloft/backends"
)

var (
	seed  = flag.Uint64("seed", 1, "seed of the random run")
	storm = flag.Int("storm", 2000, "requests of TestStorm")
)

var errLeft = errors.New("the caller left")

// TestSixtyCallers is F8 of docs/failures.md: many callers of a few texts
// each, one text that the engine refuses, some callers that leave.
func TestSixtyCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{alpha: 5 * time.Millisecond, beta: 10 * time.Microsecond}
		e.fault = func(_ int, inputs []string) (*backends.Reply, error) {
			if slices.ContainsFunc(inputs, func(s string) bool { return strings.HasPrefix(s, "bad") }) {
				return reply(400, `{"error":{"message":"bad text"}}`), nil
			}
			return nil, nil
		}
		b := start(t, Options{Model: "m", Merge: true, MaxBatchRows: 32, Target: time.Second}, rep("a", e), rep("b", e))
		defer stop(t, b)
		var wg sync.WaitGroup
		for i := range 60 {
			wg.Go(func() {
				var texts []string
				for j := range 1 + i%7 {
					texts = append(texts, fmt.Sprintf("caller %d text %d", i, j))
				}
				if i == 30 {
					texts[len(texts)-1] = "bad text"
				}
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				leaves := i%10 == 7
				if leaves {
					time.AfterFunc(time.Duration(i)*time.Millisecond/5, func() { cancel(errLeft) })
				}
				r := embedding(texts...)
				r.Base64 = i%3 == 0
				got, err := b.Submit(ctx, r)
				switch {
				case leaves && errors.Is(err, errLeft):
				case err != nil:
					t.Errorf("caller %d: %v", i, err)
				case i == 30:
					text, _ := io.ReadAll(got.Body)
					if got.Status != 400 || !strings.Contains(string(text), "bad text") {
						t.Errorf("bad caller got %d %s", got.Status, text)
					}
				default:
					if err := check(got, r.Base64, texts...); err != nil {
						t.Errorf("caller %d: %v", i, err)
					}
				}
			})
		}
		wg.Wait()
		if s := b.Signals(time.Now()).Class[0]; s.Refused != 1 {
			t.Errorf("%d refused, want the bad one alone: %+v", s.Refused, s)
		}
	})
}

// TestStorm runs random callers against replicas that err, hang up and come and
// go. Each caller gets exactly its own rows or one error that has a cause; when
// all is over nothing is left: the bubble ends only if every goroutine has.
func TestStorm(t *testing.T) {
	const callers = 50
	perCaller := *storm / callers
	synctest.Test(t, func(t *testing.T) {
		var faults atomic.Int64
		random := rand.New(rand.NewPCG(*seed, 0))
		var mu sync.Mutex
		roll := func(n int) int { mu.Lock(); defer mu.Unlock(); return random.IntN(n) }
		newEngine := func() *engine {
			e := &engine{alpha: 2 * time.Millisecond, beta: 5 * time.Microsecond}
			e.fault = func(_ int, inputs []string) (*backends.Reply, error) {
				switch roll(20) {
				case 0:
					faults.Add(1)
					return reply(503, `{"error":{}}`), nil
				case 1:
					faults.Add(1)
					return nil, fmt.Errorf("reset: %w", backends.ErrConnect)
				case 2:
					faults.Add(1)
					return reply(200, `{"data":[]}`), nil
				}
				if slices.Contains(inputs, "bad") {
					return reply(422, `{"error":{"message":"bad"}}`), nil
				}
				return nil, nil
			}
			return e
		}
		b := start(t, Options{Model: "m", Merge: true, MaxBatchRows: 16, MaxQueue: 30, QueueTimeout: 2 * time.Second, Target: 100 * time.Millisecond})
		ctx, over := context.WithCancel(t.Context())
		var churn sync.WaitGroup
		churn.Go(func() { // replicas come, go and are lent
			for n := 0; ctx.Err() == nil; n++ {
				var rs []Replica
				for i := range 1 + roll(4) {
					id := fmt.Sprint("r", (n+i)%6)
					rs = append(rs, Replica{ID: id, Backend: newEngine(), Slots: 1 + roll(2), Shape: fmt.Sprint("s", i%2), Index: i, Offline: i == 3, Adapters: []string{"lora"}[:i%2]})
				}
				if roll(8) == 0 {
					rs = nil
				}
				b.SetReplicas(rs)
				b.SetEta(float64(roll(3)) / 2)
				b.SetOfflineLimit(roll(20))
				b.Signals(time.Now())
				time.Sleep(time.Duration(1+roll(50)) * time.Millisecond)
			}
		})
		var got, refused, left, bad atomic.Int64
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() {
				for n := range perCaller {
					var texts []string
					rows := 1 + roll(4)
					if roll(8) == 0 { // more than one call takes
						rows += roll(30)
					}
					for j := range rows {
						texts = append(texts, fmt.Sprint("caller ", i, " request ", n, " row ", j))
					}
					isBad := roll(30) == 0
					if isBad {
						texts[roll(len(texts))] = "bad"
					}
					r := embedding(texts...)
					r.Class, r.Tenant, r.MergeKey = backends.Class(roll(3)), fmt.Sprint(i%5), fmt.Sprint(roll(2))
					r.Base64 = roll(2) == 0
					if roll(5) == 0 {
						r.Place.Adapter = "lora"
					}
					raw := roll(6) == 0
					if raw { // not merged: a call of its own
						r.Endpoint, r.Base64 = backends.Tokenize, false
					}
					ctx, cancel := context.WithCancelCause(t.Context())
					if roll(5) == 0 {
						time.AfterFunc(time.Duration(roll(100))*time.Millisecond, func() { cancel(errLeft) })
					}
					answer, err := b.Submit(ctx, r)
					var retry *backends.RetryError
					switch {
					case errors.Is(err, errLeft):
						left.Add(1)
					case errors.As(err, &retry), errors.Is(err, backends.ErrConnect), errors.Is(err, backends.ErrBadReply):
						refused.Add(1)
					case err != nil:
						t.Errorf("caller %d request %d: %v; replay with -seed=%d", i, n, err, *seed)
					case answer.Status == 503:
						refused.Add(1)
					case answer.Status == 422 && isBad:
						bad.Add(1)
					case isBad && !raw:
						t.Errorf("caller %d request %d: bad text got status %d; replay with -seed=%d", i, n, answer.Status, *seed)
					default:
						if err := check(answer, r.Base64, texts...); err != nil && !(raw && strings.HasPrefix(err.Error(), "0 rows")) { // relayed as the engine gave it
							t.Errorf("caller %d request %d: %v; replay with -seed=%d", i, n, err, *seed)
						}
						got.Add(1)
					}
					cancel(nil)
				}
			})
		}
		wg.Wait()
		over()
		churn.Wait()
		b.SetReplicas([]Replica{rep("last", newEngine())})
		s := b.Signals(time.Now())
		var sum Counters
		for _, c := range s.Class {
			sum.Arrived += c.Arrived
			sum.Done += c.Done + c.Shed + c.Expired + c.Refused + c.Failed + c.Cancelled
			if c.Queue != 0 || c.Rows != 0 || c.Tokens != 0 {
				t.Errorf("left in the queue: %+v; replay with -seed=%d", c, *seed)
			}
		}
		if sum.Arrived != uint64(callers*perCaller) || sum.Done != sum.Arrived {
			t.Errorf("%d arrived, %d ended, want %d; replay with -seed=%d", sum.Arrived, sum.Done, callers*perCaller, *seed)
		}
		stop(t, b)
		if got.Load() < int64(callers*perCaller/3) || faults.Load() == 0 || left.Load() == 0 || bad.Load() == 0 {
			t.Errorf("%d answered, %d refused, %d left, %d bad, %d faults: not much of a storm", got.Load(), refused.Load(), left.Load(), bad.Load(), faults.Load())
		}
		t.Logf("%d answered, %d refused, %d left, %d bad, %d faults", got.Load(), refused.Load(), left.Load(), bad.Load(), faults.Load())
	})
}

// stream is a generation's body that ends after some reads and can be closed.
type stream struct {
	ctx    context.Context
	left   int
	closed atomic.Bool
}

func (s *stream) Read(p []byte) (int, error) {
	if s.left--; s.left < 0 {
		return 0, io.EOF
	}
	select {
	case <-time.After(time.Millisecond):
		return copy(p, "data: x\n\n"), nil
	case <-s.ctx.Done():
		return 0, context.Cause(s.ctx)
	}
}

func (s *stream) Close() error {
	if s.closed.Swap(true) {
		panic("BUG: body closed twice")
	}
	return nil
}

// TestGenerationStorm: slots are never exceeded and all come back.
func TestGenerationStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(*seed, 1))
		var mu sync.Mutex
		roll := func(n int) int { mu.Lock(); defer mu.Unlock(); return random.IntN(n) }
		const slots = 3
		var rs []Replica
		var open []*stream
		for i := range 3 {
			rs = append(rs, Replica{ID: fmt.Sprint("r", i), Slots: slots, Shape: "s", Index: i, Offline: i == 2, Backend: scripted(func(ctx context.Context) (*backends.Reply, error) {
				select {
				case <-time.After(time.Duration(roll(5)) * time.Millisecond):
				case <-ctx.Done():
					return nil, context.Cause(ctx)
				}
				switch roll(10) {
				case 0:
					return nil, backends.ErrConnect
				case 1:
					return reply(503, "busy"), nil
				case 2:
					return reply(400, "no"), nil
				}
				s := &stream{ctx: ctx, left: roll(20) + roll(10)/9*200}
				mu.Lock()
				open = append(open, s)
				mu.Unlock()
				return &backends.Reply{Status: 200, ContentType: "text/event-stream", Body: s}, nil
			})})
		}
		b := start(t, Options{Model: "m", MaxQueue: 1000, QueueTimeout: time.Second, Target: 200 * time.Millisecond}, rs...)
		var wg sync.WaitGroup
		over, stopReading := context.WithCancel(t.Context())
		var reading sync.WaitGroup
		reading.Go(func() { // engines speak, and fall silent
			for over.Err() == nil {
				b.SetReading(fmt.Sprint("r", roll(4)), backends.Reading{Running: roll(5), Waiting: roll(5), KVTokens: roll(2) * 400, KVUsage: float64(roll(12)) / 10})
				time.Sleep(time.Duration(roll(100)+roll(50)/49*4000) * time.Millisecond)
			}
		})
		for i := range 60 {
			wg.Go(func() {
				for range 20 {
					ctx, cancel := context.WithCancelCause(t.Context())
					if roll(4) == 0 {
						time.AfterFunc(time.Duration(roll(40))*time.Millisecond, func() { cancel(errLeft) })
					}
					r := &backends.Request{ID: "g", Endpoint: backends.Chat, Body: []byte(`{}`), Stream: true, Tokens: roll(100), Class: backends.Class(roll(3)), Tenant: fmt.Sprint(i % 3)}
					answer, err := b.Submit(ctx, r)
					if err == nil {
						if roll(3) > 0 {
							io.Copy(io.Discard, answer.Body)
						}
						answer.Body.Close()
					} else if answer != nil {
						t.Error("an answer and an error")
					}
					if s := b.Signals(time.Now()); s.BusySlots > s.Slots {
						t.Errorf("%d of %d slots busy; replay with -seed=%d", s.BusySlots, s.Slots, *seed)
					}
					b.mu.Lock()
					for _, r := range b.core.byID {
						kv := 0
						for _, s := range r.seats {
							kv += s.cache()
						}
						if kv != r.kv || len(r.seats) != r.busy || len(r.prefills) > r.busy {
							t.Errorf("%s: %d calls, %d seats, %d prompts, %d tokens promised, %d by the seats; replay with -seed=%d", r.ID, r.busy, len(r.seats), len(r.prefills), r.kv, kv, *seed)
						}
					}
					b.mu.Unlock()
					cancel(nil)
				}
			})
		}
		wg.Wait()
		stopReading()
		reading.Wait()
		s := b.Signals(time.Now())
		for _, r := range b.core.byID {
			if r.kv != 0 || len(r.seats) != 0 || len(r.prefills) != 0 {
				t.Errorf("%s: %d tokens promised to nobody, %d seats, %d prompts; replay with -seed=%d", r.ID, r.kv, len(r.seats), len(r.prefills), *seed)
			}
		}
		t.Logf("holds %v, drops %v", s.Calls.Holds, s.Calls.Drops)
		if s.BusySlots != 0 || len(b.core.flying) != 0 || s.Load.Requests == 0 && s.First.Samples == 0 {
			t.Errorf("left over: %d slots, %d calls; replay with -seed=%d", s.BusySlots, len(b.core.flying), *seed)
		}
		for _, o := range open {
			if !o.closed.Load() {
				t.Errorf("a body was never closed; replay with -seed=%d", *seed)
			}
		}
		stop(t, b)
	})
}

func TestGenerationIsTriedOnceElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls []string
		on := func(id string, r func() (*backends.Reply, error)) Replica {
			return Replica{ID: id, Slots: 1, Shape: "s", Backend: scripted(func(context.Context) (*backends.Reply, error) {
				calls = append(calls, id)
				return r()
			})}
		}
		down := func() (*backends.Reply, error) { return nil, backends.ErrConnect }
		busy := func() (*backends.Reply, error) { return reply(503, "overloaded"), nil }
		fine := func() (*backends.Reply, error) { return reply(200, "{}"), nil }
		req := &backends.Request{ID: "g", Endpoint: backends.Chat, Body: []byte(`{}`)}
		for _, tc := range []struct {
			name string
			rs   []Replica
			want string // calls, then status or error
		}{
			{"connect", []Replica{on("a", down), on("b", fine)}, "[a b] 200"},
			{"503", []Replica{on("a", busy), on("b", fine)}, "[a b] 200"},
			{"both down", []Replica{on("a", down), on("b", down), on("c", fine)}, "[a b] replica b: engine unreachable"},
			{"503 twice is the engine's answer", []Replica{on("a", busy), on("b", busy)}, "[a b] 503"},
			{"only one", []Replica{on("a", down)}, "[a] replica a: engine unreachable"},
		} {
			calls = nil
			b := start(t, Options{Model: "m"}, tc.rs...)
			got, err := b.Submit(t.Context(), req)
			end := fmt.Sprint(err)
			if err == nil {
				end = fmt.Sprint(got.Status)
				got.Body.Close()
			}
			if s := fmt.Sprint(calls, " ", end); s != tc.want {
				t.Errorf("%s: %s, want %s", tc.name, s, tc.want)
			}
			stop(t, b)
		}
	})
}

func TestCloseDrainsOrGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{alpha: time.Second}
		b := start(t, Options{Model: "m", Merge: true}, rep("a", e))
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				got, err := b.Submit(t.Context(), embedding("x"))
				if err != nil {
					t.Error(err)
				} else if err := check(got, false, "x"); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(10 * time.Millisecond)
		stop(t, b)
		wg.Wait()
		if _, err := b.Submit(t.Context(), embedding("late")); !errors.Is(err, backends.ErrDraining) {
			t.Errorf("after close: %v, want ErrDraining", err)
		}
		if s := b.Signals(time.Now()); s.Model != "" {
			t.Errorf("after close: %+v", s)
		}

		b = start(t, Options{Model: "m", Merge: true}, rep("a", &engine{alpha: time.Hour}))
		for i := range 3 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				if _, err := b.Submit(t.Context(), embedding("x")); !errors.Is(err, backends.ErrDraining) {
					t.Errorf("caller %d: %v, want ErrDraining", i, err)
				}
			})
		}
		time.Sleep(10 * time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		if err := b.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != time.Second {
			t.Errorf("close: %v after %v, want the deadline after 1 s", err, time.Since(begin))
		}
		wg.Wait()
	})
}
