// Package openaihttp speaks to one engine over HTTP: vLLM, SGLang, llama.cpp,
// TEI, Ollama or one of ours, on TCP or a unix socket. It is built on net/http,
// whose requests can be cancelled at any point by closing their connection,
// which every one of these engines takes as a cancel.
package openaihttp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"aloft/backends"
)

// Options of a client. The zero value of a field means its default.
type Options struct {
	BaseURL string // http://127.0.0.1:4711, https://…, or unix:///run/engine.sock
	APIKey  string // sent as a bearer token when not ""

	ConnectTimeout    time.Duration // default 2 s
	FirstByteTimeout  time.Duration // from the call to the first byte of the body; default 10 min
	StreamIdleTimeout time.Duration // between two reads of a body; default 1 min
	MaxReply          int64         // bytes of a reply that is not a stream; default 64 MiB
	MaxEvent          int           // bytes of one event; default 1 MiB
	MaxIdle           int           // connections kept for reuse; default 64
}

// idleTimeout is how long an unused connection is kept: below the 5 s after
// which uvicorn (vLLM, SGLang) closes its side, so that we close first.
const idleTimeout = 4 * time.Second

// Validate says which option is wrong.
func (o Options) Validate() error {
	u, err := url.Parse(o.BaseURL)
	switch {
	case err != nil:
		return fmt.Errorf("openaihttp: base URL: %w", err)
	case u.Scheme == "unix" && u.Path != "" && u.Host == "":
	case (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.RawQuery == "":
	default:
		return fmt.Errorf("openaihttp: base URL is %q, want http://HOST:PORT, https://HOST or unix:///PATH", o.BaseURL)
	}
	if o.ConnectTimeout < 0 || o.FirstByteTimeout < 0 || o.StreamIdleTimeout < 0 || o.MaxReply < 0 || o.MaxEvent < 0 || o.MaxIdle < 0 {
		return errors.New("openaihttp: a timeout or limit is negative")
	}
	return nil
}

func (o Options) withDefaults() Options {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.ConnectTimeout, 2*time.Second)
	def(&o.FirstByteTimeout, 10*time.Minute)
	def(&o.StreamIdleTimeout, time.Minute)
	if o.MaxReply == 0 {
		o.MaxReply = 64 << 20
	}
	if o.MaxEvent == 0 {
		o.MaxEvent = 1 << 20
	}
	if o.MaxIdle == 0 {
		o.MaxIdle = 64
	}
	return o
}

// Client is the backends.Backend of one engine. It is safe for many goroutines.
type Client struct {
	opt    Options
	base   string
	pooled *http.Transport
	fresh  *http.Transport // never reuses a connection: the one retry after a stale one
}

var _ backends.Backend = (*Client)(nil)

// New returns a client; the options must be valid. It connects on first use.
func New(o Options) *Client {
	c := &Client{opt: o.withDefaults(), base: strings.TrimRight(o.BaseURL, "/")}
	dialer := &net.Dialer{Timeout: c.opt.ConnectTimeout}
	dial := dialer.DialContext
	if path, ok := strings.CutPrefix(o.BaseURL, "unix://"); ok {
		c.base = "http://engine"
		dial = func(ctx context.Context, _, _ string) (net.Conn, error) { return dialer.DialContext(ctx, "unix", path) }
	}
	c.pooled = &http.Transport{
		DialContext:           dial,
		DisableCompression:    true, // bytes are relayed as they come
		MaxIdleConns:          c.opt.MaxIdle,
		MaxIdleConnsPerHost:   c.opt.MaxIdle,
		IdleConnTimeout:       idleTimeout,
		TLSHandshakeTimeout:   c.opt.ConnectTimeout,
		ExpectContinueTimeout: time.Second,
		Protocols:             new(http.Protocols),
	}
	// HTTP/1 only: closing the connection is the cancel.
	c.pooled.Protocols.SetHTTP1(true)
	c.fresh = c.pooled.Clone()
	c.fresh.DisableKeepAlives = true
	return c
}

// Close drops idle connections. Calls that run go on.
func (c *Client) Close() { c.pooled.CloseIdleConnections() }

