package gateway

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"aloft/backends"
	"aloft/jobs"

	"github.com/valyala/fasthttp"
)

func TestBodyTime(t *testing.T) {
	for _, tt := range []struct {
		length int
		want   time.Duration
	}{
		{-1, 30 * time.Second}, {0, 30 * time.Second}, {128<<10 - 1, 30 * time.Second}, {1 << 20, 38 * time.Second}, {32 << 20, 286 * time.Second},
	} {
		if got := bodyTime(30*time.Second, tt.length); got != tt.want {
			t.Errorf("%d bytes: %v, want %v", tt.length, got, tt.want)
		}
	}
}

func TestDoor(t *testing.T) {
	addr := func(s string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(s), Port: 1} }
	d, limits := newDoor(), ConnLimits{All: 4, PerAddress: 2}
	for i, tt := range []struct {
		from string
		in   bool
	}{
		{"10.0.0.1", true}, {"::ffff:10.0.0.1", true}, {"10.0.0.1", false}, // one address, written in two ways
		{"2001:db8::1", true}, {"2001:db8::ffff:1", true}, {"2001:db8::2", false}, // one /64
		{"10.0.0.2", false}, // the server is full
	} {
		if got := d.enter(site(addr(tt.from)), limits); got != tt.in {
			t.Errorf("%d: %s came in: %v, want %v", i, tt.from, got, tt.in)
		}
	}
	d.leave(site(addr("2001:db8::1")))
	if !d.enter(site(addr("2001:db8:0:1::1")), limits) {
		t.Error("no place for another /64 after one has left")
	}
	for _, a := range []string{"10.0.0.1", "10.0.0.1", "2001:db8::1", "2001:db8:0:1::1"} {
		d.leave(site(addr(a)))
	}
	if d.open != 0 || len(d.from) != 0 || d.refused.Load() != 3 {
		t.Errorf("%d open from %v, %d refused, want none and 3", d.open, d.from, d.refused.Load())
	}
}

func (e *edge) dial(t testing.TB) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", e.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	return c
}

// exchangeRaw sends text and reads one answer.
func exchangeRaw(c net.Conn, text string) (status int, body string, err error) {
	if _, err := io.WriteString(c, text); err != nil {
		return 0, "", err
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, "", err
	}
	all, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(all), err
}

const healthText = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"

func TestConnectionLimit(t *testing.T) {
	e := start(t, answer(200, "{}"), func(o *Options, _ *Deps) { o.Conns.PerAddress = 2 })
	a, b := e.dial(t), e.dial(t)
	for _, c := range []net.Conn{a, b} {
		if status, _, err := exchangeRaw(c, healthText); status != 200 {
			t.Fatalf("within the limit: %d, %v", status, err)
		}
	}
	if status, body, err := exchangeRaw(e.dial(t), ""); status != 503 || !strings.Contains(body, `"code":"too_many_connections"`) {
		t.Errorf("over the limit: %d %s (%v)", status, body, err)
	}
	a.Close()
	until(t, "one connection to be open", func() bool { open, _ := e.Connections(); return open == 1 })
	if status, _, err := exchangeRaw(e.dial(t), healthText); status != 200 {
		t.Errorf("after one has left: %d, %v", status, err)
	}
	if _, refused := e.Connections(); refused != 1 {
		t.Errorf("%d refused, want 1", refused)
	}
}

// quickly is short enough to wait for.
const quickly = time.Second

func deadlines(o *Options, d time.Duration) {
	o.HeaderTimeout, o.BodyTimeout, o.UploadTimeout, o.WriteTimeout, o.IdleTimeout = d, d, d, d, d
}

