package loadgen

import (
	"fmt"

	"aloft/loadgen/arrivals"
)

// Arrivals and texts of workload i have random streams of their own.
func arrivalStream(i int) uint64 { return uint64(2 * i) }
func textStream(i int) uint64    { return uint64(2*i + 1) }

// plan computes every workload's schedule. The bound on arrivals holds for the
// run as a whole.
func (o Options) plan() ([]arrivals.Plan, error) {
	plans, left := make([]arrivals.Plan, len(o.Workloads)), arrivals.MaxPlan
	for i, w := range o.Workloads {
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
