package gateway

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"aloft/backends"
)

func TestStreamFrames(t *testing.T) {
	errorEvent := func(kind, code, message string) string {
		return `data: {"error":{"message":"` + message + `","type":"` + kind + `","param":null,"code":"` + code + `"}}` + "\n\n"
	}
	unfinished := errorEvent("server_error", "bad_gateway", "the engine's stream ended without a finish reason")
	last := `data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"length"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}` + "\n\n"
	big := `data: {"choices":[{"index":0,"delta":{"content":"` + strings.Repeat("é", 1<<19) + `"}}]}` + "\n\n"
	toolCall := `data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}}]}` + "\n\n"
	engineError := `data: {"error":{"message":"out of memory","code":507}}` + "\n\n"
	tests := []struct {
		name   string
		body   string
		script script
		want   []string
		clean  bool
		status int
		tokens int
	}{
		{"plain", streamBody, plays(io.EOF, frameRole, frameHel, frameLo, frameFinish, frameDone),
			[]string{frameRole, frameHel, frameLo, frameFinish, frameDone}, true, 200, 2},
		{"one event per chunk however they came", streamBody, plays(io.EOF, frameRole+frameHel+frameLo[:9], frameLo[9:]+frameFinish+frameDone),
			[]string{frameRole, frameHel, frameLo, frameFinish, frameDone}, true, 200, 2},
		{"CRLF and comments", streamBody, plays(io.EOF, ": ping\r\n\r\n"+strings.ReplaceAll(frameHel, "\n", "\r\n"), ": ping\n\n"+frameFinish+frameDone),
			[]string{frameHel, frameFinish, frameDone}, true, 200, 1},
		{"usage frame hidden", streamBody, plays(io.EOF, frameHel, frameFinish, frameUsage, frameDone),
			[]string{frameHel, frameFinish, frameDone}, true, 200, 2},
		{"usage frame shown", usageBody, plays(io.EOF, frameHel, frameFinish, frameUsage[:20], frameUsage[20:30], frameUsage[30:], frameDone),
			[]string{frameHel, frameFinish, frameUsage, frameDone}, true, 200, 2},
		{"content, finish and usage in one frame", streamBody, plays(io.EOF, last, frameDone),
			[]string{last, frameDone}, true, 200, 1},
		{"event of 1 MiB", streamBody, plays(io.EOF, big, frameFinish, frameDone),
			[]string{big, frameFinish, frameDone}, true, 200, 1},
		{"the engine counts none", streamBody, plays(io.EOF, frameHel, frameFinish, strings.Replace(frameUsage, `tokens":2`, `tokens":0`, 1), frameDone),
			[]string{frameHel, frameFinish, frameDone}, true, 200, 0},
		{"a running count that lags", streamBody, plays(net.ErrClosed, strings.Replace(frameHel, "}\n", `,"usage":{"prompt_tokens":7,"completion_tokens":0}}`+"\n", 1)),
			[]string{strings.Replace(frameHel, "}\n", `,"usage":{"prompt_tokens":7,"completion_tokens":0}}`+"\n", 1),
				errorEvent("server_error", "bad_gateway", "the engine's answer broke off")}, false, 502, 1},
		{"no closing mark after the finish", streamBody, plays(io.EOF, frameHel, frameFinish),
			[]string{frameHel, frameFinish, frameDone}, true, 200, 1},
		{"reset after content", streamBody, plays(net.ErrClosed, frameRole, frameHel, frameLo),
			[]string{frameRole, frameHel, frameLo, errorEvent("server_error", "bad_gateway", "the engine's answer broke off")}, false, 502, 2},
		{"adapter says bad reply", streamBody, plays(backends.ErrBadReply, frameHel),
			[]string{frameHel, errorEvent("server_error", "bad_gateway", "the engine's answer was damaged")}, false, 502, 1},
		{"end inside an event", streamBody, plays(io.EOF, frameHel, frameLo[:9]),
			[]string{frameHel, errorEvent("server_error", "bad_gateway", "the engine's answer broke off")}, false, 502, 1},
		{"end without a finish", streamBody, plays(io.EOF, frameHel), []string{frameHel, unfinished}, false, 502, 1},
		{"done without a finish", streamBody, plays(io.EOF, frameHel, frameDone), []string{frameHel, unfinished}, false, 502, 1},
		{"tool call without a finish", streamBody, plays(io.EOF, toolCall, frameDone), []string{toolCall, unfinished}, false, 502, 1},
		{"the engine's own error event", streamBody, plays(io.EOF, frameHel, engineError, frameDone), []string{frameHel, engineError}, false, 507, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := start(t, tt.script)
			head, got, clean := chunks(t, e.raw(t, "/v1/chat/completions", tt.body))
			if !slices.Equal(got, tt.want) {
				t.Errorf("chunks\n%.300q\nwant\n%.300q", got, tt.want)
			}
			if clean != tt.clean {
				t.Errorf("clean end %v, want %v", clean, tt.clean)
			}
			for k, v := range map[string]string{"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"} {
				if head.Get(k) != v {
					t.Errorf("%s is %q, want %q", k, head.Get(k), v)
				}
			}
			if head.Get("Content-Length") != "" || head.Get("X-Request-Id") == "" {
				t.Errorf("head %v: want a request id and no length", head)
			}
			o := e.ledger.wait(t)
			if o.Status != tt.status || o.CompletionTokens != tt.tokens || !o.Stream || o.FirstToken <= 0 {
				t.Errorf("outcome %+v, want status %d and %d tokens", o, tt.status, tt.tokens)
			}
		})
	}
}

