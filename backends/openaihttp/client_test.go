package openaihttp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"aloft/backends"
)

// engine serves each connection with f, which gets the request and the socket.
// Real sockets: closing and resetting them is what this package is about.
func engine(t *testing.T, network string, f func(n int, req *http.Request, c net.Conn)) string {
	t.Helper()
	addr, base := "127.0.0.1:0", "http://"
	if network == "unix" {
		addr, base = filepath.Join(t.TempDir(), "e.sock"), "unix://"
	}
	ln, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	var requests atomic.Int32
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for r := bufio.NewReader(c); ; {
					req, err := http.ReadRequest(r)
					if err != nil {
						return
					}
					body, err := io.ReadAll(req.Body)
					if err != nil {
						return
					}
					req.Header.Set("Test-Body", string(body))
					f(int(requests.Add(1)), req, c)
				}
			}()
		}
	}()
	return base + ln.Addr().String()
}

func client(t *testing.T, o Options) *Client {
	t.Helper()
	if err := o.Validate(); err != nil {
		t.Fatal(err)
	}
	c := New(o)
	t.Cleanup(c.Close)
	return c
}

const sse = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"

func chunk(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }

var (
	plainCall  = &backends.Call{Path: "/v1/embeddings", Body: []byte(`{"a":1}`), ID: "req_7"}
	streamCall = &backends.Call{Path: "/v1/chat/completions", Body: []byte(`{}`), Stream: true}
)

func TestPlainReply(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		url := engine(t, network, func(_ int, req *http.Request, c net.Conn) {
			text := fmt.Sprint(req.Method, " ", req.URL.Path, " ", req.Header.Get("Test-Body"), " ", req.Header.Get("X-Request-Id"), " ",
				req.Header.Get("Authorization"), " ", req.Header.Get("Accept-Encoding"), "|", req.ContentLength)
			fmt.Fprintf(c, "HTTP/1.1 418 X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
		})
		c := client(t, Options{BaseURL: url, APIKey: "k"})
		for range 2 {
			r, err := c.Do(t.Context(), plainCall)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(r.Body)
			r.Body.Close()
			want := `POST /v1/embeddings {"a":1} req_7 Bearer k |7`
			if err != nil || r.Status != 418 || r.ContentType != "application/json" || string(got) != want || r.Timing.Engine <= 0 {
				t.Errorf("%s: %d %q, %v", network, r.Status, got, err)
			}
		}
	}
}

func TestOneEventARead(t *testing.T) {
	url := engine(t, "tcp", func(_ int, _ *http.Request, c net.Conn) {
		io.WriteString(c, sse+chunk("data: a\n\ndata: b\r\n\r\nda"))
		io.WriteString(c, chunk("ta: 0123456789\n\n: ping\n\n")+"0\r\n\r\n")
	})
	r, err := client(t, Options{BaseURL: url}).Do(t.Context(), streamCall)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	var got []string
	buf := make([]byte, 10)
	for {
		n, err := r.Body.Read(buf)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(buf[:n]))
	}
	if want := "data: a\n\n|data: b\n\n|data: 0123|456789\n\n"; strings.Join(got, "|") != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A relay stops at [DONE]; that must not cost the connection, nor may an engine
// that leaves the body open hold up Close.
func TestCloseAfterDoneKeepsTheConnection(t *testing.T) {
	for range 20 {
		if conns, inTime := closeAfterDone(t); inTime {
			if conns != 1 {
				t.Errorf("%d connections for 3 streams, want 1", conns)
			}
			return
		}
	}
	t.Error("no engine ended its bodies in time")
}

// closeAfterDone tells how many connections were used, and whether the engine got
// to end its bodies in time.
func closeAfterDone(t *testing.T) (n int, inTime bool) {
	t.Helper()
	var conns sync.Map
	url := engine(t, "tcp", func(n int, _ *http.Request, c net.Conn) {
		conns.Store(c, true)
		io.WriteString(c, sse+chunk("data: a\n\n")+chunk("data: [DONE]\n\n"))
		if n < 3 {
			time.Sleep(5 * time.Millisecond)
			io.WriteString(c, "0\r\n\r\n")
		}
	})
	c := client(t, Options{BaseURL: url})
	inTime = true
	for i := range 3 {
		r, err := c.Do(t.Context(), streamCall)
		if err != nil {
			t.Fatal(err)
		}
		buf, text := make([]byte, 100), ""
		for !strings.Contains(text, "[DONE]") {
			n, err := r.Body.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			text += string(buf[:n])
		}
		start := time.Now()
		r.Body.Close()
		d := time.Since(start)
		if d > time.Minute {
			t.Errorf("Close of stream %d took %v", i, d)
		}
		if i < 2 && d >= endTime {
			inTime = false
		}
	}
	conns.Range(func(_, _ any) bool { n++; return true })
	return n, inTime
}

