package openaihttp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"aloft/backends"
	"aloft/backends/socket"
)

// conn is one connection to the engine. Between calls it holds no buffer.
type conn struct {
	net.Conn              // what calls read and write: TLS, or plain
	plain    *socket.Conn // nil: TLS, or a system whose sockets cannot be read raw
	abort    func()       // closes the socket, which ends whatever runs on it, at once; made once
	parts    [2][]byte    // of a request, and what of it is not written yet
	unsent   net.Buffers
	raw      syscall.RawConn  // nil where sockets cannot be read raw
	look     func(fd uintptr) // for TLS
	quiet    bool             // what look saw
	step     func(fd uintptr) (over bool)
	asked    asked
	deadline time.Time // that was set last
	idle     time.Time // since when the latest, zero = it has served no call
	kind     string    // the last reply's content type: the next one's, most often
}

// asked is a request on its way, and the first read of its reply.
type asked struct {
	head, body, into  []byte
	written           time.Time // zero = not yet
	n                 int
	writeErr, readErr error
}

// idleTimeout is how long an unused connection is kept: below the 5 s after
// which uvicorn (vLLM, SGLang) closes its side, so that we close first.
const idleTimeout = 4 * time.Second

// dial connects. Its error wraps ErrConnect unless ctx ended.
func (c *Client) dial(ctx context.Context) (*conn, error) {
	limited, cancel := context.WithTimeout(ctx, c.opt.ConnectTimeout)
	defer cancel()
	dialed, err := c.dialer.DialContext(limited, c.network, c.addr)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	cn := &conn{Conn: dialed, abort: func() { dialed.Close() }}
	cn.look = func(fd uintptr) { cn.quiet = quiet(fd) }
	cn.step = cn.sendThenRead
	if s := socket.Wrap(dialed); s != nil {
		cn.Conn, cn.plain, cn.raw = s, s, s.Raw()
	}
	if c.tls != nil {
		t := tls.Client(cn.Conn, c.tls)
		if err := t.HandshakeContext(limited); err != nil {
			dialed.Close()
			return nil, c.unreachable(ctx, err)
		}
		cn.Conn, cn.plain = t, nil
	}
	return cn, nil
}

func (c *Client) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%s: %w: %w", c.opt.BaseURL, backends.ErrConnect, err)
}

// write sends a request: its head, and a body that lies elsewhere, in one go.
func (cn *conn) write(head, body []byte) error {
	if len(body) == 0 {
		_, err := cn.Write(head)
		return err
	}
	cn.parts = [2][]byte{head, body}
	cn.unsent = cn.parts[:]
	to := cn.Conn
	if cn.plain != nil {
		to = cn.plain.Conn // package net's own: it takes both in one call
	}
	_, err := cn.unsent.WriteTo(to)
	cn.parts, cn.unsent = [2][]byte{}, nil
	return err
}

// ask sends a request and reads the first bytes of the reply into a buffer that
// may be the head's own. It reads nothing if the request could not be sent whole.
func (cn *conn) ask(head, body, into []byte) asked {
	cn.asked = asked{head: head, body: body, into: into}
	a := &cn.asked
	if cn.plain == nil { // TLS reads when it likes to
		a.writeErr, a.written = cn.write(head, body), time.Now()
		if a.writeErr == nil {
			a.n, a.readErr = cn.Read(into)
		}
	} else if err := cn.raw.Read(cn.step); err != nil && a.written.IsZero() {
		a.writeErr, a.written = err, time.Now()
	} else if err != nil {
		a.readErr = err
	}
	out := *a
	cn.asked = asked{}
	return out
}

// errStale is what a call finds that gets a connection which had ended, or had
// said something, while no call used it. Nothing was sent.
var errStale = errors.New("the connection is no longer good")

