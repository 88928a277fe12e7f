package gateway

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"aloft/backends"
	"aloft/backends/openai"
	"aloft/jobs"
)

// The reasons of the x-aloft-reason header and of Outcome.Reason: a closed
// list, so that clients and alerts can branch on it. backends has those that a
// RetryError brings.
const (
	reasonDraining   = "draining"
	reasonConnect    = "engine_unreachable"
	reasonSilent     = "engine_silent"
	reasonBadReply   = "engine_bad_reply"
	reasonEngine     = "engine_error" // the engine answered with an error of its own
	reasonTooSlow    = "request_timeout"
	reasonClientGone = "client_gone"
	reasonBadRequest = "bad_request"
	reasonInternal   = "internal"
	reasonRateLimit  = "rate_limit"  // of the key, per minute or in parallel
	reasonBudget     = "budget"      // the key's tokens of this month
	reasonNotAllowed = "not_allowed" // the key may not do this
	reasonConns      = "too_many_connections"
	reasonStorage    = "storage_full" // no room on disk, or the quota of it used up
)

var reasons = []string{
	backends.ReasonQueueFull, backends.ReasonQueueTimeout, backends.ReasonLate, backends.ReasonNoReplica, backends.ReasonLoading, reasonDraining, reasonConnect,
	reasonSilent, reasonBadReply, reasonEngine, reasonTooSlow, reasonClientGone, reasonBadRequest, reasonInternal,
	reasonRateLimit, reasonBudget, reasonNotAllowed, reasonConns, reasonStorage,
}

// statusClientGone is nginx's status for a client that left before the answer.
const statusClientGone = 499

// errTooSlow is the cause of a context whose RequestTimeout passed; errTooLate
// of one whose client had given a deadline.
var (
	errTooSlow error = cause{"the request took longer than the server allows", context.DeadlineExceeded}
	errTooLate error = cause{"the request's deadline passed", context.DeadlineExceeded}
)

// errUnfinished is a stream that ended without a finish_reason: nobody can know
// whether the text is whole, so it is not called so (docs/failures.md F3, F4).
var errUnfinished = cause{"the engine's stream ended without a finish reason", backends.ErrBadReply}

// errBrokeOff is added to whatever ended the reading of a reply too early.
var errBrokeOff = cause{"the engine's answer broke off", backends.ErrBadReply}

type cause struct {
	text string
	is   error
}

func (c cause) Error() string { return c.text }
func (c cause) Unwrap() error { return c.is }

// fault is an error on its way to a client.
type fault struct {
	openai.Error
	reason string        // for 429 and 5xx
	after  time.Duration // when to try again; 429 and 503 always say it
	final  bool          // a retry cannot help, or would burn the same GPU time again
	raw    []byte        // an engine's own error body, sent instead of Error
	quota  *Quota        // where the key stands, of a limit's fault
}

const noRoom = "the server has no room on disk for this"

// table is the one place where an error becomes a status (OpenAI's API
// reference). The first row whose error is in the chain counts.
var table = []struct {
	is            error
	status        int
	kind, code    string
	reason        string
	final, hidden bool // hidden: the client gets text, not the error's words
	text          string
}{
	{backends.ErrClientGone, statusClientGone, "invalid_request_error", "", reasonClientGone, true, true, "the client closed the connection"},
	{backends.ErrUnknownModel, 404, "invalid_request_error", "model_not_found", "", true, false, ""},
	{backends.ErrTooLong, 400, "invalid_request_error", "context_length_exceeded", "", true, false, ""},
	{backends.ErrDeadline, 429, "rate_limit_error", "queue_timeout", backends.ReasonQueueTimeout, false, false, ""},
	{backends.ErrOverloaded, 429, "rate_limit_error", "overloaded", backends.ReasonQueueFull, false, false, ""},
	{backends.ErrDraining, 503, "server_error", "service_unavailable", reasonDraining, false, true, "the server is shutting down"},
	{backends.ErrUnavailable, 503, "server_error", "service_unavailable", backends.ReasonNoReplica, false, false, ""},
	{backends.ErrConnect, 502, "server_error", "bad_gateway", reasonConnect, false, true, "the engine could not be reached"},
	{backends.ErrSilent, 504, "server_error", "gateway_timeout", reasonSilent, false, true, "the engine did not answer in time"},
	{jobs.ErrNotFound, 404, "invalid_request_error", "not_found", "", true, false, ""},
	{jobs.ErrFinished, 400, "invalid_request_error", "already_finished", "", true, false, ""},
	{jobs.ErrConflict, 409, "invalid_request_error", "conflict", "", false, false, ""},
	{jobs.ErrClosed, 503, "server_error", "service_unavailable", reasonDraining, false, true, "the server is shutting down"},
	{syscall.ENOSPC, 507, "server_error", "insufficient_storage", reasonStorage, true, true, noRoom},
	{syscall.EDQUOT, 507, "server_error", "insufficient_storage", reasonStorage, true, true, noRoom},
	{syscall.EFBIG, 507, "server_error", "insufficient_storage", reasonStorage, true, true, noRoom},
	{context.DeadlineExceeded, 504, "server_error", "gateway_timeout", reasonTooSlow, true, false, ""},
	{openai.ErrDimensions, 502, "server_error", "bad_gateway", reasonBadReply, true, false, ""},
	{errUnfinished, 502, "server_error", "bad_gateway", reasonBadReply, false, false, ""},
	{errBrokeOff, 502, "server_error", "bad_gateway", reasonBadReply, false, true, "the engine's answer broke off"},
	{backends.ErrBadReply, 502, "server_error", "bad_gateway", reasonBadReply, false, true, "the engine's answer was damaged"},
}