// A stream call that fails early is answered with JSON, which is no SSE.
func TestStreamCallWithPlainReply(t *testing.T) {
	url := engine(t, "tcp", func(_ int, _ *http.Request, c net.Conn) {
		io.WriteString(c, "HTTP/1.1 429 X\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
	})
	r, err := client(t, Options{BaseURL: url}).Do(t.Context(), streamCall)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if b, err := io.ReadAll(r.Body); r.Status != 429 || string(b) != "{}" || err != nil {
		t.Errorf("%d %q %v", r.Status, b, err)
	}
}

// hold answers with the head and then waits until the client closes.
func hold(t *testing.T, network, head string) (url string, entered, closed chan struct{}) {
	entered, closed = make(chan struct{}, 9), make(chan struct{}, 9)
	return engine(t, network, func(_ int, _ *http.Request, c net.Conn) {
		io.WriteString(c, head)
		entered <- struct{}{}
		c.Read(make([]byte, 1)) // until it fails
		closed <- struct{}{}
	}), entered, closed
}

func TestCancelClosesTheConnection(t *testing.T) {
	gone := errors.New("client gone")
	for _, network := range []string{"tcp", "unix"} {
		// Before the first byte.
		url, entered, closed := hold(t, network, "")
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() { <-entered; cancel(gone) }()
		if _, err := client(t, Options{BaseURL: url}).Do(ctx, plainCall); !errors.Is(err, gone) {
			t.Errorf("%s: %v, want the context's cause", network, err)
		}
		within(t, closed)
		// In a stream, by the context.
		url, _, closed = hold(t, network, sse+chunk("data: a\n\n"))
		ctx, cancel = context.WithCancelCause(t.Context())
		r, err := client(t, Options{BaseURL: url}).Do(ctx, streamCall)
		if err != nil {
			t.Fatal(err)
		}
		cancel(gone)
		if b, err := io.ReadAll(r.Body); !errors.Is(err, gone) || string(b) != "data: a\n\n" {
			t.Errorf("%s: %q, %v, want the event and the context's cause", network, b, err)
		}
		within(t, closed)
		r.Body.Close()
		// In a stream, by Close.
		url, _, closed = hold(t, network, sse+chunk("data: a\n\n"))
		if r, err = client(t, Options{BaseURL: url}).Do(t.Context(), streamCall); err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		within(t, closed)
	}
}

func within(t *testing.T, c chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(time.Minute):
		t.Fatal("the engine's connection stays open")
	}
}

func TestSilentEngine(t *testing.T) {
	for name, head := range map[string]string{
		"nothing": "", "headers only": sse, "half an event": sse + chunk("data: "), "a comment": sse + chunk(": ping\n\n"),
	} {
		url, _, closed := hold(t, "tcp", head)
		_, err := client(t, Options{BaseURL: url, FirstByteTimeout: 30 * time.Millisecond}).Do(t.Context(), streamCall)
		if !errors.Is(err, backends.ErrSilent) {
			t.Errorf("%s: %v, want ErrSilent", name, err)
		}
		within(t, closed)
	}
	url, _, closed := hold(t, "tcp", sse+chunk("data: a\n\n"))
	r, err := client(t, Options{BaseURL: url, StreamIdleTimeout: 30 * time.Millisecond}).Do(t.Context(), streamCall)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if b, err := io.ReadAll(r.Body); !errors.Is(err, backends.ErrSilent) || string(b) != "data: a\n\n" {
		t.Errorf("%q, %v, want the event, then ErrSilent", b, err)
	}
	within(t, closed)
}

func TestResetMidStream(t *testing.T) {
	for name, reset := range map[string]bool{"reset": true, "closed without the last chunk": false} {
		read := make(chan struct{})
		url := engine(t, "tcp", func(_ int, _ *http.Request, c net.Conn) {
			io.WriteString(c, sse+chunk("data: a\n\ndata: b\n\n"))
			<-read // a reset may overtake bytes not read yet
			if reset {
				c.(*net.TCPConn).SetLinger(0)
			}
			c.Close()
		})
		r, err := client(t, Options{BaseURL: url}).Do(t.Context(), streamCall)
		if err != nil {
			t.Fatal(err)
		}
		close(read)
		b, err := io.ReadAll(r.Body)
		if string(b) != "data: a\n\ndata: b\n\n" || !errors.Is(err, backends.ErrBadReply) {
			t.Errorf("%s: %q, %v, want both events, then ErrBadReply", name, b, err)
		}
		r.Body.Close()
	}
}

