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

// generate makes the call that t was granted, in its caller's goroutine. Both
// results nil mean that there is no answer to relay: the core decides between
// another try and the end, and t's inbox tells.
func (b *Batcher) generate(ctx context.Context, t *ticket, batch *Batch) (*backends.Reply, error) {
	start := time.Now()
	reply, err := batch.Replica.Backend.Do(ctx, &backends.Call{
		Path: t.req.Endpoint.Path(), Body: t.req.Body, Stream: t.req.Stream, ID: t.req.ID,
	})
	took := time.Since(start)
	if err != nil {
		err = fmt.Errorf("replica %s: %w", batch.Replica.ID, err)
	} else if reply.Status != 200 {
		err = refusal(reply)
	}
	if err != nil {
		how := outcome(ctx, err)
		b.broken(batch, how, err)
		b.tell(event{kind: evDone, batch: batch, result: Result{Outcome: how, Took: took, Err: err}})
		if how == Dropped { // no message will come; in every other case one does, whatever ctx does now
			return nil, context.Cause(ctx)
		}
		return nil, nil
	}
	reply.Timing = backends.Timing{
		Queue: batch.At.Sub(t.work.Arrival), Engine: took,
		Replica: batch.Replica.ID, BatchRows: 1, PromptTokens: t.req.Tokens,
	}
	stream := strings.HasPrefix(reply.ContentType, "text/event-stream")
	reply.Body = &slot{ReadCloser: reply.Body, b: b, batch: batch, start: start, stream: stream}
	if !stream {
		took = 0 // the whole answer's time, not a first token's
	}
	b.tell(event{kind: evFirst, batch: batch, first: took})
	return reply, nil
}

// slot is a generation's body; its end frees the replica's slot, once.
type slot struct {
	io.ReadCloser
	b      *Batcher
	batch  *Batch
	start  time.Time
	stream bool
	events atomic.Int64 // reads of a stream: one event each, about a token
	bytes  atomic.Int64
	freed  atomic.Bool
}

func (s *slot) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	if n > 0 {
		s.events.Add(1)
		s.bytes.Add(int64(n))
	}
	if err != nil {
		s.release()
	}
	return n, err
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
	s.b.tell(event{kind: evDone, batch: s.batch, result: Result{Outcome: Answered, Took: time.Since(s.start), Output: int(out)}})
}
