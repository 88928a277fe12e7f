package loadgen

import (
	"context"
	"time"
)

// alarm wakes one goroutine at absolute times, until its context ends.
//
// The runtime's own timers go off up to 1 ms late on an idle Linux machine,
// since it sleeps in epoll_wait, which counts milliseconds. That is the whole
// of the send lag that we allow, so the kernel's finer timer is used where there
// is one (measured here at 300 wakes/s: median 0.95 ms late, and 0.15 ms).
type alarm struct {
	ctx   context.Context
	timer *time.Timer
	fine  *fineTimer // nil: there is none
}

// newAlarm returns an alarm that uses the kernel's timer if it may and can.
func newAlarm(ctx context.Context, fine bool) *alarm {
	a := &alarm{ctx: ctx, timer: time.NewTimer(time.Hour)}
	a.timer.Stop()
	if fine {
		a.fine, _ = newFineTimer(ctx) // without one the timer does, less precisely
	}
	return a
}

// sleep returns nil at the given time, at once when it has passed, or the cause
// of the context when that ends first.
func (a *alarm) sleep(until time.Time) error {
	if a.ctx.Err() != nil {
		return context.Cause(a.ctx)
	}
	d := time.Until(until)
	if d <= 0 {
		return nil
	}
	if a.fine != nil {
		err := a.fine.wait(d)
		if a.ctx.Err() != nil {
			return context.Cause(a.ctx)
		}
		if err == nil {
			return nil
		}
		a.fine.close() // it does not work here: the coarse one from now on
		a.fine, d = nil, time.Until(until)
	}
	a.timer.Reset(d)
	select {
	case <-a.timer.C:
		return nil
	case <-a.ctx.Done():
		return context.Cause(a.ctx)
	}
}

func (a *alarm) close() {
	a.timer.Stop()
	if a.fine != nil {
		a.fine.close()
	}
}
