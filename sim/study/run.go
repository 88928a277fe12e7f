package study

import (
	"context"
	"time"

	"aloft/sim"
	"aloft/sim/scenario"
)

// Simulate runs one policy in a world; progress is told how far it is, from 0 to 1.
// When ctx ends it returns at once, and leaves the run to the end of the program.
func Simulate(ctx context.Context, w *scenario.World, p sim.Policy, o sim.Options, progress func(float64)) (*sim.Result, error) {
	type ended struct {
		*sim.Result
		error
	}
	o.Progress = func(at, horizon time.Duration) {
		if ctx.Err() == nil {
			progress(at.Seconds() / horizon.Seconds())
		}
	}
	end := make(chan ended, 1)
	go func() {
		r, err := sim.Run(w, p, o)
		end <- ended{r, err}
	}()
	select {
	case e := <-end:
		return e.Result, e.error
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
