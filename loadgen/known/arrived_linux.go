package known

import (
	"encoding/binary"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stamp has the kernel note when data comes in to any connection of a listener. On
// a busy machine that may be milliseconds before the server gets to read it, which
// would be a wrong answer to when a request was sent. Each connection inherits it:
// to ask for it once one is accepted takes milliseconds and misses what has come in
// by then, which is the first request.
func stamp(_, _ string, raw syscall.RawConn) error {
	return raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPING, unix.SOF_TIMESTAMPING_RX_SOFTWARE|unix.SOF_TIMESTAMPING_SOFTWARE)
	})
}

// cameIn waits until there is something to read and says when the kernel got
// it; the zero time when it does not tell. It takes nothing out. Packets that came
// in one after the other before it looked have the last one's time: of a large
// request those of one window, which its client writes at once.
func cameIn(c net.Conn) (at time.Time) {
	s, ok := c.(syscall.Conn)
	if !ok {
		return at
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return at
	}
	_ = raw.Read(func(fd uintptr) (through bool) { // the read after it has the error
		var first [1]byte
		var control [256]byte
		_, n, _, _, err := unix.Recvmsg(int(fd), first[:], control[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		if err != nil {
			return err != unix.EAGAIN && err != unix.EINTR
		}
		at = stampIn(control[:n])
		return true
	})
	return at
}

// stampIn finds the kernel's time in control messages.
func stampIn(control []byte) time.Time {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return time.Time{}
	}
	for _, m := range messages {
		// struct scm_timestamping has three times, the first by software.
		if m.Header.Level != unix.SOL_SOCKET || m.Header.Type != unix.SCM_TIMESTAMPING || len(m.Data) < 16 {
			continue
		}
		if s, ns := binary.NativeEndian.Uint64(m.Data), binary.NativeEndian.Uint64(m.Data[8:]); s > 0 {
			return time.Unix(int64(s), int64(ns))
		}
	}
	return time.Time{}
}
