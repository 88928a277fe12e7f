package gateway

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"aloft/backends"
	"aloft/batcher"

	"github.com/valyala/fasthttp"
)

// memory is a Backend that answers at once.
type memory struct {
	reply *backends.Reply
	body  *again
}

// again is a reply's body that can be read many times.
type again struct{ bytes.Reader }

func (*again) Close() error { return nil }

func (m memory) Do(context.Context, *backends.Call) (*backends.Reply, error) {
	_, _ = m.body.Seek(0, io.SeekStart)
	m.reply.Body = m.body // the batcher has put its own around it
	return m.reply, nil
}

// raced says that the race detector is on: sync.Pool then drops things at random.
var raced bool

// A request costs at most 12 allocations above what fasthttp takes for reading
// a body and writing one: at most 7 the gateway's, 5 the batcher's (issue 3).
func TestAllocations(t *testing.T) {
	if raced {
		t.Skip("under the race detector pools forget: allocations cannot be counted")
	}
	chat := []byte(`{"id":"c1","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":6,"total_tokens":11}}`)
	embedding := []byte(`{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.1,0.2]}],"model":"e","usage":{"prompt_tokens":3,"total_tokens":3}}`)
	for _, tt := range []struct {
		name, path, body string
		reply            []byte
		merge            bool
		most             float64
	}{
		{"chat", "/v1/chat/completions", chatBody, chat, false, 12},
		{"embeddings", "/v1/embeddings", `{"model":"tiny","input":"hello"}`, embedding, true, 12},
	} {
		t.Run(tt.name, func(t *testing.T) {
			body := &again{}
			body.Reset(tt.reply)
			m := memory{&backends.Reply{Status: 200, ContentType: "application/json", Body: body}, body}
			b, err := batcher.New(batcher.Options{Model: "tiny", Merge: tt.merge}, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close(context.Background())
			b.SetReplicas([]batcher.Replica{{ID: "r1", Backend: m, Slots: 4}})
			keys := newRing(t, "u", &Grant{Tenant: "red"})
			keys.limits["id-u"].requests = 1 << 30
			s, err := New(Options{}, Deps{Catalog: testModels(), Submitter: b, Keys: settled{keys}}, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			defer s.stop(backends.ErrDraining)
			bare := measure(t, tt.path, tt.body, func(c *fasthttp.RequestCtx) {
				_, _ = io.Copy(io.Discard, c.RequestBodyStream())
				c.Response.SetBody(tt.reply)
			})
			whole := measure(t, tt.path, tt.body, s.http.Handler)
			own := measure(t, tt.path, tt.body, func() fasthttp.RequestHandler {
				s, _ := New(Options{}, Deps{Catalog: testModels(), Keys: settled{keys}, Submitter: script(func(context.Context, *backends.Request) (*backends.Reply, error) {
					return m.Do(context.Background(), nil)
				})}, slog.New(slog.DiscardHandler))
				return s.http.Handler
			}())
			t.Logf("bare %v, gateway %v, with the batcher %v", bare, own-bare, whole-bare)
			if whole-bare > tt.most {
				t.Errorf("%v allocations above fasthttp's %v, want at most %v", whole-bare, bare, tt.most)
			}
			if own-bare > 7 {
				t.Errorf("%v of them are the gateway's, want at most 7", own-bare)
			}
		})
	}
}

// settled is a ring that keeps no list of what was settled.
type settled struct{ *ring }

func (s settled) Settle(g *Grant, _ time.Time, w Reserving, tokens int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.limits[g.ID]
	l.running--
	l.used += tokens - w.Tokens
}

// measure returns the allocations of one request through a handler.
func measure(t *testing.T, path, body string, h fasthttp.RequestHandler) float64 {
	t.Helper()
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	var c fasthttp.RequestCtx
	c.Init2(ours, nil, false)
	var r bytes.Reader
	return testing.AllocsPerRun(200, func() {
		c.Request.Reset()
		c.Response.Reset()
		c.Request.Header.SetMethod("POST")
		c.Request.SetRequestURI(path)
		c.Request.Header.SetContentType("application/json")
		c.Request.Header.Set("Authorization", "Bearer u")
		r.Reset([]byte(body))
		c.Request.SetBodyStream(&r, len(body))
		h(&c)
		if c.Response.StatusCode() != 200 {
			t.Fatalf("answer %d %s", c.Response.StatusCode(), c.Response.Body())
		}
	})
}
