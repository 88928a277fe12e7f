package sim

import (
	"fmt"
	"time"

	"aloft/arbiter"
	"aloft/gpu"
	"aloft/sim/scenario"
)

// breach fails the run. The first one counts.
func (r *engine) breach(which, format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("sim: BUG: invariant %s broken: %s (scenario %s, seed %d, policy %s, at %v)", which,
			fmt.Sprintf(format, args...), r.world.Scenario.Name, r.world.Seed, r.opt.Name, r.now)
	}
}

// check holds what must be true of a slice whenever anything about it changes.
func (r *engine) check(s *slot) {
	r.checks++
	job := s.phase == arbiter.JobStart || s.phase == arbiter.JobRuns || s.phase == arbiter.Checkpoint
	serves := s.phase == arbiter.Loading || s.phase == arbiter.Ready || s.phase == arbiter.Draining
	switch {
	case job != (s.stint != nil):
		r.breach("I3", "%s is %s and its job is %v", s.ID, s.phase, s.stint != nil)
	case serves != (s.model >= 0):
		r.breach("I3", "%s is %s with model %d", s.ID, s.phase, s.model)
	case s.move != nil && s.move.ended:
		r.breach("I3", "%s is held by a move that has ended", s.ID)
	case s.asleep != 0 && (s.phase == arbiter.Unhealthy || s.phase == arbiter.Reshaping):
		r.breach("I3", "a replica sleeps on %s, which is %s", s.ID, s.phase)
	}
}

// checkAll holds the whole machine to what must be true: after a change of
// geometry and every minute.
func (r *engine) checkAll() {
	r.checks++
	r.advance()
	units, ready := 0, make([]int, len(r.serving))
	for i := range r.gpus {
		d := &r.gpus[i]
		var on []gpu.Placement
		for _, s := range r.on(d) {
			on = append(on, gpu.Placement{Profile: s.Shape.Profile, Start: s.Start, Size: s.Shape.MemorySlices})
			units += s.units
			if s.phase == arbiter.Ready {
				ready[s.model]++
			}
			if d.broken != (s.phase == arbiter.Unhealthy) {
				r.breach("I3", "%s is %s on a GPU that is broken: %v", s.ID, s.phase, d.broken)
			}
		}
		if r.node != nil {
			continue // its placements are not ours
		}
		if err := r.family.Legal(on); err != nil { // no overlap, every placement legal
			r.breach("I1/I2", "gpu %d: %v", d.index, err)
		}
	}
	if units != r.total {
		r.breach("I3", "the slices are %d units of %d", units, r.total)
	}
	booked := time.Duration(0)
	for i, n := range r.book.units {
		booked += time.Duration(n)
		if n < 0 || standing(i) == away && n != 0 {
			r.breach("I3", "%d units stand as %d", n, i)
		}
	}
	if booked != time.Duration(units) {
		r.breach("I3", "%d units are booked of %d", booked, units)
	}
	for i := range r.serving {
		if m := &r.serving[i]; ready[i] != m.ready || ready[i] != m.server.Ready() {
			r.breach("I3", "%d replicas of %s are ready on slices, %d in its queue", ready[i], m.traffic.Model.Name, m.server.Ready())
		}
	}
	r.checkJobs()
}

// checkJobs: a foreground job is on its full width or on nothing.
func (r *engine) checkJobs() {
	for _, j := range r.shown {
		if t := j.stint; t != nil && r.node == nil && t.units != j.Width() && !j.backlog {
			r.breach("I3", "%s runs on %d units of %d", j.ID, t.units, j.Width())
		}
		if j.kept < 0 || j.saved > j.kept {
			r.breach("I3", "%s has kept %v and saved %v", j.ID, j.kept, j.saved)
		}
	}
}

// checkSum: the ledger sums to slices × horizon, to the nanosecond, and no
// account is below zero.
func (r *engine) checkSum(accounts map[arbiter.Account]time.Duration) {
	sum := time.Duration(0)
	for _, a := range arbiter.Accounts {
		sum += accounts[a]
		if accounts[a] < 0 {
			r.breach("ledger", "%s is %v", a, accounts[a])
		}
	}
	if want := time.Duration(r.total) * r.world.Horizon; sum != want {
		r.breach("ledger", "sums to %v, want %v (%d per GPU)", sum, want, scenario.SlicesPerGPU)
	}
}
