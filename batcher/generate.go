package batcher

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"aloft/backends"
)

// bytesPerToken guesses the generated tokens of an answer that is not a stream,
// for fairness between tenants only; usage is the gateway's to report.
const bytesPerToken = 4

// next does what t's message says. Both results nil: another message follows.
func (b *Batcher) next(ctx context.Context, t *ticket) (*backends.Reply, error) {
	m := t.message
	switch {
	case m.batch == nil:
		return m.reply, m.err
	case ctx.Err() != nil: // no engine is asked for a client that has left
		b.tell(event{kind: evDone, batch: m.batch, result: Result{Outcome: Dropped}})
		return nil, context.Cause(ctx)
	}
	return b.generate(ctx, t, m.batch)
}

// generate makes the call that t was granted, in its caller's goroutine. Both
// results nil mean that there is no answer to relay: the core decides between
// another try and the end, or a hedge has answered, and t tells.
func (b *Batcher) generate(ctx context.Context, t *ticket, batch *Batch) (*backends.Reply, error) {
	caller := ctx
	if t.race != nil {
		ctx = t.race.ctx
	}
	reply, err := batch.Replica.Backend.Do(ctx, &t.call)
	if err != nil {
		err = fmt.Errorf("replica %s: %w", batch.Replica.ID, err)
	} else if reply.Status != 200 {
		refused := refusal(reply, batch.At)
		refused.timing.Queue, refused.timing.Replica = t.queued, batch.Replica.ID
		err = refused
	}
	if err == nil && t.race != nil && !t.race.won(byFirst) {
		reply.Body.Close()
		b.turn(t, event{kind: evDone, batch: batch, result: Result{Outcome: Dropped}})
		return nil, nil
	}
	if err != nil {
		how := outcome(ctx, err)
		b.broken(batch, how, err)
		b.turn(t, event{kind: evDone, batch: batch, result: Result{Outcome: how, Err: err}})
		if how == Dropped && caller.Err() != nil { // no message will come; in every other case one does, whatever the caller's context does now
			return nil, context.Cause(caller)
		}
		return nil, nil
	}
	return b.relay(t, batch, reply), nil
}

// relay makes reply the answer to t: timed, and holding its slot until its body
// ends.
func (b *Batcher) relay(t *ticket, batch *Batch, reply *backends.Reply) *backends.Reply {
	s := &t.slot.slot
	s.ReadCloser, s.b, s.batch = reply.Body, b, batch
	s.stream = strings.HasPrefix(reply.ContentType, "text/event-stream")
	var took time.Duration
	if s.stream || reply.Timing.Engine == 0 {
		took = time.Since(batch.At)
	}
	reply.Timing = timing(reply.Timing, took)
	reply.Timing.Queue = t.queued
	reply.Timing.Replica, reply.Timing.BatchRows, reply.Timing.PromptTokens = batch.Replica.ID, 1, t.req.Tokens
	if t.race != nil {
		s.stop = t.race.stop
		reply.Timing.Hedged = t.race.asked.Load()
	}
	reply.Body = s
	if _, ok := s.ReadCloser.(backends.EventReader); ok {
		reply.Body = &t.slot
	}
	if s.stream {
		b.tell(event{kind: evFirst, batch: batch, first: took})
	} else if t.race != nil { // the other call ends now
		b.tell(event{kind: evFirst, batch: batch})
	}
	return reply
}

// timing keeps what the adapter measured; what it did not say is the engine's.
func timing(t backends.Timing, took time.Duration) backends.Timing {
	if t.Engine == 0 {
		t.Engine = max(0, took-t.Network)
	}
	return backends.Timing{Network: t.Network, Engine: t.Engine}
}

// slot is a generation's body; its end frees the replica's slot, once.
type slot struct {
	io.ReadCloser
	b      *Batcher
	batch  *Batch
	stream bool
	events atomic.Int64 // of a stream: one a read, about a token
	bytes  atomic.Int64
	freed  atomic.Bool
	stop   context.CancelCauseFunc // of a call that might have been hedged
}

func (s *slot) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	s.read(n, err)
	return n, err
}

// read counts what was read, and frees the slot at the end.
func (s *slot) read(n int, err error) {
	if n > 0 {
		s.bytes.Add(int64(n))
		if tokens := s.events.Add(1); s.stream && tokens%streamStep == 0 {
			s.b.tell(event{kind: evStreamed, batch: s.batch, result: Result{Output: int(tokens)}})
		}
	}
	if err != nil {
		s.release()
	}
}

// Len implements backends.Sized.
func (s *slot) Len() int {
	if b, ok := s.ReadCloser.(backends.Sized); ok {
		return b.Len()
	}
	return -1
}

// eventSlot is a slot whose body hands out events.
type eventSlot struct{ slot }

// NextEvent implements backends.EventReader.
func (s *eventSlot) NextEvent() (event []byte, more bool, err error) {
	event, more, err = s.ReadCloser.(backends.EventReader).NextEvent()
	s.read(len(event), err)
	return event, more, err
}

func (s *slot) Close() error {
	err := s.ReadCloser.Close()
	s.release()
	return err
}

func (s *slot) release() {
	if s.freed.Swap(true) {
		return
	}
	out := s.events.Load()
	if !s.stream {
		out = s.bytes.Load() / bytesPerToken
	}
	if s.stop != nil {
		s.stop(nil)
	}
	s.b.tell(event{kind: evDone, batch: s.batch, result: Result{Outcome: Answered, Output: int(out)}})
}
