package gateway

import (
	"context"
	"slices"
	"sync"
	"time"
)

// life is the context of an ask. It is a part of the ask, and costs nothing
// until somebody waits for it. Err is the cause itself, so that it is also
// context.Cause of every context made from it. The watcher sees to its limit.
type life struct {
	limit time.Time
	late  error // the cause when limit passes

	mu    sync.Mutex
	cause error // nil: it goes on
	done  chan struct{}
	after []*ending
	slot  [1]*ending // the first place of after: most have one at a time
	first ending     // of all: it is given out once, since who stops it may do so again
}

type ending struct{ f func() }

// Deadline implements context.Context.
func (l *life) Deadline() (time.Time, bool) { return l.limit, !l.limit.IsZero() }

// Value implements context.Context: it carries none.
func (l *life) Value(any) any { return nil }

// Err implements context.Context.
func (l *life) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

// Done implements context.Context.
func (l *life) Done() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done == nil {
		l.done = make(chan struct{})
		if l.cause != nil {
			close(l.done)
		}
	}
	return l.done
}

// AfterFunc calls f once l has ended, from the goroutine that ends it: f must
// not block; if l is over, from a goroutine of its own. With it context needs no goroutine to make a child.
func (l *life) AfterFunc(f func()) (stop func() bool) {
	l.mu.Lock()
	e := &l.first
	if e.f != nil {
		e = new(ending)
	}
	e.f = f
	over := l.cause != nil
	if !over {
		if l.after == nil {
			l.after = l.slot[:0]
		}
		l.after = append(l.after, e)
	}
	l.mu.Unlock()
	if over {
		// Not from here: context calls with the child locked, and f locks it. It does
		// not block, so nobody needs to wait for it.
		go f()
	}
	return func() bool { return l.forget(e) }
}

func (l *life) forget(e *ending) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.after, e)
	if i >= 0 {
		l.after = slices.Delete(l.after, i, i+1)
	}
	return i >= 0
}

// cancel ends l; only the first cause counts. nil: it is over in good order.
func (l *life) cancel(cause error) {
	if cause == nil {
		cause = context.Canceled
	}
	l.mu.Lock()
	if l.cause != nil {
		l.mu.Unlock()
		return
	}
	l.cause = cause
	if l.done != nil {
		close(l.done)
	}
	after := l.after
	l.after = nil
	l.mu.Unlock()
	for _, e := range after {
		e.f()
	}
}
