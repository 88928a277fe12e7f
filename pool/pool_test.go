package pool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"aloft/backends"
	"aloft/gpu"
)

// script is an engine and its launcher with fixed times and faults on cue.
type script struct {
	load, warm, wake time.Duration
	loadErr          error
	mu               sync.Mutex
	launched         []*scripted
}

type scripted struct {
	s       *script
	done    chan struct{}
	stopped sync.Once
	asleep  bool
	calls   chan struct{} // a call ends when this is closed
}

func (s *script) Launch(ctx context.Context, _ Launch) (Engine, error) {
	select {
	case <-time.After(s.load):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loadErr != nil {
		return nil, s.loadErr
	}
	e := &scripted{s: s, done: make(chan struct{}), calls: make(chan struct{})}
	s.launched = append(s.launched, e)
	return e, nil
}

func (e *scripted) Backend() backends.Backend { return e }
func (e *scripted) WarmUp(context.Context) error {
	time.Sleep(e.s.warm)
	return nil
}
func (e *scripted) Sleep(_ context.Context, asleep bool) error {
	if !asleep {
		time.Sleep(e.s.wake)
	}
	e.asleep = asleep
	return nil
}
func (e *scripted) Done() <-chan struct{} { return e.done }
func (e *scripted) Stop(time.Duration)    { e.stopped.Do(func() { close(e.done) }) }
func (e *scripted) Do(ctx context.Context, c *backends.Call) (*backends.Reply, error) {
	if c.Path == "/refuse" {
		return nil, backends.ErrConnect
	}
	select {
	case <-e.calls:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	return &backends.Reply{Status: 200, Body: io.NopCloser(strings.NewReader("ok"))}, nil
}

type world struct {
	*Pool
	mu     sync.Mutex
	events []string
	ready  map[string][]ReadyReplica
}

func build(t *testing.T, l Launcher) *world {
	t.Helper()
	w := &world{ready: map[string][]ReadyReplica{}}
	p, err := New(Options{
		Models: []Model{{Name: "m", Slots: 2}}, Launcher: l,
		Publish: func(model string, r []ReadyReplica) { w.mu.Lock(); w.ready[model] = r; w.mu.Unlock() },
		OnEvent: func(e Event) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.events = append(w.events, fmt.Sprintf("%s %s %v", e.Replica.ID, e.Replica.State, e.Took))
		},
		StartTimeout: 10 * time.Second, DrainTimeout: 5 * time.Second, StopGrace: time.Second,
		BackoffMin: time.Second, BackoffMax: 4 * time.Second,
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	w.Pool = p
	return w
}

func (w *world) state(id string) State {
	for _, r := range w.Replicas() {
		if r.ID == id {
			return r.State
		}
	}
	return Stopped
}

func (w *world) published() int { w.mu.Lock(); defer w.mu.Unlock(); return len(w.ready["m"]) }

var slice = gpu.Slice{ID: "g0/s0", Shape: gpu.Shape{Profile: "1g.10gb"}}

func TestReplicaGoesThroughItsStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{load: 2 * time.Second, warm: time.Second, wake: 300 * time.Millisecond}
		w := build(t, s)
		id, err := w.Start("m", slice, "")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2500 * time.Millisecond)
		if got := w.state(id); got != Warming || w.published() != 0 {
			t.Fatalf("after 2.5s: %s, %d published; want warming, 0", got, w.published())
		}
		time.Sleep(600 * time.Millisecond)
		if got := w.state(id); got != Ready || w.published() != 1 {
			t.Fatalf("after 3.1s: %s, %d published; want ready, 1", got, w.published())
		}
		must(t, w.Sleep(id))
		synctest.Wait()
		if got := w.state(id); got != Sleeping || w.published() != 0 || !s.launched[0].asleep {
			t.Fatalf("asleep: %s, %d published", got, w.published())
		}
		must(t, w.Wake(id))
		time.Sleep(2 * time.Second)
		if got := w.state(id); got != Ready {
			t.Fatalf("after wake: %s", got)
		}
		if got := w.Timings()[Step{"m", "wake"}]; got.P99 != 1300*time.Millisecond || got.Samples != 1 {
			t.Errorf("wake took %v in %d samples, want 1.3s (300ms and a warm-up of 1s) in 1", got.P99, got.Samples)
		}
		if got := w.Timings()[Step{"m", "start"}]; got.P50 != 3*time.Second {
			t.Errorf("start took %v, want 3s", got.P50)
		}
		must(t, w.Stop(id))
		synctest.Wait()
		if got := w.state(id); got != Stopped {
			t.Errorf("after stop: %s", got)
		}
		must(t, w.Close(t.Context()))
		if _, err := w.Start("m", slice, ""); !errors.Is(err, backends.ErrDraining) {
			t.Errorf("start after close: %v", err)
		}
	})
}

