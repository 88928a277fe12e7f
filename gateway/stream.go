package gateway

import (
	"errors"
	"fmt"
	"io"
	"net"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"aloft/backends"
	"aloft/backends/openai"
)

// heartbeat is a comment that SSE parsers skip. One newline only: after a blank
// line older SDKs parse an empty event (docs/failures.md F6).
var heartbeat = []byte(": waiting\n")

// stream is the body of an SSE answer: fasthttp calls WriteTo from the
// goroutine that serves the connection, after the handler has returned, and
// Close at the end. Each event is one Write, hence one chunk; those that the
// engine sent together leave in one system call, and none waits for another that
// is not there yet. SetBodyStreamWriter would join events in its pipe.
type stream struct {
	*ask
	opened chan opened // what the engine began with; taken once
	reply  *backends.Reply
	events backends.EventReader
	first  []byte // an event that was read before the headers went out
	more   bool   // the event after the last one is there already
	conn   *conn  // the client's, to hold back what goes out together; nil = unknown

	choices  uint64 // that have begun, and of these, that have ended; as in openai.Chunk
	ended    uint64
	finished bool  // each that has begun has its finish_reason
	over     error // what next says from now on; nil = go on
	chunks   int   // events with content
	counted  bool  // the engine has said how many tokens the answer has

	mu      sync.Mutex // guards what the heartbeat shares with WriteTo
	w       io.Writer  // nil: not writing
	timer   *time.Timer
	written time.Time
}

var errPanic = errors.New("panic")

// opened is an engine's beginning: its first event, or why there is none.
type opened struct {
	reply  *backends.Reply
	events backends.EventReader
	first  []byte
	more   bool
	err    error
}

// framed makes events of the bytes of a body that cannot tell them itself.
type framed struct{ *openai.Events }

// NextEvent implements backends.EventReader.
func (f framed) NextEvent() (event []byte, more bool, err error) {
	event, err = f.Next()
	return event, err == nil && f.Buffered(), err
}

// stream answers with SSE. The headers wait for the engine's first event, so
// that a fault before it keeps its real status; a silent engine gets them out
// after HeartbeatAfter all the same.
func (s *Server) stream(x *exchange, a *ask) {
	b := &stream{ask: a, opened: make(chan opened, 1)}
	// It ends when Submit and the first read do, which ctx bounds; whoever takes
	// from opened has waited for its end.
	go func() { b.opened <- a.open() }()
	silent := time.NewTimer(s.opt.HeartbeatAfter)
	defer silent.Stop()
	select {
	case o := <-b.opened:
		if whole, isStream := b.take(o); !isStream {
			whole.send(s, x)
			a.end()
			return
		}
		setTiming(&x.c.Response.Header, &a.out.Timing)
		for _, f := range b.reply.Header {
			x.c.Response.Header.Set(f.Name, f.Value)
		}
	case <-silent.C:
		x.c.Response.ImmediateHeaderFlush = true
	}
	s.active.Add(1) // until Close
	h := &x.c.Response.Header
	h.SetContentType("text/event-stream")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	if !x.c.Request.Header.IsHTTP11() {
		b.plain(x)
		return
	}
	b.conn = beneath(x.c.Conn())
	x.c.SetBodyStream(b, -1)
}

// plain sends the stream without chunks, up to the connection's end: HTTP/1.0
// knows no others, and fasthttp would send them all the same.
func (b *stream) plain(x *exchange) {
	head := fmt.Sprintf("HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"+
		"X-Accel-Buffering: no\r\nX-Request-Id: %s\r\nConnection: close\r\n\r\n", b.req.ID)
	x.c.HijackSetNoResponse(true)
	x.c.Hijack(func(conn net.Conn) { // in a goroutine of fasthttp's, which closes conn
		defer b.Close()
		if _, err := io.WriteString(conn, head); err == nil {
			_, _ = b.WriteTo(conn) // an error ends the connection, as everything does here
		}
	})
}

