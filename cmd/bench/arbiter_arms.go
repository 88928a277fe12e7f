package main

import (
	"context"

	"aloft/arbiter"
	"aloft/sim"
	"aloft/sim/rivals"
	"aloft/sim/scenario"
	lending "aloft/sim/study"
)

// The policies by their names in tables.
const (
	oursArm   = lending.Ours
	strictArm = lending.Strict
	eagerArm  = "ours, eager" // the batcher's patience is not steered
	staticArm = lending.Static
	pilotArm  = rivals.Pilot
	boundArm  = lending.Bound
	fifoArm   = rivals.FIFO
	hpaArm    = rivals.HPA
	lyraArm   = rivals.Lyra
	kueueArm  = rivals.Kueue // with a tuned hold
)

// arms makes policies. What ours learns of a scenario it learns once.
type arms struct{ usual, eager lending.Simulator }

func newArms() *arms {
	return &arms{eager: lending.Simulator{Ours: func(o *arbiter.CoreOptions) { o.Policy.MaxEta = 0 }}}
}

// simulate runs a policy in a world.
func (a *arms) simulate(ctx context.Context, w *scenario.World, policy string) (*sim.Result, error) {
	if policy == eagerArm {
		return a.eager.Simulate(ctx, w, oursArm, func(float64) {})
	}
	return a.usual.Simulate(ctx, w, policy, func(float64) {})
}
