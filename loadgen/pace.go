package loadgen

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"aloft/loadgen/arrivals"
)

// never is later than any run ends.
const never = 10 * 366 * 24 * time.Hour

// pause is what a client of a closed loop waits after it found no server: without
// it the loop would do nothing else.
const pause = 10 * time.Millisecond

// worker sends one workload. One goroutine paces it: it hands each request to a
// line when it is due. The lines write, read and take apart, on all processors.
type worker struct {
	*client
	plan   arrivals.Plan
	warm   arrivals.Plan // counted from warmUp before the start
	warmUp time.Duration
	out    chan<- sample
	open   *atomic.Int64 // requests in flight, over all workers
	fine   bool          // the kernel's timer may be used
	make   *maker        // of the goroutine that paces
	wake   *alarm
	lines  pool

	// Of the goroutine that paces.
	sent    int           // how many of warm and plan
	phase   int           // of the plan's next
	ahead   shot          // the plan's next: made before it is due, since the time that takes must not delay it
	made    bool          // ahead is
	blocked time.Duration // until when a request that waited for a line held up the others

	waiting atomic.Bool // for the last answers: nothing is known to be due
	mu      sync.Mutex
	later   []*shot // what follows answers, the nearest last
}

// run sends every request of the plan at its time, or as soon after it as a line
// is free, and what follows them, and returns when all have ended.
func (w *worker) run(ctx context.Context) {
	w.blocked = -never
	w.wake = newAlarm(ctx, w.fine)
	defer w.wake.close()
	var serving sync.WaitGroup
	w.lines.make = func() *line {
		l := newLine(w)
		serving.Go(func() { l.serve(ctx) })
		return l
	}
	stop := context.AfterFunc(ctx, w.lines.abort)
	defer stop()
	give := time.NewTimer(never)
	defer give.Stop()

	for {
		due, ok := w.upcoming()
		if w.waiting.Store(!ok); !ok {
			due = never
			if w.lines.quiet() {
				if _, ok := w.upcoming(); !ok { // a line gives its follow-up before itself
					break
				}
				continue
			}
		}
		if w.wake.sleep(w.start.Add(due)) != nil {
			break
		}
		if w.now() >= due { // else something nearer came, or a line is free
			w.shoot(ctx, w.pick(due), give)
		}
	}
	w.lines.end()
	serving.Wait()
	if ctx.Err() != nil {
		w.give(context.Cause(ctx))
	}
}

// give settles the requests that were due when the run was ended. The others were
// never offered.
func (w *worker) give(cause error) {
	now := w.now()
	for {
		due, ok := w.upcoming()
		if !ok || due > now {
			break
		}
		sh := w.pick(due)
		sh.waited = due < w.blocked
		w.unsent(sh, cause)
	}
	for _, sh := range w.later { // a request that was to be tried again was offered
		if sh.same {
			w.unsent(sh, cause)
		}
	}
}

// upcoming says when the next request is due; false if none is known of yet.
func (w *worker) upcoming() (time.Duration, bool) {
	due, ok := never, false
	if w.made || w.prepare() {
		due, ok = w.ahead.due, true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.later); n > 0 {
		due, ok = min(due, w.later[n-1].due), true
	}
	return due, ok
}

// prepare makes the next request of the plan; false at its end.
func (w *worker) prepare() bool {
	i := w.sent - len(w.warm.Offsets)
	sh := shot{body: w.ahead.body[:0], order: order{index: i}}
	switch {
	case i < 0:
		sh.due, sh.warm = w.warm.Offsets[w.sent]-w.warmUp, true
		sh.index = len(w.plan.Offsets) + w.sent // as if they came after all others
		sh.take(w.warm.Shapes, w.sent)
	case i < len(w.plan.Offsets):
		for span := w.plan.Spans[w.phase]; i >= span.First+span.N; span = w.plan.Spans[w.phase] {
			w.phase++
		}
		sh.due, sh.phase = w.plan.Offsets[i], w.phase
		sh.take(w.plan.Shapes, i)
	default:
		return false
	}
	w.sent++
	sh.intended = sh.due
	w.make.begin(&sh)
	sh.body, sh.want = w.make.append(sh.body, &sh.order)
	w.ahead, w.made = sh, true
	return true
}

