package batcher

import (
	"cmp"
	"slices"
	"time"

	"aloft/backends"
)

// Signals is what arbiter, metrics and screens need to know of a model's queue:
// a plain value, a copy of its own.
type Signals struct {
	At    time.Time
	Model string

	Class   [backends.Classes]ClassSignals
	Load    Load // of interactive and standard requests
	Offline Load // of offline rows

	// First is the latency that Target promises, of interactive requests:
	// merged calls until the whole answer, generation until the first byte, of
	// answers that are no streams the wait and the fitted time to a first byte.
	// Rest is generation from there to the end.
	First, Rest Latency

	Fits []ShapeFit // one per shape, sorted by its name

	Slots, BusySlots         int // of replicas that are not Offline
	Replicas, BusyReplicas   int // not Offline
	OfflineReplicas          int
	SlotSeconds              float64 // generation: mean time that a request holds its slot
	OutputTokens             float64 // generation: mean tokens generated, as far as known
	Calls                    CallSignals
	Engines                  EngineSignals
	Eta                      float64
	OfflineLimit, OfflineRow int // bound and present number of offline rows in flight on shared replicas
}

// ClassSignals is one class's queue.
type ClassSignals struct {
	Queue, Rows, Tokens      int // waiting: requests, rows, tokens
	OldestWait               time.Duration
	InFlight, InFlightTokens int // at engines
	Counters
}

// Counters count requests since the start. Arrived = Done + Shed + Expired +
// Refused + Failed + Cancelled + those that wait or run.
type Counters struct {
	Arrived   uint64
	Done      uint64
	Late      uint64 // answered (generation: first byte) after they were due
	Shed      uint64 // refused at once: queue full, draining
	Expired   uint64 // failed while they waited: timeout, deadline, no replica
	Refused   uint64 // by the engine, for what they asked (4xx)
	Failed    uint64 // by the engine, for its own reasons
	Cancelled uint64
	Missed    uint64 // served elsewhere; no part of Arrived
}

// CallSignals describe engine calls: counts since the start, recent means.
type CallSignals struct {
	Calls        uint64
	Retried      uint64          // segments sent again after their call broke
	Affine       uint64          // calls that went where their session or prefix was known
	Hedged       uint64          // calls of which a second was sent; not counted in Calls
	Reasons      [Reasons]uint64 // of dispatched calls
	Holds        [Holds]uint64   // times that a free replica was left waiting
	Drops        [Drops]uint64   // requests
	Rows, Tokens float64         // mean of a recent call
	// TokenRatio is our count of a merged call's tokens over its engine's, a recent
	// mean; 0 = no engine has said. Above 1 we take calls for larger than they are.
	TokenRatio float64
}

// Seconds is how many one-second buckets a Load keeps.
const Seconds = 60

// Load is what arrived, refused work included: demand, not service.
type Load struct {
	Requests, Tokens float64         // a second, smoothed over about 5 s
	Buckets          [Seconds]Bucket // oldest first; the last one is the second until now, so that a burst shows at once
}

// Bucket is what arrived within one second.
type Bucket struct{ Requests, Tokens int }

// Latency judges the samples of a window against a target.
type Latency struct {
	Samples          int
	Enough           bool // at least the configured number of samples
	P50, P99, Target time.Duration
}

// Headroom is 1 - p99/target; ok is false when the window has too few samples
// or there is no target.
func (l Latency) Headroom() (h float64, ok bool) {
	if !l.Enough || l.Target <= 0 {
		return 0, false
	}
	return 1 - float64(l.P99)/float64(l.Target), true
}

// ShapeFit is the service-time model of one shape. For generation it is the
// time to the first byte over prompt tokens.
type ShapeFit struct {
	Shape       string
	Alpha, Beta float64 // seconds, seconds a token
	Margin      float64 // promise = Margin * (Alpha + Beta*tokens)
	Known       bool    // calls of different sizes were seen
	Padded      bool    // calls cost rows x longest, not the sum
	Samples     int
	Knee        int     // K_eps, tokens
	Largest     int     // K*, tokens
	Rate        float64 // mu*: tokens a second of one replica at K*
	Replicas    int     // not Offline
}

// meter is what the core counts.
type meter struct {
	calls            CallSignals
	first, rest      window
	serving, offline arrivals
	sizes
	slotSeconds, output average
	kvTokens            average // of a generation's cache, as expected
	growing             []growth
	trust               float64  // share of its spare time that a predicted wait may take
	outputs             *outputs // generation
	scratch             []*replica
	hidden, skipped     []*Work
	padding             average // cost of a call over its tokens: above 1 where engines pad
	arrivedTokens       average // of a request
	refused             average // share of requests, on a prediction
	refusals            uint64  // on a prediction
}

// sizes are those of recent calls.
type sizes struct {
	batchRows, batchTokens average
	tokenRatio             average // merged: our count of their tokens over the engine's
}

// average follows a mean: exact over the first values, then with weight 1/over.
type average struct {
	mean float64
	n    int
	over int // 0 = 20
}

func (a *average) add(v float64) {
	a.n = min(a.n+1, cmp.Or(a.over, 20))
	a.mean += (v - a.mean) / float64(a.n)
}

// arrivals counts per tenth of a second of Unix time.
type arrivals struct {
	ring [Seconds * tenths]Bucket
	tick int64 // that the newest bucket counts
}

const tenths = 10 // of a second

func (a *arrivals) advance(now time.Time) {
	t := now.UnixMilli() * tenths / 1000
	for n := min(t-a.tick, Seconds*tenths); n > 0; n-- {
		a.ring[(t-n+1)%(Seconds*tenths)] = Bucket{}
	}
	a.tick = max(a.tick, t)
}