// drip sends text, then a byte every 50 ms, until the server closes. It returns
// what the server said, and whether it closed while a client could wait.
func drip(c net.Conn, text string) (answer string, cut bool) {
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for _, err := io.WriteString(c, text); err == nil; _, err = c.Write([]byte("a")) {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	all, err := io.ReadAll(c) // a reset is an end too
	close(stop)
	<-stopped
	return string(all), !errors.Is(err, os.ErrDeadlineExceeded)
}

// Whoever is slow loses its connection, whatever it is slow at.
func TestSlowClientsAreCut(t *testing.T) {
	e := start(t, answer(200, "{}"), func(o *Options, _ *Deps) { deadlines(o, quickly) })
	for name, text := range map[string]string{
		"head":                 "GET /healthz HTTP/1.1\r\nX: ",
		"head on a second use": healthText + "GET /healthz HTTP/1.1\r\nX: ",
		"body":                 "POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{",
		"chunked body":         "POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n800000\r\n{",
		"file":                 "POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: 100000\r\n\r\n--b",
		"refused body":         "POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{",
	} {
		t.Run(name, func(t *testing.T) {
			if text, cut := drip(e.dial(t), text); !cut {
				t.Errorf("never cut, having said %q", text)
			}
		})
	}
	t.Run("idle", func(t *testing.T) {
		c := e.dial(t)
		if status, _, err := exchangeRaw(c, healthText); status != 200 {
			t.Fatal(status, err)
		}
		if n, err := c.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("an idle connection: %d bytes, %v, want its end", n, err)
		}
	})
	until(t, "no connection to be open", func() bool { open, _ := e.Connections(); return open == 0 })
}

// A reader that stops is cut; one that is slow but goes on gets everything. Its
// limit is one that a reader on a busy machine can keep.
func TestSlowReaders(t *testing.T) {
	const limit = 2 * time.Second
	big := "{" + strings.Repeat(" ", 8<<20-2) + "}"
	e := start(t, answer(200, big), func(o *Options, _ *Deps) { o.WriteTimeout = limit })
	body := embedBody + strings.Repeat(" ", readAhead) // of which some might have been unread
	text := fmt.Sprintf("POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	stuck := e.dial(t)
	stuck.(*net.TCPConn).SetReadBuffer(4 << 10)
	io.WriteString(stuck, text)
	slow := e.dial(t)
	slow.(*net.TCPConn).SetReadBuffer(64 << 10)
	began := time.Now()
	io.WriteString(slow, text)
	n, buf := 0, make([]byte, 256<<10)
	for n < len(big) {
		m, err := slow.Read(buf)
		if n += m; err != nil {
			t.Fatalf("slow reader cut after %d bytes and %v: %v", n, time.Since(began), err)
		}
		time.Sleep(time.Duration(m) * 500 * time.Nanosecond) // 4 s in all: twice the limit
	}
	if took := time.Since(began); took < limit {
		t.Errorf("read within %v: this was not slow", took)
	}
	slow.Close()
	until(t, "no connection to be open", func() bool { open, _ := e.Connections(); return open == 0 }) // stuck still holds its end
}

// A stream may last longer than every deadline, which here are long enough for a
// busy machine to send a request in.
func TestStreamOutlivesDeadlines(t *testing.T) {
	e := start(t, func(ctx context.Context, _ *backends.Request) (*backends.Reply, error) {
		f := newFeed(ctx)
		go func() {
			for range 10 {
				f.parts <- frameHel
				time.Sleep(quickly / 4)
			}
			f.parts <- frameFinish + frameDone
			f.end(io.EOF)
		}()
		return sse(f), nil
	}, func(o *Options, _ *Deps) { deadlines(o, quickly) })
	if _, parts, clean := chunks(t, e.raw(t, "/v1/chat/completions", streamBody)); !clean || len(parts) != 12 {
		t.Errorf("%d events, whole: %v, want 12", len(parts), clean)
	}
}

// A client that sends all of a refused upload before it reads gets to read why.
func TestRefusedUploadIsAnswered(t *testing.T) {
	e := withJobs(t, answer(200, "{}"), func(o *Options, _ *Deps) { o.MaxFile, o.MaxBody = 1<<20, 1<<20 })
	head := "POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=b\r\n"
	part := "--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n"
	for name, body := range map[string]string{
		"announced": head + fmt.Sprintf("Content-Length: %d\r\n\r\n", 30<<20) + part + strings.Repeat("x", 30<<20-len(part)),
		"JSON":      "POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 31457280\r\n\r\n" + strings.Repeat(" ", 30<<20),
		"chunked":   head + fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n", 30<<20) + part + strings.Repeat("x", 30<<20-len(part)) + "\r\n0\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			c := e.dial(t)
			status, text, err := exchangeRaw(c, body)
			if status != 413 || !strings.Contains(text, "request_too_large") {
				t.Errorf("%d %s (%v), want 413", status, text, err)
			}
			if _, err := c.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("after the answer: %v, want a clean end", err)
			}
		})
	}
}

