package batcher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"aloft/backends"
	"aloft/backends/openai"
)

// maxReply bounds a merged call's answer in memory: 2,048 rows of 4,096 numbers
// in decimal stay below it.
const maxReply = 256 << 20

// body is an answer that lies in memory.
type body struct{ bytes.Reader }

// Close implements io.Closer.
func (*body) Close() error { return nil }

// texts are buffers for engines' answers; one goes back when no row of it is
// kept any more. What grew large is left to the collector.
var texts = sync.Pool{New: func() any { return new(bytes.Buffer) }}

const maxPooled = 1 << 20

// worker makes merged calls, one after another. Its context lives until a call
// is cancelled; ctx and stop are set under the batcher's lock while it is idle.
type worker struct {
	in   chan *Batch
	ctx  context.Context
	stop context.CancelFunc

	// scratch
	segs   []Seg
	parts  []backends.Request
	reqs   []*backends.Request
	shares []int
	limit  io.LimitedReader
}

// limited bounds an answer to a byte more than may be.
func (w *worker) limited(r io.Reader) io.Reader {
	w.limit = io.LimitedReader{R: r, N: maxReply + 1}
	return &w.limit
}

func (b *Batcher) work(w *worker) {
	defer func() { w.stop() }()
	for {
		select {
		case batch, ok := <-w.in:
			if !ok || !b.tell(event{kind: evDone, batch: batch, result: b.merged(w, batch)}) {
				return
			}
		case <-b.ended:
			return
		}
	}
}

// merged makes one engine call for all of batch's rows and hands each caller its
// own.
func (b *Batcher) merged(w *worker, batch *Batch) Result {
	start := time.Now()
	// A caller may have left since the batch was formed; its rows stay home.
	w.segs, w.parts, w.reqs = w.segs[:0], w.parts[:0], w.reqs[:0]
	for _, s := range batch.Segs {
		if t := s.Work.Load.(*ticket); t.ctx.Err() == nil {
			part := *t.req
			part.Inputs = t.req.Inputs[s.From:s.To]
			w.segs, w.parts = append(w.segs, s), append(w.parts, part)
		}
	}
	for i := range w.parts {
		w.reqs = append(w.reqs, &w.parts[i])
	}
	defer func() { clear(w.segs); clear(w.parts); w.limit.R = nil }() // an idle worker holds nobody's request
	if len(w.segs) == 0 {
		return Result{Outcome: Dropped, Err: backends.ErrClientGone}
	}
	text := texts.Get().(*bytes.Buffer)
	a, err := b.embed(w, batch, text)
	a.took = time.Since(start)
	r := Result{Took: a.took, Err: err, Outcome: outcome(w.ctx, err)}
	b.broken(batch, r.Outcome, err)
	if err == nil {
		a.timing = timing(a.timing, a.took)
		if b.split(w, a) && text.Cap() <= maxPooled {
			text.Reset()
			texts.Put(text)
		}
	}
	return r
}