func (a *arrivals) add(now time.Time, tokens int) {
	a.advance(now)
	b := &a.ring[a.tick%(Seconds*tenths)]
	b.Requests++
	b.Tokens += tokens
}

func (a *arrivals) load(now time.Time) (l Load) {
	a.advance(now)
	for i := range l.Buckets {
		b := &l.Buckets[i]
		for k := range int64(tenths) {
			t := a.ring[(a.tick+1+int64(i)*tenths+k)%(Seconds*tenths)]
			b.Requests, b.Tokens = b.Requests+t.Requests, b.Tokens+t.Tokens
		}
		const weight = 0.2 // of a new second
		l.Requests += weight * (float64(b.Requests) - l.Requests)
		l.Tokens += weight * (float64(b.Tokens) - l.Tokens)
	}
	return l
}

// windowSize bounds the samples kept for one latency; at more than that in a
// window the newest are judged.
const windowSize = 4096

type window struct {
	ring []sample
	next int
}

type sample struct {
	at   time.Time
	took time.Duration
}

func (w *window) add(now time.Time, took time.Duration) {
	if len(w.ring) < windowSize {
		w.ring = append(w.ring, sample{now, took})
		return
	}
	w.ring[w.next] = sample{now, took}
	w.next = (w.next + 1) % windowSize
}

func (w *window) latency(now time.Time, o Options, target time.Duration) Latency {
	var took []time.Duration
	for _, s := range w.ring {
		if now.Sub(s.at) <= o.Window {
			took = append(took, s.took)
		}
	}
	l := Latency{Samples: len(took), Enough: len(took) >= max(o.MinSamples, 1), Target: target}
	if len(took) > 0 {
		slices.Sort(took)
		l.P50, l.P99 = took[(len(took)-1)/2], took[(len(took)*99+99)/100-1]
	}
	return l
}

func (c *Core) arrived(now time.Time, class backends.Class, tokens int) {
	if class == backends.Offline {
		c.offline.add(now, tokens)
	} else {
		c.serving.add(now, tokens)
	}
}

// generated learns from a finished generation.
func (c *Core) generated(now time.Time, b *Batch, r Result) {
	w := b.Segs[0].Work
	took := now.Sub(b.At)
	c.slotSeconds.add(took.Seconds())
	if w.Output >= 0 {
		c.output.add(float64(r.Output))
		c.outputs.add(w.Tenant, r.Output)
		c.wrote(b, r.Output)
	}
	if w.Class == backends.Interactive {
		c.rest.add(now, took-b.first)
	}
}

// counted compares our count of a merged call with its engine's.
func (c *Core) counted(r Result) {
	if r.Tokens > 0 && r.Counted > 0 {
		c.tokenRatio.add(float64(r.Tokens) / float64(r.Counted))
	}
}

// Signals describes the core at now.
func (c *Core) Signals(now time.Time) Signals {
	s := Signals{
		At: now, Model: c.opt.Model,
		Load: c.serving.load(now), Offline: c.offline.load(now),
		First: c.first.latency(now, c.opt, c.opt.Target), Rest: c.rest.latency(now, c.opt, 0),
		SlotSeconds: c.slotSeconds.mean, OutputTokens: c.output.mean,
		Calls: c.calls, Eta: c.eta, OfflineLimit: c.offlineLimit, OfflineRow: c.offlineRows,
	}
	s.Calls.Rows, s.Calls.Tokens, s.Calls.TokenRatio = c.batchRows.mean, c.batchTokens.mean, c.tokenRatio.mean
	for i := range s.Class {
		cl := &c.order.classes[i]
		s.Class[i] = ClassSignals{
			Queue: cl.queue, Rows: cl.rows, Tokens: cl.tokens,
			InFlight: cl.inFlight, InFlightTokens: cl.inFlightTok, Counters: cl.count,
		}
	}
	for _, w := range c.order.expiries {
		s.Class[w.Class].OldestWait = max(s.Class[w.Class].OldestWait, now.Sub(w.Arrival))
	}
	s.Engines = c.engines(now)
	c.shapes(&s)
	return s
}

// shapes adds the replicas and the fits of their shapes.
func (c *Core) shapes(s *Signals) {
	replicas := map[string]int{}
	for _, r := range c.replicas {
		if r.Offline {
			s.OfflineReplicas++
			continue
		}
		replicas[r.Shape]++
		s.Replicas++
		s.Slots += r.Slots
		s.BusySlots += r.busy
		if r.busy > 0 {
			s.BusyReplicas++
		}
	}
	for shape, f := range c.fits {
		largest := c.limit(&replica{fit: f})
		s.Fits = append(s.Fits, ShapeFit{
			Shape: shape, Alpha: f.alpha, Beta: f.beta, Margin: f.margin, Known: f.Known(), Padded: f.padded, Samples: f.samples,
			Knee: f.Knee(), Largest: largest, Rate: float64(largest) / f.Seconds(largest), Replicas: replicas[shape],
		})
	}
	slices.SortFunc(s.Fits, func(a, b ShapeFit) int {
		if a.Shape < b.Shape {
			return -1
		}
		return 1
	})
}

// retryAfter is when a refused caller may find room: the time that the waiting
// tokens need, within 1 to 30 s.
func (c *Core) retryAfter() time.Duration {
	var need, rate float64
	for i := range c.order.classes[:backends.Offline] {
		need += float64(c.order.classes[i].tokens)
	}
	for _, r := range c.replicas {
		if !r.Offline {
			rate += c.speed(r)
		}
	}
	if rate == 0 {
		return 5 * time.Second
	}
	return min(max(time.Duration(need/rate*float64(time.Second)).Round(time.Second), time.Second), 30*time.Second)
}
