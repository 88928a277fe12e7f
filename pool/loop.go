package pool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"aloft/gpu"
)

// replica is the loop's own record.
type replica struct {
	info     Replica
	model    Model
	engine   Engine
	tracked  *tracked
	cancel   context.CancelFunc // ends the act in progress
	stopping bool               // stop was asked while an act was in progress
	backoff  time.Duration

	adapters []string  // of its model's, those that its engine has
	loads    int       // engines it has had
	out      time.Time // taken out for its failures until then (outlier.go)
	outs     int       // how often

	renews   bool     // starts because its model changed (renew.go), and is not ready yet
	replaces *replica // while it starts beside it: the old one on its slice
	heir     bool     // goes so that the new one fits: that starts when it is gone
}

func (r *replica) view() Replica {
	v := r.info
	if r.tracked != nil {
		v.Outstanding = r.tracked.outstanding()
	}
	return v
}

// loop is the state that the pool's one goroutine owns.
type loop struct {
	p        *Pool
	models   map[string]Model
	retired  map[string]bool // models that are gone, and nothing waits for them
	replicas map[string]*replica
	counts   map[string]int // replicas ever started, per model
	timings  map[Step]*samples
	closing  bool
}

func (p *Pool) run(models map[string]Model) {
	defer close(p.done)
	l := &loop{p: p, models: models, retired: map[string]bool{}, replicas: map[string]*replica{}, counts: map[string]int{}, timings: map[Step]*samples{}}
	for f := range p.ask {
		f(l)
		if l.closing && len(l.replicas) == 0 {
			return
		}
	}
}

// act is a slow step: run outside the loop, then inside it.
type act struct {
	limit time.Duration
	run   func(context.Context) error
	then  func(*loop, error, time.Duration)
	// late is called instead of then when the replica has gone or entered
	// another state meanwhile; nil = nothing to clear away.
	late func()
}

// later runs an act in its own goroutine and hands its result back to the loop.
func (l *loop) later(r *replica, a act) {
	ctx, cancel := context.WithTimeout(context.Background(), a.limit)
	r.cancel = cancel
	state, p := r.info.State, l.p
	p.acts.Go(func() {
		began := time.Now()
		err := a.run(ctx)
		cancel()
		current := false
		_ = p.do(func(l *loop) error {
			if current = l.replicas[r.info.ID] == r && r.info.State == state; current {
				a.then(l, err, time.Since(began))
			}
			return nil
		})
		if !current && a.late != nil {
			a.late()
		}
	})
}

// enter moves a replica to a state and tells whoever listens.
func (l *loop) enter(r *replica, to State, took time.Duration) {
	from := r.info.State
	if from != "" && !slices.Contains(next[from], to) {
		panic(fmt.Sprintf("BUG: replica %s: %s to %s", r.info.ID, from, to))
	}
	r.info.State, r.info.Since = to, time.Now()
	level := l.p.log.Info
	if to == Failed {
		level = l.p.log.Warn
	}
	level("replica state", "replica", r.info.ID, "slice", r.info.Slice.ID, "from", from, "to", to, "took", took, "error", r.info.Error)
	if from == Ready || to == Ready {
		l.publish(r.model.Name)
	}
	l.p.opt.OnEvent(Event{Replica: r.view(), From: from, Took: took, All: l.all()})
}

// all lists the replicas by id, without those that are gone.
func (l *loop) all() []Replica {
	var out []Replica
	for _, r := range l.replicas {
		if r.info.State != Stopped {
			v := r.view()
			v.Old = l.stale(r)
			out = append(out, v)
		}
	}
	slices.SortFunc(out, func(a, b Replica) int { return cmpID(a.ID, b.ID) })
	return out
}

func (l *loop) publish(model string) {
	var ready []ReadyReplica
	rs, peers := l.siblings(model)
	rests := resting(time.Now(), peers)
	for i, r := range rs {
		if !rests[i] {
			ready = append(ready, ReadyReplica{ID: r.info.ID, Index: index(r.info.ID), Backend: r.tracked,
				Slots: r.model.Slots, Shape: r.info.Slice.Shape.Profile, Offline: r.info.Job != "", Adapters: r.adapters, Old: l.stale(r)})
		}
	}
	sortReady(ready)
	l.p.opt.Publish(model, ready)
}

func (l *loop) measure(r *replica, step string, took time.Duration) {
	k := Step{Model: r.model.Name, Name: step}
	if l.timings[k] == nil {
		l.timings[k] = &samples{}
	}
	l.timings[k].add(took)
}

// awake finds the replica that uses the slice; there may be a sleeping one beside it.
func (l *loop) awake(slice string) *replica {
	for _, r := range l.replicas {
		if r.info.Slice.ID == slice && r.info.State != Sleeping {
			return r
		}
	}
	return nil
}

