package batcher

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"aloft/backends"
)

const (
	// standardPatience is how many targets standard work may wait before it
	// counts as interactive. Offline work never does; its floor share moves it.
	standardPatience = 5
	offlinePatience  = time.Hour
	// noExpiry is the longest that work without a timeout may wait; job runners
	// that submit offline rows hold their own deadlines.
	noExpiry = 24 * time.Hour
	// maxOfflineTries bounds how often a row of a batch job is sent again after
	// its replica went away; interactive work is sent again once.
	maxOfflineTries = 3
	maxTries        = 1
	// avoidFor keeps retried work off the replica that failed it; after that
	// any replica will do, so that the only one is not avoided for ever.
	avoidFor = time.Second
	// restFor is how long a replica that took no call is left alone: it drains or
	// its breaker is open, and the pool says so in a moment.
	restFor = 100 * time.Millisecond
	// settling is how long a new replica's times stay out of the fit: first
	// calls pay for page faults and lazy initialisation.
	settling = time.Second
)

// ActionKind says what the Batcher has to do.
type ActionKind uint8

// The actions.
const (
	Dispatch ActionKind = iota // send Batch to Batch.Replica; Done answers
	Fail                       // answer Work with Err
	Abort                      // nobody waits for Batch any more: cancel it; Done must still follow
	Hedge                      // send Batch too: the same call as its Work's first, elsewhere; Done answers
)

// Action is one decision of the core.
type Action struct {
	Kind  ActionKind
	Batch *Batch
	Work  *Work
	Err   error
}

// Outcome is how a call ended.
type Outcome uint8

// The outcomes.
const (
	Answered Outcome = iota // the engine answered every row
	Rejected                // the engine refused the content (400, 413, 422)
	Refused                 // the engine refused for another reason that a retry does not help
	Broken                  // 5xx, 429, reset, no connection: another replica may do better
	Declined                // the replica took no call at all: it drains, or its breaker is open
	Dropped                 // cancelled because nobody waits for it any more
)

// Result tells the core how a Batch ended.
type Result struct {
	Outcome Outcome
	Took    time.Duration // merged: dispatch to the end of the answer
	Err     error         // unless Answered or Dropped
	Output  int           // generated tokens, as far as known
	// Tokens is our count of a merged call's rows, Counted the engine's; below 1 =
	// it did not say.
	Tokens, Counted int
}

// Core is the state of one model's queue and its replicas. Its methods take an
// event and the time and return what to do; the slice is valid until the next
// call. It has no lock, no clock and no goroutine.
type Core struct {
	opt      Options
	order    *order
	replicas []*replica // ready ones, Offline first, then by Index
	shared   int        // how many of them are not Offline
	renewing bool       // one of those is Old
	byID     map[string]*replica
	flying   []*Batch // calls at engines
	redo     []*Batch // halves of refused calls, served first
	fits     map[string]*Fit

	eta          float64
	offlineLimit int
	offlineRows  int // in flight on replicas that are not Offline
	draining     bool

	affinity *affinity // nil = off
	hedges   hedges
	seq      uint64 // works that arrived

	acts []Action
	wake time.Time
	meter
}

// NewCore starts empty; o must have passed Validate.
func NewCore(o Options) *Core {
	c := &Core{
		opt: o.withDefaults(), order: newOrder(), byID: map[string]*replica{},
		fits: map[string]*Fit{}, offlineLimit: math.MaxInt,
	}
	c.arrivedTokens.over, c.refused.over = 100, 1000
	c.outputs, c.trust = newOutputs(outputTenants), 1
	if c.opt.Affinity {
		c.affinity = newAffinity(affinityEntries)
	}
	return c
}

// Wake is when Tick wants to be called next; zero = no need.
func (c *Core) Wake() time.Time { return c.wake }

// Drained reports whether a draining core has nothing left.
func (c *Core) Drained() bool {
	return c.draining && len(c.order.expiries) == 0 && len(c.flying) == 0 && len(c.redo) == 0
}

