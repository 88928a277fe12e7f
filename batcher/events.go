package batcher

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strconv"
	"sync/atomic"
	"time"

	"aloft/backends"
	"aloft/backends/openai"
)

// event is what callers and workers tell the core.
type event struct {
	kind   eventKind
	work   *Work
	batch  *Batch
	first  time.Duration
	result Result
}

type eventKind uint8

const (
	evArrive eventKind = iota
	evCancel
	evFirst
	evDone
	evStreamed // result.Output tokens so far
)

// ticket is one Submit: its place in the core and the way to answer it.
type ticket struct {
	work Work
	ctx  context.Context
	req  *backends.Request

	// message is a grant (alone) or the end; ready has a token while it is
	// unread, and only then may nobody write it. Without ready the caller is in
	// turn, and reads it when that returns.
	message message
	told    bool // there is a message, and no ready
	ready   chan struct{}
	settled atomic.Bool   // whoever sets it may send the end
	queued  time.Duration // alone: arrival to the last grant, a hedge's aside

	// what would be allocated for nearly every request lies here
	tokens [1]int
	call   backends.Call
	slot   eventSlot

	race     *race // alone, and may be hedged
	*merging       // unless alone
}

// merging is what a merged request has besides: rows are written by the calls
// that carry them, each its own range; the call that brings missing to zero
// builds the answer.
type merging struct {
	row     [1][]byte
	rows    [][]byte
	missing atomic.Int64
	prompt  atomic.Int64 // prompt tokens so far
	reply   backends.Reply
	body    body
}

// message tells a caller that its turn has come (batch) or how it ended.
type message struct {
	batch *Batch
	reply *backends.Reply
	err   error
}

func newTicket(ctx context.Context, o Options, r *backends.Request, alone bool) *ticket {
	var t *ticket
	if alone {
		t = new(ticket)
	} else { // still one allocation
		both := new(struct {
			ticket  ticket
			merging merging
		})
		t, both.ticket.merging = &both.ticket, &both.merging
	}
	t.ctx, t.req = ctx, r
	w := &t.work
	w.Class, w.Tenant, w.Place, w.Output = min(r.Class, backends.Offline), r.Tenant, r.Place, r.MaxTokens
	w.Arrival, w.Deadline, w.Load = r.Arrival, r.Deadline, t
	t.call = backends.Call{Path: r.Path, ContentType: r.ContentType, Body: r.Body, Header: r.Header, Stream: r.Stream, ID: r.ID}
	if t.call.Path == "" {
		t.call.Path = r.Endpoint.Path()
	}
	if alone {
		w.Alone, w.Unary = true, !r.Stream
		if !r.Endpoint.Generates() {
			w.Output = -1
		}
		if o.Merge && (r.Endpoint.Merged() || r.Endpoint == backends.Rerank) {
			w.Key = Pooled
		}
		t.tokens[0] = r.Tokens
		w.RowTokens = t.tokens[:]
		if o.Hedge && w.Unary && w.Class != backends.Offline {
			t.race = newRace(ctx)
		}
		return t
	}
	t.ready = make(chan struct{}, 1)
	w.Key = r.MergeKey
	if w.RowTokens = r.InputTokens; len(w.RowTokens) != len(r.Inputs) {
		w.RowTokens = openai.RowTokens(r)
	}
	if t.rows = t.row[:]; len(r.Inputs) != 1 {
		t.rows = make([][]byte, len(r.Inputs))
	}
	t.missing.Store(int64(len(r.Inputs)))
	return t
}

// end answers the caller unless it was answered before.
func (t *ticket) end(reply *backends.Reply, err error) {
	if !t.settled.Swap(true) {
		t.send(message{reply: reply, err: err})
	}
}

func (t *ticket) send(m message) {
	t.message = m
	if t.ready == nil {
		t.told = true
		return
	}
	t.ready <- struct{}{}
}

// tell brings e to the core; false when it has ended.
func (b *Batcher) tell(e event) bool {
	return b.do(func(now time.Time) []Action { return b.handle(now, e) })
}

// do brings an event to the core and carries out what it decides, in the
// goroutine of whoever brings it; nothing happens after the end.
func (b *Batcher) do(f func(now time.Time) []Action) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.step(f)
}

// turn is tell for t's caller, which has to wait only where the event brought it
// no message.
func (b *Batcher) turn(t *ticket, e event) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	going := b.step(func(now time.Time) []Action { return b.handle(now, e) })
	if !t.told && t.ready == nil {
		t.ready = make(chan struct{}, 1)
	}
	return going
}

