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
	gone    map[*batcher.Work]bool // left while their call ran
}

func newQueue(rule forming, fleet []batcher.Replica) *queue {
	q := &queue{rule: rule, gone: map[*batcher.Work]bool{}}
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
	members := slices.Clone(q.waiting[:n])
	q.waiting = slices.Delete(q.waiting, 0, n)
	return members
}

// Fixed is the dynamic batcher of Triton: up to Size rows in order of arrival; a
// smaller call waits until the oldest is Delay old; what waited Timeout (0 = for
// ever) is refused. Size 1 is no batching.
type Fixed struct {
	Size           int
	Delay, Timeout time.Duration
}

// Policy returns the rule over a fleet.
func (f Fixed) Policy(fleet []batcher.Replica) Policy { return newQueue(f, fleet) }

func (f Fixed) form(q *queue, now time.Time, _ *server) ([]*batcher.Work, time.Time) {
	if f.Timeout > 0 {
		q.refuse(func(w *batcher.Work) bool { return now.Sub(w.Arrival) > f.Timeout })
	}
	if len(q.waiting) == 0 {
		return nil, time.Time{}
	}
	if at := q.waiting[0].Arrival.Add(f.Delay); len(q.waiting) < f.Size && now.Before(at) {
		return nil, at
	}
	return q.head(f.Size), time.Time{}
}

func (Fixed) learn(*server, *batcher.Batch, time.Duration) {}

// AIMD is Clipper's: each replica's largest call grows by one row when a call met
// the target and shrinks by a tenth when it did not (NSDI'17, 4.3.1).
type AIMD struct{ Target time.Duration }

// Policy returns the rule over a fleet.
func (a AIMD) Policy(fleet []batcher.Replica) Policy { return newQueue(a, fleet) }

func (AIMD) form(q *queue, _ time.Time, s *server) ([]*batcher.Work, time.Time) {
	return q.head(int(s.cap)), time.Time{}
}

func (a AIMD) learn(s *server, b *batcher.Batch, took time.Duration) {
	switch {
	case took > a.Target:
		s.cap = max(1, s.cap*0.9)
	case b.Rows >= int(s.cap): // a call that was not full says nothing of a larger one
		s.cap++
	}
}

// TokenFIFO is text-embeddings-inference's: in order of arrival while the tokens
// stay within Tokens; the first that does not fit ends the call.
type TokenFIFO struct{ Tokens int }

// Policy returns the rule over a fleet.
func (t TokenFIFO) Policy(fleet []batcher.Replica) Policy { return newQueue(t, fleet) }

func (t TokenFIFO) form(q *queue, _ time.Time, _ *server) ([]*batcher.Work, time.Time) {
	n, sum := 0, 0
	for n < len(q.waiting) && (n == 0 || sum+q.waiting[n].RowTokens[0] <= t.Tokens) {
		sum += q.waiting[n].RowTokens[0]
		n++
	}
	return q.head(n), time.Time{}
}

func (TokenFIFO) learn(*server, *batcher.Batch, time.Duration) {}

// Cork is BentoML's adaptive batching without its faults: least squares of time
// over rows, of the last 50 calls; it waits while one more row is likely to save
// more than the waiting rows lose, and refuses what cannot be answered in time.
type Cork struct {
	Size   int
	Target time.Duration
}

type cork struct {
	Cork
	rows, took []float64
	waited     float64 // recent mean wait, seconds
	gap        float64 // recent mean time between arrivals, seconds
	last       time.Time
}

// Policy returns the rule over a fleet.
func (c Cork) Policy(fleet []batcher.Replica) Policy {
	return newQueue(&cork{Cork: c, waited: 0.01}, fleet)
}

// line is seconds = a*rows + b.
func (c *cork) line() (a, b float64) {
	var n, sx, sy, sxx, sxy float64
	for i, x := range c.rows {
		y := c.took[i]
		n, sx, sy, sxx, sxy = n+1, sx+x, sy+y, sxx+x*x, sxy+x*y
	}
	if d := n*sxx - sx*sx; n > 1 && d > 0 {
		a = max(0, (n*sxy-sx*sy)/d)
		return a, max(0, (sy-a*sx)/n)
	}
	if n > 0 {
		return 0, sy / n
	}
	return 0, 0.001
}

func (c *cork) form(q *queue, now time.Time, _ *server) ([]*batcher.Work, time.Time) {
	a, b := c.line()
	q.refuse(func(w *batcher.Work) bool { return now.Sub(w.Arrival).Seconds()+a+b > c.Target.Seconds() })
	n := min(len(q.waiting), c.Size)
	if n == 0 {
		return nil, time.Time{}
	}
	const tick = 0.001
	age := now.Sub(q.waiting[0].Arrival).Seconds()
	if n < c.Size && float64(n)*(age+tick+a) < 0.95*c.waited && age+tick+a*float64(n)+b < c.Target.Seconds() {
		return nil, now.Add(time.Millisecond)
	}
	for _, w := range q.waiting[:n] {
		c.waited += 0.02 * (now.Sub(w.Arrival).Seconds() + b - c.waited)
	}
	return q.head(n), time.Time{}
}

func (c *cork) learn(_ *server, b *batcher.Batch, took time.Duration) {
	c.rows, c.took = append(c.rows, float64(b.Rows)), append(c.took, took.Seconds())
	if n := len(c.rows) - 50; n > 0 {
		c.rows, c.took = c.rows[n:], c.took[n:]
	}
}

// ShedLateEDF sends the earliest deadline first, as many as meet the earliest
// deadline by a law that it is told, and refuses only what would be late alone.
type ShedLateEDF struct {
	Alpha, Beta float64 // seconds, seconds a token
	Target      time.Duration
	Tokens      int
}

// Policy returns the rule over a fleet.
func (s ShedLateEDF) Policy(fleet []batcher.Replica) Policy { return newQueue(s, fleet) }

func (s ShedLateEDF) took(tokens int) time.Duration {
	return time.Duration((s.Alpha + s.Beta*float64(tokens)) * float64(time.Second))
}

func (s ShedLateEDF) form(q *queue, now time.Time, _ *server) ([]*batcher.Work, time.Time) {
	q.refuse(func(w *batcher.Work) bool { return now.Add(s.took(w.RowTokens[0])).After(w.Arrival.Add(s.Target)) })
	n, sum := 0, 0
	for n < len(q.waiting) { // one target for all: the order of arrival is that of deadlines
		sum += q.waiting[n].RowTokens[0]
		if n > 0 && (sum > s.Tokens || now.Add(s.took(sum)).After(q.waiting[0].Arrival.Add(s.Target))) {
			break
		}
		n++
	}
	return q.head(n), time.Time{}
}

func (ShedLateEDF) learn(*server, *batcher.Batch, time.Duration) {}