// What has no end that both sides agree on is no request, and what follows it
// is none either (RFC 9112 section 6.3).
func TestUnframedIsRefused(t *testing.T) {
	e := start(t, answer(200, "{}"), func(o *Options, _ *Deps) { o.CORS = []string{"*"} })
	inner := fmt.Sprintf("POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(embedBody), embedBody)
	for name, tt := range map[string]struct {
		head    string
		answers []int // by status
	}{
		"identity":            {"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: identity\r\n\r\n", []int{400}},
		"its name and spaces": {"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\ntransfer-ENCODING:  Identity \r\n\r\n", []int{400}},
		"after others":        {"POST /v1/embeddings HTTP/1.1\r\nTE: x\r\nT: 1\r\nHost: x\r\nTransfer-Encoding:identity\r\nX: y\r\n\r\n", []int{400}},
		"of a GET":            {"GET /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: identity\r\n\r\n", []int{400}},
		"of a preflight":      {"OPTIONS /v1/embeddings HTTP/1.1\r\nHost: x\r\nOrigin: http://a\r\nAccess-Control-Request-Method: POST\r\nTransfer-Encoding: identity\r\n\r\n", []int{400}},
		"with a length":       {"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: identity\r\n\r\n{", []int{400}},
		"with no length":      {"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nTransfer-Encoding: identity\r\n\r\n", []int{400}},
		"expected":            {"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nTransfer-Encoding: identity\r\n\r\n", []int{100, 400}},
		"gzip":                {"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", []int{400}},
		"chunked, gzip":       {"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, gzip\r\n\r\n", []int{400}},
		"two":                 {"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n", []int{400}},
		"of HTTP/1.0":         {"POST /v1/embeddings HTTP/1.0\r\nTransfer-Encoding: identity\r\n\r\n", []int{400}},
		"chunked":             {"POST /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", []int{405, 200}},
		"line ends alone":     {strings.Repeat("\r\n", 5000), []int{400}},
		"line ends between":   {healthText + strings.Repeat("\n", 9000), []int{200, 400}},
		"a few line ends":     {"\r\n" + healthText + "\r\n\r\n", []int{200, 200}},
		"nothing":             {"POST /healthz HTTP/1.1\r\nHost: x\r\nX-Transfer-Encoding: identity\r\n\r\n", []int{405, 200}},
	} {
		t.Run(name, func(t *testing.T) {
			c := e.dial(t)
			io.WriteString(c, tt.head+inner)
			c.(*net.TCPConn).CloseWrite()
			all, err := io.ReadAll(c)
			if err != nil {
				t.Fatal(err)
			}
			var got []int
			for _, part := range strings.Split(string(all), "HTTP/1.1 ")[1:] {
				status, _ := strconv.Atoi(part[:3])
				got = append(got, status)
			}
			if !slices.Equal(got, tt.answers) {
				t.Errorf("answers %v, want %v:\n%s", got, tt.answers, all)
			}
		})
	}
}

// Line ends at the end of a body are the body's: they bring no second answer.
func TestBodyOfLineEnds(t *testing.T) {
	e := start(t, answer(200, "{}"))
	c := e.dial(t)
	body := embedBody + strings.Repeat("\n", headMost)
	fmt.Fprintf(c, "POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	all, err := io.ReadAll(c)
	if text := string(all); err != nil || !strings.HasPrefix(text, "HTTP/1.1 200 ") || strings.Count(text, "HTTP/1.1") != 1 {
		t.Errorf("%s (%v), want one answer, 200", text, err)
	}
}

// An answer that does not wait for the body is whole for a client that wants the
// connection closed, however much of the body lies unread.
func TestUnreadBodyLosesNoAnswer(t *testing.T) {
	e := start(t, answer(200, "{}"))
	for _, size := range []int{8 << 10, 9 << 10, 100 << 10, 300 << 10} {
		c := e.dial(t)
		head := fmt.Sprintf("POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: %d\r\n\r\n", size)
		if _, err := io.WriteString(c, head+strings.Repeat("x", size)); err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
		all, err := io.ReadAll(c)
		if err != nil || !strings.HasPrefix(string(all), "HTTP/1.1 415 ") || !strings.HasSuffix(string(all), "}") {
			t.Errorf("%d bytes: %q, %v, want 415 and the end", size, all, err)
		}
	}
}

// A drain does not wait for a client that keeps its connection after a body of
// which some might have been left unread.
func TestDrainClosesIdleConnections(t *testing.T) {
	e := start(t, answer(200, "{}"))
	c := e.dial(t)
	if status, text, err := exchangeRaw(c, "POST /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"); status != 405 {
		t.Fatalf("%d %s (%v), want 405", status, text, err)
	}
	e.stop()
	select {
	case err := <-e.served:
		e.served <- err // for the cleanup
	case <-time.After(lingerTime / 2):
		t.Errorf("Serve still waits for an idle connection after %v", lingerTime/2)
	}
	if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("read %d bytes, %v, want the end", n, err)
	}
}

// Nor does it for one between its answer and its rest, which fasthttp may take
// for idle: the drain closes all of them in one goroutine.
func TestDrainLingersNowhere(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	c := &conn{Conn: half{near}, door: newDoor()}
	c.lingers.Store(true)
	c.door.shut.Store(true)
	if err := c.Close(); err != nil { // half would panic
		t.Error(err)
	}
}

// half is a connection that must not be half closed.
type half struct{ net.Conn }

func (half) CloseWrite() error { panic("lingers") }

// Only the files API has the limits of uploads.
func TestUploadIsTheRouteOfFiles(t *testing.T) {
	for line, want := range map[string]bool{
		"POST /v1/files": true, "POST /v1/files?a=/v1/files": true, "POST http://x/v1/files": true, "POST http://x/v1/files?a": true,
		"GET /v1/files": false, "POST /v1/chat/completions?/v1/files": false, "POST /v1/completions/v1/files": false,
		"POST /v1/files/v1/files": false, "POST http://x/y/v1/files": false, "POST http://x/v1/chat/completions?/v1/files": false,
	} {
		var h fasthttp.RequestHeader
		if err := h.Read(bufio.NewReader(strings.NewReader(line + " HTTP/1.1\r\nHost: x\r\n\r\n"))); err != nil {
			t.Fatal(err)
		}
		if got := isUpload(&h); got != want {
			t.Errorf("%s: %v, want %v", line, got, want)
		}
	}
}

// A length that is too large is refused from the head: no byte of the body is
// asked or waited for, and what comes first in the head is still said first.
func TestOversizedIsRefusedFromTheHead(t *testing.T) {
	lim := func(o *Options, _ *Deps) { o.MaxFile, o.MaxBody = 1<<20, 10000 }
	e := withJobs(t, answer(200, "{}"), lim)
	form := "Content-Type: multipart/form-data; boundary=b\r\n"
	for name, tt := range map[string]struct {
		head   string
		status int
		code   string
	}{
		"JSON":              {"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 10001\r\n\r\n", 413, "request_too_large"},
		"HTTP/1.0":          {"POST /v1/embeddings HTTP/1.0\r\nContent-Length: 10001\r\n\r\n", 413, "request_too_large"},
		"expected":          {"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 30000000\r\n\r\n", 413, "request_too_large"},
		"upload":            {"POST /v1/files HTTP/1.1\r\nHost: x\r\n" + form + "Content-Length: 2097153\r\n\r\n", 413, "request_too_large"},
		"expected upload":   {"POST /v1/files HTTP/1.1\r\nHost: x\r\n" + form + "Expect: 100-continue\r\nContent-Length: 9000000000\r\n\r\n", 413, "request_too_large"},
		"no such URL":       {"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 10001\r\n\r\n", 404, "unknown_url"},
		"of another type":   {"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: 10001\r\n\r\n", 415, "unsupported_media_type"},
		"a probe with much": {"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 10001\r\n\r\n", 200, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := e.dial(t)
			io.WriteString(c, tt.head)
			all, err := io.ReadAll(c)
			if err != nil {
				t.Fatal(err)
			}
			head, body, _ := strings.Cut(string(all), "\r\n\r\n")
			if !strings.HasPrefix(head, fmt.Sprintf("HTTP/1.1 %d ", tt.status)) || !strings.Contains(head, "Connection: close") || !strings.Contains(body, tt.code) {
				t.Errorf("%s, want %d %s at once and the connection closed", all, tt.status, tt.code)
			}
		})
	}
}

