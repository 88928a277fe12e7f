package arrivals

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Scaled is the process at f times its rate. What is scaled is the law that
// gaps are drawn from, before they are; a drawn gap is never touched. A trace
// cannot be: its gaps are drawn already.
func (p Process) Scaled(f float64) (Process, error) {
	if p.Kind == Replay {
		return p, errors.New("recorded arrivals have the rate that they were recorded with")
	}
	p.Rate, p.Base, p.To, p.Low, p.High = p.Rate*f, p.Base*f, p.To*f, p.Low*f, p.High*f
	p.Steps, p.Parts = slices.Clone(p.Steps), slices.Clone(p.Parts)
	for i := range p.Steps {
		p.Steps[i].Rate *= f
	}
	for i := range p.Parts {
		var err error
		if p.Parts[i], err = p.Parts[i].Scaled(f); err != nil {
			return p, fmt.Errorf("part %d: %w", i+1, err)
		}
	}
	return p, nil
}

// Cycle is after how long the rate begins anew, 0 if it is the same all the time.
// Of a mix it is that of the part with the longest. stays is false if the rate
// neither stays nor comes back: of ramps, steps and traces.
func (p Process) Cycle() (cycle time.Duration, stays bool) {
	switch p.Kind {
	case Constant, Poisson, Gamma, Many:
		return 0, true
	case Burst:
		return p.On + p.Off, true
	case Diurnal:
		return p.Period, true
	case Mix:
		for _, part := range p.Parts {
			c, stays := part.Cycle()
			if !stays {
				return 0, false
			}
			cycle = max(cycle, c)
		}
		return cycle, true
	}
	return 0, false
}

// Expected is the mean number of arrivals in the phase; of a trace it is not
// known.
func (p Phase) Expected() float64 { return p.Process.expected(p.length()) }
