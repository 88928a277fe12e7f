package backends

import (
	"errors"
	"fmt"
	"time"
)

// The errors that layers share; gateway has the one table that turns them into
// statuses. Test with errors.Is.
var (
	// ErrOverloaded: capacity exists but is contended (429).
	ErrOverloaded = errors.New("overloaded")
	// ErrUnavailable: there is no capacity now (503).
	ErrUnavailable = errors.New("no replica available")
	// ErrUnknownModel: no such model is configured (404).
	ErrUnknownModel = errors.New("unknown model")
	// ErrDeadline: the request's own deadline passed while it waited (429 from a queue).
	ErrDeadline = errors.New("deadline passed in the queue")
	// ErrClientGone: the client left; nobody reads the answer (499 in logs).
	ErrClientGone = errors.New("client went away")
	// ErrDraining: the server is stopping (503).
	ErrDraining = errors.New("draining")
	// ErrConnect: the engine could not be reached (502).
	ErrConnect = errors.New("engine unreachable")
	// ErrSilent: the engine took the call and sent nothing in time (504).
	ErrSilent = errors.New("engine silent")
	// ErrBadReply: the engine's answer broke the protocol (502).
	ErrBadReply = errors.New("bad reply from engine")
	// ErrTooLong: the prompt does not fit the model's context (400).
	ErrTooLong = errors.New("prompt exceeds the context length")
)

// The reasons of a RetryError: a closed list, which clients and alerts may
// branch on. gateway has the others of its x-aloft-reason header.
const (
	ReasonQueueFull    = "queue_full"
	ReasonQueueTimeout = "queue_timeout"
	ReasonLate         = "would_be_late" // it would not be answered within its target
	ReasonNoReplica    = "no_replica"
	ReasonLoading      = "loading"
)

// RetryError is an error after which trying again may help, and when.
type RetryError struct {
	Err    error         // ErrOverloaded or ErrUnavailable
	After  time.Duration // how long to wait, at least
	Reason string        // one of those above, or of the gateway's
}

// Error implements error.
func (e *RetryError) Error() string {
	return fmt.Sprintf("%v (%s), retry after %v", e.Err, e.Reason, e.After)
}

// Unwrap returns the shared error.
func (e *RetryError) Unwrap() error { return e.Err }
