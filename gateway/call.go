package gateway

import (
	"context"
	"slices"
	"time"

	"aloft/backends"
	"aloft/backends/openai"
	"aloft/jobs"
)

// errRowKey refuses the rows of a key that may not be used any more.
var errRowKey = &openai.Error{Status: 401, Type: "invalid_request_error", Code: "invalid_api_key",
	Message: "the key that made this batch has expired or was revoked"}

// Call implements jobs.Caller: a row goes the way of a client's request after
// authentication (scan, queue, whole answer, observer), at class offline. Faults
// are results with the status and body that a client would have got, except
// those that wait for capacity, which are a *backends.RetryError, and the end of
// ctx, which is its cause.
func (s *Server) Call(ctx context.Context, row jobs.Row) (jobs.Result, error) {
	who := caller{id: row.ID, tenant: row.Tenant, class: backends.Offline, row: true, endpoint: row.Endpoint, path: row.Endpoint.Path(), arrival: time.Now()}
	if who.id == "" {
		who.id = newID()
	}
	var a *ask
	var err error
	if s.deps.Keys != nil && row.Key != "" { // a batch from before there were keys has none
		ok := false
		if who.grant, ok = s.deps.Keys.ByID(row.Key, who.arrival); !ok {
			err = errRowKey
		}
	}
	heavy := weight(row.Body)
	defer func() { s.bodies.Add(-heavy) }()
	if s.bodies.Add(heavy) > s.bodiesLimit() && err == nil {
		err = errBodies
	}
	if err == nil {
		a, err = s.prepare(&who, slices.Clip(row.Body)) // what lies behind it is not ours
	}
	if err == nil && a.req.Stream {
		err = invalid("stream", openai.CodeValue, "a batch row cannot be streamed")
	}
	if err == nil {
		_, err = a.reserve()
	}
	if err != nil {
		s.refuse(&who, err)
		f := faultOf(err)
		if wait := f.retryAfter(); wait > 0 { // the budget is held by rows under way
			return jobs.Result{}, &backends.RetryError{Err: err, After: wait, Reason: f.reason}
		}
		return jobs.Result{Status: f.Status, RequestID: who.id, Body: f.body(row.Endpoint), Final: f.final}, nil
	}
	// A row whose batch was cancelled has left as a client does: 499, no fault of ours.
	a.seat.fd = -1
	a.begin()
	defer a.end()
	defer context.AfterFunc(ctx, func() { a.cancel(backends.ErrClientGone) })()
	reply, err := s.deps.Submitter.Submit(&a.life, &a.req)
	w := a.whole(nil, reply, err)
	f := &w.fault
	switch wait := f.retryAfter(); {
	case ctx.Err() != nil:
		return jobs.Result{}, context.Cause(ctx)
	case wait > 0:
		return jobs.Result{}, &backends.RetryError{Err: w.err, After: wait, Reason: f.reason}
	case w.err != nil:
		return jobs.Result{Status: f.Status, RequestID: who.id, Body: f.body(row.Endpoint), Final: f.final}, nil
	}
	return jobs.Result{Status: a.out.Status, RequestID: who.id, Body: w.body, Tokens: w.usage.Total}, nil
}
