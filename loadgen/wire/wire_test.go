package wire

import (
	"bufio"
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// answer is what one request got.
type answer struct {
	Head
	body string
	err  error
}

// ask sends one request and reads its answer.
func ask(c *Conn, head []byte, body string, within time.Duration) (a answer) {
	defer c.Done()
	deadline := time.Now().Add(within)
	if !c.Ready(time.Minute) {
		ctx, cancel := context.WithDeadline(context.Background(), deadline)
		defer cancel()
		if a.err = c.Open(ctx); a.err != nil {
			return a
		}
	}
	if a.err = c.Send(head, []byte(body), deadline); a.err != nil {
		return a
	}
	if a.Head, a.err = c.Head(); a.err != nil {
		return a
	}
	for {
		part, _, err := c.Body()
		a.body += string(part)
		if err == io.EOF {
			return a
		}
		if err != nil {
			a.err = err
			return a
		}
	}
}

// raw is a server that reads one request on each connection and then does what
// serve does.
func raw(t *testing.T, serve func(conn net.Conn)) *Target {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if readRequest(conn) == nil {
					serve(conn)
				}
			}()
		}
	}()
	target, err := NewTarget("http://"+listener.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return target
}

// readRequest reads one request without a body.
func readRequest(conn net.Conn) error {
	var got []byte
	p := make([]byte, 1024)
	for !bytes.Contains(got, []byte("\r\n\r\n")) {
		n, err := conn.Read(p)
		if err != nil {
			return err
		}
		got = append(got, p[:n]...)
	}
	return nil
}

func mustHead(t *testing.T, target *Target, headers map[string]string) []byte {
	t.Helper()
	head, err := target.Head("/v1/x", headers)
	if err != nil {
		t.Fatal(err)
	}
	return head
}

