package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"aloft/backends"

	"github.com/valyala/fasthttp"
)

const (
	// watchPeriod is how often waiting connections are asked whether their
	// client is still there; a quarter of the second that issue 3 allows.
	watchPeriod = 250 * time.Millisecond
	// drainPoll is how often a drain looks whether the last request is done.
	drainPoll = 20 * time.Millisecond
	// closeGrace is what cut-off streams get to write their error event, and
	// then connections to close.
	closeGrace = time.Second
	// uploadSlack is what a multipart body may have besides the file.
	uploadSlack = 1 << 20
)

// Server is the HTTP edge. Make it with New; it starts nothing before Serve.
type Server struct {
	opt    Options
	deps   Deps
	log    *slog.Logger
	http   *fasthttp.Server
	routes router
	watch  watcher
	door   *door

	// base is the parent of every client's request: a RequestCtx is no context
	// (its Done fires at shutdown only, and it is recycled).
	base context.Context
	stop context.CancelCauseFunc

	draining  atomic.Bool
	active    atomic.Int64 // requests whose last byte is not out yet
	bodies    atomic.Int64 // bytes of large bodies, from their arrival to their request's end
	followers atomic.Int64 // answers that go on while something grows
}

// New checks the options and dependencies.
func New(opt Options, deps Deps, log *slog.Logger) (*Server, error) {
	if err := opt.Validate(); err != nil {
		return nil, err
	}
	if deps.Catalog == nil || deps.Submitter == nil {
		return nil, errors.New("gateway: needs a Catalog and a Submitter")
	}
	s := &Server{opt: opt.orDefaults(), deps: deps, log: log, door: newDoor()}
	s.base, s.stop = context.WithCancelCause(context.Background())
	context.AfterFunc(s.base, func() { s.watch.end(context.Cause(s.base)) })
	s.routes = s.newRouter()
	s.http = &fasthttp.Server{
		Handler:        s.lingering(s.cors(s.handle)),
		ErrorHandler:   s.unread,
		HeaderReceived: s.limits,
		ExpectHandler:  s.expect,
		ConnState:      turned,
		Name:           s.opt.Name,
		Logger:         quietLog{log},

		ReadBufferSize:  headMost,
		WriteBufferSize: 2 << 10,             // kept by each open stream; a reply of 1 KiB still leaves in one write
		ReadTimeout:     s.opt.HeaderTimeout, // from accept or the first byte on; limits gives the body its own
		IdleTimeout:     s.opt.IdleTimeout,

		// Bodies are read by the handlers: JSON whole within MaxBody, files in
		// pieces. MaxRequestBodySize only bounds what fasthttp reads ahead.
		StreamRequestBody:            true,
		MaxRequestBodySize:           s.opt.MaxBody,
		DisablePreParseMultipartForm: true,
		TCPKeepalive:                 true,
		LazyRequestTime:              true, // a request's time is our own, in exchange.start
		NoDefaultContentType:         true,
		SecureErrorLogMessage:        true, // else errors quote headers, keys among them
	}
	return s, nil
}

// limits gives the body of a request its time, now that the head is there. A
// body that is announced as too large is not waited for: fasthttp reads the
// first 8 KiB before a handler, unless the client expects to be asked for it.
func (s *Server) limits(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
	if s.oversized(h) {
		h.SetProtocol("HTTP/1.1") // in 1.0 nobody can expect
		h.Set("Expect", "100-continue")
	}
	if isUpload(h) {
		return fasthttp.RequestConfig{ReadTimeout: s.opt.UploadTimeout}
	}
	return fasthttp.RequestConfig{ReadTimeout: bodyTime(s.opt.BodyTimeout, min(h.ContentLength(), s.opt.MaxBody))}
}

// expect answers a request whose body is announced as too large, for whatever
// comes first in its head; fasthttp then closes. Others are asked for theirs.
func (s *Server) expect(c *fasthttp.RequestCtx) int {
	if !s.oversized(&c.Request.Header) {
		return fasthttp.StatusContinue
	}
	s.http.Handler(c)
	linger(c.Conn(), true) // the body may be on its way all the same
	return c.Response.StatusCode()
}

