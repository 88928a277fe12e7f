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

// gate bounds the rows under way for one model, over all its batches, in order
// of arrival: each batch waits with one row at a time, so batches take turns.
type gate struct {
	limit func() int

	mu   sync.Mutex
	busy int
	wait []chan struct{}
}

// enter waits for a place; the caller must leave.
func (g *gate) enter(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	place := make(chan struct{})
	g.mu.Lock()
	g.wait = append(g.wait, place)
	g.admit()
	g.mu.Unlock()
	tick := time.NewTicker(gatePoll)
	defer tick.Stop()
	for {
		select {
		case <-place:
			return nil
		case <-tick.C:
			g.mu.Lock()
			g.admit()
			g.mu.Unlock()
		case <-ctx.Done():
			g.mu.Lock()
			if i := slices.Index(g.wait, place); i >= 0 {
				g.wait = slices.Delete(g.wait, i, i+1)
			} else { // admitted in this moment: give it on
				g.busy--
				g.admit()
			}
			g.mu.Unlock()
			return context.Cause(ctx)
		}
	}
}

func (g *gate) leave() {
	g.mu.Lock()
	g.busy--
	g.admit()
	g.mu.Unlock()
}

func (g *gate) admit() {
	for len(g.wait) > 0 && g.busy < g.limit() {
		close(g.wait[0])
		g.wait = slices.Delete(g.wait, 0, 1)
		g.busy++
	}
}
