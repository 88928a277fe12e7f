// Package batcher decides when and where each request of one model runs.
//
// Embedding requests of many clients share engine calls; generation is only
// admitted, by slots, since engines batch it better themselves. Every decision
// is made by Core, a pure state machine (events in, actions out, the time an
// argument), so that the live server and the simulator run the same code.
// Batcher is the thin shell around it: a lock owns the core, and whoever brings an
// event, a caller, a worker or the timer, also carries out what the core decides,
// so that a request that finds a free slot waits for nobody. Merged calls have
// workers, which Close waits for; generation runs in its caller's own goroutine.
//
// The algorithm is described in docs/batching.md.
package batcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"aloft/backends"
)

// Replica is one ready engine as the batcher sees it.
type Replica struct {
	ID      string
	Backend backends.Backend
	Slots   int    // generation: sequences at once; merged endpoints: calls at once (normally 1)
	Offline bool   // lent to a batch job: takes only Offline-class work
	Shape   string // key of the service-time fit: replicas of one shape share it
	Index   int    // order for placement: with eta > 0 the lowest fills first

	Adapters []string // LoRA adapters that it serves beside the model itself
	Old      bool     // the model has changed since: another is to take its place
}

// DefaultBatchRows is how many rows one merged call has at most, unless the
// options say otherwise.
const DefaultBatchRows = 64

// DefaultQueueTimeout is the longest wait of requests with clients, unless the
// options say otherwise.
const DefaultQueueTimeout = 30 * time.Second

// Seconds that a call and a token cost before anything was measured.
const (
	priorAlpha = 0.005
	priorBeta  = 20e-6
)

// Options say how one model is batched. Zero values take the defaults written
// at each field.
type Options struct {
	Model string // the served model's name, in answers; calls name it as the requests' bodies do
	Merge bool   // embeddings: merge across clients; false: generation, admission only

	MaxBatchRows   int           // rows in one merged call, DefaultBatchRows
	MaxBatchTokens int           // tokens in one merged call, 8192; the fit may choose less
	MaxQueueDelay  time.Duration // fixed wait of the oldest row as Triton has it; 0 = decided by the fit and eta
	MaxQueue       int           // requests waiting, per class, 1024
	QueueTimeout   time.Duration // longest wait of interactive and standard requests, DefaultQueueTimeout

	// Target is the p99 latency promised to interactive requests (embeddings:
	// the whole answer; generation: the first token); 0 = none promised.
	Target     time.Duration
	Window     time.Duration // how far back latencies are judged, 10 s
	MinSamples int           // fewer samples than this in the window give no headroom, 20

	// KVTokens is what each replica's KV cache holds; 0 = what its engine says, and
	// no limit where that says nothing.
	KVTokens int

	Off bool // batching off: one request a call (for comparison)
	// Keep refuses nobody for being late: whoever compares what replicas can do
	// must not count what a prediction gave up.
	Keep bool

	// Affinity sends generation to the replica that knows its session or prefix,
	// as long as that has not much more to do than another.
	Affinity bool

	// Hedge asks a second replica when a short call that is no stream takes
	// longer than 95 in 100 of its kind; at most 5 % of such calls.
	Hedge bool
}

// Validate reports the first setting that cannot work.
func (o Options) Validate() error {
	bad := func(name string, v any, want string) error {
		return fmt.Errorf("batcher: model %q: %s is %v, want %s", o.Model, name, v, want)
	}
	switch {
	case o.Model == "":
		return errors.New("batcher: model has no name")
	case o.MaxBatchRows < 0:
		return bad("max_batch_rows", o.MaxBatchRows, "0 or more")
	case o.MaxBatchTokens < 0:
		return bad("max_batch_tokens", o.MaxBatchTokens, "0 or more")
	case o.MaxQueueDelay < 0:
		return bad("max_queue_delay", o.MaxQueueDelay, "0 or more")
	case o.MaxQueue < 0:
		return bad("max_queue", o.MaxQueue, "0 or more")
	case o.KVTokens < 0:
		return bad("kv_tokens", o.KVTokens, "0 or more")
	case o.QueueTimeout < 0:
		return bad("queue_timeout", o.QueueTimeout, "0 or more")
	case o.Target < 0:
		return bad("target", o.Target, "0 or more")
	case o.Target > 0 && o.MaxQueueDelay >= o.Target:
		return bad("max_queue_delay", o.MaxQueueDelay, fmt.Sprintf("less than the target of %v", o.Target))
	case o.Window < 0 || o.MinSamples < 0:
		return bad("window, min_samples", fmt.Sprint(o.Window, ", ", o.MinSamples), "0 or more")
	}
	return nil
}

// withDefaults fills what was left zero.
func (o Options) withDefaults() Options {
	o.MaxBatchRows = cmp.Or(o.MaxBatchRows, DefaultBatchRows)
	o.MaxBatchTokens = cmp.Or(o.MaxBatchTokens, 8192)
	o.MaxQueue = cmp.Or(o.MaxQueue, 1024)
	o.QueueTimeout = cmp.Or(o.QueueTimeout, DefaultQueueTimeout)
	o.Window = cmp.Or(o.Window, 10*time.Second)
	o.MinSamples = cmp.Or(o.MinSamples, 20)
	return o
}

