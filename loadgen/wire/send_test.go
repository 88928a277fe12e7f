package wire

import (
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// A server that refuses a large request without reading it is heard at once,
// whatever it does with the connection.
func TestAnswersBeforeTheRequestIsRead(t *testing.T) {
	const no = "HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\nno"
	for name, c := range map[string]struct {
		say  string
		then func(conn net.Conn)
		want int
		err  error
	}{
		"and waits":         {no, func(conn net.Conn) { time.Sleep(3 * time.Second) }, 413, nil},
		"and closes":        {no, func(net.Conn) {}, 413, nil}, // with unread data: the kernel resets
		"and reads on":      {no, func(conn net.Conn) { io.Copy(io.Discard, conn) }, 413, nil},
		"and stops reading": {no, func(conn net.Conn) { conn.(*net.TCPConn).CloseRead(); time.Sleep(time.Second) }, 413, nil},
		"after 100":         {"HTTP/1.1 100 Continue\r\n\r\n" + no, func(conn net.Conn) { time.Sleep(time.Second) }, 413, nil},
		"says nothing":      {"", func(net.Conn) {}, 0, ErrConnect},
		"never reads":       {"", func(conn net.Conn) { time.Sleep(3 * time.Second) }, 0, ErrTimeout},
	} {
		target := raw(t, func(conn net.Conn) {
			io.WriteString(conn, c.say)
			c.then(conn)
		})
		conn := target.Conn(time.Now())
		within := 2 * time.Minute
		if c.err == ErrTimeout {
			within = 200 * time.Millisecond
		}
		began := time.Now()
		a := ask(conn, mustHead(t, target, nil), strings.Repeat("x", 8<<20), within)
		if took := time.Since(began); took > time.Minute {
			t.Errorf("%s: heard after %v", name, took)
		}
		if !errors.Is(a.err, c.err) || a.Status != c.want || c.want != 0 && a.body != "no" {
			t.Errorf("%s: %d %q %v, want %d %v", name, a.Status, a.body, a.err, c.want, c.err)
		}
		if (conn.net != nil || conn.writing) && name != "and reads on" {
			t.Errorf("%s: the connection stays, with half a request on it", name)
		}
	}
}

// An answer that does not refuse leaves the request be, so that it still arrives
// whole; a connection whose request was written is used again.
func TestAnswersWhileTheRequestIsRead(t *testing.T) {
	const size = 8 << 20
	read := make(chan int64, 2)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		if err := control.EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		io.WriteString(w, "early ")
		control.Flush()
		n, _ := io.Copy(io.Discard, r.Body)
		read <- n
		io.WriteString(w, "late")
	}))
	defer server.Close()
	target, err := NewTarget(server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	conn := target.Conn(time.Now())
	defer conn.Close()
	for i := range 2 {
		a := ask(conn, mustHead(t, target, nil), strings.Repeat("x", size), 20*time.Second)
		if got := <-read; a.err != nil || a.Status != 200 || a.body != "early late" || got != size {
			t.Errorf("request %d: %d %q %v, %d bytes read", i, a.Status, a.body, a.err, got)
		}
		if !conn.Ready(time.Minute) || conn.reused != (i > 0) {
			t.Errorf("request %d: the connection was not kept", i)
		}
	}
}

// Abort and Close end the writing of a large request, and wait for its end.
func TestWritingIsGivenUp(t *testing.T) {
	target := raw(t, func(conn net.Conn) { time.Sleep(3 * time.Second) })
	conn := target.Conn(time.Now())
	time.AfterFunc(50*time.Millisecond, conn.Abort)
	began := time.Now()
	if a := ask(conn, mustHead(t, target, nil), strings.Repeat("x", 8<<20), 2*time.Minute); !errors.Is(a.err, ErrTimeout) {
		t.Errorf("aborted: %v, want %v", a.err, ErrTimeout)
	}
	if took := time.Since(began); took > time.Minute || conn.writing {
		t.Errorf("aborted after %v, still writing: %v", took, conn.writing)
	}
}