// open submits and reads up to the first event.
func (a *ask) open() (o opened) {
	defer func() {
		if p := recover(); p != nil { // nobody above would catch it
			a.s.log.Error("submit panicked", "id", a.req.ID, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			o = opened{err: errPanic}
		}
	}()
	o.reply, o.err = a.s.deps.Submitter.Submit(&a.life, &a.req)
	if o.err != nil || !isStream(o.reply) {
		return o
	}
	var ok bool
	if o.events, ok = o.reply.Body.(backends.EventReader); !ok {
		o.events = framed{openai.NewEvents(o.reply.Body, a.s.opt.MaxEvent)}
	}
	o.first, o.more, o.err = o.events.NextEvent()
	if o.err == io.EOF {
		o.err = errUnfinished
	}
	o.err = brokeOff(o.err)
	return o
}

func isStream(r *backends.Reply) bool {
	return r.Status == 200 && strings.HasPrefix(r.ContentType, "text/event-stream")
}

// take accepts the beginning. isStream is false when there is no stream to
// relay: an error, an error event in first place, or an engine that answers
// whole; then the answer is in whole.
func (b *stream) take(o opened) (w whole, isStream bool) {
	if o.reply != nil {
		b.out.Timing = o.reply.Timing
	}
	switch {
	case o.err != nil:
		if o.reply != nil {
			o.reply.Body.Close()
		}
		return b.failed(o.err), false
	case o.events == nil:
		return b.whole(nil, o.reply, nil), false
	}
	if data := openai.Data(o.first); openai.ScanEvent(b.req.Endpoint, o.first).Failed {
		defer o.reply.Body.Close()
		return b.failed(engineFault(statusOf(data), data)), false
	}
	b.reply, b.events, b.first, b.more = o.reply, o.events, o.first, o.more
	return whole{}, true
}

// next returns the bytes to send next: an event of the engine, or the error
// event that ends a broken stream. io.EOF: the stream is complete.
func (b *stream) next() ([]byte, error) {
	for b.over == nil {
		event, err := b.pull()
		if err != nil && b.over != nil {
			break
		}
		if err != nil {
			return b.broken(err), nil
		}
		chunk := openai.ScanEvent(b.req.Endpoint, event)
		b.note(chunk)
		switch {
		case chunk.Failed:
			b.fell(event, chunk.Last)
		case chunk.Last && !b.finished:
			return b.broken(errUnfinished), nil
		case chunk.Last:
			b.complete()
		case chunk.UsageOnly && !b.req.WantUsage:
			continue
		}
		return event, nil
	}
	return nil, b.over
}

// fell notes the engine's own failure, with which it may have ended the stream
// in good order.
func (b *stream) fell(event []byte, last bool) {
	data := openai.Data(event)
	b.over = b.failed(engineFault(statusOf(data), data)).err
	if last {
		b.over = io.EOF
	}
}

// takeLate takes a beginning that came after the headers went out. It is apart
// from pull, as fell is from next: with their frames a stream that waits would
// keep 16 KiB of stack instead of 8.
func (b *stream) takeLate() error {
	w, isStream := b.take(<-b.opened)
	if !isStream && w.err == nil { // the engine answered whole to a client that awaits events
		return backends.ErrBadReply
	}
	return w.err
}

// pull reads one event, at first from what was read ahead of the headers.
func (b *stream) pull() ([]byte, error) {
	if b.events == nil {
		if err := b.takeLate(); err != nil {
			return nil, err
		}
	}
	if event := b.first; event != nil {
		b.first = nil
		return event, nil
	}
	if !b.more {
		b.uncork()
	}
	event, more, err := b.events.NextEvent()
	b.more = more
	if err == io.EOF {
		switch e := b.req.Endpoint; {
		case !e.Marked():
			b.complete()
			return nil, io.EOF
		case b.finished && (e == backends.Chat || e == backends.Completions):
			// All content is there; only the closing mark was left out.
			return openai.AppendEvent(nil, []byte("[DONE]")), nil
		}
	}
	if err == io.EOF {
		err = errUnfinished
	}
	return event, brokeOff(err)
}

// note keeps the books.
func (b *stream) note(c openai.Chunk) {
	out := &b.out
	if c.Content {
		b.chunks++
		if out.FirstToken == 0 {
			out.FirstToken = time.Since(b.req.Arrival)
		}
	}
	b.choices, b.ended = b.choices|c.Choices, b.ended|c.Ended
	b.finished = (b.finished || c.Finished) && b.choices&^b.ended == 0
	b.meter(c.PromptTokens, c.CompletionTokens)
	b.counted = b.counted || c.Counted
	b.learn(c.PromptTokens)
}

func (b *stream) complete() {
	b.out.Status, b.over = 200, io.EOF
}

// broken ends the stream with an error event instead of [DONE]. What was sent
// stays; nothing is tried again (docs/failures.md F3).
func (b *stream) broken(err error) []byte {
	w := b.failed(err)
	b.over = w.err
	return openai.AppendFailure(nil, b.req.Endpoint, &w.fault.Error)
}

// WriteTo sends the stream. An error, also one that the client has been told by
// an event, makes fasthttp close the connection without the final chunk, so
// that no client takes the text for whole.
func (b *stream) WriteTo(w io.Writer) (n int64, err error) {
	b.mu.Lock()
	b.w, b.written = w, time.Now()
	beat := time.AfterFunc(b.s.opt.HeartbeatAfter, b.beat)
	b.timer = beat
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		b.w = nil // w is not ours any more: a late beat must not touch it
		b.conn.cork(false)
		b.mu.Unlock()
		beat.Stop()
		if b.over != io.EOF { // else the final chunk takes along what is held
			b.uncork()
		}
	}()
	for {
		event, err := b.next()
		if err == io.EOF {
			return n, nil
		}
		if err == nil && errors.Is(b.over, backends.ErrClientGone) {
			err = b.over // nobody is left to tell
		}
		if err != nil {
			return n, err
		}
		if err := b.send(event); err != nil {
			b.cancel(backends.ErrClientGone)
			return n, err
		}
		n += int64(len(event))
		b.out.Bytes = n
	}
}

