package loadgen

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"aloft/loadgen/arrivals"
)

// lead is the time between the end of planning and the first intended start, so
// that the first requests are not late by the start of their goroutines.
const lead = 20 * time.Millisecond

// queue is how many results may wait for the collector.
const queue = 4096

// Run plans all workloads, sends them side by side and returns what came of it.
// It ends at the latest Drain after the last phase. When ctx ends first, what is
// open is cancelled and the report holds the results so far and says
// Interrupted; that is no error. An error means that nothing was sent.
func Run(ctx context.Context, opt Options) (*Report, error) {
	if err := opt.Validate(); err != nil {
		return nil, err
	}
	opt = opt.withDefaults()
	plans, err := opt.plan()
	if err != nil {
		return nil, err
	}
	stocks, err := opt.stocks()
	if err != nil {
		return nil, err
	}
	config, err := opt.config()
	if err != nil {
		return nil, err
	}
	var end time.Duration
	for _, p := range plans {
		end = max(end, p.End())
	}
	start := time.Now().Add(lead)
	bounded, cancel := context.WithDeadlineCause(ctx, start.Add(end+opt.Drain), errDrain)
	defer cancel()

	results := make(chan sample, queue)
	col := newCollector(opt, plans, start)
	workers := make([]*worker, len(plans))
	for i := range plans {
		w := &opt.Workloads[i]
		workers[i] = &worker{
			client: newClient(w, i, start, opt.dial), make: stocks[i].maker(), plan: plans[i], out: results, open: &col.open, fine: opt.dial == nil,
			slots: make(chan struct{}, w.MaxInFlight),
		}
	}
	var sending sync.WaitGroup
	for _, w := range workers {
		sending.Go(func() { w.pace(bounded) })
	}
	go func() {
		sending.Wait()
		close(results)
	}()
	col.collect(results) // until every worker is done
	for _, w := range workers {
		w.http.CloseIdleConnections()
	}
	report := col.report(ctx.Err() != nil)
	report.Config = config
	return report, nil
}

// worker sends one workload.
type worker struct {
	*client
	plan  arrivals.Plan
	make  *maker
	slots chan struct{}
	out   chan<- sample
	open  *atomic.Int64 // requests in flight, over all workers
	fine  bool          // the kernel's timer may be used
}

// pace sends every request of the plan at its time, or as soon after it as a
// slot is free, and returns when all have ended.
func (w *worker) pace(ctx context.Context) {
	var open sync.WaitGroup
	defer open.Wait()
	wake := newAlarm(ctx, w.fine)
	defer wake.close()
	var blocked time.Duration // until when the last request that waited for a slot held up the others
	for phase, span := range w.plan.Spans {
		for i, due := range w.plan.Offsets[span.First : span.First+span.N] {
			// Built before it is due: the time it takes must not delay the send.
			sh := shot{phase: phase, intended: due}
			sh.body, sh.want = w.make.append(nil, &order{index: span.First + i})
			err := wake.sleep(w.start.Add(due))
			if err == nil {
				err = w.slot(ctx, &sh)
			}
			if sh.waited {
				blocked = w.now()
			}
			sh.waited = due < blocked
			if err != nil {
				s := sample{workload: w.index, phase: phase, times: times{intended: due, end: w.now()}, waited: sh.waited}
				if s.end < due {
					return // ended before it was due: it and all that follow were never offered
				}
				w.w.settle(&s, err)
				w.out <- s
				continue
			}
			w.open.Add(1)
			open.Go(func() {
				s := w.send(ctx, sh)
				w.open.Add(-1)
				<-w.slots
				w.out <- s
			})
		}
	}
}

// slot takes a slot, waiting for one until the request times out. The wait is
// part of the request's latency.
func (w *worker) slot(ctx context.Context, sh *shot) error {
	select {
	case w.slots <- struct{}{}:
		return nil
	default:
	}
	sh.waited = true
	give := time.NewTimer(time.Until(w.start.Add(sh.intended + w.w.Timeout)))
	defer give.Stop()
	select {
	case w.slots <- struct{}{}:
		return nil
	case <-give.C:
		return errTimeout
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