// What a server may say, and what becomes of it.
func TestAnswers(t *testing.T) {
	type want struct {
		status int
		body   string
		err    error
		keeps  bool
	}
	const ok = "HTTP/1.1 200 OK\r\n"
	for name, c := range map[string]struct {
		say  string
		want want
	}{
		"length":              {ok + "Content-Length: 2\r\n\r\nhi", want{200, "hi", nil, true}},
		"no reason":           {"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", want{200, "", nil, true}},
		"LF only":             {"HTTP/1.1 200 OK\nContent-Length: 2\n\nhi", want{200, "hi", nil, true}},
		"chunked":             {ok + "Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n3;x=y\r\n ho\r\n0\r\n\r\n", want{200, "hi ho", nil, true}},
		"chunked, trailers":   {ok + "transfer-encoding: Chunked\r\n\r\n2\r\nhi\r\n0\r\nX: y\r\nZ: 1\r\n\r\n", want{200, "hi", nil, true}},
		"close":               {ok + "\r\nuntil the end", want{200, "until the end", nil, false}},
		"1.0":                 {"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", want{200, "hi", nil, false}},
		"1.0 that stays":      {"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 2\r\n\r\nhi", want{200, "hi", nil, true}},
		"says it closes":      {ok + "Connection: x, Close\r\nContent-Length: 2\r\n\r\nhi", want{200, "hi", nil, false}},
		"says too much":       {ok + "Content-Length: 2\r\n\r\nhi there", want{200, "hi", nil, false}},
		"204":                 {"HTTP/1.1 204 No Content\r\n\r\n", want{204, "", nil, true}},
		"1xx before":          {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + ok + "Content-Length: 2\r\n\r\nhi", want{200, "hi", nil, true}},
		"both framings":       {ok + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nh\r\n0\r\n\r\n", want{200, "h", nil, false}},
		"length twice":        {ok + "Content-Length: 2\r\nContent-Length: 2\r\n\r\nhi", want{200, "hi", nil, true}},
		"nothing":             {"", want{err: ErrConnect}},
		"half a head":         {"HTTP/1.1 200 OK\r\nContent-", want{err: ErrTruncated}},
		"half a status":       {"HTT", want{err: ErrTruncated}},
		"body cut":            {ok + "Content-Length: 9\r\n\r\nhi", want{200, "hi", ErrTruncated, false}},
		"chunk cut":           {ok + "Transfer-Encoding: chunked\r\n\r\n9\r\nhi", want{200, "hi", ErrTruncated, false}},
		"no last chunk":       {ok + "Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n", want{200, "hi", ErrTruncated, false}},
		"not HTTP":            {"220 mail ready\r\n\r\n", want{err: ErrProtocol}},
		"not HTTP, no line":   {"SSH-2.0", want{err: ErrProtocol}},
		"101":                 {"HTTP/1.1 101 Switching\r\n\r\n", want{err: ErrProtocol}},
		"HTTP/2":              {"HTTP/2.0 200 OK\r\n\r\n", want{err: ErrProtocol}},
		"status":              {"HTTP/1.1 2x0 OK\r\n\r\n", want{err: ErrProtocol}},
		"lengths differ":      {ok + "Content-Length: 2\r\nContent-Length: 3\r\n\r\nhi", want{err: ErrProtocol}},
		"length is a word":    {ok + "Content-Length: -2\r\n\r\nhi", want{err: ErrProtocol}},
		"length is too large": {ok + "Content-Length: 99999999999999999999\r\n\r\nhi", want{err: ErrProtocol}},
		"another coding":      {ok + "Transfer-Encoding: gzip, chunked\r\n\r\nhi", want{err: ErrProtocol}},
		"a folded header":     {ok + "X: y\r\n z\r\n\r\n", want{err: ErrProtocol}},
		"a bad chunk":         {ok + "Transfer-Encoding: chunked\r\n\r\nx\r\n", want{200, "", ErrProtocol, false}},
		"a chunk too long":    {ok + "Transfer-Encoding: chunked\r\n\r\n1\r\nhi\r\n", want{200, "h", ErrProtocol, false}},
		"an endless head":     {ok + strings.Repeat("X: y\r\n", maxHead), want{err: ErrProtocol}},
		"endless 1xx":         {strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", maxHead), want{err: ErrProtocol}},
	} {
		for _, cut := range []int{1 << 20, 1, 7} {
			if cut < 1<<20 && len(c.say) > 1<<10 {
				continue
			}
			target := raw(t, func(conn net.Conn) {
				for say := c.say; say != ""; {
					n := min(cut, len(say))
					if _, err := io.WriteString(conn, say[:n]); err != nil {
						return
					}
					say = say[n:]
				}
				if c.want.keeps {
					io.Copy(io.Discard, conn) // until the client closes
				}
			})
			conn := target.Conn(time.Now())
			a := ask(conn, mustHead(t, target, nil), "", 20*time.Second)
			if !errors.Is(a.err, c.want.err) || a.Status != c.want.status || a.body != c.want.body {
				t.Errorf("%s, cut every %d: %d %q %v, want %+v", name, cut, a.Status, a.body, a.err, c.want)
			}
			// Bytes that come after the answer may come after Done too.
			if got := conn.Ready(time.Minute); got != c.want.keeps && !(name == "says too much" && cut < 1<<20) {
				t.Errorf("%s, cut every %d: kept %v", name, cut, got)
			}
			conn.Close()
		}
	}
}

// The requests are what a real server understands, over a connection that stays.
func TestRequests(t *testing.T) {
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Retry-After", "7")
		fmt.Fprintf(w, "%s %s %s %s %s %d %s", r.Method, r.URL.Path, r.Host, r.Header.Get("Authorization"), r.Header.Get("User-Agent"), r.ContentLength, body)
	})
	for _, secure := range []bool{false, true} {
		var accepted atomic.Int64
		server := httptest.NewUnstartedServer(echo)
		server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
			if s == http.StateNew {
				accepted.Add(1)
			}
		}
		if secure {
			server.StartTLS()
		} else {
			server.Start()
		}
		target, err := NewTarget(server.URL+"/base/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if secure {
			roots := x509.NewCertPool()
			roots.AddCert(server.Certificate())
			target.Trust(roots, false)
		}
		conn := target.Conn(time.Now())
		head := mustHead(t, target, map[string]string{"authorization": "Bearer k", "User-Agent": "me"})
		for i := range 3 {
			body := strings.Repeat("x", i*100_000)
			a := ask(conn, head, body, 20*time.Second)
			want := fmt.Sprintf("POST /base/v1/x %s Bearer k me %d %s", strings.SplitN(server.URL, "//", 2)[1], len(body), body)
			if a.err != nil || a.body != want || string(a.RetryAfter) != "7" || a.First <= 0 {
				t.Errorf("secure %v, request %d: %+v", secure, i, a)
			}
		}
		if accepted.Load() != 1 {
			t.Errorf("secure %v: %d connections, want one", secure, accepted.Load())
		}
		conn.Close()
		server.Close()
	}
}

