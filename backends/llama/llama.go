// Package llama is the engine behind `aloft engine llama`: llama.cpp in this
// process, without cgo, as a serve.Engine. Generation runs with continuous
// batching over sequence ids; one embeddings call is one llama batch, since
// merging calls is the batcher's business.
//
// One goroutine owns the model and makes every llama.cpp call (loop.go); a C++
// exception or abort still ends the process, which is why engines are child
// processes.
package llama

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"aloft/backends"
	"aloft/backends/openai"
	"aloft/backends/serve"
)

// Options say what to run. Zero means the default, where one is given.
type Options struct {
	Lib   string // folder of llama.cpp's shared libraries, or the cache of configs/engine/fetch.sh
	Model string // path of the GGUF file
	Name  string // what requests call the model; default the file's name without .gguf

	Context     int // tokens of a sequence at most (default 2048); the model's own limit holds too
	Slots       int // sequences that generate at once (default 8)
	Threads     int // default 1: more spin at barriers and are a disaster on busy cores
	BatchTokens int // tokens of one step (default 512): the most a prefill may delay the others
	MaxQueue    int // calls that wait for a slot or their turn (default 64)
}

func (o Options) withDefaults() Options {
	if o.Name == "" {
		o.Name = strings.TrimSuffix(filepath.Base(o.Model), ".gguf")
	}
	for _, d := range []struct {
		v   *int
		def int
	}{{&o.Context, 2048}, {&o.Slots, 8}, {&o.Threads, 1}, {&o.BatchTokens, 512}, {&o.MaxQueue, 64}} {
		if *d.v == 0 {
			*d.v = d.def
		}
	}
	return o
}

// Validate checks the options; zero values stand for their defaults.
func (o Options) Validate() error {
	o = o.withDefaults()
	for _, r := range []struct {
		name         string
		v, low, high int
	}{
		{"context", o.Context, 8, 1 << 20},
		{"slots", o.Slots, 1, 256}, // LLAMA_MAX_SEQ
		{"threads", o.Threads, 1, 256},
		{"batch_tokens", o.BatchTokens, 8, 1 << 14},
		{"max_queue", o.MaxQueue, 1, 1 << 16},
	} {
		if r.v < r.low || r.v > r.high {
			return fmt.Errorf("llama: %s is %d, want %d to %d", r.name, r.v, r.low, r.high)
		}
	}
	switch {
	case o.Model == "":
		return errors.New("llama: no model file given")
	case o.BatchTokens < o.Slots:
		return fmt.Errorf("llama: batch_tokens is %d, want at least one for each of %d slots", o.BatchTokens, o.Slots)
	}
	return nil
}

// Engine runs one model. It implements serve.Engine.
type Engine struct {
	opt    Options
	log    *slog.Logger
	info   serve.Info
	gens   chan *sequence   // never blocks: queued bounds it
	embeds chan *embedCall  // likewise
	moves  chan *transition // sleep and wake
	queued atomic.Int64     // calls that wait
	asleep atomic.Bool      // new calls are refused
	close  context.CancelFunc
	done   chan struct{} // closed when the loop has freed everything
}

// Open loads the library and the model and starts the engine.
func Open(opt Options, log *slog.Logger) (*Engine, error) {
	if err := opt.Validate(); err != nil {
		return nil, err
	}
	opt = opt.withDefaults()
	ctx, cancel := context.WithCancel(context.Background())
	e := &Engine{
		opt: opt, log: log, close: cancel,
		gens:   make(chan *sequence, opt.MaxQueue),
		embeds: make(chan *embedCall, opt.MaxQueue),
		moves:  make(chan *transition),
		done:   make(chan struct{}),
	}
	loaded := make(chan error)
	go newLoop(e).run(ctx, loaded)
	if err := <-loaded; err != nil {
		<-e.done
		return nil, err
	}
	return e, nil
}

// Close ends running calls with ErrDraining and frees the model.
func (e *Engine) Close() {
	e.close()
	<-e.done
}

// Info implements serve.Engine.
func (e *Engine) Info() serve.Info { return e.info }

// describe fills Info from the loaded model.
func (e *Engine) describe(md *model, g *GGUF) {
	name := g.Text("general.name")
	if name == "" {
		name = filepath.Base(e.opt.Model)
	}
	e.info = serve.Info{
		Model: e.opt.Name, Kind: "llama", Context: md.context, Dim: md.dim, Created: time.Now().Unix(),
		Note: fmt.Sprintf("%s (%s, %d-token vocabulary) in llama.cpp", name, g.Architecture(), md.tokens),
	}
	if !md.encoder {
		e.info.Slots, e.info.Echo = e.opt.Slots, true
		if md.chat == "" {
			e.info.Note += "; no chat template that llama.cpp knows: messages are joined by newlines"
		}
	}
}

// enter counts a call into the queue, or refuses it.
func (e *Engine) enter() error {
	if e.asleep.Load() {
		return errAsleep
	}
	if e.queued.Add(1) > int64(e.opt.MaxQueue) {
		e.queued.Add(-1)
		return &backends.RetryError{Err: backends.ErrOverloaded, After: time.Second, Reason: backends.ReasonQueueFull}
	}
	return nil
}

// Embed implements serve.Engine: one vector of length 1 (L2) per input.
func (e *Engine) Embed(ctx context.Context, req *serve.EmbedRequest) (*serve.EmbedResult, error) {
	if req.Dimensions < 0 || req.Dimensions > e.info.Dim {
		return nil, openai.Invalid("dimensions", openai.CodeValue, "dimensions is %d, this model has %d", req.Dimensions, e.info.Dim)
	}
	if len(req.Inputs) == 0 {
		return nil, openai.Invalid("input", openai.CodeValue, "input is empty")
	}
	if err := e.enter(); err != nil {
		return nil, err
	}
	call := &embedCall{ctx: ctx, req: req, done: make(chan error, 1)}
	e.embeds <- call
	select {
	case err := <-call.done:
		if err != nil {
			return nil, err
		}
		return &call.result, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-e.done:
		return nil, backends.ErrDraining
	}
}

// Generate implements serve.Engine.
func (e *Engine) Generate(ctx context.Context, req *serve.GenerateRequest, emit func(serve.Piece) error) (serve.Finish, error) {
	if e.info.Slots == 0 {
		return serve.Finish{}, openai.Invalid("model", openai.CodeValue, "%s only embeds", e.info.Model)
	}
	if err := e.enter(); err != nil {
		return serve.Finish{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // frees the slot when emit fails
	s := &sequence{ctx: ctx, req: req, out: newMailbox(), sampler: newSampler(req), hold: holdback{stops: req.Stop}}
	e.gens <- s
	for {
		select {
		case <-s.out.wake:
		case <-ctx.Done():
			return serve.Finish{}, context.Cause(ctx)
		case <-e.done:
			return serve.Finish{}, backends.ErrDraining
		}
		pieces, end := s.out.take()
		for _, p := range pieces {
			if err := emit(p); err != nil {
				return serve.Finish{}, err
			}
		}
		if end != nil {
			return end.finish, end.err
		}
	}
}

// newSampler applies OpenAI's defaults: temperature 1, top_p 1.
func newSampler(req *serve.GenerateRequest) sampler {
	s := sampler{temperature: req.Temperature, topP: req.TopP}
	if s.temperature < 0 {
		s.temperature = 1
	}
	if s.topP < 0 || s.topP > 1 {
		s.topP = 1
	}
	s.seed = rand.Uint64()
	if req.Seed != nil {
		s.seed = uint64(*req.Seed)
	}
	return s
}
