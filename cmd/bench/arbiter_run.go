package main

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"aloft/sim"
	"aloft/sim/scenario"
	lending "aloft/sim/study"
)

// workers is how many runs go on at once: a day of 64 GPUs takes up to 500 MB.
const workers = 2

// ground is the world of one seed, drawn once for all its runs and given up
// after the last.
type ground struct {
	bout *bout
	seed uint64
	once sync.Once
	w    *scenario.World
	err  error

	mu   sync.Mutex
	left int
	runs map[task]*lending.Run
}

// task is one run.
type task struct {
	policy string
	rows   bool
}

// fight is a task in its world.
type fight struct {
	*ground
	task
}

// draw draws the world. With rows it is the same, but for that.
func (g *ground) draw(rows bool) (*scenario.World, error) {
	g.once.Do(func() {
		s, err := g.bout.load()
		if err == nil {
			g.w, err = s.Draw(g.seed, scenario.DrawOptions{From: g.bout.from, To: g.bout.to})
		}
		g.err = err
	})
	if g.err != nil || !rows {
		return g.w, g.err
	}
	w := *g.w
	w.Rows = true
	return &w, nil
}

// fights lists the runs, world by world.
func fights(list []*bout) []fight {
	var out []fight
	for _, b := range list {
		for i, seed := range b.seeds {
			g := &ground{bout: b, seed: seed, runs: map[task]*lending.Run{}}
			for rows, entries := range [][]entry{b.entries, b.rows} {
				for _, e := range entries {
					if e.seeds == 0 || i < e.seeds {
						out = append(out, fight{g, task{e.policy, rows == 1}})
						g.left++
					}
				}
			}
		}
	}
	return out
}

// runBouts runs everything, two runs at a time.
func runBouts(ctx context.Context, l *lab, list []*bout) error {
	defer debug.SetGCPercent(debug.SetGCPercent(50)) // worlds are large and live long
	for _, b := range list {
		b.found, b.rowed = b.study(b.entries, false), b.study(b.rows, true)
		b.load = sync.OnceValues(func() (*scenario.Scenario, error) { return scenario.Load(b.scenario) })
	}
	jobs := fights(list)
	arms := newArms()
	began := time.Now()
	next := make(chan fight)
	errs := make([]error, workers)
	var all sync.WaitGroup
	var mu sync.Mutex
	done := 0
	for i := range workers {
		all.Go(func() {
			for j := range next {
				if errs[i] != nil {
					continue // the rest is not run
				}
				said, err := j.run(ctx, arms)
				errs[i] = err
				mu.Lock()
				done++
				l.say("arbiter: %d of %d, %.0f s: %s", done, len(jobs), time.Since(began).Seconds(), said)
				mu.Unlock()
			}
		})
	}
	for _, j := range jobs {
		if ctx.Err() != nil {
			break
		}
		next <- j
	}
	close(next)
	all.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errors.Join(errs...)
}

// study is an empty study of the bout.
func (b *bout) study(entries []entry, rows bool) *lending.Study {
	s := &lending.Study{Schema: lending.Schema, Modelled: lending.Modelled, Scenario: b.scenario, FromH: float64(b.from), ToH: float64(b.to),
		Rows: rows, Seeds: b.seeds, Variants: []lending.Variant{{Name: lending.AsIs}}}
	for _, e := range entries {
		s.Policies = append(s.Policies, e.policy)
	}
	return s
}

// run makes one run and says what it came to.
func (j fight) run(ctx context.Context, arms *arms) (string, error) {
	what := fmt.Sprintf("%s, seed %d, %s", j.bout.scenario, j.seed, j.policy)
	if j.rows {
		what += " + rows"
	}
	w, err := j.draw(j.rows)
	if err != nil {
		return what, err
	}
	began := time.Now()
	r, err := arms.simulate(ctx, w, j.policy)
	if err != nil {
		return what, fmt.Errorf("%s: %w", what, err)
	}
	r.Policy, r.Seed = j.policy, j.seed
	r.Series, r.Spans = sim.Series{}, sim.Spans{} // nobody draws them here
	run := &lending.Run{Variant: lending.AsIs, Result: *r, Took: time.Since(began).Seconds()}
	return fmt.Sprintf("%s: aloft %.3f, attained %.3f %%, %.1f s", what, r.Aloft, 100*r.Total.Attainment, run.Took), j.keep(run)
}

// keep files a run; with the last of its world, misses caused are counted, the
// world is given up and the runs go into the bout's studies.
func (j fight) keep(run *lending.Run) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.runs[j.task] = run
	if j.left--; j.left > 0 {
		return nil
	}
	static := j.runs[task{staticArm, false}]
	b := j.bout
	b.mu.Lock()
	defer b.mu.Unlock()
	for t, r := range j.runs {
		if r.Total.Requests > 0 && r != static { // the bound serves none
			caused, err := sim.Caused(&r.Result, &static.Result)
			if err != nil {
				return err
			}
			r.Caused = caused
		}
		s := b.found
		if t.rows {
			s = b.rowed
		}
		s.Runs = append(s.Runs, *r)
	}
	for _, r := range slices.Concat(b.found.Runs, b.rowed.Runs) {
		for m := range r.Models { // one bit a request is for the counting alone
			r.Models[m].GoodBits = nil
		}
	}
	j.w, j.runs = nil, nil
	return nil
}
