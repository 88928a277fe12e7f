package gateway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"aloft/backends"
)

// lines is a log that a test may read while the server writes it.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) about(what string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, what) {
			found = append(found, line)
		}
	}
	return found
}

// A failure is always logged, a success by its share; a line has neither the
// prompt nor the answer nor the key's secret.
func TestAccessLog(t *testing.T) {
	for _, tt := range []struct {
		share           float64
		status, logged  int
		level, contains string
	}{
		{0, 200, 0, "", ""},
		{1, 200, 5, "level=INFO", "status=200"},
		{0, 400, 5, "level=INFO", "status=400"},
		{0, 503, 5, "level=WARN", "status=503"},
	} {
		var log lines
		e := start(t, answer(tt.status, `{"error":{"message":"ANSWER"},"usage":{"prompt_tokens":7,"completion_tokens":2}}`), func(o *Options, d *Deps) {
			o.Telemetry.AccessLog = tt.share
			d.Keys = newRing(t, "SECRET", &Grant{Tenant: "red"})
		})
		e.Server.log = slog.New(slog.NewTextHandler(&log, nil))
		for range 5 {
			e.post(t, "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"PROMPT"}]}`, "Authorization", "Bearer SECRET")
			e.ledger.wait(t)
		}
		got := log.about("request ended")
		if len(got) != tt.logged {
			t.Errorf("share %g, status %d: %d lines, want %d", tt.share, tt.status, len(got), tt.logged)
		}
		for _, line := range got {
			if !strings.Contains(line, tt.level) || !strings.Contains(line, tt.contains) || !strings.Contains(line, "tenant=red") || !strings.Contains(line, "model=tiny") {
				t.Errorf("line %q", line)
			}
		}
		for _, secret := range []string{"PROMPT", "ANSWER", "Bearer", "=SECRET"} {
			if all := log.about(secret); len(all) > 0 {
				t.Errorf("the log has %s: %s", secret, all)
			}
		}
	}
}

// What no model answers has a line too: one each, without what clients made up.
func TestAccessLogOfOtherRoutes(t *testing.T) {
	for _, share := range []float64{0, 1} {
		var log lines
		e := withJobs(t, answer(200, "{}"), func(o *Options, d *Deps) {
			o.Telemetry.AccessLog = share
			d.Keys = newRing(t, "SECRET", &Grant{Tenant: "red"}, "MASTER", &Grant{Tenant: "ops", Admin: true})
			d.Status = fixedStatus{}
			o.CORS = []string{"*"}
		})
		e.Server.log = slog.New(slog.NewTextHandler(&log, nil))
		red, ops := []string{"Authorization", "Bearer SECRET"}, []string{"Authorization", "Bearer MASTER"}
		body, kind := form(t, "purpose", "batch", "file", "PROMPT")
		_, text := e.do(t, "POST", "/v1/files", body, append(red, "Content-Type", kind)...)
		file, _ := object(t, text)["id"].(string)
		e.get(t, "/v1/files/"+file+"/content", red...)
		e.get(t, "/v1/models", red...)
		e.get(t, "/aloft/v1/status", ops...)
		e.do(t, "OPTIONS", "/v1/MADEUP", "", "Origin", "https://a.example", "Access-Control-Request-Method", "POST")
		e.get(t, "/healthz")
		e.get(t, "/aloft/v1/status", red...)
		e.get(t, "/v1/models/MADEUP?q=MADEUP", red...)
		e.get(t, "/MADEUP")
		e.get(t, "/v1/embeddings", red...)
		e.do(t, "DELETE", "/v1/batches/MADEUP", "")
		e.raw(t, "/v1/files\x00MADEUP", "")

		want := []string{
			`tenant=red key=id-SECRET method=POST path=/v1/files about="" status=200 reason=""`,
			`tenant=red key=id-SECRET method=GET path=/v1/files//content about=` + file + ` status=200 reason=""`,
			`tenant=red key=id-SECRET method=GET path=/v1/models about="" status=200 reason=""`,
			`tenant=ops key=id-MASTER method=GET path=/aloft/v1/status about="" status=200 reason=""`,
			`tenant="" key="" method=OPTIONS path="" about="" status=204 reason=""`,
		}
		if share == 0 {
			want = nil
		}
		want = append(want,
			`tenant="" key="" method=GET path=/aloft/v1/status about="" status=403 reason=not_allowed`,
			`tenant=red key=id-SECRET method=GET path=/v1/models/ about="" status=404 reason=bad_request`,
			`tenant="" key="" method=GET path="" about="" status=404 reason=bad_request`,
			`tenant="" key="" method=GET path=/v1/embeddings about="" status=405 reason=bad_request`,
			`tenant="" key="" method=DELETE path=/v1/batches/ about="" status=405 reason=bad_request`,
			`status=400 reason=bad_request`, // no HTTP
		)
		until(t, "the lines of the log", func() bool { return len(log.about("request ended")) >= len(want) })
		got := log.about("request ended")
		for i, w := range want {
			if len(got) != len(want) || !strings.Contains(got[i], w) {
				t.Errorf("share %g: line %d of %d:\n%s\nwant\n%s", share, i, len(got), got[min(i, len(got)-1)], w)
			}
		}
		for _, secret := range []string{"PROMPT", "Bearer", "=SECRET", "=MASTER", "MADEUP"} {
			if all := log.about(secret); len(all) > 0 {
				t.Errorf("the log has %s: %s", secret, all)
			}
		}
	}
}

// The client is told when no replica of ours answered it.
func TestRouteIsShown(t *testing.T) {
	for _, route := range []string{"", backends.RouteOverflow, backends.RouteCache} {
		for _, body := range []string{chatBody, streamBody} {
			e := start(t, func(ctx context.Context, req *backends.Request) (*backends.Reply, error) {
				r := whole200(200, "{}")
				if req.Stream {
					r, _ = plays(io.EOF, frameHel, frameFinish, frameDone)(ctx, req)
				}
				r.Timing.Route = route
				return r, nil
			})
			if resp, _ := e.post(t, "/v1/chat/completions", body); resp.Header.Get("X-Aloft-Route") != route {
				t.Errorf("x-aloft-route is %q, want %q", resp.Header.Get("X-Aloft-Route"), route)
			}
			if o := e.ledger.wait(t); o.Timing.Route != route {
				t.Errorf("observed route %q, want %q", o.Timing.Route, route)
			}
		}
	}
}

// audio is a reply that passes through.
func audio(f *feed) *backends.Reply {
	return &backends.Reply{Status: 200, ContentType: "audio/mpeg", Body: f}
}

// A body that breaks on its way is not taken for whole, and counts as failed.
func TestPassingBreaks(t *testing.T) {
	for name, tt := range map[string]struct {
		end    error
		clean  bool
		status int
	}{
		"whole": {io.EOF, true, 200}, "reset": {net.ErrClosed, false, 502}, "damaged": {backends.ErrBadReply, false, 502},
	} {
		e := start(t, func(ctx context.Context, _ *backends.Request) (*backends.Reply, error) {
			f := newFeed(ctx)
			f.parts <- "abc"
			f.end(tt.end)
			return audio(f), nil
		})
		_, got, clean := chunks(t, e.raw(t, "/v1/chat/completions", chatBody))
		if strings.Join(got, "") != "abc" || clean != tt.clean {
			t.Errorf("%s: %q, clean %v", name, got, clean)
		}
		if o := e.ledger.wait(t); o.Status != tt.status || o.Bytes != 3 {
			t.Errorf("%s: observed %d after %d bytes, want %d", name, o.Status, o.Bytes, tt.status)
		}
	}
}

func TestClientLeavesPassingBody(t *testing.T) {
	feeds := make(chan *feed, 1)
	e := start(t, func(ctx context.Context, _ *backends.Request) (*backends.Reply, error) {
		f := newFeed(ctx)
		f.parts <- "abc"
		feeds <- f
		return audio(f), nil
	})
	c := e.raw(t, "/v1/chat/completions", chatBody)
	f := <-feeds
	c.Read(make([]byte, 1))
	c.Close()
	select {
	case <-f.closed:
	case <-time.After(patience):
		t.Error("the engine's call goes on after the client left")
	}
	if o := e.ledger.wait(t); o.Status != statusClientGone {
		t.Errorf("observed %d, want 499", o.Status)
	}
}

// A client that leaves pays for what was made for it.
func TestSettleAfterClientLeft(t *testing.T) {
	feeds := make(chan *feed, 1)
	var keys *ring
	e := start(t, func(ctx context.Context, _ *backends.Request) (*backends.Reply, error) {
		f := newFeed(ctx)
		f.parts <- frameRole + frameHel + frameLo
		feeds <- f
		return sse(f), nil
	}, func(_ *Options, d *Deps) {
		keys = newRing(t, "u", &Grant{Tenant: "red"})
		d.Keys = keys
	})
	c, err := net.Dial("tcp", e.addr)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer u\r\nContent-Length: %d\r\n\r\n%s", len(streamBody), streamBody)
	f := <-feeds
	var seen []byte
	for buf := make([]byte, 4096); !bytes.Contains(seen, []byte(frameLo)); {
		n, err := c.Read(buf)
		if seen = append(seen, buf[:n]...); err != nil {
			t.Fatal(err)
		}
	}
	c.Close()
	<-f.closed
	o := e.ledger.wait(t)
	keys.mu.Lock()
	settled := slices.Clone(keys.limits["id-u"].settled)
	keys.mu.Unlock()
	if o.Status != statusClientGone || o.CompletionTokens != 2 || len(settled) != 1 || settled[0] != o.PromptTokens+2 {
		t.Errorf("observed %d with %d+%d tokens, settled %v; want 499 and two tokens of answer paid", o.Status, o.PromptTokens, o.CompletionTokens, settled)
	}
}

// Events arrive as they were made, whatever pieces the network made of them.
func TestStreamInPieces(t *testing.T) {
	tool := func(args string) string {
		return `data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"` + args + `"}}]},"finish_reason":null}]}` + "\n\n"
	}
	choice := func(i int, text, finish string) string {
		return fmt.Sprintf(`data: {"choices":[{"index":%d,"delta":{"content":%q},"finish_reason":%s}]}`+"\n\n", i, text, finish)
	}
	for name, want := range map[string][]string{
		"tool call": {tool(""), tool(`{\"a`), tool(`\":1}`), `data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}` + "\n\n", frameDone},
		"n=3": {choice(0, "a", "null"), choice(2, "b", "null"), choice(1, "c", "null"), choice(2, "", `"stop"`), choice(0, "d", `"length"`),
			choice(1, "", `"stop"`), frameDone},
		"utf-8": {choice(0, "é😀", "null"), choice(0, "漢", "null"), frameFinish, frameDone},
	} {
		e := start(t, plays(io.EOF, strings.Split(strings.Join(want, ""), "")...))
		if name == "utf-8" { // Split keeps characters whole
			var bytes []string
			for _, b := range []byte(strings.Join(want, "")) {
				bytes = append(bytes, string([]byte{b}))
			}
			e = start(t, plays(io.EOF, bytes...))
		}
		_, got, clean := chunks(t, e.raw(t, "/v1/chat/completions", streamBody))
		if !slices.Equal(got, want) || !clean {
			t.Errorf("%s: %q, clean %v\nwant %q", name, got, clean, want)
		}
	}
}

// What fasthttp refuses has the headers of every other answer.
func TestUnreadRequestsHaveTheHeaders(t *testing.T) {
	e := start(t, answer(200, "{}"), func(o *Options, _ *Deps) {
		o.CORS = []string{"*"}
		o.HeaderTimeout = quickly
	})
	for _, tt := range []struct {
		send   string
		status int
	}{
		{"\x16\x03\x01 hello\r\n\r\n", 400},
		{"GET / HTTP/1.1\r\nHost:", 408},
		{"GET /healthz HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + strings.Repeat("x", 8<<10) + "\r\n\r\n", 431},
		{"GET /healthz HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + strings.Repeat("x", 4<<10) + "\r\n\r\n", 200},
	} {
		c, err := net.Dial("tcp", e.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(patience))
		io.WriteString(c, tt.send)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("%.20q: %v", tt.send, err)
		}
		if h := resp.Header; resp.StatusCode != tt.status || h.Get("Access-Control-Allow-Origin") != "*" || h.Get("X-Request-Id") == "" {
			t.Errorf("%.20q: %d %v, want %d, an id and the CORS header", tt.send, resp.StatusCode, h, tt.status)
		}
	}
}

func TestLife(t *testing.T) {
	why := errors.New("why")
	t.Run("children", func(t *testing.T) {
		var l life
		child, stop := context.WithCancel(&l)
		defer stop()
		grandchild, stop2 := context.WithTimeout(child, time.Hour)
		defer stop2()
		if l.Err() != nil || child.Err() != nil {
			t.Fatal("over before its end")
		}
		l.cancel(why)
		l.cancel(errors.New("another"))
		<-grandchild.Done()
		if l.Err() != why || context.Cause(&l) != why || context.Cause(grandchild) != why {
			t.Errorf("causes %v, %v, %v, want the first", l.Err(), context.Cause(&l), context.Cause(grandchild))
		}
		<-l.Done()
	})
	t.Run("callbacks", func(t *testing.T) {
		var l life
		var ran []int
		stops := []func() bool{}
		for i := range 3 {
			stops = append(stops, l.AfterFunc(func() { ran = append(ran, i) }))
		}
		if !stops[1]() || stops[1]() {
			t.Error("stop says that it prevented the call once, and only once")
		}
		l.cancel(nil)
		if !slices.Equal(ran, []int{0, 2}) || stops[0]() || l.Err() != context.Canceled {
			t.Errorf("ran %v, cause %v", ran, l.Err())
		}
		late := make(chan bool)
		l.AfterFunc(func() { close(late) }) // what comes after the end runs at once
		<-late
	})
	t.Run("a stop stops its own", func(t *testing.T) {
		var l life
		ran := false
		stop := l.AfterFunc(func() { t.Error("ran although it was stopped") })
		first := stop()
		l.AfterFunc(func() { ran = true })
		again := stop()
		l.cancel(why)
		if !first || again || !ran {
			t.Errorf("stopped %v, then %v; the next one ran: %v", first, again, ran)
		}
	})
	t.Run("at once", func(t *testing.T) {
		for range 200 {
			var l life
			var ran, stopped atomic.Int32
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					if stop := l.AfterFunc(func() { ran.Add(1) }); stop() {
						stopped.Add(1)
					}
				})
				all.Go(func() { l.cancel(why) })
				all.Go(func() {
					child, stop := context.WithCancel(&l)
					defer stop()
					<-child.Done()
				})
			}
			all.Wait()
			for range 60_000 { // one that came after the end runs in its own goroutine
				if ran.Load()+stopped.Load() == 4 {
					break
				}
				time.Sleep(time.Millisecond)
			}
			if ran.Load()+stopped.Load() != 4 {
				t.Fatalf("%d ran, %d were stopped, want 4 together", ran.Load(), stopped.Load())
			}
		}
	})
}
