package gateway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"aloft/backends"

	"gocloud.dev/blob"
)

// script is a Submitter that plays what a test wants, over the real contract.
type script func(ctx context.Context, req *backends.Request) (*backends.Reply, error)

func (f script) Submit(ctx context.Context, req *backends.Request) (*backends.Reply, error) {
	return f(ctx, req)
}

// shelf is a fixed Catalog.
type shelf []Model

func (s shelf) Lookup(name string) (Model, bool) {
	for _, m := range s {
		if m.Name == name {
			return m, true
		}
	}
	return Model{}, false
}

func (s shelf) Models() []Model { return s }

// ledger collects outcomes.
type ledger struct {
	mu  sync.Mutex
	all []Outcome
	hit chan struct{}
}

func newLedger() *ledger { return &ledger{hit: make(chan struct{}, 1000)} }

func (l *ledger) Observe(o Outcome) {
	l.mu.Lock()
	l.all = append(l.all, o)
	l.mu.Unlock()
	l.hit <- struct{}{}
}

// wait returns the next outcome.
func (l *ledger) wait(t *testing.T) Outcome {
	t.Helper()
	select {
	case <-l.hit:
	case <-time.After(patience):
		t.Fatal("waited in vain for an outcome")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.all[0]
	l.all = l.all[1:]
	return o
}

// perByte counts a token per byte.
type perByte struct{}

func (perByte) Count(text []byte) int { return len(text) }

var everything = []backends.Endpoint{backends.Chat, backends.Completions, backends.Embeddings}

func testModels() shelf {
	created := time.Unix(1700000000, 0)
	return shelf{
		{Name: "tiny", EngineModel: "engine-tiny", Endpoints: everything, Context: 1000, Created: created,
			OwnedBy: "aloft", State: "ready", Shape: "1g.10gb", Usable: true, Counter: perByte{}},
		{Name: "org/name:q8", Endpoints: everything, Created: created, OwnedBy: "aloft", Usable: true},
		{Name: "only-embeds", Endpoints: []backends.Endpoint{backends.Embeddings}, Created: created, OwnedBy: "aloft"},
	}
}

// ring is a Keys that holds everything in memory: counted requests and tokens,
// no windows.
type ring struct {
	mu     sync.Mutex
	keys   map[string]*Grant // by secret
	limits map[string]*limits
}

// limits of one key; 0 = none.
type limits struct {
	requests, tokens, parallel, budget int
	made, used, running                int
	settled                            []int
}

// newRing takes pairs of a secret and a *Grant; a grant's id is its secret's name.
func newRing(t testing.TB, pairs ...any) *ring {
	t.Helper()
	r := &ring{keys: map[string]*Grant{}, limits: map[string]*limits{}}
	for i := 0; i < len(pairs); i += 2 {
		g := pairs[i+1].(*Grant)
		g.ID = "id-" + pairs[i].(string)
		r.keys[pairs[i].(string)] = g
		r.limits[g.ID] = &limits{}
	}
	// Each reservation is settled: nothing may run when the test ends.
	t.Cleanup(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		for id, l := range r.limits {
			if l.running != 0 {
				t.Errorf("key %s: %d reservations were never settled", id, l.running)
			}
		}
	})
	return r
}

func (r *ring) Find(secret []byte, _ time.Time) (*Grant, bool) {
	g, ok := r.keys[string(secret)]
	return g, ok
}

func (r *ring) ByID(id string, _ time.Time) (*Grant, bool) {
	for _, g := range r.keys {
		if g.ID == id {
			return g, true
		}
	}
	return nil, false
}

func (r *ring) Reserve(g *Grant, _ time.Time, w Reserving) (Quota, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.limits[g.ID]
	q := func() Quota {
		return Quota{Requests: Gauge{l.requests, l.requests - l.made, time.Second}, Tokens: Gauge{l.tokens, l.tokens - l.used, 6 * time.Minute}}
	}
	broken := func(kind string, limit int) (Quota, error) {
		after := 1500 * time.Millisecond
		if kind == "budget" && l.running == 0 {
			after = 100 * time.Hour // the month's end
		}
		return Quota{}, &LimitError{Kind: kind, Limit: limit, After: after, Quota: q()}
	}
	switch {
	case l.budget > 0 && l.used+w.Tokens > l.budget:
		return broken("budget", l.budget)
	case w.Row:
	case l.requests > 0 && l.made >= l.requests:
		return broken("requests", l.requests)
	case l.tokens > 0 && l.used+w.Tokens > l.tokens:
		return broken("tokens", l.tokens)
	case l.parallel > 0 && l.running >= l.parallel:
		return broken("parallel", l.parallel)
	}
	l.made++
	l.running++
	l.used += w.Tokens
	return q(), nil
}

func (r *ring) Settle(g *Grant, _ time.Time, w Reserving, tokens int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.limits[g.ID]
	l.running--
	l.used += tokens - w.Tokens
	l.settled = append(l.settled, tokens)
}

// edge is a gateway on a real TCP port.
type edge struct {
	*Server
	url, addr string
	ledger    *ledger
	stop      context.CancelFunc
	served    chan error
	blobs     *blob.Bucket // withJobs
}

// start serves until the test ends; change may adjust options and dependencies.
func start(t *testing.T, play script, change ...func(*Options, *Deps)) *edge {
	t.Helper()
	e := &edge{ledger: newLedger(), served: make(chan error, 1)}
	opt := Options{DrainGrace: 200 * time.Millisecond}
	deps := Deps{Catalog: testModels(), Submitter: play, Observer: e.ledger}
	for _, f := range change {
		f(&opt, &deps)
	}
	var err error
	if e.Server, err = New(opt, deps, slog.New(slog.NewTextHandler(t.Output(), nil))); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e.addr = ln.Addr().String()
	e.url = "http://" + e.addr
	ctx, cancel := context.WithCancel(context.Background())
	e.stop = cancel
	go func() { e.served <- e.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-e.served:
			if err != nil {
				t.Errorf("Serve: %v", err)
			}
		case <-time.After(patience):
			t.Error("Serve did not return after its context's end")
		}
		http.DefaultClient.CloseIdleConnections()
	})
	return e
}