// Of requests that are lost on a connection that was used before, only those
// that the server's kernel never had are unseen.
func TestUnseen(t *testing.T) {
	const hi = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
	for name, c := range map[string]struct {
		serve func(conn net.Conn, next <-chan bool) // after the first answer; next: the second request may be sent
		early bool                                  // it ends before the second request is sent
		want  bool
	}{
		"closed before":  {func(conn net.Conn, _ <-chan bool) { conn.Close() }, true, true},
		"closed after":   {func(conn net.Conn, _ <-chan bool) { readRequest(conn); conn.Close() }, false, false},
		"closed without": {func(conn net.Conn, sent <-chan bool) { <-sent; conn.Close() }, false, false}, // it lay there unread
		"reset after":    {func(conn net.Conn, _ <-chan bool) { readRequest(conn); conn.(*net.TCPConn).SetLinger(0); conn.Close() }, false, false},
		"half closed, reads": {func(conn net.Conn, _ <-chan bool) {
			readRequest(conn)
			conn.(*net.TCPConn).CloseWrite()
			io.Copy(io.Discard, conn)
		}, false, false},
	} {
		for _, secure := range []bool{false, true} {
			if secure && !c.early {
				continue // below, over TLS
			}
			again, ended, sent := make(chan bool), make(chan bool), make(chan bool)
			end := sync.OnceFunc(func() { close(ended) })
			var target *Target
			serve := func(conn, under net.Conn) {
				io.WriteString(conn, hi)
				<-again
				if secure {
					under.(*net.TCPConn).Close()
				} else {
					c.serve(under, sent)
				}
				end()
			}
			if secure {
				target = secureRaw(t, serve)
			} else {
				target = raw(t, func(conn net.Conn) { serve(conn, conn) })
			}
			conn, head := target.Conn(time.Now()), mustHead(t, target, nil)
			if a := ask(conn, head, "", 20*time.Second); a.err != nil || !conn.Ready(time.Minute) {
				t.Fatalf("%s: %v, want a connection that stays", name, a.err)
			}
			close(again)
			if c.early {
				<-ended
				for conn.probe.quiet() { // until its end has come, after Ready looked
					time.Sleep(time.Millisecond)
				}
			}
			if err := conn.Send(head, []byte("body"), time.Now().Add(20*time.Second)); err != nil {
				t.Fatal(err)
			}
			if name == "closed without" {
				for conn.probe.acked() <= conn.before {
					time.Sleep(time.Millisecond)
				}
			}
			close(sent)
			_, err := conn.Head()
			if !errors.Is(err, ErrConnect) || conn.Unseen() != c.want {
				t.Errorf("%s, secure %v: %v, unseen %v, want %v", name, secure, err, conn.Unseen(), c.want)
			}
			conn.Done()
			if a := ask(conn, head, "", 20*time.Second); name == "closed before" && (a.err != nil || conn.Unseen()) {
				t.Errorf("%s: a new connection: %v", name, a.err)
			}
			conn.Close()
		}
	}
}

// secureRaw is raw over TLS; serve also gets the connection below.
func secureRaw(t *testing.T, serve func(conn, under net.Conn)) *Target {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		serve(conn, conn.(interface{ NetConn() net.Conn }).NetConn())
	}))
	server.StartTLS()
	t.Cleanup(server.Close)
	target, err := NewTarget(server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	target.Trust(roots, false)
	return target
}

// Who is trusted: a private authority only where it was named, and everyone only
// where that was said.
func TestTrust(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hi") }))
	server.Config.ErrorLog = nil
	defer server.Close()
	own := x509.NewCertPool()
	own.AddCert(server.Certificate())
	for name, c := range map[string]struct {
		roots    *x509.CertPool
		insecure bool
		want     error
	}{
		"the system's": {nil, false, ErrConnect}, "another's": {x509.NewCertPool(), false, ErrConnect}, "its own": {own, false, nil}, "anyone": {nil, true, nil},
	} {
		target, err := NewTarget(server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		target.Trust(c.roots, c.insecure)
		conn := target.Conn(time.Now())
		a := ask(conn, mustHead(t, target, nil), "", 20*time.Second)
		if !errors.Is(a.err, c.want) || c.want != nil && !strings.Contains(a.err.Error(), "certificate") {
			t.Errorf("%s: %v, want %v", name, a.err, c.want)
		}
		conn.Close()
	}
}
