package pool

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"aloft/backends"
)

// tracked counts a replica's calls in flight, so that draining knows when it is
// empty, breaks the circuit of a replica that keeps failing, and remembers how
// its last calls went.
type tracked struct {
	backends.Backend
	suspect func() // called once until judged, when its last calls look bad

	mu      sync.Mutex // guards what follows
	breaker *gobreaker.TwoStepCircuitBreaker[struct{}]
	circuit gobreaker.State // the breaker's, as of its last change
	changes int             // of circuit
	failing bool            // the breaker has counted a failure since the last success
	first   *call           // of those in flight
	running int             // how many those are
	idle    chan struct{}   // closed when draining and nothing runs
	closed  bool
	last    outcomes
	asked   bool // suspect was called
}

// breakerOpen is how long a failing replica gets no calls before one try.
const breakerOpen = 2 * time.Second

var (
	// errCut ends calls that outlast a drain; the client may try again.
	errCut = errors.New("replica drained before the call ended")
	// errLeft tells the breaker of a cancelled call: it says nothing about the engine.
	errLeft = errors.New("call cancelled")
)

// track wraps b; changed is called when the circuit opens or closes. Neither
// function may block.
func track(b backends.Backend, changed, suspect func()) *tracked {
	t := &tracked{Backend: b, idle: make(chan struct{}), suspect: suspect}
	t.breaker = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Timeout:     breakerOpen,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= 5 },
		OnStateChange: func(_ string, _, to gobreaker.State) { // t.mu is held
			t.circuit, t.failing = to, false
			t.changes++
			changed()
		},
		IsExcluded: func(err error) bool { return err == errLeft },
	})
	return t
}

// Do implements backends.Backend.
func (t *tracked) Do(ctx context.Context, request *backends.Call) (*backends.Reply, error) {
	c := &eventCall{call{Context: ctx, t: t}}
	if !t.enter(&c.call) {
		return nil, backends.ErrUnavailable
	}
	reply, err := t.Backend.Do(&c.call, request)
	switch {
	case err == nil:
		t.ended(&c.call, nil, reply.Status >= 500)
	case c.Err() != nil:
		t.ended(&c.call, errLeft, false)
	default:
		t.ended(&c.call, err, true)
	}
	if err != nil {
		c.leave()
		return nil, err
	}
	c.body, reply.Body = reply.Body, &c.call
	if _, ok := c.body.(backends.EventReader); ok {
		reply.Body = c
	}
	return reply, nil
}

// enter counts c among those in flight, unless the replica takes no calls. A
// closed circuit lets every call through: only another is asked.
func (t *tracked) enter(c *call) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	if t.circuit != gobreaker.StateClosed {
		report, err := t.breaker.Allow()
		if err != nil {
			return false
		}
		c.report = report
	}
	c.changes = t.changes
	if c.next = t.first; c.next != nil {
		c.next.prev = c
	}
	t.first = c
	t.running++
	return true
}

// ended tells of the end of c's Do, with the error that the breaker is to count.
func (t *tracked) ended(c *call, err error, failed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count(c, err)
	if err != errLeft {
		t.note(failed)
	}
}

// count reports to the breaker what makes a difference to it: in a closed circuit
// that is a failure, and the success after one, since it counts failures in a
// row. What began before the circuit last changed says nothing about it now.
func (t *tracked) count(c *call, err error) {
	switch {
	case c.report != nil:
		c.report(err)
	case c.changes != t.changes, err == errLeft, err == nil && !t.failing:
	default:
		t.failing = err != nil // before the report, which may open the circuit
		if report, no := t.breaker.Allow(); no == nil {
			report(err)
		}
	}
}

// note remembers how a call went; t.mu is held.
func (t *tracked) note(failed bool) {
	t.last.add(failed)
	if failed && !t.asked && t.last.bad() {
		t.asked = true
		t.suspect()
	}
}

// judged returns how the last calls went; suspect may be called again.
func (t *tracked) judged() outcomes {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asked = false
	return t.last
}

// forget begins the record of calls anew.
func (t *tracked) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = outcomes{}
}

func (t *tracked) outstanding() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.running
}

func (t *tracked) open() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.breaker.State() == gobreaker.StateOpen
}

// drain refuses new calls and waits for the running ones; when ctx ends first
// they are cut off and given a second to let go.
func (t *tracked) drain(ctx context.Context) {
	t.mu.Lock()
	t.closed = true
	if t.running == 0 {
		closeOnce(t.idle)
	}
	t.mu.Unlock()
	select {
	case <-t.idle:
		return
	case <-ctx.Done():
	}
	for _, f := range t.cut() {
		f()
	}
	select {
	case <-t.idle:
	case <-time.After(time.Second):
	}
}

