package batcher

import (
	"time"

	"aloft/backends"
)

// expected is how many tokens w keeps a replica busy with: its prompt, and what
// recent answers were long, within the bound that the caller set.
func (c *Core) expected(w *Work) int {
	output := int(c.output.mean)
	if w.Output != 0 {
		output = min(output, max(w.Output, 0))
	}
	return w.tokens() + output
}

// admit grants free slots to waiting generations in order. Work for which no
// replica is free, its adapter's say, holds up its own lane only.
func (c *Core) admit(now time.Time) {
	if len(c.order.expiries) == 0 {
		return
	}
	for _, l := range c.order.lanes {
		l.stuck = [2]bool{}
	}
	c.hidden = c.hidden[:0]
	for {
		w := c.order.first(now)
		if w == nil {
			break
		}
		if c.tooLate(now, w) {
			c.giveUp(now, w, DropHopeless, &backends.RetryError{Err: backends.ErrOverloaded, After: c.retryAfter(), Reason: backends.ReasonLate})
			continue
		}
		r, why, avoided := c.slot(now, w)
		switch {
		case r != nil:
			b := lead(w)
			b.add(c.order.take(w, 1))
			if c.draining {
				b.Reason = Drain
			}
			if c.affinity != nil {
				c.affinity.saw(w.Place, r.ID)
			}
			c.start(now, r, b)
			continue
		case avoided && len(c.hidden) < maxMisfits:
			hide(w)
			c.hidden = append(c.hidden, w)
		case w.Class == backends.Offline:
			w.lane.stuck[1] = true
		default: // serving classes share their replicas: none is free for the other either
			w.lane.stuck[0] = true
		}
		if why < Holds {
			c.hold(why)
		}
	}
	for _, w := range c.hidden {
		show(w)
	}
}

// takes is why w may not start on r now; Holds: it may.
func (c *Core) takes(now time.Time, w *Work, r *replica) Hold {
	offline := w.Class == backends.Offline
	switch {
	case !r.has(w.Place.Adapter):
		return HoldAdapter
	case !r.open(now), r.Offline && !offline:
		return HoldSlots
	case w.avoid.id == r.ID && now.Before(w.avoid.until):
		c.wakeAt(w.avoid.until)
		return HoldAvoid
	}
	if reserved := (r.Slots + reservedSlots - 2) / reservedSlots; offline && !r.Offline && (c.offlineRows >= c.offlineLimit || r.busy >= r.Slots-reserved) {
		return HoldOffline
	}
	if c.opt.Merge {
		return Holds
	}
	return c.full(now, w, r)
}

// slot picks the replica that w starts on: the one with the fewest outstanding
// tokens per slot, w's own included, or with patience the lowest index, which
// leaves high ones free to be lent; the one that knows its session or prefix
// where that costs little. start reserves it in the same step, so that requests
// of one moment do not all choose the same.
func (c *Core) slot(now time.Time, w *Work) (best *replica, why Hold, avoided bool) {
	var least *replica
	why = Holds
	own := c.expected(w)
	for _, r := range c.replicas {
		// Why another does not take it is of no interest then, and costs more to find out.
		if least != nil && (least.Offline && !r.Offline || (r.tokens+own)*least.Slots >= (least.tokens+own)*r.Slots) {
			continue
		}
		held := c.takes(now, w, r)
		avoided = avoided || held == HoldAvoid
		if why == Holds || held > why {
			why = held
		}
		if held < Holds {
			continue
		}
		if least = r; best == nil {
			best = r
		}
	}
	if c.eta == 0 {
		best = least
	}
	if best != nil && c.affinity != nil {
		if r := c.affine(now, w, least); r != nil {
			best = r
			c.calls.Affine++
		}
	}
	return best, why, avoided
}
