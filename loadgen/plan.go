package loadgen

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"aloft/loadgen/arrivals"
)

// Arrivals and texts of workload i have random streams of their own.
func arrivalStream(i int) uint64 { return uint64(2 * i) }
func textStream(i int) uint64    { return uint64(2*i + 1) }

// plan computes every workload's schedule, or reads the saved one. The bound on
// arrivals holds for the run as a whole.
func (o Options) plan() ([]arrivals.Plan, error) {
	if o.Plan != "" {
		return o.savedPlan()
	}
	plans, left := make([]arrivals.Plan, len(o.Workloads)), arrivals.MaxPlan
	for i, w := range o.Workloads {
		if left == 0 {
			return nil, fmt.Errorf("loadgen: workload %q: the run already has %d arrivals", w.Name, arrivals.MaxPlan)
		}
		spec := arrivals.Spec{
			Seed: o.Seed, Stream: arrivalStream(i), WarmUp: o.WarmUp, Phases: w.Phases,
			Closed: w.Clients > 0, Input: w.InputTokens, Output: w.OutputTokens, Open: o.Open,
		}
		for _, t := range w.Tenants {
			spec.Tenants = append(spec.Tenants, arrivals.Tenant{Name: t.Name, Share: t.Share})
		}
		var err error
		if plans[i], err = arrivals.Build(spec, left); err != nil {
			return nil, arrivals.Keyed(fmt.Sprintf("workloads[%d]", i), fmt.Errorf("loadgen: workload %q: %w", w.Name, err))
		}
		left -= len(plans[i].Offsets)
	}
	return plans, nil
}

// savedPlan reads the plan's file. The profile's workloads must be those that it
// was made for, since it says when to send and how much, and they say what; a
// phase that the profile names must be the plan's.
func (o Options) savedPlan() ([]arrivals.Plan, error) {
	var saved arrivals.Saved
	err := o.with(o.Plan, func(r io.Reader) (err error) {
		saved, err = arrivals.Load(r)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("loadgen: plan %s: %w", o.Plan, err)
	}
	if len(saved.Workloads) != len(o.Workloads) {
		return nil, fmt.Errorf("loadgen: plan %s is for %d workloads, the profile has %d", o.Plan, len(saved.Workloads), len(o.Workloads))
	}
	plans, series := make([]arrivals.Plan, len(o.Workloads)), 0
	for i, w := range o.Workloads {
		p := saved.Workloads[i]
		if err := fits(w, p, o.WarmUp); err != nil {
			return nil, fmt.Errorf("loadgen: plan %s: workload %q: %w", o.Plan, w.Name, err)
		}
		plans[i] = p.Plan
		plans[i].Notes = append(slices.Clone(p.Plan.Notes), fmt.Sprintf("sent as it was saved in %s, made from profile %q with seed %d", o.Plan, saved.Profile, saved.Seed))
		series += len(p.Plan.Spans)
	}
	if series > maxSeries {
		return nil, fmt.Errorf("loadgen: plan %s: %d phases over all workloads, want at most %d", o.Plan, series, maxSeries)
	}
	return plans, nil
}

// fits says why a saved plan cannot be sent by a workload.
func fits(w Workload, p arrivals.Planned, warm time.Duration) error {
	if p.Name != w.Name {
		return fmt.Errorf("the plan has %q in its place", p.Name)
	}
	if w.Clients > 0 {
		return errors.New("it is a closed loop, which sends no plan")
	}
	if got := p.Plan.WarmUp(); got != warm {
		return fmt.Errorf("the plan has a warm-up of %v, the profile of %v", got, warm)
	}
	var phases, spans []string
	for _, ph := range w.Phases {
		phases = append(phases, ph.Name)
	}
	for _, s := range p.Plan.Spans {
		spans = append(spans, s.Name)
	}
	if len(phases) > 0 && !slices.Equal(phases, spans) {
		return fmt.Errorf("the plan has phases %q, the profile %q", spans, phases)
	}
	for i, s := range p.Plan.Shapes {
		if int(s.Tenant) >= max(1, len(w.Tenants)) {
			return fmt.Errorf("request %d is of tenant %d, and the profile has %d", i, s.Tenant+1, len(w.Tenants))
		}
	}
	return nil
}

// Planned is what is planned of one workload.
type Planned struct {
	Name     string
	Hash     string
	Arrivals int
	Length   time.Duration // of the phases
	Notes    []string
}

// WritePlan plans a run and writes the plan as a file that Options.Plan names
// later, without sending anything.
func WritePlan(w io.Writer, opt Options) ([]Planned, error) {
	if err := opt.Validate(); err != nil {
		return nil, err
	}
	if opt.Plan != "" {
		return nil, errors.New("loadgen: plan: the profile has a saved plan already")
	}
	opt = opt.withDefaults()
	plans, err := opt.plan()
	if err != nil {
		return nil, err
	}
	saved := arrivals.Saved{Profile: opt.Name, Seed: opt.Seed}
	var out []Planned
	for i, p := range plans {
		name := opt.Workloads[i].Name
		saved.Workloads = append(saved.Workloads, arrivals.Planned{Name: name, Plan: p})
		out = append(out, Planned{name, p.Hash(), len(p.Offsets), p.End(), p.Notes})
	}
	if err := arrivals.Save(w, saved); err != nil {
		return nil, fmt.Errorf("loadgen: %w", err)
	}
	return out, nil
}
