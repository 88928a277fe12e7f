package batcher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"aloft/backends"
)

// closing counts the bodies that are open.
type closing struct {
	io.Reader
	open *atomic.Int64
	ctx  context.Context
	t    *testing.T
	done atomic.Bool
}

func (c *closing) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.Reader.Read(p)
}

func (c *closing) Close() error {
	if !c.done.Swap(true) {
		c.open.Add(-1)
	}
	return nil
}

// hedged runs warm calls of 10 to 12 ms on a, then one that hangs there, and returns
// what that one's caller got.
func hedged(t *testing.T, o Options, second func(ctx context.Context) error, after time.Duration) (*backends.Reply, Signals, error) {
	var open atomic.Int64
	var slow atomic.Bool
	var calls atomic.Int64
	ok := func(ctx context.Context) *backends.Reply {
		open.Add(1)
		return &backends.Reply{Status: 200, Body: &closing{Reader: bytes.NewReader([]byte("{}")), open: &open, ctx: ctx, t: t}}
	}
	a := scripted(func(ctx context.Context) (*backends.Reply, error) {
		took := 10 * time.Millisecond
		if calls.Add(1) <= 10 {
			took = 12 * time.Millisecond // the p95; before there is credit for a hedge
		}
		if slow.Load() {
			took = after
		}
		select {
		case <-time.After(took):
			return ok(ctx), nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	})
	b2 := scripted(func(ctx context.Context) (*backends.Reply, error) {
		if err := second(ctx); err != nil {
			return nil, err
		}
		return ok(ctx), nil
	})
	b := start(t, o, Replica{ID: "a", Slots: 4, Shape: "s", Index: 0, Backend: a}, Replica{ID: "b", Slots: 4, Shape: "s", Index: 1, Backend: b2})
	defer stop(t, b)
	req := &backends.Request{ID: "g", Endpoint: backends.Chat, Body: []byte(`{}`), Tokens: 10}
	for range 24 { // 1.2 hedges of credit
		got, err := b.Submit(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		got.Body.Close()
	}
	slow.Store(true)
	got, err := b.Submit(t.Context(), req)
	if err == nil {
		if text, err := io.ReadAll(got.Body); err != nil || string(text) != "{}" {
			t.Errorf("read %q, %v", text, err)
		}
		got.Body.Close()
	}
	synctest.Wait()
	s := b.Signals(time.Now())
	if open.Load() != 0 || s.BusySlots != 0 || len(b.core.flying) != 0 || len(b.seconds) != 0 || len(b.core.hedges.waiting) != 0 {
		t.Errorf("left over: %d bodies, %d slots, %d calls", open.Load(), s.BusySlots, len(b.core.flying))
	}
	return got, s, err
}

func TestHedge(t *testing.T) {
	wait := func(d time.Duration, err error) func(context.Context) error {
		return func(ctx context.Context) error {
			select {
			case <-time.After(d):
				return err
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
	for _, tc := range []struct {
		name   string
		hedge  bool
		second func(context.Context) error
		after  time.Duration
		from   string
		took   time.Duration
		hedged bool
	}{
		{"off", false, wait(0, nil), time.Second, "a", time.Second, false},
		{"the second wins", true, wait(ms(5), nil), time.Second, "b", ms(17), true},
		{"the first wins", true, wait(time.Second, nil), ms(30), "a", ms(30), true},
		{"the second fails", true, wait(ms(5), backends.ErrConnect), ms(30), "a", ms(30), true},
		{"both at once", true, wait(ms(20), nil), ms(30), "", ms(30), true},
		{"quick enough", true, wait(0, nil), ms(9), "a", ms(9), false},
	} {
		synctest.Test(t, func(t *testing.T) {
			begin := time.Now()
			got, s, err := hedged(t, Options{Model: "m", Hedge: tc.hedge}, tc.second, tc.after)
			if err != nil {
				t.Fatalf("%s: %v", tc.name, err)
			}
			took := time.Since(begin) - 260*time.Millisecond
			if tm := got.Timing; tc.from != "" && tm.Replica != tc.from || tm.Hedged != tc.hedged || took != tc.took || tm.Queue != 0 {
				t.Errorf("%s: after %v, %+v; want %v from %q", tc.name, took, tm, tc.took, tc.from)
			}
			if c := s.Class[0]; c.Done != 25 || c.Failed+c.Cancelled != 0 || (s.Calls.Hedged == 1) != tc.hedged || s.Calls.Retried != 0 {
				t.Errorf("%s: %+v, %+v", tc.name, c, s.Calls)
			}
		})
	}
}

// TestHedgeStorm: every caller gets one answer or one error, every body is
// closed, and the extra load stays below its bound.
func TestHedgeStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(*seed, 2))
		var mu sync.Mutex
		roll := func(n int) int { mu.Lock(); defer mu.Unlock(); return random.IntN(n) }
		var open, calls atomic.Int64
		var rs []Replica
		for i := range 4 {
			r := Replica{ID: fmt.Sprint("r", i), Slots: 3, Shape: "s", Index: i, Offline: i == 3}
			if i < 2 {
				r.Adapters = []string{"lora"}
			}
			r.Backend = scripted(func(ctx context.Context) (*backends.Reply, error) {
				calls.Add(1)
				took := time.Duration(1+roll(5)) * time.Millisecond
				if roll(12) == 0 {
					took *= 20
				}
				select {
				case <-time.After(took):
				case <-ctx.Done():
					return nil, context.Cause(ctx)
				}
				switch roll(15) {
				case 0:
					return nil, backends.ErrConnect
				case 1:
					return nil, backends.ErrUnavailable
				case 2:
					return reply(400, "no"), nil
				}
				open.Add(1)
				return &backends.Reply{Status: 200, Body: &closing{Reader: bytes.NewReader([]byte("{}")), open: &open, ctx: ctx}}, nil
			})
			rs = append(rs, r)
		}
		b := start(t, Options{Model: "m", Hedge: true, Affinity: true, MaxQueue: 100, QueueTimeout: time.Second}, rs...)
		b.core.affinity = newAffinity(8)
		var wg sync.WaitGroup
		var hedged, short atomic.Int64
		for i := range 8 {
			wg.Go(func() {
				for range 300 {
					ctx, cancel := context.WithCancelCause(t.Context())
					leaves := roll(5) == 0
					if leaves {
						time.AfterFunc(time.Duration(roll(40))*time.Millisecond/4, func() { cancel(errLeft) })
					}
					r := &backends.Request{ID: "g", Endpoint: backends.Chat, Body: []byte(`{}`), Tokens: roll(100), Class: backends.Class(roll(3)), Tenant: fmt.Sprint(i % 3)}
					r.Stream = roll(4) == 0
					r.Place = backends.Placement{Session: uint64(roll(20)), Prefix: []uint64{uint64(1 + roll(3)), uint64(9 + roll(30))}}
					if roll(4) == 0 {
						r.Place.Adapter = "lora"
					}
					if !r.Stream {
						short.Add(1)
					}
					answer, err := b.Submit(ctx, r)
					var retry *backends.RetryError
					switch {
					case err == nil && answer.Status == 200:
						if r.Place.Adapter != "" && answer.Timing.Replica > "r1" {
							t.Errorf("adapter on %s", answer.Timing.Replica)
						}
						if answer.Timing.Hedged {
							hedged.Add(1)
						}
						if text, err := io.ReadAll(answer.Body); !leaves && (err != nil || string(text) != "{}") {
							t.Errorf("read %q, %v; replay with -seed=%d", text, err, *seed)
						}
						answer.Body.Close()
					case err == nil:
						answer.Body.Close()
					case errors.Is(err, errLeft) && leaves, errors.As(err, &retry), errors.Is(err, backends.ErrConnect):
					default:
						t.Errorf("%v; replay with -seed=%d", err, *seed)
					}
					cancel(nil)
					time.Sleep(time.Duration(roll(10)) * time.Millisecond)
				}
			})
		}
		wg.Wait()
		synctest.Wait()
		s := b.Signals(time.Now())
		if s.BusySlots != 0 || open.Load() != 0 || len(b.core.flying) != 0 || len(b.seconds) != 0 {
			t.Errorf("left over: %d slots, %d bodies, %d calls; replay with -seed=%d", s.BusySlots, open.Load(), len(b.core.flying), *seed)
		}
		if hedged.Load() == 0 || float64(s.Calls.Hedged) > hedgeShare*float64(short.Load()) {
			t.Errorf("%d answers hedged, %d second calls for %d short ones", hedged.Load(), s.Calls.Hedged, short.Load())
		}
		var sum Counters
		for _, c := range s.Class {
			sum.Arrived += c.Arrived
			sum.Done += c.Done + c.Shed + c.Expired + c.Refused + c.Failed + c.Cancelled
		}
		if sum.Arrived != 2400 || sum.Done != sum.Arrived {
			t.Errorf("%d arrived, %d ended; replay with -seed=%d", sum.Arrived, sum.Done, *seed)
		}
		stop(t, b)
	})
}
