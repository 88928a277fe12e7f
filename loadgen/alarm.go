package loadgen

import (
	"context"
	"sync"
	"time"
)

// alarm wakes one goroutine at absolute times, until its context ends.
//
// The runtime's own timers go off up to 1 ms late on an idle Linux machine,
// since it sleeps in epoll_wait, which counts milliseconds. That is the whole
// of the send lag that we allow, so the kernel's finer timer is used where there
// is one (measured here at 300 wakes/s: median 0.95 ms late, and 0.15 ms).
//
// It does not spin or yield up to the time. On 2 busy cores beside a null server
// that brought the median from 0.10 ms to 0.01 ms and cost far more than it won:
// with yields in the last 150 µs, bounded to a tenth of the time, 2,000 requests/s
// were sent of 5,000, and unbounded no run came to its end. The runtime looks at
// its sockets when nothing else can run, and one that yields always can.
type alarm struct {
	ctx   context.Context
	timer *time.Timer
	early chan struct{} // of capacity 1: sleep is to return
	mu    sync.Mutex    // over fine, which sleep may give up while nudge uses it
	fine  *fineTimer    // nil: there is none
}

// newAlarm returns an alarm that uses the kernel's timer if it may and can.
func newAlarm(ctx context.Context, fine bool) *alarm {
	a := &alarm{ctx: ctx, timer: time.NewTimer(time.Hour), early: make(chan struct{}, 1)}
	a.timer.Stop()
	if fine {
		a.fine, _ = newFineTimer(ctx) // without one the timer does, less precisely
	}
	return a
}

// sleep returns nil at the given time, at once when it has passed and sooner
// after a nudge, or the cause of the context when that ends first.
func (a *alarm) sleep(until time.Time) error {
	if a.ctx.Err() != nil {
		return context.Cause(a.ctx)
	}
	d := time.Until(until)
	if d <= 0 {
		return nil
	}
	if a.fine != nil {
		err := a.fine.wait(d, a.early)
		if a.ctx.Err() != nil {
			return context.Cause(a.ctx)
		}
		if err == nil {
			return nil
		}
		a.coarse() // it does not work here
		d = time.Until(until)
	}
	a.timer.Reset(d)
	select {
	case <-a.timer.C:
		return nil
	case <-a.early:
		return nil
	case <-a.ctx.Done():
		return context.Cause(a.ctx)
	}
}

// nudge has sleep return now, or at once the next time. Any goroutine may.
func (a *alarm) nudge() {
	select {
	case a.early <- struct{}{}:
	default:
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fine != nil {
		a.fine.nudge()
	}
}

// coarse gives the kernel's timer up.
func (a *alarm) coarse() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fine != nil {
		a.fine.close()
		a.fine = nil
	}
}

func (a *alarm) close() {
	a.timer.Stop()
	a.coarse()
}
