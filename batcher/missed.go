package batcher

import (
	"time"

	"aloft/backends"
)

// Missed notes a request that was served elsewhere, or refused, because this
// model's replicas could not in time: it is demand, for which replicas are to be
// started, but no work of this queue.
func (b *Batcher) Missed(class backends.Class, tokens int) {
	b.do(func(now time.Time) []Action {
		b.core.missed(now, min(class, backends.Offline), tokens)
		return nil
	})
}

func (c *Core) missed(now time.Time, class backends.Class, tokens int) {
	c.order.classes[class].count.Missed++
	c.arrived(now, class, tokens)
}
