package sim

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"aloft/arbiter"
)

// Injected are faults that no scenario has: what a policy must survive. Each is
// drawn by cause, item and try, as the scenario's are.
type Injected struct {
	Crash float64 // of a ready replica, times an hour on each slice
	Hang  float64 // chance that a job does not leave when told, but only when killed
	Slow  float64 // chance that a reshape takes slowReshape times as long
	Jump  float64 // of the policy's clock, times an hour, by up to maxJump either way
	Store float64 // chance that the job store does not answer a loan
}

const (
	slowReshape = 20
	maxJump     = time.Hour
	hangTime    = 20 * time.Second // until a job that hangs is found out and killed
	storeTime   = time.Second      // until a store that does not answer is given up
)

var errStore = errors.New("sim: the job store does not answer")

// planInjected lets replicas crash and the clock jump.
func (r *engine) planInjected() {
	if c := r.opt.Injected.Crash; c > 0 {
		for u := range r.share {
			r.often("crash/"+strconv.Itoa(u), c, func(*rand.Rand) { r.crash(u) })
		}
	}
	if c := r.opt.Injected.Jump; c > 0 {
		r.often("jump", c, func(rnd *rand.Rand) {
			r.skew += time.Duration((2*rnd.Float64() - 1) * float64(maxJump))
			r.incident(Incident{Kind: "clock_jumped", TookS: seconds(r.skew), Fault: true})
		})
	}
}

// often lets something happen at random, so many times an hour.
func (r *engine) often(cause string, hourly float64, what func(*rand.Rand)) {
	rnd := r.world.Rand(cause, 0)
	var next func()
	next = func() {
		if gap := rnd.ExpFloat64() / hourly * float64(time.Hour); gap < float64(r.world.Horizon) {
			r.after(time.Duration(gap), func() { what(rnd); next() })
		}
	}
	next()
}

// crash ends the replica that is ready or drains at a unit. Nothing sleeps there
// of it afterwards; a loan that waited for its drain goes on.
func (r *engine) crash(unit int) {
	for _, s := range r.slots {
		if s.number() != unit || s.phase != arbiter.Ready && s.phase != arbiter.Draining {
			continue
		}
		r.incident(Incident{Kind: "engine_crashed", Slice: s.ID, Model: r.serving[s.model].traffic.Model.Name, Fault: true})
		drained := s.phase == arbiter.Draining
		r.serving[s.model].fail(r, s)
		s.model, s.phase = -1, arbiter.Free
		r.refresh(s)
		if m := s.move; m != nil && drained {
			m.drains--
			r.drained(m)
		}
		r.kick = true
		return
	}
}

// hangs is how much later a job leaves than it should.
func (r *engine) hangs(t *stint) time.Duration {
	n := t.job.result.Stops
	if t.job.backlog {
		n = int(r.now) // it has a stint on each slice, and no count
	}
	if c := r.opt.Injected.Hang; c == 0 || r.world.Rand("hang/"+t.job.ID, uint64(n)).Float64() >= c {
		return 0
	}
	for _, m := range t.waiters {
		m.fault = true
	}
	r.incident(Incident{Kind: "job_hung", Job: t.job.ID, Fault: true})
	return hangTime
}

// reshapeTime is how long a reshape takes.
func (r *engine) reshapeTime(m *move) time.Duration {
	c := r.opt.Injected.Slow
	if c == 0 || r.world.Rand("reshape/"+strconv.Itoa(m.GPU), uint64(m.device.version)).Float64() >= c {
		return r.reshape
	}
	m.fault = true
	r.incident(Incident{Kind: "reshape_slow", Slice: "g" + strconv.Itoa(m.GPU), Fault: true})
	return slowReshape * r.reshape
}

// unstored fails a loan since the job store does not answer; the slices stay as
// they are.
func (r *engine) unstored(m *move) bool {
	c := r.opt.Injected.Store
	if c == 0 || r.world.Rand("store", uint64(r.count)).Float64() >= c {
		return false
	}
	r.incident(Incident{Kind: "store_failed", Job: m.Job, Fault: true})
	m.next = r.after(storeTime, func() {
		m.fault, m.job.lending = true, nil
		r.end(m, errStore)
	})
	return true
}
