package batching

import (
	"slices"
	"time"

	"aloft/backends"
	"aloft/batcher"
)

// forming is how a rival fills one call: it takes members out of the queue, or
// says until when it would rather wait (zero = for the next event).
type forming interface {
	form(q *queue, now time.Time, r *server) (members []*batcher.Work, wait time.Time)
	learn(r *server, b *batcher.Batch, took time.Duration)
}

// server is a replica as the rivals see it.
type server struct {
	batcher.Replica
	busy bool
	cap  float64 // AIMD's
}

// queue is what the rivals have in common: replicas that pull, and what waits, in
// order of arrival. It implements Policy.
type queue struct {
	rule    forming
	servers []server
	waiting []*batcher.Work
	acts    []batcher.Action
	wake    time.Time
}

func newQueue(rule forming, fleet []batcher.Replica) *queue {
	q := &queue{rule: rule}
	for _, r := range fleet {
		q.servers = append(q.servers, server{Replica: r, cap: 1})
	}
	return q
}

// Arrive implements Policy.
func (q *queue) Arrive(now time.Time, w *batcher.Work) []batcher.Action {
	q.waiting = append(q.waiting, w)
	return q.step(now)
}

// Cancel implements Policy.
func (q *queue) Cancel(now time.Time, w *batcher.Work) []batcher.Action {
	if i := slices.Index(q.waiting, w); i >= 0 {
		q.waiting = slices.Delete(q.waiting, i, i+1)
	}
	return q.step(now)
}

// Done implements Policy.
func (q *queue) Done(now time.Time, b *batcher.Batch, r batcher.Result) []batcher.Action {
	for i := range q.servers {
		if s := &q.servers[i]; s.ID == b.Replica.ID {
			s.busy = false
			q.rule.learn(s, b, r.Took)
		}
	}
	return q.step(now)
}

// Tick implements Policy.
func (q *queue) Tick(now time.Time) []batcher.Action { return q.step(now) }

// Wake implements Policy.
func (q *queue) Wake() time.Time { return q.wake }

func (q *queue) step(now time.Time) []batcher.Action {
	q.acts, q.wake = q.acts[:0], time.Time{}
	for i := range q.servers {
		s := &q.servers[i]
		if s.busy || len(q.waiting) == 0 {
			continue
		}
		members, wait := q.rule.form(q, now, s)
		if len(members) == 0 {
			q.wake = wait
			break
		}
		s.busy = true
		b := &batcher.Batch{Replica: s.Replica, At: now, Rows: len(members)}
		for _, w := range members {
			b.Segs = append(b.Segs, batcher.Seg{Work: w, To: 1, Tokens: w.RowTokens[0]})
			b.Tokens += w.RowTokens[0]
		}
		q.acts = append(q.acts, batcher.Action{Kind: batcher.Dispatch, Batch: b})
	}
	return q.acts
}

// refuse fails what drop says and forgets it.
func (q *queue) refuse(drop func(*batcher.Work) bool) {
	q.waiting = slices.DeleteFunc(q.waiting, func(w *batcher.Work) bool {
		if !drop(w) {
			return false
		}
		q.acts = append(q.acts, batcher.Action{Kind: batcher.Fail, Work: w, Err: backends.ErrOverloaded})
		return true
	})
}

// head takes the first n.
func (q *queue) head(n int) []*batcher.Work {
	n = min(n, len(q.waiting))
	members := q.waiting[:n:n]
	q.waiting = q.waiting[n:]
	return members
}
