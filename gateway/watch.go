package gateway

import (
	"context"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"aloft/backends"
)

// watcher notices clients that left while their request waits. fasthttp never
// tells: nobody reads the connection while a handler runs (docs/failures.md
// section 6). One goroutine asks the kernel about all waiting connections at
// once, so a request costs no system call, and a thousand of them one.
//
// A descriptor stays valid while it is listed: its connection is closed by the
// goroutine that serves it, and that one calls remove first, which waits for a
// look in progress.
type watcher struct {
	mu    sync.Mutex
	conns []*watched
	set   pollSet
	over  error // what ended all
}

// watched is one waiting request.
type watched struct {
	fd    int // -1 = no connection that can be asked
	place int // in conns, -1 = not there
	life  *life
	row   bool // of a batch: it outlasts the drain of the clients
}

// add lists e until remove. Its life ends at the look after the peer has closed
// or its limit has passed, and when end is called.
func (w *watcher) add(e *watched) {
	w.mu.Lock()
	e.place = len(w.conns)
	w.conns = append(w.conns, e)
	over := w.over
	w.mu.Unlock()
	if over != nil && !e.row {
		e.life.cancel(over)
	}
}

// end ends all that clients wait for, now and from now on.
func (w *watcher) end(cause error) {
	w.mu.Lock()
	w.over = cause
	all := slices.Clone(w.conns)
	w.mu.Unlock()
	for _, e := range slices.Backward(all) {
		if !e.row {
			e.life.cancel(cause)
		}
	}
}

func (w *watcher) remove(e *watched) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.place < 0 {
		return
	}
	last := len(w.conns) - 1
	w.conns[e.place] = w.conns[last]
	w.conns[e.place].place = e.place
	w.conns[last] = nil
	w.conns = w.conns[:last]
	e.place = -1
}

// run looks every period until ctx ends.
func (w *watcher) run(ctx context.Context, period time.Duration) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			w.look()
		}
	}
}

// look ends the lives whose client has left or whose time is up.
func (w *watcher) look() {
	now := time.Now()
	w.mu.Lock()
	gone := w.set.closed(w.conns)
	var late []*watched
	for _, e := range w.conns {
		if !now.Before(e.life.limit) {
			late = append(late, e)
		}
	}
	w.mu.Unlock()
	// The newest first: those that still queue are forgotten before the seats of
	// the others come free for them.
	for _, e := range slices.Backward(gone) {
		e.life.cancel(backends.ErrClientGone)
	}
	for _, e := range slices.Backward(late) {
		e.life.cancel(e.life.late)
	}
}

// knownFD remembers a descriptor: asking for it costs allocations, and a
// connection serves many requests.
type knownFD struct {
	once sync.Once
	fd   int
	ok   bool
}

// descriptor finds the file descriptor under c, through TLS and other wrappers.
func descriptor(c net.Conn) (fd int, ok bool) {
	for {
		switch v := c.(type) {
		case *conn:
			v.known.once.Do(func() { v.known.fd, v.known.ok = descriptor(v.Conn) })
			return v.known.fd, v.known.ok
		case syscall.Conn:
			raw, err := v.SyscallConn()
			if err != nil {
				return 0, false
			}
			err = raw.Control(func(n uintptr) { fd = int(n) })
			return fd, err == nil
		case interface{ NetConn() net.Conn }:
			c = v.NetConn()
		default:
			return 0, false
		}
	}
}
