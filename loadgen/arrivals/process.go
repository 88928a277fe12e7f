// Package arrivals says when requests come: arrival processes that are planned
// before a run and seeded, readers of recorded traffic, and the Record format
// in which Aloft writes traffic down (sizes and times, never text).
//
// It reads no clock and starts nothing. The load generator sends what is
// planned here and the simulator replays it, so both see the same traffic.
package arrivals

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Kind names an arrival process.
type Kind string

// The processes. Constant has equal gaps; Poisson has exponential ones, as many
// independent users produce; Burst is Poisson with two rates that take turns.
const (
	Constant Kind = "constant"
	Poisson  Kind = "poisson"
	Burst    Kind = "burst"
)

// MaxRate is the highest rate of a process, in arrivals per second. It is far
// above what one generator can send and keeps a typing mistake from being tried.
const MaxRate = 1e6

// minTurn is the shortest on or off time of a burst; shorter turns are not seen
// as bursts by any server and would only cost planning time.
const minTurn = 10 * time.Millisecond

// Process is one arrival process. Its zero value is not valid.
type Process struct {
	Kind Kind `yaml:"kind"`
	// Rate is arrivals per second; of a burst, while it is on.
	Rate float64 `yaml:"rate"`
	// Base is the rate of a burst while it is off; it may be 0.
	Base float64 `yaml:"base,omitempty"`
	// On and Off are how long the turns of a burst last. It starts with On.
	On  time.Duration `yaml:"on,omitempty"`
	Off time.Duration `yaml:"off,omitempty"`
}

// Validate reports the first thing that is wrong with the process.
func (p Process) Validate() error {
	if !(p.Rate > 0 && p.Rate <= MaxRate) { // written so that NaN fails too
		return fmt.Errorf("rate is %v per second, want more than 0 and at most %.0f", p.Rate, MaxRate)
	}
	switch p.Kind {
	case Constant, Poisson:
		if p.Base != 0 || p.On != 0 || p.Off != 0 {
			return fmt.Errorf("base, on and off belong to kind %q, not to %q", Burst, p.Kind)
		}
	case Burst:
		if !(p.Base >= 0 && p.Base <= MaxRate) {
			return fmt.Errorf("base is %v per second, want 0 to %.0f", p.Base, MaxRate)
		}
		if p.On < minTurn || p.Off < minTurn {
			return fmt.Errorf("on is %v and off is %v, want at least %v each", p.On, p.Off, minTurn)
		}
	default:
		return fmt.Errorf("unknown arrival kind %q, want %q, %q or %q", p.Kind, Constant, Poisson, Burst)
	}
	return nil
}

// expected is the mean number of arrivals within d.
func (p Process) expected(d time.Duration) float64 {
	if p.Kind != Burst {
		return p.Rate * d.Seconds()
	}
	cycle := p.On + p.Off
	on := d/cycle*p.On + min(d%cycle, p.On)
	return p.Rate*on.Seconds() + p.Base*(d-on).Seconds()
}

// draw calls add with every arrival in [0, d), in order, until add says stop.
func (p Process) draw(r *rand.Rand, d time.Duration, add func(time.Duration) bool) {
	switch p.Kind {
	case Constant:
		for i := 0; ; i++ {
			// From the index, not from the gap before: rounding must not add up.
			at := time.Duration(float64(i) * float64(time.Second) / p.Rate)
			if at >= d || !add(at) {
				return
			}
		}
	case Poisson:
		exponential(r, p.Rate, stretch{0, d}, add)
	case Burst:
		for from := time.Duration(0); from < d; from += p.On + p.Off {
			turn := min(from+p.On, d)
			if !exponential(r, p.Rate, stretch{from, turn}, add) {
				return
			}
			if !exponential(r, p.Base, stretch{turn, min(turn+p.Off, d)}, add) {
				return
			}
		}
	}
}

// stretch is the time [from, to).
type stretch struct{ from, to time.Duration }

// exponential draws a Poisson process within a stretch. Starting afresh at its
// begin is exact, since the process has no memory.
func exponential(r *rand.Rand, rate float64, in stretch, add func(time.Duration) bool) bool {
	if rate == 0 {
		return true
	}
	for at := float64(in.from); ; {
		at += r.ExpFloat64() / rate * float64(time.Second)
		if at >= float64(in.to) {
			return true
		}
		if !add(time.Duration(at)) {
			return false
		}
	}
}
