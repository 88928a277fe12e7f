package batching

import (
	"fmt"
	"math/rand/v2"
	"time"

	"aloft/batcher"
)

// Load keeps a core busy with Queued requests waiting: as many arrive as are
// answered. It is how the core's own cost is measured.
type Load struct {
	core   *batcher.Core
	world  World
	rand   *rand.Rand
	now    time.Time
	flying []*batcher.Batch
	// Names is how many tenants send; 0 = every request has a new one.
	Names int
	sent  int
	// queued is how many are to wait, waiting how many do.
	queued, waiting int
}

// NewLoad fills a core with queued requests. Its target is so far away that it
// refuses none of them.
func NewLoad(w World, queued, names int) *Load {
	o := Options(w)
	o.Target, o.QueueTimeout, o.MaxBatchRows, o.MaxBatchTokens = time.Hour, 2*time.Hour, 0, 0
	l := &Load{core: batcher.NewCore(o), world: w, rand: rand.New(rand.NewPCG(1, 2)), now: epoch, Names: names, queued: queued}
	l.take(l.core.SetReplicas(l.now, w.Fleet()))
	for missing := queued; missing > 0; missing = queued - l.waiting { // some of them run at once
		for _, work := range l.Make(missing) {
			l.arrive(work)
		}
	}
	return l
}

func (l *Load) arrive(w *batcher.Work) {
	w.Arrival = l.now
	l.waiting++
	l.take(l.core.Arrive(l.now, w))
}

// Make makes n requests, which a measurement may not want to pay for.
func (l *Load) Make(n int) []*batcher.Work {
	out := make([]*batcher.Work, n)
	for i := range out {
		l.sent++
		name := l.sent
		if l.Names > 0 {
			name = l.rand.IntN(l.Names)
		}
		out[i] = &batcher.Work{Tenant: fmt.Sprintf("t%d", name), RowTokens: []int{1 + l.rand.IntN(390)}} // one by one: who keeps one keeps no others
		if i%4 == 0 {
			out[i].Deadline = l.now.Add(30*time.Minute + time.Duration(l.rand.Int64N(int64(30*time.Minute))))
		}
	}
	return out
}

// Serve lets works arrive; a call is answered whenever more than a call's rows
// wait besides those that should.
func (l *Load) Serve(works []*batcher.Work) {
	for _, w := range works {
		l.now = l.now.Add(100 * time.Microsecond)
		l.arrive(w)
		for l.waiting >= l.queued+batcher.DefaultBatchRows {
			b := l.flying[0]
			l.flying = append(l.flying[:0], l.flying[1:]...)
			l.take(l.core.Done(l.now, b, batcher.Result{Outcome: batcher.Answered, Took: l.world.Law.Batch(b.Tokens)}))
		}
	}
}

func (l *Load) take(acts []batcher.Action) {
	for _, a := range acts {
		switch a.Kind {
		case batcher.Dispatch:
			l.flying = append(l.flying, a.Batch)
			l.waiting -= a.Batch.Rows
		case batcher.Fail:
			panic("BUG: the load is refused: " + a.Err.Error())
		}
	}
}

// Waiting is how many requests are queued, by the core's own count.
func (l *Load) Waiting() (n int) {
	for _, class := range l.core.Signals(l.now).Class {
		n += class.Queue
	}
	return n
}
