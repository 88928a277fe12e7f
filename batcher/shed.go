package batcher

import (
	"container/heap"
	"math"
	"time"

	"aloft/backends"
)

const (
	// probeEvery: of so many refusals on a prediction one is let in all the same,
	// so that a wrong prediction is found out.
	probeEvery = 200
	// A request is admitted though it is predicted to be late by this share of a full
	// call's time: some leave, some calls are short. A short one may be later, since
	// one refused long request makes room for several. How much of each, and what
	// counts as short (times the mean), goes from the first value to the second as
	// refusals rise to manyRefused of all requests: at first the longest give way,
	// but the more has to go the more evenly it is spread over the lengths.
	calmSlack, strainedSlack = 0.10, 0.06
	calmExtra, strainedExtra = 0.20, 0.12
	calmShort, strainedShort = 2.0, 0.6
	manyRefused              = 0.07
	// maxSkips bounds how many heads one early drop gives up; worthwhile is by how
	// much more the call must then serve a second.
	maxSkips   = 64
	worthwhile = 1.15
	// overloaded is how many full calls wait when something has to give.
	overloaded = 1.5
)

// refuse fails w if it is predicted to be late, but for a probe now and then.
func (c *Core) refuse(now time.Time, w *Work) bool {
	excess, late := c.late(now, w)
	if !late {
		c.refused.add(0)
		return false
	}
	c.refused.add(1)
	if c.refusals++; c.refusals%probeEvery == 0 {
		return false
	}
	c.shed(w, DropLate, &backends.RetryError{Err: backends.ErrOverloaded, After: max(excess.Round(time.Second), time.Second), Reason: backends.ReasonLate})
	return true
}

// late predicts by how much w would miss its due time if it were let in; ok is
// false when it would not, when there is nothing to predict from, or when even an
// idle replica would be too slow and nobody waits: then refusing helps nobody.
func (c *Core) late(now time.Time, w *Work) (excess time.Duration, ok bool) {
	switch {
	case w.Class == backends.Offline || c.opt.Target == 0 || c.opt.Off || c.opt.Keep:
		return 0, false
	case !c.opt.Merge:
		return c.lateFirst(now, w)
	case w.Alone:
		return 0, false
	}
	for _, r := range c.replicas {
		if !r.Offline && r.busy == 0 && r.has(w.Place.Adapter) {
			return 0, false
		}
	}
	rate, full, own := c.capacity(w.tokens())
	if rate == 0 {
		return 0, false
	}
	if own > w.due.Sub(now) && c.order.classes[backends.Interactive].queue+c.order.classes[backends.Standard].queue == 0 {
		return 0, false
	}
	full = max(min(full, c.share()), own)
	wait := time.Duration(float64(c.backlog(w)) / rate * float64(time.Second))
	strain := math.Pow(min(1, c.refused.mean/manyRefused), 3) // late, and then quickly
	between := func(calm, strained float64) float64 { return calm + strain*(strained-calm) }
	slack := between(calmSlack, strainedSlack)
	if float64(w.tokens()) < between(calmShort, strainedShort)*c.arrivedTokens.mean {
		slack += between(calmExtra, strainedExtra)
	}
	excess = now.Add(wait+full).Sub(w.due) - time.Duration(slack*float64(full))
	return excess, excess > 0
}

// share is the part of the target that a call may take so that one that waits for
// a replica, all of them staggered, is in time.
func (c *Core) share() time.Duration {
	return time.Duration(float64(c.opt.Target) / (1 + 1/float64(max(c.shared, 1))))
}

// capacity is what the shared replicas serve, in tokens a second, the longest
// promise of a full call among them, and that of a call of so many tokens; rate is 0
// while nobody has measured.
func (c *Core) capacity(tokens int) (rate float64, full, own time.Duration) {
	known := false
	for _, r := range c.replicas {
		if r.Offline {
			continue
		}
		rate += c.speed(r)
		full = max(full, r.fit.Promise(c.limit(r)))
		own = max(own, r.fit.Promise(tokens))
		known = known || r.fit.sure()
	}
	if !known {
		return 0, 0, 0
	}
	return rate / max(1, c.padding.mean), full, own
}

// speed is what r serves in calls of the largest useful size, in tokens a second.
func (c *Core) speed(r *replica) float64 {
	size := c.limit(r)
	return float64(size) / r.fit.Seconds(size)
}

// backlog is how many tokens are served before w would be.
func (c *Core) backlog(w *Work) int {
	_, tokens := c.before(w)
	return tokens
}

// thin makes room where more waits than can be answered in time: it gives up what
// is too late already, and those heads without which the calls to come serve more.
func (c *Core) thin(now time.Time, r *replica, l *lane) {
	if c.opt.Target == 0 || c.opt.Off || l.alone || !r.fit.sure() {
		return
	}
	full := float64(c.limit(r))
	for class := backends.Interactive; class <= backends.Standard; class++ {
		b := &l.bands[class]
		for b.overload(c, full) && c.order.classes[class].queue > 1 { // what is large but waits alone makes room for nobody
			q := b.greediest()
			n, why := c.hopeless(now, r, q), DropHopeless
			if n == 0 {
				n, why = c.skips(now, r, b, q), DropEarly
			}
			if n == 0 {
				break
			}
			for ; n > 0 && len(q.works) > 0; n-- {
				c.giveUp(now, q.works[0], why, &backends.RetryError{Err: backends.ErrOverloaded, After: c.retryAfter(), Reason: backends.ReasonLate})
			}
		}
	}
}

func (b *band) overload(c *Core, full float64) bool {
	return float64(b.tokens) > overloaded*full || float64(b.rows) > overloaded*float64(c.opt.MaxBatchRows)
}

// greediest is the waiting tenant that was served most.
func (b *band) greediest() (most *tenantQueue) {
	for _, q := range b.tenants {
		if len(q.works) > 0 && (most == nil || q.account.served > most.account.served) {
			most = q
		}
	}
	return most
}

// hopeless is 1 when q's head is too late whatever happens.
func (c *Core) hopeless(now time.Time, r *replica, q *tenantQueue) int {
	w := q.works[0]
	if _, tokens := w.waiting(); now.Add(r.fit.Least(tokens)).After(w.due) {
		return 1
	}
	return 0
}

// skips is how many of q's heads to give up so that the next call serves more rows
// a second (Nexus's early drop): a head that is nearly late makes the call small.
func (c *Core) skips(now time.Time, r *replica, b *band, q *tenantQueue) (best int) {
	limit := float64(c.limit(r))
	if float64(r.fit.Within(q.works[0].due.Sub(now))) >= limit {
		return 0 // the head makes no call smaller
	}
	for _, other := range b.tenants {
		if other != q && len(other.works) > 0 {
			limit = min(limit, float64(r.fit.Within(other.works[0].due.Sub(now))))
		}
	}
	left := float64(b.tokens)
	rate := func(due time.Time) float64 {
		size := min(limit, float64(r.fit.Within(due.Sub(now))), left)
		if size <= 0 {
			return 0
		}
		return size / r.fit.Seconds(int(size))
	}
	most := worthwhile * rate(q.works[0].due)
	c.skipped = c.skipped[:0]
	for n := 1; n <= maxSkips && len(q.works) > 1; n++ {
		w := heap.Pop(&q.works).(*Work)
		c.skipped = append(c.skipped, w)
		_, tokens := w.waiting()
		left -= float64(tokens)
		if v := rate(q.works[0].due); v > most {
			best, most = n, v*1.0001 // later ones must be better, not equal
		}
	}
	for _, w := range c.skipped {
		show(w)
	}
	return best
}
