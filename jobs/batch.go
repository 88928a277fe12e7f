package jobs

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"aloft/backends"
)

// BatchStatus is OpenAI's status of a batch, kept apart from the job's State: a
// batch can be in_progress while its job is queued, since rows ride in ready
// replicas whether or not a slice has been lent.
type BatchStatus string

// The eight statuses of OpenAI's batch object.
const (
	Validating      BatchStatus = "validating"
	BatchFailed     BatchStatus = "failed"
	InProgress      BatchStatus = "in_progress"
	Finalizing      BatchStatus = "finalizing"
	Completed       BatchStatus = "completed"
	BatchExpired    BatchStatus = "expired"
	Cancelling      BatchStatus = "cancelling"
	BatchCancelled  BatchStatus = "cancelled"
	maxBatchErrors              = 100 // errors kept of one bad file; one more says how many there are beyond
	maxMetadata                 = 16  // pairs; key 64, value 512 characters (OpenAI)
	maxMetadataKey              = 64
	maxMetadataText             = 512
)

var batchNext = map[BatchStatus][]BatchStatus{
	Validating: {BatchFailed, InProgress, Cancelling},
	InProgress: {Finalizing, BatchExpired, BatchFailed, Cancelling},
	Finalizing: {Completed, BatchFailed, Cancelling},
	Cancelling: {BatchCancelled},
}

// Terminal reports whether the status is final.
func (s BatchStatus) Terminal() bool { return len(batchNext[s]) == 0 }

// Batch is an OpenAI batch. ID, Tenant, Model and Created repeat the job's.
type Batch struct {
	ID, Tenant string
	Key        string // id of the API key that made it; "" = none
	Model      string // known after validation: every row names the same
	Created    time.Time

	InputFile string
	Endpoint  string // the route, for example "/v1/embeddings"
	Window    string // completion_window as given, for example "24h"
	Metadata  map[string]string
	OutputTTL time.Duration // output_expires_after, 0 = kept

	Status     BatchStatus
	Stamps     BatchTimes
	OutputFile string      // "" until the end, and if no row succeeded
	ErrorFile  string      // "" until the end, and if no row failed
	Errors     []LineError // why validation failed: the first 100, then how many more
	Counts     Counts
	Usage      Usage
	Log        RowLog
}

// BatchTimes are the moments at which each status was entered; zero = not.
// Expires is the end of the completion window, fixed at creation.
type BatchTimes struct {
	InProgress, Expires, Finalizing, Completed, Failed, Expired, Cancelling, Cancelled time.Time
}

// LineError is one fault of an input file.
type LineError struct {
	Code    string // for example "invalid_json_line", "duplicate_custom_id"
	Message string
	Param   string // "" = null
	Line    int    // from 1; 0 = the whole file
}

// Counts are OpenAI's request_counts. They never fall, and Completed + Failed
// equals Total at the end.
type Counts struct{ Total, Completed, Failed int }

// Usage sums the tokens of all answered rows.
type Usage struct{ Prompt, Completion, Total int64 }

// RowLog says how much of the local output files is committed and which rows
// they hold: bytes beyond the offsets are cut off at a restart and their rows
// run again.
type RowLog struct {
	Output, Errors int64  // committed bytes of the two files
	Done           []byte // bit i = row i is in one of them
}

// BatchSpec asks for a batch.
type BatchSpec struct {
	InputFile string
	Endpoint  string // route; one of Endpoints()
	Window    string // a Go duration; OpenAI's clients send "24h"
	Metadata  map[string]string
	OutputTTL time.Duration // 0 = the output is kept
	Tenant    string
	Key       string // id of the API key on which its rows run; "" = none
	Priority  int
	// Idempotency is the user's key: asked for twice, made once; "" = none.
	Idempotency string
}

var batchEndpoints = []backends.Endpoint{backends.Chat, backends.Completions, backends.Embeddings, backends.Responses}

func endpointOf(route string) (backends.Endpoint, bool) {
	for _, e := range batchEndpoints {
		if e.Path() == route {
			return e, true
		}
	}
	return "", false
}

// Row is one request of a batch. Its class is offline: the caller says so.
type Row struct {
	Endpoint backends.Endpoint
	Tenant   string
	Key      string // id of the API key that made the batch; "" = none
	Body     []byte // the row's "body" object; read only, at every attempt the same bytes
	ID       string // request id, the same at every attempt
}

// Result is the reply to a row.
type Result struct {
	Status    int // HTTP status as a client would have seen it
	RequestID string
	Body      []byte // JSON
	Tokens    int    // total tokens; 0 = read them from the body's usage
	Final     bool   // whatever its status, another try would end the same
}

// Caller sends one row through the same function that serves clients after
// authentication, at class offline. An error means that there is no reply; a
// *backends.RetryError says when to come back.
type Caller interface {
	Call(ctx context.Context, row Row) (Result, error)
}

// enter moves the batch to s and stamps the moment.
func (b *Batch) enter(s BatchStatus, now time.Time) {
	if !slices.Contains(batchNext[b.Status], s) {
		panic(fmt.Sprintf("BUG: batch %s cannot step from %s to %s", b.ID, b.Status, s))
	}
	b.Status = s
	switch s {
	case InProgress:
		b.Stamps.InProgress = now
	case Finalizing:
		b.Stamps.Finalizing = now
	case Completed:
		b.Stamps.Completed = now
	case BatchFailed:
		b.Stamps.Failed = now
	case BatchExpired:
		b.Stamps.Expired = now
	case Cancelling:
		b.Stamps.Cancelling = now
	case BatchCancelled:
		b.Stamps.Cancelled = now
	}
}

// ended maps a final batch status to the job's state.
func (s BatchStatus) ended() State {
	switch s {
	case Completed:
		return Succeeded
	case BatchExpired:
		return Expired
	case BatchCancelled:
		return Cancelled
	}
	return Failed
}

// Validate checks what can be refused at once, without reading the file.
func (s BatchSpec) Validate() error {
	if _, ok := endpointOf(s.Endpoint); !ok {
		return invalid("endpoint", "%q is not one of %v", s.Endpoint, Endpoints())
	}
	if d, err := time.ParseDuration(s.Window); err != nil || d <= 0 || d > maxWindow {
		return invalid("completion_window", "%q is not a duration up to %v, for example \"24h\"", s.Window, maxWindow)
	}
	if s.OutputTTL < 0 {
		return invalid("output_expires_after.seconds", "%v is negative", s.OutputTTL)
	}
	return cmp.Or(validKey(s.Idempotency), validMetadata(s.Metadata))
}

// maxWindow bounds how long a batch can hold disk and a place in the queue.
const maxWindow = 14 * 24 * time.Hour

// Endpoints lists the routes that a batch may name.
func Endpoints() []string {
	var out []string
	for _, e := range batchEndpoints {
		out = append(out, e.Path())
	}
	return out
}
