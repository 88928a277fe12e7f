package loadgen

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// after is what a server does with its connection once it has answered.
type after string

const (
	closes after = "closes"
	resets after = "resets"
	stays  after = "stays"
)

// rawServer answers each request by its path as says tells, byte for byte.
func rawServer(t *testing.T, says func(path string) (string, after)) (base string) {
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
				in := bufio.NewReader(conn)
				for {
					r, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					io.Copy(io.Discard, r.Body)
					text, then := says(strings.TrimSuffix(r.URL.Path, "/v1/chat/completions"))
					io.WriteString(conn, text)
					switch then {
					case resets:
						conn.(*net.TCPConn).SetLinger(0)
						return
					case closes:
						return
					}
				}
			}()
		}
	}()
	return "http://" + listener.Addr().String()
}

// Whatever a server does to HTTP, JSON or the stream, over TCP, has one outcome,
// and all that is not a whole answer has a bad one.
func TestFaultsOverTCP(t *testing.T) {
	const (
		n  = 3
		ok = "HTTP/1.1 200 OK\r\n"
	)
	sized := func(head, body string) string {
		return fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", head, len(body), body)
	}
	chunk := func(parts ...string) (out string) {
		for _, s := range parts {
			out += fmt.Sprintf("%x\r\n%s\r\n", len(s), s)
		}
		return out
	}
	zipped := func(s string) string {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		io.WriteString(w, s)
		w.Close()
		return b.String()
	}
	const sse, chunked = ok + "Content-Type: text/event-stream\r\n", ok + "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	large := strings.Replace(word, `"word "`, `"`+strings.Repeat("w", 1<<20)+`"`, 1)
	half := strings.Replace(word, `"word "`, `"`+strings.Repeat("w", 1<<19)+`"`, 1)
	flood := strings.Repeat("X-Y: "+strings.Repeat("z", 100)+"\r\n", 1000)
	type fault struct {
		stream bool
		say    string
		then   after
		want   Outcome
	}
	faults := map[string]fault{
		// How a body ends.
		"length":                 {false, sized(ok, plain), stays, OK},
		"length too short":       {false, ok + fmt.Sprintf("Content-Length: %d\r\n\r\n", len(plain)-5) + plain, stays, Protocol},
		"length too long":        {false, ok + fmt.Sprintf("Content-Length: %d\r\n\r\n", len(plain)+5) + plain, closes, Truncated},
		"length never comes":     {false, ok + fmt.Sprintf("Content-Length: %d\r\n\r\n", len(plain)+5) + plain, stays, Timeout},
		"more than the length":   {false, sized(ok, plain) + "and more", stays, OK}, // not kept for the next
		"no body at all":         {false, sized(ok, ""), stays, Protocol},
		"chunks":                 {false, ok + "Transfer-Encoding: chunked\r\n\r\n" + chunk(plain, ""), stays, OK},
		"chunks cut":             {false, ok + "Transfer-Encoding: chunked\r\n\r\n" + chunk(plain), closes, Truncated},
		"chunks reset":           {false, ok + "Transfer-Encoding: chunked\r\n\r\n" + chunk(plain[:20]), resets, Truncated},
		"chunks that lie":        {false, ok + "Transfer-Encoding: chunked\r\n\r\n5\r\n" + plain, stays, Protocol},
		"until the close":        {false, ok + "\r\n" + plain, closes, OK},
		"until the close, 1.0":   {false, "HTTP/1.0 200 OK\r\n\r\n" + plain, closes, OK},
		"until the close, cut":   {false, "HTTP/1.0 200 OK\r\n\r\n" + plain[:30], closes, Truncated},
		"until the close, reset": {false, "HTTP/1.0 200 OK\r\n\r\n" + plain[:30], resets, Truncated},
		"until the close, empty": {false, ok + "\r\n", closes, Truncated},
		"until the close, HTML":  {false, ok + "\r\n<html>", closes, Protocol},
		"until the close, never": {false, ok + "\r\n" + plain, stays, Timeout},

		// Heads.
		"1xx before":           {false, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + sized(ok, plain), stays, OK},
		"101":                  {false, "HTTP/1.1 101 Switching Protocols\r\n\r\n", stays, Protocol},
		"204":                  {false, "HTTP/1.1 204 No Content\r\n\r\n", stays, HTTPError},
		"202":                  {false, sized("HTTP/1.1 202 Accepted\r\n", plain), stays, HTTPError},
		"redirect":             {true, sized("HTTP/1.1 308 Permanent Redirect\r\nLocation: /\r\n", ""), stays, HTTPError},
		"half a head":          {false, "HTTP/1.1 200 OK\r\nContent-", closes, Truncated},
		"half a head, waits":   {false, "HTTP/1.1 200 OK\r\nContent-", stays, Timeout},
		"flood of headers":     {true, ok + flood + "\r\n", stays, Protocol},
		"flood of 1xx":         {true, strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 5000), stays, Protocol},
		"gzip":                 {false, sized(ok+"Content-Encoding: gzip\r\n", zipped(plain)), stays, Protocol},
		"identity":             {false, sized(ok+"Content-Encoding: identity\r\n", plain), stays, OK},
		"gzip of a stream":     {true, sized(sse+"Content-Encoding: gzip\r\n", zipped(word+finish+done)), stays, Protocol},
		"HTTP/2":               {true, "HTTP/2.0 200 OK\r\n\r\n", stays, Protocol},
		"no type":              {true, sized(ok, word+finish+done), stays, Protocol},
		"type in capitals":     {true, sized(ok+"content-type: Text/Event-Stream; charset=UTF-8\r\n", word+finish+done), stays, OK},
		"JSON for a stream":    {true, sized(ok+"Content-Type: application/json\r\n", `{"error":{"message":"no"}}`), stays, Protocol},
		"stream for an answer": {false, sized(sse, word+finish+done), stays, Protocol},

		// Refusals, whatever becomes of their body.
		"429":              {true, sized("HTTP/1.1 429 Too Many Requests\r\n", "no"), stays, Shed},
		"503, body cut":    {true, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 99\r\n\r\nno", closes, Shed},
		"503, body never":  {false, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 99\r\n\r\nno", stays, Shed},
		"503, body reset":  {true, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 99\r\n\r\nno", resets, Shed},
		"529":              {false, sized("HTTP/1.1 529 Site is overloaded\r\n", "no"), stays, HTTPError},
		"500 and a stream": {true, sized("HTTP/1.1 500 No\r\nContent-Type: text/event-stream\r\n", word+finish+done), stays, HTTPError},

		// Errors with status 200.
		"error object":      {false, sized(ok, `{"error":{"message":"no"}}`), stays, Protocol},
		"error and choices": {false, sized(ok, `{"error":"no",`+plain[1:]), stays, Protocol},
		"error is empty":    {false, sized(ok, `{"error":"",`+plain[1:]), stays, OK},
		"error event":       {true, chunked + chunk(word, `data: {"error":{"message":"no"}}`+"\n\n", done, ""), stays, StreamError},
		"error event, cut":  {true, chunked + chunk(word, `data: {"error":{"message":"no"}}`+"\n\n"), resets, StreamError},
		"error event first": {true, chunked + chunk("event: error\ndata: no\n\n", ""), stays, StreamError},
		"error after all":   {true, chunked + chunk(word, finish, `data: {"error":{"message":"no"}}`+"\n\n", done, ""), stays, StreamError},

		// How streams end.
		"[DONE] and reset":       {true, chunked + chunk(word, finish, done), resets, OK}, // all that was promised has come
		"no finish_reason":       {true, chunked + chunk(word, done, ""), stays, Truncated},
		"no [DONE]":              {true, chunked + chunk(word, finish, usage, ""), stays, Truncated},
		"no [DONE], 1.0":         {true, "HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + word + finish, closes, Truncated},
		"1.0":                    {true, "HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + word + finish + done, closes, OK},
		"[DONE] without its end": {true, chunked + chunk(word, finish, "data: [DONE]\n", ""), stays, Truncated},
		"nothing":                {true, chunked + chunk(""), stays, Truncated},
		"only comments":          {true, chunked + chunk(": a\n\n: b\n\n", ""), stays, Truncated},
		"only [DONE]":            {true, chunked + chunk(done, ""), stays, Truncated},
		"length cuts it":         {true, sse + fmt.Sprintf("Content-Length: %d\r\n\r\n", len(word)+7) + word + finish + done, stays, Truncated},
		"length is too long":     {true, sse + "Content-Length: 9999\r\n\r\n" + word + finish, closes, Truncated},
		"chunk cut":              {true, chunked + "fff\r\n" + word + finish, closes, Truncated},
		"chunk is none":          {true, chunked + chunk(word) + "zz\r\n", stays, Protocol},
		"cut in its first event": {true, chunked + chunk(word[:30]), closes, Truncated},
		"stalls":                 {true, chunked + chunk(word), stays, Timeout},
		"event of 1 MiB":         {true, chunked + chunk(large, finish, done, ""), stays, Protocol},
		"event of 512 KiB":       {true, chunked + chunk(half, finish, done, ""), stays, OK},
		"event is no JSON":       {true, chunked + chunk("data: word\n\n", finish, done, ""), stays, Protocol},

		// Nothing.
		"closed": {true, "", closes, Connect}, "reset": {false, "", resets, Connect}, "silent": {false, "", stays, Timeout},
	}
	opt := Options{Drain: 20 * time.Second}
	server := rawServer(t, func(path string) (string, after) {
		f := faults[path[1:]]
		return f.say, f.then
	})
	batches := 0
	for name, f := range faults {
		w := Workload{
			Name: name, Kind: Chat, Model: "m", URL: server + "/" + url.PathEscape(name), Stream: f.stream,
			Timeout: 20 * time.Second, Phases: steady(25, n*40*msec),
		}
		if f.want == Timeout {
			w.Timeout = 300 * msec
		}
		opt.Workloads = append(opt.Workloads, w)
		if len(opt.Workloads) < maxWorkloads/2 && (batches+len(opt.Workloads)) < len(faults) {
			continue
		}
		batches += len(opt.Workloads)
		for _, r := range mustRun(t, opt).Results {
			want := faults[r.Name].want
			got := map[Outcome]int{OK: r.OK, Late: r.Late, Shed: r.Shed}
			for k, v := range r.FailedBy {
				got[k] = v
			}
			if r.Offered != n || got[want] != n {
				t.Errorf("%s: offered %d, outcomes %v %v, want %d %s", r.Name, r.Offered, got, r.Problems, n, want)
			}
		}
		opt.Workloads = nil
	}
}

// A server that refuses a large request before it has read it is told by its
// status, at once, and not as a timeout.
func TestEarlyRefusalsOverTCP(t *testing.T) {
	for status, want := range map[int]Outcome{413: HTTPError, 429: Shed, 503: Shed} {
		for _, close := range []bool{true, false} {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				conn, _, err := w.(http.Hijacker).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				fmt.Fprintf(conn, "HTTP/1.1 %d No\r\nContent-Length: 2\r\nRetry-After: 1\r\n\r\nno", status)
				if !close {
					time.Sleep(2 * time.Second)
				}
			}))
			report := mustRun(t, Options{Drain: 20 * time.Second, Workloads: []Workload{{
				Name: "w", Kind: Embeddings, Model: "m", URL: server.URL, Timeout: 10 * time.Second, Phases: steady(20, 100*msec),
				Content: Content{Inputs: 4, InputTokens: &Dist{Kind: "fixed", Mean: 512 << 10}},
			}}})
			server.Close()
			r := report.Results[0]
			if got := map[Outcome]int{Shed: r.Shed, HTTPError: r.FailedBy[HTTPError]}; got[want] != 2 || r.Offered != 2 {
				t.Errorf("%d, closes %v: shed %d, %v %v, want 2 %s", status, close, r.Shed, r.FailedBy, r.Problems, want)
			}
			if want == Shed && r.RetryAfter != 2 {
				t.Errorf("%d: %d with Retry-After", status, r.RetryAfter)
			}
		}
	}
}

// late is a TCP connection whose second request is sent at the very moment in
// which the server has closed it: after it was looked at, before the write.
type late struct {
	*net.TCPConn
	writes int
	close  chan bool
	closed chan bool
}

func (c *late) Write(p []byte) (int, error) {
	if c.writes++; c.writes == 2 {
		close(c.close)
		<-c.closed
		time.Sleep(50 * msec) // the end of the connection is on its way through the kernel
	}
	return c.TCPConn.Write(p)
}

// An idle connection that its server closes as the next request is sent is no
// fault of either: the request, which the server never had, goes over another.
func TestServerClosesIdleConnection(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	toClose, closed := make(chan bool), make(chan bool)
	var requests, conns, dials atomic.Int64
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			first := conns.Add(1) == 1
			go func() {
				defer conn.Close()
				in := bufio.NewReader(conn)
				for {
					r, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					io.Copy(io.Discard, r.Body)
					requests.Add(1)
					fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(plain), plain)
					if first {
						<-toClose
						conn.Close()
						close(closed)
						return
					}
				}
			}()
		}
	}()
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		c := &late{TCPConn: conn.(*net.TCPConn), close: toClose, closed: closed}
		if dials.Add(1) > 1 {
			c.writes = 2 // only the first is late
		}
		return c, nil
	}
	report := mustRun(t, Options{dial: dial, Drain: 20 * time.Second, Workloads: []Workload{
		{Name: "w", Kind: Chat, Model: "m", URL: "http://" + listener.Addr().String(), Phases: steady(5, 400*msec), MaxInFlight: 1, Timeout: 10 * time.Second},
	}})
	if r := report.Results[0]; r.OK != 2 || requests.Load() != 2 || conns.Load() != 2 {
		t.Errorf("%d ok of %d, %v %v; the server saw %d requests over %d connections, want 2 over 2", r.OK, r.Offered, r.FailedBy, r.Problems, requests.Load(), conns.Load())
	}
}

