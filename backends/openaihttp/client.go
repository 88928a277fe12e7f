// Package openaihttp speaks to one engine over HTTP/1.1: vLLM, SGLang,
// llama.cpp, TEI, Ollama, one of ours or an external provider, on TCP, TLS or a
// unix socket. Connections are its own, so that a call can be cancelled at any
// point by closing its connection, which every one of these engines takes as a
// cancel; a call needs no goroutine, and a stream that waits one small buffer.
package openaihttp

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"aloft/backends"
)

// Options of a client. The zero value of a field means its default.
type Options struct {
	BaseURL string // http://127.0.0.1:4711, https://…, or unix:///run/engine.sock
	APIKey  string // sent as a bearer token when not ""

	ConnectTimeout time.Duration // TLS included; default 2 s

	// These two may come late by a sixteenth.
	FirstByteTimeout  time.Duration // from the connection to the first byte of the body (SSE: the first event); default 10 min
	StreamIdleTimeout time.Duration // of one read of the body after it (SSE: one event); default 1 min

	MaxReply int64 // bytes of a reply that is not a stream, decoded; default 64 MiB
	MaxEvent int   // bytes of one event; default 1 MiB
	MaxIdle  int   // connections kept for reuse; default 256
}

// Validate says which option is wrong.
func (o Options) Validate() error {
	u, err := url.Parse(o.BaseURL)
	switch {
	case err != nil:
		return fmt.Errorf("openaihttp: base URL: %w", err)
	case u.User != nil: // it would be shown in errors
		return errors.New("openaihttp: base URL has a user: the key is an option of its own")
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
		o.MaxIdle = 256
	}
	return o
}

// Client is the backends.Backend of one engine. It is safe for many goroutines.
type Client struct {
	opt     Options
	network string // of the dialer: tcp or unix
	addr    string
	prefix  string // of every path
	fixed   string // fields of every request
	dialer  net.Dialer
	tls     *tls.Config // nil = none
	pool    pool
}

var _ backends.Backend = (*Client)(nil)

// New returns a client; the options must be valid. It connects on first use.
func New(o Options) *Client {
	c := &Client{opt: o.withDefaults(), network: "tcp"}
	u, err := url.Parse(o.BaseURL)
	if err != nil {
		panic("BUG: options are not valid: " + err.Error())
	}
	host, port := u.Host, u.Port()
	switch u.Scheme {
	case "unix":
		c.network, c.addr, host = "unix", u.Path, "engine"
	case "https":
		c.addr = net.JoinHostPort(u.Hostname(), cmp.Or(port, "443"))
		// HTTP/1 only: closing the connection is the cancel.
		c.tls = &tls.Config{
			ServerName: u.Hostname(), MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
			ClientSessionCache: tls.NewLRUClientSessionCache(0),
		}
	default:
		c.addr = net.JoinHostPort(u.Hostname(), cmp.Or(port, "80"))
	}
	if c.network == "tcp" {
		c.prefix = strings.TrimRight(u.EscapedPath(), "/")
	}
	c.fixed = fixedFields(host, c.opt.APIKey)
	return c
}

// Close drops idle connections. Calls that run go on.
func (c *Client) Close() { c.pool.close() }

// staleWithin is how soon a connection that the engine had closed for being
// idle fails. One that fails later died with the call, which is not ours to repeat.
const staleWithin = time.Second

// Do implements backends.Backend. The reply's body has a method Len() int: the
// bytes still to come, -1 if unknown.
func (c *Client) Do(ctx context.Context, call *backends.Call) (*backends.Reply, error) {
	start := time.Now()
	x := &exchange{client: c, call: call, ctx: ctx, left: c.opt.MaxReply}
	err := x.try(start, false)
	// A reused connection that died at once, before the engine sent anything, had
	// been closed for being idle, and the engine never saw the call: once more, on a new one.
	if err != nil && x.reused && x.stage != answered && ctx.Err() == nil &&
		(errors.Is(err, errStale) || time.Since(start) < staleWithin) {
		err = x.try(start, true)
	}
	if err != nil {
		return nil, err
	}
	t := &x.reply.Timing
	total := time.Since(start)
	t.Network += x.written.Sub(start)
	t.Engine = total - t.Network
	return &x.reply, nil
}

// try makes the call on one connection.
func (x *exchange) try(start time.Time, fresh bool) error {
	err := x.ctx.Err()
	if err == nil {
		err = x.connect(start, fresh)
	}
	if err == nil {
		err = x.send()
	}
	if err == nil {
		if err = x.first(); err == nil {
			return nil
		}
	}
	err = x.failed(err) // while ctx is known to be alive, or not
	x.once = true
	x.end()
	return err
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

// get returns the status of a GET, on a connection of its own: a health check
// must not pass on an old one.
func (c *Client) get(ctx context.Context, path string) (status int, err error) {
	x := &exchange{client: c, ctx: ctx}
	if err = x.connect(time.Now(), true); err == nil {
		x.once = true
		defer x.end()
		x.frame.buf = buffers.Get().(*[bufferSize]byte)
		text := append(append(append(x.frame.buf[:0], "GET "...), c.prefix...), path...)
		text = append(append(append(text, " HTTP/1.1\r\nConnection: close\r\n"...), c.fixed...), "\r\n"...)
		if err = x.frame.conn.write(text, nil); err == nil {
			var h head
			if h, _, err = x.head(0, nil); err == nil {
				return h.status, nil
			}
		}
	}
	if ctx.Err() != nil {
		return 0, fmt.Errorf("GET %s: %w", path, context.Cause(ctx))
	}
	return 0, fmt.Errorf("GET %s at %s: %w: %w", path, c.opt.BaseURL, backends.ErrConnect, err)
}
