// Package pool keeps models' replicas on slices: it launches engines, warms
// them, drains, puts to sleep, wakes and restarts them, and publishes the ready
// ones. Where a replica should be is the arbiter's decision, which request it
// gets is the batcher's; the pool only carries out and reports.
//
// One goroutine owns every replica's state (loop.go). Slow acts (launch, warm-up,
// drain, stop) run in goroutines of their own and report back to it.
package pool

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"aloft/backends"
	"aloft/gpu"
)

// Model is what the pool has to know of a served model.
type Model struct {
	Name  string
	Slots int       // sequences (generation) or calls (embeddings) a replica takes at once
	Needs gpu.Shape // the smallest slice that will do
	// Adapters are the LoRA adapters to look for in GET /v1/models of its engines.
	Adapters []string
	Spec     any   // the launcher's own description: command, files, options; plain data
	Bytes    int64 // free memory that a slice must have before an engine starts there; 0 = do not wait
}

// Launcher starts engines. Implemented by Exec and, in tests, by a function.
type Launcher interface {
	// Launch starts an engine for a replica and returns when it accepts
	// connections or ctx ends. The engine outlives ctx.
	Launch(ctx context.Context, l Launch) (Engine, error)
}

// Launch says which engine to start and where.
type Launch struct {
	Replica string
	Model   Model
	Slice   gpu.Slice
	Offline bool // lent to a batch: runs below serving
	// Has is told which of Model.Adapters the engine has: before it is warm, and
	// again when that changes.
	Has func(adapters []string)
	// Said is told what the engine says of itself, every second or so, and once why
	// one that had said something has fallen silent. Nil = nobody wants to know.
	Said func(backends.Reading, error)
}

// Engine is one running engine.
type Engine interface {
	Backend() backends.Backend
	// WarmUp answers one real request, so that the first client meets a warm engine.
	WarmUp(ctx context.Context) error
	// Sleep frees what a sleeping engine need not hold, or takes it back.
	Sleep(ctx context.Context, asleep bool) error
	Done() <-chan struct{} // closed when the process has ended
	Stop(grace time.Duration)
}

// ReadyReplica is a published replica.
type ReadyReplica struct {
	ID      string
	Index   int // age order: lower started earlier
	Backend backends.Backend
	Slots   int
	Shape   string
	Offline bool
	// Adapters are those of its model's Adapters that the engine says it has.
	Adapters []string
	Old      bool // as Replica has it
}

// Replica is a replica's state as others see it.
type Replica struct {
	ID          string
	Model       string
	Slice       gpu.Slice
	State       State
	Since       time.Time
	Job         string // the batch job it is lent to; "" = serving
	Outstanding int    // calls in flight
	Restarts    int
	Error       string    // why it failed last
	Retry       time.Time // when a failed one starts again; zero = it has not failed, or does not
	Old         bool      // runs what its model was before SetModels
}

// Event tells that a replica has changed state; Took is how long the step lasted.
type Event struct {
	Replica Replica
	From    State
	Took    time.Duration
	All     []Replica // every replica after the step
}

// Options of a pool.
type Options struct {
	Models   []Model
	Launcher Launcher
	// Publish is called with all ready replicas of a model whenever they change.
	Publish func(model string, ready []ReadyReplica)
	// OnEvent is called for every change of state. Like Publish it must not block.
	OnEvent func(Event)
	// OnReading is called with what a ready or starting replica's engine says of
	// itself, for engines that say something. nil = nobody asks. It must not block.
	OnReading func(model, replica string, said backends.Reading)
	// Free measures the memory of a slice that nobody holds; ok is false where it
	// cannot. nil = a launch waits for no memory. It is called outside the loop and
	// may take milliseconds.
	Free func(gpu.Slice) (bytes int64, ok bool)

	StartTimeout time.Duration // launch (with the wait for memory before it) and warm-up, each
	DrainTimeout time.Duration // in-flight calls may take this long before they are cut off
	StopGrace    time.Duration // TERM to KILL
	BackoffMin   time.Duration // first restart delay; doubles to BackoffMax
	BackoffMax   time.Duration
}

// Validate says what is missing.
func (o Options) Validate() error {
	if o.Launcher == nil || o.Publish == nil || o.OnEvent == nil {
		return fmt.Errorf("pool: launcher, publish and on_event are needed")
	}
	for name, d := range map[string]time.Duration{
		"start_timeout": o.StartTimeout, "drain_timeout": o.DrainTimeout, "stop_grace": o.StopGrace,
		"backoff_min": o.BackoffMin, "backoff_max": o.BackoffMax,
	} {
		if d <= 0 {
			return fmt.Errorf("pool: %s is %v, want more than 0", name, d)
		}
	}
	return nil
}