// launch makes a replica; old is the one that it replaces, nil = none.
func (l *loop) launch(m Model, slice gpu.Slice, job string, old *replica) string {
	l.counts[m.Name]++
	r := &replica{model: m, backoff: l.p.opt.BackoffMin, renews: old != nil, replaces: old, info: Replica{
		ID: fmt.Sprintf("%s-%d", m.Name, l.counts[m.Name]), Model: m.Name, Slice: slice, Job: job}}
	l.replicas[r.info.ID] = r
	l.load(r)
	return r.info.ID
}

// load takes a replica from nothing to ready.
func (l *loop) load(r *replica) {
	r.info.Retry = time.Time{}
	l.enter(r, Loading, 0)
	r.adapters, r.out, r.outs = nil, time.Time{}, 0
	r.loads++
	launch := Launch{Replica: r.info.ID, Model: r.model, Slice: r.info.Slice, Offline: r.info.Job != "", Has: l.p.adapters(r, r.loads), Said: l.p.readings(r.model.Name, r.info.ID)}
	beside, p := r.replaces != nil, l.p
	var engine Engine
	l.later(r, act{limit: p.opt.StartTimeout, run: func(ctx context.Context) error {
		err := p.room(ctx, launch, beside)
		if err == nil {
			engine, err = p.opt.Launcher.Launch(ctx, launch)
		}
		return err
	}, late: func() { // stopped while it loaded
		if engine != nil {
			engine.Stop(0)
		}
	}, then: func(l *loop, err error, loading time.Duration) {
		if err != nil {
			l.fail(r, err)
			return
		}
		l.adopt(r, engine)
		l.enter(r, Warming, loading)
		l.warm(r, loading)
	}})
}

func (l *loop) warm(r *replica, loading time.Duration) {
	l.later(r, act{limit: l.p.opt.StartTimeout, run: r.engine.WarmUp, then: func(l *loop, err error, warming time.Duration) {
		if err != nil {
			l.fail(r, fmt.Errorf("warm-up: %w", err))
			return
		}
		r.backoff = l.p.opt.BackoffMin
		l.measure(r, "start", loading+warming)
		l.enter(r, Ready, loading+warming)
		l.settled(r)
	}})
}

// adopt makes a launched engine the replica's own and watches for its end.
func (l *loop) adopt(r *replica, e Engine) {
	p := l.p
	r.engine = e
	changed, suspect := make(chan struct{}, 1), make(chan struct{}, 1)
	r.tracked = track(e.Backend(), poke(changed), poke(suspect))
	p.acts.Go(func() {
		p.watch(r.model.Name, e, changed, suspect)
		_ = p.do(func(l *loop) error {
			if l.replicas[r.info.ID] == r && r.engine == e && r.info.State != Draining && r.info.State != Stopped {
				l.fail(r, errors.New("engine process ended"))
			}
			return nil
		})
	})
}

