package study

import (
	"context"
	"sync"

	"aloft/arbiter"
	"aloft/sim"
	"aloft/sim/rivals"
	"aloft/sim/scenario"
)

// The policies that are no rivals.
const (
	Ours   = "ours"
	Strict = "strict" // ours with risk: strict
	Bound  = "bound"  // no policy but a limit: serving costs its knee work and nothing else, jobs take the rest
)

// Policies are all that can be simulated, in the order of reports.
func Policies() []string {
	out := []string{Static, Ours, Strict}
	for _, name := range rivals.Names() {
		if name != Static {
			out = append(out, name)
		}
	}
	return append(out, Bound)
}

// HistorySeeds draw the histories that ours learns from; whoever judges draws others.
var HistorySeeds = []uint64{1001, 1002, 1003}

// Simulator runs policies by their names. What ours learns of a scenario it
// learns once, from histories with other seeds.
type Simulator struct {
	// Traces is the folder of traces that the binary does not hold.
	Traces string
	// Spans bounds what the chart of slices is drawn from, of each run.
	Spans int
	// Ours changes the settings of ours and strict; nil = they stand as they are.
	Ours func(*arbiter.CoreOptions)

	mu   sync.Mutex
	laws map[lesson]func() (map[string]arbiter.Law, error)
}

// lesson is what laws are learned of. Variants of a scenario share its name.
type lesson struct {
	of       *scenario.Scenario
	from, to scenario.Hours
	strict   bool
}

// learn may be called by several runs at once.
func (s *Simulator) learn(w *scenario.World, strict bool) (map[string]arbiter.Law, error) {
	of := lesson{w.Scenario, scenario.Hours(w.From.Hours()), scenario.Hours((w.From + w.Horizon).Hours()), strict}
	s.mu.Lock()
	laws := s.laws[of]
	if laws == nil {
		laws = sync.OnceValues(func() (map[string]arbiter.Law, error) {
			return sim.Learn(of.of, HistorySeeds, scenario.DrawOptions{Traces: s.Traces, From: of.from, To: of.to}, strict)
		})
		if s.laws == nil {
			s.laws = map[lesson]func() (map[string]arbiter.Law, error){}
		}
		s.laws[of] = laws
	}
	s.mu.Unlock()
	return laws()
}

func (s *Simulator) policy(w *scenario.World, name string) (sim.Policy, error) {
	switch name {
	case Ours, Strict:
		laws, err := s.learn(w, name == Strict)
		if err != nil {
			return nil, err
		}
		o := sim.OursOptions(w.Scenario, laws)
		if name == Strict {
			o.Policy.Risk, o.Policy.Spare = arbiter.Strict, 0
		}
		if s.Ours != nil {
			s.Ours(&o)
		}
		return sim.NewOurs(o)
	}
	return rivals.New(name)
}

// Simulate runs a policy by its name; it is for Options.
func (s *Simulator) Simulate(ctx context.Context, w *scenario.World, name string, progress func(float64)) (*sim.Result, error) {
	if name == Bound {
		return sim.Fluid(w), nil
	}
	p, err := s.policy(w, name)
	if err != nil {
		return nil, err
	}
	return Simulate(ctx, w, p, sim.Options{Name: name, Spans: s.Spans}, progress)
}