// take gives a request its size and sender, if they are planned.
func (sh *shot) take(shapes []arrivals.Shape, i int) {
	if shapes != nil {
		sh.shape = shapes[i]
		sh.tenant = int(sh.shape.Tenant)
	}
}

// pick takes the request that is due then.
func (w *worker) pick(due time.Duration) *shot {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.later); n > 0 && w.later[n-1].due <= due {
		sh := w.later[n-1]
		w.later = w.later[:n-1]
		return sh
	}
	w.made = false
	return &w.ahead
}

// follow has a request sent when it is due.
func (w *worker) follow(sh shot) {
	w.mu.Lock()
	i, _ := slices.BinarySearchFunc(w.later, sh.due, func(s *shot, due time.Duration) int {
		if s.due > due { // the farthest first; of equals those that came later stand before
			return -1
		}
		return 1
	})
	w.later = slices.Insert(w.later, i, &sh)
	nearest := i == len(w.later)-1
	w.mu.Unlock()
	if nearest {
		w.wake.nudge()
	}
}

// shoot hands a request to a line, waiting for one until the request is given up.
// The wait is part of the request's latency.
func (w *worker) shoot(ctx context.Context, sh *shot, give *time.Timer) {
	l, err := w.line(ctx, sh, give)
	if sh.waited {
		w.blocked = w.now()
	}
	sh.waited = sh.due < w.blocked
	if err != nil {
		w.unsent(sh, err)
		return
	}
	w.open.Add(1)
	l.shot, *sh = *sh, shot{body: l.shot.body} // the buffers change places
	l.ready <- struct{}{}
}

func (w *worker) line(ctx context.Context, sh *shot, give *time.Timer) (*line, error) {
	if l := w.lines.take(); l != nil {
		return l, nil
	}
	sh.waited = true
	until, cause := sh.deadline(w.Timeout)
	give.Reset(time.Until(w.start.Add(until)))
	defer give.Stop()
	for {
		select {
		case <-w.lines.freed:
			if l := w.lines.take(); l != nil {
				return l, nil
			}
		case <-give.C:
			return nil, cause
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// unsent counts a request that ended in the generator.
func (w *worker) unsent(sh *shot, cause error) {
	s := sample{
		workload: w.index, phase: sh.phase, tenant: sh.tenant,
		times:  times{intended: sh.intended, due: sh.due, end: w.now()},
		waited: sh.waited, retries: sh.retries, warm: sh.warm,
		further: sh.turn > 0, tokens: tokens{input: int(sh.shape.Input)},
	}
	w.settle(&s, cause)
	w.out <- s
}

// loop makes the workload a closed loop: its clients begin together, and each
// sends its next request when it has its answer.
func (w *worker) loop() {
	for i := range w.Clients {
		sh := shot{intended: -w.warmUp, due: -w.warmUp, warm: w.warmUp > 0, order: order{index: i}}
		w.make.resize(&sh)
		w.make.begin(&sh)
		sh.body, sh.want = w.make.append(nil, &sh.order)
		w.later = append(w.later, &sh)
	}
	var made atomic.Int64
	made.Store(int64(w.Clients))
	step := w.next
	w.next = func(l *line, s *sample) (shot, bool) {
		if again, ok := step(l, s); ok {
			return again, true
		}
		at := s.end
		if s.outcome == Connect {
			at += pause
		}
		for i, span := range w.plan.Spans {
			if at < span.To {
				sh := shot{intended: at, due: at, phase: i, warm: at < 0, order: order{index: int(made.Add(1) - 1)}}
				l.make.resize(&sh)
				l.make.begin(&sh)
				return sh, true
			}
		}
		return shot{}, false
	}
}
