package openaihttp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"aloft/backends"
	"aloft/backends/openai"
)

// stage is how far a call came; what an error means depends on it.
type stage uint8

const (
	unsent   stage = iota
	sent           // the engine has all of the request
	answered       // a byte came back
)

// exchange is one call, and then its reply's body. One goroutine reads it;
// Close may come from another.
type exchange struct {
	reply  backends.Reply
	client *Client
	call   *backends.Call
	ctx    context.Context
	stop   func() bool // unties the connection from ctx, nil = not tied

	stage   stage
	reused  bool // the connection served a call before
	once    bool // and will serve none after
	written time.Time

	frame  frame
	events *openai.Events // for SSE
	zipped io.Reader      // frame without its gzip coding, nil = there is none
	rest   []byte         // of the current event
	left   int64          // bytes that may still come, when events is nil
	done   bool           // [DONE] was read: only the end of the body is missing
	err    error          // what Read returns once rest is used up

	turn turn
}

// turn says whose an exchange is: what it holds is given back once, by
// whoever has it last.
type turn struct {
	sync.Mutex
	reading, closed, over bool
}

// afterFuncer is a context that runs a function at its end by itself, which
// costs less than what the context package builds for others.
type afterFuncer interface {
	AfterFunc(f func()) (stop func() bool)
}

// connect takes a connection, if fresh a new one, and ties it to the context.
func (x *exchange) connect(now time.Time, fresh bool) (err error) {
	c := x.client
	var cn *conn
	if !fresh {
		cn = c.pool.take(now)
	}
	x.stage, x.reused = unsent, cn != nil
	if cn == nil {
		if cn, err = c.dial(x.ctx); err != nil {
			return err
		}
		now = time.Now()
	}
	x.frame = frame{conn: cn, idle: c.opt.StreamIdleTimeout, waiting: true}
	cn.expire(now, c.opt.FirstByteTimeout)
	switch a, ok := x.ctx.(afterFuncer); {
	case ok:
		x.stop = a.AfterFunc(cn.abort)
	case x.ctx.Done() != nil:
		x.stop = context.AfterFunc(x.ctx, cn.abort)
	}
	return nil
}

// send writes the request and reads the reply's head.
func (x *exchange) send() error {
	f := &x.frame
	f.buf = buffers.Get().(*[bufferSize]byte)
	text, body := x.client.appendRequest(f.buf[:0], x.call), x.call.Body
	if len(body) <= cap(text)-len(text) {
		text, body = append(text, body...), nil
	}
	a := f.conn.ask(text, body, f.buf[:])
	if x.written = a.written; a.writeErr == nil {
		x.stage = sent
	}
	// An engine may refuse a body that it does not read to its end: the answer
	// is there, although the rest could not be sent.
	h, ahead, err := x.head(a.n, a.readErr)
	switch {
	case err != nil && a.writeErr != nil:
		return a.writeErr
	case err != nil:
		return err
	}
	x.once = h.close || a.writeErr != nil
	x.settle(&h)
	coding := string(h.coding) // begin may give away the buffer that it lies in
	if err := f.begin(&h, ahead); err != nil {
		return err
	}
	return x.decoder(coding)
}

// head reads the reply's head, past interim ones, and returns what came after
// it. n and err are what a first read into the buffer gave.
func (x *exchange) head(n int, err error) (h head, ahead []byte, _ error) {
	f := &x.frame
	b := f.buf[:]
	used, searched, before := 0, 0, 0
	for {
		if used += n; n > 0 {
			x.stage = answered
		}
		if !bytes.HasPrefix([]byte("HTTP/"), b[:min(used, 5)]) {
			return h, nil, fmt.Errorf("no HTTP: %.20q", b[:used])
		}
		if n == 0 && err != nil {
			return h, nil, err
		}
		for end := headEnd(b[:used], searched); end > 0; end = headEnd(b[:used], 0) {
			if h, err = parseHead(b[:end]); err != nil || h.status >= 200 {
				return h, b[end:used], err
			}
			used, before = copy(b, b[end:used]), before+end
		}
		if searched = used; before+used >= maxHead {
			return h, nil, fmt.Errorf("a head over %d bytes", maxHead)
		}
		if used == len(b) {
			b = append(b[:used:used], make([]byte, used)...)
			f.release()
		}
		n, err = f.conn.Read(b[used:])
	}
}

