package openaihttp

import (
	"io"
	"sync"
	"time"
)

// bufferSize holds a request's head and short body, then the reply's head and
// what came with it.
const bufferSize = 4 << 10

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// frame reads the bytes of one body off its connection, straight into its
// reader's buffer, and no byte beyond them that it could leave there.
type frame struct {
	conn    *conn
	idle    time.Duration
	waiting bool // the deadline of the current wait is set

	buf     *[bufferSize]byte // what ahead lies in, nil once that is used up
	ahead   []byte            // the part of the body that came with the head
	left    int64             // to be read from the connection; -1 = unknown
	chunked bool
	chunks  chunks
	ended   bool
	surplus bool // the engine sent more than its reply
}

// begin takes what came after the head.
func (f *frame) begin(h *head, rest []byte) error {
	f.left, f.chunked = h.length, h.chunked
	n, err := f.decode(rest)
	f.ahead = rest[:n]
	if n == 0 {
		f.release()
	}
	return err
}

// decode strips the framing off b, which was just read, and returns what is left.
func (f *frame) decode(b []byte) (int, error) {
	switch {
	case f.chunked:
		n, surplus, err := f.chunks.decode(b)
		f.ended = f.chunks.place == ended
		f.surplus = f.surplus || surplus > 0
		return n, err
	case f.left >= 0:
		n := int(min(f.left, int64(len(b))))
		f.surplus = f.surplus || n < len(b)
		f.left -= int64(n)
		f.ended = f.left == 0
		return n, nil
	}
	return len(b), nil // until the connection ends
}

// Read implements io.Reader; io.EOF means that the body ended as it said it would.
// It comes with the last bytes: every layer above is passed once less.
func (f *frame) Read(p []byte) (int, error) {
	if len(f.ahead) > 0 {
		n := copy(p, f.ahead)
		if f.ahead = f.ahead[n:]; len(f.ahead) == 0 {
			f.release()
			return n, f.end()
		}
		return n, nil
	}
	for !f.ended {
		if !f.waiting {
			f.waiting = true
			f.conn.expire(time.Now(), f.idle)
		}
		room := p
		if f.left >= 0 {
			room = p[:min(int64(len(p)), f.left)]
		}
		n, readErr := f.conn.Read(room)
		n, err := f.decode(room[:n])
		switch {
		case err != nil:
			return n, err
		case readErr == io.EOF && !f.ended && (f.chunked || f.left >= 0):
			return n, io.ErrUnexpectedEOF
		case readErr == io.EOF:
			f.ended = true
		case readErr != nil && !f.ended:
			return n, readErr
		}
		if n > 0 {
			return n, f.end()
		}
	}
	return 0, io.EOF
}

func (f *frame) end() error {
	if f.ended {
		return io.EOF
	}
	return nil
}

// wait reads the first bytes of the body, if none came with the head.
func (f *frame) wait() error {
	if len(f.ahead) > 0 || f.ended {
		return nil
	}
	if f.buf == nil {
		f.buf = buffers.Get().(*[bufferSize]byte)
	}
	n, err := f.Read(f.buf[:])
	if f.ahead = f.buf[:n]; n == 0 {
		f.release()
	}
	if n > 0 || err == io.EOF {
		return nil
	}
	return err
}

// release gives the buffer back: a body that waits holds none.
func (f *frame) release() {
	if f.buf != nil {
		buffers.Put(f.buf)
	}
	f.buf, f.ahead = nil, nil
}

// size is how many bytes are still to come, -1 = unknown.
func (f *frame) size() int64 {
	if f.chunked || f.left < 0 {
		if f.ended {
			return int64(len(f.ahead))
		}
		return -1
	}
	return int64(len(f.ahead)) + f.left
}
