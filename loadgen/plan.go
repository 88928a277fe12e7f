package loadgen

import (
	"fmt"
	"time"

	"aloft/loadgen/arrivals"
)

// Arrivals, texts and the warm-up of workload i have random streams of their own.
func arrivalStream(i int) uint64 { return uint64(2 * i) }
func textStream(i int) uint64    { return uint64(2*i + 1) }
func warmStream(i int) uint64    { return 1<<32 + uint64(i) }

// plan computes every workload's schedule. The bound on arrivals holds for the
// run as a whole.
func (o Options) plan() ([]arrivals.Plan, error) {
	plans, left := make([]arrivals.Plan, len(o.Workloads)), arrivals.MaxPlan
	for i, w := range o.Workloads {
		if w.Clients > 0 {
			plans[i] = unplanned(w.Phases)
			continue
		}
		if left == 0 {
			return nil, fmt.Errorf("loadgen: workload %q: the run already has %d arrivals", w.Name, arrivals.MaxPlan)
		}
		var err error
		if plans[i], err = arrivals.Build(arrivals.Rand(o.Seed, arrivalStream(i)), w.Phases, left); err != nil {
			return nil, fmt.Errorf("loadgen: workload %q: %w", w.Name, err)
		}
		left -= len(plans[i].Offsets)
	}
	return plans, nil
}

// unplanned are the phases of a closed loop, in which the server's answers say
// when requests come.
func unplanned(phases []arrivals.Phase) (plan arrivals.Plan) {
	var from time.Duration
	for _, p := range phases {
		plan.Spans = append(plan.Spans, arrivals.Span{Name: p.Name, From: from, To: from + p.Duration})
		from += p.Duration
	}
	return plan
}