// Arrive queues w or fails it.
func (c *Core) Arrive(now time.Time, w *Work) []Action {
	c.acts = c.acts[:0]
	class := &c.order.classes[w.Class]
	class.count.Arrived++
	c.seq++
	c.deadlines(w)
	w.seq, w.Alone = c.seq, w.Alone || !c.opt.Merge
	c.arrived(now, w.Class, w.tokens())
	c.arrivedTokens.add(float64(w.tokens()))
	switch {
	case c.draining:
		c.shed(w, DropDrain, backends.ErrDraining)
	case class.queue >= c.opt.MaxQueue:
		c.shed(w, DropFull, &backends.RetryError{Err: backends.ErrOverloaded, After: c.retryAfter(), Reason: backends.ReasonQueueFull})
	case c.lacks(w):
		c.shed(w, DropReplica, c.unserved(w))
	default:
		w.first[0] = span{to: len(w.RowTokens)}
		w.todo = w.first[:]
		if c.refuse(now, w) {
			break
		}
		c.order.add(w)
	}
	return c.settle(now)
}

// deadlines sets when w is due (for order and patience) and when it fails.
func (c *Core) deadlines(w *Work) {
	target := cmp.Or(c.opt.Target, time.Second)
	switch w.Class {
	case backends.Interactive:
		w.due, w.expiry = w.Arrival.Add(target), w.Arrival.Add(c.opt.QueueTimeout)
	case backends.Standard:
		w.due, w.expiry = w.Arrival.Add(standardPatience*target), w.Arrival.Add(c.opt.QueueTimeout)
	default:
		w.due, w.expiry = w.Arrival.Add(offlinePatience), w.Arrival.Add(noExpiry)
	}
	if d := w.Deadline; !d.IsZero() {
		if d.Before(w.due) {
			w.due = d
		}
		if d.Before(w.expiry) {
			w.expiry = d
		}
	}
}

func (c *Core) shed(w *Work, why Drop, err error) {
	c.calls.Drops[why]++
	c.order.classes[w.Class].count.Shed++
	c.fail(w, err)
}

func (c *Core) fail(w *Work, err error) {
	w.closed = true
	c.acts = append(c.acts, Action{Kind: Fail, Work: w, Err: err})
}

// Cancel forgets w: its caller left. A call whose callers all left is aborted.
func (c *Core) Cancel(now time.Time, w *Work) []Action {
	c.acts = c.acts[:0]
	if w.closed {
		return nil
	}
	c.order.classes[w.Class].count.Cancelled++
	c.close(w)
	return c.settle(now)
}

// close takes w out of the queue and aborts calls that nobody waits for now.
func (c *Core) close(w *Work) {
	w.closed = true
	if w.lane != nil {
		c.order.remove(w)
	}
	w.todo = nil
	if w.running == 0 {
		return
	}
	for _, b := range c.flying {
		mine, others := false, false
		for _, s := range b.Segs {
			mine = mine || s.Work == w
			others = others || !s.Work.closed
		}
		if mine && !others {
			c.acts = append(c.acts, Action{Kind: Abort, Batch: b})
		}
	}
}

// First notes the first byte of a call that is alone, took after its dispatch.
// took is 0 for an answer that is no stream: when its first token came is not
// known, and the fit's guess stands in. Of a hedged pair it is the one that won;
// else an answer that is no stream needs no First: Done stands for it.
func (c *Core) First(now time.Time, b *Batch, took time.Duration) []Action {
	c.acts = c.acts[:0]
	c.began(now, b, took)
	if c.opt.Merge || len(c.order.expiries) == 0 {
		return c.acts
	}
	return c.settle(now) // its prompt is read: the next one's turn
}