// SupportsBodyWriteTo makes fasthttp use WriteTo.
func (b *stream) SupportsBodyWriteTo() bool { return true }

// Read makes it the io.Reader that a body has to be.
func (b *stream) Read([]byte) (int, error) { panic("BUG: a stream of events writes itself") }

// send writes one event. One that is followed at once waits for that: by the
// next event, or by the end of the reply.
func (b *stream) send(event []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	held := b.more || b.over == io.EOF
	b.conn.cork(held)
	if !held { // else the event that it waits for has the time
		b.written = time.Now()
	}
	_, err := b.w.Write(event)
	return err
}

// uncork sends what is held: nothing follows for now.
func (b *stream) uncork() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conn.cork(false)
	_ = b.conn.flush() // an error comes again with the next write
}

// beat breaks a silence that has lasted too long, and comes again.
func (b *stream) beat() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.w == nil {
		return
	}
	after := b.s.opt.HeartbeatAfter
	if quiet := time.Since(b.written); quiet < after {
		b.timer.Reset(after - quiet)
		return
	}
	b.conn.cork(false)
	b.written = time.Now()
	if _, err := b.w.Write(heartbeat); err != nil {
		b.cancel(backends.ErrClientGone)
		return
	}
	b.timer.Reset(after)
}

// Close ends the engine's call if it still runs, and observes the ask.
func (b *stream) Close() error {
	if b.over == nil { // fasthttp stopped asking: the client is gone
		b.cancel(backends.ErrClientGone)
		b.failed(backends.ErrClientGone)
	}
	if b.events == nil && b.over == nil {
		if o := <-b.opened; o.reply != nil {
			b.reply = o.reply
		}
	}
	if b.reply != nil {
		b.reply.Body.Close()
	}
	if !b.counted || b.out.Status != 200 { // an end that did not come has no count; what runs along may lag
		b.out.CompletionTokens = max(b.out.CompletionTokens, b.chunks)
	}
	b.end()
	b.s.active.Add(-1)
	return nil
}
