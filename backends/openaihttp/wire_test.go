package openaihttp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"aloft/backends"
)

// scripted is a connection whose engine answers with a fixed text, however it is cut.
type scripted struct {
	net.Conn
	in io.Reader
}

func (s scripted) Read(p []byte) (int, error)      { return s.in.Read(p) }
func (s scripted) Write(p []byte) (int, error)     { return len(p), nil }
func (s scripted) SetDeadline(time.Time) error     { return nil }
func (s scripted) SetReadDeadline(time.Time) error { return nil }

// receive plays text, read n bytes at a time, as the reply to a plain call.
func receive(text []byte, oneByOne bool) (*exchange, string, error) {
	var in io.Reader = bytes.NewReader(text)
	if oneByOne {
		in = iotest.OneByteReader(in)
	}
	c := New(Options{BaseURL: "http://x", MaxReply: 1 << 20})
	x := &exchange{client: c, call: &backends.Call{Path: "/"}, ctx: context.Background(), left: c.opt.MaxReply}
	x.frame = frame{conn: &conn{Conn: scripted{in: in}, abort: func() {}}, waiting: true}
	err := x.send()
	if err == nil {
		err = x.first()
	}
	if err != nil {
		return x, "", err
	}
	frame := &x.frame
	body, err := io.ReadAll(frame)
	return x, string(body), err
}

// Whatever is accepted here, net/http accepts too, and reads the same from it:
// two parsers on a path that differ are how requests and replies get smuggled.
func FuzzResponse(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}more",
		"HTTP/1.0 200\r\nConnection: keep-alive\r\n\r\nuntil the end",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 X\r\n\r\n",
		"HTTP/1.1 304 X\r\nContent-Length: 9\r\n\r\n",
		sse + chunk("data: a\n\n") + chunk("data: [DONE]\n\n") + "0\r\n\r\n",
		"HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n1;a=b\r\nx\r\n0\r\nT: v\r\n\r\nrest",
		"HTTP/1.1 429 X\r\nRetry-After: 7\r\nServer-Timing: a;dur=1.5, total;dur=2\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n",
	} {
		f.Add([]byte(s), false)
		f.Add([]byte(s), true)
	}
	f.Fuzz(func(t *testing.T, text []byte, oneByOne bool) {
		x, body, err := receive(text, oneByOne)
		if err != nil {
			return
		}
		r := bufio.NewReader(bytes.NewReader(text))
		for {
			res, err := http.ReadResponse(r, &http.Request{Method: http.MethodPost})
			if err != nil {
				t.Fatalf("accepted as %d %q; net/http: %v", x.reply.Status, body, err)
			}
			if res.StatusCode < 200 {
				continue
			}
			want, err := io.ReadAll(res.Body)
			if trailer := x.frame.chunked && string(want) == body; err != nil && !trailer { // trailers are not looked at here
				t.Fatalf("body %q; net/http: %q, %v", body, want, err)
			}
			if res.StatusCode != x.reply.Status || string(want) != body || res.Header.Get("Content-Type") != strings.TrimRight(x.reply.ContentType, " \t") {
				t.Fatalf("%d %q %q, net/http: %d %q %q", x.reply.Status, x.reply.ContentType, body, res.StatusCode, res.Header.Get("Content-Type"), want)
			}
			if res.Close && !x.once {
				t.Fatal("the connection would be used again after net/http's last reply on it")
			}
			return
		}
	})
}

