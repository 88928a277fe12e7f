package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"aloft/backends"
	"aloft/backends/openai"
	"aloft/backends/openaihttp"
	"aloft/batcher"
	"aloft/loadgen/arrivals"
	"aloft/sim/batching"
)

// slowed is by how much the engines over HTTP are slower than the paper's, so that
// their knee is below 300 requests/s and this machine is not the limit.
const slowed = 6

// onHTTP is the paper's world with timed engines that are that much slower. They
// have no noise but the machine's.
func onHTTP(quick bool) batching.World {
	w := batching.Paper()
	w.Law.AlphaMs, w.Law.BetaMsPerToken, w.Target = slowed*w.Law.AlphaMs, slowed*w.Law.BetaMsPerToken, slowed*w.Target
	w.Noise, w.Warm = 0, 4*time.Second
	if quick {
		w.Warm = 2 * time.Second
	}
	return w
}

// timedFleet is the engines, one a replica.
type timedFleet struct {
	world   batching.World
	fleet   []batcher.Replica
	clients []*openaihttp.Client
	engines []*child
}

// startTimed starts an engine for each replica of w.
func (l *lab) startTimed(ctx context.Context, w batching.World) (*timedFleet, error) {
	t := &timedFleet{world: w, fleet: w.Fleet()}
	for i := range t.fleet {
		c, err := l.startEngine(ctx, "synthetic", "--name", "timed", fmt.Sprintf("--alpha=%vms", w.Law.AlphaMs), fmt.Sprintf("--beta=%vms", w.Law.BetaMsPerToken))
		if err != nil {
			t.stop()
			return nil, err
		}
		t.engines = append(t.engines, c)
		client := openaihttp.New(openaihttp.Options{BaseURL: c.base})
		t.clients = append(t.clients, client)
		t.fleet[i].Backend = client
	}
	return t, nil
}

func (t *timedFleet) stop() {
	for _, c := range t.clients {
		c.Close()
	}
	for _, e := range t.engines {
		e.stop()
	}
}

// overHTTP lets some arms meet real engines, and the same plans in virtual time.
func overHTTP(ctx context.Context, l *lab, r *result) error {
	w := onHTTP(l.quick)
	source, err := batching.NewSource(batching.Traffic{Name: poissonTail, Kind: arrivals.Poisson, Lengths: batching.HeavyTail()}, nil)
	if err != nil {
		return err
	}
	t, err := l.startTimed(ctx, w)
	if err != nil {
		return err
	}
	defer t.stop()
	lasts := w.Warm + l.span(10*time.Second)
	var rows [][]string
	for _, load := range []float64{0.5, 1, 1.3} {
		rate := load * w.Knee(source.Mean)
		plan, err := source.Draw(rate, lasts, 1)
		if err != nil {
			return err
		}
		search, err := source.Draw(rate, 2*lasts, 101)
		if err != nil {
			return err
		}
		tuned := batching.Tune(w, batching.Grid(w.Target), search.Requests)
		for _, arm := range []string{batching.FixedArm, batching.Tuned, batching.Ours} {
			if l.quick && arm == batching.Tuned {
				continue
			}
			virtual := batching.Simulate(w, batching.New(arm, w, tuned), plan.Requests)
			book := newLedger(w, plan.Requests)
			if err := t.drive(ctx, arm, tuned, book); err != nil {
				return fmt.Errorf("%s over HTTP at %.1f x knee: %w", arm, load, err)
			}
			agree := batching.Ratio([][]float64{book.windows(true)}, [][]float64{goodOf(virtual)})
			l.say("batcher over HTTP: %s at %.1f x knee (%.0f/s, plan %s): %.1f %% in time, in virtual time %.1f %%; the generator was %.1f ms late at p99",
				arm, load, rate, plan.Hashes[0], 100*book.attainment(), 100*virtual.Attainment(), ms(book.lag(0.99)))
			rows = append(rows, []string{arm, fmt.Sprintf("%.1f", load), fmt.Sprintf("%.0f", rate), fmt.Sprintf("%.1f", 100*book.attainment()),
				fmt.Sprintf("%.1f", 100*virtual.Attainment()), fmt.Sprintf("%.3f", agree.Value), fmt.Sprintf("%.1f", ms(book.lag(0.99))), plan.Hashes[0]})
			if arm == batching.Ours {
				name := fmt.Sprintf("goodput at %.1f x knee over HTTP / in virtual time", load)
				r.atLeastIn(name, agree, 0.95)
				r.atMostIn(name+", at most", agree, 1.05)
			}
		}
	}
	var b strings.Builder
	writeTable(&b, []string{"arm", "x knee", "offered/s", "in time over HTTP, %", "in virtual time, %", "goodput, HTTP / virtual", "generator late, p99 ms", "plan"}, rows)
	r.note("Over HTTP: four `aloft engine synthetic` of %v ms + %v ms a token, target %v, knee %.0f requests/s; the plan is sent open loop, each request due %v after its planned start. "+
		"*Ours* is `batcher.Batcher`; the others' rules are driven by a loop of the benchmark's own.\n\n%s",
		w.Law.AlphaMs, w.Law.BetaMsPerToken, w.Target, w.Knee(source.Mean), w.Target, strings.TrimSuffix(b.String(), "\n"))
	return nil
}