// Batcher queues, orders, merges and places the requests of one model.
type Batcher struct {
	opt Options
	log *slog.Logger

	ended   chan struct{} // closed at the end: drained, or given up
	workers sync.WaitGroup

	base   context.Context // of every merged call; ends when Close runs out of time
	cancel context.CancelCauseFunc
	wait   wait
	unfit  map[backends.Endpoint]*atomic.Int32 // shared answers in a row that could not be taken apart

	mu      sync.Mutex // guards what follows; nothing blocks under it
	over    bool
	core    *Core
	timer   *time.Timer        // runs tick at wake, or sooner
	wake    time.Time          // zero = not set
	calls   map[*Batch]*worker // merged calls at engines
	idle    []*worker
	seconds map[*Batch]context.CancelCauseFunc // second calls of hedged pairs
}

// New starts a batcher without replicas; requests wait until SetReplicas.
func New(o Options, log *slog.Logger) (*Batcher, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	b := &Batcher{
		opt: o, log: log,
		ended:   make(chan struct{}),
		core:    NewCore(o),
		unfit:   map[backends.Endpoint]*atomic.Int32{},
		calls:   map[*Batch]*worker{},
		seconds: map[*Batch]context.CancelCauseFunc{},
	}
	for _, e := range backends.Endpoints() {
		b.unfit[e] = new(atomic.Int32)
	}
	b.wait.set(b.core.outlook())
	b.base, b.cancel = context.WithCancelCause(context.Background())
	b.timer = time.AfterFunc(time.Hour, b.tick)
	return b, nil
}

// Submit waits for the request's turn and returns the engine's answer, or the
// engine's refusal as a Reply with its status. ctx must live until the Reply's
// body is closed; ending it frees the request's place in the queue, its seat in
// a batch or its slot.
//
// Errors: *backends.RetryError with reason queue_full, queue_timeout or
// no_replica; backends.ErrDeadline, ErrDraining, ErrConnect, ErrSilent,
// ErrBadReply; ctx's cause.
func (b *Batcher) Submit(ctx context.Context, r *backends.Request) (*backends.Reply, error) {
	alone := !b.merges(r)
	if !alone && len(r.Inputs) == 0 {
		return nil, fmt.Errorf("batcher: request %s has no inputs to merge", r.ID)
	}
	t := newTicket(ctx, b.opt, r, alone)
	if !b.turn(t, event{kind: evArrive, work: &t.work}) {
		return nil, backends.ErrDraining
	}
	reply, err := b.await(ctx, t)
	if reply == nil && t.race != nil {
		t.race.leave()
	}
	return reply, err
}

// await makes the calls that t is granted until there is an answer.
func (b *Batcher) await(ctx context.Context, t *ticket) (*backends.Reply, error) {
	for {
		if t.told {
			t.told = false
			if reply, err := b.next(ctx, t); reply != nil || err != nil {
				return reply, err
			}
			continue
		}
		select {
		case <-t.ready:
			if reply, err := b.next(ctx, t); reply != nil || err != nil {
				return reply, err
			}
		case reply := <-t.hedged():
			return reply, nil
		case <-ctx.Done():
			b.tell(event{kind: evCancel, work: &t.work})
			return nil, context.Cause(ctx)
		case <-b.ended:
			select { // there may be an answer from just before
			case <-t.ready:
				if m := t.message; m.batch == nil {
					return m.reply, m.err
				}
			default:
			}
			return nil, backends.ErrDraining
		}
	}
}

// SetReplicas states which replicas are ready now. One that left finishes what
// it runs; queued work stays queued.
func (b *Batcher) SetReplicas(rs []Replica) {
	rs = append([]Replica(nil), rs...)
	b.do(func(now time.Time) []Action { return b.core.SetReplicas(now, rs) })
}

// SetReading states what the engine of a replica says of itself now. An engine
// that has said something once, and then nothing for 3 s, counts as full.
func (b *Batcher) SetReading(replica string, said backends.Reading) {
	b.do(func(now time.Time) []Action { return b.core.SetReading(now, replica, said) })
}

// SetEta sets the batcher's patience: 0 sends at once, 1 waits as long as the
// latency target allows. Values outside 0..1 are clamped.
func (b *Batcher) SetEta(eta float64) {
	b.do(func(now time.Time) []Action { return b.core.SetEta(now, eta) })
}

// SetOfflineLimit bounds the offline rows (generation: sequences) in flight over
// replicas that are not Offline. 0 stops admitting them there; Offline replicas
// are unaffected. At first there is no limit.
func (b *Batcher) SetOfflineLimit(rows int) {
	b.do(func(now time.Time) []Action { return b.core.SetOfflineLimit(now, rows) })
}

// Signals returns what the batcher knows, as a value of its own. After Close it
// is the zero Signals.
func (b *Batcher) Signals(now time.Time) Signals {
	var s Signals
	b.do(func(time.Time) []Action { s = b.core.Signals(now); return nil })
	return s
}

// Close refuses new requests with ErrDraining and returns when the last one is
// answered. When ctx ends first the waiting ones fail with ErrDraining, merged
// calls are cancelled and ctx's cause is returned; answers that callers still
// read stay theirs.
func (b *Batcher) Close(ctx context.Context) error {
	b.do(func(now time.Time) []Action { return b.core.Drain(now) })
	var err error
	select {
	case <-b.ended:
	case <-ctx.Done():
		err = fmt.Errorf("batcher: drain %s: %w", b.opt.Model, context.Cause(ctx))
		b.do(func(now time.Time) []Action { return b.core.Abandon(now) })
	}
	b.cancel(backends.ErrDraining)
	b.workers.Wait()
	return err
}