// Pool keeps the replicas of all models.
type Pool struct {
	opt Options
	log *slog.Logger

	ask  chan func(*loop)
	done chan struct{}
	acts sync.WaitGroup // goroutines that carry out slow acts
}

// New starts a pool without replicas; Close stops it.
func New(o Options, log *slog.Logger) (*Pool, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	models, err := byName(o.Models)
	if err != nil {
		return nil, err
	}
	p := &Pool{opt: o, log: log, ask: make(chan func(*loop)), done: make(chan struct{})}
	go p.run(models)
	return p, nil
}

// Start launches a replica of a model on a slice, beside a sleeping one if there
// is one; job names the batch job it is lent to. It returns the replica's id at
// once; events tell how it goes. Errors: backends.ErrUnknownModel, ErrDraining
// after Close, or who holds the slice.
func (p *Pool) Start(model string, slice gpu.Slice, job string) (string, error) {
	var id string
	err := p.do(func(l *loop) error {
		m, known := l.models[model]
		switch {
		case l.closing:
			return fmt.Errorf("start replica of %s on %s: %w", model, slice.ID, backends.ErrDraining)
		case !known:
			return fmt.Errorf("start replica of %q: %w", model, backends.ErrUnknownModel)
		}
		if other := l.awake(slice.ID); other != nil {
			return fmt.Errorf("start replica of %s on %s: replica %s is %s there", model, slice.ID, other.info.ID, other.info.State)
		}
		id = l.launch(m, slice, job, nil)
		return nil
	})
	return id, err
}

// Sleep drains a ready replica and puts it to sleep; it keeps its slice.
func (p *Pool) Sleep(id string) error { return p.step(id, (*loop).sleep, Ready) }

// Wake brings a sleeping replica back to ready. The one that used its slice
// meanwhile must have gone.
func (p *Pool) Wake(id string) error {
	return p.do(func(l *loop) error {
		r, err := l.find(id, Sleeping)
		if err != nil {
			return err
		}
		if other := l.awake(r.info.Slice.ID); other != nil {
			return fmt.Errorf("wake replica %s on %s: replica %s is %s there", id, r.info.Slice.ID, other.info.ID, other.info.State)
		}
		l.wake(r)
		return nil
	})
}

// Stop drains a replica, ends its engine and forgets it.
func (p *Pool) Stop(id string) error {
	return p.step(id, (*loop).stop, Loading, Warming, Ready, Sleeping, Waking, Failed)
}

// Replicas lists all replicas by id.
func (p *Pool) Replicas() []Replica {
	var out []Replica
	_ = p.do(func(l *loop) error { out = l.all(); return nil })
	return out
}

// Timings are the measured times of a step, per (model, step).
func (p *Pool) Timings() map[Step]Timing {
	out := map[Step]Timing{}
	_ = p.do(func(l *loop) error {
		for k, v := range l.timings {
			out[k] = v.summary()
		}
		return nil
	})
	return out
}

// Close stops every replica, drained within ctx, and waits for all of them.
func (p *Pool) Close(ctx context.Context) error {
	if err := p.do(func(l *loop) error { l.close(ctx); return nil }); err != nil {
		return nil // closed before
	}
	<-p.done
	p.acts.Wait()
	return nil
}

func (p *Pool) step(id string, f func(*loop, *replica), from ...State) error {
	return p.do(func(l *loop) error {
		r, err := l.find(id, from...)
		if err == nil {
			f(l, r)
		}
		return err
	})
}

// find is the replica of that id, which must be in one of these states.
func (l *loop) find(id string, from ...State) (*replica, error) {
	r := l.replicas[id]
	if r == nil {
		return nil, fmt.Errorf("replica %s: no such replica", id)
	}
	if !slices.Contains(from, r.info.State) {
		return nil, fmt.Errorf("replica %s is %s, want one of %v", id, r.info.State, from)
	}
	return r, nil
}

// do runs f on the loop's goroutine and returns what it returned.
func (p *Pool) do(f func(*loop) error) error {
	reply := make(chan error, 1)
	select {
	case p.ask <- func(l *loop) { reply <- f(l) }:
		return <-reply
	case <-p.done:
		return fmt.Errorf("pool: %w", backends.ErrDraining)
	}
}
