package arbiter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"aloft/gpu"
)

// Serving is what the arbiter needs of the pool and the batchers.
type Serving interface {
	// Observe reports every served model, without what the core learns itself, and
	// which slice holds whose replica.
	Observe(now time.Time) ([]Model, []Placed)
	// Bring returns when a replica of the model is ready on the slice: it wakes
	// the sleeper there or starts one.
	Bring(ctx context.Context, model string, s gpu.Slice) error
	// Rest drains what serves on the slice and returns when it is asleep.
	Rest(ctx context.Context, s gpu.Slice) error
	// Empty drains what serves on the slice and returns when no replica is left,
	// ready or asleep.
	Empty(ctx context.Context, s gpu.Slice) error
	Tune(Setting)
}

// Work is what the arbiter needs of the jobs.
type Work interface {
	// Jobs reports all that wait or run; with an error, those of the last time.
	Jobs() ([]Job, error)
	// Start returns when the job runs on the slices: one, or all of a gang.
	Start(ctx context.Context, job string, slices []gpu.Slice) error
	// Preempt returns when the job has left the slice, with the progress that
	// could not be saved. It keeps to the job's grace by itself.
	Preempt(ctx context.Context, job string, s gpu.Slice) (lost time.Duration, err error)
}

// Placed is a replica on a slice.
type Placed struct {
	Slice, Model, Replica string
	Phase                 Phase
}

// Options of the loop.
type Options struct {
	Core      CoreOptions // its OnRecord is the loop's: see OnRecord
	Serving   Serving
	Work      Work
	Inventory gpu.Inventory
	Shaper    gpu.Shaper // nil = no reshapes are planned

	MoveTimeout time.Duration     // a move that takes longer is given up
	Journal     io.Writer         // decisions as JSON lines; nil = none
	Past        []Record          // what an earlier loop left in its journal, oldest first
	Memories    map[string]Memory // and what it knew of its models; see Arbiter.Memories
	OnRecord    func(Record)      // every decision and outcome; nil = nobody listens
}

// Validate says which option is wrong.
func (o Options) Validate() error {
	if err := o.Core.Validate(); err != nil {
		return err
	}
	switch {
	case o.Serving == nil || o.Work == nil || o.Inventory == nil:
		return errors.New("arbiter: serving, work and inventory are needed")
	case o.MoveTimeout <= 0:
		return fmt.Errorf("arbiter: move_timeout is %v, want more than 0", o.MoveTimeout)
	}
	return nil
}

// Arbiter is the running loop: it observes, lets the core decide, and carries
// the orders out.
type Arbiter struct {
	opt     Options
	log     *slog.Logger
	outcome chan Outcome
	kick    chan struct{}
	urgent  chan struct{} // more has arrived than the last look allows for
	allowed atomic.Pointer[map[string]*allowance]
	looked  time.Time                // when the loop did last
	loans   atomic.Pointer[loanList] // what the watch ends if the loop looks no more
	ending  atomic.Int64             // loans that it is ending
	moves   sync.WaitGroup
	learned chan lesson // what came of the one that is under way
	busy    bool        // one is; belongs to Run

	mu   sync.Mutex // guards the core, since others look at it while the loop runs
	core *Core
}

// New makes a loop; Run starts it.
func New(o Options, log *slog.Logger) (*Arbiter, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.Shaper == nil {
		o.Core.Geometry = 0
	}
	a := &Arbiter{opt: o, log: log, outcome: make(chan Outcome), kick: make(chan struct{}, 1), urgent: make(chan struct{}, 1), learned: make(chan lesson, 1)}
	o.Core.Log, o.Core.OnRecord = log, a.record
	var err error
	if a.core, err = NewCore(o.Core); err != nil {
		return nil, err
	}
	a.core.Restore(o.Past)
	for model, m := range o.Memories {
		a.core.Remember(model, m)
	}
	a.opt.Memories = nil // they are large, and the core has its own
	return a, nil
}

// Kick makes the loop look at once: a job was queued, a replica changed.
func (a *Arbiter) Kick() {
	select {
	case a.kick <- struct{}{}:
	default:
	}
}

// Run decides until ctx ends, then waits for the moves under way.
func (a *Arbiter) Run(ctx context.Context) {
	a.look(ctx) // need not wait for the guard, whose clock starts after it: plans keep to its beat, and no tick is early
	tick := time.NewTicker(a.opt.Core.Guard)
	defer tick.Stop()
	pause := time.NewTimer(time.Hour)
	pause.Stop()
	done := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { a.watch(ctx) })
	defer watching.Wait()
	for {
		select {
		case <-tick.C:
			a.look(ctx)
		case <-a.kick:
			a.look(ctx)
		case <-a.urgent:
			pause.Reset(max(0, calm-time.Since(a.looked)))
		case <-pause.C:
			a.look(ctx)
		case o := <-a.outcome:
			a.settle(o)
		case l := <-a.learned:
			a.take(l)
		case <-ctx.Done():
			go func() { a.moves.Wait(); close(done) }()
			for {
				select {
				case o := <-a.outcome:
					a.settle(o)
				case <-done:
					return
				}
			}
		}
	}
}

// SetPolicy is the policy from the next look on, which comes at once.
func (a *Arbiter) SetPolicy(p Policy) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.Kick()
	return a.core.SetPolicy(p)
}

