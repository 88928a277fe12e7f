package pool

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sony/gobreaker/v2"

	"aloft/backends"
)

// events is a body that hands out events and knows its length.
type events struct{ io.ReadCloser }

func (events) Len() int { return 3 }

func (events) NextEvent() ([]byte, bool, error) { return []byte("x"), true, nil }

func (events) Close() error { return nil }

type answering struct{ body io.ReadCloser }

func (a answering) Do(context.Context, *backends.Call) (*backends.Reply, error) {
	return &backends.Reply{Status: 200, Body: a.body}, nil
}

// What an engine's body offers besides Read is kept, and its end is counted.
func TestTrackedKeepsWhatABodyOffers(t *testing.T) {
	for _, tc := range []struct {
		body   io.ReadCloser
		events bool
		size   int
	}{{events{}, true, 3}, {io.NopCloser(nil), false, -1}} {
		tr := track(answering{tc.body}, func() {}, func() {})
		reply, err := tr.Do(t.Context(), &backends.Call{})
		if err != nil {
			t.Fatal(err)
		}
		r, ok := reply.Body.(backends.EventReader)
		if n := reply.Body.(backends.Sized).Len(); ok != tc.events || n != tc.size {
			t.Errorf("%T: events %v, size %d; want %v, %d", tc.body, ok, n, tc.events, tc.size)
		}
		if ok {
			if e, more, err := r.NextEvent(); string(e) != "x" || !more || err != nil {
				t.Errorf("%s %v %v", e, more, err)
			}
		}
		if n := tr.outstanding(); n != 1 {
			t.Errorf("%d outstanding, want 1", n)
		}
		reply.Body.Close()
		if n := tr.outstanding(); n != 0 {
			t.Errorf("%d outstanding after the end", n)
		}
	}
}

// afterFunc is a context like the gateway's: it calls back by itself.
type afterFunc struct {
	context.Context
	stop func() bool
}

func (a afterFunc) AfterFunc(func()) func() bool { return a.stop }

// tying is a backend that ties itself to its context as backends/openaihttp does.
type tying struct {
	reply backends.Reply
	abort func()
	stop  func() bool
}

func (b *tying) Do(ctx context.Context, _ *backends.Call) (*backends.Reply, error) {
	b.stop = ctx.(interface{ AfterFunc(func()) func() bool }).AfterFunc(b.abort)
	b.reply.Status, b.reply.Body = 200, b
	return &b.reply, nil
}

func (b *tying) Read([]byte) (int, error) { return 0, io.EOF }
func (b *tying) Close() error             { b.stop(); return nil }

// A call costs its own record, and the way to untie it.
func TestTrackedAllocations(t *testing.T) {
	for name, tc := range map[string]struct {
		b    backends.Backend
		most float64
	}{
		"in memory":            {answering{events{}}, 2}, // one is answering's reply
		"tied to its context":  {&tying{abort: func() {}}, 2},
		"refused, not counted": {refusing{}, 2},
	} {
		tr := track(tc.b, func() {}, func() {})
		ctx := afterFunc{context.Background(), func() bool { return true }}
		var caller context.Context = ctx
		var request backends.Call
		if n := testing.AllocsPerRun(100, func() {
			if reply, err := tr.Do(caller, &request); err == nil {
				reply.Body.Close()
			}
		}); n > tc.most {
			t.Errorf("%s: %v allocations, want at most %v", name, n, tc.most)
		}
	}
}

