package batcher

import (
	"container/heap"
	"time"
)

// turns orders the tenants of a band by whose turn it is: the least served first,
// between equals the one whose first work is due first. What tenants were served
// only grows, and so do their first dues while work is taken: keys are renewed when
// they come to the top, so that serving one tenant moves no other.
type turns []*tenantQueue

// turn is where a tenant stands in turns.
type turn struct {
	served float64
	due    time.Time
	pos    int // -1 = not in turns
}

// wants puts q, which has got work, where it belongs.
func (t *turns) wants(q *tenantQueue) {
	q.renew()
	if q.pos < 0 {
		heap.Push(t, q)
	} else {
		heap.Fix(t, q.pos)
	}
}

// first is the tenant whose turn it is, nil when none has visible work.
func (t *turns) first() *tenantQueue {
	for len(*t) > 0 {
		q := (*t)[0]
		switch {
		case len(q.works) == 0:
			heap.Pop(t)
		case q.served != q.account.served || !q.due.Equal(q.works[0].due):
			q.renew()
			heap.Fix(t, 0)
		default:
			return q
		}
	}
	return nil
}

func (q *tenantQueue) renew() { q.served, q.due = q.account.served, q.works[0].due }

func (t turns) Len() int { return len(t) }
func (t turns) Less(i, j int) bool {
	return t[i].served < t[j].served || t[i].served == t[j].served && t[i].due.Before(t[j].due)
}
func (t turns) Swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].pos, t[j].pos = i, j
}

// Push implements heap.Interface.
func (t *turns) Push(x any) { q := x.(*tenantQueue); q.pos = len(*t); *t = append(*t, q) }

// Pop implements heap.Interface.
func (t *turns) Pop() any {
	last := len(*t) - 1
	q := (*t)[last]
	(*t)[last], *t = nil, (*t)[:last]
	q.pos = -1
	return q
}
