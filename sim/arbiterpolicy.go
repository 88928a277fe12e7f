package sim

import (
	"fmt"
	"math"
	"time"

	"aloft/arbiter"
	"aloft/sim/scenario"
)

// Ours is the arbiter's core as a policy: the code that decides live.
type Ours struct {
	core    *arbiter.Core
	every   time.Duration
	allowed []arbiter.Allowance // by the last look: work that may still come, sequences in flight
}

// NewOurs makes one that has seen nothing yet.
func NewOurs(o arbiter.CoreOptions) (*Ours, error) {
	core, err := arbiter.NewCore(o)
	if err != nil {
		return nil, err
	}
	return &Ours{core: core, every: o.Guard}, nil
}

// OursOptions are the settings of every scenario: what differs between them is
// what was learned of their models.
func OursOptions(s *scenario.Scenario, laws map[string]arbiter.Law) arbiter.CoreOptions {
	fast, slow := horizons(s)
	return arbiter.CoreOptions{
		Policy: arbiter.Policy{Mode: arbiter.ModeLend, LendAbove: 0.35, ReclaimBelow: 0.15, Hold: 30 * time.Second,
			AfterReclaim: 30 * time.Second, MinSamples: 100, Rho: rho, Spare: 1, MaxEta: 0.8,
			Budget: arbiter.Budget{Detect: guard, Kill: killBudget, Back: wakeBudget(s)}},
		Guard: guard, Plan: 10 * time.Second, Geometry: 10 * time.Minute,
		FastHorizon: fast, SlowHorizon: slow, RiseQuantile: 0.999, Laws: laws}
}

// guard is how often ours looks at least, rho the part of a replica's time that merged
// calls may take.
const (
	guard = 500 * time.Millisecond
	rho   = 0.8
)

// wakeBudget is the longest of the models' budgets for a wake.
func wakeBudget(s *scenario.Scenario) (most time.Duration) {
	for i := range s.Models {
		start := s.Models[i].Start
		most = max(most, times(start.WakeMedianS.Duration(), math.Exp(startSigmas*start.Sigma)))
	}
	return most
}

// horizons are the reclaim times of the two classes: the stop or the grace, and a
// wake's p99. A burst is looked at within 20 ms, so that no guard period comes before.
func horizons(s *scenario.Scenario) (fast, slow time.Duration) {
	back := time.Duration(0)
	for i := range s.Models {
		start := s.Models[i].Start
		back = max(back, times(start.WakeMedianS.Duration(), p99Of(start.Sigma)))
	}
	stop := max(s.Jobs.Embed.StopS, s.Jobs.Quantize.StopS, s.Backlog.StopS).Duration()
	return stop + back, max(stop, s.Jobs.Train.GraceS.Duration()) + back
}

// Every is the guard period.
func (p *Ours) Every() time.Duration { return p.every }

// Look lets the core decide.
func (p *Ours) Look(o arbiter.Observation, v *View) []arbiter.Order {
	orders := p.core.Look(o)
	for _, s := range p.core.Settings() {
		v.Tune(s)
	}
	p.allowed = p.core.Allows(p.allowed[:0])
	for i := range p.allowed {
		p.allowed[i].Sequences += o.Models[i].InFlight
	}
	return orders
}

// Arrived counts down what the last look allowed for.
func (p *Ours) Arrived(model int, work float64, inFlight int) bool {
	if len(p.allowed) == 0 {
		return false // the first look is due anyway
	}
	a := &p.allowed[model]
	a.Work -= work
	return a.Work < 0 || float64(inFlight) > a.Sequences
}

// Settle tells the core how an order ended.
func (p *Ours) Settle(now time.Time, o arbiter.Outcome) { p.core.Settle(now, o) }

// Cap is how many slices it may lend at once after a broken bound; 0 = all.
func (p *Ours) Cap() int { return p.core.Cap() }

// Core is what decides, to be asked for its numbers.
func (p *Ours) Core() *arbiter.Core { return p.core }

// Learn finds each model's law from histories of the scenario: draws with seeds
// that the runs do not use. Strict laws cover the worst rise ever seen.
func Learn(s *scenario.Scenario, seeds []uint64, o scenario.DrawOptions, strict bool) (map[string]arbiter.Law, error) {
	past := map[string]*arbiter.Past{}
	for _, seed := range seeds {
		w, err := s.Draw(seed, o)
		if err != nil {
			return nil, fmt.Errorf("sim: history of seed %d: %w", seed, err)
		}
		for i := range w.Traffic {
			t := &w.Traffic[i]
			p := past[t.Model.Name]
			if p == nil {
				p = &arbiter.Past{}
				past[t.Model.Name] = p
			}
			// Not the start: replicas begin ready and the traffic at nothing, a rise
			// that no day has.
			h, from := history(t, w.Horizon, rho), int(s.Measure.WarmUpS)
			p.Level, p.Work = append(p.Level, h.Level[min(from, len(h.Level)):]...), append(p.Work, h.Work[min(from, len(h.Work)):]...)
		}
	}
	fast, slow := horizons(s)
	laws := map[string]arbiter.Law{}
	for i := range s.Models {
		m := &s.Models[i]
		law := arbiter.Learn(*past[m.Name], arbiter.LearnOptions{Share: m.Static, Fast: fast, Slow: slow, Slack: m.SLO.TTFTS.Duration(),
			OutBack: outBack(s, m), Budget: arbiter.LateBudget, Strict: strict}).Law
		if law.Learned() {
			laws[m.Name] = law
		}
	}
	return laws, nil
}

// outBack is what a loan to the backlog costs in all: it starts, stops and computes
// rows again, and the replica wakes; half as much again for the drain before it and
// for foreground work that is hit as well.
func outBack(s *scenario.Scenario, m *scenario.Model) time.Duration {
	b := s.Backlog
	return (b.StartS + b.StopS + b.LosesS + m.Start.WakeMedianS).Duration() * 3 / 2
}
