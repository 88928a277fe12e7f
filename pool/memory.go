package pool

import (
	"context"
	"fmt"
	"time"
)

// freeEvery is the time between two measurements of a slice. The driver is asked
// for each, and takes milliseconds.
const freeEvery = 100 * time.Millisecond

// room waits until the slice has the free memory that the model needs, measured:
// a driver gives memory back some time after the process that held it has ended,
// and an engine may say that it sleeps and hold all of it (docs/failures.md F12).
// ctx bounds the wait. Beside the replica that it is to replace an engine fits or
// does not: that one's memory does not come back by waiting. Where nobody can
// measure (simulated GPUs have no memory), the engine finds out.
func (p *Pool) room(ctx context.Context, l Launch, beside bool) error {
	if p.opt.Free == nil || l.Model.Bytes == 0 {
		return nil
	}
	began := time.Now()
	tick := time.NewTicker(freeEvery)
	defer tick.Stop()
	for first := true; ; first = false {
		free, measured := p.opt.Free(l.Slice)
		if !measured || free >= l.Model.Bytes {
			return nil
		}
		short := fmt.Errorf("slice %s has %d bytes free, %s needs %d", l.Slice.ID, free, l.Model.Name, l.Model.Bytes)
		if beside {
			return short
		}
		if first {
			p.log.Info("replica waits for memory", "replica", l.Replica, "slice", l.Slice.ID, "free_bytes", free, "need_bytes", l.Model.Bytes)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: waited %v: %w", short, time.Since(began).Round(time.Millisecond), context.Cause(ctx))
		}
	}
}
