package serving

import (
	"cmp"
	"math"
	"slices"
	"time"
)

const (
	// buckets seconds of arrivals are remembered, by tenths of a second: as the batcher's
	// signals do, the newest second is the one until now, so that a burst shows at
	// once and whole, whenever it is looked at.
	buckets = 60
	tenths  = 10 // of a second
	// window is how far back latencies are judged unless Options.Window says otherwise;
	// samples is how many are kept at most, as in the batcher.
	window  = 10 * time.Second
	samples = 4096

	// Batch rows take what serving leaves of a ready replica, up to rowsUpTo of it,
	// and get rowsEfficiency of that done: figures of the prototype
	// (research/arbiter-prototype.md, section 3), not of a measurement.
	rowsUpTo       = 0.85
	rowsEfficiency = 0.8
)

// load is what the arbiter is told of.
type load struct {
	work    [buckets * tenths]float64
	tick    int64 // the tenth of now
	waiting int
	running int
	times   [samples]sample // a ring
	next    int
	scratch []time.Duration
	top     []time.Duration
	ordered [buckets]float64
}

// sample is a first token: when, and how long it took. A request whose SLO is wider
// for its length counts with its time scaled to the shortest's SLO, so that one
// target judges all.
type sample struct{ at, took time.Duration }

// Load is a model's load at a moment. Work is good until the next call.
type Load struct {
	// Work is what arrived in each of the last seconds, newest last, in seconds of a
	// replica: prompts over the prefill rate, or merged calls at the knee.
	Work             []float64
	Waiting, Running int
	// P99 is of the first tokens of the window, Samples how many those are.
	P99     time.Duration
	Samples int
}

func (l *load) advance(now time.Duration) {
	tick := int64(now / (time.Second / tenths))
	for n := min(tick-l.tick, buckets*tenths); n > 0; n-- {
		l.work[(tick-n+1)%(buckets*tenths)] = 0
	}
	l.tick = max(l.tick, tick)
}

func (l *load) arrived(now time.Duration, work float64) {
	l.advance(now)
	l.work[l.tick%(buckets*tenths)] += work
}

// firstToken notes the latency of q's.
func (s *Server) firstToken(q *request) {
	took := q.first - q.at
	if s.opt.SLO.PerInput > 0 {
		took = time.Duration(float64(took) * float64(s.opt.SLO.TTFT) / float64(s.opt.SLO.first(q.in)))
	}
	s.times[s.next%samples] = sample{s.now, took}
	s.next++
}

// Load describes the model at now.
func (s *Server) Load(now time.Duration) Load {
	s.Step(now)
	l := &s.load
	l.advance(now)
	at := (l.tick + 1) % (buckets * tenths) // the oldest
	for i := range l.ordered {
		l.ordered[i] = 0
		for range tenths {
			l.ordered[i] += l.work[at]
			if at++; at == buckets*tenths {
				at = 0
			}
		}
	}
	l.scratch = l.scratch[:0]
	for i := l.next - 1; i >= max(0, l.next-samples) && now-l.times[i%samples].at <= s.opt.Window; i-- {
		l.scratch = append(l.scratch, l.times[i%samples].took)
	}
	return Load{Work: l.ordered[:], Waiting: l.waiting, Running: l.running, P99: l.p99(l.scratch), Samples: len(l.scratch)}
}

// p99 is the 99th of a hundred values, by rank. Only the largest are sorted, since
// it is asked for twice a second.
func (l *load) p99(took []time.Duration) time.Duration {
	n := len(took)
	if n == 0 {
		return 0
	}
	above := n - (n*99+99)/100
	top := l.top[:0] // falling
	for _, t := range took {
		if len(top) > above && t <= top[above] {
			continue
		}
		i, _ := slices.BinarySearchFunc(top, t, func(a, b time.Duration) int { return cmp.Compare(b, a) })
		top = slices.Insert(top, i, t)
		top = top[:min(len(top), above+1)]
	}
	l.top = top
	return top[above]
}

// SetRows says whether batch rows ride in ready replicas. The rows are a stated
// model: there are always enough, they take nothing from requests, and they give
// their share back within a step.
func (s *Server) SetRows(now time.Duration, on bool) {
	if on != s.rows {
		s.RowsUseful(now)
		s.rows = on
	}
}

// RowsUseful is what the rows have done so far, in seconds of a replica.
func (s *Server) RowsUseful(now time.Duration) float64 {
	s.Step(now)
	for _, r := range s.replicas {
		if r != nil {
			r.advance(s, now)
		}
	}
	return s.rowed
}

// rowsOf is what rows get done in a second of a replica of which serving uses so
// much.
func rowsOf(use float64) float64 { return rowsEfficiency * math.Max(0, rowsUpTo-use) }
