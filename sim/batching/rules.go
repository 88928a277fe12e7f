package batching

import (
	"time"

	"aloft/backends/synthetic/law"
	"aloft/batcher"
)

// Fixed is the dynamic batcher of Triton: up to Size rows in order of arrival; a
// smaller call waits until the oldest is Delay old; what waited longer than
// Timeout (0 = for ever) is refused (timeout_action REJECT). As there, rows that
// arrive while a call waits for a free replica still join it, and a timeout is
// looked at when a call is formed. Size 1 is no batching, Delay 0 is eager.
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
// the objective and shrinks by a tenth when it did not (NSDI'17, 4.3.1). The
// objective is about the call, not the wait before it: who wants answers within a
// target sets it lower than that.
type AIMD struct{ Objective time.Duration }

// Policy returns the rule over a fleet.
func (a AIMD) Policy(fleet []batcher.Replica) Policy { return newQueue(a, fleet) }

func (AIMD) form(q *queue, _ time.Time, s *server) ([]*batcher.Work, time.Time) {
	return q.head(int(s.cap)), time.Time{}
}

func (a AIMD) learn(s *server, b *batcher.Batch, took time.Duration) {
	switch {
	case took > a.Objective:
		s.cap = max(1, s.cap*0.9)
	case b.Rows >= int(s.cap): // a call that was not full says nothing of a larger one
		s.cap++
	}
}

// TokenFIFO is text-embeddings-inference's: in order of arrival while the tokens
// stay within Tokens; the first that does not fit ends the call. Of engines that
// pad, all rows count as long as the longest.
type TokenFIFO struct {
	Tokens int
	Padded bool
}

// Policy returns the rule over a fleet.
func (t TokenFIFO) Policy(fleet []batcher.Replica) Policy { return newQueue(t, fleet) }

func (t TokenFIFO) form(q *queue, _ time.Time, _ *server) ([]*batcher.Work, time.Time) {
	var size growing
	for n, w := range q.waiting {
		if size.add(w); n > 0 && size.cost(t.Padded) > t.Tokens {
			return q.head(n), time.Time{}
		}
	}
	return q.head(len(q.waiting)), time.Time{}
}

func (TokenFIFO) learn(*server, *batcher.Batch, time.Duration) {}

// growing is a call that is being filled.
type growing struct{ rows, sum, longest int }

func (g *growing) add(w *batcher.Work) {
	n := w.RowTokens[0]
	g.rows, g.sum, g.longest = g.rows+1, g.sum+n, max(g.longest, n)
}

func (g *growing) cost(padded bool) int {
	if padded {
		return g.rows * g.longest
	}
	return g.sum
}

// Cork is BentoML's adaptive batching (CorkDispatcher) with its faults mended: it
// fits time = a·rows + b to the last 50 calls; it refuses the oldest while the call
// would be late for it; and it waits, a millisecond at a time, while the waiting
// rows lose less by that than rows of late waited. Mended: the oldest are served
// first, a call may have Size rows, the prediction is for the call and not for all
// that waits, and the line is fitted after each call rather than every 5 s.
type Cork struct {
	Size   int
	Target time.Duration
}

const (
	corkTick  = 0.001 // seconds between looks
	corkDecay = 0.95
	corkCalls = 50
)

type cork struct {
	Cork
	rows, took, waits []float64 // of the last calls: rows, seconds, and how long the oldest had waited
}

// Policy returns the rule over a fleet.
func (c Cork) Policy(fleet []batcher.Replica) Policy { return newQueue(&cork{Cork: c}, fleet) }

// line is seconds = a·rows + b; before two sizes were seen it is what BentoML
// starts with.
func (c *cork) line() (a, b float64) {
	var n, sx, sy, sxx, sxy float64
	for i, x := range c.rows {
		y := c.took[i]
		n, sx, sy, sxx, sxy = n+1, sx+x, sy+y, sxx+x*x, sxy+x*y
	}
	if d := n*sxx - sx*sx; d > 0 {
		a = max(1e-6, (n*sxy-sx*sy)/d)
		return a, max(0, (sy-a*sx)/n)
	}
	if n > 0 {
		return 1e-6, sy / n
	}
	return c.Target.Seconds() * 2 / 30, c.Target.Seconds() / 30
}

// waited is the mean of what the oldest rows of late calls had waited, seconds.
func (c *cork) waited() float64 {
	if len(c.waits) == 0 {
		return 0.01
	}
	sum := 0.0
	for _, w := range c.waits {
		sum += w
	}
	return sum / float64(len(c.waits))
}

func (c *cork) form(q *queue, now time.Time, _ *server) ([]*batcher.Work, time.Time) {
	a, b := c.line()
	age := func(i int) float64 { return now.Sub(q.waiting[i].Arrival).Seconds() }
	late := 0
	for left := len(q.waiting); left > 0; left, late = left-1, late+1 {
		n := float64(min(left, c.Size))
		if n > 1 && age(late)+a*n+b < c.Target.Seconds() || n == 1 && age(late) < c.Target.Seconds() {
			break
		}
	}
	q.refuse(func(*batcher.Work) bool { late--; return late >= 0 })
	n := min(len(q.waiting), c.Size)
	if n == 0 {
		return nil, time.Time{}
	}
	if newest := age(len(q.waiting) - 1); n < c.Size && float64(n)*(newest+corkTick+a) <= corkDecay*c.waited() {
		return nil, now.Add(time.Duration(corkTick * float64(time.Second)))
	}
	return q.head(n), time.Time{}
}

func (c *cork) learn(_ *server, b *batcher.Batch, took time.Duration) {
	c.rows, c.took = append(c.rows, float64(b.Rows)), append(c.took, took.Seconds())
	c.waits = append(c.waits, b.At.Sub(b.Segs[0].Work.Arrival).Seconds())
	if n := len(c.rows) - corkCalls; n > 0 {
		c.rows, c.took, c.waits = c.rows[n:], c.took[n:], c.waits[n:]
	}
}

// ShedLateEDF sends the earliest deadline first, as many as meet the earliest
// deadline, and refuses what would be late even alone. It is told the law that
// the others must learn, and how much longer than that a call may take.
type ShedLateEDF struct {
	Law    law.Law
	Margin float64 // 1.1 = a call may take a tenth more than the law says
	Target time.Duration
}

// Policy returns the rule over a fleet.
func (s ShedLateEDF) Policy(fleet []batcher.Replica) Policy { return newQueue(s, fleet) }

func (s ShedLateEDF) took(g growing) time.Duration {
	return time.Duration(s.Margin * float64(s.Law.Batch(g.cost(s.Law.Padded))))
}

func (s ShedLateEDF) form(q *queue, now time.Time, _ *server) ([]*batcher.Work, time.Time) {
	q.refuse(func(w *batcher.Work) bool {
		var alone growing
		alone.add(w)
		return now.Add(s.took(alone)).After(w.Arrival.Add(s.Target))
	})
	var size growing
	for n, w := range q.waiting { // one target for all: the order of arrival is that of deadlines
		if size.add(w); n > 0 && now.Add(s.took(size)).After(q.waiting[0].Arrival.Add(s.Target)) {
			return q.head(n), time.Time{}
		}
	}
	return q.head(len(q.waiting)), time.Time{}
}

func (ShedLateEDF) learn(*server, *batcher.Batch, time.Duration) {}