// A fault before the first event keeps its status, also when it comes as an event.
func TestStreamFaultBeforeFirstEvent(t *testing.T) {
	tests := []struct {
		name   string
		script script
		status int
	}{
		{"overloaded", fails(backends.ErrOverloaded), 429},
		{"no replica", fails(backends.ErrUnavailable), 503},
		{"silent", fails(backends.ErrSilent), 504},
		{"reset", plays(net.ErrClosed), 502},
		{"empty", plays(io.EOF), 502},
		{"error event", plays(io.EOF, `data: {"error":{"message":"bad","code":400}}`+"\n\n"), 400},
		{"error status", answer(400, `{"error":{"message":"bad","type":"x","param":null,"code":null}}`), 400},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := start(t, tt.script)
			resp, body := e.post(t, "/v1/chat/completions", streamBody)
			if resp.StatusCode != tt.status || resp.Header.Get("Content-Type") != "application/json" || !strings.HasPrefix(body, `{"error":{`) {
				t.Errorf("answer %d %s %s, want %d in the error shape", resp.StatusCode, resp.Header.Get("Content-Type"), body, tt.status)
			}
			if o := e.ledger.wait(t); o.Status != tt.status {
				t.Errorf("observed %d, want %d", o.Status, tt.status)
			}
		})
	}
}

func TestStreamHeartbeat(t *testing.T) {
	quick := func(o *Options, _ *Deps) { o.HeartbeatAfter = 60 * time.Millisecond }
	beat := string(heartbeat)
	// asks sends a stream's request; the engine goes on when its texts have come.
	asks := func(t *testing.T, e *edge, came chan struct{}, texts ...string) net.Conn {
		return &spotter{Conn: e.raw(t, "/v1/chat/completions", streamBody), came: came, texts: texts}
	}
	t.Run("before the first event", func(t *testing.T) {
		came := make(chan struct{})
		e := start(t, func(ctx context.Context, req *backends.Request) (*backends.Reply, error) {
			<-came
			return plays(io.EOF, frameHel, frameFinish, frameDone)(ctx, req)
		}, quick)
		_, got, clean := chunks(t, asks(t, e, came, beat))
		beats := 0
		for ; beats < len(got) && got[beats] == beat; beats++ {
		}
		if beats < 1 || !slices.Equal(got[beats:], []string{frameHel, frameFinish, frameDone}) || !clean {
			t.Errorf("chunks %q, want heartbeats, then the stream", got)
		}
	})
	t.Run("between events", func(t *testing.T) {
		came := make(chan struct{})
		e := start(t, func(ctx context.Context, _ *backends.Request) (*backends.Reply, error) {
			f := newFeed(ctx)
			f.parts <- frameHel
			go func() {
				<-came
				f.parts <- frameFinish
				f.parts <- frameDone
				f.end(io.EOF)
			}()
			return sse(f), nil
		}, quick)
		_, got, clean := chunks(t, asks(t, e, came, frameHel, beat))
		if first := slices.Index(got, frameHel); first < 0 || !slices.Contains(got[first:], beat) || got[len(got)-1] != frameDone || !clean {
			t.Errorf("chunks %q, want a heartbeat after the first event", got)
		}
	})
	t.Run("then a fault becomes an event", func(t *testing.T) {
		came := make(chan struct{})
		e := start(t, func(context.Context, *backends.Request) (*backends.Reply, error) {
			<-came
			return nil, backends.ErrUnavailable
		}, quick)
		head, got, clean := chunks(t, asks(t, e, came, beat))
		if last := got[len(got)-1]; !strings.HasPrefix(last, `data: {"error":{"message":"no replica available"`) || clean {
			t.Errorf("last chunk %q, clean %v; want an error event and no clean end", last, clean)
		}
		if o := e.ledger.wait(t); o.Status != 503 || head.Get("Content-Type") != "text/event-stream" {
			t.Errorf("observed %d under %v, want 503 on a stream", o.Status, head)
		}
	})
	t.Run("an engine's fault too", func(t *testing.T) {
		came := make(chan struct{})
		e := start(t, func(context.Context, *backends.Request) (*backends.Reply, error) {
			<-came
			return whole200(422, `{"detail":"no such role"}`), nil
		}, quick)
		_, got, _ := chunks(t, asks(t, e, came, beat))
		if last := got[len(got)-1]; !strings.Contains(last, `"no such role"`) {
			t.Errorf("last chunk %q, want the engine's words", last)
		}
		if o := e.ledger.wait(t); o.Status != 422 {
			t.Errorf("observed %d, want 422", o.Status)
		}
	})
}

// HTTP/1.0 has no chunks: the stream ends with the connection.
func TestStreamOverHTTP10(t *testing.T) {
	for _, tt := range []struct {
		name   string
		script script
		want   string
		status int
	}{
		{"whole", plays(io.EOF, frameHel, frameFinish, frameDone), frameHel + frameFinish + frameDone, 200},
		{"broken", plays(io.EOF, frameHel), frameHel + `data: {"error":{"message":"the engine's stream ended without a finish reason","type":"server_error","param":null,"code":"bad_gateway"}}` + "\n\n", 502},
	} {
		e := start(t, tt.script)
		c, err := net.Dial("tcp", e.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(patience))
		fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.0\r\nX-Request-Id: old\r\nContent-Length: %d\r\n\r\n%s", len(streamBody), streamBody)
		all, err := io.ReadAll(c)
		head, body, _ := strings.Cut(string(all), "\r\n\r\n")
		if err != nil || body != tt.want || !strings.Contains(head, "text/event-stream") || !strings.Contains(head, "X-Request-Id: old") {
			t.Errorf("%s: head %q body %q (%v), want %q", tt.name, head, body, err, tt.want)
		}
		if o := e.ledger.wait(t); o.Status != tt.status {
			t.Errorf("%s: observed %d, want %d", tt.name, o.Status, tt.status)
		}
	}
}