func goodOf(o *batching.Outcome) (out []float64) {
	for _, w := range o.Windows {
		out = append(out, float64(w.Good))
	}
	return out
}

// ledger says of every planned request when it began and whether it was answered
// in time. Each entry is written by one goroutine, and read when all have ended.
type ledger struct {
	world batching.World
	reqs  []batching.Request
	late  []time.Duration // of the generator
	took  []time.Duration // from the planned start; 0 = refused
}

func newLedger(w batching.World, reqs []batching.Request) *ledger {
	return &ledger{world: w, reqs: reqs, late: make([]time.Duration, len(reqs)), took: make([]time.Duration, len(reqs))}
}

// windows counts what was answered in time, or all, as an Outcome does.
func (b *ledger) windows(good bool) []float64 {
	out := make([]float64, batching.Parts)
	span := b.reqs[len(b.reqs)-1].At - b.world.Warm
	for i, q := range b.reqs {
		if q.At >= b.world.Warm && (!good || b.took[i] > 0 && b.took[i] <= b.world.Target) {
			out[min(int(batching.Parts*(q.At-b.world.Warm)/span), batching.Parts-1)]++
		}
	}
	return out
}

func (b *ledger) attainment() float64 {
	return batching.Ratio([][]float64{b.windows(true)}, [][]float64{b.windows(false)}).Value
}

func (b *ledger) lag(q float64) time.Duration {
	s := slices.Sorted(slices.Values(b.late))
	return s[min(len(s)-1, int(q*float64(len(s))))]
}

// inFlight bounds requests that wait or run; the generator then waits too, and it shows.
const inFlight = 4096

// drive sends the ledger's plan through the arm.
func (t *timedFleet) drive(ctx context.Context, arm string, tuned batching.Fixed, book *ledger) error {
	if arm == batching.Ours {
		return t.driveOurs(ctx, book)
	}
	return t.driveRule(ctx, batching.New(arm, t.world, tuned), book)
}

// pace calls ask for every request at its planned time, which is counted from now.
func (b *ledger) pace(ctx context.Context, ask func(i int, r *backends.Request)) {
	start := time.Now().Add(50 * time.Millisecond)
	for i, q := range b.reqs {
		due := start.Add(q.At)
		if d := time.Until(due); d > 0 && !pause(ctx, d) || ctx.Err() != nil {
			return
		}
		b.late[i] = time.Since(due)
		ids := slices.Repeat([]byte("1,"), q.Tokens)
		ids = append(append([]byte("["), ids[:len(ids)-1]...), ']')
		ask(i, &backends.Request{ID: fmt.Sprint(i), Endpoint: backends.Embeddings, Path: backends.Embeddings.Path(), Model: "timed",
			Body: fmt.Appendf(nil, `{"model":"timed","input":%s}`, ids), Inputs: [][]byte{ids}, MergeKey: "-",
			Tokens: q.Tokens, InputTokens: []int{q.Tokens}, Arrival: due})
	}
}