func (c *Core) began(now time.Time, b *Batch, took time.Duration) {
	w := b.Segs[0].Work
	b.begun = true
	b.replica.prefilled(b)
	c.hedges.first(now, b)
	if t := b.twin; t != nil {
		t.lost, t.twin, b.twin = true, nil, nil
		c.acts = append(c.acts, Action{Kind: Abort, Batch: t})
	}
	if c.opt.Merge { // the latencies and the fit are those of merged calls, and their like
		if now.After(w.due) {
			c.order.classes[w.Class].count.Late++
		}
		if w.Key == Pooled {
			c.learn(b, now.Sub(b.At))
			if w.Class == backends.Interactive {
				c.first.add(now, now.Sub(w.Arrival))
			}
		}
		return
	}
	if b.first = took; took > 0 {
		c.learn(b, took)
	} else {
		guess := time.Duration(b.replica.fit.Seconds(b.Tokens) * float64(time.Second))
		b.first = min(guess, now.Sub(b.At))
	}
	at := b.At.Add(b.first)
	if w.Class == backends.Interactive {
		c.first.add(now, at.Sub(w.Arrival))
	}
	late := at.After(w.due)
	if late {
		c.order.classes[w.Class].count.Late++
	}
	c.trusted(b, late)
}

// Done ends a call and decides what becomes of its members.
func (c *Core) Done(now time.Time, b *Batch, r Result) []Action {
	c.acts = c.acts[:0]
	c.land(now, b)
	if b.lost || b.twin != nil && r.Outcome != Answered { // its twin decides
		if b.twin != nil {
			b.twin.twin, b.twin = nil, nil
		}
		b.Segs[0].Work.running--
		return c.settle(now)
	}
	if b.Alone && r.Outcome == Answered && !b.begun {
		c.began(now, b, 0)
	}
	switch {
	case r.Outcome == Declined:
		b.replica.rests = now.Add(restFor)
	case r.Outcome == Answered && !b.Alone:
		c.learn(b, r.Took)
		c.counted(r)
	case r.Outcome == Answered && !c.opt.Merge:
		c.generated(now, b, r)
	}
	// Those that left count too: what was refused may have been theirs.
	split := !b.Alone && r.Outcome == Rejected && slices.ContainsFunc(b.Segs, func(s Seg) bool { return s.Work != b.Segs[0].Work })
	for _, s := range b.Segs {
		w := s.Work
		w.running--
		switch {
		case w.closed || split:
		case r.Outcome == Dropped: // the caller left; its cancel may still be on the way
			c.order.classes[w.Class].count.Cancelled++
			c.close(w)
		case r.Outcome == Answered:
			c.answered(now, b, w)
		case r.Outcome == Declined:
			c.requeue(s, s.tries)
		case r.Outcome == Broken && c.again(now, b, s):
		default:
			count := &c.order.classes[w.Class].count
			if r.Outcome == Broken {
				count.Failed++
			} else {
				count.Refused++
			}
			err := r.Err
			if err == nil {
				err = backends.ErrBadReply
			}
			c.close(w)
			c.acts = append(c.acts, Action{Kind: Fail, Work: w, Err: err})
		}
	}
	if split {
		c.bisect(b)
	}
	return c.settle(now)
}

// land takes b off its replica.
func (c *Core) land(now time.Time, b *Batch) {
	if last := len(c.flying) - 1; b.pos <= last && c.flying[b.pos] == b { // else Abandon was there
		c.flying[b.pos] = c.flying[last]
		c.flying[b.pos].pos = b.pos
		c.flying[last] = nil
		c.flying = c.flying[:last]
	}
	c.hedges.forget(b)
	r := b.replica
	r.busy--
	r.tokens -= b.load
	r.stand(b)
	if r.busy == 0 {
		r.free = now
	}
	if !b.Replica.Offline {
		c.offlineRows -= b.OfflineRows
	}
	for _, s := range b.Segs {
		cl := &c.order.classes[s.Work.Class]
		cl.inFlight--
		cl.inFlightTok -= s.Tokens
	}
}

// answered counts a work whose last segment is done.
func (c *Core) answered(now time.Time, b *Batch, w *Work) {
	if !b.Alone && (len(w.todo) > 0 || w.running > 0 || c.redoing(w)) {
		return
	}
	w.closed = true
	count := &c.order.classes[w.Class].count
	count.Done++
	took := now.Sub(w.Arrival)
	if b.Alone {
		return // judged at its first token
	}
	if w.Class == backends.Interactive {
		c.first.add(now, took)
	}
	if now.After(w.due) {
		count.Late++
	}
}