// A private authority is trusted where its file is named, and a profile that
// checks nothing says so.
func TestPrivateAuthority(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, plain) }))
	defer server.Close()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"ca.pem":  string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})),
		"bad.pem": "no PEM",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	opt := Options{
		Open:      func(name string) (io.ReadCloser, error) { return os.Open(filepath.Join(dir, name)) },
		Workloads: []Workload{{Name: "w", Kind: Chat, Model: "m", URL: server.URL, Phases: steady(5, 400*msec)}},
	}
	w := &opt.Workloads[0]
	var lines bytes.Buffer
	for _, c := range []struct {
		ca       string
		insecure bool
		ok       int
		problem  string // of the run, or of its setting up
	}{
		{"ca.pem", false, 2, ""}, {"", true, 2, ""}, {"", false, 0, "certificate"}, {"bad.pem", false, 0, "ca: bad.pem: no certificate"}, {"none.pem", false, 0, "none.pem: no such file"},
	} {
		w.CA, w.Insecure = c.ca, c.insecure
		lines.Reset()
		opt.Lines = &lines
		report, err := Run(t.Context(), opt)
		if err != nil {
			if c.problem == "" || !strings.Contains(err.Error(), c.problem) {
				t.Errorf("%+v: %v", c, err)
			}
			continue
		}
		r := report.Results[0]
		if r.OK != c.ok || !strings.Contains(r.Problems[Connect], c.problem) {
			t.Errorf("%+v: %d ok, %v %v", c, r.OK, r.FailedBy, r.Problems)
		}
		if loud := strings.Contains(strings.Join(report.Warnings, "\n"), "NOT CHECKED"); loud != c.insecure {
			t.Errorf("%+v: warnings %q", c, report.Warnings)
		}
		// The handshake is in the time of the request that needed it, and told.
		if c.ok > 0 && (strings.Count(lines.String(), `"connect_took_ms"`) != 1 || r.FromSend.Max <= 0) {
			t.Errorf("%+v: lines %s", c, lines.String())
		}
	}
	for want, bad := range map[string]Workload{
		"ca and insecure belong to https":  {URL: "http://h", CA: "x"},
		"ca and insecure: want one of":     {URL: "https://h", CA: "x", Insecure: true},
		"ca and insecure belong to https,": {URL: "http://h", Insecure: true},
	} {
		bad.Name, bad.Kind, bad.Model, bad.Phases = "w", Chat, "m", steady(1, time.Second)
		if err := (Options{Workloads: []Workload{bad}}).Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := readRoots("x", io.MultiReader(strings.NewReader("x"), failing{})); err == nil || !strings.Contains(err.Error(), "ca: x") {
		t.Errorf("a file that cannot be read: %v", err)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("broken disk") }
