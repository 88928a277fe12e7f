package batcher

import (
	"slices"
	"time"

	"aloft/backends"
)

// redoing reports whether rows of w wait in a half of a refused call.
func (c *Core) redoing(w *Work) bool {
	return slices.ContainsFunc(c.redo, func(b *Batch) bool {
		return slices.ContainsFunc(b.Segs, func(s Seg) bool { return s.Work == w })
	})
}

// again queues a segment of a broken call once more and reports whether it did.
// Calls are pure until their first byte. Interactive work is worth one try on
// another replica, if there is one; a batch's row waits for the next replica.
func (c *Core) again(now time.Time, b *Batch, s Seg) bool {
	w := s.Work
	if w.Class == backends.Offline {
		if s.tries >= maxOfflineTries {
			return false
		}
	} else if s.tries >= maxTries || !slices.ContainsFunc(c.replicas, func(r *replica) bool {
		return r.ID != b.Replica.ID && !r.Offline && r.has(w.Place.Adapter)
	}) {
		return false
	}
	w.avoid = avoided{b.Replica.ID, now.Add(time.Duration(s.tries+1) * avoidFor)}
	c.requeue(s, s.tries+1)
	c.calls.Retried++
	return true
}

// requeue makes a segment wait once more.
func (c *Core) requeue(s Seg, tries int) {
	w := s.Work
	if w.lane != nil {
		c.order.remove(w)
	}
	w.todo = append(w.todo, span{s.From, s.To, tries})
	c.order.add(w)
}

// bisect sends a refused call again in two halves, so that the member that the
// engine cannot take ends up alone and the others are answered.
func (c *Core) bisect(b *Batch) {
	ws := works(b.Segs)
	second := ws[len(ws)/2:]
	var halves [2]*Batch
	for i := range halves {
		halves[i] = &Batch{Key: b.Key, Adapter: b.Adapter}
	}
	for _, s := range b.Segs {
		if s.Work.closed {
			continue
		}
		h := halves[0]
		if slices.Contains(second, s.Work) {
			h = halves[1]
		}
		h.add(s)
	}
	for _, h := range halves {
		if len(h.Segs) > 0 {
			c.redo = append(c.redo, h)
		}
	}
}