// SetEta sets the patience.
func (c *Core) SetEta(now time.Time, eta float64) []Action {
	c.acts = c.acts[:0]
	if eta >= 0 { // not NaN
		c.eta = min(eta, 1)
	} else {
		c.eta = 0
	}
	return c.settle(now)
}

// SetOfflineLimit bounds offline rows in flight on shared replicas.
func (c *Core) SetOfflineLimit(now time.Time, rows int) []Action {
	c.acts = c.acts[:0]
	c.offlineLimit = max(rows, 0)
	return c.settle(now)
}

// Tick does what is due; call it at Wake.
func (c *Core) Tick(now time.Time) []Action {
	c.acts = c.acts[:0]
	return c.settle(now)
}

// Drain refuses new work and stops waiting for fuller batches.
func (c *Core) Drain(now time.Time) []Action {
	c.acts = c.acts[:0]
	c.draining = true
	return c.settle(now)
}

// Abandon fails what waits and what runs with ErrDraining; nothing is left then.
func (c *Core) Abandon(now time.Time) []Action {
	c.acts = c.acts[:0]
	c.draining = true
	for len(c.order.expiries) > 0 {
		w := c.order.expiries[0]
		c.close(w)
		c.shed(w, DropDrain, backends.ErrDraining)
	}
	for _, b := range c.redo {
		for _, w := range works(b.Segs) {
			c.shed(w, DropDrain, backends.ErrDraining)
		}
	}
	c.redo = nil
	for _, b := range c.flying {
		for _, w := range works(b.Segs) {
			if !b.Alone {
				c.shed(w, DropDrain, backends.ErrDraining)
			}
		}
	}
	c.flying = nil
	return c.acts
}

// settle fails what has waited too long, starts what can start and sets the
// next wake-up. Every event ends here.
func (c *Core) settle(now time.Time) []Action {
	for len(c.order.expiries) > 0 && !now.Before(c.order.expiries[0].expiry) {
		c.expire(now, c.order.expiries[0])
	}
	c.wake = time.Time{}
	for _, b := range c.redo { // not in the queue, but waiting all the same
		for _, w := range works(b.Segs) {
			if now.Before(w.expiry) {
				c.wakeAt(w.expiry)
			} else {
				c.expire(now, w)
			}
		}
	}
	c.redo = slices.DeleteFunc(c.redo, func(b *Batch) bool { return len(works(b.Segs)) == 0 })
	if c.opt.Merge {
		c.form(now)
	} else {
		c.admit(now)
	}
	if len(c.order.expiries) > 0 || len(c.redo) > 0 {
		for _, r := range c.replicas {
			if now.Before(r.rests) {
				c.wakeAt(r.rests)
			}
		}
	}
	if len(c.order.expiries) > 0 {
		c.wakeAt(c.order.expiries[0].expiry)
	}
	c.hedge(now)
	return c.acts
}

func (c *Core) expire(now time.Time, w *Work) {
	var err error = &backends.RetryError{Err: backends.ErrOverloaded, After: c.retryAfter(), Reason: backends.ReasonQueueTimeout}
	why := DropTimeout
	switch {
	case !c.serves(w): // no capacity, whoever set the limit
		why, err = DropReplica, c.unserved(w)
	case !w.Deadline.IsZero() && !now.Before(w.Deadline):
		why, err = DropDeadline, fmt.Errorf("%w: %w", backends.ErrDeadline, err)
	}
	c.giveUp(now, w, why, err)
}

// giveUp fails what has waited in vain.
func (c *Core) giveUp(now time.Time, w *Work, why Drop, err error) {
	c.calls.Drops[why]++
	c.order.classes[w.Class].count.Expired++
	if w.Class == backends.Interactive { // a wait that never ended is the worst latency of all
		c.first.add(now, now.Sub(w.Arrival))
	}
	c.close(w)
	c.fail(w, fmt.Errorf("waited %v: %w", now.Sub(w.Arrival).Round(time.Millisecond), err))
}

func (c *Core) wakeAt(at time.Time) {
	if c.wake.IsZero() || at.Before(c.wake) {
		c.wake = at
	}
}
