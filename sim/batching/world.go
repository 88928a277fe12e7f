// Package batching simulates the queue of one model in virtual time: a batching
// policy, the real batcher.Core or one of its rivals, over replicas that take as
// long as a law says. Equal inputs give equal results, and a minute of traffic
// takes well under a second.
//
// Everything here is modelled: no request is sent and no GPU is asked. What it is
// good for is to compare policies on the same arrivals.
package batching

import (
	"container/heap"
	"math/rand/v2"
	"strconv"
	"time"

	"aloft/backends"
	"aloft/backends/synthetic/law"
	"aloft/batcher"
)

// Policy decides what runs when and where, as batcher.Core does: events in,
// actions out, the time an argument. Wake is when it wants a Tick; zero = never.
type Policy interface {
	Arrive(now time.Time, w *batcher.Work) []batcher.Action
	Cancel(now time.Time, w *batcher.Work) []batcher.Action
	Done(now time.Time, b *batcher.Batch, r batcher.Result) []batcher.Action
	Tick(now time.Time) []batcher.Action
	Wake() time.Time
}

// World is the machine that a policy runs on.
type World struct {
	Law      law.Law // of one replica; its embeddings part is what is asked of it
	Replicas int
	Target   time.Duration // from arrival to the end of the answer
	// Noise is the relative standard deviation of a call's time.
	Noise float64
	// From SlowAt on (0 = never) every call takes Slow times as long.
	SlowAt time.Duration
	Slow   float64
	Seed   uint64
	// Warm is how long at the start nobody counts.
	Warm time.Duration
}

// Request is one planned request of one row.
type Request struct {
	At     time.Duration // from the start
	Tokens int
	Tenant string
	Class  backends.Class
	// Leaves is how long after its arrival the client gives up, 0 = never.
	Leaves time.Duration
}

// epoch is when every simulated world starts.
var epoch = time.Unix(1_700_000_000, 0)

// Fleet is the replicas of a world as a policy is told of them.
func (w World) Fleet() []batcher.Replica {
	rs := make([]batcher.Replica, w.Replicas)
	for i := range rs {
		rs[i] = batcher.Replica{ID: "r" + strconv.Itoa(i), Slots: 1, Shape: "simulated", Index: i}
	}
	return rs
}

// Knee is the rate, in requests a second, at which calls of the knee's size
// (batcher's epsilon of 0.15) keep all replicas busy.
func (w World) Knee(meanTokens float64) float64 {
	size := float64(w.Law.Knee(0.15))
	return float64(w.Replicas) * size / w.Law.Batch(int(size)).Seconds() / meanTokens
}

// run is one simulation under way.
type run struct {
	World
	policy  Policy
	rand    *rand.Rand
	now     time.Time
	events  events
	seq     int
	reqs    []Request
	flying  map[*batcher.Batch]*event
	outcome *Outcome
}

// event is a call's end, or (batch nil) the departure of a client.
type event struct {
	at    time.Time
	seq   int
	batch *batcher.Batch
	work  *batcher.Work
	took  time.Duration
	pos   int
}

// Simulate lets requests, in order of arrival, meet policy in world.
func Simulate(w World, policy Policy, reqs []Request) *Outcome {
	return simulate(w, policy, reqs, deciles(w, reqs))
}

// together is how many works are allocated at once.
const together = 256

// simulate is told the deciles, which are the same for every policy.
func simulate(w World, policy Policy, reqs []Request, decile []uint8) *Outcome {
	r := &run{World: w, policy: policy, reqs: reqs, now: epoch, flying: map[*batcher.Batch]*event{},
		rand: rand.New(rand.NewPCG(w.Seed, 1)), outcome: newOutcome(w, reqs, decile)}
	var works []batcher.Work
	tokens := make([]int, len(reqs))
	next := 0
	for {
		at, what := r.upcoming(next)
		if what == nothing {
			return r.outcome
		}
		r.now = at
		switch what {
		case arrival:
			q := &reqs[next]
			tokens[next] = q.Tokens
			if len(works) == 0 {
				works = make([]batcher.Work, together)
			}
			w := &works[0]
			works = works[1:]
			*w = batcher.Work{Class: q.Class, Tenant: q.Tenant, RowTokens: tokens[next : next+1], Arrival: at, Load: next}
			next++
			if q.Leaves > 0 {
				r.push(&event{at: at.Add(q.Leaves), work: w})
			}
			r.apply(policy.Arrive(at, w))
		case timer:
			r.apply(policy.Tick(at))
		default:
			r.end(heap.Pop(&r.events).(*event))
		}
	}
}

