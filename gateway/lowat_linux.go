package gateway

import (
	"net"

	"golang.org/x/sys/unix"
)

// unsentMost is how much of a reply the kernel takes before it has sent it. By
// default it takes up to 4 MiB, and a writer then waits until a third of that is
// gone: a slow reader would look like one that has stopped, and each that did
// stop would hold as much memory.
const unsentMost = 128 << 10

func boundUnsent(c net.Conn) {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	if raw, err := t.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { // an error leaves the default
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsentMost)
		})
	}
}
