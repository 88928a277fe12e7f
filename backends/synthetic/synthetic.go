// Package synthetic is the timed engine: it speaks OpenAI and takes the time
// that a law says, with a KV budget, continuous batching, sleep and wake, and
// faults on cue, but runs no model. Benchmarks of everything around engines use
// it; its answers are made up, and its model card says so.
package synthetic

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"sync/atomic"
	"time"

	"aloft/backends/openai"
	"aloft/backends/serve"
	"aloft/backends/synthetic/law"
)

// Options of a timed engine.
type Options struct {
	Model   string // the name that requests use
	Law     law.Law
	Dim     int // length of an embedding; default 64
	Context int // tokens of a prompt with its answer; default 8192
	// OutputTokens fixes how long an answer is when max_tokens does not cut it;
	// 0 = 16 to 143, by the prompt's hash.
	OutputTokens int
	MaxQueue     int // as serve.Options.MaxQueue

	// Fault befalls every FaultEvery-th inference request; 0 = none. A request's
	// x-synthetic-fault header does so for that request.
	Fault      string
	FaultEvery int
	// Crash ends the process for the fault "crash"; nil = exit status 3.
	Crash func()

	ShutdownGrace time.Duration // as serve.Options.ShutdownGrace
}

// Validate says which option is out of range.
func (o Options) Validate() error {
	switch {
	case o.Model == "":
		return errors.New("synthetic: model has no name")
	case o.Dim < 0 || o.Context < 0 || o.OutputTokens < 0 || o.FaultEvery < 0:
		return errors.New("synthetic: dim, context, output_tokens or fault_every is negative")
	case o.FaultEvery > 0 && !faults[o.Fault]:
		return fmt.Errorf("synthetic: fault is %q, want one of crash, hang, error500, reset-mid-stream, truncate", o.Fault)
	}
	if err := o.Law.Validate(); err != nil {
		return fmt.Errorf("synthetic: %w", err)
	}
	return nil
}

// Serve loads (waits the law's start time) and answers on ln until ctx ends. It
// closes ln.
func Serve(ctx context.Context, ln net.Listener, o Options, log *slog.Logger) error {
	defer ln.Close()
	if err := o.Validate(); err != nil {
		return err
	}
	if o.Crash == nil {
		o.Crash = func() { os.Exit(3) }
	}
	e := newEngine(o, exactly)
	srv, err := serve.New(e, serve.Options{MaxQueue: o.MaxQueue, ShutdownGrace: o.ShutdownGrace, Wrap: faulty(o)}, log)
	if err != nil {
		return err
	}
	if err := e.wait(ctx, time.Now().Add(o.Law.Start())); err != nil {
		return nil // stopped while it loaded
	}
	loop, stop := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		e.decode(loop)
	}()
	err = srv.Serve(ctx, ln)
	stop() // only now: calls that outlive ctx still decode
	<-ended
	return err
}

// engine implements serve.Engine.
type engine struct {
	opt     Options
	created int64
	wait    func(ctx context.Context, until time.Time) error

	asleep atomic.Bool

	turn chan struct{} // held by the one batch that computes
	free time.Time     // when the last batch ends; belongs to the holder of turn

	join chan *sequence // to decode, which owns the sequences
	over chan struct{}  // closed when decode has ended
}

func newEngine(o Options, wait func(context.Context, time.Time) error) *engine {
	if o.Dim == 0 {
		o.Dim = 64
	}
	if o.Context == 0 {
		o.Context = 8192
	}
	return &engine{opt: o, created: time.Now().Unix(), wait: wait,
		turn: make(chan struct{}, 1), join: make(chan *sequence), over: make(chan struct{})}
}

// Info implements serve.Engine.
func (e *engine) Info() serve.Info {
	return serve.Info{
		Model: e.opt.Model, Kind: "synthetic", Note: "synthetic: timed engine, no model; its answers mean nothing",
		Context: e.opt.Context, Dim: e.opt.Dim, Slots: e.opt.Law.Slots, Created: e.created,
		KVTokens: e.opt.Law.KVTokens, KVBlock: e.opt.Law.BlockTokens,
	}
}

// Embed implements serve.Engine: batches compute one after the other.
func (e *engine) Embed(ctx context.Context, req *serve.EmbedRequest) (*serve.EmbedResult, error) {
	dim := e.opt.Dim
	if req.Dimensions > dim {
		return nil, openai.Invalid("dimensions", openai.CodeValue, "'dimensions' is %d, this model gives at most %d", req.Dimensions, dim)
	}
	if req.Dimensions > 0 {
		dim = req.Dimensions
	}
	lengths, total := make([]int, len(req.Inputs)), 0
	for i, in := range req.Inputs {
		lengths[i] = rowTokens(in)
		total += lengths[i]
		if lengths[i] > e.opt.Context {
			return nil, tooLong(lengths[i], e.opt.Context)
		}
	}
	arrived := time.Now()
	select {
	case e.turn <- struct{}{}: // waiting senders are served in order
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-e.turn }()
	// A batch that waited begins when the one before it was due, not when we
	// got to know: otherwise every hand-over would slow the engine down a little.
	start := arrived
	if e.free.After(start) {
		start = e.free
	}
	due := start.Add(e.opt.Law.Batch(e.opt.Law.BatchTokens(lengths)))
	if err := e.wait(ctx, due); err != nil {
		e.free = time.Now()
		return nil, err
	}
	e.free = due
	res := &serve.EmbedResult{Vectors: make([][]float32, len(req.Inputs)), PromptTokens: total}
	for i, in := range req.Inputs {
		res.Vectors[i] = vector(in, dim)
	}
	return res, nil
}

// Sleep implements serve.Engine.
func (e *engine) Sleep(ctx context.Context) error { return e.become(ctx, true, e.opt.Law.Sleep()) }

// Wake implements serve.Engine.
func (e *engine) Wake(ctx context.Context) error { return e.become(ctx, false, e.opt.Law.Wake()) }

// become takes its time only if there is something to change.
func (e *engine) become(ctx context.Context, asleep bool, d time.Duration) error {
	if e.asleep.Load() == asleep {
		return nil
	}
	err := e.wait(ctx, time.Now().Add(d))
	if err == nil {
		e.asleep.Store(asleep)
	}
	return err
}

// textTokens is the usual rule of thumb: four bytes a token.
func textTokens(s string) int { return max(1, (len(s)+3)/4) }

func rowTokens(in serve.Input) int {
	if in.Tokens != nil {
		return len(in.Tokens)
	}
	return textTokens(in.Text)
}

// hash tells texts and token lists apart and is the same on every run.
func hash(in serve.Input) uint64 {
	h := fnv.New64a()
	h.Write([]byte(in.Text)) // a hash takes every write
	for _, id := range in.Tokens {
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(id)))
	}
	return h.Sum64()
}

// vector is a unit vector drawn from the input's hash: equal inputs have equal
// vectors, others point anywhere. A shorter one is the head of a longer one,
// normalised again, as with models trained for it.
func vector(in serve.Input, dim int) []float32 {
	rng := rand.New(rand.NewPCG(hash(in), 1))
	v, norm := make([]float32, dim), 0.0
	for i := range v {
		f := rng.NormFloat64()
		v[i] = float32(f)
		norm += f * f
	}
	for i := range v {
		v[i] /= float32(math.Sqrt(norm))
	}
	return v
}
