package openaihttp

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"

	"aloft/backends"
	"aloft/backends/openai"
)

// echoless answers every request with the same text, without looking at more of
// it than its end, so that what is measured is the client.
func echoless(tb testing.TB, requestEnd, answer string) string {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { ln.Close() })
	text, end := []byte(answer), []byte(requestEnd)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buf, n := make([]byte, 16<<10), 0
				for {
					k, err := c.Read(buf[n:])
					if err != nil {
						return
					}
					if n += k; bytes.HasSuffix(buf[:n], end) {
						c.Write(text)
						n = 0
					}
				}
			}()
		}
	}()
	return "http://" + ln.Addr().String()
}

const question = `{"model":"m","input":"hello","end":"END"}`

var (
	unaryAnswer  = "HTTP/1.1 200 OK\r\nDate: Mon, 30 Nov 2026 06:00:00 GMT\r\nServer: uvicorn\r\nContent-Type: application/json\r\nContent-Length: 1024\r\n\r\n" + strings.Repeat("x", 1024)
	streamAnswer = sse + strings.Repeat(chunk("data: {\"choices\":[{\"delta\":{\"content\":\"token\"}}]}\n\n"), 100) + chunk("data: [DONE]\n\n") + "0\r\n\r\n"
)

// unary makes one call as a gateway would: the body read in one go.
func unary(tb testing.TB, c *Client, call *backends.Call, buf []byte) {
	r, err := c.Do(tb.Context(), call)
	if err != nil {
		tb.Fatal(err)
	}
	n := r.Body.(interface{ Len() int }).Len()
	if _, err := io.ReadFull(r.Body, buf[:n]); err != nil || n != 1024 {
		tb.Fatal(n, err)
	}
	r.Body.Close()
}

// TestUnaryAllocations holds a plain call over a warm connection, cancellable
// by a context of the standard library, to 6 allocations.
func TestUnaryAllocations(t *testing.T) {
	c := New(Options{BaseURL: echoless(t, `END"}`, unaryAnswer)})
	defer c.Close()
	call, buf := &backends.Call{Path: "/v1/embeddings", Body: []byte(question), ID: "req_1"}, make([]byte, 2048)
	unary(t, c, call, buf)
	if n := testing.AllocsPerRun(200, func() { unary(t, c, call, buf) }); n > 6 {
		t.Errorf("%v allocations a call, want at most 6", n)
	}
}

func BenchmarkUnary(b *testing.B) {
	url := echoless(b, `END"}`, unaryAnswer)
	call, buf := &backends.Call{Path: "/v1/embeddings", Body: []byte(question), ID: "req_1"}, make([]byte, 2048)
	b.Run("aloft", func(b *testing.B) {
		c := New(Options{BaseURL: url})
		defer c.Close()
		b.ReportAllocs()
		for b.Loop() {
			unary(b, c, call, buf)
		}
	})
	b.Run("fasthttp", func(b *testing.B) {
		c := &fasthttp.HostClient{Addr: strings.TrimPrefix(url, "http://")}
		defer c.CloseIdleConnections()
		b.ReportAllocs()
		for b.Loop() {
			req, res := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
			req.SetRequestURI(url + call.Path)
			req.Header.SetMethod("POST")
			req.Header.SetContentType("application/json")
			req.SetBodyRaw(call.Body)
			if err := c.Do(req, res); err != nil || len(res.Body()) != 1024 {
				b.Fatal(err)
			}
			fasthttp.ReleaseRequest(req)
			fasthttp.ReleaseResponse(res)
		}
	})
	b.Run("nethttp", func(b *testing.B) {
		t := &http.Transport{DisableCompression: true}
		defer t.CloseIdleConnections()
		b.ReportAllocs()
		for b.Loop() {
			res := netHTTP(b, t, url, call)
			if _, err := io.ReadFull(res.Body, buf[:1024]); err != nil {
				b.Fatal(err)
			}
			io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
	})
}

func netHTTP(b *testing.B, t *http.Transport, url string, call *backends.Call) *http.Response {
	ctx, cancel := context.WithCancel(b.Context())
	b.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+call.Path, bytes.NewReader(call.Body))
	if err != nil {
		b.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", call.ID)
	res, err := t.RoundTrip(req)
	if err != nil {
		b.Fatal(err)
	}
	return res
}

func BenchmarkStream100(b *testing.B) {
	url := echoless(b, `END"}`, streamAnswer)
	call, buf := &backends.Call{Path: "/v1/chat/completions", Body: []byte(question), ID: "req_1", Stream: true}, make([]byte, 4096)
	b.Run("aloft", func(b *testing.B) {
		c := New(Options{BaseURL: url})
		defer c.Close()
		b.ReportAllocs()
		for b.Loop() {
			r, err := c.Do(b.Context(), call)
			if err != nil {
				b.Fatal(err)
			}
			n := 0
			for ; err == nil; n++ {
				_, err = r.Body.Read(buf)
			}
			if r.Body.Close(); err != io.EOF || n != 102 {
				b.Fatal(n, err)
			}
		}
	})
	b.Run("nethttp", func(b *testing.B) {
		t := &http.Transport{DisableCompression: true}
		defer t.CloseIdleConnections()
		b.ReportAllocs()
		for b.Loop() {
			res := netHTTP(b, t, url, call)
			e, n := openai.NewEvents(res.Body, 1<<20), 0
			var err error
			for ; err == nil; n++ {
				_, err = e.Next()
			}
			if res.Body.Close(); err != io.EOF || n != 102 {
				b.Fatal(n, err)
			}
		}
	})
}
