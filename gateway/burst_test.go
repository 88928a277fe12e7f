package gateway

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"aloft/backends"
)

// counted counts the writes to the connections that it accepts.
type counted struct {
	net.Listener
	writes *atomic.Int64
}

func (l counted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return countedConn{c.(*net.TCPConn), l.writes}, nil
}

type countedConn struct {
	*net.TCPConn
	writes *atomic.Int64
}

func (c countedConn) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.TCPConn.Write(p)
}

// countWrites serves play and counts what its clients' sockets are written.
func countWrites(t *testing.T, play script) (e *edge, writes *atomic.Int64) {
	t.Helper()
	s, err := New(Options{HeartbeatAfter: time.Minute}, Deps{Catalog: testModels(), Submitter: play}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	writes = new(atomic.Int64)
	go func() { served <- s.Serve(ctx, counted{ln, writes}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return &edge{Server: s, addr: ln.Addr().String()}, writes
}

func frames(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%d\"},\"finish_reason\":null}]}\n\n", i))
	}
	return all
}

// What an engine sends at once leaves at once: a chunk for each event, and far
// fewer system calls.
func TestBurst(t *testing.T) {
	want := append(frames(100), frameFinish, frameDone)
	e, writes := countWrites(t, plays(io.EOF, strings.Join(want, "")))
	_, got, clean := chunks(t, e.raw(t, "/v1/chat/completions", streamBody))
	if !slices.Equal(got, want) || !clean {
		t.Errorf("%d chunks, clean %v, want %d: %.300q", len(got), clean, len(want), got)
	}
	// 8 KiB through a buffer of 4 KiB: a write for each time that it is filled.
	if n := writes.Load(); n > 6 {
		t.Errorf("%d writes of %d events", n, len(want))
	}
}

// No event waits for one that is not there: not when the next one is a comment,
// half, or hidden from the client, nor when the reply ends in a fault.
func TestBurstHoldsNothingBack(t *testing.T) {
	failed := "data: {\"error\":{\"message\":\"out of memory\"}}\n\n"
	for _, tt := range []struct {
		name, burst string
		want        []string
		rest        string
		then        []string
		clean       bool
	}{
		{"a comment", frameHel + frameLo + ": ping\n\n", []string{frameHel, frameLo}, frameFinish + frameDone, []string{frameFinish, frameDone}, true},
		{"half an event", frameHel + frameLo + frameFinish[:20], []string{frameHel, frameLo}, frameFinish[20:] + frameDone, []string{frameFinish, frameDone}, true},
		{"a hidden event", frameHel + frameFinish + frameUsage, []string{frameHel, frameFinish}, frameDone, []string{frameDone}, true},
		{"then a fault", frameHel + frameLo, []string{frameHel, frameLo}, frameLo + failed + frameDone, []string{frameLo, failed}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			feeds := make(chan *feed, 1)
			e, _ := countWrites(t, func(ctx context.Context, _ *backends.Request) (*backends.Reply, error) {
				f := newFeed(ctx)
				f.parts <- tt.burst
				feeds <- f
				return sse(f), nil
			})
			c := e.raw(t, "/v1/chat/completions", streamBody)
			f := <-feeds
			c.SetReadDeadline(time.Now().Add(patience))
			end := []byte(tt.want[len(tt.want)-1] + "\r\n")
			var seen []byte
			for buf := make([]byte, 4096); !strings.HasSuffix(string(seen), string(end)); {
				n, err := c.Read(buf)
				if seen = append(seen, buf[:n]...); err != nil {
					t.Fatalf("the client has %q, and no more comes: %v", seen, err)
				}
			}
			f.parts <- tt.rest
			f.end(io.EOF)
			all, _ := io.ReadAll(io.MultiReader(strings.NewReader(string(seen)), timeless(c)))
			got, clean := split(string(all))
			if want := append(tt.want, tt.then...); !slices.Equal(got, want) || clean != tt.clean {
				t.Errorf("chunks %q, clean %v\nwant %q", got, clean, want)
			}
		})
	}
}

// timeless reads what comes until the reply's end, or a short silence.
func timeless(c net.Conn) io.Reader {
	c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	return c
}

// split takes the framing off a chunked reply. clean: the final chunk is there.
func split(reply string) (parts []string, clean bool) {
	_, body, _ := strings.Cut(reply, "\r\n\r\n")
	for body != "" {
		var n int
		if _, err := fmt.Sscanf(body, "%x\r\n", &n); err != nil {
			return parts, false
		}
		_, rest, _ := strings.Cut(body, "\r\n")
		if n == 0 {
			return parts, true
		}
		parts, body = append(parts, rest[:n]), rest[n+2:]
	}
	return parts, false
}

// The end of a reply does not wait for the reply to a request that was sent
// early.
func TestBurstEndIsNotHeldForThePipeline(t *testing.T) {
	first := true
	e, _ := countWrites(t, func(ctx context.Context, _ *backends.Request) (*backends.Reply, error) {
		f := newFeed(ctx)
		if first {
			first = false
			f.parts <- frameHel + frameFinish + frameDone
		}
		return sse(f), nil // the second one is silent
	})
	c, err := net.Dial("tcp", e.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	request := fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(streamBody), streamBody)
	io.WriteString(c, request+request)
	c.SetReadDeadline(time.Now().Add(patience))
	var seen []byte
	for buf := make([]byte, 4096); !strings.Contains(string(seen), frameDone); {
		n, err := c.Read(buf)
		if seen = append(seen, buf[:n]...); err != nil {
			t.Fatalf("the client has %q, and no more comes: %v", seen, err)
		}
	}
}
