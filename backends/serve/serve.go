package serve

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"aloft/backends"
)

// Options of a server. The zero value of a field means its default.
type Options struct {
	MaxQueue      int           // calls that may wait beyond those that run, per kind; default 64
	MaxBody       int64         // bytes of a request body; default 32 MiB
	WriteTimeout  time.Duration // for one event or reply to be taken by the client; default 30 s
	ShutdownGrace time.Duration // for running calls after the context ends; default 10 s
	// Wrap, when set, is put around the inference routes (the timed engine's faults).
	Wrap func(http.Handler) http.Handler
}

// Validate says which option is out of range.
func (o Options) Validate() error {
	switch {
	case o.MaxQueue < 0:
		return fmt.Errorf("serve: max_queue is %d, want at least 0", o.MaxQueue)
	case o.MaxBody < 0:
		return fmt.Errorf("serve: max_body is %d bytes, want at least 0", o.MaxBody)
	case o.WriteTimeout < 0 || o.ShutdownGrace < 0:
		return errors.New("serve: a timeout is negative")
	}
	return nil
}

func (o Options) withDefaults() Options {
	if o.MaxQueue == 0 {
		o.MaxQueue = 64
	}
	if o.MaxBody == 0 {
		o.MaxBody = 32 << 20
	}
	if o.WriteTimeout == 0 {
		o.WriteTimeout = 30 * time.Second
	}
	if o.ShutdownGrace == 0 {
		o.ShutdownGrace = 10 * time.Second
	}
	return o
}

// Server puts an Engine behind HTTP.
type Server struct {
	engine Engine
	info   Info
	opt    Options
	log    *slog.Logger
	gate   *gate
	count  counters
	turn   chan struct{} // held while the engine goes to sleep or wakes
	mux    *http.ServeMux
}

// New returns a server for the engine. It starts nothing.
func New(e Engine, o Options, log *slog.Logger) (*Server, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	s := &Server{engine: e, info: e.Info(), opt: o.withDefaults(), log: log, turn: make(chan struct{}, 1), mux: http.NewServeMux()}
	s.gate = newGate(1, max(s.info.Slots, 1), s.opt.MaxQueue)
	work := http.NewServeMux()
	work.HandleFunc("POST /v1/embeddings", s.embeddings)
	work.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) { s.generate(w, r, backends.Chat) })
	work.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) { s.generate(w, r, backends.Completions) })
	inner := http.Handler(work)
	if o.Wrap != nil {
		inner = o.Wrap(inner)
	}
	for _, e := range []backends.Endpoint{backends.Embeddings, backends.Chat, backends.Completions} {
		s.mux.Handle("POST "+e.Path(), inner)
		s.mux.HandleFunc(e.Path(), s.wrongMethod)
	}
	s.mux.HandleFunc("GET /health", s.health)
	s.mux.HandleFunc("GET /metrics", s.metrics)
	s.mux.HandleFunc("GET /v1/models", s.models)
	s.mux.HandleFunc("GET /v1/models/{id...}", s.model)
	s.mux.HandleFunc("POST /sleep", s.sleep)
	s.mux.HandleFunc("POST /wake_up", s.wake)
	s.mux.HandleFunc("GET /is_sleeping", s.isSleeping)
	s.mux.HandleFunc("/", s.notFound)
	return s, nil
}

// ServeHTTP implements http.Handler: every reply has an x-request-id.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("X-Request-Id") == "" {
		r.Header.Set("X-Request-Id", newID("req_"))
	}
	w.Header().Set("X-Request-Id", r.Header.Get("X-Request-Id"))
	s.allowWrite(w) // also undoes the deadline of the connection's last request
	s.mux.ServeHTTP(w, r)
}

// Serve answers on ln until ctx ends, then lets running calls finish within
// ShutdownGrace and cancels the rest. It returns nil after a shutdown.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	base, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	fresh := &freshConns{}
	srv := &http.Server{
		Handler:           s,
		ConnState:         fresh.track,
		BaseContext:       func(net.Listener) context.Context { return base },
		ReadHeaderTimeout: 10 * time.Second,
		// Longer than any client of ours keeps a connection idle, so that it is
		// the client who closes and no request meets a closing socket.
		IdleTimeout: 2 * time.Minute,
		ErrorLog:    slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	select {
	case err := <-done:
		return fmt.Errorf("serve on %v: %w", ln.Addr(), err)
	case <-ctx.Done():
	}
	grace, stop := context.WithTimeout(base, s.opt.ShutdownGrace)
	defer stop()
	fresh.close()
	if err := srv.Shutdown(grace); err != nil {
		cancel(backends.ErrDraining)
		srv.Close() // its error is that of sockets we give up anyway
	}
	<-done
	end, stop := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer stop()
	if err := s.gate.close(end); err != nil {
		return fmt.Errorf("stop engine: calls still run: %w", err)
	}
	return nil
}

// freshConns closes connections that never carried a request. http.Server's
// Shutdown waits five seconds for those, and a slice that is being reclaimed
// cannot.
type freshConns struct {
	mu    sync.Mutex
	conns map[net.Conn]bool
	done  bool
}

func (f *freshConns) track(c net.Conn, state http.ConnState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case state != http.StateNew:
		delete(f.conns, c)
	case f.done:
		c.Close()
	case f.conns == nil:
		f.conns = map[net.Conn]bool{c: true}
	default:
		f.conns[c] = true
	}
}

func (f *freshConns) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.done = true
	for c := range f.conns {
		c.Close()
	}
}

// Announce writes the one line that tells whoever started this process where it
// listens: {"listening":"127.0.0.1:4711"}. With port 0 there is no other way to know.
func Announce(w io.Writer, addr net.Addr) error {
	line, err := json.Marshal(struct {
		Listening string `json:"listening"`
	}{addr.String()})
	if err != nil {
		return err
	}
	_, err = w.Write(append(line, '\n'))
	return err
}

// newID is unique enough for logs: 96 random bits.
func newID(prefix string) string {
	var b [12]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	return prefix + hex.EncodeToString(b[:])
}
