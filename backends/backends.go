// Package backends is the engine contract: what a request is once it has been
// scanned, how one call reaches one engine, and which errors the layers share.
//
// It does no I/O. Adapters (backends/openaihttp) turn a Call into bytes on a
// socket; backends/openai knows the wire format. Who queues, merges and places
// requests is the batcher's business, not this package's.
package backends

import (
	"context"
	"io"
	"time"
)

// Endpoint names an OpenAI route by what an engine has to do for it.
type Endpoint string

// The endpoints that Aloft serves. Path is the route both outside and at the engine.
const (
	Chat        Endpoint = "chat"
	Completions Endpoint = "completions"
	Embeddings  Endpoint = "embeddings"
)

// Path returns the engine's route, for example "/v1/embeddings".
func (e Endpoint) Path() string {
	switch e {
	case Chat:
		return "/v1/chat/completions"
	case Completions:
		return "/v1/completions"
	}
	return "/v1/embeddings"
}

// Merged reports whether calls of several clients may share one engine call.
// Generation is never merged: engines batch it better.
func (e Endpoint) Merged() bool { return e == Embeddings }

// Class is the traffic class of a request; a lower value goes first.
type Class uint8

// The traffic classes. Rows of batch jobs are Offline.
const (
	Interactive Class = iota
	Standard
	Offline
	Classes // how many there are
)

// String returns the word that configuration, metrics and logs use.
func (c Class) String() string {
	return [...]string{"interactive", "standard", "offline", "none"}[min(c, Classes)]
}

// Request is one client's request after the scan. It owns its bytes and is not
// changed after Submit.
type Request struct {
	ID       string
	Endpoint Endpoint
	Model    string // the served model's name, aliases resolved
	Tenant   string // who pays; "" without keys
	Class    Class

	// Body is the JSON object the client sent, with "model" already rewritten
	// to what the engine calls it.
	Body []byte
	// Stream is true when the client asked for SSE; WantUsage when it asked for
	// the extra usage frame (stream_options.include_usage).
	Stream    bool
	WantUsage bool

	// Inputs are the raw JSON values of an embeddings request's input, one per
	// row (a string or an array of token ids); nil for generation.
	Inputs [][]byte
	// MergeKey is equal for embedding requests that may share an engine call
	// (same dimensions, encoding and options); "" for generation.
	MergeKey string
	// Base64 is true when an embeddings request asked for encoding_format
	// base64; encodings may share a call, each caller gets its own.
	Base64 bool

	// Tokens is the prompt's size in tokens, over all Inputs; InputTokens has
	// one entry per row. Counted once, at the scan, by the model's Counter.
	Tokens      int
	InputTokens []int
	MaxTokens   int // upper bound on generated tokens, 0 = not given

	Arrival  time.Time
	Deadline time.Time // zero = none
}

// Counter counts the tokens of a text the way the model's tokenizer does.
type Counter interface{ Count(text []byte) int }

// Call is what one engine is asked to do: a whole request, or several merged.
type Call struct {
	Path   string
	Body   []byte
	Stream bool // the answer is SSE
	ID     string
}

// Reply is an engine's answer. Body must be closed exactly once; closing it
// early cancels the call at the engine. For SSE each Read returns whole events
// (backends/openai.Events frames them), for everything else it is the body.
type Reply struct {
	Status      int
	ContentType string
	Body        io.ReadCloser
	Timing      Timing
}

// Timing splits a request's time so that nobody has to guess (Server-Timing).
type Timing struct {
	Queue  time.Duration // admission to dispatch
	Batch  time.Duration // waiting for the batch to fill, part of Queue
	Engine time.Duration // dispatch to the engine's first byte
	// Replica is the replica that answered, BatchRows the rows of its call.
	Replica   string
	BatchRows int
	// PromptTokens of this caller (embeddings: apportioned from the merged call).
	PromptTokens int
}

// Backend is the adapter to one engine. Do sends one call and returns when the
// engine's first byte is there (status known), or with an error. Cancelling ctx
// closes the connection, which every supported engine takes as a cancel.
// Errors: ErrConnect, ErrSilent, ErrBadReply, or ctx's cause. An HTTP error
// status is not an error: it is a Reply.
type Backend interface {
	Do(ctx context.Context, call *Call) (*Reply, error)
}