// Large bodies that do not end share a bounded memory; small requests need none
// of it, and what was held is there again when their clients have left.
func TestLargeBodiesAreBounded(t *testing.T) {
	e := start(t, answer(200, "{}"), func(o *Options, _ *Deps) { o.MaxBody = 1 << 20 })
	head := "POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 1048576\r\n\r\n"
	large := head + embedBody + strings.Repeat(" ", 1<<20-len(embedBody))
	var held []net.Conn
	for range bodiesMost / copies {
		c := e.dial(t)
		io.WriteString(c, large[:len(large)-1])
		held = append(held, c)
	}
	until(t, "the bodies to be held", func() bool { return e.bodies.Load() == bodiesMost*(1<<20-1) })
	if status, text, err := exchangeRaw(e.dial(t), large); status != 429 || !strings.Contains(text, `"code":"overloaded"`) {
		t.Errorf("one more: %d %s (%v), want 429", status, text, err)
	}
	if resp, text := e.post(t, "/v1/embeddings", embedBody); resp.StatusCode != 200 {
		t.Errorf("a small one: %d %s, want 200", resp.StatusCode, text)
	}
	for _, c := range held {
		c.Close()
	}
	until(t, "no body to be held", func() bool { return e.bodies.Load() == 0 })
	if status, text, err := exchangeRaw(e.dial(t), large); status != 200 {
		t.Errorf("after they have left: %d %s (%v)", status, text, err)
	}
	if resp, text := e.post(t, "/v1/embeddings", "{"+strings.Repeat(" ", 100<<10)); resp.StatusCode != 400 {
		t.Errorf("a large one that is no JSON: %d %s, want 400", resp.StatusCode, text)
	}
	until(t, "no body to be held", func() bool { return e.bodies.Load() == 0 })
}