// faultOf finds err in the table. What is not there is a bug of ours: 500, and
// its words stay in the log.
func faultOf(err error) fault {
	var own *openai.Error
	if errors.As(err, &own) {
		return fault{Error: *own, reason: reasonOf(own.Status)}
	}
	var bad *jobs.InvalidError
	if errors.As(err, &bad) {
		return fault{Error: *openai.Invalid(bad.Param, openai.CodeValue, "%s", bad.Error()), reason: reasonBadRequest}
	}
	var limit *LimitError
	if errors.As(err, &limit) {
		return limitFault(limit)
	}
	var engine engineError
	if errors.As(err, &engine) {
		return engine.f
	}
	var retry *backends.RetryError
	if !errors.As(err, &retry) {
		retry = &backends.RetryError{}
	}
	for _, row := range table {
		if !errors.Is(err, row.is) {
			continue
		}
		f := fault{reason: row.reason, after: retry.After, final: row.final}
		f.Error = openai.Error{Status: row.status, Type: row.kind, Code: row.code, Message: row.text}
		if !row.hidden {
			f.Message = err.Error()
		}
		if retry.Reason != "" {
			f.reason = retry.Reason
		}
		return f
	}
	f := fault{reason: reasonInternal, final: true}
	f.Error = openai.Error{Status: 500, Type: "server_error", Code: "internal_error", Message: "internal error"}
	return f
}

// budgetSoon is up to which wait a budget is worth another try: it is held by
// requests under way, or the month is all but over.
const budgetSoon = time.Minute

// limitFault is the answer to a key that is used up: for this minute, or for
// this month, where clients that retry would only ask in vain.
func limitFault(e *LimitError) fault {
	f := fault{reason: reasonRateLimit, after: e.After, quota: &e.Quota}
	f.Error = openai.Error{Status: 429, Type: "requests", Code: "rate_limit_exceeded", Message: e.Error()}
	switch e.Kind {
	case "tokens":
		f.Type = "tokens"
	case "budget":
		f.Type, f.Code, f.reason = "insufficient_quota", "insufficient_quota", reasonBudget
		f.final = e.After > budgetSoon
	}
	f.final = f.final || e.After < 0 // larger than the whole limit
	return f
}

// reasonOf is the reason of an error that came with its status.
func reasonOf(status int) string {
	if status == 403 {
		return reasonNotAllowed
	}
	if status < 500 && status != 429 {
		return reasonBadRequest
	}
	return reasonEngine
}

// body is what a client of an endpoint gets to read; "" = of none.
func (f *fault) body(e backends.Endpoint) []byte {
	if f.raw != nil {
		return f.raw
	}
	return openai.AppendErrorFor(nil, e, &f.Error)
}

// retryAfter is the wait that a 429 or 503 announces: at least a second, since
// a shorter one would be rounded to none in Retry-After.
func (f *fault) retryAfter() time.Duration {
	if f.Status != 429 && f.Status != 503 || f.final {
		return 0
	}
	return max(f.after, time.Second)
}

// because replaces an error that only says that ctx ended by why it did.
func because(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// brokeOff marks an error of reading a reply.
func brokeOff(err error) error {
	if err == nil || errors.Is(err, backends.ErrBadReply) {
		return err
	}
	return fmt.Errorf("%w: %w", errBrokeOff, err)
}

func invalid(param, code, format string, args ...any) error {
	return openai.Invalid(param, code, format, args...)
}