// step is do for whoever holds the lock.
func (b *Batcher) step(f func(now time.Time) []Action) bool {
	if b.over {
		return false
	}
	now := time.Now()
	b.apply(now, f(now))
	b.wait.set(b.core.outlook())
	if b.core.Drained() {
		b.over = true
		b.timer.Stop()
		for _, w := range b.idle {
			close(w.in)
		}
		close(b.ended)
		return true
	}
	// A timer that is set for sooner finds nothing to do and is set again: cheaper
	// than moving it with each request.
	if at := b.core.Wake(); !at.IsZero() && (b.wake.IsZero() || at.Before(b.wake)) {
		b.wake = at
		b.timer.Reset(at.Sub(now))
	}
	return true
}

// tick is the timer's function.
func (b *Batcher) tick() {
	b.do(func(now time.Time) []Action {
		b.wake = time.Time{}
		return b.core.Tick(now)
	})
}

func (b *Batcher) handle(now time.Time, e event) []Action {
	switch e.kind {
	case evArrive:
		if e.work.Arrival.IsZero() || e.work.Arrival.After(now) {
			e.work.Arrival = now
		}
		return b.core.Arrive(now, e.work)
	case evCancel:
		return b.core.Cancel(now, e.work)
	case evFirst:
		return b.core.First(now, e.batch, e.first)
	case evStreamed:
		return b.core.Streamed(now, e.batch, e.result.Output)
	}
	if w := b.calls[e.batch]; w != nil {
		delete(b.calls, e.batch)
		b.idle = append(b.idle, w)
	}
	delete(b.seconds, e.batch)
	return b.core.Done(now, e.batch, e.result)
}

// apply carries out what the core decided. Carrying out an action may end a
// batch at once, whose actions follow.
func (b *Batcher) apply(now time.Time, actions []Action) {
	for len(actions) > 0 {
		var unread []*Batch
		for _, a := range actions {
			switch a.Kind {
			case Dispatch:
				b.dispatch(a.Batch)
			case Fail:
				t := a.Work.Load.(*ticket)
				reply, err := failure(a.Err)
				t.end(reply, err)
			case Hedge:
				b.hedge(a.Batch)
			case Abort:
				if m := b.abort(a.Batch); m != nil {
					unread = append(unread, m)
				}
			}
		}
		actions = nil
		for _, batch := range unread {
			// copied: the core reuses its slice
			actions = append(actions, b.core.Done(now, batch, Result{Outcome: Dropped})...)
		}
	}
}

func (b *Batcher) dispatch(batch *Batch) {
	if batch.Alone {
		t := batch.Segs[0].Work.Load.(*ticket)
		t.queued = max(0, batch.At.Sub(t.work.Arrival))
		t.send(message{batch: batch})
		return
	}
	var w *worker
	if n := len(b.idle) - 1; n >= 0 {
		w, b.idle = b.idle[n], b.idle[:n]
	} else {
		w = &worker{in: make(chan *Batch, 1)}
		b.workers.Go(func() { b.work(w) })
	}
	if w.ctx == nil || w.ctx.Err() != nil {
		w.ctx, w.stop = context.WithCancel(b.base)
	}
	b.calls[batch] = w
	w.in <- batch
}

// abort cancels a call that nobody waits for. It returns the batch if its caller
// left before it read the grant: nothing else will end it.
func (b *Batcher) abort(batch *Batch) *Batch {
	if w := b.calls[batch]; w != nil {
		w.stop()
		return nil
	}
	if stop := b.seconds[batch]; stop != nil {
		stop(errLost)
		return nil
	}
	t := batch.Segs[0].Work.Load.(*ticket)
	if t.race != nil {
		t.race.stop(errLost)
	}
	select {
	case <-t.ready:
		return t.message.batch
	default:
		return nil
	}
}

// statusError is an engine's refusal on its way to the callers it concerns.
type statusError struct {
	status      int
	contentType string
	header      backends.Header
	timing      backends.Timing
	body        []byte
}

func (e *statusError) Error() string { return "engine answered " + strconv.Itoa(e.status) }

// failure turns an error from the core into what Submit returns: an engine's
// refusal is a Reply with its status, everything else an error.
func failure(err error) (*backends.Reply, error) {
	var s *statusError
	if !errors.As(err, &s) {
		return nil, err
	}
	return &backends.Reply{Status: s.status, ContentType: s.contentType, Header: s.header, Timing: s.timing, Body: io.NopCloser(bytes.NewReader(s.body))}, nil
}

// refusal reads an engine's error reply, at most 64 KiB of it, and closes it.
func refusal(reply *backends.Reply, start time.Time) *statusError {
	text, _ := io.ReadAll(io.LimitReader(reply.Body, 64<<10)) // what arrived is all there is to say
	reply.Body.Close()
	return &statusError{status: reply.Status, contentType: reply.ContentType, header: reply.Header, timing: timing(reply.Timing, time.Since(start)), body: text}
}
