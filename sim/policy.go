package sim

import (
	"time"

	"aloft/arbiter"
	"aloft/gpu"
	"aloft/sim/scenario"
)

// Policy decides who gets which slice. The engine carries its orders out and
// refuses those that are not legal; every order has exactly one outcome.
type Policy interface {
	// Every is how often it wants to look at least. It also looks right after a
	// job came or went, a move ended and a GPU failed or returned: a policy that
	// keeps a period of its own compares times.
	Every() time.Duration
	// Look may keep nothing of what it is given.
	Look(o arbiter.Observation, v *View) []arbiter.Order
	Settle(now time.Time, o arbiter.Outcome)
}

// Guard is a policy that also wants to look when more arrives than its last look
// allowed for, at most once every 20 ms, as the live loop does.
type Guard interface {
	// Arrived says that a request has come for a model, of so much work of one
	// replica, in seconds, and how many are in flight now; it reports whether that is
	// too much.
	Arrived(model int, work float64, inFlight int) bool
}

// Capped is a policy that lends less after it has broken a bound.
type Capped interface {
	// Cap is how many slices it may lend at once now; 0 = there is no such limit.
	Cap() int
}

// calm is the least time between two looks for arrivals.
const calm = 20 * time.Millisecond

// epoch is when every simulated world starts, for the cores, which know times of day.
var epoch = time.Unix(1_700_000_000, 0)

// Since is the time of an observation as a duration since the start of the run.
func Since(now time.Time) time.Duration { return now.Sub(epoch) }

// View is what a policy may see beyond the observation: the same slices, joined
// with who holds them, and figures that rivals go by. It is kept up to date and
// is not to be changed.
type View struct {
	Scenario *scenario.Scenario
	// Slices are all slices, by GPU and start. A slice that a job holds shows the
	// sleeper that lies beneath it as its model.
	Slices []arbiter.Slice
	GPUs   []arbiter.GPU
	// Share is the static split: the index of the model to whose share unit
	// 7·gpu + start belongs; −1 = the job share.
	Share []int
	// Slice and Whole are the two shapes that GPUs can be split into.
	Slice, Whole gpu.Shape

	run *engine
}

// Unit is where a slice lies in Share.
func Unit(s arbiter.Slice) int { return scenario.SlicesPerGPU*s.GPU + s.Start }

// Busy is the share of slots in use, of all ready replicas of a model; above 1
// when requests wait. Without a ready replica it is what waits.
func (v *View) Busy(model int) float64 {
	m := &v.run.serving[model]
	l := m.server.Load(v.run.now)
	return float64(l.Running+l.Waiting) / float64(max(1, m.ready)*max(1, m.traffic.Model.Service.Slots))
}

// Need is the model's requirement for each second of the whole run, the future
// included: for clairvoyant policies only.
func (v *View) Need(model int) []float64 { return v.run.need(model) }

// Tune passes a setting on to a model's batcher.
func (v *View) Tune(s arbiter.Setting) {
	for i := range v.run.serving {
		if m := &v.run.serving[i]; m.traffic.Model.Name == s.Model {
			m.server.SetEta(v.run.now, s.Eta)
			if v.run.world.Rows {
				m.server.SetRows(v.run.now, s.Rows)
			}
		}
	}
}

// Layout is what a GPU looks like in one of the two shapes, for a reshape.
func (v *View) Layout(whole bool) []gpu.Placement { return v.run.machine.layout(whole) }
