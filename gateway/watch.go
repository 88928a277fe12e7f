package gateway

import (
	"context"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"
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
}

// watched is one waiting connection.
type watched struct {
	fd    int
	place int // in conns, -1 = not there
	gone  func()
}

// add lists c until remove; gone is called from the watcher's goroutine, at each
// look once the peer has closed. It must not block.
func (w *watcher) add(c net.Conn, gone func()) *watched {
	fd, ok := descriptor(c)
	if !ok { // an in-memory connection: writes will have to tell
		return &watched{place: -1}
	}
	e := &watched{fd: fd, gone: gone}
	w.mu.Lock()
	defer w.mu.Unlock()
	e.place = len(w.conns)
	w.conns = append(w.conns, e)
	return e
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

// look calls gone for each connection whose peer has closed.
func (w *watcher) look() {
	w.mu.Lock()
	gone := w.set.closed(w.conns)
	w.mu.Unlock()
	// The newest first: those that still queue are forgotten before the seats of
	// the others come free for them.
	for _, e := range slices.Backward(gone) {
		e.gone()
	}
}

// descriptor finds the file descriptor under c, through TLS and other wrappers.
func descriptor(c net.Conn) (fd int, ok bool) {
	for {
		switch v := c.(type) {
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
