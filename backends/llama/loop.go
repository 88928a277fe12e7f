package llama

import (
	"context"
	"fmt"
	"slices"
	"time"

	"aloft/backends"
)

// loop owns the model: between two steps it takes in calls, forgets cancelled
// ones and fills free slots; then it runs one decode step over all sequences
// and one embeddings batch, whichever there are.
type loop struct {
	e        *Engine
	md       *model      // nil while asleep
	waiting  []*sequence // admitted in order of arrival
	slots    []*sequence // by sequence id, nil = free
	admitted int         // counts admissions: older prompts are read first
	embed    *embedCall  // the call being served
	move     *transition // waits until nothing runs
}

// errAsleep is for calls that slipped in while the engine went to sleep.
var errAsleep = &backends.RetryError{Err: backends.ErrUnavailable, After: time.Second, Reason: backends.ReasonLoading}

// transition asks the loop to sleep or wake.
type transition struct {
	ctx    context.Context
	asleep bool
	done   chan error
}

func newLoop(e *Engine) *loop {
	return &loop{e: e, slots: make([]*sequence, e.opt.Slots)}
}

func (l *loop) run(ctx context.Context, loaded chan<- error) {
	defer close(l.e.done) // last: callers see it and give up
	defer l.unload()
	g, err := l.load()
	if err != nil {
		loaded <- err
		return
	}
	l.e.describe(l.md, g)
	loaded <- nil
	for l.receive(ctx) {
		l.reap()
		l.admit()
		l.step()
		l.embedStep()
		l.settle()
	}
}

// load checks the file, also when it wakes: llama.cpp maps it, and one that has
// become shorter is a SIGBUS.
func (l *loop) load() (*GGUF, error) {
	begin := time.Now()
	g, err := ReadGGUF(l.e.opt.Model)
	if err != nil {
		return nil, err
	}
	if err := g.checkServable(); err != nil {
		return nil, fmt.Errorf("model %s: %w", l.e.opt.Model, err)
	}
	if err := loadLibrary(l.e.opt.Lib); err != nil {
		return nil, err
	}
	md, err := load(l.e.opt, g)
	if err != nil {
		return nil, err
	}
	l.md = md
	l.e.log.Info("model loaded", "model", l.e.opt.Name, "took", time.Since(begin), "devices", devices(), "context", md.context)
	return g, nil
}

func (l *loop) unload() {
	if l.md != nil {
		l.md.free()
		l.md = nil
	}
}

// busy reports whether there is a step to make.
func (l *loop) busy() bool {
	return l.embed != nil || len(l.waiting) > 0 || slices.ContainsFunc(l.slots, func(s *sequence) bool { return s != nil })
}

// receive takes in what has arrived; it waits only when there is nothing else
// to do. It returns false when the engine is closed.
func (l *loop) receive(ctx context.Context) bool {
	if !l.busy() {
		select {
		case <-ctx.Done():
		case s := <-l.e.gens:
			l.arrive(s)
		case c := <-l.e.embeds:
			l.take(c)
		case m := <-l.e.moves:
			l.move = m
		}
	}
	for ctx.Err() == nil {
		embeds, moves := l.e.embeds, l.e.moves
		if l.embed != nil {
			embeds = nil // in turn
		}
		if l.move != nil {
			moves = nil
		}
		select {
		case s := <-l.e.gens:
			l.arrive(s)
		case c := <-embeds:
			l.take(c)
		case m := <-moves:
			l.move = m
		default:
			return true
		}
	}
	return false
}

// settle carries out a transition once nothing runs or waits.
func (l *loop) settle() {
	m := l.move
	if m != nil && m.ctx.Err() != nil {
		l.move = nil
		m.done <- context.Cause(m.ctx)
		return
	}
	if m == nil || l.busy() || l.e.queued.Load() > 0 {
		return
	}
	l.move = nil
	switch {
	case m.asleep && l.md != nil:
		l.unload()
	case !m.asleep && l.md == nil:
		if _, err := l.load(); err != nil {
			m.done <- fmt.Errorf("wake: %w", err)
			return
		}
	}
	l.e.asleep.Store(m.asleep)
	m.done <- nil
}

// Sleep implements serve.Engine: it refuses new calls, waits for running ones
// and frees model and context. The weights stay in the page cache.
func (e *Engine) Sleep(ctx context.Context) error {
	was := e.asleep.Swap(true)
	err := e.transit(ctx, true)
	if err != nil {
		e.asleep.Store(was)
	}
	return err
}

// Wake implements serve.Engine: it loads the model again.
func (e *Engine) Wake(ctx context.Context) error { return e.transit(ctx, false) }

func (e *Engine) transit(ctx context.Context, asleep bool) error {
	m := &transition{ctx, asleep, make(chan error, 1)}
	select {
	case e.moves <- m:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-e.done:
		return backends.ErrDraining
	}
	select {
	case err := <-m.done:
		return err
	case <-e.done:
		return backends.ErrDraining
	}
}
