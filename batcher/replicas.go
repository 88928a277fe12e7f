package batcher

import (
	"cmp"
	"slices"
	"time"
)

// replica is a Replica with what runs on it.
type replica struct {
	Replica
	since  time.Time // when it joined
	free   time.Time // when it last had its last call end
	busy   int       // calls or sequences
	tokens int       // at the engine
	gone   bool      // no longer ready; runs out
	rests  time.Time // it declined a call; no other until then
}

// has reports whether the replica serves the adapter.
func (r *replica) has(adapter string) bool {
	return adapter == "" || slices.Contains(r.Adapters, adapter)
}

// open reports whether the replica can start a call now.
func (r *replica) open(now time.Time) bool { return r.busy < r.Slots && !now.Before(r.rests) }

// SetReplicas states which replicas are ready.
func (c *Core) SetReplicas(now time.Time, rs []Replica) []Action {
	c.acts = c.acts[:0]
	for _, r := range c.replicas {
		r.gone = true
	}
	c.replicas, c.shared = c.replicas[:0], 0
	for _, n := range rs {
		n.Slots = max(n.Slots, 1)
		r := c.byID[n.ID]
		if r == nil {
			r = &replica{since: now, free: now}
			c.byID[n.ID] = r
		}
		r.Replica, r.gone = n, false
		c.replicas = append(c.replicas, r)
		if !r.Offline {
			c.shared++
		}
	}
	for id, r := range c.byID {
		if r.gone && r.busy == 0 {
			delete(c.byID, id)
		}
	}
	slices.SortStableFunc(c.replicas, func(a, b *replica) int {
		if a.Offline != b.Offline { // lent ones take offline rows before shared ones do
			if a.Offline {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Index, b.Index)
	})
	return c.settle(now)
}

// fit is the service-time model of a replica's shape.
func (c *Core) fit(r *replica) *Fit {
	f := c.fits[r.Shape]
	if f == nil {
		f = NewFit(c.opt.PriorAlpha, c.opt.PriorBeta)
		c.fits[r.Shape] = f
	}
	return f
}