// Do implements backends.Backend.
func (c *Client) Do(ctx context.Context, call *backends.Call) (*backends.Reply, error) {
	start := time.Now()
	ctx, cancel := context.WithCancelCause(ctx)
	silent := fmt.Errorf("%w: no byte of %s in %v", backends.ErrSilent, call.Path, c.opt.FirstByteTimeout)
	watch := time.AfterFunc(c.opt.FirstByteTimeout, func() { cancel(silent) })
	res, err := c.send(ctx, call)
	if err != nil {
		watch.Stop()
		cancel(nil)
		return nil, err
	}
	b := newBody(res, call.Stream, c.opt, running{ctx, cancel, watch})
	if err := b.first(); err != nil {
		b.Close()
		return nil, err
	}
	return &backends.Reply{
		Status: res.StatusCode, ContentType: res.Header.Get("Content-Type"), Body: b,
		Timing: backends.Timing{Engine: time.Since(start)},
	}, nil
}

// staleWithin is how soon a connection that the engine had closed for being
// idle fails. One that fails later died with the call, which is not ours to repeat.
const staleWithin = time.Second

// send makes the call, a second time on a new connection if the first was a
// reused one and died at once, before the engine sent anything: then the engine
// had closed it for being idle, and never saw the call.
func (c *Client) send(ctx context.Context, call *backends.Call) (*http.Response, error) {
	var reused, answered, written atomic.Bool
	trace := &httptrace.ClientTrace{
		GotConn:              func(i httptrace.GotConnInfo) { reused.Store(i.Reused) },
		WroteRequest:         func(i httptrace.WroteRequestInfo) { written.Store(i.Err == nil) },
		GotFirstResponseByte: func() { answered.Store(true) },
	}
	start := time.Now()
	res, err := c.roundTrip(httptrace.WithClientTrace(ctx, trace), c.pooled, call)
	if err != nil && ctx.Err() == nil && reused.Load() && !answered.Load() && time.Since(start) < staleWithin {
		reused.Store(false)
		written.Store(false)
		res, err = c.roundTrip(httptrace.WithClientTrace(ctx, trace), c.fresh, call)
	}
	switch {
	case err == nil:
		return res, nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("call %s: %w", call.Path, context.Cause(ctx))
	case answered.Load():
		return nil, fmt.Errorf("call %s: %w: %w", call.Path, backends.ErrBadReply, err)
	case written.Load():
		// Connected and sent, then closed without an answer: the engine died of
		// it or while at it. That is no ErrConnect, which is always safe to retry.
		return nil, fmt.Errorf("call %s: %w: closed without an answer: %w", call.Path, backends.ErrBadReply, err)
	}
	return nil, fmt.Errorf("call %s at %s: %w: %w", call.Path, c.opt.BaseURL, backends.ErrConnect, err)
}

func (c *Client) roundTrip(ctx context.Context, t *http.Transport, call *backends.Call) (*http.Response, error) {
	// The body has no GetBody, so net/http makes no retries of its own.
	body := io.NopCloser(bytes.NewReader(call.Body))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+call.Path, body)
	if err != nil {
		return nil, err
	}
	req.ContentLength = int64(len(call.Body))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "aloft")
	if call.Stream {
		req.Header.Set("Accept", "text/event-stream")
	}
	if call.ID != "" {
		req.Header.Set("X-Request-Id", call.ID)
	}
	c.authorize(req)
	return t.RoundTrip(req) // no redirects: they are a bad reply's business
}

func (c *Client) authorize(req *http.Request) {
	if c.opt.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+c.opt.APIKey)
	}
}

// Ready returns nil when the engine answers its health check: GET /health, or
// GET /v1/models at engines without one.
func (c *Client) Ready(ctx context.Context) error {
	status, err := c.get(ctx, "/health")
	if err == nil && (status == http.StatusNotFound || status == http.StatusMethodNotAllowed) {
		status, err = c.get(ctx, "/v1/models")
	}
	switch {
	case err != nil:
		return err
	case status != http.StatusOK:
		return fmt.Errorf("health check answers %d: %w", status, backends.ErrUnavailable)
	}
	return nil
}

func (c *Client) get(ctx context.Context, path string) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return 0, err
	}
	c.authorize(req)
	res, err := c.fresh.RoundTrip(req) // a health check must not pass on an old connection
	switch {
	case err == nil:
		return res.StatusCode, res.Body.Close()
	case ctx.Err() != nil:
		return 0, fmt.Errorf("GET %s: %w", path, context.Cause(ctx))
	}
	return 0, fmt.Errorf("GET %s at %s: %w: %w", path, c.opt.BaseURL, backends.ErrConnect, err)
}