// embed sends w's requests as one call and returns the raw vector of each row,
// in text, and the engine's count of prompt tokens, -1 when it gave none.
func (b *Batcher) embed(w *worker, batch *Batch, text *bytes.Buffer) (a answer, err error) {
	n, size := 0, len(w.reqs[0].Body)
	for _, r := range w.reqs {
		n += len(r.Inputs)
		for _, row := range r.Inputs {
			size += len(row) + 1
		}
	}
	var call *backends.Call
	if s, t := w.segs[0], w.segs[0].Work.Load.(*ticket); s.To-s.From == len(t.req.Inputs) {
		call = &t.call // whole, so in no other call
	} else {
		call = &backends.Call{}
	}
	*call = backends.Call{
		Path: w.reqs[0].Path, ID: w.reqs[0].ID,
		Body: openai.AppendMergedEmbeddings(make([]byte, 0, size+64), w.reqs),
	}
	if call.Path == "" {
		call.Path = w.reqs[0].Endpoint.Path()
	}
	start := time.Now()
	reply, err := batch.Replica.Backend.Do(w.ctx, call)
	if err != nil {
		return a, fmt.Errorf("replica %s: %w", batch.Replica.ID, err)
	}
	if reply.Status != 200 {
		return a, refusal(reply, start)
	}
	_, err = text.ReadFrom(w.limited(reply.Body))
	reply.Body.Close()
	if err == nil && text.Len() > maxReply {
		err = fmt.Errorf("more than %d bytes", maxReply)
	}
	if err != nil {
		return a, fmt.Errorf("replica %s: read answer: %w: %w", batch.Replica.ID, backends.ErrBadReply, err)
	}
	a = answer{batch: batch, timing: reply.Timing}
	a.rows, a.prompt, err = openai.SplitEmbeddings(text.Bytes(), n)
	if err == nil && len(a.rows) != n {
		err = fmt.Errorf("%w: %d vectors for %d rows", backends.ErrBadReply, len(a.rows), n)
	}
	if err != nil {
		return a, fmt.Errorf("replica %s: %w", batch.Replica.ID, err)
	}
	return a, nil
}

// answer is an engine's answer to a merged call.
type answer struct {
	batch  *Batch
	rows   [][]byte
	prompt int // tokens; -1 = not said
	took   time.Duration
	timing backends.Timing
}

// split gives every segment its rows, and answers the callers that have all. It
// reports whether that was everybody, so that nothing of the text is kept.
func (b *Batcher) split(w *worker, a answer) (all bool) {
	all = true
	batch, rows := a.batch, a.rows
	w.shares = w.shares[:0]
	for _, s := range w.segs {
		w.shares = append(w.shares, s.Tokens)
	}
	openai.Apportion(w.shares, a.prompt)
	for i, s := range w.segs {
		t := s.Work.Load.(*ticket)
		n := s.To - s.From
		copy(t.rows[s.From:s.To], rows[:n])
		rows = rows[n:]
		tokens := t.prompt.Add(int64(w.shares[i]))
		if t.missing.Add(int64(-n)) > 0 {
			all = false
			continue
		}
		size := 256 + len(b.opt.Model)
		for _, row := range t.rows {
			size += len(row)*3/2 + 64
		}
		text, err := openai.AppendEmbeddings(make([]byte, 0, size), t.rows, openai.EmbeddingsReply{Model: b.opt.Model, PromptTokens: int(tokens), Base64: t.req.Base64})
		if err != nil {
			t.end(nil, fmt.Errorf("replica %s: %w", batch.Replica.ID, err))
			continue
		}
		t.body.Reset(text)
		timing := a.timing
		timing.Queue = batch.At.Sub(s.Work.Arrival)
		timing.Batch = min(batch.Held, timing.Queue)
		timing.Replica, timing.BatchRows, timing.PromptTokens = batch.Replica.ID, batch.Rows, int(tokens)
		t.reply = backends.Reply{Status: 200, ContentType: "application/json", Body: &t.body, Timing: timing}
		t.end(&t.reply, nil)
	}
	return all
}

// broken logs a call that an engine failed: a retry elsewhere hides it from the
// caller, but not from whoever looks after the replica.
func (b *Batcher) broken(batch *Batch, how Outcome, err error) {
	if how == Broken {
		b.log.Warn("call broken", "replica", batch.Replica.ID, "rows", batch.Rows, "error", err)
	}
}

// outcome sorts a call's end into what the core distinguishes.
func outcome(ctx context.Context, err error) Outcome {
	if err == nil {
		return Answered
	}
	var s *statusError
	switch {
	case ctx.Err() != nil:
		return Dropped
	case errors.As(err, &s):
		switch {
		case s.status == 400 || s.status == 413 || s.status == 422:
			return Rejected
		case s.status >= 500 || s.status == 408 || s.status == 429:
			return Broken
		}
		return Refused
	}
	if errors.Is(err, backends.ErrUnavailable) {
		return Declined
	}
	return Broken
}
