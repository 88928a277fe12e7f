package batcher

import (
	"cmp"
	"slices"
	"time"

	"aloft/backends"
)

const (
	// maxMisfits bounds the walk past work that does not fit a call to work that
	// does.
	maxMisfits = 32
	// offlineShare of the latency target is the most by which offline rows may
	// hold interactive work up: as a call of their own on a shared replica, or
	// as the rest of a batch.
	offlineShare = 8
	// sendAllowance is kept between the last moment to dispatch and the one that
	// would break the promise: timers and sockets are not exact.
	sendAllowance = 2 * time.Millisecond
	// fewRefused is the share of requests refused on a prediction below which calls
	// keep the wider margin: rows are not so dear that some may be late.
	fewRefused = 0.005
	// coldSamples is how many calls of a shape are sent eagerly before its fit
	// may hold work back.
	coldSamples = 20
	// coldReach is how many times what the prior allows a first call may cost, as if
	// the engine padded: usual texts of different lengths double or treble it.
	coldReach = 4
	// reservedSlots: offline generation leaves every fourth slot of a shared
	// replica free, since a sequence cannot be taken back within a step.
	reservedSlots = 4
)

// form gives every free replica the call it should run now: replicas pull,
// nothing is pushed onto a busy one.
func (c *Core) form(now time.Time) {
	if len(c.order.expiries) == 0 && len(c.redo) == 0 {
		return
	}
	for c.pull(now) {
	}
}

// pull starts one call, if there is one to start.
func (c *Core) pull(now time.Time) bool {
	for _, r := range c.placement() {
		if !r.open(now) {
			continue
		}
		b := c.takeRedo(r)
		if b == nil {
			b = c.fill(now, r)
		}
		if b != nil {
			c.start(now, r, b)
			return true
		}
	}
	return false
}

// placement is the order in which replicas pull: with patience the lowest index
// first, so that high ones stay free to be lent; without it the one with the
// fewest tokens per slot at its engine, between equals the one that finishes
// first, which matters only between shapes.
func (c *Core) placement() []*replica {
	if c.eta > 0 || len(c.replicas) < 2 {
		return c.replicas
	}
	c.scratch = append(c.scratch[:0], c.replicas...)
	size := int(c.batchTokens.mean) + 1
	slices.SortStableFunc(c.scratch, func(a, b *replica) int {
		return cmp.Or(
			lentFirst(a, b),
			cmp.Compare(a.tokens*b.Slots, b.tokens*a.Slots),
			cmp.Compare(a.fit.Seconds(size), b.fit.Seconds(size)),
		)
	})
	return c.scratch
}

// takeRedo returns the first half of a refused call that r may run, or of the half
// the part that it may: serving work not on a lent replica, offline rows on shared
// ones within their limit. The rest waits on.
func (c *Core) takeRedo(r *replica) *Batch {
	for i := 0; i < len(c.redo); i++ {
		b := c.redo[i]
		if !r.has(b.Adapter) {
			continue
		}
		open := &Batch{Key: b.Key, Adapter: b.Adapter, Reason: b.Reason}
		rest := &Batch{Key: b.Key, Adapter: b.Adapter, Reason: b.Reason}
		for _, s := range b.Segs {
			n := s.To - s.From
			switch offline := s.Work.Class == backends.Offline; {
			case s.Work.closed:
				continue
			case offline && !r.Offline:
				n = min(n, max(0, c.offlineLimit-c.offlineRows-open.OfflineRows))
			case !offline && r.Offline:
				n = 0
			}
			if n > 0 {
				open.add(s.Work.seg(span{s.From, s.From + n, s.tries}))
			}
			if s.From += n; s.From < s.To {
				rest.add(s.Work.seg(span{s.From, s.To, s.tries}))
			}
		}
		switch {
		case len(open.Segs) == 0 && len(rest.Segs) > 0:
			continue
		case len(rest.Segs) > 0:
			c.redo[i] = rest
			return open
		}
		c.redo = slices.Delete(c.redo, i, i+1)
		if len(open.Segs) > 0 {
			return open
		}
		i--
	}
	return nil
}

// limit is the largest useful call of serving work on r, in tokens: what the
// target allows, but never below the knee, since a target that cannot be met is
// no reason to give up throughput too; and no more than is cheaper per token. The
// first calls to a new shape are sized by the prior,
// and grow while they are quick enough.
func (c *Core) limit(r *replica) int {
	f, most := r.fit, c.opt.MaxBatchTokens
	switch {
	case f.cold():
		return min(most, max(c.prior(f), f.reach))
	case f.Known():
		most = min(most, f.Useful())
	}
	if c.opt.Target > 0 {
		most = min(most, max(f.Largest(c.opt.Target, c.shared), f.Knee()))
	}
	return most
}