// driveOurs sends through the real batcher.
func (t *timedFleet) driveOurs(ctx context.Context, book *ledger) error {
	b, err := batcher.New(batching.Options(t.world), slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	b.SetReplicas(t.fleet)
	var clients sync.WaitGroup
	var failed atomic.Pointer[error]
	room := make(chan struct{}, inFlight)
	book.pace(ctx, func(i int, r *backends.Request) {
		room <- struct{}{}
		clients.Go(func() {
			defer func() { <-room }()
			reply, err := b.Submit(ctx, r)
			if err != nil {
				return // refused
			}
			_, err = io.Copy(io.Discard, reply.Body)
			reply.Body.Close()
			if err == nil && reply.Status != http.StatusOK {
				err = fmt.Errorf("the engine answered %d", reply.Status)
			}
			if err != nil {
				failed.Store(&err)
				return
			}
			book.took[i] = time.Since(r.Arrival)
		})
	})
	clients.Wait()
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err = b.Close(closing)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case failed.Load() != nil:
		return *failed.Load()
	}
	return err
}

// ended is a call that a replica has answered.
type ended struct {
	batch *batcher.Batch
	took  time.Duration
	at    time.Time
	err   error
}

// ticket is one request on its way through a rule.
type ticket struct {
	i   int
	req *backends.Request
}

// driven drives a rule over HTTP as batcher.Batcher drives its core: one goroutine
// owns it, and one for each replica makes the calls.
type driven struct {
	policy batching.Policy
	book   *ledger
	open   int // neither answered nor refused
	calls  map[string]chan *batcher.Batch
	ended  chan ended
}

func (t *timedFleet) driveRule(ctx context.Context, policy batching.Policy, book *ledger) error {
	d := &driven{policy: policy, book: book, calls: map[string]chan *batcher.Batch{}, ended: make(chan ended, len(t.fleet))}
	ctx, cancel := context.WithCancel(ctx)
	var others sync.WaitGroup
	defer others.Wait()
	defer cancel()
	for _, r := range t.fleet {
		calls := make(chan *batcher.Batch, 1)
		d.calls[r.ID] = calls
		others.Go(func() {
			for b := range calls {
				d.ended <- call(ctx, r.Backend, b) // room for each: never more than one call a replica
			}
		})
		defer close(calls)
	}
	asked := make(chan *batcher.Work, inFlight)
	others.Go(func() {
		defer close(asked)
		book.pace(ctx, func(i int, r *backends.Request) {
			select {
			case asked <- &batcher.Work{RowTokens: r.InputTokens, Arrival: r.Arrival, Load: ticket{i, r}}:
			case <-ctx.Done():
			}
		})
	})
	return d.loop(ctx, asked)
}

// loop owns the rule until all is answered.
func (d *driven) loop(ctx context.Context, asked <-chan *batcher.Work) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for asked != nil || d.open > 0 {
		if wake := d.policy.Wake(); !wake.IsZero() {
			timer.Reset(time.Until(wake))
		}
		select {
		case w, ok := <-asked:
			if !ok {
				asked = nil
				continue
			}
			d.open++
			d.apply(d.policy.Arrive(time.Now(), w))
		case e := <-d.ended:
			if e.err != nil {
				return e.err
			}
			d.open -= len(e.batch.Segs)
			for _, s := range e.batch.Segs {
				d.book.took[s.Work.Load.(ticket).i] = e.at.Sub(s.Work.Arrival)
			}
			d.apply(d.policy.Done(time.Now(), e.batch, batcher.Result{Outcome: batcher.Answered, Took: e.took}))
		case <-timer.C:
			d.apply(d.policy.Tick(time.Now()))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (d *driven) apply(acts []batcher.Action) {
	for _, a := range acts {
		switch a.Kind {
		case batcher.Dispatch:
			d.calls[a.Batch.Replica.ID] <- a.Batch
		case batcher.Fail:
			d.open--
		}
	}
}

// call makes one call.
func call(ctx context.Context, to backends.Backend, b *batcher.Batch) (e ended) {
	e.batch = b
	reqs := make([]*backends.Request, len(b.Segs))
	for i, s := range b.Segs {
		reqs[i] = s.Work.Load.(ticket).req
	}
	start := time.Now()
	reply, err := to.Do(ctx, &backends.Call{Path: backends.Embeddings.Path(), Body: openai.AppendMerged(nil, reqs)})
	if err != nil {
		e.err = err
		return e
	}
	var text bytes.Buffer
	_, e.err = text.ReadFrom(io.LimitReader(reply.Body, maxReply))
	reply.Body.Close()
	if e.err == nil && reply.Status != http.StatusOK {
		e.err = fmt.Errorf("the engine answered %d: %.200s", reply.Status, text.Bytes())
	}
	e.at = time.Now()
	e.took = e.at.Sub(start)
	return e
}
