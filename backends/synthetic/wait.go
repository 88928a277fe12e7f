package synthetic

import (
	"context"
	"time"
)

// timer waits until a time by the runtime's timers. They may be up to a
// millisecond late, since an idle runtime sleeps in epoll, which counts whole
// milliseconds.
func timer(ctx context.Context, until time.Time) error {
	d := time.Until(until)
	if d <= 0 {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