// A connection that the server closed while it was idle is not used, and one on
// which it spoke unasked neither.
func TestIdleConnectionsAreLookedAt(t *testing.T) {
	for name, say := range map[string]string{"closes": "", "speaks": "HTTP/1.1 408 Request Timeout\r\n\r\n"} {
		now := make(chan struct{})
		target := raw(t, func(conn net.Conn) {
			io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
			<-now
			io.WriteString(conn, say)
			if say != "" {
				io.Copy(io.Discard, conn)
			}
		})
		conn := target.Conn(time.Now())
		if a := ask(conn, mustHead(t, target, nil), "", 20*time.Second); a.err != nil || !conn.Ready(time.Minute) {
			t.Fatalf("%s: %+v, want an answer and a connection that stays", name, a)
		}
		close(now)
		for deadline := time.Now().Add(20 * time.Second); conn.Ready(time.Minute); {
			if time.Now().After(deadline) {
				t.Fatalf("%s: the connection still counts as ready", name)
			}
			time.Sleep(time.Millisecond) // until the kernel has it
		}
		if a := ask(conn, mustHead(t, target, nil), "", 20*time.Second); a.err != nil || a.body != "hi" {
			t.Errorf("%s: %+v after it, want an answer over a new connection", name, a)
		}
		if conn.Ready(-1) {
			t.Errorf("%s: a connection is ready that has been idle for too long", name)
		}
	}
}

// Deadlines and Abort end what is in flight, and say so.
func TestGivenUp(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi"
	for name, say := range map[string]string{"before the answer": "", "in its head": ok[:20], "in its body": ok} {
		target := raw(t, func(conn net.Conn) {
			io.WriteString(conn, say)
			io.Copy(io.Discard, conn)
		})
		conn := target.Conn(time.Now())
		if a := ask(conn, mustHead(t, target, nil), "", 50*time.Millisecond); !errors.Is(a.err, ErrTimeout) || conn.Ready(time.Minute) {
			t.Errorf("%s, deadline: %+v, want %v and no connection", name, a, ErrTimeout)
		}
		time.AfterFunc(50*time.Millisecond, conn.Abort)
		if a := ask(conn, mustHead(t, target, nil), "", 20*time.Second); !errors.Is(a.err, ErrTimeout) {
			t.Errorf("%s, abort: %+v, want %v", name, a, ErrTimeout)
		}
		if a := ask(conn, mustHead(t, target, nil), "", 20*time.Second); !errors.Is(a.err, ErrTimeout) {
			t.Errorf("%s, after it: %+v, want %v", name, a, ErrTimeout)
		}
	}
	silent := func(ctx context.Context, _, _ string) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }
	refuses := func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("no route") }
	for _, c := range []struct {
		dial Dialer
		want error
	}{{silent, ErrTimeout}, {refuses, ErrConnect}} {
		target, err := NewTarget("http://nobody", c.dial)
		if err != nil {
			t.Fatal(err)
		}
		if a := ask(target.Conn(time.Now()), nil, "", 20*time.Millisecond); !errors.Is(a.err, c.want) {
			t.Errorf("dial: %v, want %v", a.err, c.want)
		}
	}
}

func TestTargetsAndHeads(t *testing.T) {
	for base, want := range map[string]string{
		"http://h": "h:80", "https://h/": "h:443", "http://h:8080/v": "h:8080", "http://[::1]:5": "[::1]:5", "https://[::1]": "[::1]:443",
		"ftp://h": "", "h:80": "", "http://u@h": "", "http://h?q": "", "http://h#f": "", "http://%zz": "", "http://": "",
	} {
		target, err := NewTarget(base, nil)
		if (err == nil) != (want != "") || err == nil && target.address != want {
			t.Errorf("%s: %+v, %v, want address %q", base, target, err, want)
		}
	}
	target, _ := NewTarget("http://h/base/", nil)
	head, err := target.Head("/v1/x", map[string]string{"X-B": "2", "x-a": "1", "Content-Type": "text/plain"})
	want := "POST /base/v1/x HTTP/1.1\r\nHost: h\r\naccept-encoding: identity\r\ncontent-type: text/plain\r\nuser-agent: aloft-load/2\r\nx-a: 1\r\nx-b: 2\r\nContent-Length: "
	if err != nil || string(head) != want {
		t.Errorf("head %q, %v, want %q", head, err, want)
	}
	for _, bad := range []map[string]string{{"": "x"}, {"a b": "x"}, {"a:": "x"}, {"a": "x\r\nb: y"}, {"Content-Length": "1"}, {"Host": "x"}, {"Transfer-Encoding": "chunked"}} {
		if _, err := target.Head("/", bad); err == nil {
			t.Errorf("%v makes a head", bad)
		}
	}
	if _, err := target.Head("/a b", nil); err == nil {
		t.Error("a route with a space makes a head")
	}
}

