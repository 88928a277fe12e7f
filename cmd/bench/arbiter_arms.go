package main

import (
	"context"
	"sync"

	"aloft/arbiter"
	"aloft/sim"
	"aloft/sim/rivals"
	"aloft/sim/scenario"
)

// historySeeds draw the histories that ours learns from; none of them is judged.
var historySeeds = []uint64{1001, 1002, 1003}

// arms makes policies. What ours learns of a scenario it learns once.
type arms struct {
	mu   sync.Mutex
	laws map[lesson]func() (map[string]arbiter.Law, error)
}

// lesson is what laws are learned of.
type lesson struct {
	scenario string
	from, to scenario.Hours
	strict   bool
}

func newArms() *arms { return &arms{laws: map[lesson]func() (map[string]arbiter.Law, error){}} }

// learn is called by several runs at once, and learns once.
func (a *arms) learn(w *scenario.World, strict bool) (map[string]arbiter.Law, error) {
	of := lesson{w.Scenario.Name, scenario.Hours(w.From.Hours()), scenario.Hours((w.From + w.Horizon).Hours()), strict}
	a.mu.Lock()
	laws := a.laws[of]
	if laws == nil {
		s := w.Scenario
		laws = sync.OnceValues(func() (map[string]arbiter.Law, error) {
			return sim.Learn(s, historySeeds, scenario.DrawOptions{From: of.from, To: of.to}, strict)
		})
		a.laws[of] = laws
	}
	a.mu.Unlock()
	return laws()
}

// simulate runs a policy in a world.
func (a *arms) simulate(ctx context.Context, w *scenario.World, policy string) (*sim.Result, error) {
	if policy == boundArm {
		return sim.Fluid(w), nil
	}
	p, err := a.policy(w, policy)
	if err != nil {
		return nil, err
	}
	return sim.Run(w, p, sim.Options{Name: policy})
}

func (a *arms) policy(w *scenario.World, name string) (sim.Policy, error) {
	switch name {
	case oursArm, strictArm, eagerArm:
		laws, err := a.learn(w, name == strictArm)
		if err != nil {
			return nil, err
		}
		o := sim.OursOptions(w.Scenario, laws)
		switch name {
		case eagerArm:
			o.Policy.MaxEta = 0
		case strictArm:
			o.Policy.Risk = arbiter.Strict
		}
		return sim.NewOurs(o)
	}
	return rivals.New(name)
}