// prior is the largest useful call by what f was told before it saw any.
func (c *Core) prior(f *Fit) int {
	return NewFit(f.prior.alpha, f.prior.beta).Largest(cmp.Or(c.opt.Target, time.Second), c.shared)
}

// reach is what a call may cost on r at most if the engine turns out to pad: twice
// what was quick enough, since a law that is wrong could block r for seconds.
func (c *Core) reach(r *replica) int { return max(r.fit.reach, coldReach*c.prior(r.fit)) }

// when decides whether lane l's serving work goes to r now; if not, it asks to
// be woken when it will.
func (c *Core) when(now time.Time, r *replica, l *lane) (Reason, bool) {
	i, s := &l.bands[backends.Interactive], &l.bands[backends.Standard]
	rows, tokens := i.rows+s.rows, i.tokens+s.tokens
	fit, fixed := r.fit, c.opt.MaxQueueDelay
	serving := &c.order.classes[backends.Interactive]
	all := serving.rows + c.order.classes[backends.Standard].rows
	switch {
	case c.draining:
		return Drain, true
	case rows >= c.opt.MaxBatchRows || tokens >= c.limit(r):
		return Full, true
	case c.opt.Off, l.alone, fixed == 0 && (c.eta == 0 || c.opt.Target == 0), all > rows: // all > rows: other keys wait
		return Idle, true
	case fixed == 0 && fit.cold(): // a guess is no ground to wait on
		return Idle, true
	case fixed == 0 && fit.Known() && tokens >= c.enough(r):
		return Knee, true
	}
	first := i.earliest()
	if w := s.earliest(); first == nil || w != nil && w.due.Before(first.due) {
		first = w
	}
	last := first.due.Add(-fit.Surely(tokens+tokens/rows) - sendAllowance)
	at := first.Arrival.Add(time.Duration(c.eta * float64(last.Sub(first.Arrival))))
	hold := HoldPatience
	if fixed > 0 {
		hold = HoldDelay
		if at = first.Arrival.Add(fixed); c.opt.Target > 0 && last.Before(at) {
			at = last
		}
	}
	if now.Before(at) {
		c.wakeAt(at)
		c.hold(hold)
		return 0, false
	}
	return Deadline, true
}

// enough is how much must wait so that patience ends early: the knee, or nearer to
// a whole call the more patience there is.
func (c *Core) enough(r *replica) int {
	knee := r.fit.Knee()
	return knee + int(c.eta*float64(max(0, c.limit(r)-knee)))
}

// filling is one call while it is being put together.
type filling struct {
	c            *Core
	r            *replica
	now          time.Time
	b            *Batch    // nil until it has a member
	rows, tokens int       // bounds of the whole call
	reach        int       // and of its cost if the engine pads
	offRows      int       // offline rows that may still be added
	offTokens    int       // and their tokens
	due          time.Time // earliest of the serving members that can still be in time
	fit          *Fit
	whole        bool // one request, however long
}

// fill puts together the call that r should run now, nil when it should wait.
func (c *Core) fill(now time.Time, r *replica) (b *Batch) {
	for _, l := range c.order.lanes {
		l.passed = false
	}
	for more := true; more; {
		b, more = c.try(now, r)
	}
	return b
}

// try fills a call from the lane whose turn it is. Where nothing of that lane may
// run on r it says that more lanes are worth a try.
func (c *Core) try(now time.Time, r *replica) (b *Batch, more bool) {
	f := filling{
		c: c, r: r, now: now, fit: r.fit, whole: c.opt.Off, reach: c.reach(r),
		rows: c.opt.MaxBatchRows, tokens: c.opt.MaxBatchTokens,
		offRows: c.opt.MaxBatchRows, offTokens: c.opt.MaxBatchTokens,
	}
	from, to := backends.Interactive, backends.Offline
	var l *lane
	reason := Idle
	if r.Offline {
		from = backends.Offline
		l = c.order.lane(now, r, from, to)
	} else {
		if f.offRows = min(f.offRows, c.offlineLimit-c.offlineRows); f.offRows <= 0 {
			to = backends.Standard
			if c.order.classes[backends.Offline].queue > 0 {
				c.hold(HoldOffline)
			}
		}
		if l = c.order.lane(now, r, from, backends.Standard); l != nil {
			ok := false
			if reason, ok = c.when(now, r, l); !ok {
				return nil, false
			}
			f.tokens = c.limit(r)
			if c.thin(now, r, l); !l.serving() {
				return nil, true
			}
			f.offTokens = c.small(f.fit, true)
		} else if to == backends.Offline {
			from = backends.Offline
			l = c.order.lane(now, r, from, to)
			f.offTokens = c.small(f.fit, false)
		}
	}
	if l == nil {
		return nil, false
	}
	f.whole = f.whole || l.alone
	if f.take(l, from, to); f.b == nil { // all of it just failed on r
		l.passed = true
		return nil, true
	}
	f.b.Reason = reason
	return f.b, false
}

