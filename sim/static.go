package sim

import (
	"time"

	"aloft/arbiter"
)

// Static is the static split: every model keeps its share ready at all times,
// jobs have the rest. It is what others are compared with.
type Static struct {
	queue  Queue
	orders []arbiter.Order
}

// Every is how often the queue's patience is looked at.
func (*Static) Every() time.Duration { return 10 * time.Second }

// Look starts what a failed GPU has taken away, and lets jobs have the job share.
func (p *Static) Look(o arbiter.Observation, v *View) []arbiter.Order {
	p.orders = restore(p.orders[:0], v)
	return append(p.orders, p.queue.Orders(o, v, func(i int, _ Class) bool { return v.Share[Unit(v.Slices[i])] < 0 })...)
}

// Settle has nothing to learn.
func (*Static) Settle(time.Time, arbiter.Outcome) {}

// restore orders the replicas of the static split that are missing.
func restore(orders []arbiter.Order, v *View) []arbiter.Order {
	for i := range v.Slices {
		s := &v.Slices[i]
		m := v.Share[Unit(*s)]
		if m < 0 || !idle(s) || s.Shape != v.Slice {
			continue
		}
		name := v.Scenario.Models[m].Name
		action := arbiter.Start
		if s.Model == name {
			action = arbiter.Wake
		}
		orders = append(orders, arbiter.Order{Move: arbiter.Move{Action: action, Slice: s.ID, Model: name, Reason: arbiter.BelowMin}})
	}
	return orders
}
