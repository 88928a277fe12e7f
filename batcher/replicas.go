package batcher

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"aloft/backends"
)

// replica is a Replica with what runs on it.
type replica struct {
	Replica
	fit    *Fit      // its shape's
	since  time.Time // when it joined
	free   time.Time // when it last had its last call end
	busy   int       // calls or sequences
	tokens int       // at the engine
	gone   bool      // no longer ready; runs out
	rests  time.Time // it declined a call; no other until then
	engineState
}

// has reports whether the replica serves the adapter.
func (r *replica) has(adapter string) bool {
	return adapter == "" || slices.Contains(r.Adapters, adapter)
}

// serves reports whether a ready replica may run w at all.
func (c *Core) serves(w *Work) bool {
	return slices.ContainsFunc(c.replicas, func(r *replica) bool {
		return r.has(w.Place.Adapter) && (w.Class == backends.Offline || !r.Offline)
	})
}

// lacks reports whether there are replicas for w, but none with its adapter: it
// was taken out of the configuration, or its engines never had it, and waiting
// helps nobody. Without a replica w waits for the one that is on its way, so it
// does for the successor of an old one, which may have what this one lacks, and
// a row of a batch job waits in any case, since its job has hours.
func (c *Core) lacks(w *Work) bool {
	return w.Place.Adapter != "" && w.Class != backends.Offline && c.shared > 0 && !c.renewing && !c.serves(w)
}

// unserved is why w fails that no replica may run.
func (c *Core) unserved(w *Work) error {
	err := backends.ErrUnavailable
	if w.Place.Adapter != "" && c.shared > 0 {
		err = fmt.Errorf("no ready replica has adapter %q: %w", w.Place.Adapter, err)
	}
	return &backends.RetryError{Err: err, After: c.retryAfter(), Reason: backends.ReasonNoReplica}
}

// open reports whether the replica can start a call now.
func (r *replica) open(now time.Time) bool { return r.busy < r.Slots && !now.Before(r.rests) }

// lentFirst compares so that lent replicas take offline rows before shared ones do.
func lentFirst(a, b *replica) int {
	switch {
	case a.Offline == b.Offline:
		return 0
	case a.Offline:
		return -1
	}
	return 1
}

// SetReplicas states which replicas are ready.
func (c *Core) SetReplicas(now time.Time, rs []Replica) []Action {
	c.acts = c.acts[:0]
	for _, r := range c.replicas {
		r.gone = true
	}
	c.replicas, c.shared, c.renewing = c.replicas[:0], 0, false
	for _, n := range rs {
		n.Slots = max(n.Slots, 1)
		r := c.byID[n.ID]
		if r == nil {
			r = &replica{since: now, free: now}
			c.byID[n.ID] = r
		}
		r.Replica, r.fit, r.gone = n, c.fit(n.Shape), false
		c.replicas = append(c.replicas, r)
		if !r.Offline {
			c.shared++
			c.renewing = c.renewing || r.Old
		}
	}
	for id, r := range c.byID {
		if r.gone && r.busy == 0 {
			delete(c.byID, id)
		}
	}
	slices.SortStableFunc(c.replicas, func(a, b *replica) int {
		return cmp.Or(lentFirst(a, b), cmp.Compare(a.Index, b.Index))
	})
	for _, w := range slices.Clone(c.order.expiries) { // which giveUp changes
		if c.lacks(w) {
			c.giveUp(now, w, DropReplica, c.unserved(w))
		}
	}
	return c.settle(now)
}

// fit is the service-time model of a shape.
func (c *Core) fit(shape string) *Fit {
	f := c.fits[shape]
	if f == nil {
		f = NewFit(priorAlpha, priorBeta)
		c.fits[shape] = f
	}
	return f
}

// learn feeds the fit. What new replicas take counts only while nothing better is
// known of their shape, and is forgotten then.
func (c *Core) learn(b *Batch, took time.Duration) {
	f, size := b.replica.fit, b.size()
	if b.ahead > 0 { // a first token waits for the prompts before its own
		size = Size{Rows: 1, Tokens: b.Tokens + b.ahead, Longest: b.Tokens + b.ahead}
	}
	if c.opt.Target == 0 || took <= c.share() {
		f.reach = max(f.reach, 2*size.cost(true))
	}
	switch settled := b.At.Sub(b.replica.since) >= settling; {
	case settled && f.early:
		f.settle()
	case !settled && !f.early:
		return
	}
	if c.opt.Merge {
		f.ObserveFrom(b.At, size, took)
	} else { // prompts of one replica always overlap, in a known order
		f.Observe(size, took)
	}
}
