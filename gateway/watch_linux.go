package gateway

import "golang.org/x/sys/unix"

// pollSet keeps the array that poll wants between two looks.
type pollSet struct{ fds []unix.PollFd }

// closed returns the connections whose peer has closed or reset. A look does
// not wait. POLLRDHUP rather than a peek at the data: a pipelined request or
// TLS's closing alert in the receive buffer would hide the end behind it.
// A client that only shuts down its sending half counts as gone, as in net/http.
func (s *pollSet) closed(conns []*watched) []*watched {
	s.fds = s.fds[:0]
	for _, e := range conns {
		s.fds = append(s.fds, unix.PollFd{Fd: int32(e.fd), Events: unix.POLLRDHUP})
	}
	n, err := unix.Poll(s.fds, 0)
	if err != nil || n == 0 { // EINTR: the next look will tell
		return nil
	}
	gone := make([]*watched, 0, n)
	for i, e := range conns {
		if s.fds[i].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0 {
			gone = append(gone, e)
		}
	}
	return gone
}
