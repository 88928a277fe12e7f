package loadgen

import (
	"context"
	"time"
)

// alarm wakes one goroutine at absolute times.
type alarm struct{ timer *time.Timer }

func newAlarm() *alarm {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &alarm{timer: t}
}

// sleep returns nil at the given time, at once when it has passed, or the cause
// of ctx when that ends first.
func (a *alarm) sleep(ctx context.Context, until time.Time) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	d := time.Until(until)
	if d <= 0 {
		return nil
	}
	a.timer.Reset(d)
	select {
	case <-a.timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (a *alarm) close() { a.timer.Stop() }
