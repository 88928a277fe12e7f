package openaihttp

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"aloft/backends"
)

func get(c *Client, call *backends.Call) (string, error) {
	r, err := c.Do(context.Background(), call)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	return string(b), err
}

// overTLS is an engine behind TLS, and a client that trusts it.
func overTLS(t *testing.T, o Options, f http.HandlerFunc) *Client {
	t.Helper()
	s := httptest.NewTLSServer(f)
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	o.BaseURL = s.URL
	c := client(t, o)
	c.tls.RootCAs = x509.NewCertPool()
	c.tls.RootCAs.AddCert(s.Certificate())
	return c
}

func TestTLS(t *testing.T) {
	conns := map[string]bool{}
	var mu sync.Mutex
	c := overTLS(t, Options{APIKey: "k"}, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		conns[r.RemoteAddr] = true
		mu.Unlock()
		b, _ := io.ReadAll(r.Body)
		fmt.Fprint(w, r.Proto, r.Header.Get("Authorization"), len(b))
	})
	for _, size := range []int{10, 1 << 20, 10} {
		if got, err := get(c, &backends.Call{Path: "/", Body: make([]byte, size)}); err != nil || got != fmt.Sprint("HTTP/1.1Bearer k", size) {
			t.Errorf("%q, %v", got, err)
		}
	}
	if len(conns) != 1 {
		t.Errorf("%d connections, want 1", len(conns))
	}
	c.tls = &tls.Config{ServerName: c.tls.ServerName}
	c.pool.close()
	if _, err := get(c, plainCall); !errors.Is(err, backends.ErrConnect) {
		t.Errorf("a certificate that nobody vouches for: %v, want ErrConnect", err)
	}
}

// A client that leaves is seen by the engine within a second, wherever its call is.
func TestCancelOverTLSAndInAPlainReply(t *testing.T) {
	gone := errors.New("client gone")
	for _, at := range []string{"before", "stream", "plain"} {
		entered, closed := make(chan struct{}, 1), make(chan struct{}, 1)
		answer := func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			switch at {
			case "stream":
				w.Header().Set("Content-Type", "text/event-stream")
				io.WriteString(w, "data: a\n\n")
				w.(http.Flusher).Flush()
			case "plain":
				w.Header().Set("Content-Length", "100")
				io.WriteString(w, "half")
				w.(http.Flusher).Flush()
			}
			entered <- struct{}{}
			<-r.Context().Done()
			closed <- struct{}{}
		}
		plain := httptest.NewServer(http.HandlerFunc(answer))
		defer plain.Close()
		for _, c := range []*Client{overTLS(t, Options{}, answer), client(t, Options{BaseURL: plain.URL})} {
			ctx, cancel := context.WithCancelCause(t.Context())
			go func() {
				<-entered
				cancel(gone)
			}()
			r, err := c.Do(ctx, &backends.Call{Path: "/", Body: []byte("{}"), Stream: at == "stream"})
			if err == nil {
				_, err = io.ReadAll(r.Body)
				r.Body.Close()
			}
			if !errors.Is(err, gone) {
				t.Errorf("%s: %v, want the context's cause", at, err)
			}
			within(t, closed)
		}
	}
}

// What comes on an unused connection belongs to no call.
func TestUnaskedReplyIsNobodys(t *testing.T) {
	more := make(chan struct{})
	url := engine(t, "tcp", func(n int, _ *http.Request, c net.Conn) {
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d", n)
		if n == 1 {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
			close(more)
		}
	})
	c := client(t, Options{BaseURL: url})
	for want := range 3 {
		if got, err := get(c, plainCall); err != nil || got != fmt.Sprint(want+1) {
			t.Errorf("%q, %v, want %d", got, err, want+1)
		}
		<-more
	}
}

// An engine that ends its side and goes on listening is seen at once, also when
// its end was reported before the call watched for it: no second report comes.
func TestEndBeforeTheWatch(t *testing.T) {
	end := make(chan struct{})
	url := engine(t, "tcp", func(n int, _ *http.Request, c net.Conn) {
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d", n)
		if n == 1 {
			<-end
			c.(*net.TCPConn).CloseWrite()
		}
	})
	c := client(t, Options{BaseURL: url, FirstByteTimeout: time.Minute})
	if got, err := get(c, plainCall); got != "1" || err != nil {
		t.Fatalf("%q, %v", got, err)
	}
	cn := c.pool.take(time.Now())
	reported(t, cn, func() { close(end) })
	if a := cn.ask([]byte("GET / HTTP/1.1\r\n\r\n"), nil, make([]byte, 10)); !errors.Is(a.writeErr, errStale) || a.n != 0 {
		t.Errorf("%d bytes, %v; want errStale", a.n, a.writeErr)
	}
	c.pool.put(cn, 1)
	start := time.Now()
	if got, err := get(c, plainCall); got != "2" || err != nil || time.Since(start) > 50*time.Second {
		t.Errorf("%q, %v after %v, want the answer of another connection", got, err, time.Since(start))
	}
}

