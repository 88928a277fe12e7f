package openaihttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"aloft/backends"
	"aloft/backends/openai"
)

// running is what a body needs of its call.
type running struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	watch  *time.Timer // cancels the call when it fires
}

// body is a reply's body. It is read by one goroutine; Close may come from another.
type body struct {
	running
	res    *http.Response
	idle   time.Duration
	left   int64          // bytes that may still come, when events is nil
	events *openai.Events // for SSE
	rest   []byte         // read ahead, or of an event larger than the reader's buffer
	err    error          // what Read returns once rest is used up
	done   atomic.Bool    // [DONE] was read: only the end of the body is missing
	close  sync.Once
}

func newBody(res *http.Response, stream bool, o Options, r running) *body {
	b := &body{running: r, res: res, idle: o.StreamIdleTimeout, left: o.MaxReply}
	if kind, _, err := mime.ParseMediaType(res.Header.Get("Content-Type")); err == nil && stream && kind == "text/event-stream" {
		b.events = openai.NewEvents(res.Body, o.MaxEvent)
	}
	return b
}

// first waits for the first byte (of SSE, the first event) and keeps it.
func (b *body) first() error {
	buf := make([]byte, 4096)
	if b.events != nil {
		buf = nil
	}
	b.fetch(buf)
	b.watch.Stop() // from here on each read has its own
	if len(b.rest) > 0 || b.err == io.EOF {
		return nil
	}
	return b.err
}

// fetch reads once from the engine into rest and err. For plain bodies it uses buf.
func (b *body) fetch(buf []byte) {
	if b.err != nil {
		return
	}
	var err error
	if b.events != nil {
		if b.rest, err = b.events.Next(); openai.IsDone(openai.Data(b.rest)) {
			b.done.Store(true)
		}
	} else {
		var n int
		n, err = b.res.Body.Read(buf)
		b.rest = buf[:n]
		if b.left -= int64(n); b.left < 0 {
			b.rest, err = nil, fmt.Errorf("reply over the limit: %w", backends.ErrBadReply)
		}
	}
	switch {
	case err == nil || err == io.EOF:
		b.err = err
	case b.ctx.Err() != nil:
		b.err = fmt.Errorf("reply cut: %w", context.Cause(b.ctx))
	case errors.Is(err, backends.ErrBadReply):
		b.err = err
	default:
		b.err = fmt.Errorf("reply cut: %w: %w", backends.ErrBadReply, err)
	}
}

// Read implements io.Reader. For SSE it returns one whole event, or the next
// part of one that is larger than p.
func (b *body) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for len(b.rest) == 0 {
		if b.err != nil {
			return 0, b.err
		}
		b.watch.Stop()
		silent := fmt.Errorf("%w: nothing for %v", backends.ErrSilent, b.idle)
		b.watch = time.AfterFunc(b.idle, func() { b.cancel(silent) })
		b.fetch(p)
		b.watch.Stop()
		if b.events == nil && len(b.rest) > 0 {
			n := len(b.rest) // already in p
			b.rest = nil
			return n, nil
		}
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// endTime is how long Close waits for the end of a body after [DONE].
const endTime = 50 * time.Millisecond

// Close ends the call; before the end of the reply that closes the connection,
// which cancels the work. After it, or after [DONE], which relays rarely read
// beyond, the connection is kept for the next call.
func (b *body) Close() error {
	var err error
	b.close.Do(func() {
		if b.done.Load() {
			t := time.AfterFunc(endTime, func() { b.cancel(context.Canceled) })
			io.Copy(io.Discard, io.LimitReader(b.res.Body, 4096)) // whatever fails, Close follows
			t.Stop()
		}
		b.cancel(context.Canceled)
		err = b.res.Body.Close()
	})
	return err
}
