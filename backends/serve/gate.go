package serve

import (
	"context"
	"fmt"
	"sync"
	"time"

	"aloft/backends"
)

// kind is what a call keeps busy.
type kind int

const (
	embed kind = iota
	generate
)

// gate counts the calls inside the engine, refuses those beyond its limits, and
// can be closed until the last one has left. It never blocks a call: waiting is
// the engine's, which knows its batches.
type gate struct {
	mu     sync.Mutex
	inside [2]int
	runs   [2]int // how many of a kind run at once; more wait inside the engine
	queue  int    // how many of a kind may wait
	closed bool
	empty  chan struct{} // closed when the last call leaves a closed gate
}

func newGate(embeds, generations, queue int) *gate {
	return &gate{runs: [2]int{embeds, generations}, queue: queue}
}

func (g *gate) enter(k kind) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return &backends.RetryError{Err: backends.ErrUnavailable, After: time.Second, Reason: backends.ReasonLoading}
	}
	if g.inside[k] >= g.runs[k]+g.queue {
		return &backends.RetryError{
			Err:   fmt.Errorf("engine queue of %d: %w", g.queue, backends.ErrOverloaded),
			After: time.Second, Reason: backends.ReasonQueueFull,
		}
	}
	g.inside[k]++
	return nil
}

func (g *gate) leave(k kind) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside[k]--
	if g.inside[embed]+g.inside[generate] == 0 && g.empty != nil {
		close(g.empty)
		g.empty = nil
	}
}

// close refuses new calls and waits until the gate is empty. It may be called
// again; if ctx ends first the gate stays closed.
func (g *gate) close(ctx context.Context) error {
	g.mu.Lock()
	g.closed = true
	if g.inside[embed]+g.inside[generate] == 0 {
		g.mu.Unlock()
		return nil
	}
	if g.empty == nil {
		g.empty = make(chan struct{})
	}
	empty := g.empty
	g.mu.Unlock()
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = false
}

func (g *gate) isClosed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed
}

// load returns how many calls run and how many wait.
func (g *gate) load() (running, waiting int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for k, n := range g.inside {
		r := min(n, g.runs[k])
		running += r
		waiting += n - r
	}
	return running, waiting
}
