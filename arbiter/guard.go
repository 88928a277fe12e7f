package arbiter

import (
	"math"
	"sync/atomic"
	"time"
)

// allows is how much more may arrive at a model at once until its level is above
// n replicas: work in seconds of one replica, and sequences. It is the envelope of
// level, solved for what may still come.
func (p Policy) allows(m *Model, n int) (work, sequences float64) {
	work, sequences = math.Inf(1), math.Inf(1)
	if n >= m.Max { // there is nothing more to be had
		return work, sequences
	}
	rho := 1.0
	if m.Slots == 0 {
		rho = p.Rho
	} else {
		sequences = 0.95*float64(m.Slots)*float64(n) - m.InFlight
	}
	sum, next := 0.0, 0
	for i := 1; i <= len(m.Work) && next < len(windows); i++ {
		sum += m.Work[len(m.Work)-i]
		if i == windows[next] {
			work = min(work, float64(n)*rho*(float64(i)+0.8*m.Target.Seconds())-sum)
			next++
		}
	}
	return work, sequences
}

// allowance counts down what may arrive at a model before the needs of the last
// look no longer hold. It is shared with whoever serves requests, so it costs two
// additions.
type allowance struct{ work, sequences atomic.Int64 } // ns of one replica; sequences

// take reports whether this arrival is the one that is too much.
func (a *allowance) take(work time.Duration) bool {
	left := a.work.Add(-int64(work))
	broken := left < 0 && left+int64(work) >= 0
	return a.sequences.Add(-1) == -1 || broken
}

// allowances are those of a look, by model.
func (c *Core) allowances() map[string]*allowance {
	all := make(map[string]*allowance, len(c.snapshot.Models))
	for i := range c.snapshot.Models {
		m := &c.snapshot.Models[i]
		work, sequences := c.opt.Policy.allows(m, c.plan.Needs[m.Name].Need)
		a := &allowance{}
		a.work.Store(int64(min(max(work, 0), 1e6) * float64(time.Second)))
		a.sequences.Store(int64(min(max(sequences, 0), 1e9)))
		all[m.Name] = a
	}
	return all
}

// Arrived says that a request has come for a model, of so much work of one
// replica. The loop looks within 20 ms if that is more than the last look allows
// for; otherwise it costs next to nothing. It may be called from anywhere.
func (a *Arbiter) Arrived(model string, work time.Duration) {
	if all := a.allowed.Load(); all != nil {
		if m := (*all)[model]; m != nil && m.take(work) {
			select {
			case a.urgent <- struct{}{}:
			default:
			}
		}
	}
}

// calm is the least time between two looks for arrivals.
const calm = 20 * time.Millisecond

// Allowance is how much more may arrive at a model until it needs more replicas
// than at the last look: work in seconds of one replica, and sequences.
type Allowance struct{ Work, Sequences float64 }

// Allows appends the allowances of the last look, in the order of its models. It
// is Arrived for a driver of its own time, such as the simulator.
func (c *Core) Allows(to []Allowance) []Allowance {
	for i := range c.snapshot.Models {
		m := &c.snapshot.Models[i]
		work, sequences := c.opt.Policy.allows(m, c.plan.Needs[m.Name].Need)
		to = append(to, Allowance{work, sequences})
	}
	return to
}
