package main

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// nap sleeps with the kernel's accuracy (tens of microseconds).
func nap(d time.Duration) {
	for until := time.Now().Add(d); d > 0; d = time.Until(until) {
		ts := unix.NsecToTimespec(d.Nanoseconds())
		_ = unix.Nanosleep(&ts, nil) // a signal ends it early: sleep on
	}
}

// hungUp reports whether the peer of a connection has closed it.
func hungUp(c net.Conn) bool {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return true
	}
	gone := true
	if err := raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(p, 0)
		for err == unix.EINTR { // also of a look that does not wait
			n, err = unix.Poll(p, 0)
		}
		gone = err != nil || n > 0
	}); err != nil {
		return true
	}
	return gone
}
