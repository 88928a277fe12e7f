package gateway

import (
	"fmt"
	"io"
	"time"

	"aloft/backends"
)

const (
	// followPoll is how late what is followed may be seen.
	followPoll = 250 * time.Millisecond
	// followersMost bounds the answers that are open for what may come: each is a
	// goroutine, a connection and four looks a second.
	followersMost = 128
	// followMost ends the longest: nobody reads along for a day.
	followMost = 24 * time.Hour
)

var errFollowers = fmt.Errorf("%d answers follow a job already: %w", followersMost, backends.ErrOverloaded)

// source is what comes piece by piece: a log, or events.
type source interface {
	// next returns what there is now; none is no end. over: nothing comes after it.
	next() (piece []byte, over bool, err error)
	io.Closer
}

// waking is a source that says when there is more.
type waking interface{ Wake() <-chan struct{} }

// following is the body of an answer that goes on while something grows. It ends
// with its source, when the client leaves, or in the first moments of a drain,
// which it must not hold up.
type following struct {
	s      *Server
	source source
	life   life
	fd     int
	beat   []byte // written after a silence; nil = nothing can be
}

// follow answers with what the source has and will have.
func (s *Server) follow(x *exchange, contentType string, src source, beat []byte) {
	switch {
	case s.followers.Add(1) > followersMost:
		s.followers.Add(-1)
		_ = src.Close()
		s.fail(x, errFollowers)
		return
	case !x.c.Request.Header.IsHTTP11():
		s.followers.Add(-1)
		_ = src.Close()
		s.fail(x, invalid("", "", "this answer comes in pieces, which HTTP/1.0 does not know"))
		return
	}
	f := &following{s: s, source: src, fd: -1, beat: beat, life: life{limit: time.Now().Add(followMost), late: errTooSlow}}
	if fd, ok := descriptor(x.c.Conn()); ok {
		f.fd = fd
	}
	h := &x.c.Response.Header
	h.SetContentType(contentType)
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	x.c.Response.ImmediateHeaderFlush = true
	s.active.Add(1) // until Close
	x.c.SetBodyStream(f, -1)
}

// WriteTo sends each piece as it comes. An error makes fasthttp close the
// connection without the final chunk: what broke off is not taken for whole.
func (f *following) WriteTo(w io.Writer) (n int64, err error) {
	seat := watched{fd: f.fd, life: &f.life}
	f.s.watch.add(&seat)
	defer f.s.watch.remove(&seat)
	tick := time.NewTicker(followPoll)
	defer tick.Stop()
	var more <-chan struct{} // nil: it is looked at again and again
	if w, ok := f.source.(waking); ok {
		more = w.Wake()
	}
	for spoke := time.Now(); ; {
		piece, over, err := f.source.next()
		if err == nil && len(piece) == 0 && !over && f.beat != nil && time.Since(spoke) >= f.s.opt.HeartbeatAfter {
			piece = f.beat
		}
		if err != nil {
			return n, err
		}
		if len(piece) > 0 {
			if _, err := w.Write(piece); err != nil {
				return n, err
			}
			n += int64(len(piece))
			spoke = time.Now()
		}
		switch {
		case over:
			return n, nil
		case f.s.draining.Load():
			return n, backends.ErrDraining
		case len(piece) > 0:
			if err := f.life.Err(); err != nil {
				return n, err
			}
			continue // there may be more
		}
		select {
		case <-tick.C:
		case <-more:
		case <-f.life.Done():
			return n, f.life.Err()
		}
	}
}

// SupportsBodyWriteTo makes fasthttp use WriteTo.
func (f *following) SupportsBodyWriteTo() bool { return true }

// Read makes it the io.Reader that a body has to be.
func (f *following) Read([]byte) (int, error) { panic("BUG: what is followed writes itself") }

// Close is called by fasthttp, once, also when nothing was read.
func (f *following) Close() error {
	f.s.followers.Add(-1)
	f.s.active.Add(-1)
	return f.source.Close()
}
