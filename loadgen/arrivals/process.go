// Package arrivals says what a run will send, and when: arrival processes that
// are planned before a run and seeded, readers of recorded traffic, sizes and
// tenants, the file that keeps a plan, and the Record format in which Aloft
// writes traffic down (sizes and times, never text).
//
// It reads no clock, opens no file and starts nothing. The load generator sends
// what is planned here and the simulator replays it, so both see the same traffic.
package arrivals

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Kind names an arrival process.
type Kind string

// The processes. Constant has equal gaps; Poisson has exponential ones, as many
// independent users produce; Gamma has gaps of any variation; Burst has two
// rates that take turns, Steps any list of them, Ramp a rate that rises or falls
// in a line, Diurnal one that swings like a day; Replay sends recorded traffic;
// Clients lays many senders of unlike rates over each other; Mix does so with
// processes of any kind.
const (
	Constant Kind = "constant"
	Poisson  Kind = "poisson"
	Gamma    Kind = "gamma"
	Burst    Kind = "burst"
	Ramp     Kind = "ramp"
	Steps    Kind = "step"
	Diurnal  Kind = "diurnal"
	Replay   Kind = "trace"
	Many     Kind = "clients"
	Mix      Kind = "mix"
)

var kinds = []Kind{Constant, Poisson, Gamma, Burst, Ramp, Steps, Diurnal, Replay, Many, Mix}

const (
	// MaxRate is the highest rate of a process, in arrivals per second. It is far
	// above what one generator can send and keeps a typing mistake from being tried.
	MaxRate = 1e6

	// minTurn is the shortest turn of a burst and step; shorter ones are not seen
	// as such by any server and would only cost planning time.
	minTurn = 10 * time.Millisecond

	// maxCV is above twice the variation of the most bursty public trace (13, Azure's
	// code trace of 2023).
	maxCV    = 30
	minCV    = 0.01
	maxSteps = 1000
	maxParts = 64
)

// Process is one arrival process. Its zero value is not valid.
type Process struct {
	Kind Kind `yaml:"kind"`
	// Rate is arrivals per second; of a burst, while it is on; of a ramp, at its
	// begin.
	Rate float64 `yaml:"rate,omitempty"`
	// CV is the coefficient of variation of the gaps: of gamma, and, in the time
	// in which their rate is even, of burst, ramp, step and diurnal, for which 0
	// means 1: Poisson.
	CV float64 `yaml:"cv,omitempty"`
	// Base is the rate of a burst while it is off; it may be 0. On and Off are how
	// long its turns last. It starts with On.
	Base float64       `yaml:"base,omitempty"`
	On   time.Duration `yaml:"on,omitempty"`
	Off  time.Duration `yaml:"off,omitempty"`
	// To is the rate of a ramp at its end.
	To float64 `yaml:"to,omitempty"`
	// Steps follow each other, and fill the phase.
	Steps []Step `yaml:"steps,omitempty"`

	Day     `yaml:",inline"`
	Trace   `yaml:",inline"`
	Clients `yaml:",inline"`

	// Parts are what a mix is made of. Each has random numbers of its own, so that
	// one more leaves the others' arrivals as they were.
	Parts []Process `yaml:"parts,omitempty"`
}

// Step is a rate that holds for a while.
type Step struct {
	Rate float64       `yaml:"rate"` // arrivals per second; may be 0
	For  time.Duration `yaml:"for"`
}

// Day is a rate that swings: low + (high-low)·(1+cos(2π(t-peak)/period))/2.
type Day struct {
	Low    float64       `yaml:"low,omitempty"` // arrivals per second; may be 0
	High   float64       `yaml:"high,omitempty"`
	Period time.Duration `yaml:"period,omitempty"` // from peak to peak
	Peak   time.Duration `yaml:"peak,omitempty"`   // when the rate is highest, from the begin of the phase
}

// steps of a kind that has them, in a common form.
func (p Process) steps() []Step {
	if p.Kind == Burst {
		return []Step{{p.Rate, p.On}, {p.Base, p.Off}}
	}
	return p.Steps
}