// Rows of batches take of the same memory, wait for it, and give it back.
func TestLargeRowsAreBounded(t *testing.T) {
	gone := make(chan error, 1)
	e := start(t, holds(gone), func(o *Options, _ *Deps) { o.MaxBody = 1 << 20 })
	large := jobs.Row{ID: "row", Endpoint: backends.Embeddings, Body: []byte(embedBody + strings.Repeat(" ", wholeAlloc))}
	fill := bodiesMost*int64(1<<20) - weight(large.Body) + 1
	e.bodies.Add(fill)
	var retry *backends.RetryError
	if _, err := e.Call(t.Context(), large); !errors.As(err, &retry) || retry.Reason != backends.ReasonQueueFull || e.bodies.Load() != fill {
		t.Errorf("a row too many: %v, with %d bytes held, want to come back, and %d", err, e.bodies.Load(), fill)
	}
	e.bodies.Add(-fill)
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		for e.bodies.Load() != weight(large.Body) {
			runtime.Gosched()
		}
		cancel(backends.ErrDraining)
	}()
	if _, err := e.Call(ctx, large); !errors.Is(err, backends.ErrDraining) || e.bodies.Load() != 0 {
		t.Errorf("%v, with %d bytes held at the end", err, e.bodies.Load())
	}
}

