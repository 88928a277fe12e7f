package search

import (
	"fmt"
	"math"
	"slices"
	"time"

	"aloft/loadgen"
	"aloft/loadgen/arrivals"
)

const maxRate = arrivals.MaxRate

// baseRate is the mean rate that a profile plans, in arrivals per second over
// all workloads.
func baseRate(o loadgen.Options) float64 {
	var rate float64
	for _, w := range o.Workloads {
		var n float64
		var d time.Duration
		for _, p := range w.Phases {
			n, d = n+p.Expected(), d+p.Duration
		}
		if d > 0 {
			rate += n / d.Seconds()
		}
	}
	return rate
}

// fits reports whether the profile can be searched with this SLO.
func (o Options) fits() error {
	streams := false
	for _, w := range o.Base.Workloads {
		streams = streams || w.Stream
		switch {
		case len(w.Phases) != 1:
			return fmt.Errorf("search: workload %q has %d phases: a search needs one, whose time it sets itself (for a warm-up there is warm_up)", w.Name, len(w.Phases))
		case w.Clients > 0:
			return fmt.Errorf("search: workload %q is a closed loop: it has no rate to scale", w.Name)
		}
		if _, stays := w.Phases[0].Process.Cycle(); !stays {
			return fmt.Errorf("search: workload %q has arrivals of kind %s, whose rate does not stay: there is none to find", w.Name, w.Phases[0].Process.Kind)
		}
	}
	if o.Base.Plan != "" {
		return fmt.Errorf("search: plan %q is sent as it stands: it has no rate to scale", o.Base.Plan)
	}
	for _, c := range o.SLO.Clauses {
		if c.streams() && !streams {
			return fmt.Errorf("search: %v needs a workload with stream: true", c)
		}
	}
	return nil
}

// full is how long a whole window at a rate is: whole cycles of the arrivals, if
// at least one fits in. memory is how long the queue was seen to remember.
func (o Options) full(rate float64, memory time.Duration) time.Duration {
	need := time.Duration(math.Min(float64(o.Requests)/rate*float64(time.Second), float64(o.MaxWindow)))
	is := min(max(o.Window, need, 2*minStretches*memory), o.MaxWindow)
	var cycle time.Duration
	for _, w := range o.Base.Workloads {
		c, _ := w.Phases[0].Process.Cycle()
		cycle = max(cycle, c)
	}
	if cycle == 0 || cycle > o.MaxWindow {
		return is
	}
	return min((is+cycle-1)/cycle, o.MaxWindow/cycle) * cycle
}

// profile is the base at another rate: what is planned, not what is drawn.
func (o Options) profile(rate float64, window time.Duration, seed uint64) (loadgen.Options, error) {
	out := o.Base
	out.Seed, out.WarmUp, out.SampleEvery = seed, o.WarmUp, window/samples
	out.Workloads = slices.Clone(out.Workloads)
	for i := range out.Workloads {
		w := &out.Workloads[i]
		w.Phases = slices.Clone(w.Phases)
		w.Phases[0].Duration = window
		if w.MaxInFlight == 0 {
			w.MaxInFlight = openRequests // the server's queue is to be seen, not that for a slot
		}
		o.SLO.goal(&w.Goal, w.Stream, o.Attain)
		w.Tenants = slices.Clone(w.Tenants)
		for j := range w.Tenants {
			if own := w.Tenants[j].Goal; own != nil {
				goal := *own
				o.SLO.goal(&goal, w.Stream, o.Attain)
				w.Tenants[j].Goal = &goal
			}
		}
	}
	factor := rate / baseRate(out) // over this window, which may cut a cycle
	for i := range out.Workloads {
		p := &out.Workloads[i].Phases[0].Process
		var err error
		if *p, err = p.Scaled(factor); err != nil {
			return out, fmt.Errorf("search: workload %q: %w", out.Workloads[i].Name, err)
		}
	}
	return out, nil
}

// openRequests is how many requests of a workload may be open at once where the
// profile does not say.
const openRequests = 4096

// seedOf gives every run a seed of its own, which a rerun gives it again.
func seedOf(seed uint64, run int) uint64 {
	return arrivals.Scramble(seed + arrivals.Scramble(uint64(run)))
}
