package wire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

const (
	// A connection's buffer begins small and grows when a read fills it, so that
	// thousands of quiet connections need little and a fast stream few reads.
	minBuffer = 8 << 10
	maxBuffer = 256 << 10
	// maxHead bounds the head of an answer, 1xx answers before it included, in bytes.
	maxHead = 64 << 10
)

// Conn is one connection and the request on it. Only Abort may be called from
// another goroutine.
type Conn struct {
	target *Target
	start  time.Time // of the clock
	probe  probe

	mu      sync.Mutex // over what Abort touches
	net     net.Conn   // nil: not open
	aborted bool

	sending

	// Of the answer.
	buf    []byte
	r, w   int // buf[r:w] is read and not yet used
	read   time.Duration
	head   Head
	frame  framing
	chunks chunks
	left   int64 // of a body with a length
	ended  bool  // the whole answer has been read
	idle   time.Duration
}

// Conn returns a connection that is not open yet. Its times count from start.
func (t *Target) Conn(start time.Time) *Conn {
	return &Conn{target: t, start: start, buf: make([]byte, minBuffer), sending: sending{wrote: make(chan error, 1)}}
}

func (c *Conn) now() time.Duration { return time.Since(c.start) }

// Ready reports whether a request can be sent without Open: the connection is
// open, has been idle for at most maxIdle, and the server has neither closed it
// nor said anything unasked meanwhile. If not, it is closed.
func (c *Conn) Ready(maxIdle time.Duration) bool {
	if c.net == nil {
		return false
	}
	if c.ended && c.r == c.w && c.now()-c.idle <= maxIdle && c.probe.quiet() {
		return true
	}
	c.Close()
	return false
}

// Open connects. ctx should end no later than the request's deadline.
func (c *Conn) Open(ctx context.Context) error {
	conn, err := c.target.dial(ctx, "tcp", c.target.address)
	if err != nil {
		return c.class(ctx, ErrConnect, "connect", err)
	}
	raw, through := conn, &counted{Conn: conn}
	conn = through
	if c.target.tls != nil {
		secure := tls.Client(conn, c.target.tls)
		if err := secure.HandshakeContext(ctx); err != nil {
			conn.Close()
			return c.class(ctx, ErrConnect, "TLS handshake", err)
		}
		conn = secure
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.aborted {
		conn.Close()
		return fmt.Errorf("%w before the connection was open", ErrTimeout)
	}
	c.net, c.through, c.used = conn, through, false
	c.probe.watch(raw)
	c.r, c.w, c.ended = 0, 0, true
	return nil
}

// class says which error err is, otherwise being what it is when it is no
// deadline's.
func (c *Conn) class(ctx context.Context, otherwise error, what string, err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		otherwise = ErrTimeout
	}
	return fmt.Errorf("%w: %s: %w", otherwise, what, err)
}

// Deadline moves the deadline of the request in flight.
func (c *Conn) Deadline(at time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.aborted {
		return fmt.Errorf("%w by the generator", ErrTimeout)
	}
	if err := c.net.SetDeadline(at); err != nil {
		return fmt.Errorf("%w: set deadline: %w", ErrConnect, err)
	}
	return nil
}

// Abort ends the request in flight and every later one with ErrTimeout. A dial
// in progress is ended by its context. It may be called from any goroutine.
func (c *Conn) Abort() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.aborted = true
	if c.net != nil {
		_ = c.net.SetDeadline(past) // a connection that has no deadline is closed already
	}
}

// Close closes the connection; it can be opened again.
func (c *Conn) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.net != nil {
		c.probe.forget()
		c.net.Close() // what has been read is what there was
		c.stopWriting()
		c.net = nil
	}
}

// Head reads up to the end of the answer's head. Answers 1xx are skipped. An
// answer other than 2xx ends the writing of a request that is still under way.
func (c *Conn) Head() (Head, error) {
	total, first := 0, time.Duration(0)
	for {
		head, body := headEnd(c.buf[c.r:c.w])
		if body == 0 {
			if total+c.w-c.r >= maxHead {
				return Head{}, fmt.Errorf("%w: its head exceeds %d bytes", ErrProtocol, maxHead)
			}
			if err := c.fill(); err != nil {
				answered := total+c.w-c.r > 0
				c.unseen = !answered && c.reused && errors.Is(err, io.EOF) && c.acknowledgedNothing()
				return Head{}, c.lost(answered, err)
			}
			if first == 0 {
				first = c.read
			}
			if err := c.plausible(); err != nil {
				return Head{}, err
			}
			continue
		}
		parsed, frame, err := parseHead(c.buf[c.r : c.r+head])
		if err != nil {
			return Head{}, fmt.Errorf("%w: %w", ErrProtocol, err)
		}
		if parsed.Status == 101 {
			return Head{}, fmt.Errorf("%w/1.1 but 101, which was not asked for", ErrProtocol)
		}
		c.r += body
		if total += body; parsed.Status >= 200 {
			if parsed.Status >= 300 {
				c.stopWriting()
			}
			c.keep(parsed, first)
			c.frame, c.chunks, c.left = frame, chunks{}, frame.length
			c.ended = !frame.chunked && frame.length == 0
			c.idle = c.read
			return c.head, nil
		}
	}
}