func (s *Server) oversized(h *fasthttp.RequestHeader) bool {
	most := int64(s.opt.MaxBody)
	if isUpload(h) {
		most = s.opt.MaxFile + uploadSlack
	}
	return int64(h.ContentLength()) > most
}

// isUpload reports whether a request is routed to createFile, whose limits are
// larger than those of the rest.
func isUpload(h *fasthttp.RequestHeader) bool {
	path, _, _ := bytes.Cut(h.RequestURI(), []byte{'?'})
	if string(h.Method()) != "POST" || !bytes.HasSuffix(path, []byte(uploadPath)) {
		return false
	}
	if len(path) == len(uploadPath) {
		return true
	}
	var u fasthttp.URI // http://HOST/v1/files, the absolute form, is read as the router reads it
	return u.Parse(nil, h.RequestURI()) == nil && string(u.PathOriginal()) == uploadPath
}

// unread answers what could not be read. More of it may be on its way, except
// from a client that was too slow: that one is cut.
func (s *Server) unread(c *fasthttp.RequestCtx, err error) {
	var timeout net.Error
	linger(c.Conn(), !errors.As(err, &timeout) || !timeout.Timeout())
	s.cors(func(c *fasthttp.RequestCtx) { s.badRequest(c, err) })(c)
}

// listen wraps a listener in the limits on connections and in TLS.
func (s *Server) listen(ln net.Listener) net.Listener {
	l := &listener{Listener: ln, limits: s.opt.Conns, patient: s.opt.WriteTimeout, door: s.door,
		slack: min(s.opt.HeaderTimeout, s.opt.BodyTimeout, s.opt.IdleTimeout) / 16}
	if s.opt.TLS != nil {
		return tls.NewListener(l, s.opt.TLS.config())
	}
	l.speaks = true
	return l
}

// Serve accepts connections from ln until ctx ends, then drains: /readyz says
// 503, new work is refused, replies close their connection, and what runs may
// finish for DrainGrace. Streams that are still open then get an error event.
// It returns nil after a drain. A server serves once.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	watching, stopWatching := context.WithCancel(context.Background())
	var side sync.WaitGroup
	side.Go(func() { s.watch.run(watching, watchPeriod) })
	defer side.Wait()
	defer stopWatching()

	served := make(chan error, 1)
	go func() { served <- s.http.Serve(s.listen(ln)) }()
	select {
	case err := <-served:
		s.stop(backends.ErrDraining)
		return fmt.Errorf("serve on %v: %w", ln.Addr(), errors.Join(err, net.ErrClosed))
	case <-ctx.Done():
	}
	s.drain()
	_ = ln.Close() // Shutdown does not know ln if fasthttp has not come to it yet
	<-served
	return nil
}

func (s *Server) drain() {
	s.draining.Store(true)
	s.log.Info("drain began", "requests", s.active.Load(), "grace", s.opt.DrainGrace)
	if !s.quiet(s.opt.DrainGrace) {
		s.log.Warn("drain grace over", "requests", s.active.Load())
	}
	s.stop(backends.ErrDraining)
	s.quiet(closeGrace)
	ctx, cancel := context.WithTimeout(context.Background(), closeGrace)
	defer cancel()
	// It closes connections in one goroutine: none may make it wait.
	s.door.shut.Store(true)
	// An error here means connections that are open and idle: they end with the
	// process.
	_ = s.http.ShutdownWithContext(ctx)
}

// quiet waits until no request is left, or for at most limit.
func (s *Server) quiet(limit time.Duration) bool {
	over := time.NewTimer(limit)
	defer over.Stop()
	tick := time.NewTicker(drainPoll)
	defer tick.Stop()
	for s.active.Load() > 0 {
		select {
		case <-over.C:
			return false
		case <-tick.C:
		}
	}
	return true
}

// ready reports whether a new request could be served.
func (s *Server) ready() bool {
	if s.draining.Load() {
		return false
	}
	for _, m := range s.deps.Catalog.Models() {
		if m.Usable {
			return true
		}
	}
	return false
}

// quietLog takes fasthttp's own lines: broken connections, mostly.
type quietLog struct{ log *slog.Logger }

func (q quietLog) Printf(format string, args ...any) {
	q.log.Debug("connection ended", "cause", fmt.Sprintf(format, args...))
}
