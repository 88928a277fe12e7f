package pool

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"

	"aloft/backends"
)

// tracked counts a replica's calls in flight, so that draining knows when it is
// empty, and breaks the circuit of a replica that keeps failing.
type tracked struct {
	backends.Backend
	breaker *gobreaker.TwoStepCircuitBreaker[struct{}]

	mu      sync.Mutex
	running map[*call]struct{}
	idle    chan struct{} // closed when draining and nothing runs
	closed  bool
}

type call struct{ cancel context.CancelCauseFunc }

// breakerOpen is how long a failing replica gets no calls before one try.
const breakerOpen = 2 * time.Second

// errCut ends calls that outlast a drain; the client may try again.
var errCut = errors.New("replica drained before the call ended")

// track wraps b; changed is called when the circuit opens or closes.
func track(b backends.Backend, changed func()) *tracked {
	return &tracked{
		Backend: b, running: map[*call]struct{}{}, idle: make(chan struct{}),
		breaker: gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
			Timeout:       breakerOpen,
			ReadyToTrip:   func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= 5 },
			OnStateChange: func(string, gobreaker.State, gobreaker.State) { changed() },
		}),
	}
}

// Do implements backends.Backend.
func (t *tracked) Do(ctx context.Context, c *backends.Call) (*backends.Reply, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	k := &call{cancel: cancel}
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		cancel(nil)
		return nil, backends.ErrUnavailable
	}
	t.running[k] = struct{}{}
	t.mu.Unlock()
	report, err := t.breaker.Allow()
	if err != nil {
		t.release(k)
		return nil, backends.ErrUnavailable
	}
	reply, err := t.Backend.Do(ctx, c)
	if err != nil && ctx.Err() != nil {
		report(nil) // cancelled: says nothing about the engine
	} else {
		report(err)
	}
	if err != nil {
		t.release(k)
		return nil, err
	}
	body := &releasingEvents{releasing{ReadCloser: reply.Body, release: sync.OnceFunc(func() { t.release(k) })}}
	if _, ok := reply.Body.(backends.EventReader); ok {
		reply.Body = body
	} else {
		reply.Body = &body.releasing
	}
	return reply, nil
}

type releasing struct {
	io.ReadCloser
	release func()
}

func (r *releasing) Close() error {
	defer r.release()
	return r.ReadCloser.Close()
}

// Len implements backends.Sized.
func (r *releasing) Len() int {
	if b, ok := r.ReadCloser.(backends.Sized); ok {
		return b.Len()
	}
	return -1
}

// releasingEvents is one whose body hands out events.
type releasingEvents struct{ releasing }

// NextEvent implements backends.EventReader.
func (r *releasingEvents) NextEvent() (event []byte, more bool, err error) {
	return r.ReadCloser.(backends.EventReader).NextEvent()
}

func (t *tracked) release(k *call) {
	k.cancel(nil)
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.running, k)
	if t.closed && len(t.running) == 0 {
		closeOnce(t.idle)
	}
}

func (t *tracked) outstanding() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.running)
}

func (t *tracked) open() bool { return t.breaker.State() == gobreaker.StateOpen }

// drain refuses new calls and waits for the running ones; when ctx ends first
// they are cancelled and given a second to let go.
func (t *tracked) drain(ctx context.Context) {
	t.mu.Lock()
	t.closed = true
	if len(t.running) == 0 {
		closeOnce(t.idle)
	}
	t.mu.Unlock()
	select {
	case <-t.idle:
		return
	case <-ctx.Done():
	}
	t.mu.Lock()
	for k := range t.running {
		k.cancel(errCut)
	}
	t.mu.Unlock()
	select {
	case <-t.idle:
	case <-time.After(time.Second):
	}
}

// reset takes calls again, after a sleep.
func (t *tracked) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed, t.idle = false, make(chan struct{})
}

func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}