// The circuit is that of a breaker which is asked before every call and told of
// every end, however the calls overlap.
func TestCircuitIsTheBreakers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := map[gobreaker.State]int{}
		for seed := range uint64(300) {
			r := rand.New(rand.NewPCG(seed, 1))
			plain := gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
				Timeout:     breakerOpen,
				ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= 5 },
				IsExcluded:  func(err error) bool { return err == errLeft },
			})
			tr := track(refusing{}, func() {}, func() {})
			type pair struct {
				c      *call
				report func(error)
			}
			var flying []pair
			bad := r.IntN(10) // failures in ten, for now
			for step := range 300 {
				switch n := r.IntN(20); {
				case n == 0:
					time.Sleep(time.Duration(r.IntN(2500)) * time.Millisecond)
				case n == 1:
					bad = r.IntN(11)
				case n < 10 || len(flying) == 0:
					c := &call{Context: t.Context(), t: tr}
					report, err := plain.Allow()
					if in := tr.enter(c); in != (err == nil) {
						t.Fatalf("seed %d, step %d: let through %v, want %v", seed, step, in, err)
					} else if in {
						flying = append(flying, pair{c, report})
					}
				default:
					i := r.IntN(len(flying))
					p := flying[i]
					flying = slices.Delete(flying, i, i+1)
					var err error
					if r.IntN(10) < bad {
						err = backends.ErrConnect
					}
					if r.IntN(10) == 0 {
						err = errLeft
					}
					p.report(err)
					tr.ended(p.c, err, err != nil)
					p.c.leave()
				}
				if r.IntN(3) == 0 { // asking moves it, too
					if got, want := tr.open(), plain.State() == gobreaker.StateOpen; got != want {
						t.Fatalf("seed %d, step %d: open %v, want %v", seed, step, got, want)
					}
					seen[plain.State()]++
				}
			}
		}
		if len(seen) != 3 {
			t.Errorf("states seen: %v, want all three", seen)
		}
	})
}

type refusing struct{}

func (refusing) Do(context.Context, *backends.Call) (*backends.Reply, error) {
	return nil, backends.ErrConnect
}

// note is a context key of these tests.
type note struct{}

// At the cut whoever waits for a call's end hears of it, once tied and not yet
// untied, with the reason; the caller's own end comes through as before.
func TestTrackedContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var in context.Context
		tr := track(seeing{&in}, func() {}, func() {})
		caller, leave := context.WithCancelCause(context.WithValue(t.Context(), note{}, "value"))
		reply, err := tr.Do(caller, &backends.Call{})
		if err != nil {
			t.Fatal(err)
		}
		defer reply.Body.Close()
		child, stop := context.WithTimeout(in, time.Hour)
		defer stop()
		told, untied := 0, 0
		in.(*call).AfterFunc(func() { told++ })
		free := in.(*call).AfterFunc(func() { untied++ })
		if !free() || free() {
			t.Error("untied not once")
		}
		if in.Err() != nil || in.Value(note{}) != "value" {
			t.Errorf("before: %v %v", in.Err(), in.Value(note{}))
		}
		ended, end := context.WithCancel(t.Context())
		end()
		tr.drain(ended)
		if told != 1 || untied != 0 {
			t.Errorf("told %d times, want 1; untied ones %d, want 0", told, untied)
		}
		for name, ctx := range map[string]context.Context{"call": in, "child": child} {
			select {
			case <-ctx.Done():
			default:
				t.Errorf("%s is not done", name)
			}
			if got := context.Cause(ctx); got != errCut {
				t.Errorf("%s: cause %v, want %v", name, got, errCut)
			}
		}
		late := false
		in.(*call).AfterFunc(func() { late = true })
		synctest.Wait()
		if !late {
			t.Error("nobody told who came after the cut")
		}

		tr.reset()
		gone, err := tr.Do(caller, &backends.Call{})
		if err != nil {
			t.Fatal(err)
		}
		done := in.Done()
		why := errors.New("client left")
		leave(why)
		<-done
		if !errors.Is(in.Err(), context.Canceled) || context.Cause(in) != why {
			t.Errorf("caller left: %v, cause %v", in.Err(), context.Cause(in))
		}
		gone.Body.Close()
		gone.Body.Close() // counted once
		if n := tr.outstanding(); n != 1 {
			t.Errorf("%d outstanding, want the first", n)
		}
	})
}

// seeing keeps the context that it gets.
type seeing struct{ ctx *context.Context }

func (s seeing) Do(ctx context.Context, _ *backends.Call) (*backends.Reply, error) {
	*s.ctx = ctx
	return &backends.Reply{Status: 200, Body: io.NopCloser(strings.NewReader("x"))}, nil
}