// settle fills the reply from its head.
func (x *exchange) settle(h *head) {
	cn := x.frame.conn
	if cn.kind != string(h.kind) {
		cn.kind = string(h.kind)
	}
	x.reply = backends.Reply{Status: h.status, ContentType: cn.kind, Header: h.shown, Body: x}
	if h.engine >= 0 { // the way there and back, which only the engine can tell from its work
		x.reply.Timing.Network = max(time.Since(x.written)-h.engine, 0)
	}
	if kind, _, _ := bytes.Cut(h.kind, []byte{';'}); x.call.Stream && is(bytes.TrimSpace(kind), "text/event-stream") {
		x.events = events.Get().(*openai.Events)
	}
}

// decoder opens the body for reading.
func (x *exchange) decoder(coding string) error {
	var r io.Reader = &x.frame
	switch {
	case coding == "" || x.frame.size() == 0:
	case strings.EqualFold(coding, "gzip") || strings.EqualFold(coding, "x-gzip"):
		x.zipped = &unzip{from: &x.frame}
		r = x.zipped
	default:
		return fmt.Errorf("content encoding %.40q, which nobody asked for", coding)
	}
	if x.events != nil {
		x.events.Reset(r, x.client.opt.MaxEvent)
	}
	return nil
}

// first waits for the first byte (of SSE, the first event) and keeps it.
func (x *exchange) first() error {
	if x.events == nil {
		return x.frame.wait()
	}
	if x.next(); len(x.rest) > 0 || x.err == io.EOF {
		return nil
	}
	return x.err
}

// next reads the next event into rest.
func (x *exchange) next() {
	if x.rest, x.err = x.events.Next(); openai.IsDone(openai.Data(x.rest)) {
		x.done = true
	}
}

// failed says what an error of a call without a reply means.
func (x *exchange) failed(err error) error {
	path := x.call.Path
	switch {
	case x.ctx.Err() != nil:
		return fmt.Errorf("call %s: %w", path, context.Cause(x.ctx))
	case errors.Is(err, backends.ErrConnect) || errors.Is(err, backends.ErrBadReply):
		return fmt.Errorf("call %s: %w", path, err)
	case timedOut(err):
		return fmt.Errorf("call %s: %w: no byte in %v", path, backends.ErrSilent, x.client.opt.FirstByteTimeout)
	case x.stage == answered:
		return fmt.Errorf("call %s: %w: %w", path, backends.ErrBadReply, err)
	case x.stage == sent:
		// Connected and sent, then closed without an answer: the engine died of
		// it or while at it. That is no ErrConnect, which is always safe to retry.
		return fmt.Errorf("call %s: %w: closed without an answer: %w", path, backends.ErrBadReply, err)
	}
	return fmt.Errorf("call %s at %s: %w: %w", path, x.client.opt.BaseURL, backends.ErrConnect, err)
}

// cut says what an error within the body means.
func (x *exchange) cut(err error) error {
	switch {
	case err == nil || err == io.EOF:
		return err
	case x.ctx.Err() != nil:
		return fmt.Errorf("reply cut: %w", context.Cause(x.ctx))
	case errors.Is(err, backends.ErrBadReply):
		return err
	case timedOut(err):
		return fmt.Errorf("%w: nothing for %v", backends.ErrSilent, x.frame.idle)
	}
	return fmt.Errorf("reply cut: %w: %w", backends.ErrBadReply, err)
}

func timedOut(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// end gives everything back. The connection serves another call if this one
// ended cleanly on both sides.
func (x *exchange) end() {
	f := &x.frame
	if f.conn == nil {
		return
	}
	alive := x.stop == nil || x.stop()
	if clean := f.ended && !f.surplus && !x.once; alive && clean {
		x.client.pool.put(f.conn, x.client.opt.MaxIdle)
	} else {
		f.conn.abort()
	}
	f.release()
	if x.events != nil {
		events.Put(x.events)
	}
	f.conn, x.events, x.zipped, x.rest, x.stop = nil, nil, nil, nil, nil
}
