package batcher

import (
	"context"
	"errors"
	"io"
	"strconv"
	"sync/atomic"
	"time"

	"aloft/backends"
)

// event is what callers and workers tell the loop.
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
)

// ticket is one Submit: its place in the core and the way to answer it.
type ticket struct {
	work Work
	ctx  context.Context
	req  *backends.Request

	// inbox holds at most one message: a grant (generation) or the end.
	inbox   chan message
	settled atomic.Bool // whoever sets it may send the end

	// merged requests: rows are written by the calls that carry them, each its
	// own range; the call that brings missing to zero builds the answer.
	rows    [][]byte
	missing atomic.Int64
	prompt  atomic.Int64 // prompt tokens so far
}

// message tells a caller that its turn has come (batch) or how it ended.
type message struct {
	batch *Batch
	reply *backends.Reply
	err   error
}

func newTicket(ctx context.Context, o Options, r *backends.Request) *ticket {
	t := &ticket{ctx: ctx, req: r, inbox: make(chan message, 1)}
	t.work = Work{
		Class: min(r.Class, backends.Offline), Tenant: r.Tenant,
		Arrival: r.Arrival, Deadline: r.Deadline, Load: t,
	}
	if !o.Merge {
		t.work.RowTokens = []int{r.Tokens}
		return t
	}
	t.work.Key = r.MergeKey
	t.work.RowTokens = r.InputTokens
	if n := len(r.Inputs); len(r.InputTokens) != n { // not counted per row: spread the total
		t.work.RowTokens = make([]int, n)
		for i := range t.work.RowTokens {
			t.work.RowTokens[i] = r.Tokens / n
		}
	}
	t.rows = make([][]byte, len(r.Inputs))
	t.missing.Store(int64(len(r.Inputs)))
	return t
}

// end answers the caller unless it was answered before.
func (t *ticket) end(reply *backends.Reply, err error) {
	if !t.settled.Swap(true) {
		t.inbox <- message{reply: reply, err: err}
	}
}

// tell hands e to the loop; false when the loop has ended.
func (b *Batcher) tell(e event) bool {
	select {
	case b.events <- e:
		return true
	case <-b.ended:
		return false
	}
}

// do runs f in the loop and waits for it; nothing happens after the loop's end.
func (b *Batcher) do(f func(now time.Time) []Action) {
	done := make(chan struct{})
	select {
	case b.control <- func(now time.Time) []Action { defer close(done); return f(now) }:
		<-done
	case <-b.ended:
	}
}

// loop owns the core. It ends when the core has drained, or when Close gave up.
func (b *Batcher) loop() {
	defer close(b.ended)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	giveUp := b.base.Done()
	for !b.core.Drained() {
		select {
		case e := <-b.events:
			b.apply(b.handle(e))
		case f := <-b.control:
			b.apply(f(time.Now()))
		case <-timer.C:
			b.apply(b.core.Tick(time.Now()))
		case <-giveUp:
			b.apply(b.core.Abandon(time.Now()))
			return
		}
		if at := b.core.Wake(); at.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(at))
		}
	}
}

func (b *Batcher) handle(e event) []Action {
	now := time.Now()
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
	}
	delete(b.calls, e.batch)
	return b.core.Done(now, e.batch, e.result)
}

// apply carries out what the core decided. Carrying out an action may end a
// batch at once, whose actions follow.
func (b *Batcher) apply(actions []Action) {
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
			case Abort:
				if stop := b.calls[a.Batch]; stop != nil {
					stop()
				} else if t := a.Batch.Segs[0].Work.Load.(*ticket); !b.opt.Merge {
					select { // the caller left before it read the grant
					case m := <-t.inbox:
						unread = append(unread, m.batch)
					default:
					}
				}
			}
		}
		actions = nil
		for _, batch := range unread {
			// copied: the core reuses its slice
			actions = append(actions, b.core.Done(time.Now(), batch, Result{Outcome: Dropped})...)
		}
	}
}

func (b *Batcher) dispatch(batch *Batch) {
	if !b.opt.Merge {
		batch.Segs[0].Work.Load.(*ticket).inbox <- message{batch: batch}
		return
	}
	ctx, stop := context.WithCancel(b.base)
	b.calls[batch] = stop
	b.workers.Go(func() {
		defer stop()
		b.merged(ctx, batch)
	})
}

// statusError is an engine's refusal on its way to the callers it concerns.
type statusError struct {
	status      int
	contentType string
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
	return &backends.Reply{Status: s.status, ContentType: s.contentType, Body: body(s.body)}, nil
}

// refusal reads an engine's error reply, at most 64 KiB of it, and closes it.
func refusal(reply *backends.Reply) *statusError {
	text, _ := io.ReadAll(io.LimitReader(reply.Body, 64<<10)) // what arrived is all there is to say
	reply.Body.Close()
	return &statusError{status: reply.Status, contentType: reply.ContentType, body: text}
}
