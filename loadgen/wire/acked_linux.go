package wire

import "golang.org/x/sys/unix"

// acked returns how many bytes the server's kernel has acknowledged over the
// life of the connection, -1 where that cannot be known. Linux counts the
// connection's first packet as one.
func (p *probe) acked() int64 {
	if p.raw == nil {
		return -1
	}
	n := int64(-1)
	err := p.raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			n = int64(info.Bytes_acked) - 1
		}
	})
	if err != nil {
		return -1
	}
	return n
}