// strays finds a key that does not belong to the kind of the process.
func (p Process) strays() error {
	for _, k := range []struct {
		key string
		set bool
		of  []Kind
	}{
		{"rate", p.Rate != 0, []Kind{Constant, Poisson, Gamma, Burst, Ramp, Many}},
		{"cv", p.CV != 0, []Kind{Gamma, Burst, Ramp, Steps, Diurnal}},
		{"base", p.Base != 0, []Kind{Burst}},
		{"on", p.On != 0, []Kind{Burst}},
		{"off", p.Off != 0, []Kind{Burst}},
		{"to", p.To != 0, []Kind{Ramp}},
		{"steps", p.Steps != nil, []Kind{Steps}},
		{"low, high, period and peak", p.Day != Day{}, []Kind{Diurnal}},
		{"file, format, speed and other keys of a trace", p.Trace != Trace{}, []Kind{Replay}},
		{"clients, skew and other keys of clients", p.Clients != Clients{}, []Kind{Many}},
		{"parts", p.Parts != nil, []Kind{Mix}},
	} {
		if k.set && !slices.Contains(k.of, p.Kind) {
			return fmt.Errorf("%s: belongs to kind %s, not to %s", k.key, list(k.of), p.Kind)
		}
	}
	return nil
}

func list[T ~string](of []T) string {
	s := make([]string, len(of))
	for i, k := range of {
		s[i] = string(k)
	}
	return strings.Join(s, ", ")
}

// Validate reports the first thing that is wrong with the process. The message
// begins with the key that it is about.
func (p Process) Validate() error {
	if !slices.Contains(kinds, p.Kind) {
		return fmt.Errorf("kind: unknown arrival kind %q, want one of %s", p.Kind, list(kinds))
	}
	if err := p.strays(); err != nil {
		return err
	}
	if p.Kind == Gamma || p.CV != 0 {
		if !(p.CV >= minCV && p.CV <= maxCV) {
			return fmt.Errorf("cv is %v, want %v to %d", p.CV, minCV, maxCV)
		}
	}
	switch p.Kind {
	case Constant, Poisson, Gamma:
		return rate("rate", p.Rate, false)
	case Burst, Steps:
		return p.validateTurns()
	case Ramp:
		if err := rate("rate", p.Rate, p.To != 0); err != nil {
			return err
		}
		return rate("to", p.To, p.Rate != 0)
	case Diurnal:
		return p.Day.validate()
	case Replay:
		return p.Trace.validate()
	case Many:
		if err := rate("rate", p.Rate, false); err != nil {
			return err
		}
		return p.Clients.validate()
	}
	if n := len(p.Parts); n == 0 || n > maxParts {
		return fmt.Errorf("parts are %d, want 1 to %d", n, maxParts)
	}
	for i, part := range p.Parts {
		err := part.Validate()
		if part.Kind == Mix {
			err = fmt.Errorf("kind: a part of a mix may not be a mix")
		}
		if err != nil {
			return Keyed(fmt.Sprintf("parts[%d]", i), fmt.Errorf("part %d: %w", i+1, err))
		}
	}
	return nil
}

// rate checks a rate, written so that NaN fails too.
func rate(key string, r float64, none bool) error {
	if r > 0 && r <= MaxRate || none && r == 0 {
		return nil
	}
	want := "more than 0"
	if none {
		want = "0 or more"
	}
	return fmt.Errorf("%s is %v per second, want %s and at most %.0f", key, r, want, MaxRate)
}

func (p Process) validateTurns() error {
	if p.Kind == Burst {
		if err := rate("rate", p.Rate, false); err != nil {
			return err
		}
		if err := rate("base", p.Base, true); err != nil {
			return err
		}
		if p.On < minTurn || p.Off < minTurn || p.On > maxPhase || p.Off > maxPhase {
			return fmt.Errorf("on is %v and off is %v, want %v to %v each", p.On, p.Off, minTurn, maxPhase)
		}
		return nil
	}
	if n := len(p.Steps); n == 0 || n > maxSteps {
		return fmt.Errorf("steps are %d, want 1 to %d", n, maxSteps)
	}
	some := 0.0
	for i, s := range p.Steps {
		err := rate("rate", s.Rate, true)
		if err == nil && (s.For < minTurn || s.For > maxPhase) {
			err = fmt.Errorf("for is %v, want %v to %v", s.For, minTurn, maxPhase)
		}
		if err != nil {
			return Keyed(fmt.Sprintf("steps[%d]", i), fmt.Errorf("step %d: %w", i+1, err))
		}
		some += s.Rate
	}
	if some == 0 {
		return fmt.Errorf("steps: every rate is 0")
	}
	return nil
}

func (d Day) validate() error {
	if err := rate("low", d.Low, true); err != nil {
		return err
	}
	if err := rate("high", d.High, false); err != nil {
		return err
	}
	if d.Low > d.High {
		return fmt.Errorf("low is %v, above high %v", d.Low, d.High)
	}
	if d.Period < minTurn || d.Period > maxPhase {
		return fmt.Errorf("period is %v, want %v to %v", d.Period, minTurn, maxPhase)
	}
	if d.Peak < 0 || d.Peak > maxPhase {
		return fmt.Errorf("peak is %v, want 0 to %v", d.Peak, maxPhase)
	}
	return nil
}