// answer replies whole.
func answer(status int, body string) script {
	return func(context.Context, *backends.Request) (*backends.Reply, error) { return whole200(status, body), nil }
}

func whole200(status int, body string) *backends.Reply {
	return &backends.Reply{
		Status: status, ContentType: "application/json", Body: io.NopCloser(strings.NewReader(body)),
		Timing: backends.Timing{Queue: 3 * time.Millisecond, Batch: 2 * time.Millisecond, Engine: 1500 * time.Microsecond, Replica: "r1"},
	}
}

func fails(err error) script {
	return func(context.Context, *backends.Request) (*backends.Reply, error) { return nil, err }
}

// holds waits for the context, as a queue does.
func holds(ended chan<- error) script {
	return func(ctx context.Context, _ *backends.Request) (*backends.Reply, error) {
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return nil, context.Cause(ctx)
	}
}

// feed is an engine's stream: each send is one read, end closes it with err.
type feed struct {
	ctx   context.Context
	parts chan string
	err   error
	rest  string

	once   sync.Once
	closed chan struct{}
}

func newFeed(ctx context.Context) *feed {
	return &feed{ctx: ctx, parts: make(chan string, 1000), closed: make(chan struct{})}
}

func (f *feed) Read(p []byte) (int, error) {
	for f.rest == "" {
		select {
		case part, more := <-f.parts:
			if !more {
				return 0, f.err
			}
			f.rest = part
		case <-f.ctx.Done():
			return 0, fmt.Errorf("engine connection: %w", net.ErrClosed)
		}
	}
	n := copy(p, f.rest)
	f.rest = f.rest[n:]
	return n, nil
}

func (f *feed) Close() error {
	f.once.Do(func() { close(f.closed) })
	return nil
}

func (f *feed) end(err error) {
	f.err = err
	close(f.parts)
}

func sse(body io.ReadCloser) *backends.Reply {
	return &backends.Reply{Status: 200, ContentType: "text/event-stream; charset=utf-8", Body: body}
}

// plays streams the parts and then ends with err.
func plays(err error, parts ...string) script {
	return func(ctx context.Context, _ *backends.Request) (*backends.Reply, error) {
		f := newFeed(ctx)
		for _, p := range parts {
			f.parts <- p
		}
		f.end(err)
		return sse(f), nil
	}
}

const (
	chatBody   = `{"model":"tiny","messages":[{"role":"user","content":"hi"}]}`
	streamBody = `{"model":"tiny","stream":true,"messages":[{"role":"user","content":"hi"}]}`
	usageBody  = `{"model":"tiny","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hi"}]}`
	embedBody  = `{"model":"tiny","input":["ab","c"]}`

	frameRole   = "data: {\"id\":\"c1\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\"},\"finish_reason\":null}]}\n\n"
	frameHel    = "data: {\"id\":\"c1\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hel\"},\"finish_reason\":null}]}\n\n"
	frameLo     = "data: {\"id\":\"c1\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"lo\"},\"finish_reason\":null}]}\n\n"
	frameFinish = "data: {\"id\":\"c1\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
	frameUsage  = "data: {\"id\":\"c1\",\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2,\"total_tokens\":9}}\n\n"
	frameDone   = "data: [DONE]\n\n"
)

// post sends a body and reads the whole answer.
func (e *edge) post(t *testing.T, path, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	return e.do(t, "POST", path, body, append([]string{"Content-Type", "application/json"}, headers...)...)
}

func (e *edge) get(t *testing.T, path string, headers ...string) (*http.Response, string) {
	t.Helper()
	return e.do(t, "GET", path, "", headers...)
}

func (e *edge) do(t *testing.T, method, path, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req, err := http.NewRequest(method, e.url+path, r)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return resp, string(all)
}

// raw opens a socket and sends a POST by hand.
func (e *edge) raw(t *testing.T, path, body string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", e.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
	return c
}

// spotter closes came when its texts have been read from its connection, one
// after another.
type spotter struct {
	net.Conn
	came  chan struct{}
	texts []string
	seen  string
}

func (s *spotter) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	s.seen += string(p[:n])
	for len(s.texts) > 0 {
		_, rest, ok := strings.Cut(s.seen, s.texts[0])
		if !ok {
			break
		}
		if s.seen, s.texts = rest, s.texts[1:]; len(s.texts) == 0 {
			close(s.came)
		}
	}
	return n, err
}

// chunks reads a chunked answer and returns its chunks as they were framed.
// clean says whether the final chunk came.
func chunks(t *testing.T, c net.Conn) (head http.Header, parts []string, clean bool) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(patience))
	r := bufio.NewReader(c)
	head = http.Header{}
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("reading the head: %v", err)
		}
		line = strings.TrimRight(line, "\r\n")
		if line == "" {
			break
		}
		if k, v, ok := strings.Cut(line, ": "); ok {
			head.Add(k, v)
		}
	}
	for {
		var n int
		if _, err := fmt.Fscanf(r, "%x\r\n", &n); err != nil {
			return head, parts, false
		}
		part := make([]byte, n+2)
		if _, err := io.ReadFull(r, part); err != nil {
			return head, parts, false
		}
		if n == 0 {
			return head, parts, true
		}
		parts = append(parts, string(bytes.TrimSuffix(part, []byte("\r\n"))))
	}
}
