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

	// Path is the engine's route. Body is what the client sent, with "model"
	// already rewritten to what the engine calls it; ContentType is "" for JSON.
	Path        string
	ContentType string
	Body        []byte
	Header      Header // client headers that engines understand, and the trace

	// Stream is true when the client asked for SSE; WantUsage when it asked for
	// the extra usage frame (stream_options.include_usage).
	Stream    bool
	WantUsage bool

	// Inputs are the rows of a request that may share its engine call, raw JSON
	// values: a string, an array of token ids, or, of a score, a pair of strings;
	// nil for what goes alone.
	Inputs [][]byte
	// MergeKey is equal for requests of one endpoint that may share an engine call
	// (same dimensions and options); "" for what goes alone.
	MergeKey string
	Vectors  // of embeddings

	// Tokens is the prompt's size in tokens, over all Inputs; InputTokens has
	// one entry per row. Counted once, at the scan, by the model's Counter.
	Tokens      int
	InputTokens []int
	MaxTokens   int // upper bound on generated tokens, 0 = not given

	Place Placement

	Arrival  time.Time
	Deadline time.Time // zero = none
}

// Vectors says which form an embeddings request asked for.
type Vectors struct {
	// Base64 is true for encoding_format base64; encodings may share a call, each
	// caller gets its own.
	Base64 bool
	// Dimensions is how long each is to be; 0 = the model's own length.
	Dimensions int
}

// Header is a few header fields, in order; names are in canonical form.
type Header []Field

// Field is one of them.
type Field struct{ Name, Value string }

// Placement is what makes one replica better than another for a request.
// Session and Prefix are wishes: a replica with much less to do wins all the same.
type Placement struct {
	Adapter string // LoRA adapter that the replica must have; "" = none
	// Session is equal for requests that belong together, of one tenant; 0 = none.
	Session uint64
	// Prefix are chained hashes of the prompt's leading blocks: equal prefixes
	// have equal beginnings, so an engine that saw one has its KV blocks cached.
	Prefix []uint64
	// Overflow says that the request may go to the model's external provider.
	Overflow bool
	// Split is equal for requests that are to be served by the same side of a model
	// that has variants; 0 = it has none.
	Split uint64
}

// Counter counts the tokens of a text the way the model's tokenizer does.
type Counter interface{ Count(text []byte) int }

// Call is what one engine is asked to do: a whole request, or several merged.
type Call struct {
	Path        string
	ContentType string // "" = application/json
	Body        []byte
	Header      Header
	Stream      bool // the answer may be SSE
	ID          string
}

// Reply is an engine's answer. Body must be closed exactly once; closing it
// early cancels the call at the engine. For SSE each Read returns whole events
// (backends/openai.Events frames them), for everything else it is the body. It may
// be an EventReader or Sized besides; who wraps it keeps that.
type Reply struct {
	Status      int
	ContentType string
	Header      Header // what else the client may see; the adapter's allow-list decides
	Body        io.ReadCloser
	Timing      Timing
	// Dimensions is the length that each of its vectors was found to have; 0 = it
	// is not known.
	Dimensions int
}

// EventReader is what the Body of an SSE reply may have besides Read: whole
// events without a copy. more says that the next one is there already, so that
// nobody waits for it. An event is valid until the next call and Close.
type EventReader interface {
	NextEvent() (event []byte, more bool, err error)
}

// Sized is what a Reply's body may be too: Len is how many bytes are still to
// come, -1 if that is not known.
type Sized interface{ Len() int }

// Timing splits a request's time so that nobody has to guess (Server-Timing).
type Timing struct {
	Queue time.Duration // admission to dispatch
	Batch time.Duration // waiting for the batch to fill, part of Queue
	// Network is the part of a call that is not the engine's: connecting and
	// sending, and, where the engine says how long it took, all the rest.
	Network time.Duration
	Engine  time.Duration // from there to the engine's first byte
	// Replica is the replica that answered, BatchRows the rows of its call.
	Replica   string
	BatchRows int
	// Route is "" for a replica of ours, RouteOverflow for an external provider,
	// RouteCache when no engine was asked.
	Route string
	// Variant is who served a request of a model that has variants: "base", the name
	// of a variant, or "fallback", the model in a variant's place; "" = it has none.
	Variant string
	// Hedged says that a second replica was asked too.
	Hedged bool
	// PromptTokens of this caller (embeddings: apportioned from the merged call).
	PromptTokens int
}

// The routes of Timing other than a replica of ours.
const (
	RouteOverflow = "overflow"
	RouteCache    = "cache"
)

// Backend is the adapter to one engine. Do sends one call and returns when the
// engine's first byte is there (status known), or with an error. Cancelling ctx
// closes the connection, which every supported engine takes as a cancel.
// Errors: ErrConnect, ErrSilent, ErrBadReply, or ctx's cause. An HTTP error
// status is not an error: it is a Reply.
type Backend interface {
	Do(ctx context.Context, call *Call) (*Reply, error)
}
