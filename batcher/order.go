package batcher

import (
	"container/heap"
	"slices"
	"time"

	"aloft/backends"
)

// floorShare is the share of served tokens that a waiting lower class gets even
// while higher classes wait; without it strict order starves (Triton's priority
// levels do).
const floorShare = 0.05

// Caches of empty lanes and tenant queues are kept up to these sizes, since the
// same keys and tenants come back, and dropped beyond, since keys are chosen by
// clients.
const (
	maxLanes    = 64
	maxTenants  = 256
	maxAccounts = 4096
)

// order holds the queued work: a lane per merge key and adapter, in it a band per class, in
// that a queue per tenant, ordered by due time. The next work of a band is the
// earliest due of the tenant that was served least (virtual token counter, VTC,
// OSDI'24).
type order struct {
	lanes    []*lane
	byKey    map[laneKey]*lane
	classes  [backends.Classes]classState
	expiries expiryHeap
}

// classState is what a class keeps over all lanes.
type classState struct {
	accounts              map[string]*account
	prune                 int     // how many accounts there may be until the idle ones are dropped
	floor                 float64 // counter of the tenant served last: newcomers are lifted to it
	owed                  float64 // tokens that the floor share owes this class
	queue, rows, tokens   int
	active                int // tenants with work queued
	inFlight, inFlightTok int
	count                 Counters
}

// account is one tenant's counter of served tokens in a class.
type account struct {
	served         float64
	queued, tokens int // requests, and tokens of those
}

// laneKey is what work must have in common to share a call, or to wait for the
// same replicas.
type laneKey struct {
	key, adapter string
	alone        bool
}

type lane struct {
	laneKey
	bands [backends.Classes]band
	works int
	stuck [2]bool // serving and offline work for which no replica is free, while slots are given out

	passed bool // nothing of it may run on the replica that is being filled
}

// serving reports whether work with a client waits in l.
func (l *lane) serving() bool {
	return l.bands[backends.Interactive].rows+l.bands[backends.Standard].rows > 0
}

type band struct {
	byTenant map[string]*tenantQueue
	tenants  []*tenantQueue
	turns    turns
	prune    int // how many tenants there may be until the idle ones are dropped
	tokens   int
	rows     int
}

type tenantQueue struct {
	turn
	name    string
	account *account
	works   dueHeap
}

func newOrder() *order {
	o := &order{byKey: map[laneKey]*lane{}}
	for c := range o.classes {
		o.classes[c].accounts = map[string]*account{}
	}
	return o
}

// add queues w, whose todo is not empty.
func (o *order) add(w *Work) {
	key := laneKey{w.Key, w.Place.Adapter, w.Alone}
	l := o.byKey[key]
	if l == nil {
		o.prune()
		l = &lane{laneKey: key}
		o.byKey[key] = l
		o.lanes = append(o.lanes, l)
	}
	q := o.tenant(l, w.Class, w.Tenant)
	if q.account.queued == 0 { // back from idle: no credit for the time away
		q.account = o.account(w.Class, w.Tenant) // the old one may have been dropped meanwhile
		q.account.served = max(q.account.served, o.classes[w.Class].floor)
	}
	if q.account.queued++; q.account.queued == 1 {
		o.classes[w.Class].active++
	}
	heap.Push(&q.works, w)
	heap.Push(&o.expiries, w)
	w.lane, w.queue = l, q
	l.bands[w.Class].turns.wants(q)
	l.works++
	o.classes[w.Class].queue++
	rows, tokens := w.waiting()
	o.tally(w, rows, tokens)
}

