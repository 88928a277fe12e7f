package batcher

import (
	"slices"
	"time"

	"aloft/backends"
)

const (
	// hedgeTokens is the largest call that may be sent twice, prompt and expected
	// output together: a long one costs more than its tail is worth.
	hedgeTokens = 1024
	// hedgeShare is the most that hedging may add to such calls; hedgeBurst how
	// many may be sent at once after a quiet time.
	hedgeShare = 0.05
	hedgeBurst = 5
	// hedgeWindow is over how many recent calls the p95 is taken, hedgeSamples
	// how many it needs at least.
	hedgeWindow  = 128
	hedgeSamples = 20
)

// hedges decides which calls are slow enough to be sent a second time.
type hedges struct {
	waiting []*Batch // hedgeable, at engines, no answer yet; in order of dispatch
	credit  float64  // calls that may be sent twice now
	took    [hedgeWindow]time.Duration
	n       int
	p95     time.Duration
}

// started earns credit for b, if it is a call that may be hedged, and watches it.
func (h *hedges) started(c *Core, b *Batch) {
	if !c.opt.Hedge || !b.Alone || b.load > hedgeTokens {
		return
	}
	w := b.Segs[0].Work
	if !w.Unary || w.Class == backends.Offline || b != &w.own {
		return
	}
	h.credit = min(h.credit+hedgeShare, hedgeBurst)
	b.watched = true
	h.waiting = append(h.waiting, b)
}

// first learns from a watched call's answer, or from that of its twin: then the
// call would have taken at least so long.
func (h *hedges) first(now time.Time, b *Batch) {
	h.forget(b)
	own := &b.Segs[0].Work.own
	if !own.watched || b != own && b.twin != own {
		return
	}
	own.watched = false
	h.took[h.n%hedgeWindow] = now.Sub(own.At)
	if h.n++; h.n%8 == 0 || h.n == hedgeSamples {
		sorted := h.took
		have := sorted[:min(h.n, hedgeWindow)]
		slices.Sort(have)
		h.p95 = have[(len(have)*95+99)/100-1]
	}
}

// forget decides on b no more.
func (h *hedges) forget(b *Batch) {
	if i := slices.Index(h.waiting, b); i >= 0 {
		h.waiting = slices.Delete(h.waiting, i, i+1)
	}
}

// hedge sends what has run longer than the p95 a second time, to another replica
// with room, unless work waits: that comes first. Each call is decided on once.
func (c *Core) hedge(now time.Time) {
	h := &c.hedges
	if h.n < hedgeSamples {
		return
	}
	for len(h.waiting) > 0 {
		b := h.waiting[0]
		if at := b.At.Add(h.p95); now.Before(at) {
			c.wakeAt(at)
			return
		}
		h.forget(b)
		if h.credit < 1 || c.draining || len(c.order.expiries) > 0 || len(c.redo) > 0 || b.Segs[0].Work.closed {
			continue
		}
		if r := c.other(now, b); r != nil {
			h.credit--
			c.second(now, b, r)
		}
	}
}

// other is the least loaded replica with room besides b's own.
func (c *Core) other(now time.Time, b *Batch) (best *replica) {
	for _, r := range c.replicas {
		if r == b.replica || c.takes(now, b.Segs[0].Work, r) < Holds {
			continue
		}
		if best == nil || r.tokens*best.Slots < best.tokens*r.Slots {
			best = r
		}
	}
	return best
}

// second puts the same call as b onto r.
func (c *Core) second(now time.Time, b *Batch, r *replica) {
	t := &Batch{Key: b.Key, Adapter: b.Adapter, Alone: true, Reason: b.Reason}
	t.add(b.Segs[0])
	t.Replica, t.replica, t.At, t.load = r.Replica, r, now, b.load
	t.twin, b.twin = b, t
	w := t.Segs[0].Work
	w.running++
	class := &c.order.classes[w.Class]
	class.inFlight++
	class.inFlightTok += t.Tokens
	r.busy++
	r.tokens += t.load
	c.sit(now, r, t)
	c.fly(t)
	c.calls.Hedged++
	c.acts = append(c.acts, Action{Kind: Hedge, Batch: t})
}
