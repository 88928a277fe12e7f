package search

import (
	"container/heap"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"aloft/loadgen"
	"aloft/loadgen/arrivals"
)

// model is a queue that is served in order by so many servers, run in a bubble
// of virtual time in the place of loadgen.Run.
type model struct {
	servers int
	serve   func(*rand.Rand) float64 // seconds
	leaves  func(i int, latency float64) loadgen.Outcome
	lag     func(rate float64) float64 // send lag p99 in ms
	runs    int
}

// exponential and fixed are times of service.
func exponential(rate float64) func(*rand.Rand) float64 {
	return func(r *rand.Rand) float64 { return r.ExpFloat64() / rate }
}
func fixed(seconds float64) func(*rand.Rand) float64 {
	return func(*rand.Rand) float64 { return seconds }
}

type free []float64

func (f free) Len() int           { return len(f) }
func (f free) Less(i, j int) bool { return f[i] < f[j] }
func (f free) Swap(i, j int)      { f[i], f[j] = f[j], f[i] }
func (f *free) Push(x any)        { *f = append(*f, x.(float64)) }
func (f *free) Pop() any          { panic("not used") }

// done is when a request ended, and how.
type done struct {
	at, latency float64
	measured    bool
	outcome     loadgen.Outcome
}

// draw plans a phase of one rate behind a warm-up. It is the model's own, so that
// what it says does not hang on how the generator draws.
func draw(seed uint64, p arrivals.Phase, warmUp time.Duration) (plan arrivals.Plan) {
	r := rand.New(rand.NewPCG(seed, 0))
	first := 0
	for at := 0.0; ; {
		gap := 1 / p.Process.Rate
		if p.Process.Kind == arrivals.Poisson {
			gap *= r.ExpFloat64()
		}
		at += gap
		if at >= (warmUp + p.Duration).Seconds() {
			break
		}
		if at < warmUp.Seconds() {
			first++
		}
		plan.Offsets = append(plan.Offsets, time.Duration(at*float64(time.Second)))
	}
	plan.Spans = []arrivals.Span{{Name: p.Name, From: warmUp, To: warmUp + p.Duration, First: first, N: len(plan.Offsets) - first}}
	return plan
}

// serveAll sends the plan through the queue: ends in order of arrival.
func (m *model) serveAll(plan arrivals.Plan, r *rand.Rand, target time.Duration) []done {
	busy := make(free, m.servers)
	out := make([]done, 0, len(plan.Offsets))
	first := plan.Spans[len(plan.Spans)-1].First
	for i, at := range plan.Offsets {
		from := max(at.Seconds(), busy[0])
		end := from + m.serve(r)
		busy[0] = end
		heap.Fix(&busy, 0)
		d := done{at: end, latency: end - at.Seconds(), measured: i >= first, outcome: loadgen.OK}
		if target > 0 && d.latency > target.Seconds() {
			d.outcome = loadgen.Late
		}
		if m.leaves != nil {
			d.outcome = m.leaves(i, d.latency)
		}
		out = append(out, d)
	}
	return out
}

func (m *model) run(ctx context.Context, o loadgen.Options) (*loadgen.Report, error) {
	m.runs++
	w := &o.Workloads[0]
	plan := draw(o.Seed, w.Phases[0], o.WarmUp)
	served := m.serveAll(plan, rand.New(rand.NewPCG(o.Seed, 1)), w.Target)
	span := plan.Spans[len(plan.Spans)-1]
	ends := slices.Clone(served)
	slices.SortFunc(ends, func(a, b done) int { return int(math.Copysign(1, a.at-b.at)) })
	res := loadgen.Result{Name: w.Name}
	res.Targets.E2E = float64(w.Target.Milliseconds())
	res.Planned = float64(span.N) / (span.To - span.From).Seconds()
	res.Achieved = res.Planned
	var latency []float64
	came, over := 0, 0
	account := func(until float64) {
		for ; came < len(plan.Offsets) && plan.Offsets[came].Seconds() <= until; came++ {
		}
		for ; over < len(ends) && ends[over].at <= until; over++ {
			if d := &ends[over]; d.measured {
				res.Offered++
				latency = append(latency, d.latency*1000)
				switch d.outcome {
				case loadgen.OK:
					res.OK++
				case loadgen.Late:
					res.Late++
				default:
					res.Shed++
				}
			}
		}
	}
	finish := func(interrupted bool) *loadgen.Report {
		slices.Sort(latency)
		if n := len(latency); n > 0 {
			res.Quantiles = loadgen.Quantiles{N: int64(n), P50: latency[n/2], P99: latency[n*99/100], Max: latency[n-1]}
		}
		report := &loadgen.Report{Interrupted: interrupted, Results: []loadgen.Result{res}}
		if m.lag != nil && m.lag(res.Planned) > 1 {
			report.Failed = []string{fmt.Sprintf("send lag p99 is %.2f ms, more than 1.00 ms", m.lag(res.Planned))}
		}
		return report
	}
	for now := o.SampleEvery; now <= span.To; now += o.SampleEvery {
		if !rest(ctx, o.SampleEvery) {
			return finish(true), nil
		}
		res.Good = float64(res.OK) / max(now-span.From, 1).Seconds()
		account(now.Seconds())
		o.OnSample(loadgen.Snapshot{Elapsed: max(now-o.WarmUp, 0), InFlight: came - over, Results: []loadgen.Result{res}})
		if ctx.Err() != nil {
			return finish(true), nil
		}
	}
	// What is open at the drain deadline is lost.
	drain := o.Drain.Seconds()
	account(span.To.Seconds() + drain)
	last := span.To.Seconds()
	if over > 0 {
		last = max(last, ends[over-1].at)
	}
	if !rest(ctx, time.Duration((min(last, span.To.Seconds()+drain)-span.To.Seconds())*float64(time.Second))) {
		return finish(true), nil
	}
	res.Good = float64(res.OK) / (last - span.From.Seconds())
	for ; over < len(ends); over++ {
		if ends[over].measured {
			res.Offered++
			res.Failed++
		}
	}
	return finish(false), nil
}

// rest sleeps, and reports whether the context lived so long.
func rest(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
