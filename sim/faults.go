package sim

import (
	"math/rand/v2"
	"strconv"
	"time"

	"aloft/arbiter"
)

// draw is the stream of a model's next start of a kind on a slice. It belongs to
// cause, place and number of the try, so that whatever a policy does, the others
// see the same draws.
func (r *engine) draw(cause string, m *served, s *slot) *rand.Rand {
	n := &m.starts[s.number()]
	*n++
	return r.world.Rand(cause+"/"+m.traffic.Model.Name+"/"+strconv.Itoa(s.number()), uint64(*n))
}

// planFaults lets GPUs fail: each by its own stream of gaps, counted from its last
// return, so that they fail at the same times under every policy.
func (r *engine) planFaults() {
	if r.world.Scenario.Faults.GPU <= 0 {
		return
	}
	for i := range r.gpus {
		r.planFailure(&r.gpus[i])
	}
}

func (r *engine) planFailure(d *device) {
	rnd := r.world.Rand("gpu/"+strconv.Itoa(d.index), d.failures)
	d.failures++
	days := rnd.ExpFloat64() / r.world.Scenario.Faults.GPU
	if gap := days * float64(24*time.Hour); gap < float64(r.world.Horizon) {
		r.after(time.Duration(gap), func() { r.fail(d) })
	}
}

// fail takes all slices of a GPU away at once, with all that is on them, and
// brings them back empty after the repair, in the shape that they had.
func (r *engine) fail(d *device) {
	d.broken = true
	r.incident(Incident{Kind: "gpu_failed", Slice: "g" + strconv.Itoa(d.index), Fault: true})
	on := r.on(d)
	for _, s := range on {
		if s.move != nil {
			r.abort(s.move)
		}
	}
	for _, s := range on {
		if s.stint != nil {
			r.kill(s.stint)
		}
	}
	for _, s := range on {
		if s.phase == arbiter.Ready || s.phase == arbiter.Draining {
			r.serving[s.model].fail(r, s)
		}
		s.model, s.asleep, s.phase = -1, 0, arbiter.Unhealthy
		r.refresh(s)
	}
	r.health(d, false)
	r.after(r.world.Scenario.Faults.RepairS.Duration(), func() {
		d.broken = false
		r.health(d, true)
		for _, s := range r.on(d) {
			s.phase = arbiter.Free
			r.refresh(s)
		}
		r.kick = true
		r.planFailure(d)
	})
	r.kick = true
}