// poke tells whoever reads c that there is news; it never blocks, and what was
// not read yet tells of this, too.
func poke(c chan<- struct{}) func() {
	return func() {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// watch follows an engine's calls until it ends: its circuit breaker, once when
// that changes and once more when an open one lets the next try through, and
// whether it is worse than its siblings.
func (p *Pool) watch(model string, e Engine, changed, suspect <-chan struct{}) {
	publish := func(l *loop) error { l.publish(model); return nil }
	var half <-chan time.Time
	for {
		select {
		case <-e.Done():
			return
		case <-changed:
			_ = p.do(publish) // a closed pool has nobody to tell of
			half = time.After(breakerOpen + 10*time.Millisecond)
		case <-half:
			_ = p.do(publish)
		case <-suspect:
			_ = p.do(func(l *loop) error { l.judge(model); return nil })
		}
	}
}

// adapters hears what the engine of a replica's nth load has.
func (p *Pool) adapters(r *replica, n int) func([]string) {
	return func(have []string) {
		_ = p.do(func(l *loop) error {
			if l.replicas[r.info.ID] == r && r.loads == n && !slices.Equal(r.adapters, have) {
				r.adapters = have
				if r.info.State == Ready {
					l.publish(r.model.Name)
				}
			}
			return nil
		})
	}
}

// fail records why and tries again after the back-off; a replica lent to a job
// is not restarted: its lease ends instead. One that was asleep is forgotten:
// its slice may be lent, and a restart would take it from the borrower. So is one
// of a model that changed, and one that failed beside the one it was to replace.
func (l *loop) fail(r *replica, err error) {
	r.info.Error = err.Error()
	r.cancel()
	ended := make(chan struct{})
	if e := r.engine; e != nil {
		r.engine = nil
		l.p.acts.Go(func() { e.Stop(0); close(ended) })
	} else {
		close(ended)
	}
	beside := r.replaces != nil
	if beside {
		l.giveWay(r)
	}
	if r.info.State == Draining || r.info.State == Sleeping || l.closing || beside || l.stale(r) {
		if r.info.State != Draining {
			l.enter(r, Draining, 0)
		}
		l.gone(r, 0)
		return
	}
	delay := r.backoff
	if r.info.Job == "" {
		r.info.Retry = time.Now().Add(delay)
	}
	l.enter(r, Failed, 0)
	r.backoff = min(2*r.backoff, l.p.opt.BackoffMax)
	l.later(r, act{limit: delay, run: func(ctx context.Context) error {
		<-ctx.Done()
		<-ended // never two engines of one replica; Stop is bounded
		return nil
	}, then: func(l *loop, _ error, _ time.Duration) {
		if r.info.Job == "" {
			r.info.Restarts++
			l.load(r)
		}
	}})
}

// drain waits until no call is in flight, or cuts the rest off.
func (l *loop) drain(r *replica, limit time.Duration, then func(*loop, time.Duration)) {
	if r.cancel != nil {
		r.cancel()
	}
	if n := l.successor(r); n != nil { // what was on its way here is not wanted either
		n.replaces = nil
		l.stop(n)
	}
	l.enter(r, Draining, 0)
	t := r.tracked
	l.later(r, act{limit: limit, run: func(ctx context.Context) error {
		if t != nil {
			t.drain(ctx)
		}
		return nil
	}, then: func(l *loop, _ error, took time.Duration) {
		l.measure(r, "drain", took)
		then(l, took)
	}})
}

func (l *loop) sleep(r *replica) {
	e := r.engine
	l.drain(r, l.p.opt.DrainTimeout, func(l *loop, drained time.Duration) {
		run := func(ctx context.Context) error { return e.Sleep(ctx, true) }
		l.later(r, act{limit: l.p.opt.StartTimeout, run: run, then: func(l *loop, err error, took time.Duration) {
			switch {
			case err != nil:
				l.fail(r, fmt.Errorf("sleep: %w", err))
			case r.stopping:
				l.end(r)
			default:
				r.tracked.reset()
				l.measure(r, "sleep", drained+took)
				l.enter(r, Sleeping, drained+took)
				l.renew(r.model.Name)
			}
		}})
	})
}

func (l *loop) wake(r *replica) {
	l.enter(r, Waking, 0)
	e := r.engine
	run := func(ctx context.Context) error {
		if err := e.Sleep(ctx, false); err != nil {
			return err
		}
		return e.WarmUp(ctx) // a canary: sleep modes have answered garbage after waking (vLLM #21336)
	}
	l.later(r, act{limit: l.p.opt.StartTimeout, run: run, then: func(l *loop, err error, took time.Duration) {
		if err != nil {
			l.fail(r, fmt.Errorf("wake: %w", err))
			return
		}
		l.measure(r, "wake", took)
		l.enter(r, Ready, took)
	}})
}

func (l *loop) stop(r *replica) {
	l.drain(r, l.p.opt.DrainTimeout, func(l *loop, _ time.Duration) { l.end(r) })
}

// end stops a drained replica's engine and forgets the replica.
func (l *loop) end(r *replica) {
	e, grace := r.engine, l.p.opt.StopGrace
	run := func(context.Context) error {
		if e != nil {
			e.Stop(grace)
		}
		return nil
	}
	l.later(r, act{limit: grace + 5*time.Second, run: run, then: func(l *loop, _ error, took time.Duration) {
		l.measure(r, "stop", took)
		l.gone(r, took)
	}})
}

func (l *loop) gone(r *replica, took time.Duration) {
	l.enter(r, Stopped, took)
	delete(l.replicas, r.info.ID)
	if m, known := l.models[r.model.Name]; known && r.heir && !l.closing {
		l.replicas[l.launch(m, r.info.Slice, "", nil)].renews = true
	}
	l.renew(r.model.Name)
}

func (l *loop) close(ctx context.Context) {
	l.closing = true
	for _, r := range l.replicas {
		r.replaces, r.heir = nil, false
	}
	limit := l.p.opt.DrainTimeout
	if at, ok := ctx.Deadline(); ok {
		limit = max(time.Millisecond, min(limit, time.Until(at)))
	}
	for _, r := range l.replicas {
		if r.info.State == Draining {
			r.stopping = true
			continue
		}
		l.drain(r, limit, func(l *loop, _ time.Duration) { l.end(r) })
	}
}