func TestStaleConnectionIsRetriedOnce(t *testing.T) {
	ok := "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
	var seen atomic.Int32
	url := engine(t, "tcp", func(n int, req *http.Request, c net.Conn) {
		seen.Store(int32(n))
		switch n {
		case 1, 3:
			io.WriteString(c, ok)
		case 2: // the second call on the kept connection
			c.Close()
		default: // new connections from here on: closed too
			c.Close()
		}
	})
	c := client(t, Options{BaseURL: url})
	do := func() error {
		r, err := c.Do(t.Context(), plainCall)
		if err == nil {
			_, err = io.ReadAll(r.Body)
			r.Body.Close()
		}
		return err
	}
	if err := do(); err != nil {
		t.Fatal(err)
	}
	if err := do(); err != nil {
		t.Errorf("call on a stale connection: %v, want a retry on a fresh one", err)
	}
	// The fresh connection was kept and is closed under the third call, and so is
	// the one of its retry: a close without an answer there is the engine's doing.
	if err := do(); !errors.Is(err, backends.ErrBadReply) || errors.Is(err, backends.ErrConnect) {
		t.Errorf("fresh connection closed: %v, want ErrBadReply", err)
	}
	if n := seen.Load(); n != 5 {
		t.Errorf("the engine saw %d requests, want 5", n)
	}
}

func TestNoRetryAfterAByte(t *testing.T) {
	var seen atomic.Int32
	url := engine(t, "tcp", func(n int, _ *http.Request, c net.Conn) {
		if seen.Store(int32(n)); n == 1 {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
			return
		}
		io.WriteString(c, "HTTP/1.1 200")
		c.Close()
	})
	c := client(t, Options{BaseURL: url})
	r, err := c.Do(t.Context(), plainCall)
	if err != nil {
		t.Fatal(err)
	}
	io.ReadAll(r.Body)
	r.Body.Close()
	if _, err = c.Do(t.Context(), plainCall); !errors.Is(err, backends.ErrBadReply) || seen.Load() != 2 {
		t.Errorf("%v after %d requests, want ErrBadReply after 2", err, seen.Load())
	}
}

func TestErrors(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	for url, want := range map[string]error{
		"http://" + ln.Addr().String(): backends.ErrConnect,
		"unix:///nonexistent/e.sock":   backends.ErrConnect,
		engine(t, "tcp", func(_ int, _ *http.Request, c net.Conn) { io.WriteString(c, "SSH-2.0\r\n\r\n"); c.Close() }): backends.ErrBadReply,
		engine(t, "tcp", func(_ int, _ *http.Request, c net.Conn) {
			io.WriteString(c, sse+chunk("data: "+strings.Repeat("x", 200)))
		}): backends.ErrBadReply,
	} {
		_, err := client(t, Options{BaseURL: url, MaxEvent: 100}).Do(t.Context(), streamCall)
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", url, err, want)
		}
	}
	long := engine(t, "tcp", func(_ int, _ *http.Request, c net.Conn) {
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n"+strings.Repeat("x", 9000))
	})
	r, err := client(t, Options{BaseURL: long, MaxReply: 5000}).Do(t.Context(), plainCall)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if _, err := io.ReadAll(r.Body); !errors.Is(err, backends.ErrBadReply) {
		t.Errorf("reply over the limit: %v", err)
	}
}

func TestReady(t *testing.T) {
	for _, tc := range []struct {
		health, models int
		want           error
	}{{200, 500, nil}, {404, 200, nil}, {404, 404, backends.ErrUnavailable}, {503, 200, backends.ErrUnavailable}} {
		url := engine(t, "tcp", func(_ int, req *http.Request, c net.Conn) {
			fmt.Fprintf(c, "HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n", map[string]int{"/health": tc.health, "/v1/models": tc.models}[req.URL.Path])
		})
		if err := client(t, Options{BaseURL: url}).Ready(t.Context()); !errors.Is(err, tc.want) {
			t.Errorf("%+v: %v", tc, err)
		}
	}
	if err := New(Options{BaseURL: "unix:///nonexistent"}).Ready(t.Context()); !errors.Is(err, backends.ErrConnect) {
		t.Errorf("no engine: %v", err)
	}
}

func TestValidate(t *testing.T) {
	for _, url := range []string{"", "127.0.0.1:80", "ftp://x", "http://", "unix://", "unix://host/x", "http://x?y=1", "http://x:y"} {
		if (Options{BaseURL: url}).Validate() == nil {
			t.Errorf("%q is accepted", url)
		}
	}
	if (Options{BaseURL: "http://x", MaxReply: -1}).Validate() == nil {
		t.Error("a negative limit is accepted")
	}
}
