package jobs

import (
	"context"
	"slices"
	"sync"
	"time"
)

// gatePoll is how long a rise of the limit may stay unseen; every end of a row
// looks too.
const gatePoll = 100 * time.Millisecond

// maxRowBytes bounds the rows under way for one model in memory: a few of the
// largest ones, or as many short ones as there are places.
const maxRowBytes = 16 << 20

// gate bounds the rows under way for one model, over all its batches, in order
// of arrival: each batch waits with one row at a time, so batches take turns.
type gate struct {
	limit func() int

	mu   sync.Mutex
	busy int
	held int // bytes of those
	wait []place
}

// place is a row that waits, and its size.
type place struct {
	bytes int
	taken chan struct{} // closed when it may go
}

// enter waits for a place for a row of so many bytes; the caller must leave.
func (g *gate) enter(ctx context.Context, bytes int) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	p := place{bytes, make(chan struct{})}
	g.mu.Lock()
	g.wait = append(g.wait, p)
	g.admit()
	g.mu.Unlock()
	tick := time.NewTicker(gatePoll)
	defer tick.Stop()
	for {
		select {
		case <-p.taken:
			return nil
		case <-tick.C:
			g.mu.Lock()
			g.admit()
			g.mu.Unlock()
		case <-ctx.Done():
			g.mu.Lock()
			if i := slices.Index(g.wait, p); i >= 0 {
				g.wait = slices.Delete(g.wait, i, i+1)
			} else { // admitted in this moment: give it on
				g.busy, g.held = g.busy-1, g.held-bytes
			}
			g.admit() // the one behind may be smaller
			g.mu.Unlock()
			return context.Cause(ctx)
		}
	}
}

func (g *gate) leave(bytes int) {
	g.mu.Lock()
	g.busy, g.held = g.busy-1, g.held-bytes
	g.admit()
	g.mu.Unlock()
}

func (g *gate) admit() {
	for len(g.wait) > 0 && g.busy < g.limit() && (g.busy == 0 || g.held+g.wait[0].bytes <= maxRowBytes) {
		g.busy, g.held = g.busy+1, g.held+g.wait[0].bytes
		close(g.wait[0].taken)
		g.wait = slices.Delete(g.wait, 0, 1)
	}
}
