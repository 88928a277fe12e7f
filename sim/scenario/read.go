package scenario

import "time"

// Load reads a scenario's file, or the built-in one of that name.
func Load(path string) (*Scenario, error) { return nil, nil }

// DrawOptions say which part of a scenario is drawn.
type DrawOptions struct {
	// Traces is the folder of traces. Those that the binary holds (azure-llm-2023,
	// gavel-philly) need none.
	Traces string
	// From and To are a window of the horizon; To 0 = its end. Traffic and jobs are
	// those of the whole horizon that come within it.
	From, To Hours
	// Rows lets batch rows ride in ready replicas, whatever the scenario says.
	Rows bool
}

// Draw draws the world of a seed.
func (s *Scenario) Draw(seed uint64, o DrawOptions) (*World, error) { return nil, nil }

// Knee is what a request costs a full replica, in slice-seconds.
func (t *Traffic) Knee(in, out int32) float64 { return 0 }

// Need is how many replicas the arrivals up to each second call for.
func Need(t *Traffic, horizon time.Duration) []float64 { return nil }