// cut ends the contexts of all calls and returns what is to be told of it.
func (t *tracked) cut() (tell []func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := t.first; c != nil; c = c.next {
		c.cut.Store(true)
		for k := c.ties; k != nil; k = k.next {
			tell = append(tell, k.f)
		}
		c.ties = nil
	}
	return tell
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

// call is one call in flight, in one allocation: its place among the others, the
// context that the engine's adapter gets, which ends with the caller's or at the
// cut, and then the reply's body.
type call struct {
	context.Context // the caller's
	t               *tracked
	body            io.ReadCloser
	cut             atomic.Bool // set under t.mu

	// guarded by t.mu
	report     func(error) // the breaker's, of a call that it let through
	changes    int         // of the circuit, before the call
	prev, next *call
	left       bool
	ties       *tie // who wants to know of the end
	own        tie  // the first of them: most calls have one at a time

	once sync.Once
	done chan struct{}
}

// tie is a function to be called at the end of a call's context.
type tie struct {
	c    *call
	f    func()
	next *tie
	stop func() bool // unties it from the caller's context; nil: that has no end
}

// Err implements context.Context. After the cut it is the cause itself, and
// Value is empty, so that context.Cause finds it.
func (c *call) Err() error {
	if c.cut.Load() {
		return errCut
	}
	return c.Context.Err()
}

// Value implements context.Context.
func (c *call) Value(key any) any {
	if c.cut.Load() {
		return nil
	}
	return c.Context.Value(key)
}

// Done implements context.Context. Adapters that use AfterFunc do not need it.
func (c *call) Done() <-chan struct{} {
	c.once.Do(func() {
		c.done = make(chan struct{})
		c.AfterFunc(sync.OnceFunc(func() { close(c.done) }))
	})
	return c.done
}

// AfterFunc makes the context package and the adapters tie themselves to the
// call without a context, a channel or a goroutine in between. f must not block,
// and may run twice when the caller leaves at the moment of the cut.
func (c *call) AfterFunc(f func()) (stop func() bool) {
	c.t.mu.Lock()
	if c.cut.Load() {
		c.t.mu.Unlock()
		// Not here: context calls us with a lock of f's. f does not block, so
		// that its goroutine ends by itself at once and needs nobody to wait for it.
		go f()
		return func() bool { return false }
	}
	k := &c.own
	if k.c != nil {
		k = new(tie)
	}
	*k = tie{c: c, f: f, next: c.ties}
	c.ties = k
	c.t.mu.Unlock()
	k.stop = after(c.Context, f)
	return k.untie
}

// after is context.AfterFunc, but cheaper where the context can do it itself.
func after(ctx context.Context, f func()) (stop func() bool) {
	switch a, ok := ctx.(interface{ AfterFunc(func()) func() bool }); {
	case ok:
		return a.AfterFunc(f)
	case ctx.Done() != nil:
		return context.AfterFunc(ctx, f)
	}
	return nil
}

// untie reports whether f will not run any more.
func (k *tie) untie() bool {
	c := k.c
	c.t.mu.Lock()
	found := false
	for p := &c.ties; *p != nil; p = &(*p).next {
		if *p == k {
			*p, found = k.next, true
			break
		}
	}
	c.t.mu.Unlock()
	return (k.stop == nil || k.stop()) && found
}

// Read implements io.Reader.
func (c *call) Read(p []byte) (int, error) {
	n, err := c.body.Read(p)
	c.check(err)
	return n, err
}

// Len implements backends.Sized.
func (c *call) Len() int {
	if b, ok := c.body.(backends.Sized); ok {
		return b.Len()
	}
	return -1
}

// Close implements io.Closer.
func (c *call) Close() error {
	defer c.leave()
	return c.body.Close()
}

// check remembers an answer that broke off.
func (c *call) check(err error) {
	if err != nil && !errors.Is(err, io.EOF) && c.Err() == nil {
		c.t.mu.Lock()
		c.t.note(true)
		c.t.mu.Unlock()
	}
}

// leave takes the call out of those in flight, once.
func (c *call) leave() {
	t := c.t
	t.mu.Lock()
	if c.left {
		t.mu.Unlock()
		return
	}
	c.left = true
	if c.prev != nil {
		c.prev.next = c.next
	} else {
		t.first = c.next
	}
	if c.next != nil {
		c.next.prev = c.prev
	}
	c.prev, c.next = nil, nil
	ties := c.ties
	c.ties = nil
	if t.running--; t.closed && t.running == 0 {
		closeOnce(t.idle)
	}
	t.mu.Unlock()
	for ; ties != nil; ties = ties.next {
		if ties.stop != nil {
			ties.stop()
		}
	}
}

// eventCall is a call whose body hands out events.
type eventCall struct{ call }

// NextEvent implements backends.EventReader.
func (c *eventCall) NextEvent() (event []byte, more bool, err error) {
	event, more, err = c.body.(backends.EventReader).NextEvent()
	c.check(err)
	return event, more, err
}
