package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"aloft/arbiter"
	"aloft/sim"
	"aloft/sim/scenario"
	"aloft/sim/study"
)

// tuneLimits is what a replay cannot know.
const tuneLimits = "arrivals as recorded, replicas as fast as the server has fitted them, starts those of the standard scenarios, instances as they are; "

// tuneSetting is one point of the grid.
type tuneSetting struct {
	Name         string        `json:"setting"`
	Follows      bool          `json:"follows_laws"` // or what holds until a law has been learned: quantile and hold
	Risk         arbiter.Risk  `json:"risk"`
	LendAbove    float64       `json:"lend_above"`
	ReclaimBelow float64       `json:"reclaim_below"`
	Spare        int           `json:"spare"`
	Quantile     float64       `json:"rise_quantile"`
	Hold         time.Duration `json:"hold_ns"`
}

// tuneRun is what a setting came to.
type tuneRun struct {
	tuneSetting
	Aloft      float64 `json:"aloft_ratio"`
	LentH      float64 `json:"lent_slice_h"`
	Attainment float64 `json:"attainment_worst"` // of the worst model
	Caused     float64 `json:"caused_per_100k"`  // misses that a static split would not have had
	Lost       float64 `json:"lost"`             // job work, over progress
	Kept       int     `json:"reclaims_kept"`
	Broken     int     `json:"reclaims_broken"`
	Queued     float64 `json:"mean_queued_s"` // of the recorded jobs
	Safe       bool    `json:"safe"`
}

// tuneLaw is a model's law, and what it would have done where it was learned.
type tuneLaw struct {
	Name string       `json:"model"`
	Risk arbiter.Risk `json:"risk"`
	arbiter.Trial
}

// tuneProposal is what to set; Keep = nothing better was found.
type tuneProposal struct {
	tuneSetting
	Keep   bool    `json:"keep"`
	Gain   float64 `json:"gain_aloft_ratio"` // over the settings as they are
	Caused float64 `json:"caused_per_100k"`
	Says   string  `json:"says"`
}

// tuning is a replay under a grid of settings.
type tuning struct {
	Modelled  string       `json:"modelled"`
	Recording string       `json:"recording"`
	Cut       string       `json:"cut,omitempty"`
	Hours     float64      `json:"replayed_h"`
	Jobs      int          `json:"recorded_jobs"`           // 0 = a queue that never ends stands for them
	LeftOut   int          `json:"jobs_left_out,omitempty"` // no slice here is of their shape
	Learned   float64      `json:"learned_from_h"`          // before the replayed hours; 0 = from these
	Ledger    *Report      `json:"ledger,omitempty"`
	Models    []tuneLaw    `json:"laws"`
	Runs      []tuneRun    `json:"runs"` // static first, then the settings as they are
	Proposal  tuneProposal `json:"proposal"`

	conf        *Config
	world, past *scenario.World
	node        *sim.Node
	laws        map[arbiter.Risk]map[string]arbiter.Law
	workers     int
}

// The grid. The settings in force are always in it.
var (
	tuneMarks     = [][2]float64{{0.25, 0.10}, {0.35, 0.15}, {0.5, 0.25}} // lend_above, reclaim_below
	tuneSpares    = []int{0, 1}
	tuneQuantiles = []float64{0.99, 0.999, 1}
	tuneHolds     = []time.Duration{10 * time.Second, 30 * time.Second, 2 * time.Minute}
)

// Most that a proposal may cost, as the arbiter's own marks have it.
const (
	tuneCaused = 20    // misses caused per 100,000 requests
	tuneAttain = 0.001 // below static, of the worst model
	tuneWorth  = 0.002 // of aloft ratio: less is no reason to change anything
)

