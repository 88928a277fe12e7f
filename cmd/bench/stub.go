package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/valyala/fasthttp"

	"aloft/backends/serve"
)

// Roles are what this program is started as by itself: `bench as stub ADDRESS`
// and `bench as proxy ADDRESS UPSTREAM`. Each announces itself as engines do.
func playRole(ctx context.Context, args []string) error {
	if len(args) < 2 {
		return errors.New("want a role and an address")
	}
	l, err := net.Listen("tcp", args[1])
	if err != nil {
		return err
	}
	if err := serve.Announce(os.Stdout, l.Addr()); err != nil {
		return err
	}
	ended := context.AfterFunc(ctx, func() { l.Close() })
	defer ended()
	switch {
	case args[0] == "stub":
		err = serveStub(l)
	case args[0] == "proxy" && len(args) == 3:
		err = bareProxy(l, args[2])
	default:
		return fmt.Errorf("no role %q", args)
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// bareProxy is what a gateway in Go cannot be faster than by much: it relays, and
// does nothing else.
func bareProxy(l net.Listener, upstream string) error {
	plain := &fasthttp.HostClient{Addr: upstream, MaxConns: 1 << 14}
	streaming := &fasthttp.HostClient{Addr: upstream, MaxConns: 1 << 14, StreamResponseBody: true}
	s := &fasthttp.Server{NoDefaultServerHeader: true, NoDefaultDate: true, Handler: func(c *fasthttp.RequestCtx) {
		client := plain
		if bytes.Contains(c.Request.Body(), askStream) {
			client = streaming
		}
		c.Request.Header.Del("Connection")
		if err := client.Do(&c.Request, &c.Response); err != nil {
			c.Error(err.Error(), fasthttp.StatusBadGateway)
			return
		}
		c.Response.Header.Del("Connection")
	}}
	return s.Serve(l)
}

// What the stub looks for in a body. Nobody on the way adds blanks.
var (
	askStream = []byte(`"stream":true`)
	askUsage  = []byte(`"include_usage":true`)
	askIdle   = []byte(`"user":"idle"`)
)

const (
	stubModel  = "stub"
	replySize  = 1024 // bytes of a unary answer
	chunks     = 100  // events of a stream, [DONE] left out
	stubTokens = 7    // of every prompt
)

// canned are the stub's answers, heads included.
var canned = struct {
	models, chat, embedding []byte
	events                  [][]byte // one write each; the first has the head
	usage, done             []byte
}{
	models:    unary(`{"object":"list","data":[{"id":"` + stubModel + `","object":"model","created":1,"owned_by":"bench"}]}`),
	chat:      unary(chatReply()),
	embedding: unary(`{"object":"list","model":"` + stubModel + `","data":[{"object":"embedding","index":0,"embedding":[0.6,0.8]}],"usage":{"prompt_tokens":7,"total_tokens":7}}`),
	events:    streamed(),
	usage: chunk(chunkOf(`[]`, fmt.Sprintf(`,"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}`,
		stubTokens, chunks-1, stubTokens+chunks-1))),
	done: append(chunk("[DONE]"), "0\r\n\r\n"...),
}

func unary(body string) []byte {
	return fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// chatReply is an answer of replySize bytes.
func chatReply() string {
	const form = `{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"` + stubModel + `","choices":[{"index":0,` +
		`"message":{"role":"assistant","content":"%s"},"finish_reason":"stop","logprobs":null}],` +
		`"usage":{"prompt_tokens":7,"completion_tokens":128,"total_tokens":135}}`
	text := strings.Repeat("a word after a word, ", replySize/20)
	return fmt.Sprintf(form, text[:replySize-len(form)+len("%s")])
}

func chunkOf(choices, more string) string {
	return `{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"` + stubModel + `","choices":` + choices + more + `}`
}

// chunk is an event in an HTTP chunk of its own.
func chunk(data string) []byte {
	event := "data: " + data + "\n\n"
	return fmt.Appendf(nil, "%x\r\n%s\r\n", len(event), event)
}

func streamed() [][]byte {
	// nginx relays at once what is marked so.
	head := "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Accel-Buffering: no\r\nTransfer-Encoding: chunked\r\n\r\n"
	out := make([][]byte, chunks)
	for i := range out {
		choice := `[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]`
		switch i {
		case 0:
			choice = `[{"index":0,"delta":{"role":"assistant","content":"A"},"logprobs":null,"finish_reason":null}]`
		case chunks - 1:
			choice = `[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]`
		}
		out[i] = chunk(chunkOf(choice, ""))
	}
	out[0] = append([]byte(head), out[0]...)
	return out
}

// serveStub is the modelled engine: it answers at once, always the same.
func serveStub(l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		// A connection's goroutine ends with its peer, or with the process.
		go func() {
			defer c.Close()
			w := &wire{Conn: c, r: bufio.NewReaderSize(c, 4<<10)}
			var body []byte
			for {
				f, err := w.head()
				if err != nil {
					return
				}
				body = body[:0]
				if err := w.body(f, func(b []byte) { body = append(body, b...) }); err != nil {
					return
				}
				if err := w.answer(body); err != nil {
					return
				}
			}
		}()
	}
}

func (w *wire) answer(body []byte) (err error) {
	send := func(b []byte) {
		if err == nil {
			_, err = w.Write(b)
		}
	}
	switch {
	case bytes.HasPrefix(w.start, []byte("GET ")):
		send(canned.models)
	case bytes.HasPrefix(w.start, []byte("POST /v1/embeddings ")):
		send(canned.embedding)
	case bytes.Contains(body, askIdle):
		send(canned.events[0])
		_, wait := w.r.Peek(1) // until the peer leaves
		return wait
	case bytes.Contains(body, askStream):
		for _, e := range canned.events {
			send(e)
		}
		if bytes.Contains(body, askUsage) {
			send(canned.usage)
		}
		send(canned.done)
	default:
		send(canned.chat)
	}
	return err
}