// tenant finds or makes the queue of a tenant in a lane's band.
func (o *order) tenant(l *lane, class backends.Class, name string) *tenantQueue {
	b := &l.bands[class]
	if q := b.byTenant[name]; q != nil {
		return q
	}
	if len(b.tenants) >= max(b.prune, maxTenants) {
		b.tenants, b.byTenant = slices.DeleteFunc(b.tenants, func(q *tenantQueue) bool { return len(q.works) == 0 && q.pos < 0 }), map[string]*tenantQueue{}
		for _, q := range b.tenants {
			b.byTenant[q.name] = q
		}
		b.prune = 2 * len(b.tenants)
	}
	q := &tenantQueue{name: name, account: o.account(class, name), turn: turn{pos: -1}}
	if b.byTenant == nil {
		b.byTenant = map[string]*tenantQueue{}
	}
	b.byTenant[name] = q
	b.tenants = append(b.tenants, q)
	return q
}

func (o *order) account(class backends.Class, name string) *account {
	c := &o.classes[class]
	a := c.accounts[name]
	if a != nil {
		return a
	}
	if len(c.accounts) >= max(c.prune, maxAccounts) { // idle tenants lose their memory, never those that wait
		waiting := map[string]*account{}
		for n, old := range c.accounts {
			if old.queued > 0 {
				waiting[n] = old
			}
		}
		c.accounts, c.prune = waiting, 2*len(waiting)
	}
	a = &account{served: c.floor}
	c.accounts[name] = a
	return a
}

func (o *order) prune() {
	if len(o.lanes) < maxLanes {
		return
	}
	o.lanes = slices.DeleteFunc(o.lanes, func(l *lane) bool {
		if l.works > 0 {
			return false
		}
		delete(o.byKey, l.laneKey)
		return true
	})
}

func (o *order) tally(w *Work, rows, tokens int) {
	b, c := &w.lane.bands[w.Class], &o.classes[w.Class]
	b.rows, b.tokens = b.rows+rows, b.tokens+tokens
	w.queue.account.tokens += tokens
	c.rows, c.tokens = c.rows+rows, c.tokens+tokens
}

// remove takes w out of the queue whole.
func (o *order) remove(w *Work) {
	rows, tokens := w.waiting()
	o.tally(w, -rows, -tokens)
	o.unlink(w)
}

func (o *order) unlink(w *Work) {
	if w.duePos >= 0 { // hidden while a batch is being filled otherwise
		heap.Remove(&w.queue.works, w.duePos)
	}
	heap.Remove(&o.expiries, w.expiryPos)
	w.lane.works--
	c := &o.classes[w.Class]
	if w.queue.account.queued--; w.queue.account.queued == 0 {
		c.active--
	}
	if c.queue--; c.queue == 0 {
		c.owed = 0
	}
	w.lane, w.queue = nil, nil
}

// take serves the first rows of w's first span, charges its tenant, and leaves
// the rest queued.
func (o *order) take(w *Work, rows int) Seg {
	s := &w.todo[0]
	seg := w.seg(span{s.from, s.from + rows, s.tries})
	c := &o.classes[w.Class]
	c.floor = max(c.floor, w.queue.account.served)
	w.queue.account.served += float64(seg.Tokens)
	for lower := w.Class + 1; lower < backends.Classes; lower++ {
		if lc := &o.classes[lower]; lc.queue > 0 {
			lc.owed += floorShare * float64(seg.Tokens)
		}
	}
	c.owed = max(0, c.owed-float64(seg.Tokens))
	o.tally(w, -rows, -seg.Tokens)
	if s.from = seg.To; s.from == s.to {
		if w.todo = w.todo[1:]; len(w.todo) == 0 {
			o.unlink(w)
		}
	}
	return seg
}

// charge adds generated tokens to a tenant's counter after the fact.
func (o *order) charge(w *Work, tokens float64) {
	if a := o.classes[w.Class].accounts[w.Tenant]; a != nil {
		a.served += tokens
	}
}

// next is the band's next work, nil when nothing is visible in it.
func (b *band) next() *Work {
	if q := b.turns.first(); q != nil {
		return q.works[0]
	}
	return nil
}

