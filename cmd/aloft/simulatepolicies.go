package main

import (
	"context"
	"errors"

	"aloft/sim"
	"aloft/sim/scenario"
)

// policyNames are the policies that can be simulated, ours first.
func policyNames() []string {
	return []string{"static", "ours", "strict", "fifo", "hpa", "lyra", "kueue", "pilot", "bound"}
}

// simulated runs a policy in a world.
func simulated(ctx context.Context, w *scenario.World, policy string, progress func(float64)) (*sim.Result, error) {
	return nil, errors.New("the engine has not landed")
}
