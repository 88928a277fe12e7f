//go:build unix

package wire

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// probe looks whether anything has come on an idle connection: its end, an
// error or bytes.
type probe struct {
	raw   syscall.RawConn // nil: it cannot be known, as of a pipe in a test
	look  func(fd uintptr)
	polls [1]unix.PollFd
	n     int
}

func (p *probe) watch(conn net.Conn) {
	p.raw = nil
	if c, ok := conn.(syscall.Conn); ok {
		p.raw, _ = c.SyscallConn() // without it a lost request shows that the connection was closed
	}
	if p.look == nil { // made once: a closure for each look would be an allocation
		p.look = func(fd uintptr) {
			p.polls[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
			p.n, _ = unix.Poll(p.polls[:], 0) // interrupted or refused, it tells nothing
		}
	}
}

func (p *probe) forget() { p.raw = nil }

// quiet reports that nothing has come.
func (p *probe) quiet() bool {
	if p.raw == nil {
		return true
	}
	p.n = 0
	return p.raw.Control(p.look) == nil && p.n == 0
}
