//go:build unix

package socket

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
)

// Conn is a connection of package net. Reads and writes may run beside each
// other; of each there is one at a time.
type Conn struct {
	net.Conn
	raw     syscall.RawConn
	in, out transfer
}

// transfer is the read, or the write, that runs.
type transfer struct {
	p    []byte
	n    int
	err  error
	step func(fd uintptr) (over bool) // made once: it would cost an allocation a call
}

// Wrap returns c as a Conn, nil if it has no socket. The socket must stay
// non-blocking, as package net made it.
func Wrap(c net.Conn) *Conn {
	s, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return nil
	}
	w := &Conn{Conn: c, raw: raw}
	w.in.step, w.out.step = w.in.read, w.out.write
	return w
}

// NetConn returns the connection beneath, for whatever else it can do.
func (c *Conn) NetConn() net.Conn { return c.Conn }

// Raw is the socket, for calls of other kinds.
func (c *Conn) Raw() syscall.RawConn { return c.raw }

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil // a read of the socket would call it the end
	}
	return c.in.run(c.raw.Read, p)
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) { return c.out.run(c.raw.Write, p) }

// CloseWrite closes the half that is written, if the connection knows halves.
func (c *Conn) CloseWrite() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return half.CloseWrite()
}

// run does a transfer by do, which waits for the socket until step is over.
func (t *transfer) run(do func(step func(uintptr) bool) error, p []byte) (n int, err error) {
	t.p = p
	err = do(t.step)
	if err == nil {
		err = t.err
	}
	n = t.n
	t.p, t.n, t.err = nil, 0, nil
	return n, err
}

func (t *transfer) read(fd uintptr) (over bool) {
	var again bool
	t.n, again, t.err = Read(fd, t.p)
	return !again
}

func (t *transfer) write(fd uintptr) (over bool) {
	for t.n < len(t.p) {
		n, errno := write(fd, t.p[t.n:])
		switch errno {
		case 0:
			t.n += n
		case syscall.EINTR:
		case syscall.EAGAIN:
			return false
		default:
			t.err = os.NewSyscallError("write", errno)
			return true
		}
	}
	return true
}

// Read is one read of a socket. It does not wait: again says that there is
// nothing yet. The end is io.EOF.
func Read(fd uintptr, p []byte) (n int, again bool, err error) {
	for {
		n, errno := read(fd, p)
		switch {
		case errno == syscall.EINTR:
			continue
		case errno == syscall.EAGAIN:
			return 0, true, nil
		case errno != 0:
			return 0, false, os.NewSyscallError("read", errno)
		case n == 0:
			return 0, false, io.EOF
		}
		return n, false, nil
	}
}