// settings are the grid, the settings in force first.
func (t *tuning) settings() []tuneSetting {
	a := t.conf.Arbiter
	now := tuneSetting{Name: "as it is", Follows: true, Risk: arbiter.Risk(a.Risk), LendAbove: a.LendAbove, ReclaimBelow: a.ReclaimBelow, Spare: a.Spare,
		Quantile: a.RiseQuantile, Hold: a.Hold}
	if now.Risk == "" {
		now.Risk = arbiter.Normal
	}
	all := []tuneSetting{now}
	add := func(s tuneSetting) {
		same := func(o tuneSetting) bool { o.Name, s.Name = "", ""; return o == s }
		if name := s.Name; !slices.ContainsFunc(all, same) {
			s.Name = name
			all = append(all, s)
		}
	}
	for _, risk := range []arbiter.Risk{arbiter.Normal, arbiter.Strict} {
		for _, marks := range tuneMarks {
			for _, spare := range tuneSpares {
				s := now
				s.Risk, s.LendAbove, s.ReclaimBelow, s.Spare = risk, marks[0], marks[1], spare
				s.Name = fmt.Sprintf("%s, marks %g and %g, spare %d", risk, marks[0], marks[1], spare)
				if risk == arbiter.Strict { // keeps none
					s.Spare, s.Name = now.Spare, fmt.Sprintf("%s, marks %g and %g", risk, marks[0], marks[1])
				}
				add(s)
			}
		}
	}
	now.Follows, now.Name = false, "no law yet: as it is"
	add(now)
	for _, q := range tuneQuantiles {
		for _, hold := range tuneHolds {
			s := now
			s.Quantile, s.Hold, s.Name = q, hold, fmt.Sprintf("no law yet: quantile %g, hold %v", q, hold)
			add(s)
		}
	}
	return all
}

// run simulates all settings, and the static split beside them.
func (t *tuning) run(ctx context.Context, view *progress) error {
	t.laws = map[arbiter.Risk]map[string]arbiter.Law{}
	for _, risk := range []arbiter.Risk{arbiter.Normal, arbiter.Strict} {
		t.laws[risk] = map[string]arbiter.Law{}
		trials := sim.LearnFrom(t.past, t.conf.Arbiter.Rho, risk == arbiter.Strict)
		for _, m := range t.past.Scenario.Models {
			if trial, ok := trials[m.Name]; ok {
				t.laws[risk][m.Name] = trial.Law
				t.Models = append(t.Models, tuneLaw{m.Name, risk, trial})
			}
		}
	}
	settings, names := t.settings(), []string{}
	for _, s := range settings {
		names = append(names, s.Name)
	}
	result, err := study.Grid(ctx, study.Options{Cases: []study.Case{{Variant: study.Variant{Name: study.AsIs}, Scenario: t.world.Scenario}}, Policies: names,
		Seeds: []uint64{1}, Workers: t.workers, OnProgress: studied(view),
		Simulate: func(ctx context.Context, w *scenario.World, name string, progress func(float64)) (*sim.Result, error) {
			p, err := t.policy(w.Scenario, settings, name)
			if err != nil {
				return nil, err
			}
			asked := *w // as drawn, with the jobs that were recorded
			asked.Jobs, asked.Backlog = t.world.Jobs, t.world.Backlog
			return study.Simulate(ctx, &asked, p, sim.Options{Name: name, Window: t.conf.Arbiter.Window, Node: t.node}, progress)
		}})
	if err != nil {
		return err
	}
	if result.Interrupted {
		return coded(exitNotHeld, fmt.Errorf("tune: ended before the %d settings were replayed", len(settings)))
	}
	static := result.Find(study.AsIs, study.Static, 1)
	t.Runs = []tuneRun{came(tuneSetting{Name: "static split"}, static, static)}
	for _, s := range settings {
		t.Runs = append(t.Runs, came(s, result.Find(study.AsIs, s.Name, 1), static))
	}
	t.Proposal = propose(t.Runs[1:])
	return nil
}

