package openaihttp

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"aloft/backends"
	"aloft/backends/openai"
)

// events are readers of SSE with their buffers.
var events = sync.Pool{New: func() any { return openai.NewEvents(nil, bufferSize) }}

var errClosed = errors.New("read after Close")

// Read implements io.Reader. For SSE it returns one whole event, or the next
// part of one that is larger than p. StreamIdleTimeout bounds each Read: bytes
// that complete no event do not extend it.
func (x *exchange) Read(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := x.begin(); err != nil {
		return 0, err
	}
	if x.events != nil {
		n, err = x.readEvent(p)
	} else {
		n, err = x.readPlain(p)
	}
	x.finish(err)
	return n, err
}

// NextEvent implements backends.EventReader. Each call is bounded as a Read is.
func (x *exchange) NextEvent() (event []byte, more bool, err error) {
	if err := x.begin(); err != nil {
		return nil, false, err
	}
	if x.events == nil {
		err = fmt.Errorf("no stream of events: %w", backends.ErrBadReply)
	} else if event, err = x.event(); err == nil {
		x.rest, more = nil, x.events.Buffered()
	}
	if !x.finish(err) && err == nil { // closed meanwhile: the event's buffer is another's
		return nil, false, errClosed
	}
	return event, more, err
}

// begin takes the turn to read. Its error is what reading returns.
func (x *exchange) begin() error {
	x.turn.Lock()
	defer x.turn.Unlock()
	switch {
	case !x.turn.over && !x.turn.closed:
		x.turn.reading = true
		x.frame.waiting = false
		return nil
	case x.err == nil:
		return errClosed
	}
	return x.err
}

// finish ends the turn, and reports whether there may be another.
func (x *exchange) finish(err error) bool {
	x.turn.Lock()
	defer x.turn.Unlock()
	x.turn.reading = false
	if err != nil || x.turn.closed {
		x.err = err
		x.over()
	}
	return !x.turn.over
}

// event returns the current event, or what is left of it.
func (x *exchange) event() ([]byte, error) {
	if len(x.rest) == 0 && x.err == nil {
		x.next()
	}
	if len(x.rest) == 0 {
		return nil, x.cut(x.err)
	}
	return x.rest, nil
}

func (x *exchange) readEvent(p []byte) (int, error) {
	event, err := x.event()
	if err != nil {
		return 0, err
	}
	n := copy(p, event)
	x.rest = event[n:]
	return n, nil
}

func (x *exchange) readPlain(p []byte) (n int, err error) {
	if x.zipped != nil {
		n, err = x.zipped.Read(p)
	} else {
		n, err = x.frame.Read(p)
	}
	if x.left -= int64(n); x.left < 0 {
		return 0, fmt.Errorf("reply over %d bytes: %w", x.client.opt.MaxReply, backends.ErrBadReply)
	}
	return n, x.cut(err)
}

// Len returns how many bytes of the body are still to come, -1 if that is not
// known. It is never more than MaxReply.
func (x *exchange) Len() int {
	n := x.frame.size()
	if x.events != nil || x.zipped != nil || n > x.left {
		return -1
	}
	return int(n)
}

// endTime is how long Close waits for the end of a body after [DONE].
const endTime = 50 * time.Millisecond

// Close ends the call; before the end of the reply that closes the connection,
// which cancels the work. After it, or after [DONE], which relays rarely read
// beyond, the connection is kept for the next call.
func (x *exchange) Close() error {
	x.turn.Lock()
	first := !x.turn.closed && !x.turn.over
	x.turn.closed = true
	if x.turn.reading && first { // the reader gives back what it uses
		x.frame.conn.abort()
	}
	if x.turn.reading || !first {
		x.turn.Unlock()
		return nil
	}
	if x.done {
		x.turn.reading = true
		x.turn.Unlock()
		x.drain()
		x.turn.Lock()
	}
	x.over()
	x.turn.Unlock()
	return nil
}

func (x *exchange) over() {
	x.turn.over = true
	x.end()
}

// drain reads the end of a body of which nothing more is wanted.
func (x *exchange) drain() {
	b := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(b)
	x.frame.waiting = true
	if !x.frame.ended {
		x.frame.conn.expire(time.Now(), endTime)
	}
	for room := len(b); room > 0; {
		n, err := x.frame.Read(b[:room])
		if room -= n; err != nil { // the end, or one that forbids reuse
			return
		}
	}
}

// unzip takes the gzip coding off a body: nobody asked for it, but usage must
// be readable all the same. Its reader bounds what comes out.
type unzip struct {
	from io.Reader
	zip  *gzip.Reader
}

// Read implements io.Reader.
func (u *unzip) Read(p []byte) (n int, err error) {
	if u.zip == nil {
		if u.zip, err = gzip.NewReader(u.from); err == io.EOF {
			return 0, io.ErrUnexpectedEOF
		} else if err != nil {
			return 0, err
		}
	}
	return u.zip.Read(p)
}
