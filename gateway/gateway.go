// Package gateway is the HTTP edge: routes, keys, the raw relay with SSE, the
// files, batches and jobs endpoints, and the one table from errors to statuses.
//
// It relays bytes. An engine gets the body the client sent except the value of
// "model" and, on streams, stream_options.include_usage; a client gets the
// bytes the engine sent, "model" in them included. Who queues, merges and
// places a request is behind Submitter; what models there are behind Catalog.
package gateway

import (
	"context"
	"net/http"
	"time"

	"aloft/backends"
)

// Model is what the edge knows about a served model.
type Model struct {
	Name        string // the name in lists; aliases lead to it
	EngineModel string // what the engine calls it; "" = Name
	Endpoints   []backends.Endpoint
	Context     int // tokens of a prompt with its answer, 0 = not known
	Created     time.Time
	OwnedBy     string
	State       string // for people: the best state of its replicas
	Shape       string // slice shape of a replica
	// Usable says that a request sent now is served, at worst after a wake or a
	// start; /readyz wants one such model.
	Usable bool
	// Counter counts prompt tokens. One that also has Observe(bytes, tokens int)
	// is an estimate: it learns from usage and refuses no prompt as too long.
	Counter backends.Counter
	// Calibration is of the Counter; nil = nothing is known of it.
	Calibration *backends.Calibration

	// Adapter is set when the name asked for, or listed, is "model:adapter"; Name
	// is the model's.
	Adapter string
	// BySession and ByPrefix say which affinities its requests are given.
	BySession, ByPrefix bool
	// Overflow is set when the model has an external provider.
	Overflow bool
	// Split is set when some of its requests go to a variant.
	Split bool
}

// Catalog knows the models. Neither method may load one.
type Catalog interface {
	// Lookup finds a model by its name or an alias.
	Lookup(model string) (Model, bool)
	Models() []Model
}

// Submitter takes a request to its model's queue and waits for the first byte
// of the answer. It returns soon after ctx ends, with ctx's cause or an error
// that wraps it; Reply's Body fails soon after ctx ends, too. Errors are those
// of backends, or an *openai.Error to be answered as it stands.
type Submitter interface {
	Submit(ctx context.Context, req *backends.Request) (*backends.Reply, error)
}

// Filter selects decisions; zero fields select all.
type Filter struct {
	Since, Until time.Time
	About        string // a model, slice or job; "" = all
	Action       string // "" = all
	After        string // an id: only what is older than it
	Limit        int    // newest so many; always from 1 to 1001
}

// Decision is one of a list: its id, and a value ready for JSON.
type Decision struct {
	ID    string
	Value any
}

// Decisions lists why capacity moved, newest first. An error is the caller's.
type Decisions interface {
	Decisions(f Filter) ([]Decision, error)
}

// Reporter sums up where slice time went since a moment, as a value ready for JSON.
type Reporter interface{ Report(since time.Time) any }

// Status describes the whole server as a value ready for JSON.
type Status interface{ Status() any }

// Observer hears of each request once, when its last byte is out. It must not block.
type Observer interface{ Observe(o Outcome) }

// Outcome is how a request ended.
type Outcome struct {
	ID       string
	Model    string
	Tenant   string
	Key      string // id of the key; "" = none
	Endpoint backends.Endpoint
	Path     string // the client's
	Class    backends.Class
	Stream   bool
	// Status is what it came to: 499 when the client left, and the fault's status
	// when a stream broke after its 200.
	Status int
	Reason string // of a fault, from the closed list in fault.go; "" = none

	// PromptTokens and CompletionTokens are the engine's usage; where it reported
	// none, estimates: our count of the prompt and of a whole answer's text, and
	// the number of a stream's content events.
	PromptTokens     int
	CompletionTokens int

	Arrival    time.Time
	Deadline   time.Time     // zero = none
	FirstToken time.Duration // from Arrival to the first content; unary: to the whole answer; 0 = none
	Total      time.Duration // from Arrival to the end
	Bytes      int64         // of the answer's body
	Timing     backends.Timing
	Trace      Trace
}

// Trace is the W3C trace context of a request; the zero one: it is not traced.
// The engine got Span as its parent.
type Trace struct {
	ID      [16]byte
	Parent  [8]byte // the client's span; zero = the trace began here
	Span    [8]byte // the gateway's
	Sampled bool
	State   string // tracestate, as it came
}

// Deps is what the gateway needs of others. Catalog and Submitter must be there;
// routes of absent ones answer 404.
type Deps struct {
	Catalog   Catalog
	Submitter Submitter
	Observer  Observer
	Decisions Decisions
	Status    Status
	Reporter  Reporter
	Files     Files
	Batches   Batches
	Jobs      Jobs
	FineTunes FineTunes // with Jobs
	Keys      Keys      // nil: everybody may come in
	KeyAdmin  KeyAdmin  // of the admin API
	Recorder  Recorder
	Variants  Variants
	Metrics   http.Handler
}
