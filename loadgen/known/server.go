package known

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// server answers by scripts and writes down what it did by its own clock.
type server struct {
	scripts []script // taken in turn
	stall   time.Duration
	// stallAfter is when it stalls, from the first request: nothing is written
	// then, by no connection, while the kernel goes on taking requests.
	stallAfter time.Duration
	slow       time.Duration // between reads of a request's body

	mu      sync.Mutex
	first   time.Time
	records []*record
}

// record is one request as the server saw it.
type record struct {
	script  script
	arrived time.Time   // first byte, by the kernel's clock where it tells
	writes  []time.Time // of each part, just before it
	left    time.Time   // a hanging script: when the client gave up
}

// start listens on a free port of the loopback device. The address is good
// until ctx ends; wait returns when the server is through after that.
func (s *server) start(ctx context.Context) (addr string, wait func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = serve(ctx, l, s.handle) // an accept that fails is seen as refused connections
	}()
	return l.Addr().String(), func() { <-ended }, nil
}

func (s *server) handle(c *conn) {
	stamp(c.Conn)
	c.stamped = true
	if s.slow > 0 {
		// Small buffers, so that the client has to wait for the reader.
		_ = c.Conn.(*net.TCPConn).SetReadBuffer(slowRead)
		c.slow = s.slow
	}
	for {
		arrived, err := c.next()
		if err != nil {
			return // the client is gone
		}
		if err := s.answer(c, s.begin(arrived)); err != nil {
			return
		}
	}
}

// begin opens the record of a request.
func (s *server) begin(arrived time.Time) *record {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.records) == 0 {
		s.first = arrived
	}
	r := &record{script: s.scripts[len(s.records)%len(s.scripts)], arrived: arrived}
	s.records = append(s.records, r)
	return r
}

var errEnded = errors.New("the script closes the connection")

func (s *server) answer(c *conn, r *record) error {
	began := time.Now()
	for _, p := range r.script.parts {
		b := p.bytes() // before it is due
		until(began.Add(p.at))
		s.freeze()
		now := time.Now()
		s.mu.Lock()
		r.writes = append(r.writes, now)
		s.mu.Unlock()
		if _, err := c.Write(b); err != nil {
			return err
		}
	}
	switch r.script.end {
	case abort:
		_ = c.reset()
		return errEnded
	case shut:
		return errEnded
	case hang:
		_, _ = io.Copy(io.Discard, c.r)
		s.mu.Lock()
		r.left = time.Now()
		s.mu.Unlock()
		return errEnded
	}
	if len(r.script.parts) > 0 && !r.script.parts[len(r.script.parts)-1].raw {
		_, err := c.Write([]byte("0\r\n\r\n"))
		return err
	}
	return nil
}

// freeze returns when the server is not stalled.
func (s *server) freeze() {
	if s.stall == 0 {
		return
	}
	s.mu.Lock()
	from := s.first.Add(s.stallAfter)
	s.mu.Unlock()
	if now := time.Now(); !now.Before(from) {
		until(from.Add(s.stall))
	}
}

// seen are the records so far, in the order of arrival.
func (s *server) seen() []*record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.records
}