// reported makes something come on cn, and returns when the poller has said so.
func reported(t *testing.T, cn *conn, come func()) {
	t.Helper()
	cn.expire(time.Now(), 10*time.Second)
	if err := cn.raw.Read(func(fd uintptr) bool {
		if come != nil { // the first call, which nothing has woken
			come()
			come = nil
			return false
		}
		_, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return err != syscall.EAGAIN
	}); err != nil {
		t.Fatal("no report:", err)
	}
}

// A new connection that the engine refuses before it was asked gives the refusal.
func TestRefusedBeforeTheCall(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c := client(t, Options{BaseURL: "http://" + ln.Addr().String()})
	for _, want := range []string{"HTTP/1.1 503", ""} {
		cn, err := c.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer cn.abort()
		engine, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer engine.Close()
		reported(t, cn, func() {
			io.WriteString(engine, want)
			engine.(*net.TCPConn).CloseWrite()
		})
		buf := make([]byte, len(want)+1)
		a := cn.ask([]byte("GET / HTTP/1.1\r\n\r\n"), nil, buf)
		if string(buf[:a.n]) != want || a.writeErr != nil || want == "" && a.readErr != io.EOF {
			t.Errorf("%q, %v, %v; want %q", buf[:a.n], a.writeErr, a.readErr, want)
		}
	}
}

// An engine that closes an unused connection costs the next call nothing, and
// one that closes it just as the call is sent costs it another connection.
func TestIdleConnectionClosedByTheEngine(t *testing.T) {
	url := engine(t, "tcp", func(n int, _ *http.Request, c net.Conn) {
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
		c.Close()
	})
	c := client(t, Options{BaseURL: url})
	for range 20 {
		if got, err := get(c, plainCall); err != nil || got != "{}" {
			t.Fatalf("%q, %v", got, err)
		}
	}
}

func TestConnectionIsNotKept(t *testing.T) {
	for name, head := range map[string]string{
		"close":  "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
		"unread": "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
	} {
		url, _, closed := hold(t, "tcp", head)
		c := client(t, Options{BaseURL: url})
		r, err := c.Do(t.Context(), plainCall)
		if err != nil {
			t.Fatal(err)
		}
		io.ReadFull(r.Body, make([]byte, 2))
		r.Body.Close()
		if len(c.pool.idle) != 0 {
			t.Errorf("%s: the connection is kept", name)
		}
		within(t, closed)
	}
}

func TestPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pool
		closed := map[int]time.Duration{}
		start := time.Now()
		put := func(i int) { p.put(&conn{abort: func() { closed[i] = time.Since(start) }}, 3) }
		put(0)
		time.Sleep(time.Second)
		synctest.Wait()
		for i := range 3 {
			put(i + 1)
		}
		p.mu.Lock() // closed is written under it
		if closed[3] != time.Second {
			t.Errorf("a connection too many: %v", closed)
		}
		p.mu.Unlock()
		time.Sleep(time.Minute)
		synctest.Wait()
		p.mu.Lock()
		if closed[0] != 4*time.Second || closed[1] != 5*time.Second || closed[2] != 5*time.Second || p.reaper != nil {
			t.Errorf("closed at %v, want 4 s after the last use", closed)
		}
		p.mu.Unlock()
		put(4)
		p.close()
		put(5)
		if p.take(time.Now()) != nil || len(closed) != 6 {
			t.Errorf("after close: %v", closed)
		}
	})
}

