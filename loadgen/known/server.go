package known

import (
	"bytes"
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
	// choose, if any, says what a request gets, instead of the scripts in turn.
	choose func(*record) script
	// watch sees clients that leave before they have their answer.
	watch bool
	// warm is how many requests come before those that count, and what they get if
	// not the scripts.
	warm   int
	warmUp *script

	mu      sync.Mutex
	first   time.Time
	records []*record
}

// record is one request as the server saw it.
type record struct {
	script  script
	path    string
	body    []byte
	sign    sign
	before  *record     // by choose: what the same client had asked before
	whole   bool        // by choose: it repeats all that was said before
	arrived time.Time   // see next; by the kernel's clock where it tells
	writes  []time.Time // of each part, just before it
	left    time.Time   // when the client gave up, if it did
}

// ended is when its last part was written; zero if it was not.
func (r *record) ended() (at time.Time) {
	if n := len(r.writes); n > 0 && n == len(r.script.parts) {
		at = r.writes[n-1]
	}
	return at
}

// start listens on a free port of the loopback device. The address is good
// until ctx ends; wait returns when the server is through after that.
func (s *server) start(ctx context.Context) (addr string, wait func(), err error) {
	of := net.ListenConfig{Control: stamp}
	l, err := of.Listen(ctx, "tcp", "127.0.0.1:0")
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
	c.stamped, c.signs = true, true
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
		if err := s.answer(c, s.begin(c, arrived)); err != nil {
			return
		}
	}
}

// begin opens the record of a request.
func (s *server) begin(c *conn, arrived time.Time) *record {
	r := &record{path: string(c.path), sign: c.sign, arrived: arrived}
	if s.choose != nil {
		r.body = bytes.Clone(c.body)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.records)
	if n == 0 {
		s.first = arrived
	}
	switch {
	case n < s.warm && s.warmUp != nil:
		r.script = *s.warmUp
	case s.choose != nil:
		r.script = s.choose(r)
	default:
		r.script = s.scripts[n%len(s.scripts)]
	}
	s.records = append(s.records, r)
	return r
}

var errEnded = errors.New("the script closes the connection")

func (s *server) answer(c *conn, r *record) error {
	began := time.Now()
	for _, p := range r.script.parts {
		b := p.bytes() // before it is due
		if !s.watch {
			until(began.Add(p.at))
		} else if !c.stays(began.Add(p.at)) {
			s.gone(r)
			return errEnded
		}
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
		s.gone(r)
		return errEnded
	}
	if len(r.script.parts) > 0 && !r.script.parts[len(r.script.parts)-1].raw {
		_, err := c.Write([]byte("0\r\n\r\n"))
		return err
	}
	return nil
}

// gone notes that the client of a request left.
func (s *server) gone(r *record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.left = time.Now()
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

// seen are the records so far that count, in the order of arrival.
func (s *server) seen() []*record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.records[min(s.warm, len(s.records)):]
}
