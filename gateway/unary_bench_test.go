package gateway

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"aloft/backends"
	"aloft/batcher"

	"github.com/valyala/fasthttp"
)

// endless is a client's connection that sends the same request left times and
// takes every answer, without a system call.
type endless struct {
	net.Conn
	request []byte
	left    int
}

func (c *endless) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, io.EOF
	}
	c.left--
	return copy(p, c.request), nil
}

func (*endless) Write(p []byte) (int, error)      { return len(p), nil }
func (*endless) Close() error                     { return nil }
func (*endless) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (*endless) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (*endless) SetDeadline(time.Time) error      { return nil }
func (*endless) SetReadDeadline(time.Time) error  { return nil }
func (*endless) SetWriteDeadline(time.Time) error { return nil }

// BenchmarkUnary is the work on one request without its system calls: all that
// fasthttp, the edge and the batcher do, beside what fasthttp alone does.
func BenchmarkUnary(b *testing.B) {
	reply := []byte(`{"id":"c1","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":6,"total_tokens":11}}`)
	body := &again{}
	body.Reset(reply)
	m := memory{&backends.Reply{Status: 200, ContentType: "application/json", Body: body}, body}
	q, err := batcher.New(batcher.Options{Model: "tiny"}, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	defer q.Close(b.Context())
	q.SetReplicas([]batcher.Replica{{ID: "r1", Backend: m, Slots: 4}})
	keys := newRing(b, "u", &Grant{Tenant: "red"})
	keys.limits["id-u"].requests = 1 << 30
	keys.limits["id-u"].tokens = 1 << 30
	s, err := New(Options{Telemetry: TelemetryOptions{Sample: 0.1}}, Deps{Catalog: testModels(), Submitter: q, Keys: settled{keys}}, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	defer s.stop(backends.ErrDraining)
	plain := &fasthttp.Server{Handler: func(c *fasthttp.RequestCtx) {
		_ = c.Request.Body()
		c.Response.SetBody(reply)
	}}
	request := fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer u\r\nContent-Length: %d\r\n\r\n%s", len(chatBody), chatBody)
	for name, server := range map[string]*fasthttp.Server{"aloft": s.http, "fasthttp": plain} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			c := &endless{request: request, left: b.N}
			if err := server.ServeConn(c); err != nil {
				b.Fatal(err)
			}
		})
	}
}
