package study

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"aloft/loadgen"
	"aloft/sim"
	"aloft/sim/scenario"
)

// Case is a variant that is to be run.
type Case struct {
	Variant
	Scenario *scenario.Scenario
}

// Options say what is run. Static is always run too: the others are held against it.
type Options struct {
	Cases    []Case
	Policies []string
	Seeds    []uint64
	Draw     scenario.DrawOptions
	// Workers is how many runs go on at once, 0 = one for each CPU. Each holds the
	// world and its own state: up to 500 MB for a day of 64 GPUs.
	Workers int
	// Simulate runs a policy; it reports how far it is, from 0 to 1, and ends when
	// ctx does. The bound is a policy too.
	Simulate func(ctx context.Context, w *scenario.World, policy string, progress func(float64)) (*sim.Result, error)
	// OnProgress is called by one goroutine at a time; nil = nobody looks on.
	OnProgress func(Progress)
}

// Progress is how far a study is.
type Progress struct {
	Done, Runs int
	Share      float64  // of all, 0 to 1
	Now        []string // what runs, such as "ours, seed 2"
}

// Validate reports what is missing.
func (o *Options) Validate() error {
	switch {
	case len(o.Cases) == 0:
		return errors.New("sim/study: no scenario")
	case len(o.Seeds) == 0:
		return errors.New("sim/study: no seeds")
	case o.Simulate == nil:
		return errors.New("sim/study: Simulate is nil")
	case o.Workers < 0:
		return fmt.Errorf("%d runs at once (workers), want 1 or more, or 0 for one for each CPU", o.Workers)
	}
	for i, c := range o.Cases {
		if slices.ContainsFunc(o.Cases[:i], func(d Case) bool { return d.Name == c.Name }) {
			return fmt.Errorf("two variants are called %q", c.Name)
		}
	}
	return nil
}

// Grid runs every policy in every world. A context that ends gives what was done
// until then, marked as interrupted.
func Grid(ctx context.Context, o Options) (*Study, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	s := &Study{Schema: Schema, Modelled: Modelled, Scenario: o.Cases[0].Scenario.Name, FromH: float64(o.Draw.From), ToH: float64(o.Draw.To), Rows: o.Draw.Rows,
		Seeds: o.Seeds, Policies: o.Policies, Started: time.Now(), Tool: loadgen.ThisTool(), Notes: []string{}, Runs: []Run{}}
	if s.ToH == 0 {
		s.ToH = float64(o.Cases[0].Scenario.HorizonH)
	}
	for _, c := range o.Cases {
		s.Variants = append(s.Variants, c.Variant)
	}
	names := s.policies()
	g := &grid{Options: o, study: s, share: map[string]float64{}, runs: len(o.Cases) * len(o.Seeds) * len(names)}
	for _, c := range o.Cases {
		for _, seed := range o.Seeds {
			if err := g.world(ctx, c, seed, names); err != nil {
				if ctx.Err() == nil {
					return nil, err
				}
				s.Interrupted = true
			}
		}
	}
	s.Elapsed = time.Since(s.Started).Seconds()
	return s, nil
}

// grid is a study that is being made.
type grid struct {
	Options
	study *Study
	runs  int

	mu    sync.Mutex
	done  int
	share map[string]float64 // of the runs that go on
}

// world runs all policies in one world: they share it.
func (g *grid) world(ctx context.Context, c Case, seed uint64, names []string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	w, err := c.Scenario.Draw(seed, g.Draw)
	if err != nil {
		return fmt.Errorf("%s, seed %d: %w", c.Scenario.Name, seed, err)
	}
	for _, text := range w.Notes {
		if len(g.Seeds) > 1 {
			text = fmt.Sprintf("%s%d: %s", noteOf, seed, text)
		}
		if !slices.Contains(g.study.Notes, text) && len(g.study.Notes) < maxNotes {
			g.study.Notes = append(g.study.Notes, text)
		}
	}
	made := make([]*Run, len(names))
	errs := make([]error, len(names))
	workers := g.Workers
	if workers == 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	free := make(chan struct{}, workers)
	var all sync.WaitGroup
	for i, name := range names {
		free <- struct{}{}
		all.Go(func() {
			defer func() { <-free }()
			made[i], errs[i] = g.run(ctx, w, name, c.Name)
		})
	}
	all.Wait()
	static := made[slices.Index(names, Static)]
	for i, r := range made {
		if r == nil {
			continue
		}
		if r.judged() && static != nil && r != static {
			if r.Caused, err = sim.Caused(&r.Result, &static.Result); err != nil {
				errs[i] = err
			}
		}
	}
	for _, r := range made {
		if r != nil {
			for m := range r.Models { // one bit a request is for Caused alone
				r.Models[m].GoodBits = nil
			}
			g.study.Runs = append(g.study.Runs, *r)
		}
	}
	return errors.Join(errs...)
}

// noteOf is how a note of one of several seeds begins.
const noteOf = "seed "

// maxNotes bounds what the worlds say of themselves.
const maxNotes = 200

func (g *grid) run(ctx context.Context, w *scenario.World, policy, variant string) (*Run, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	what := fmt.Sprintf("%s, seed %d", policy, w.Seed)
	if len(g.Cases) > 1 {
		what = variant + ": " + what
	}
	g.tell(what, 0, false) // ours learns first, which takes a while
	began := time.Now()
	r, err := g.Simulate(ctx, w, policy, func(share float64) { g.tell(what, share, false) })
	g.tell(what, 1, true)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	r.Policy, r.Seed = policy, w.Seed
	return &Run{Variant: variant, Result: *r, Caused: []sim.Cause{}, Took: time.Since(began).Seconds()}, nil
}

// tell says how far it all is.
func (g *grid) tell(what string, share float64, ended bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.share[what] = share
	if ended {
		g.done++
		delete(g.share, what)
	}
	if g.OnProgress == nil {
		return
	}
	p := Progress{Done: g.done, Runs: g.runs}
	sum := float64(g.done)
	for now, share := range g.share {
		p.Now = append(p.Now, now)
		sum += share
	}
	slices.Sort(p.Now)
	p.Share = sum / float64(g.runs)
	g.OnProgress(p)
}
