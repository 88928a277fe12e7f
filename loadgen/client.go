package loadgen

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"time"

	"aloft/loadgen/wire"
)

// Why a request was given up.
var (
	errTimeout = errors.New("timeout of the request passed")
	errDrain   = errors.New("drain deadline of the run passed")
	errLeft    = errors.New("its client left before the answer was whole")
)

const (
	// idleTimeout is how old an idle connection may be that is used again: common
	// servers close one after 5 s (uvicorn, Node), and a request sent while the
	// server closes would be lost, and this client does not retry.
	idleTimeout = 4 * time.Second
	// linger is how long the end of a response may trail its last event before
	// the connection is given up instead of kept.
	linger = 250 * time.Millisecond
	// lingerBytes is how much of an unwanted body is read to keep a connection.
	lingerBytes = 64 << 10
	// maxBody bounds a plain answer, in bytes: 8,192 embeddings of 384 numbers
	// with some 10 digits fit.
	maxBody = 64 << 20
	// maxProblem bounds what is kept of an error, in bytes.
	maxProblem = 240
	// keepBody is how much of a line's buffers is kept for its next answer, in bytes.
	keepBody = 1 << 20
)

// shot is one request that is due.
type shot struct {
	order
	phase, tenant int
	intended      time.Duration // from where its latency counts
	due           time.Duration // when it is to be sent: intended, but for a further attempt
	leave         time.Duration // when its client leaves without the answer; 0 = it stays
	warm, waited  bool

	// same: it goes on with the request that next was asked about, as a further
	// attempt or step, and the sample so far is not counted.
	same    bool
	retries int    // attempts before it
	hear    bool   // the text of a stream is wanted by next
	body    []byte // nil: made when it is its turn
	want    expect // of a whole answer
	talk    *talk  // the session it is a turn of; nil = none
}

// deadline is when the request is given up, and why.
func (sh *shot) deadline(timeout time.Duration) (time.Duration, error) {
	if end := sh.intended + timeout; sh.leave == 0 || end <= sh.leave {
		return end, errTimeout
	}
	return sh.leave, errLeft
}

// client is what the requests of one workload have in common.
type client struct {
	*Workload
	index  int
	start  time.Time // of the measured window: the clock's zero
	target *wire.Target
	stock  *stock
	heads  [][2][]byte // by tenant and step
	// next says what follows the answer to l.shot, if anything: a further attempt or
	// step, the next turn of a session. It may take over l.shot.body, which must be
	// nil then. It is called from the goroutines of many connections.
	next func(l *line, s *sample) (again shot, ok bool)
}

// dialer opens a connection; nil means TCP.
type dialer = wire.Dialer

func newClient(stock *stock, index int, start time.Time, dial dialer) (*client, error) {
	w := stock.w
	c := &client{Workload: w, index: index, start: start, stock: stock, next: follows}
	var err error
	if c.target, err = wire.NewTarget(w.URL, dial); err != nil {
		return nil, fmt.Errorf("loadgen: workload %q: %w", w.Name, err)
	}
	c.target.Trust(stock.roots, w.Insecure)
	for i := range max(len(w.Tenants), 1) {
		var heads [2][]byte
		for step := range heads {
			path, contentType := stock.route(&order{step: step})
			headers := w.headers(i)
			headers["content-type"] = contentType
			if heads[step], err = c.target.Head(path, headers); err != nil {
				return nil, fmt.Errorf("loadgen: workload %q: %w", w.Name, err)
			}
		}
		c.heads = append(c.heads, heads)
	}
	return c, nil
}

// headers are those of one tenant's requests.
func (w *Workload) headers(tenant int) map[string]string {
	all, key := map[string]string{}, w.Key
	for name, value := range w.Headers {
		all[strings.ToLower(name)] = value
	}
	if tenant < len(w.Tenants) {
		t := w.Tenants[tenant]
		if t.Key != "" {
			key = t.Key
		}
		if t.Class != "" {
			all["x-aloft-priority"] = t.Class
		}
		if t.Deadline > 0 {
			all["x-aloft-deadline-ms"] = strconv.FormatInt(t.Deadline.Milliseconds(), 10)
		}
	}
	if key != "" {
		all["authorization"] = "Bearer " + key
	}
	return all
}

// now is the time since the start of the measured window.
func (c *client) now() time.Duration { return time.Since(c.start) }

// lost classes an error of the wire.
func lost(err error) Outcome {
	switch {
	case errors.Is(err, wire.ErrConnect):
		return Connect
	case errors.Is(err, wire.ErrTruncated):
		return Truncated
	case errors.Is(err, wire.ErrTimeout):
		return Timeout
	}
	return Protocol
}

// starved reports whether it was this machine that could not connect, and not the
// server: it had no descriptor, port or memory left.
func starved(err error) bool {
	for _, lack := range []error{syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, lack) {
			return true
		}
	}
	return false
}

// settle says what became of a request that ended for a cause of the
// generator's; s.end must be set.
func (w *Workload) settle(s *sample, cause error) {
	switch {
	case errors.Is(cause, errDrain):
		s.unfinished, s.outcome = true, w.abandon(s)
	case errors.Is(cause, errTimeout):
		s.outcome = Timeout
	case errors.Is(cause, errLeft):
		s.outcome, s.abandoned = w.leave(s), true
	default:
		s.outcome = Cancelled
	}
	s.problem = clip(cause.Error())
}

func clip(s string) string {
	if len(s) > maxProblem {
		return s[:maxProblem] + "…"
	}
	return s
}

// whyGivenUp returns why the generator gave a request up, or nil.
func whyGivenUp(ctx context.Context, err, cause error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, wire.ErrTimeout) {
		return cause
	}
	return nil
}
