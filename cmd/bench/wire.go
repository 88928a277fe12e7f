package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// wire is one HTTP/1.1 connection of the gateway benchmark, of the load
// generator or of the stub. It knows no more of HTTP than the two need of each
// other and of what stands between them: what it costs is taken from what is
// measured, on the same two cores.
type wire struct {
	net.Conn
	r     *bufio.Reader
	start []byte // the start line of the last message, without its end
}

func newWire(c net.Conn) *wire { return &wire{Conn: c, r: bufio.NewReaderSize(c, 8<<10)} }

// frame says how a message goes on after its head.
type frame struct {
	length  int // of the body; -1 = in chunks
	closing bool
}

// head reads a start line, kept in start, and the header fields.
func (w *wire) head() (frame, error) {
	var f frame
	line, err := w.line()
	if err != nil {
		return f, err
	}
	w.start = append(w.start[:0], line...)
	for {
		if line, err = w.line(); err != nil || len(line) == 0 {
			return f, unexpected(err)
		}
		key, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch {
		case is(key, "content-length"):
			n, err := strconv.ParseUint(string(value), 10, 31)
			if err != nil {
				return f, fmt.Errorf("content-length: %w", err)
			}
			f.length = int(n)
		case is(key, "transfer-encoding"):
			f.length = -1
		case is(key, "connection"):
			f.closing = is(value, "close")
		}
	}
}

func is(b []byte, lower string) bool {
	return len(b) == len(lower) && bytes.EqualFold(b, []byte(lower))
}

// line reads up to a line's end and leaves the end out. It is valid until the next read.
func (w *wire) line() ([]byte, error) {
	b, err := w.r.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	return bytes.TrimRight(b, "\r\n"), nil
}

// body reads a message's body and passes it on in pieces.
func (w *wire) body(f frame, piece func([]byte)) error {
	if f.length >= 0 {
		return w.take(f.length, piece)
	}
	for {
		line, err := w.line()
		if err != nil {
			return unexpected(err)
		}
		n, err := strconv.ParseUint(string(line), 16, 31)
		if err != nil {
			return fmt.Errorf("size of a chunk: %w", err)
		}
		if n > 0 {
			if err := w.take(int(n), piece); err != nil {
				return err
			}
		}
		if line, err = w.line(); err != nil || len(line) > 0 {
			return fmt.Errorf("end of a chunk: %q: %w", line, unexpected(err))
		}
		if n == 0 {
			return nil
		}
	}
}

// take reads n bytes.
func (w *wire) take(n int, piece func([]byte)) error {
	for n > 0 {
		if _, err := w.r.Peek(1); err != nil {
			return unexpected(err)
		}
		b, _ := w.r.Peek(min(n, w.r.Buffered())) // they are there
		piece(b)
		n -= len(b)
		_, _ = w.r.Discard(len(b)) // likewise
	}
	return nil
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// call sends a request that is ready and reads the whole answer, which must be a
// 200; events, which may be nil, is told of every piece how many ended in it.
// Unary answers have none.
func (w *wire) call(request []byte, events func(int)) (tally, error) {
	var t tally
	f, err := w.ask(request)
	if err != nil {
		return t, err
	}
	add := t.add
	if events != nil {
		add = func(b []byte) {
			before := t.events
			t.add(b)
			events(t.events - before)
		}
	}
	if err := w.body(f, add); err != nil {
		return t, fmt.Errorf("answer of %d bytes so far: %w", t.bytes, err)
	}
	if f.closing {
		return t, errClosing
	}
	return t, nil
}

// errClosing says that the connection was closed in good order, after an answer.
var errClosing = fmt.Errorf("the server closed a connection that ought to be kept: %w", net.ErrClosed)

// ask sends a request and reads the head of the answer.
func (w *wire) ask(request []byte) (frame, error) {
	if _, err := w.Write(request); err != nil {
		return frame{}, err
	}
	f, err := w.head()
	if err != nil {
		return f, unexpected(err)
	}
	if !bytes.HasPrefix(w.start, []byte("HTTP/1.1 200 ")) {
		var text []byte
		_ = w.body(f, func(b []byte) { text = append(text, b...) }) // as much of it as there is
		return f, fmt.Errorf("answered %s: %.300s", w.start, text)
	}
	return f, nil
}

// tally counts the events of a stream, whatever pieces it comes in.
type tally struct {
	bytes, events int
	half          bool // the last piece ended with the first newline of two
}

func (t *tally) add(b []byte) {
	t.bytes += len(b)
	if t.half && len(b) > 0 && b[0] == '\n' {
		t.events++
		b, t.half = b[1:], false
	}
	if len(b) == 0 {
		return
	}
	t.events += bytes.Count(b, []byte("\n\n"))
	t.half = (len(b)-len(bytes.TrimRight(b, "\n")))%2 == 1
}

// dialTime bounds a connection's start: at 9,000 at once the listener's queue
// may overflow, and the kernel asks again after 1, 3 and 7 s.
const dialTime = 10 * time.Second

func dial(addr string) (*wire, error) {
	c, err := net.DialTimeout("tcp", addr, dialTime)
	if err != nil {
		return nil, err
	}
	return newWire(c), nil
}
