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
	Tenants                   map[string]*Share // those with names
	Deciles                   [10]Share         // by length, shortest first
	Busy                      time.Duration     // of all replicas, by calls that count
	Calls, Rows               int
	// Windows are Parts equal stretches of the counted time, by when requests
	// arrived and calls began.
	Windows [Parts]Window

	world     World
	reqs      []Request
	state     []state
	decile    []uint8
	latencies []time.Duration
	span      time.Duration // in which arrivals count
	buf       [6]*Share
}

// Parts is into how many windows a run is cut, for intervals.
const Parts = 10

// Window is what became of what arrived, and what ran, in a stretch of a run.
type Window struct {
	Share
	Longest Share // of them the tenth with the most tokens
	Tenants map[string]*Share
	Busy    time.Duration
}

type state uint8

const (
	open state = iota
	closed
)

func newOutcome(w World, reqs []Request, decile []uint8) *Outcome {
	o := &Outcome{world: w, reqs: reqs, state: make([]state, len(reqs)), decile: decile, Tenants: map[string]*Share{}}
	if len(reqs) > 0 {
		o.span = max(1, reqs[len(reqs)-1].At-w.Warm)
	}
	for i, q := range reqs {
		if q.At >= w.Warm {
			o.offer(i, 1)
		}
	}
	return o
}

// deciles ranks what counts by length, shortest tenth 0.
func deciles(w World, reqs []Request) []uint8 {
	out := make([]uint8, len(reqs))
	var order []int
	for i, q := range reqs {
		if q.At >= w.Warm {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return reqs[a].Tokens - reqs[b].Tokens })
	for rank, i := range order {
		out[i] = uint8(rank * 10 / len(order))
	}
	return out
}

// offer counts request i, or (n = -1) no longer does.
func (o *Outcome) offer(i, n int) {
	for _, s := range o.shares(i) {
		s.Offered += n
	}
	o.OfferedTokens += n * o.reqs[i].Tokens
}

// shares is where request i is counted.
func (o *Outcome) shares(i int) []*Share {
	q := o.reqs[i]
	w := o.window(q.At)
	all := append(o.buf[:0], &o.Share, &w.Share, &o.Deciles[o.decile[i]])
	if int(o.decile[i]) == len(o.Deciles)-1 {
		all = append(all, &w.Longest)
	}
	if q.Tenant != "" {
		all = append(all, of(&o.Tenants, q.Tenant), of(&w.Tenants, q.Tenant))
	}
	return all
}

func of(tenants *map[string]*Share, name string) *Share {
	s := (*tenants)[name]
	if s == nil {
		if *tenants == nil {
			*tenants = map[string]*Share{}
		}
		s = &Share{}
		(*tenants)[name] = s
	}
	return s
}

func (o *Outcome) window(at time.Duration) *Window {
	return &o.Windows[min(int(Parts*(at-o.world.Warm)/o.span), Parts-1)]
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
	for _, s := range o.shares(i) {
		s.Good++
	}
	o.GoodTokens += o.reqs[i].Tokens
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
	o.offer(i, -1)
	return true
}

func (o *Outcome) called(b *batcher.Batch, took time.Duration) {
	if b.At.Sub(epoch) < o.world.Warm {
		return
	}
	o.Calls++
	o.Rows += b.Rows
	o.busy(b, took)
}

// busy counts replica time of a call: what it takes, and what it is spared.
func (o *Outcome) busy(b *batcher.Batch, took time.Duration) {
	if at := b.At.Sub(epoch); at >= o.world.Warm {
		o.Busy += took
		o.window(at).Busy += took
	}
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

// forget drops what is only needed to count.
func (o *Outcome) forget() {
	o.reqs, o.state, o.decile, o.latencies = nil, nil, nil, nil
}
