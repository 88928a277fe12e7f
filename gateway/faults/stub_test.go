// Package faults plays every class of docs/failures.md against the real edge,
// batcher and client over real TCP, with engines that fail on cue. It has tests
// only; pool and jobs play their classes (F11, F12, F15) where their parts are.
package faults

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"aloft/backends"
	"aloft/backends/openaihttp"
	"aloft/batcher"
	"aloft/gateway"
)

// exchange is one call as an engine sees it.
type exchange struct {
	net.Conn
	head *http.Request
	body []byte
}

// say writes bytes as they are.
func (x *exchange) say(text string) { _, _ = io.WriteString(x.Conn, text) }

// answer writes a whole JSON reply.
func (x *exchange) answer(status int, body string) {
	x.say(fmt.Sprintf("HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body))
}

// chunk writes one piece of a chunked body.
func (x *exchange) chunk(data string) { x.say(fmt.Sprintf("%x\r\n%s\r\n", len(data), data)) }

const sseHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

// hang waits until the caller closes the connection.
func (x *exchange) hang() { _, _ = io.Copy(io.Discard, x.Conn) }

// reset closes with RST: what a killed process leaves.
func (x *exchange) reset() {
	_ = x.Conn.(*net.TCPConn).SetLinger(0)
	_ = x.Conn.Close()
}

// engine is a scripted engine on a TCP port. play returns true to serve the
// connection's next call.
type engine struct {
	url   string
	open  atomic.Int32 // connections
	calls atomic.Int32
	mu    sync.Mutex
	heads []*http.Request
	sent  []string // bodies
}

type play func(x *exchange) (again bool)

func newEngine(t *testing.T, f play) *engine {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{url: "http://" + ln.Addr().String()}
	var all sync.WaitGroup
	var conns sync.Map
	all.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			conns.Store(c, nil)
			e.open.Add(1)
			all.Go(func() {
				defer e.open.Add(-1)
				defer c.Close()
				e.serve(c, f)
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		conns.Range(func(c, _ any) bool { c.(net.Conn).Close(); return true })
		all.Wait()
	})
	return e
}

func (e *engine) serve(c net.Conn, f play) {
	r := bufio.NewReader(c)
	for {
		head, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		body, err := io.ReadAll(head.Body)
		if err != nil {
			return
		}
		e.calls.Add(1)
		e.mu.Lock()
		e.heads, e.sent = append(e.heads, head), append(e.sent, string(body))
		e.mu.Unlock()
		if !f(&exchange{c, head, body}) {
			return
		}
	}
}

// last is the body of the newest call.
func (e *engine) last() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.sent) == 0 {
		return ""
	}
	return e.sent[len(e.sent)-1]
}

// plant is the edge with one model over some engines.
type plant struct {
	url     string
	batcher *batcher.Batcher
	server  *gateway.Server
	stop    context.CancelFunc
	ended   chan error
	mu      sync.Mutex
	seen    []gateway.Outcome
}

// setup is what a test may change.
type setup struct {
	embeds  bool
	slots   int
	queue   int
	timeout time.Duration // of the queue
	client  openaihttp.Options
	gateway gateway.Options
}

func newPlant(t *testing.T, s setup, engines ...*engine) *plant {
	t.Helper()
	p := &plant{ended: make(chan error, 1)}
	log := slog.New(slog.DiscardHandler)
	var err error
	if p.batcher, err = batcher.New(batcher.Options{Model: "m", Merge: s.embeds, MaxQueue: s.queue, QueueTimeout: s.timeout}, log); err != nil {
		t.Fatal(err)
	}
	if s.slots == 0 {
		s.slots = 8
	}
	var ready []batcher.Replica
	for i, e := range engines {
		o := s.client
		o.BaseURL = e.url
		c := openaihttp.New(o)
		t.Cleanup(c.Close)
		ready = append(ready, batcher.Replica{ID: fmt.Sprintf("r%d", i), Backend: c, Slots: s.slots, Index: i})
	}
	p.batcher.SetReplicas(ready)
	if p.server, err = gateway.New(s.gateway, gateway.Deps{Catalog: catalog{s.embeds}, Submitter: p.batcher, Observer: p}, log); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.url = "http://" + ln.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	go func() { p.ended <- p.server.Serve(ctx, ln); close(p.ended) }()
	t.Cleanup(func() {
		stop()
		if err := <-p.ended; err != nil {
			t.Errorf("serve: %v", err)
		}
		over, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := p.batcher.Close(over); err != nil {
			t.Errorf("close batcher: %v", err)
		}
	})
	return p
}

// Observe implements gateway.Observer.
func (p *plant) Observe(o gateway.Outcome) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = append(p.seen, o)
}

func (p *plant) outcomes() []gateway.Outcome {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]gateway.Outcome(nil), p.seen...)
}

type catalog struct{ embeds bool }

func (c catalog) Models() []gateway.Model {
	m := gateway.Model{Name: "m", EngineModel: "engine/m", Endpoints: []backends.Endpoint{backends.Chat, backends.Completions},
		Created: time.Unix(1700000000, 0), Usable: true}
	if c.embeds {
		m.Endpoints = []backends.Endpoint{backends.Embeddings}
	}
	return []gateway.Model{m}
}

func (c catalog) Lookup(name string) (gateway.Model, bool) { return c.Models()[0], name == "m" }

// post sends a body and returns the whole answer.
func (p *plant) post(t *testing.T, path, body string) (*http.Response, string) {
	t.Helper()
	res, err := http.Post(p.url+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return &http.Response{}, ""
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		text = append(text, " <"+err.Error()+">"...)
	}
	return res, string(text)
}

// stream is a post that tells when a part of the answer has come.
func (p *plant) stream(t *testing.T, body, part string, came chan<- struct{}) (*http.Response, string) {
	t.Helper()
	res, err := http.Post(p.url+chatPath, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var text []byte
	for buf, told := make([]byte, 4096), false; ; {
		n, err := res.Body.Read(buf)
		if text = append(text, buf[:n]...); !told && strings.Contains(string(text), part) {
			told = true
			close(came)
		}
		if err == io.EOF {
			return res, string(text)
		} else if err != nil {
			return res, string(text) + " <" + err.Error() + ">"
		}
	}
}

// raw opens a connection and sends a request on it.
func (p *plant) raw(t *testing.T, path, body string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
	return c
}

// patience bounds every wait for what must come: whoever waits that long waits
// in vain, on a machine that has other work to do too.
const patience = time.Minute

// until polls until ok.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

const (
	chatPath  = "/v1/chat/completions"
	embedPath = "/v1/embeddings"

	chatBody   = `{"model":"m","messages":[{"role":"user","content":"hi"}]}`
	streamBody = `{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`
	usageBody  = `{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hi"}]}`

	chatReply = `{"id":"c1","object":"chat.completion","created":1,"model":"engine/m","choices":[{"index":0,"message":{"role":"assistant","content":"Hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":2,"completion_tokens":1,"total_tokens":3}}`

	frameRole   = "data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\"},\"finish_reason\":null}],\"usage\":null}\n\n"
	frameHel    = "data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hel\"},\"finish_reason\":null}],\"usage\":null}\n\n"
	frameLo     = "data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"lo\"},\"finish_reason\":null}],\"usage\":null}\n\n"
	frameFinish = "data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":null}\n\n"
	frameUsage  = "data: {\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2,\"total_tokens\":9}}\n\n"
	frameDone   = "data: [DONE]\n\n"
)
