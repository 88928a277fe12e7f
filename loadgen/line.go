package loadgen

import (
	"context"
	"sync"
	"time"

	"aloft/loadgen/wire"
)

// line is a connection with the goroutine and the memory that go with it. It
// serves one request after another.
type line struct {
	*client
	w      *worker
	conn   *wire.Conn
	ready  chan struct{} // shot is to be sent; closed: the run is over
	shot   shot
	sample sample // of the shot; here since next would have each request allocate one
	make   *maker
	body   []byte // of a plain answer
	plain  whole
	events events
	stream stream
	take   func(name, data []byte) error // stream.take, bound once
}

func newLine(w *worker) *line {
	l := &line{client: w.client, w: w, make: w.stock.maker(), conn: w.target.Conn(w.start), ready: make(chan struct{}, 1)}
	l.take = l.stream.take
	return l
}

// serve sends what it is given until ready is closed.
func (l *line) serve(ctx context.Context) {
	defer l.conn.Close()
	for range l.ready {
		for l.one(ctx) {
		}
		l.w.lines.give(l)
		if l.w.waiting.Load() {
			l.w.wake.nudge()
		}
	}
}

// one sends the shot and hands its sample on. It returns true when another shot
// has taken its place, which is due already.
func (l *line) one(ctx context.Context) bool {
	l.sample = l.send(ctx)
	l.w.open.Add(-1)
	again, ok := l.next(l, &l.sample)
	if ok = ok && ctx.Err() == nil; !ok || !again.same {
		l.w.out <- l.sample
	} else {
		l.sample.recycle()
	}
	if !ok {
		return false
	}
	if again.body == nil {
		again.body, again.want = l.make.append(l.shot.body[:0], &again.order)
		l.shot.body = nil
	}
	if again.due > l.now() {
		l.w.follow(again)
		return false
	}
	l.shot = again
	l.w.open.Add(1)
	return true
}

// send makes the request and says how it ended. It returns within the
// request's timeout, or soon after ctx ends.
func (l *line) send(ctx context.Context) sample {
	sh := &l.shot
	s := sample{
		workload: l.index, phase: sh.phase, tenant: sh.tenant,
		times: times{intended: sh.intended, due: sh.due}, waited: sh.waited, retries: sh.retries, warm: sh.warm,
		further: sh.turn > 0,
	}
	if l.Requests == "" { // whose sizes are their own
		s.input = int(sh.shape.Input)
	}
	until, cause := sh.deadline(l.Timeout)
	outcome, err := l.exchange(ctx, &s, l.start.Add(until))
	switch {
	case err == nil:
		s.worst = s.lateness(l.pace(s.tenant))
		s.outcome = l.judge(&s)
		l.linger(l.start.Add(until))
	default:
		s.end, s.outcome = l.now(), outcome
		if why := whyGivenUp(ctx, err, cause); why != nil {
			l.settle(&s, why)
		} else {
			s.problem, s.starved = clip(err.Error()), starved(err)
		}
		if outcome == Shed || outcome == HTTPError {
			l.linger(l.start.Add(until))
		}
	}
	l.conn.Done()
	if cap(l.body) > keepBody {
		l.body = nil
	}
	return s
}

// pace is what a token may take in the playback that a tenant's streams are held
// against.
func (l *line) pace(tenant int) time.Duration {
	if t := l.goal(tenant).TPOTTarget; t > 0 {
		return t
	}
	return playback
}

// exchange sends the shot and reads its answer.
func (l *line) exchange(ctx context.Context, s *sample, deadline time.Time) (Outcome, error) {
	s.sent, s.wasSent = l.now(), true
	answer, err := l.ask(ctx, s, deadline)
	if err != nil && l.conn.Unseen() { // the server closed the idle connection, as it may, and knows of no request
		l.conn.Close()
		answer, err = l.ask(ctx, s, deadline)
	}
	if err != nil {
		return lost(err), err
	}
	s.byte = answer.First
	return l.read(answer, s, deadline)
}

// ask sends the shot, over a new connection if need be, and reads up to the end
// of the answer's head.
func (l *line) ask(ctx context.Context, s *sample, deadline time.Time) (wire.Head, error) {
	if !l.conn.Ready(idleTimeout) {
		err := l.connect(ctx, deadline)
		s.connect = l.now() - s.sent
		if err != nil {
			return wire.Head{}, err
		}
	}
	head := &l.heads[min(l.shot.tenant, len(l.heads)-1)]
	if err := l.conn.Send(head[l.shot.step], l.shot.body, deadline); err != nil {
		return wire.Head{}, err
	}
	return l.conn.Head()
}

func (l *line) connect(ctx context.Context, deadline time.Time) error {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	return l.conn.Open(ctx)
}

// linger reads an answer to its end, soon, so that its connection can serve the
// next request.
func (l *line) linger(deadline time.Time) {
	if l.conn.Whole() || l.conn.Deadline(soon(deadline)) != nil {
		return
	}
	for read := 0; read < lingerBytes; {
		part, _, err := l.conn.Body()
		if err != nil {
			return
		}
		read += len(part)
	}
}

// soon is the deadline for what is not worth waiting long for.
func soon(deadline time.Time) time.Time {
	if at := time.Now().Add(linger); at.Before(deadline) {
		return at
	}
	return deadline
}

// pool is the connections of a workload, the one that was used last first: it
// is the least likely to have been closed, and its memory is in the cache.
type pool struct {
	most  int
	make  func() *line
	freed chan struct{} // of capacity 1: a line may be free

	mu      sync.Mutex
	idle    []*line
	all     []*line
	aborted bool
}

// take returns a free line, or nil when all that may be are busy.
func (p *pool) take() *line {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.idle); n > 0 {
		l := p.idle[n-1]
		p.idle = p.idle[:n-1]
		return l
	}
	if len(p.all) == p.most {
		return nil
	}
	l := p.make()
	p.all = append(p.all, l)
	if p.aborted {
		l.conn.Abort()
	}
	return l
}

func (p *pool) give(l *line) {
	p.mu.Lock()
	p.idle = append(p.idle, l)
	p.mu.Unlock()
	select {
	case p.freed <- struct{}{}:
	default:
	}
}

// quiet reports whether every line is idle.
func (p *pool) quiet() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.idle) == len(p.all)
}

// abort gives up what is in flight, and whatever will be.
func (p *pool) abort() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.aborted = true
	for _, l := range p.all {
		l.conn.Abort()
	}
}

// end lets every line finish; none may be taken from then on.
func (p *pool) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.all {
		close(l.ready)
	}
}
