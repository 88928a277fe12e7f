package known

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"aloft/loadgen"
)

// Null is a server that costs as little as one can and answers at once: a unary
// answer of 1 KiB, or a stream of so many events as the request's max_tokens
// says and three that end it, each in a write of its own. The path
// may begin with what else is wanted of a stream: /every/10ms sends an event
// every 10 ms, at absolute times.
//
// Two paths are for whoever measures: GET /null/usage tells what it did so far,
// GET /null/freeze/2s makes the whole server stand still for so long.
type Null struct {
	began    time.Time
	requests atomic.Int64 // that were answered
	events   atomic.Int64
	frozen   atomic.Int64 // until when, in ns since began; 0 = never

	mu      sync.Mutex
	freezes []Freeze
}

// Usage is what a null server did since it began, by its own clock.
type Usage struct {
	CPU      float64  `json:"cpu_s"` // of its process
	Requests int64    `json:"requests"`
	Events   int64    `json:"events"`
	Freezes  []Freeze `json:"freezes"`
}

// Freeze is a time in which a null server wrote nothing.
type Freeze struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	// Held counts the answers that were due in it.
	Held int64 `json:"held"`
}

const (
	nullReply     = 1 << 10 // bytes of a unary answer's body
	nullEvents    = 100     // of a stream whose request names no max_tokens
	maxNullEvents = 1 << 20
	maxFreeze     = time.Minute
	// EventsBeyond is how many events a null stream has after those of
	// max_tokens: finish_reason, usage and [DONE].
	EventsBeyond = 3
)

var (
	nullChat   = nullUnary(`{"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"null","choices":[{"index":0,"message":{"role":"assistant","content":"`, `"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":128,"total_tokens":135}}`)
	nullVector = nullUnary(`{"object":"list","model":"null","data":[{"object":"embedding","index":0,"embedding":[0.6,0.8]}],"usage":{"prompt_tokens":7,"total_tokens":7},"pad":"`, `"}`)
	nullHead   = []byte(streamHead)
	nullEvent  = chunk(data(`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"null","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}`))
	nullFinish = chunk(finish.text)
	nullDone   = append(chunk(done.text), "0\r\n\r\n"...)
	nullFirst  = append(bytes.Clone(nullHead), nullEvent...)

	askStream = []byte(`"stream":true`)
	askTokens = []byte(`"max_tokens":`)
	toVectors = []byte("/v1/embeddings")
	toUsage   = []byte("/null/usage")
	toFreeze  = []byte("/null/freeze/")
	toEvery   = []byte("/every/")
)

// nullUnary pads an answer to its size.
func nullUnary(before, after string) []byte {
	body := before + strings.Repeat("a word ", nullReply/7)[:nullReply-len(before)-len(after)] + after
	return fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

func chunk(text string) []byte { return fmt.Appendf(nil, "%x\r\n%s\r\n", len(text), text) }

// Serve answers until ctx ends.
func (n *Null) Serve(ctx context.Context, l net.Listener) error {
	n.began = time.Now()
	return serve(ctx, l, func(c *conn) {
		for {
			if _, err := c.next(); err != nil {
				return // the client is gone
			}
			if err := n.answer(c); err != nil {
				return
			}
		}
	})
}

// ListenNull serves at an address until ctx ends or, if in is not nil, until that
// does: its other end is its parent's, and is closed even when that is killed. It
// first announces on out where it listens, in the form of the engines:
// {"listening":"127.0.0.1:1234"}.
func ListenNull(ctx context.Context, addr string, in io.Reader, out io.Writer) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("known: %w", err)
	}
	if _, err := fmt.Fprintf(out, "{\"listening\":%q}\n", l.Addr()); err != nil {
		l.Close()
		return fmt.Errorf("known: announce: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if in != nil {
		go func() { // nothing ends a read but its end; the process is over soon after
			_, _ = io.Copy(io.Discard, in)
			cancel()
		}()
	}
	return new(Null).Serve(ctx, l)
}

func (n *Null) answer(c *conn) error {
	switch {
	case bytes.Equal(c.path, toUsage):
		body, _ := json.Marshal(n.usage()) // numbers and times always encode
		return write(c, fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
	case bytes.HasPrefix(c.path, toFreeze):
		d, err := time.ParseDuration(string(c.path[len(toFreeze):]))
		if err != nil || d <= 0 || d > maxFreeze {
			return write(c, []byte("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"))
		}
		n.freeze(d)
		return write(c, []byte("HTTP/1.1 204 No Content\r\n\r\n"))
	}
	n.wait()
	n.requests.Add(1)
	switch {
	case bytes.Contains(c.body, askStream):
		return n.stream(c)
	case bytes.HasSuffix(c.path, toVectors):
		return write(c, nullVector)
	}
	return write(c, nullChat)
}

func write(c *conn, b []byte) error {
	_, err := c.Write(b)
	return err
}

// stream sends the events that the request asks for.
func (n *Null) stream(c *conn) error {
	events, gap := askedTokens(c.body), askedGap(c.path)
	began := time.Now()
	for i := range events {
		if gap > 0 {
			until(began.Add(time.Duration(i+1) * gap))
			n.wait()
		}
		b := nullEvent
		if i == 0 {
			b = nullFirst
		}
		if err := write(c, b); err != nil {
			return err
		}
	}
	for _, b := range [][]byte{nullFinish, chunk(usage(events).text), nullDone} {
		if err := write(c, b); err != nil {
			return err
		}
	}
	n.events.Add(int64(events + EventsBeyond))
	return nil
}

// askedTokens is the request's max_tokens, within bounds.
func askedTokens(body []byte) int {
	_, rest, ok := bytes.Cut(body, askTokens)
	if !ok {
		return nullEvents
	}
	n := 0
	for _, b := range bytes.TrimLeft(rest, " ") {
		if b < '0' || b > '9' || n > maxNullEvents {
			break
		}
		n = 10*n + int(b-'0')
	}
	return min(max(n, 1), maxNullEvents)
}

// askedGap is the time between two events that a path asks for; 0 = none.
func askedGap(path []byte) time.Duration {
	rest, ok := bytes.CutPrefix(path, toEvery)
	if !ok {
		return 0
	}
	d, _, _ := bytes.Cut(rest, []byte("/"))
	gap, _ := time.ParseDuration(string(d)) // what is no duration asks for nothing
	return max(gap, 0)
}

// freeze makes every answer that is due from now on wait.
func (n *Null) freeze(d time.Duration) {
	now := time.Now()
	n.mu.Lock()
	n.freezes = append(n.freezes, Freeze{From: now, To: now.Add(d)})
	n.mu.Unlock()
	n.frozen.Store(int64(now.Add(d).Sub(n.began)))
}

// wait returns when the server is not frozen. Without a freeze it costs a load.
func (n *Null) wait() {
	end := n.frozen.Load()
	if end == 0 {
		return
	}
	if d := time.Duration(end) - time.Since(n.began); d > 0 {
		n.mu.Lock()
		n.freezes[len(n.freezes)-1].Held++
		n.mu.Unlock()
		time.Sleep(d)
	}
}

func (n *Null) usage() Usage {
	n.mu.Lock()
	defer n.mu.Unlock()
	return Usage{CPU: loadgen.ProcessCPU().Seconds(), Requests: n.requests.Load(), Events: n.events.Load(), Freezes: append([]Freeze{}, n.freezes...)}
}