// plausible ends an answer that cannot become HTTP, rather than wait for a line
// that never comes.
func (c *Conn) plausible() error {
	const want = "HTTP/1."
	got := c.buf[c.r:c.w]
	if n := min(len(got), len(want)); string(got[:n]) != want[:n] {
		return fmt.Errorf("%w: it begins with %q", ErrProtocol, got[:min(len(got), 40)])
	}
	return nil
}

// keep copies the head out of the buffer, into what the last one left.
func (c *Conn) keep(h Head, first time.Duration) {
	old := &c.head
	*old = Head{
		Status: h.Status, First: first, Type: append(old.Type[:0], h.Type...), Coding: append(old.Coding[:0], h.Coding...),
		RetryAfter: append(old.RetryAfter[:0], h.RetryAfter...), RetryAfterMS: append(old.RetryAfterMS[:0], h.RetryAfterMS...),
		ShouldRetry: append(old.ShouldRetry[:0], h.ShouldRetry...),
	}
}

// lost is the error of a connection that ended within an answer or before it.
func (c *Conn) lost(answered bool, err error) error {
	if answered {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return c.class(context.Background(), ErrTruncated, "read", err)
	}
	return c.class(context.Background(), ErrConnect, "read", err)
}

// fill reads once from the connection, and the clock after it.
func (c *Conn) fill() error {
	if c.r == c.w {
		c.r, c.w = 0, 0
	}
	if c.w == len(c.buf) {
		if c.r > 0 {
			c.w = copy(c.buf, c.buf[c.r:c.w])
			c.r = 0
		} else {
			c.buf = append(c.buf, make([]byte, len(c.buf))...)
		}
	}
	n, err := c.net.Read(c.buf[c.w:])
	c.read = c.now()
	if c.w += n; n > 0 {
		return nil // an error comes again
	}
	return err
}

// Body returns the next part of the body and when it was read: all that one read
// brought, without the coding of chunks, so that no part is empty but the last.
// io.EOF comes with the last part. The part is valid until the next call.
func (c *Conn) Body() (part []byte, at time.Duration, err error) {
	for {
		if c.ended {
			return part, c.read, io.EOF
		}
		if c.r == c.w {
			if len(c.buf) < maxBuffer && c.w == len(c.buf) {
				c.buf, c.r, c.w = make([]byte, 2*len(c.buf)), 0, 0
			}
			switch err := c.fill(); {
			case errors.Is(err, io.EOF) && !c.frame.chunked && c.frame.length < 0:
				c.ended, c.idle = true, c.read
				return nil, c.read, io.EOF
			case err != nil:
				return nil, c.read, c.lost(true, err)
			}
		}
		if part, err = c.take(); err != nil {
			return part, c.read, fmt.Errorf("%w: %w", ErrProtocol, err)
		}
		if c.ended {
			c.idle = c.read
			return part, c.read, io.EOF
		}
		if len(part) > 0 {
			return part, c.read, nil
		}
	}
}

// Whole reports whether the answer has been read to its end.
func (c *Conn) Whole() bool { return c.ended }

// take takes the body's bytes out of what is read.
func (c *Conn) take() ([]byte, error) {
	p := c.buf[c.r:c.w]
	switch {
	case c.frame.chunked:
		body, taken, err := c.chunks.decode(p)
		c.r += taken
		c.ended = c.chunks.state == chunksEnd
		return p[:body], err
	case c.frame.length >= 0:
		n := int(min(c.left, int64(len(p))))
		c.r, c.left = c.r+n, c.left-int64(n)
		c.ended = c.left == 0
		return p[:n], nil
	}
	c.r = c.w
	return p, nil
}

// EndsWithConnection reports whether the answer's body had neither a length nor
// chunks, so that where the connection ended is all that says where it does.
func (c *Conn) EndsWithConnection() bool { return !c.frame.chunked && c.frame.length < 0 }

// Done ends the request. It keeps the connection for the next one if the whole
// request was written, the whole answer has been read and the server has not said
// otherwise; else it closes it.
func (c *Conn) Done() {
	if c.net != nil && !(c.ended && c.frame.keep && c.r == c.w && c.stopWriting()) {
		c.Close()
	}
}
