package wire

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"time"
)

const (
	// aside is from where on a request is written by a goroutine of its own, so
	// that its answer is read meanwhile, in bytes. What is smaller finds room in
	// the kernel, whether the server reads or not: Linux gives a new connection
	// more than twice that even where its segments are 1,460 bytes.
	aside = 16 << 10
	// keepOut is how much of a request's buffer is kept for the next, in bytes.
	keepOut = 1 << 20
)

// sending is the request of a connection. While writing, out belongs to the
// goroutine that writes it, which says on wrote how that ended.
type sending struct {
	out     []byte
	wrote   chan error // of capacity 1
	writing bool
	whole   bool     // all of it was written
	through *counted // what it is written through
	before  int64    // bytes that were written through it before the request
	used    bool     // the connection has carried a request
	reused  bool     // it had carried one before this
	unseen  bool     // see Unseen
}

// past is a deadline that ends what waits.
var past = time.Unix(1, 0)

// Send writes one request: head as the target prepared it, then the length, then
// body. All of the request ends at the deadline. The connection must be open.
//
// A large request is still being written when Send returns. Its answer may come
// first: a server that refuses need not read what it refuses.
func (c *Conn) Send(head, body []byte, deadline time.Time) error {
	c.ended, c.r, c.w = false, 0, 0
	c.out = append(c.out[:0], head...)
	c.out = strconv.AppendInt(c.out, int64(len(body)), 10)
	c.out = append(c.out, "\r\n\r\n"...)
	c.out = append(c.out, body...)
	c.reused, c.used, c.unseen = c.used, true, false
	c.before = c.through.n.Load()
	if err := c.Deadline(deadline); err != nil {
		return err
	}
	if len(c.out) > aside {
		c.writing = true
		go func(conn net.Conn) {
			_, err := conn.Write(c.out)
			c.wrote <- err
		}(c.net)
		return nil
	}
	_, err := c.net.Write(c.out)
	c.whole = err == nil
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return c.class(context.Background(), ErrTimeout, "send", err)
	}
	// A server may refuse before it has read everything, and close: what it said
	// is still there to be read, and Head says whether it was nothing.
	return nil
}

// stopWriting waits for the end of a request's writing, and brings it about
// where the server has not taken all. It reports whether all was written.
func (c *Conn) stopWriting() bool {
	if c.writing {
		_ = c.net.SetWriteDeadline(past) // a connection that has no deadline is closed already
		c.whole = <-c.wrote == nil
		c.writing = false
		if cap(c.out) > keepOut {
			c.out = nil
		}
	}
	return c.whole
}

// counted is a connection that counts what it took.
type counted struct {
	net.Conn
	n atomic.Int64
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.n.Add(int64(n))
	return n, err
}

// Unseen reports whether the request that Head just failed for never reached
// the server, so that sending it again over a new connection sends it once: the
// connection had served others, the server ended it in order, and with its end
// had acknowledged nothing of this request. That is the one case of a lost
// request in which a client can know (RFC 9110, section 9.2.2); a server closes
// idle connections, and no client can look and send at the same instant.
func (c *Conn) Unseen() bool { return c.unseen }

// acknowledgedNothing reports that the server's kernel never had a byte of the
// request. Its last packet, which ended the connection, says how much it had.
func (c *Conn) acknowledgedNothing() bool {
	got := c.probe.acked()
	return got >= 0 && got <= c.before
}