// A request and its answer allocate nothing once the connection is open, and the
// parts of a stream neither.
func TestAllocations(t *testing.T) {
	for name, body := range map[string]string{
		"length":  "Content-Length: 2\r\n\r\nhi",
		"chunked": "Content-Type: text/event-stream\r\nRetry-After: 3\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("5\r\nhello\r\n", 100) + "0\r\n\r\n",
	} {
		answer := []byte("HTTP/1.1 200 OK\r\n" + body)
		target := raw(t, func(conn net.Conn) {
			p := make([]byte, 4096)
			for {
				if _, err := conn.Write(answer); err != nil {
					return
				}
				if _, err := conn.Read(p); err != nil { // a request is one write here
					return
				}
			}
		})
		conn, head, text := target.Conn(time.Now()), mustHead(t, target, nil), []byte("body")
		if err := conn.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
		deadline := time.Now().Add(time.Minute)
		if got := testing.AllocsPerRun(100, func() {
			if !conn.Ready(time.Minute) || conn.Send(head, text, deadline) != nil {
				t.Fatal("send failed")
			}
			if h, err := conn.Head(); err != nil || h.Status != 200 {
				t.Fatal(err)
			}
			for {
				if _, _, err := conn.Body(); err == io.EOF {
					break
				} else if err != nil {
					t.Fatal(err)
				}
			}
			conn.Done()
		}); got != 0 {
			t.Errorf("%s: %v allocations for a request, want none", name, got)
		}
		conn.Close()
	}
}

// The body does not depend on where the reads cut it.
func FuzzChunks(f *testing.F) {
	f.Add([]byte("5\r\nhello\r\nA;x=y\r\n0123456789\r\n0\r\nX: y\r\n\r\nmore"), uint8(3))
	f.Add([]byte("fffffffffffffffff\r\n"), uint8(1))
	f.Fuzz(func(t *testing.T, in []byte, cut uint8) {
		decode := func(n int) (body []byte, taken int, ended bool, err error) {
			var c chunks
			for rest := bytes.Clone(in); len(rest) > 0 && err == nil && c.state != chunksEnd; {
				p := rest[:min(n, len(rest))]
				var b, k int
				b, k, err = c.decode(p)
				body, taken, rest = append(body, p[:b]...), taken+k, rest[len(p):]
			}
			return body, taken, c.state == chunksEnd, err
		}
		body, taken, ended, err := decode(len(in) + 1)
		again, taken2, ended2, err2 := decode(int(cut) + 1)
		if !bytes.Equal(body, again) || ended != ended2 || (err == nil) != (err2 == nil) || err == nil && taken != taken2 {
			t.Fatalf("cut every %d: %q %d %v %v, whole: %q %d %v %v", int(cut)+1, again, taken2, ended2, err2, body, taken, ended, err)
		}
		if ended { // what the standard library makes of it, where it takes it
			if want, werr := io.ReadAll(httputil.NewChunkedReader(bytes.NewReader(in))); werr == nil && !bytes.Equal(want, body) {
				t.Fatalf("%q, the standard library %q", body, want)
			}
		}
	})
}

// A head never panics, and what the standard library reads is read alike.
func FuzzHead(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\nRetry-After: 1\r\n\r\n"))
	f.Add([]byte("HTTP/1.0 404\nTransfer-Encoding: chunked\n\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		end, body := headEnd(in)
		if body == 0 {
			return
		}
		h, frame, err := parseHead(in[:end])
		if err != nil {
			return
		}
		if h.Status < 100 || h.Status > 999 || frame.chunked && frame.length >= 0 || frame.keep && !frame.chunked && frame.length < 0 {
			t.Fatalf("%q: %+v %+v", in, h, frame)
		}
		res, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(in[:body])), &http.Request{Method: "POST"})
		if err != nil {
			return
		}
		if res.StatusCode != h.Status || h.Status >= 200 && (res.ContentLength != frame.length || (len(res.TransferEncoding) > 0) != frame.chunked) && h.Status != 204 && h.Status != 304 && res.ProtoAtLeast(1, 1) {
			t.Fatalf("%q: %+v %+v, the standard library %+v", in, h, frame, res)
		}
	})
}
