package loadgen

import (
	"context"
	"sync"
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
	config, err := opt.Config()
	if err != nil {
		return nil, err
	}
	var end time.Duration
	for _, p := range plans {
		end = max(end, p.End())
	}
	start := time.Now().Add(lead + opt.WarmUp)
	bounded, cancel := context.WithDeadlineCause(ctx, start.Add(end+opt.Drain), errDrain)
	defer cancel()

	workers := make([]*worker, len(plans))
	for i := range plans {
		if workers[i], err = opt.worker(i, plans[i], stocks[i], start); err != nil {
			return nil, err
		}
	}
	results := make(chan sample, queue)
	col := newCollector(opt, plans, start) // may write lines from now on: collect ends that
	var sending sync.WaitGroup
	for _, w := range workers {
		w.out, w.open = results, &col.open
		sending.Go(func() { w.run(bounded) })
	}
	go func() {
		sending.Wait()
		close(results)
	}()
	col.collect(results) // until every worker is done
	report := col.report(ctx.Err() != nil)
	report.Config = config
	return report, nil
}

// worker makes the worker of workload i.
func (o *Options) worker(i int, plan arrivals.Plan, stock *stock, start time.Time) (*worker, error) {
	w := &o.Workloads[i]
	stock.texts = plan.Texts
	c, err := newClient(stock, i, start, o.dial)
	if err != nil {
		return nil, err
	}
	worker := &worker{client: c, make: stock.maker(), plan: plan, warmUp: o.WarmUp, fine: o.dial == nil}
	if w.Clients > 0 {
		worker.loop()
	} else if plan.Warm != nil {
		worker.warm = *plan.Warm
	}
	worker.lines = pool{most: max(w.MaxInFlight, w.Clients), freed: make(chan struct{}, 1)}
	return worker, nil
}