// earliest is the band's earliest due work over all tenants.
func (b *band) earliest() *Work {
	var first *Work
	for _, q := range b.tenants {
		if len(q.works) > 0 && (first == nil || q.works[0].due.Before(first.due)) {
			first = q.works[0]
		}
	}
	return first
}

// hide takes w out of its tenant's order until show; it stays queued.
func hide(w *Work) { heap.Remove(&w.queue.works, w.duePos) }

func show(w *Work) {
	heap.Push(&w.queue.works, w)
	w.lane.bands[w.Class].turns.wants(w.queue)
}

// lane returns the lane that r serves next among the classes from..to, nil when none
// has work for it: the highest class first, then the least served tenant, then the
// earliest due. Standard work past its due time counts as interactive (ageing).
func (o *order) lane(now time.Time, r *replica, from, to backends.Class) (best *lane) {
	var lead *Work
	for _, l := range o.lanes {
		for c := from; c <= to && l.works > 0 && !l.passed && r.has(l.adapter); c++ {
			if w := l.bands[c].next(); w != nil && (lead == nil || ahead(now, w, lead)) {
				best, lead = l, w
			}
		}
	}
	return best
}

// ahead reports whether a is served before b.
func ahead(now time.Time, a, b *Work) bool {
	if x, y := a.rank(now), b.rank(now); x != y {
		return x < y
	}
	if a.Class == b.Class && a.queue.account.served != b.queue.account.served {
		return a.queue.account.served < b.queue.account.served
	}
	if !a.due.Equal(b.due) {
		return a.due.Before(b.due)
	}
	return a.seq < b.seq
}

// first is the work that gets the next slot among the lanes that are not stuck,
// nil when there is none.
func (o *order) first(now time.Time) (best *Work) {
	bestOwed := false
	for _, l := range o.lanes {
		from, to := backends.Interactive, backends.Offline
		if l.stuck[0] {
			from = backends.Offline
		}
		if l.stuck[1] {
			to = backends.Standard
		}
		if l.works == 0 || from > to {
			continue
		}
		w, owed := o.next(now, l, from, to)
		if w != nil && (best == nil || owed && !bestOwed || owed == bestOwed && ahead(now, w, best)) {
			best, bestOwed = w, owed
		}
	}
	return best
}

// next is the work that a call on l takes next among the classes from..to: one
// that the floor share owes its first row, else as in lane.
func (o *order) next(now time.Time, l *lane, from, to backends.Class) (best *Work, owed bool) {
	for c := to; c > from; c-- {
		if w := l.bands[c].next(); w != nil && o.classes[c].owed >= float64(max(w.RowTokens[w.todo[0].from], 1)) {
			return w, true
		}
	}
	for c := from; c <= to; c++ {
		if w := l.bands[c].next(); w != nil && (best == nil || ahead(now, w, best)) {
			best = w
		}
	}
	return best, false
}

// dueHeap orders a tenant's work by due time.
type dueHeap []*Work

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].duePos, h[j].duePos = i, j
}
func (h *dueHeap) Push(x any) { w := x.(*Work); w.duePos = len(*h); *h = append(*h, w) }
func (h *dueHeap) Pop() any {
	last := len(*h) - 1
	w := (*h)[last]
	(*h)[last], *h = nil, (*h)[:last]
	w.duePos = -1
	return w
}

// expiryHeap orders all queued work by the time at which it fails.
type expiryHeap []*Work

func (h expiryHeap) Len() int           { return len(h) }
func (h expiryHeap) Less(i, j int) bool { return h[i].expiry.Before(h[j].expiry) }
func (h expiryHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].expiryPos, h[j].expiryPos = i, j
}
func (h *expiryHeap) Push(x any) { w := x.(*Work); w.expiryPos = len(*h); *h = append(*h, w) }
func (h *expiryHeap) Pop() any {
	last := len(*h) - 1
	w := (*h)[last]
	(*h)[last], *h = nil, (*h)[:last]
	return w
}