// policy is the arbiter with a setting of the grid, or the static split.
func (t *tuning) policy(s *scenario.Scenario, all []tuneSetting, name string) (sim.Policy, error) {
	x, a, mode := all[0], t.conf.Arbiter, arbiter.ModeStatic
	if i := slices.IndexFunc(all, func(x tuneSetting) bool { return x.Name == name }); i >= 0 {
		x, mode = all[i], arbiter.ModeLend
	} else if name != study.Static {
		return nil, fmt.Errorf("BUG: %q is no setting", name)
	}
	var laws map[string]arbiter.Law
	if x.Follows {
		laws = t.laws[x.Risk]
	}
	o := sim.OursOptions(s, laws)
	budget := o.Policy.Budget // of the simulated starts: the configured one is of the real ones
	o.Policy = arbiter.Policy{Mode: mode, Risk: x.Risk, LendAbove: x.LendAbove, ReclaimBelow: x.ReclaimBelow, Hold: x.Hold, AfterReclaim: a.AfterReclaim,
		MinSamples: a.MinSamples, Rho: a.Rho, Spare: x.Spare, MaxEta: a.MaxEta, Budget: budget}
	o.Guard, o.Plan, o.Geometry, o.RiseQuantile = a.Guard, a.Plan, max(a.Plan, geometryPeriod), x.Quantile
	return sim.NewOurs(o)
}

// came sums a run up.
func came(s tuneSetting, r, static *study.Run) tuneRun {
	out := tuneRun{tuneSetting: s, Aloft: r.Aloft, Attainment: lowest(r), Lost: r.Jobs.Lost, LentH: (r.Ledger[arbiter.JobUseful] + r.Ledger[arbiter.LostWork]) / 3600}
	if n := len(r.Caused); n > 0 {
		out.Caused = r.Caused[n-1].GrossPer
	}
	out.Queued = r.Jobs.Queueing.Mean
	out.Kept, out.Broken, _ = r.Reclaimed()
	out.Safe = out.Caused <= tuneCaused && out.Attainment >= lowest(static)-tuneAttain && out.Broken == 0
	return out
}

func lowest(r *study.Run) float64 {
	least := 1.0
	for _, m := range r.Models {
		least = min(least, m.Attainment)
	}
	return least
}

// propose takes the safest setting with most gain: risk, marks and spare among those
// that follow laws, quantile and hold among those that have none yet.
func propose(runs []tuneRun) tuneProposal {
	now := runs[0]
	best := func(follows bool) tuneRun {
		var best tuneRun
		for _, r := range runs {
			switch {
			case r.Follows != follows:
			case best.Name == "", r.Safe && !best.Safe:
				best = r
			case r.Safe != best.Safe:
			case !r.Safe && r.Caused < best.Caused, r.Safe && r.Aloft >= best.Aloft+tuneWorth:
				best = r
			}
		}
		return best
	}
	law, without := best(true), best(false)
	p := tuneProposal{tuneSetting: law.tuneSetting, Gain: law.Aloft - now.Aloft, Caused: law.Caused}
	p.Quantile, p.Hold = without.Quantile, without.Hold
	p.Keep = law.Name == now.Name && p.Quantile == now.Quantile && p.Hold == now.Hold
	switch {
	case p.Keep && !now.Safe:
		p.Says = "No setting of the grid is safer than those in force, which caused more misses than they should: more replicas, or mode static, would help."
	case p.Keep:
		p.Says = "The settings in force are as good as any in the grid; keep them."
	case !law.Safe:
		p.Says = fmt.Sprintf("Nothing in the grid is safe enough; this is the least risky: %.1f misses caused per 100,000 requests instead of %.1f, aloft ratio %.3f instead of %.3f.", law.Caused, now.Caused, law.Aloft, now.Aloft)
	default:
		p.Says = fmt.Sprintf("Expected: aloft ratio %.3f instead of %.3f (%+.1f slice-hours lent in the replayed time), at %.1f misses caused per 100,000 requests instead of %.1f; the worst model at %.2f %%. Until laws are learned: quantile %g and hold %v lent most that was safe.",
			law.Aloft, now.Aloft, law.LentH-now.LentH, law.Caused, now.Caused, 100*law.Attainment, p.Quantile, p.Hold)
	}
	return p
}