func TestDrainWaitsForCallsThenCutsThem(t *testing.T) {
	for _, tc := range []struct {
		name   string
		finish time.Duration
		want   error
		took   time.Duration
	}{
		{"call ends in time", 2 * time.Second, nil, 2 * time.Second},
		{"call outlasts the drain", time.Hour, errCut, 5 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &script{}
				w := build(t, s)
				id, _ := w.Start("m", slice, "")
				synctest.Wait()
				backend := w.ready["m"][0].Backend
				ended := make(chan error, 1)
				go func() {
					r, err := backend.Do(t.Context(), &backends.Call{})
					if err == nil {
						err = r.Body.Close()
					}
					ended <- err
				}()
				synctest.Wait()
				began := time.Now()
				must(t, w.Stop(id))
				synctest.Wait()
				if _, err := backend.Do(t.Context(), &backends.Call{}); !errors.Is(err, backends.ErrUnavailable) {
					t.Errorf("call to a draining replica: %v", err)
				}
				time.AfterFunc(tc.finish, func() { close(s.launched[0].calls) })
				if err := <-ended; !errors.Is(err, tc.want) {
					t.Errorf("call ended with %v, want %v", err, tc.want)
				}
				if took := time.Since(began); took != tc.took {
					t.Errorf("drained after %v, want %v", took, tc.took)
				}
				must(t, w.Close(t.Context()))
				time.Sleep(2 * tc.finish)
			})
		})
	}
}

func TestFailedReplicaRestartsWithBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{loadErr: errors.New("no such file: model.gguf")}
		w := build(t, s)
		id, _ := w.Start("m", slice, "")
		time.Sleep(1500 * time.Millisecond) // fails at 0, again at 1s
		if r := w.Replicas()[0]; r.State != Failed || r.Restarts != 1 || !strings.Contains(r.Error, "model.gguf") {
			t.Fatalf("after 1.5s: %+v", r)
		}
		s.mu.Lock()
		s.loadErr = nil
		s.mu.Unlock()
		time.Sleep(2 * time.Second) // next try at 3s
		if got := w.state(id); got != Ready {
			t.Fatalf("after 3.5s: %s, want ready", got)
		}
		s.launched[0].Stop(0) // the process dies
		synctest.Wait()
		if got := w.state(id); got != Failed || w.published() != 0 {
			t.Fatalf("after its process died: %s, %d published", got, w.published())
		}
		time.Sleep(1100 * time.Millisecond)
		if got := w.state(id); got != Ready {
			t.Fatalf("1.1s after its process died: %s, want ready", got)
		}
		must(t, w.Close(t.Context()))
	})
}

func TestStopWhileLoadingLeavesNoEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{warm: time.Second}
		w := build(t, s)
		id, _ := w.Start("m", slice, "")
		synctest.Wait() // warming
		must(t, w.Stop(id))
		time.Sleep(2 * time.Second)
		for i, e := range s.launched {
			select {
			case <-e.done:
			default:
				t.Errorf("engine %d still runs", i)
			}
		}
		must(t, w.Close(t.Context()))
	})
}

func TestSleeperSharesItsSliceWithOneBorrower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{}
		w := build(t, s)
		sleeper, _ := w.Start("m", slice, "")
		synctest.Wait()
		must(t, w.Sleep(sleeper))
		synctest.Wait()
		if _, err := w.Start("m", slice, "job_1"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for range 20 { // whichever replica of the slice is found first
			if _, err := w.Start("m", slice, "job_2"); err == nil {
				t.Fatal("a second borrower was let onto the slice")
			}
		}
		s.launched[0].Stop(0) // the sleeper's process dies: it must not come back beside the borrower
		time.Sleep(10 * time.Second)
		if got := w.state(sleeper); got != Stopped || len(s.launched) != 2 {
			t.Errorf("dead sleeper is %s after %d launches, want stopped, 2", got, len(s.launched))
		}
		must(t, w.Close(t.Context()))
	})
}

func TestBrokenReplicaIsTakenOutAndTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := build(t, &script{})
		_, _ = w.Start("m", slice, "")
		synctest.Wait()
		backend := w.ready["m"][0].Backend
		for range 5 {
			if _, err := backend.Do(t.Context(), &backends.Call{Path: "/refuse"}); !errors.Is(err, backends.ErrConnect) {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if n := w.published(); n != 0 {
			t.Fatalf("after 5 failures in a row %d published, want 0", n)
		}
		time.Sleep(breakerOpen + 20*time.Millisecond)
		if n := w.published(); n != 1 {
			t.Fatalf("after the break %d published, want 1", n)
		}
		must(t, w.Close(t.Context()))
	})
}

func TestLogNames(t *testing.T) {
	l := Launch{Replica: "Qwen/Qwen3-8B-1", Model: Model{Name: "Qwen/Qwen3-8B"}, Slice: slice}
	if got := logName(l); got != "Qwen-Qwen3-8B-1.log" {
		t.Errorf("serving: %s", got)
	}
	l.Offline = true
	if got := logName(l); got != "Qwen-Qwen3-8B@g0-s0.log" {
		t.Errorf("lent: %s", got)
	}
}

func TestBadAsksAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := build(t, &script{load: time.Second})
		id, _ := w.Start("m", slice, "")
		for name, err := range map[string]error{
			"unknown model": second(w.Start("x", slice, "")),
			"slice taken":   second(w.Start("m", slice, "")),
			"sleep loading": w.Sleep(id),
			"wake loading":  w.Wake(id),
			"no replica":    w.Stop("m-99"),
		} {
			if err == nil {
				t.Errorf("%s: no error", name)
			}
		}
		must(t, w.Close(t.Context()))
	})
}

func second(_ string, err error) error { return err }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
