// Package rivals holds the policies that the arbiter is compared with in the
// simulator: own stylisations of common ideas, not the real systems. All of them
// queue jobs by the same rule (sim.Queue) and carry out their wishes by the same
// means; they differ in how many replicas they keep ready, how these
// start, and whom they take slices from.
//
// Everything here is modelled.
package rivals

import (
	"fmt"
	"time"

	"aloft/arbiter"
	"aloft/sim"
)

// Names are the rivals, in the order in which reports list them.
func Names() []string {
	return []string{Static, FIFO, HPA, Lyra, Kueue, Pilot}
}

// The rivals.
const (
	Static = "static" // serving keeps its peak share ready, jobs the rest
	FIFO   = "fifo"   // one pool, serving grows on demand from cold, nobody is preempted
	HPA    = "hpa"    // slots in use, target 0.6, every 15 s, down after 300 s, cold, jobs preempted with grace
	Lyra   = "lyra"   // whole GPUs, every 5 min, peak of the last 5 min x 1.2, cold
	Kueue  = "kueue"  // sequences over slots at 0.7, every 2 s, sleepers, the most recent borrower goes first
	Pilot  = "pilot"  // clairvoyant: reads the coming traffic, with the same costs of every step
)

// Policy is one rival.
type Policy struct {
	rules
	scaler scaler
	yard   yard
	queue  sim.Queue
	every  time.Duration
}

// rules are what a rival may do.
type rules struct {
	cold    bool // replicas start from cold, never from a sleeper
	preempt bool // serving takes slices from foreground jobs too
	files   bool // even the backlog is not stopped within a file
	recent  bool // the most recent borrower goes first, else the cheapest
	lines   bool // work that is slow to return borrows only below the scaler's line
}

// scaler says how many replicas of each model shall be ready.
type scaler interface {
	// want fills in the fleets' want and, where the rules have lines, their line.
	want(now time.Duration, y *yard)
}

// New makes the rival of that name; settings of its own are tuned ones (tune_test.go).
func New(name string) (sim.Policy, error) {
	switch name {
	case Static:
		return &sim.Static{}, nil
	case FIFO:
		return &Policy{rules: rules{cold: true, files: true}, every: 2 * time.Second,
			scaler: &demand{target: 0.7, hold: 300 * time.Second}}, nil
	case HPA:
		return &Policy{rules: rules{cold: true, preempt: true}, every: time.Second,
			scaler: &threshold{target: 0.6, every: 15 * time.Second, down: 300 * time.Second}}, nil
	case Lyra:
		return &Policy{rules: rules{cold: true, preempt: true}, every: time.Second,
			scaler: &loans{every: 5 * time.Minute, margin: 1.2}}, nil
	case Kueue:
		return NewKueue(KueueHold), nil
	case Pilot:
		return NewPilot(TunedPilot), nil
	}
	return nil, fmt.Errorf("rivals: there is no policy %q, want one of %v", name, Names())
}

// KueueHold is the best hold of the Kueue-like rival, of 60, 120, 300 and 600 s
// on seeds that it is not judged by.
const KueueHold = 600 * time.Second

// NewKueue makes the Kueue-like rival with another hold: how long it keeps what
// it needed last.
func NewKueue(hold time.Duration) *Policy {
	return &Policy{rules: rules{preempt: true, recent: true}, every: 2 * time.Second,
		scaler: &demand{target: 0.7, hold: hold}}
}

// Every implements sim.Policy.
func (p *Policy) Every() time.Duration { return p.every }

// Look implements sim.Policy: first serving gets what it wants, then the jobs in
// their order.
func (p *Policy) Look(o arbiter.Observation, v *sim.View) []arbiter.Order {
	y := &p.yard
	y.begin(&p.rules, o, v)
	p.scaler.want(sim.Since(o.Now), y)
	y.serve()
	if y.lines {
		y.mark()
	}
	return append(y.orders, p.queue.Orders(o, v, y.may)...)
}

// Settle implements sim.Policy.
func (p *Policy) Settle(time.Time, arbiter.Outcome) {}
