package loadgen

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"
)

// Why a request was given up; the cause of its context.
var (
	errTimeout = errors.New("timeout of the request passed")
	errDrain   = errors.New("drain deadline of the run passed")
)

const (
	// idleTimeout closes idle connections before common servers do (uvicorn and
	// Node after 5 s): a request sent while the server closes would be lost, and
	// this client does not retry.
	idleTimeout = 4 * time.Second
	// linger is how long the end of a response may trail its last event before
	// the connection is given up instead of kept.
	linger = 250 * time.Millisecond
	// maxBody bounds a plain answer, in bytes: 8,192 embeddings of 384 numbers
	// with some 10 digits fit.
	maxBody = 64 << 20
	// maxProblem bounds what is kept of an error, in bytes.
	maxProblem = 240
)

// shot is one request that is due.
type shot struct {
	phase    int
	intended time.Duration
	body     []byte
	want     expect // of a whole answer
	waited   bool
}

// client sends the requests of one workload. It never retries and never
// follows a redirect: one shot is one request.
type client struct {
	w      *Workload
	index  int
	start  time.Time // of the run
	http   *http.Client
	header http.Header
	stock  *stock
}

// dialer opens a connection; nil means TCP.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

func newClient(w *Workload, index int, start time.Time, dial dialer) *client {
	if dial == nil {
		dial = (&net.Dialer{Timeout: w.Timeout}).DialContext
	}
	c := &client{w: w, index: index, start: start}
	c.header = http.Header{"Content-Type": {"application/json"}, "User-Agent": {"aloft-load/1"}}
	if w.Key != "" {
		c.header.Set("Authorization", "Bearer "+w.Key)
	}
	for k, v := range w.Headers {
		c.header.Set(k, v)
	}
	c.http = &http.Client{
		Transport: &http.Transport{
			DialContext:         dial,
			MaxIdleConns:        w.MaxInFlight,
			MaxIdleConnsPerHost: w.MaxInFlight,
			IdleConnTimeout:     idleTimeout,
			DisableCompression:  true,
			ReadBufferSize:      64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c
}

// now is the time since the start of the run.
func (c *client) now() time.Duration { return time.Since(c.start) }

// send makes the request and says how it ended. It returns within the
// request's timeout, or soon after ctx ends.
func (c *client) send(ctx context.Context, sh shot) sample {
	s := sample{workload: c.index, phase: sh.phase, times: times{intended: sh.intended}, waited: sh.waited}
	ctx, cancel := context.WithDeadlineCause(ctx, c.start.Add(sh.intended+c.w.Timeout), errTimeout)
	defer cancel()
	var answered atomic.Bool // set by a goroutine of the transport
	trace := &httptrace.ClientTrace{GotFirstResponseByte: func() { answered.Store(true) }}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, trace),
		http.MethodPost, c.w.URL+c.w.Kind.path(), bytes.NewReader(sh.body))
	if err != nil {
		panic("BUG: a validated URL makes no request: " + err.Error())
	}
	req.Header = c.header
	req.GetBody = nil // without it the transport cannot send the request a second time
	s.sent, s.wasSent = c.now(), true
	res, err := c.http.Do(req)
	if err != nil {
		c.fail(ctx, &s, lost(answered.Load(), err), err)
		return s
	}
	defer func() { // read to its end, the connection can serve the next request
		give := time.AfterFunc(linger, cancel)
		io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10))
		give.Stop()
		res.Body.Close()
	}()
	if outcome, err := c.read(res, &s, sh.want); err != nil {
		c.fail(ctx, &s, outcome, err)
	} else {
		s.outcome = c.w.judge(&s)
	}
	return s
}

// lost classes a request that got no answer. Before the first byte it is the
// connection's fault; after it the answer was cut off or was no HTTP.
func lost(answered bool, err error) Outcome {
	var op *net.OpError
	switch {
	case !answered:
		return Connect
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, &op):
		return Truncated
	}
	return Protocol
}

// fail records a failure and when it was known. What the generator's own
// deadlines broke is theirs, whatever error the transport made of it.
func (c *client) fail(ctx context.Context, s *sample, outcome Outcome, err error) {
	s.end, s.outcome = c.now(), outcome
	if cause := context.Cause(ctx); cause != nil {
		c.w.settle(s, cause)
		return
	}
	s.problem = clip(err.Error())
}

// settle says what became of a request that ended for a cause of the
// generator's; s.end must be set.
func (w *Workload) settle(s *sample, cause error) {
	switch {
	case errors.Is(cause, errDrain):
		s.unfinished, s.outcome = true, w.abandon(s)
	case errors.Is(cause, errTimeout):
		s.outcome = Timeout
	default:
		s.outcome = Cancelled
	}
	s.problem = clip(cause.Error())
}

func clip(s string) string {
	if len(s) > maxProblem {
		return s[:maxProblem] + "…"
	}
	return s
}
