package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// target is one way to the stub.
type target struct {
	name   string
	addr   string
	fields string // header fields that it wants, each with its line's end
	pids   []int  // the processes whose CPU time is the target's
	absent string // why it is not there; "" = it is
}

// request is a whole request, ready to be sent.
func (t *target) request(body []byte) []byte {
	return fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s",
		t.addr, t.fields, len(body), body)
}

// kind is one shape of request.
type kind struct {
	name   string // what is counted, per second
	body   []byte
	events int // that an answer has
}

var (
	prompt  = `{"model":"` + stubModel + `","messages":[{"role":"user","content":"What follows a word, and what follows the word after it?"}],"max_tokens":128`
	unaries = kind{"requests", []byte(prompt + `}`), 0}
	streams = kind{"events", []byte(prompt + `,"stream":true}`), chunks + 1} // [DONE] too
	idles   = kind{"idle", []byte(prompt + `,"stream":true,"user":"idle"}`), 1}
)

// check says what is wrong with an answer.
func (k kind) check(t tally) error {
	if t.events != k.events || k.events == 0 && t.bytes != replySize {
		return fmt.Errorf("an answer of %d bytes and %d events, want %d events (0: %d bytes)", t.bytes, t.events, k.events, replySize)
	}
	return nil
}

// throughput is what n connections get per second when each sends its next
// request as soon as the last one is answered.
func (t *target) throughput(ctx context.Context, k kind, n int, span time.Duration) (float64, error) {
	var counted atomic.Int64
	var measuring, over atomic.Bool
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	request := t.request(k.body)
	count := func(n int) {
		if measuring.Load() {
			counted.Add(int64(n))
		}
	}
	var clients sync.WaitGroup
	var open opened
	for range n {
		clients.Go(func() {
			w, err := dial(t.addr)
			if err == nil && !open.add(w) {
				return
			}
			for err == nil && !over.Load() {
				var got tally
				if got, err = w.call(request, count); err == nil {
					err = k.check(got)
				}
				if k.events == 0 {
					count(1)
				}
			}
			if err != nil && !over.Load() {
				cancel(err)
			}
		})
	}
	var took time.Duration
	if pause(ctx, lead) {
		measuring.Store(true)
		began := time.Now()
		pause(ctx, span)
		took = time.Since(began)
		measuring.Store(false)
	}
	err := context.Cause(ctx)
	over.Store(true)
	// Most are in the middle of a call, and end with it, so that the next to be
	// measured has the machine to itself. Slow ones are cut off.
	stuck := time.AfterFunc(time.Second, open.close)
	clients.Wait()
	stuck.Stop()
	open.close()
	if err != nil {
		return 0, fmt.Errorf("%s, %d connections: %w", t.name, n, err)
	}
	return float64(counted.Load()) / took.Seconds(), nil
}

// opened are connections that are closed together.
type opened struct {
	mu     sync.Mutex
	all    []*wire
	closed bool
}

// add reports whether the connection may still be used.
func (o *opened) add(w *wire) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		w.Close()
		return false
	}
	o.all = append(o.all, w)
	return true
}

func (o *opened) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, w := range o.all {
		w.Close()
	}
	o.all, o.closed = nil, true
}

// pacers share an open loop's requests. Each has a connection and a thread of
// its own that blocks in the kernel, for timers and sockets alike: the runtime's
// would be up to 1 ms late.
const pacers = 16

// paced sends unary requests at fixed times, so many a second, and returns how
// long each took in µs from when it was due: one that had to wait for the answer
// before counts that wait too.
func (t *target) paced(ctx context.Context, rate int, span time.Duration) ([]float64, error) {
	request := t.request(unaries.body)
	n := max(1, int(span.Seconds()*float64(rate)))
	gap := time.Second / time.Duration(rate)
	took := make([]float64, n)
	fails := make([]error, pacers)
	var all sync.WaitGroup
	start := time.Now().Add(20 * time.Millisecond) // all are there by then
	for p := range pacers {
		all.Go(func() {
			w, err := blocking(t.addr)
			if err != nil {
				fails[p] = err
				return
			}
			defer w.Close()
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for i := p; i < n && ctx.Err() == nil; i += pacers {
				due := start.Add(time.Duration(i) * gap)
				nap(time.Until(due))
				got, err := w.call(request, nil)
				if err == nil {
					err = unaries.check(got)
				}
				if err != nil {
					fails[p] = err
					return
				}
				took[i] = float64(time.Since(due)) / float64(time.Microsecond)
			}
		})
	}
	all.Wait()
	if err := errors.Join(append(fails, context.Cause(ctx))...); err != nil {
		return nil, fmt.Errorf("%s at %d requests/s: %w", t.name, rate, err)
	}
	return took, nil
}

// blocking connects without the runtime's poller.
func blocking(addr string) (*wire, error) {
	c, err := net.DialTimeout("tcp", addr, dialTime)
	if err != nil {
		return nil, err
	}
	defer c.Close() // the file is a second descriptor of the connection
	f, err := c.(*net.TCPConn).File()
	if err != nil {
		return nil, err
	}
	f.Fd() // makes it blocking
	return newWire(&fileConn{Conn: c, file: f}), nil
}

// fileConn is a connection that is read and written through a file.
type fileConn struct {
	net.Conn
	file *os.File
}

// Read implements net.Conn.
func (f *fileConn) Read(b []byte) (int, error) { return f.file.Read(b) }

// Write implements net.Conn.
func (f *fileConn) Write(b []byte) (int, error) { return f.file.Write(b) }

// Close implements net.Conn.
func (f *fileConn) Close() error { return f.file.Close() }

// hold opens streams that stay idle until n are open, some at a time, and adds
// them to open. It returns how many failed, and the first one's reason.
func (t *target) hold(ctx context.Context, open *opened, n int) (failed int, why error) {
	request := t.request(idles.body)
	var next atomic.Int64
	var mu sync.Mutex
	var dialers sync.WaitGroup
	for range 32 {
		dialers.Go(func() {
			for int(next.Add(1)) <= n && ctx.Err() == nil {
				if err := t.holdOne(open, request); err != nil {
					mu.Lock()
					failed++
					if why == nil {
						why = err
					}
					mu.Unlock()
				}
			}
		})
	}
	dialers.Wait()
	if why == nil {
		why = context.Cause(ctx)
	}
	return failed, why
}

// holdOne opens a stream and reads its first event.
func (t *target) holdOne(open *opened, request []byte) error {
	w, err := dial(t.addr)
	if err != nil {
		return err
	}
	if !open.add(w) {
		return net.ErrClosed
	}
	_ = w.SetReadDeadline(time.Now().Add(dialTime))
	f, err := w.ask(request)
	if err != nil {
		return err
	}
	if f.length >= 0 {
		return errors.New("no stream was opened")
	}
	if line, err := w.line(); err != nil || len(line) == 0 {
		return fmt.Errorf("first chunk %q: %w", line, unexpected(err))
	}
	w.r = nil // 8 KiB that 9,000 streams need not have
	return nil
}

// alive counts the streams that nobody has closed.
func (o *opened) alive() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := 0
	for _, w := range o.all {
		if !hungUp(w.Conn) {
			n++
		}
	}
	return n
}