type kind int

const (
	nothing kind = iota
	arrival
	timer
	end
)

// upcoming is the next thing that happens; at one moment ends come first, so that
// an arrival finds the replica free.
func (r *run) upcoming(next int) (at time.Time, what kind) {
	if len(r.events) > 0 {
		at, what = r.events[0].at, end
	}
	if next < len(r.reqs) {
		if t := epoch.Add(r.reqs[next].At); what == nothing || t.Before(at) {
			at, what = t, arrival
		}
	}
	if wake := r.policy.Wake(); what != nothing && !wake.IsZero() && wake.Before(at) {
		at, what = wake, timer
	} else if what == nothing && !wake.IsZero() {
		at, what = wake, timer
	}
	if at.Before(r.now) {
		at = r.now
	}
	return at, what
}

func (r *run) push(e *event) {
	r.seq++
	e.seq = r.seq
	heap.Push(&r.events, e)
}

func (r *run) apply(acts []batcher.Action) {
	for _, a := range acts {
		switch a.Kind {
		case batcher.Dispatch:
			r.start(a.Batch)
		case batcher.Fail:
			r.outcome.failed(r.now, a.Work)
		case batcher.Abort:
			e := r.flying[a.Batch]
			r.outcome.busy(a.Batch, r.now.Sub(e.at))
			e.at, e.took = r.now, -1
			heap.Fix(&r.events, e.pos)
		}
	}
}

func (r *run) start(b *batcher.Batch) {
	lengths := make([]int, 0, 64)
	for _, s := range b.Segs {
		lengths = append(lengths, s.Work.RowTokens[s.From:s.To]...)
	}
	took := r.Law.Batch(r.Law.BatchTokens(lengths))
	if r.SlowAt > 0 && r.now.Sub(epoch) >= r.SlowAt {
		took = time.Duration(float64(took) * r.Slow)
	}
	took = time.Duration(float64(took) * max(0.5, 1+r.Noise*r.rand.NormFloat64()))
	e := &event{at: r.now.Add(took), batch: b, took: took}
	r.flying[b] = e
	r.push(e)
	r.outcome.called(b, took)
}

func (r *run) end(e *event) {
	if e.batch == nil {
		if r.outcome.left(r.now, e.work) {
			r.apply(r.policy.Cancel(r.now, e.work))
		}
		return
	}
	delete(r.flying, e.batch)
	if e.took < 0 {
		r.apply(r.policy.Done(r.now, e.batch, batcher.Result{Outcome: batcher.Dropped}))
		return
	}
	for _, s := range e.batch.Segs {
		r.outcome.answered(r.now, s.Work)
	}
	r.apply(r.policy.Done(r.now, e.batch, batcher.Result{Outcome: batcher.Answered, Took: e.took}))
}

// events is a heap by time, then by order of making.
type events []*event

func (h events) Len() int { return len(h) }
func (h events) Less(i, j int) bool {
	return h[i].at.Before(h[j].at) || h[i].at.Equal(h[j].at) && h[i].seq < h[j].seq
}
func (h events) Swap(i, j int) { h[i], h[j] = h[j], h[i]; h[i].pos, h[j].pos = i, j }

// Push implements heap.Interface.
func (h *events) Push(x any) { e := x.(*event); e.pos = len(*h); *h = append(*h, e) }

// Pop implements heap.Interface.
func (h *events) Pop() any {
	n := len(*h) - 1
	e := (*h)[n]
	(*h)[n] = nil
	*h = (*h)[:n]
	return e
}
