package gateway

import (
	"context"
	"time"

	"aloft/backends"
	"aloft/backends/openai"
)

// Row is one request that comes from a batch file instead of a socket.
type Row struct {
	ID     string // request id; "" = a new one
	Tenant string
	Class  backends.Class
	Body   []byte // ours from here on
}

// Result is the complete answer to a Row. There is always one: faults have the
// status and the body that a client would have got.
type Result struct {
	Status     int
	RequestID  string
	Body       []byte // JSON
	Usage      openai.Usage
	Reason     string        // of a fault: the closed list of x-aloft-reason
	RetryAfter time.Duration // of a 429 or 503 that may pass
}

// Call takes a row the way a client's request takes after authentication: scan,
// queue, whole answer, observer. It ends with ctx.
func (s *Server) Call(ctx context.Context, e backends.Endpoint, row Row) Result {
	who := caller{id: row.ID, tenant: row.Tenant, class: row.Class, arrival: time.Now()}
	if who.id == "" {
		who.id = newID()
	}
	a, err := s.prepare(e, who, row.Body)
	if err == nil && a.req.Stream {
		err = invalid("stream", openai.CodeValue, "a batch row cannot be streamed")
	}
	if err != nil {
		s.refuse(e, who, err)
		return resultOf(who.id, whole{err: err, fault: faultOf(err)})
	}
	a.begin(ctx, nil)
	defer a.end()
	return resultOf(who.id, a.run())
}

func resultOf(id string, w whole) Result {
	r := Result{Status: w.status, RequestID: id, Body: w.body, Usage: w.usage}
	if w.err != nil {
		f := &w.fault
		r.Status, r.Body, r.Reason, r.RetryAfter = f.Status, f.body(), f.reason, f.retryAfter()
	}
	return r
}