// small is how many offline tokens fit into offlineShare of the target, as a
// call of their own or riding in one that runs anyway.
func (c *Core) small(f *Fit, riding bool) int {
	if c.opt.Target == 0 {
		return c.opt.MaxBatchTokens
	}
	d := c.opt.Target / offlineShare
	if riding {
		return int(d.Seconds() / f.margin / f.beta)
	}
	return min(c.opt.MaxBatchTokens, max(f.Within(d), 1))
}

// take fills f from lane l in order, skipping what does not fit.
func (f *filling) take(l *lane, from, to backends.Class) {
	c := f.c
	c.hidden = c.hidden[:0]
	for f.size().Rows < f.rows && len(c.hidden) < maxMisfits {
		w, _ := c.order.next(f.now, l, from, to)
		if w == nil {
			break
		}
		n := f.fits(w)
		if n == 0 {
			hide(w)
			c.hidden = append(c.hidden, w)
			continue
		}
		if f.b == nil {
			f.b = lead(w)
		}
		seg := c.order.take(w, n)
		f.b.add(seg)
		if w.Class == backends.Offline {
			f.offRows, f.offTokens = f.offRows-n, f.offTokens-seg.Tokens
		} else if alone := f.now.Add(f.fit.Promise(seg.Tokens)); !alone.After(w.due) && (f.due.IsZero() || w.due.Before(f.due)) {
			f.due = w.due
		}
		if f.whole {
			break
		}
	}
	for _, w := range c.hidden {
		show(w)
	}
}

// fits is how many rows of w's first span the call takes now. A quarter of a
// call at a time, so that one long list leaves room for others: the order
// decides again after each quarter.
func (f *filling) fits(w *Work) int {
	if w.avoid.id == f.r.ID && f.now.Before(w.avoid.until) {
		f.c.wakeAt(w.avoid.until)
		f.c.hold(HoldAvoid)
		return 0
	}
	s := w.todo[0]
	chunk, offline := max(1, f.rows/4), w.Class == backends.Offline
	if f.whole {
		chunk = f.rows
	}
	if offline {
		chunk = min(chunk, f.offRows)
	}
	n, size := 0, f.size()
	for _, t := range w.RowTokens[s.from:s.to] {
		grown := size.with(max(t, 1))
		if n == chunk || grown.Rows > f.rows || size.Rows > 0 && !f.room(size, grown, offline) {
			break
		}
		size, n = grown, n+1
	}
	return n
}

// size is the call's so far.
func (f *filling) size() Size {
	if f.b == nil {
		return Size{}
	}
	return f.b.size()
}

// room reports whether the call may grow, without breaking the promise to its
// earliest member, and without costing more than a call of its own would.
func (f *filling) room(size, grown Size, offline bool) bool {
	row, cost := grown.Tokens-size.Tokens, grown.cost(f.fit.padded)
	switch {
	case cost > f.tokens, grown.cost(true) > f.reach, offline && grown.Tokens-f.size().Tokens > f.offTokens:
		return false
	case f.fit.cold(): // a guess is no ground for more
		return true
	case f.fit.padded && f.fit.beta*float64(cost-size.cost(true)-row) > f.fit.alpha:
		return false
	}
	took := f.fit.Promise(cost)
	if f.c.refused.mean < fewRefused {
		took = f.fit.Surely(cost)
	}
	return f.due.IsZero() || !f.now.Add(took).After(f.due)
}

// fly counts b among the calls at engines.
func (c *Core) fly(b *Batch) {
	b.pos = len(c.flying)
	c.flying = append(c.flying, b)
}

// start puts b onto r.
func (c *Core) start(now time.Time, r *replica, b *Batch) {
	b.Replica, b.replica, b.At = r.Replica, r, now
	b.load = b.Tokens
	if b.Alone {
		b.load = c.expected(b.Segs[0].Work)
	}
	oldest := now
	for _, s := range b.Segs {
		w := s.Work
		w.running++
		if w.Arrival.Before(oldest) {
			oldest = w.Arrival
		}
		class := &c.order.classes[w.Class]
		class.inFlight++
		class.inFlightTok += s.Tokens
	}
	if r.free.After(oldest) {
		oldest = r.free
	}
	if r.busy == 0 {
		b.Held = now.Sub(oldest)
	}
	r.busy++
	r.tokens += b.load
	c.sit(now, r, b)
	if !b.Replica.Offline {
		c.offlineRows += b.OfflineRows
	}
	c.fly(b)
	c.calls.Reasons[b.Reason]++
	c.calls.Calls++
	c.batchRows.add(float64(b.Rows))
	c.batchTokens.add(float64(b.Tokens))
	c.padding.add(float64(b.size().cost(r.fit.padded)) / float64(max(b.Tokens, 1)))
	c.hedges.started(c, b)
	c.acts = append(c.acts, Action{Kind: Dispatch, Batch: b})
}