// Reading a large body leaves no garbage beyond the pieces, which the next one
// takes again: what io.ReadAll leaves is three times the body.
func TestLargeBodiesLeaveNoGarbage(t *testing.T) {
	if raced {
		t.Skip("under the race detector pools forget")
	}
	const size = 16 << 20
	s, err := New(Options{}, Deps{Catalog: testModels(), Submitter: answer(200, "{}")}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer s.stop(backends.ErrDraining)
	data := make([]byte, size)
	var before, after runtime.MemStats
	for _, want := range []uint64{2 * size, size} { // the first time the pieces are made
		runtime.ReadMemStats(&before)
		body, err := (&weighed{r: bytes.NewReader(data), s: s}).all(size)
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; err != nil || len(body) != size || got > want+size/4 {
			t.Errorf("%d bytes read (%v): %d allocated, want at most %d", len(body), err, got, want+size/4)
		}
	}
}

// Slow clients do not delay a quick one: its median stays within five times
// that without them, in one of ten rounds. Each round measures both, for a
// machine's other work comes and goes.
func TestSlowClientsDelayNobody(t *testing.T) {
	e := start(t, answer(200, strings.Repeat("x", 1<<20)), func(o *Options, _ *Deps) { o.MaxBody = 1 << 20 })
	c := e.dial(t)
	r := bufio.NewReader(c)
	median := func() time.Duration {
		var all []time.Duration
		for range 200 {
			began := time.Now()
			io.WriteString(c, healthText)
			resp, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatal(err)
			}
			io.Copy(io.Discard, resp.Body)
			all = append(all, time.Since(began))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	slow := func() (stop func()) {
		var all []net.Conn
		for i := range 32 {
			c := e.dial(t)
			all = append(all, c)
			c.(*net.TCPConn).SetReadBuffer(4 << 10)
			io.WriteString(c, []string{
				"GET /healthz HTTP/1.1\r\nX:", "POST /v1/embeddings HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n{",
				fmt.Sprintf("POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(embedBody), embedBody),
			}[i%3])
		}
		return func() {
			for _, c := range all {
				c.Close()
			}
			until(t, "the slow ones to be gone", func() bool { open, _ := e.Connections(); return open == 1 })
		}
	}
	var seen []string
	for range 10 {
		quiet := median()
		stop := slow()
		busy := median()
		if stop(); busy <= 5*quiet {
			return
		}
		seen = append(seen, fmt.Sprintf("%v, %v", quiet, busy))
	}
	t.Errorf("medians without slow clients, and beside them: %s", strings.Join(seen, "; "))
}

// A thousand idle connections and two hundred half-sent bodies stop nobody.
func TestManyConnections(t *testing.T) {
	e := start(t, answer(200, `{"object":"list"}`))
	var all sync.WaitGroup
	for i := range 1200 {
		c := e.dial(t)
		text := healthText
		if i >= 1000 {
			text = "POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{"
		}
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		if i < 1000 {
			all.Go(func() { io.ReadFull(c, make([]byte, 100)) })
		}
	}
	all.Wait()
	until(t, "1200 connections", func() bool { open, _ := e.Connections(); return open >= 1200 })
	if resp, text := e.post(t, "/v1/embeddings", embedBody); resp.StatusCode != 200 {
		t.Errorf("answer %d %s", resp.StatusCode, text)
	}
}

// pems writes a pair of PEM files.
func pems(t *testing.T, dir string) (cert, key string) {
	t.Helper()
	pair := selfSigned(t)
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	write(t, cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}))
	write(t, key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	return cert, key
}

func write(t *testing.T, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func withTLS(t *testing.T) (*Certificate, func(*Options, *Deps)) {
	t.Helper()
	cert, key := pems(t, t.TempDir())
	c, err := LoadCertificate(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return c, func(o *Options, _ *Deps) { o.TLS = c }
}

func TestTLS(t *testing.T) {
	cert, on := withTLS(t)
	e := start(t, answer(200, "{}"), on)
	dial := func(most uint16) (serial []byte, err error) {
		c, err := tls.Dial("tcp", e.addr, &tls.Config{InsecureSkipVerify: true, MaxVersion: most, NextProtos: []string{"h2", "http/1.1"}})
		if err != nil {
			return nil, err
		}
		defer c.Close()
		if status, _, err := exchangeRaw(c, healthText); status != 200 {
			t.Errorf("over TLS: %d, %v", status, err)
		}
		if p := c.ConnectionState().NegotiatedProtocol; p != "http/1.1" {
			t.Errorf("protocol %q, want http/1.1", p)
		}
		return c.ConnectionState().PeerCertificates[0].Raw, nil
	}
	if _, err := dial(tls.VersionTLS11); err == nil {
		t.Error("TLS 1.1 was spoken")
	}
	first, err := dial(0)
	if err != nil {
		t.Fatal(err)
	}
	good, _ := os.ReadFile(cert.certFile)
	for name, tt := range map[string]struct{ file, text, want string }{
		"no certificate":  {cert.certFile, "nothing", cert.certFile},
		"key as cert":     {cert.certFile, "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", cert.certFile},
		"broken key":      {cert.keyFile, "nothing", cert.keyFile},
		"no key any more": {cert.keyFile, "", cert.keyFile},
	} {
		old, _ := os.ReadFile(tt.file)
		write(t, tt.file, []byte(tt.text))
		if err := cert.Reload(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want an error that names %s", name, err, tt.want)
		}
		write(t, tt.file, old)
		if now, err := dial(0); err != nil || !bytes.Equal(now, first) {
			t.Errorf("%s: the old pair does not go on: %v", name, err)
		}
	}
	pems(t, filepath.Dir(cert.certFile))
	other, _ := os.ReadFile(cert.certFile)
	write(t, cert.certFile, good)
	if err := cert.Reload(); err == nil || !strings.Contains(err.Error(), cert.keyFile) {
		t.Errorf("a key of another certificate: %v", err)
	}
	write(t, cert.certFile, other)
	if err := cert.Reload(); err != nil {
		t.Fatal(err)
	}
	if now, err := dial(0); err != nil || bytes.Equal(now, first) {
		t.Errorf("the new pair is not served: %v", err)
	}
	block, _ := pem.Decode(good)
	leaf, _ := x509.ParseCertificate(block.Bytes)
	if err := checkChain(good, leaf.NotAfter.Add(time.Second)); err == nil {
		t.Error("a certificate that has ended is taken")
	}
}

// A client that leaves is noticed through TLS too, wherever its request is.
func TestClientLeavesTLS(t *testing.T) {
	for name, tt := range map[string]struct {
		body  string
		reply func(*feed) *backends.Reply // nil: still queued
	}{
		"queued":     {embedBody, nil},
		"mid-stream": {streamBody, func(f *feed) *backends.Reply { f.parts <- frameHel; return sse(f) }},
		"in a plain reply": {chatBody, func(f *feed) *backends.Reply {
			f.parts <- `{"half":`
			r := whole200(200, "")
			r.Body = f
			return r
		}},
	} {
		t.Run(name, func(t *testing.T) {
			_, on := withTLS(t)
			begun, ended := make(chan struct{}, 1), make(chan error, 1)
			e := start(t, func(ctx context.Context, _ *backends.Request) (*backends.Reply, error) {
				context.AfterFunc(ctx, func() { ended <- context.Cause(ctx) })
				begun <- struct{}{}
				if tt.reply != nil {
					return tt.reply(newFeed(ctx)), nil
				}
				<-ctx.Done()
				return nil, context.Cause(ctx)
			}, on)
			c, err := tls.Dial("tcp", e.addr, &tls.Config{InsecureSkipVerify: true})
			if err != nil {
				t.Fatal(err)
			}
			path := "/v1/chat/completions"
			if tt.body == embedBody {
				path = "/v1/embeddings"
			}
			fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", path, len(tt.body), tt.body)
			<-begun
			if tt.body == streamBody {
				if _, err := io.ReadFull(c, make([]byte, 20)); err != nil {
					t.Fatal(err)
				}
			}
			c.Close()
			wantGone(t, ended)
			if o := e.ledger.wait(t); o.Status != 499 {
				t.Errorf("outcome %d, want 499", o.Status)
			}
		})
	}
}

func TestCORS(t *testing.T) {
	page := "https://app.example:8443"
	e := start(t, answer(200, "{}"), func(o *Options, _ *Deps) { o.CORS = []string{page} })
	ask := func(origin string) []string {
		return []string{"Origin", origin, "Access-Control-Request-Method", "POST",
			"Access-Control-Request-Headers", "authorization, Content-Type, x-stainless-os, cookie"}
	}
	resp, _ := e.do(t, "OPTIONS", "/v1/embeddings", "", ask(page)...)
	for k, want := range map[string]string{
		"Access-Control-Allow-Origin": page, "Access-Control-Allow-Methods": corsMethods, "Access-Control-Max-Age": "7200",
		"Access-Control-Allow-Headers": "authorization, content-type, x-stainless-os", "Access-Control-Allow-Credentials": "",
	} {
		if got := resp.Header.Get(k); got != want || resp.StatusCode != 204 {
			t.Errorf("preflight %d: %s is %q, want %q", resp.StatusCode, k, got, want)
		}
	}
	resp, _ = e.post(t, "/v1/embeddings", embedBody, "Origin", page)
	if h := resp.Header; h.Get("Access-Control-Allow-Origin") != page || !slices.Contains(h.Values("Vary"), "Origin") ||
		!strings.Contains(h.Get("Access-Control-Expose-Headers"), "X-Ratelimit-Remaining-Tokens") {
		t.Errorf("answer to a page: %v", h)
	}
	resp, _ = e.do(t, "OPTIONS", "/v1/embeddings", "", ask("https://evil.example")...)
	if resp.StatusCode != 405 || resp.Header.Get("Access-Control-Allow-Origin") != "" || resp.Header.Get("Vary") != "Origin" {
		t.Errorf("preflight of a stranger: %d %v", resp.StatusCode, resp.Header)
	}
	open := start(t, answer(200, "{}"), func(o *Options, _ *Deps) { o.CORS = []string{"*"} })
	if resp, _ := open.post(t, "/v1/embeddings", embedBody, "Origin", page); resp.Header.Get("Access-Control-Allow-Origin") != "*" ||
		resp.Header.Get("Access-Control-Allow-Credentials") != "" {
		t.Errorf("open to all: %v", resp.Header)
	}
	none := start(t, answer(200, "{}"))
	if resp, _ := none.do(t, "OPTIONS", "/v1/embeddings", "", ask(page)...); resp.StatusCode != 405 || resp.Header.Get("Vary") != "" {
		t.Errorf("without configuration: %d %v, want 405", resp.StatusCode, resp.Header)
	}
	for _, bad := range []string{"app.example", "https://app.example/", "https://APP.example", "ftp://a", ""} {
		if _, err := New(Options{CORS: []string{bad}}, Deps{Catalog: testModels(), Submitter: answer(200, "")}, nil); err == nil {
			t.Errorf("origin %q is taken", bad)
		}
	}
}

func TestFileName(t *testing.T) {
	for given, want := range map[string]string{
		"rows é.jsonl": "rows é.jsonl", "": "upload", ".": "upload", "..": "upload", "/etc/passwd": "passwd", `C:\x\y.jsonl`: "y.jsonl",
		"a\r\nb\x00\x1b[31m": "ab[31m", "bad\xff": "bad", "\u202egpj.exe": "gpj.exe", " ": "upload",
		strings.Repeat("é", 200): strings.Repeat("é", 127),
	} {
		if got := fileName(given); got != want {
			t.Errorf("%q became %q, want %q", given, got, want)
		}
	}
}

// fullDisk is a job manager whose disk is full: /dev/full is.
type fullDisk struct{ theFiles }

type theFiles = Files // the name of a field would hide the method Files

func (fullDisk) CreateFile(_ context.Context, _ func() (jobs.FileSpec, error), r io.Reader) (jobs.File, error) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		return jobs.File{}, err
	}
	defer full.Close()
	_, err = io.Copy(full, r)
	return jobs.File{}, fmt.Errorf("file: %w", err)
}

func TestDiskFull(t *testing.T) {
	e := start(t, answer(200, "{}"), func(_ *Options, d *Deps) { d.Files = fullDisk{} })
	status, reply := e.upload(t, "purpose", "batch", "file", "x")
	if status != 507 || reply["error"].(map[string]any)["code"] != "insufficient_storage" {
		t.Errorf("%d %v, want 507", status, reply)
	}
	resp, body := e.do(t, "POST", "/v1/files", "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"+
		"--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\nx\r\n--b--\r\n", "Content-Type", "multipart/form-data; boundary=b")
	if resp.StatusCode != 507 || resp.Header.Get("X-Aloft-Reason") != "storage_full" || resp.Header.Get("X-Should-Retry") != "false" {
		t.Errorf("%d %s %v, want 507, storage_full and no retry", resp.StatusCode, body, resp.Header)
	}
}

func TestFileContentHead(t *testing.T) {
	e := withJobs(t, answer(200, "{}"))
	_, f := e.upload(t, "purpose", "batch", "file", "some rows")
	resp, text := e.do(t, "HEAD", "/v1/files/"+f["id"].(string)+"/content", "")
	if resp.StatusCode != 200 || resp.ContentLength != 9 || text != "" || resp.Header.Get("Content-Disposition") == "" {
		t.Errorf("HEAD: %d, %d bytes announced, %v", resp.StatusCode, resp.ContentLength, resp.Header)
	}
	until(t, "the end of every request", func() bool { return e.active.Load() == 0 })
}