// Bytes that complete no event do not keep a stream alive, and a slow body is
// not the first byte's deadline's business.
func TestTrickle(t *testing.T) {
	url := engine(t, "tcp", func(_ int, _ *http.Request, c net.Conn) {
		io.WriteString(c, sse+chunk("data: a\n\n"))
		for range 500 {
			if _, err := io.WriteString(c, chunk(": ping\n")); err != nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
	r, err := client(t, Options{BaseURL: url, StreamIdleTimeout: 100 * time.Millisecond}).Do(t.Context(), streamCall)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(r.Body); string(b) != "data: a\n\n" || !errors.Is(err, backends.ErrSilent) {
		t.Errorf("%q, %v, want ErrSilent", b, err)
	}
	r.Body.Close()
	first := 300 * time.Millisecond
	url = engine(t, "tcp", func(_ int, _ *http.Request, c net.Conn) {
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{")
		time.Sleep(2 * first)
		io.WriteString(c, "}")
	})
	if got, err := get(client(t, Options{BaseURL: url, FirstByteTimeout: first}), plainCall); got != "{}" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// NextEvent says of each event whether the next one has come with it.
func TestNextEvent(t *testing.T) {
	next := make(chan bool)
	url := engine(t, "tcp", func(_ int, _ *http.Request, c net.Conn) {
		io.WriteString(c, sse+chunk("data: a\n\ndata: b\n\n: ping\n\n"))
		<-next
		io.WriteString(c, chunk("data: c\n\ndata: [DO"))
		<-next
		io.WriteString(c, chunk("NE]\n\n")+"0\r\n\r\n")
	})
	c := client(t, Options{BaseURL: url})
	r, err := c.Do(t.Context(), streamCall)
	if err != nil {
		t.Fatal(err)
	}
	events := r.Body.(backends.EventReader)
	for _, want := range []struct {
		event string
		more  bool
	}{{"data: a\n\n", true}, {"data: b\n\n", false}, {"data: c\n\n", false}, {"data: [DONE]\n\n", false}} {
		if got, more, err := events.NextEvent(); string(got) != want.event || more != want.more || err != nil {
			t.Errorf("%q, more %v, %v; want %+v", got, more, err, want)
		}
		if !want.more && want.event[6] != '[' {
			next <- true
		}
	}
	r.Body.Close()
	if _, _, err := events.NextEvent(); err == nil {
		t.Error("an event after Close")
	}
	if len(c.pool.idle) != 1 {
		t.Error("the connection of a stream that was read up to [DONE] is not kept")
	}
}

// The answer to a body that the engine does not read is seen all the same.
func TestRefusedBody(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		c.Read(make([]byte, 100))
		io.WriteString(c, "HTTP/1.1 413 X\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
		c.(*net.TCPConn).CloseWrite()
		time.Sleep(50 * time.Millisecond)
		c.Close()
	}()
	r, err := client(t, Options{BaseURL: "http://" + ln.Addr().String()}).Do(t.Context(), &backends.Call{Path: "/", Body: make([]byte, 32<<20)})
	if err != nil {
		t.Fatal(err)
	}
	if r.Body.Close(); r.Status != 413 {
		t.Errorf("%d", r.Status)
	}
}

// A reply that comes while the body is still being written wakes its reader.
func TestReplyBeforeTheBodyIsSent(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	const size = 32 << 20
	go func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		c.Read(make([]byte, 100))
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
		io.CopyN(io.Discard, c, size)
		c.Read(make([]byte, 1<<10)) // what is left, and then the client's end
		c.Read(make([]byte, 1))
	}()
	c := client(t, Options{BaseURL: "http://" + ln.Addr().String(), FirstByteTimeout: time.Minute})
	if got, err := get(c, &backends.Call{Path: "/", Body: make([]byte, size)}); got != "{}" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// deadlines is a connection that notes the deadlines it is given.
type deadlines struct {
	net.Conn
	set []time.Time
}

func (d *deadlines) SetDeadline(t time.Time) error {
	d.set = append(d.set, t)
	return nil
}

// A timeout is never early, at most a sixteenth late, and mostly costs no new deadline.
func TestExpire(t *testing.T) {
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	d := &deadlines{}
	cn := &conn{Conn: d}
	for _, call := range []struct{ now, timeout int }{
		{0, 16_000}, {0, 16_000}, {1000, 16_000}, {1001, 16_000}, {1002, 1600}, {1003, 1600}, {1004, 16_000}, {60_000, 16_000},
	} {
		cn.expire(at(call.now), time.Duration(call.timeout)*time.Millisecond)
	}
	want := []time.Time{at(17_000), at(18_001), at(2702), at(18_004), at(77_000)}
	if !slices.EqualFunc(d.set, want, time.Time.Equal) {
		t.Errorf("deadlines %v, want %v", d.set, want)
	}
}

func TestGzip(t *testing.T) {
	zip := func(s string) string {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		io.WriteString(w, s)
		w.Close()
		return b.String()
	}
	head := func(kind, s string) string {
		return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s", kind, len(s), s)
	}
	for name, tc := range map[string]struct{ reply, want string }{
		"plain":  {head("application/json", zip(`{"usage":1}`)), `{"usage":1}`},
		"events": {head("text/event-stream", zip("data: a\n\ndata: b\n\n")), "data: a\n\ndata: b\n\n"},
		"bomb":   {head("application/json", zip(strings.Repeat("x", 1<<20))), ""},
		"not":    {head("application/json", "no gzip at all"), ""},
		"cut":    {head("application/json", zip(`{"usage":1}`)[:20]), ""},
	} {
		url := engine(t, "tcp", func(_ int, _ *http.Request, c net.Conn) { io.WriteString(c, tc.reply) })
		got, err := get(client(t, Options{BaseURL: url, MaxReply: 1 << 19}), streamCall)
		if tc.want == "" && !errors.Is(err, backends.ErrBadReply) || tc.want != "" && (err != nil || got != tc.want) {
			t.Errorf("%s: %.40q, %v", name, got, err)
		}
	}
}

func TestLenAndTiming(t *testing.T) {
	url := engine(t, "tcp", func(n int, _ *http.Request, c net.Conn) {
		if n > 1 {
			io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n")
			return
		}
		time.Sleep(20 * time.Millisecond)
		io.WriteString(c, "HTTP/1.1 200 OK\r\nOpenai-Processing-Ms: 1\r\nContent-Length: 9000\r\n\r\n"+strings.Repeat("x", 9000))
	})
	c := client(t, Options{BaseURL: url, FirstByteTimeout: time.Second})
	r, err := c.Do(t.Context(), plainCall)
	if err != nil {
		t.Fatal(err)
	}
	if r.Timing.Network < 15*time.Millisecond || r.Timing.Engine < time.Millisecond {
		t.Errorf("%+v, want all but about 1 ms on the network", r.Timing)
	}
	size := r.Body.(interface{ Len() int })
	io.ReadFull(r.Body, make([]byte, 1000))
	if size.Len() != 8000 {
		t.Errorf("%d bytes to come, want 8000", size.Len())
	}
	r.Body.Close()
	if _, err := r.Body.Read(make([]byte, 1)); err == nil {
		t.Error("read after Close")
	}
}

// Close from another goroutine ends a read that waits.
func TestCloseWhileReading(t *testing.T) {
	url, entered, closed := hold(t, "tcp", sse+chunk("data: a\n\n"))
	c := client(t, Options{BaseURL: url})
	for range 20 {
		r, err := c.Do(t.Context(), streamCall)
		if err != nil {
			t.Fatal(err)
		}
		read := make(chan error, 1)
		go func() {
			_, err := io.ReadAll(r.Body)
			read <- err
		}()
		<-entered
		r.Body.Close()
		r.Body.Close()
		if <-read == nil {
			t.Error("the cut stream ended as if it were whole")
		}
		within(t, closed)
	}
}

// callback is a context that calls back itself, as the gateway's may.
type callback struct {
	context.Context
	mu    sync.Mutex
	funcs []func()
	tied  atomic.Int32
}

func (c *callback) AfterFunc(f func()) func() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.funcs = append(c.funcs, f)
	c.tied.Add(1)
	return func() bool { c.tied.Add(-1); return true }
}

// 9,000 open streams need a descriptor each and no goroutine, and below 8 KiB
// of heap each with the stub's own end.
func TestManyIdleStreams(t *testing.T) {
	streams := 9000
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Cur < uint64(2*streams+500) {
		streams = 200
	}
	if _, err := os.ReadDir("/proc/self/fd"); err != nil {
		t.Skip("no /proc/self/fd: descriptors cannot be counted")
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	engines, stopped := make([]net.Conn, 0, streams), make(chan struct{})
	go func() { // one goroutine for all: what is counted is the client's
		defer close(stopped)
		buf := make([]byte, 4096)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			engines = append(engines, c)
			c.Read(buf)
			io.WriteString(c, sse+chunk("data: a\n\n"))
		}
	}()
	count := func() (files, goroutines int, bytes int64) {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		d, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(d), runtime.NumGoroutine(), int64(m.HeapAlloc + m.StackInuse)
	}
	c := client(t, Options{BaseURL: "http://" + ln.Addr().String()})
	ctx := &callback{Context: t.Context()}
	open := make([]*backends.Reply, 0, streams)
	buf := make([]byte, 100)
	files, goroutines, heap := count()
	for range streams {
		r, err := c.Do(ctx, streamCall)
		if err != nil {
			t.Fatalf("stream %d: %v", len(open), err)
		}
		if n, err := r.Body.Read(buf); string(buf[:n]) != "data: a\n\n" || err != nil {
			t.Fatal(err)
		}
		open = append(open, r)
	}
	files2, goroutines2, heap2 := count()
	t.Logf("%d streams: %d descriptors with the stub's, %d bytes each", streams, files2-files, (heap2-heap)/int64(streams))
	if n := files2 - files; n > 2*streams+10 {
		t.Errorf("%d descriptors, want %d and the stub's %d", n, streams, streams)
	}
	if n := goroutines2 - goroutines; n > 5 {
		t.Errorf("%d goroutines more", n)
	}
	if per := (heap2 - heap) / int64(streams); per > 8<<10 {
		t.Errorf("%d bytes a stream, want at most 8 KiB", per)
	}
	for _, r := range open {
		r.Body.Close()
	}
	if n := ctx.tied.Load(); n != 0 {
		t.Errorf("%d connections are still tied to the context", n)
	}
	ln.Close()
	<-stopped
	for _, e := range engines {
		e.Close()
	}
}
