package batcher

import (
	"math"
	"sync/atomic"
	"time"

	"aloft/backends"
)

// outlook is what a new standard request has to expect until its first byte, in
// seconds: wait, a call's fixed time included, and token for each token of its
// prompt. wait < 0: there is no replica.
type outlook struct{ wait, token float64 }

// outlook predicts from the fits, the slots and what waits. A free replica means
// no wait; else what waits and half of what runs must be served first.
func (c *Core) outlook() outlook {
	var running, slots, rate, alpha, token float64
	free := false
	for _, r := range c.replicas {
		if r.Offline {
			continue
		}
		f := r.fit
		if slots == 0 || f.alpha < alpha {
			alpha, token = f.alpha, f.beta
		}
		free = free || r.busy < r.Slots
		slots += float64(r.Slots)
		running += float64(r.tokens)
		if c.opt.Merge {
			rate += c.speed(r)
		}
	}
	var works, tokens float64
	for i := range c.order.classes[:backends.Offline] {
		works += float64(c.order.classes[i].queue)
		tokens += float64(c.order.classes[i].tokens)
	}
	switch {
	case slots == 0:
		return outlook{wait: -1}
	case free && works == 0:
		return outlook{alpha, token}
	case c.opt.Merge:
		return outlook{alpha + (tokens+running/2)/rate, token}
	}
	return outlook{alpha + (works+1)*c.slotSeconds.mean/slots, token}
}

// wait is the core's last outlook, for everybody. The two halves may be of two
// moments: it is a prediction.
type wait struct{ wait, token atomic.Uint64 }

func (w *wait) set(o outlook) {
	w.wait.Store(math.Float64bits(o.wait))
	w.token.Store(math.Float64bits(o.token))
}

// Wait predicts how long a new standard request of so many prompt tokens waits
// for its first byte (merged: its answer); -1 = there is no replica. It costs two
// loads from memory and takes no lock.
func (b *Batcher) Wait(tokens int) time.Duration {
	s := math.Float64frombits(b.wait.wait.Load())
	if s < 0 {
		return -1
	}
	s += math.Float64frombits(b.wait.token.Load()) * float64(tokens)
	return time.Duration(min(s, time.Hour.Seconds()) * float64(time.Second)).Round(time.Microsecond)
}