// sendThenRead is called once the socket is being watched for what comes, and
// again, until it is over, when something may have come. What came before it was
// watched wakes nobody, so that the first call has to look: on a connection that
// served a call before it sends, since whatever is there is no reply to this
// request; on a new one afterwards, since that may be a refusal. A used one is
// not read again after sending: the engine has only just been asked.
func (cn *conn) sendThenRead(fd uintptr) (over bool) {
	a := &cn.asked
	if a.written.IsZero() {
		used := !cn.idle.IsZero()
		if used && !quiet(fd) {
			a.writeErr, a.readErr, a.written = errStale, errStale, time.Now()
			return true
		}
		a.writeErr, a.written = cn.write(a.head, a.body), time.Now()
		if used || a.writeErr != nil {
			return a.writeErr != nil
		}
	}
	var again bool
	a.n, again, a.readErr = socket.Read(fd, a.into)
	return !again
}

// quiet reports whether a socket is open and nothing lies in it: no bytes, which
// would be taken for the next reply, and no end.
func quiet(fd uintptr) bool {
	var b [1]byte
	_, again, _ := socket.Read(fd, b[:])
	return again
}

// lateBy is the part of a timeout by which it may come late.
const lateBy = 16

// expire makes reads and writes fail when d has passed after now, or a little
// later: a deadline that is still good is left, since setting one for every
// call and event costs more than it is worth to be exact.
func (cn *conn) expire(now time.Time, d time.Duration) {
	if left := cn.deadline.Sub(now); left < d || left > d+d/lateBy {
		cn.deadline = now.Add(d + d/lateBy)
		cn.SetDeadline(cn.deadline)
	}
}

// usable reports whether an unused connection may serve a call. A plain one
// looks for itself, in ask. TLS, which waits for nothing without a read of its
// own before, is looked at here.
func (cn *conn) usable() bool {
	if cn.raw == nil {
		return false
	}
	t, ok := cn.Conn.(*tls.Conn)
	if !ok {
		return true
	}
	if cn.raw.Control(cn.look) != nil || !cn.quiet {
		return false
	}
	// What TLS has read ahead is in no socket buffer: a read that may not wait tells.
	cn.deadline = time.Unix(1, 0)
	t.SetReadDeadline(cn.deadline)
	var b [1]byte
	n, err := t.Read(b[:])
	return n == 0 && timedOut(err)
}

// pool keeps the connections that no call uses, the latest used last: that one
// is taken next, so that the rest grow old and go.
type pool struct {
	mu     sync.Mutex
	idle   []*conn
	closed bool
	reaper *time.Timer // set while there is something to grow old
}

// take returns a connection to reuse, nil if there is none.
func (p *pool) take(now time.Time) *conn {
	for {
		p.mu.Lock()
		last := len(p.idle) - 1
		if last < 0 {
			p.mu.Unlock()
			return nil
		}
		cn := p.idle[last]
		p.idle[last] = nil
		p.idle = p.idle[:last]
		p.mu.Unlock()
		if now.Sub(cn.idle) < idleTimeout && cn.usable() {
			return cn
		}
		cn.abort()
	}
}

// put keeps cn for another call, if there is room.
func (p *pool) put(cn *conn, room int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.idle) >= room {
		cn.abort()
		return
	}
	cn.idle = time.Now()
	p.idle = append(p.idle, cn)
	if p.reaper == nil {
		p.reaper = time.AfterFunc(idleTimeout, p.reap)
	}
}

// reap closes what has grown too old, and comes again for the rest.
func (p *pool) reap() {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := 0
	for old < len(p.idle) && time.Since(p.idle[old].idle) >= idleTimeout {
		p.idle[old].abort()
		old++
	}
	n := copy(p.idle, p.idle[old:])
	clear(p.idle[n:])
	if p.idle = p.idle[:n]; n == 0 || p.closed {
		p.reaper = nil
		return
	}
	p.reaper = time.AfterFunc(idleTimeout-time.Since(p.idle[0].idle), p.reap)
}

// close drops all, and what comes back from now on.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, cn := range p.idle {
		cn.abort()
	}
	p.idle = nil
	if p.reaper != nil {
		p.reaper.Stop()
	}
}