// look observes, lets the core decide, and starts the moves.
func (a *Arbiter) look(ctx context.Context) {
	if a.ending.Load() > 0 {
		return // what is held changes under our eyes
	}
	now := time.Now()
	a.looked = now
	devices, err := a.opt.Inventory.List(ctx)
	if err != nil {
		a.log.Warn("inventory not read", "error", err) // next look tries again
		return
	}
	o := Observation{Now: now, Devices: devices}
	if o.Jobs, err = a.opt.Work.Jobs(); err != nil {
		a.log.Warn("jobs not listed", "error", err)
		o.Stale = true
	}
	o.Models, o.Placed = a.opt.Serving.Observe(now)
	if took := time.Since(now); took > a.core.opt.Lease/2 {
		a.log.Warn("observation is too old to decide on", "took", took)
		return
	}
	tasks, settings := a.decide(o)
	a.learn()
	for _, set := range settings {
		a.opt.Serving.Tune(set)
	}
	for _, t := range tasks {
		a.moves.Go(func() {
			// Not ctx: a move under way at shutdown is finished or times out, so
			// that the world it leaves is a legal one.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.opt.MoveTimeout+t.grace)
			defer cancel()
			began := time.Now()
			out := Outcome{Move: t.Move, Gen: t.Gen}
			out.Lost, out.Err = a.carryOut(ctx, t)
			out.Took = time.Since(began)
			a.outcome <- out
		})
	}
}

// task is an order with what it takes to carry it out.
type task struct {
	Order
	slices []Slice // those it is about, as they were when it was decided
	grace  time.Duration
}

func (a *Arbiter) decide(o Observation) ([]task, []Setting) {
	a.mu.Lock()
	defer a.mu.Unlock()
	orders := a.core.Look(o)
	allowed := a.core.allowances()
	a.allowed.Store(&allowed)
	a.loans.Store(a.listLoans(time.Now()))
	s := a.core.Snapshot()
	var tasks []task
	for _, order := range orders {
		t := task{Order: order}
		for _, sl := range s.Slices {
			if sl.ID == order.Move.Slice || slices.Contains(order.Move.Gang, sl.ID) {
				t.slices = append(t.slices, sl)
			}
		}
		for _, j := range s.Jobs {
			if j.ID == order.Move.Job || len(t.slices) > 0 && j.ID == t.slices[0].Job {
				t.grace = max(t.grace, j.Grace)
			}
		}
		tasks = append(tasks, t)
	}
	return tasks, slices.Clone(a.core.Settings())
}

var errNoShaper = errors.New("nothing here can reshape a GPU")

func (a *Arbiter) carryOut(ctx context.Context, t task) (lost time.Duration, err error) {
	m := t.Move
	if m.Action == Reshape {
		if a.opt.Shaper == nil {
			return 0, errNoShaper
		}
		_, err := a.opt.Shaper.Reshape(ctx, m.GPU, m.Layout)
		return 0, err
	}
	s := t.slices[0]
	switch m.Action {
	case Lend:
		var on []gpu.Slice
		for _, s := range t.slices {
			if s.Phase == Ready {
				if err := a.opt.Serving.Rest(ctx, s.Slice); err != nil {
					return 0, fmt.Errorf("put %s to sleep: %w", s.Model, err)
				}
			}
			on = append(on, s.Slice)
		}
		return a.lend(ctx, m.Job, on)
	case Vacate:
		if s.Lent() {
			if lost, err = a.opt.Work.Preempt(ctx, s.Job, s.Slice); err != nil {
				return lost, fmt.Errorf("preempt %s: %w", s.Job, err)
			}
		}
		return lost, a.opt.Serving.Empty(ctx, s.Slice)
	case Reclaim:
		if lost, err = a.opt.Work.Preempt(ctx, m.Job, s.Slice); err != nil {
			return lost, fmt.Errorf("preempt %s: %w", m.Job, err)
		}
	}
	return lost, a.opt.Serving.Bring(ctx, m.Model, s.Slice)
}

// lesson is what came of one.
type lesson struct {
	Lesson
	trial Trial
	took  time.Duration
}

// learn begins the lesson that is due, one at a time: a processor is busy with it
// for seconds. Run waits for it, as for the moves.
func (a *Arbiter) learn() {
	if a.busy {
		return
	}
	a.mu.Lock()
	l, ok := a.core.Lesson()
	a.mu.Unlock()
	if !ok {
		return
	}
	a.busy = true
	a.moves.Go(func() {
		began := time.Now()
		t := Learn(l.Past, l.Options)
		a.learned <- lesson{l, t, time.Since(began)}
	})
}

func (a *Arbiter) take(l lesson) {
	a.busy = false
	a.mu.Lock()
	defer a.mu.Unlock()
	a.core.Take(l.Lesson, l.trial, l.took)
	a.Kick() // there may be more to lend, or less
}

// Memories are what the next loop is to know of each model; see Options.
func (a *Arbiter) Memories() map[string]Memory {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.core.Memories()
}

func (a *Arbiter) settle(o Outcome) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.core.Settle(time.Now(), o)
	if o.Err == nil {
		a.Kick() // a failed move is tried again by the next look, not at once
	}
}

// record appends a decision or its outcome to the journal.
func (a *Arbiter) record(r Record) {
	if a.opt.Journal != nil {
		if b, err := json.Marshal(r); err == nil {
			if _, err := a.opt.Journal.Write(append(b, '\n')); err != nil {
				a.log.Warn("journal not written", "error", err)
			}
		}
	}
	if a.opt.OnRecord != nil {
		a.opt.OnRecord(r)
	}
}
