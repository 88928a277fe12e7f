package batching

import (
	"slices"
	"time"

	"aloft/batcher"
)

// Share counts requests of a kind.
type Share struct{ Offered, Good int }

// Attainment is good over offered; 1 where nothing was offered.
func (s Share) Attainment() float64 {
	if s.Offered == 0 {
		return 1
	}
	return float64(s.Good) / float64(s.Offered)
}

// Outcome is what became of a run's requests. Good = answered within the target;
// what was shed, late, expired or never answered is not. Clients that left of
// their own will are offered to nobody and counted apart.
type Outcome struct {
	Share
	Late, Shed, Left          int
	OfferedTokens, GoodTokens int
	Tenants                   map[string]*Share
	Deciles                   [10]Share     // by length, shortest first
	Busy                      time.Duration // of all replicas, by calls that count
	Calls, Rows               int
	Last                      time.Duration // end of the last call

	world     World
	reqs      []Request
	state     []state
	decile    []int
	latencies []time.Duration
}

type state uint8

const (
	open state = iota
	closed
)

func newOutcome(w World, reqs []Request) *Outcome {
	o := &Outcome{world: w, reqs: reqs, state: make([]state, len(reqs)), decile: make([]int, len(reqs)), Tenants: map[string]*Share{}}
	order := make([]int, len(reqs))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return reqs[a].Tokens - reqs[b].Tokens })
	order = slices.DeleteFunc(order, func(i int) bool { return reqs[i].At < w.Warm })
	for rank, i := range order {
		o.decile[i] = rank * 10 / len(order)
	}
	for _, i := range order {
		q := reqs[i]
		t := o.Tenants[q.Tenant]
		if t == nil {
			t = &Share{}
			o.Tenants[q.Tenant] = t
		}
		t.Offered++
		o.Offered++
		o.Deciles[o.decile[i]].Offered++
		o.OfferedTokens += q.Tokens
	}
	return o
}

// close ends request i; false if it had ended.
func (o *Outcome) close(w *batcher.Work) (i int, ok bool) {
	i = w.Load.(int)
	if o.state[i] == closed {
		return i, false
	}
	o.state[i] = closed
	return i, o.reqs[i].At >= o.world.Warm
}

func (o *Outcome) answered(now time.Time, w *batcher.Work) {
	i, ok := o.close(w)
	if !ok {
		return
	}
	took := now.Sub(w.Arrival)
	o.latencies = append(o.latencies, took)
	if took > o.world.Target {
		o.Late++
		return
	}
	o.Good++
	o.GoodTokens += o.reqs[i].Tokens
	o.Tenants[o.reqs[i].Tenant].Good++
	o.Deciles[o.decile[i]].Good++
}

func (o *Outcome) failed(_ time.Time, w *batcher.Work) {
	if _, ok := o.close(w); ok {
		o.Shed++
	}
}

func (o *Outcome) left(_ time.Time, w *batcher.Work) bool {
	i := w.Load.(int)
	if o.state[i] == closed {
		return false
	}
	if _, ok := o.close(w); !ok {
		return true
	}
	o.Left++
	q := o.reqs[i]
	o.Offered--
	o.OfferedTokens -= q.Tokens
	o.Tenants[q.Tenant].Offered--
	o.Deciles[o.decile[i]].Offered--
	return true
}

func (o *Outcome) called(b *batcher.Batch, took time.Duration) {
	if b.At.Sub(epoch) < o.world.Warm {
		return
	}
	o.Calls++
	o.Rows += b.Rows
	o.Busy += took
}

// Quantile of the latencies of what was answered; 0 when nothing was.
func (o *Outcome) Quantile(q float64) time.Duration {
	if len(o.latencies) == 0 {
		return 0
	}
	slices.Sort(o.latencies)
	return o.latencies[min(len(o.latencies)-1, int(q*float64(len(o.latencies))))]
}

// PerGood is replica time per good request; what it costs to keep the promise.
func (o *Outcome) PerGood() time.Duration {
	if o.Good == 0 {
		return 0
	}
	return o.Busy / time.Duration(o.Good)
}

// Unanswered counts requests that the policy lost: neither answered nor refused.
func (o *Outcome) Unanswered() (n int) {
	for _, s := range o.state {
		if s == open {
			n++
		}
	}
	return n
}