func TestReplyHeads(t *testing.T) {
	long := strings.Repeat("x", maxHead)
	for name, tc := range map[string]struct {
		text   string
		status int // 0 = bad
		body   string
		again  bool // the connection may serve another call
	}{
		"length":                    {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", 200, "{}", true},
		"no reason":                 {"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\n{}", 200, "{}", true},
		"bare LF":                   {"HTTP/1.1 200 OK\nContent-Length: 2\n\n{}", 200, "{}", true},
		"chunked, ext and trailer":  {"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n2;a=\"b\"\r\n{}\r\n0\r\nX: y\r\n\r\n", 200, "{}", true},
		"until closed":              {"HTTP/1.1 200 OK\r\n\r\n{}", 200, "{}", false},
		"HTTP/1.0":                  {"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", 200, "{}", false},
		"HTTP/1.0 kept":             {"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 2\r\n\r\n{}", 200, "{}", true},
		"close":                     {"HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 2\r\n\r\n{}", 200, "{}", false},
		"interim":                   {"HTTP/1.1 100 C\r\n\r\nHTTP/1.1 103 E\r\nLink: x\r\n\r\nHTTP/1.1 201 OK\r\nContent-Length: 0\r\n\r\n", 201, "", true},
		"no content":                {"HTTP/1.1 204 X\r\n\r\n", 204, "", true},
		"no content, with some":     {"HTTP/1.1 204 X\r\nContent-Length: 2\r\n\r\n", 204, "", false},
		"not modified":              {"HTTP/1.1 304 X\r\nContent-Length: 2\r\n\r\n", 304, "", true},
		"redirect":                  {"HTTP/1.1 307 X\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", 307, "", true},
		"two replies":               {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\n", 200, "{}", false},
		"two replies, chunked":      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\nHTTP", 200, "{}", false},
		"two framings":              {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 200, "{}", false},
		"a head of 60 KiB":          {"HTTP/1.1 200 OK\r\nA: " + long[:60<<10] + "\r\nContent-Length: 2\r\n\r\n{}", 200, "{}", true},
		"a head too long":           {"HTTP/1.1 200 OK\r\nA: " + long + "\r\n\r\n", 0, "", false},
		"interim heads without end": {strings.Repeat("HTTP/1.1 100 C\r\n\r\n", maxHead/10), 0, "", false},
		"two lengths":               {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 0, "", false},
		"a signed length":           {"HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\n{}", 0, "", false},
		"folded":                    {"HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", 0, "", false},
		"blank before the colon":    {"HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\n{}", 0, "", false},
		"CR in a value":             {"HTTP/1.1 200 OK\r\nA: b\rc\r\n\r\n", 0, "", false},
		"gzip framing":              {"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 0, "", false},
		"HTTP/2":                    {"HTTP/2.0 200 OK\r\n\r\n", 0, "", false},
		"no number":                 {"HTTP/1.1 2x0 OK\r\n\r\n", 0, "", false},
		"upgrade":                   {"HTTP/1.1 101 X\r\n\r\n", 0, "", false},
		"br":                        {"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 2\r\n\r\nxx", 0, "", false},
		"short":                     {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}", 0, "", false},
		"short chunks":              {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n", 0, "", false},
		"bare LF in a chunk":        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\n{}\r\n0\r\n\r\n", 0, "", false},
		"chunk over its size":       {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n", 0, "", false},
		"no size":                   {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\n", 0, "", false},
		"a huge chunk":              {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", 0, "", false},
	} {
		for _, oneByOne := range []bool{false, true} {
			x, body, err := receive([]byte(tc.text), oneByOne)
			if tc.status == 0 {
				if err == nil {
					t.Errorf("%s: accepted: %d %q", name, x.reply.Status, body)
				}
				continue
			}
			if err != nil || x.reply.Status != tc.status || body != tc.body {
				t.Errorf("%s: %d %q, %v", name, x.reply.Status, body, err)
			}
			again := x.frame.ended && !x.frame.surplus && !x.once
			if oneByOne && strings.HasPrefix(name, "two replies") {
				continue // what follows stays in the socket, where the pool looks
			}
			if again != tc.again {
				t.Errorf("%s: connection kept: %v", name, again)
			}
		}
	}
}

func TestReplyFields(t *testing.T) {
	x, _, err := receive([]byte("HTTP/1.1 429 X\r\ncontent-type: text/plain\r\nretry-after: 7\r\nSet-Cookie: a\r\nserver: b\r\n"+
		"Access-Control-Allow-Origin: *\r\nX-Request-Id: r\r\nX-RateLimit-Limit-Requests: 1\r\nrequest-id: q\r\nAnthropic-Ratelimit-Tokens-Limit: 9\r\n"+
		"openai-processing-ms: 12\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n"), false)
	want := backends.Header{{Name: "Retry-After", Value: "7"}, {Name: "Request-Id", Value: "q"}, {Name: "Openai-Processing-Ms", Value: "12"}}
	if err != nil || !reflect.DeepEqual(x.reply.Header, want) || x.reply.ContentType != "text/plain" {
		t.Errorf("%v %q, %v", x.reply.Header, x.reply.ContentType, err)
	}
	if x, _, _ = receive([]byte("HTTP/1.1 200 X\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n"), false); x.reply.Header != nil {
		t.Errorf("%v on a 200", x.reply.Header)
	}
}

func TestServerTiming(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"queue;dur=3, engine;dur=10.25": 10250 * time.Microsecond, "a;desc=x;dur=1, total;dur=\"4\", b;dur=9": 4 * time.Millisecond,
		"": -1, "a": -1, "a;dur=x": -1, "a;dur=-1": -1, "a;dur=1e9": -1, "a;dur=.5": -1, "a;dur=0.0000019": time.Nanosecond, "a;dur=99999999999": -1,
	} {
		if got := serverTiming([]byte(text)); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

func TestRequestHead(t *testing.T) {
	c := New(Options{BaseURL: "http://h:1/base/", APIKey: "k"})
	got := string(c.appendRequest(nil, &backends.Call{
		Path: "/v1/x", ContentType: "multipart/form-data; boundary=b", Body: []byte("abc"), Stream: true, ID: "r",
		Header: backends.Header{
			{Name: "Traceparent", Value: "00"}, {Name: "host", Value: "evil"}, {Name: "Content-Length", Value: "9"}, {Name: "AUTHORIZATION", Value: "x"},
			{Name: "Transfer-Encoding", Value: "chunked"}, {Name: "Connection", Value: "close"}, {Name: "A", Value: "b\r\nC: d"}, {Name: "A b", Value: "c"},
		},
	}))
	want := "POST /base/v1/x HTTP/1.1\r\nHost: h:1\r\nUser-Agent: aloft\r\nAuthorization: Bearer k\r\nContent-Type: multipart/form-data; boundary=b\r\n" +
		"Accept: text/event-stream\r\nX-Request-Id: r\r\nTraceparent: 00\r\nContent-Length: 3\r\n\r\n"
	if got != want {
		t.Errorf("%q\nwant\n%q", got, want)
	}
	if got := string(c.appendRequest(nil, &backends.Call{Path: "/", ID: "a\r\nb"})); strings.Contains(got, "X-Request-Id") || !strings.Contains(got, "Content-Type: application/json\r\n") {
		t.Errorf("%q", got)
	}
}

func TestErrorsOfABodyKeepTheirKind(t *testing.T) {
	_, _, err := receive([]byte("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}"), false)
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%v", err)
	}
}
