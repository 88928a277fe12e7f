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
	// A caller may have left since the batch was formed, or have its answer; its rows
	// stay home.
	w.segs, w.parts, w.reqs = w.segs[:0], w.parts[:0], w.reqs[:0]
	for _, s := range batch.Segs {
		if t := s.Work.Load.(*ticket); t.ctx.Err() == nil && !t.settled.Load() {
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
	a, err := b.ask(w, batch, text, false)
	if errors.Is(err, errUnfit) && len(w.segs) == 1 { // part of a list, of which halves would fare no better
		text.Reset()
		a, err = b.ask(w, batch, text, true)
	}
	a.took = time.Since(start)
	r := Result{Took: a.took, Err: err, Outcome: outcome(w.ctx, err), Counted: a.items.Prompt}
	for _, s := range w.segs {
		r.Tokens += s.Tokens
	}
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

// ask sends w's requests as one call and returns the engine's answer, which lies
// in text. all: the first request whole, whatever of it the batch has.
func (b *Batcher) ask(w *worker, batch *Batch, text *bytes.Buffer, all bool) (a answer, err error) {
	call, whole := b.call(w, all)
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
	if whole {
		a.raw, a.kind, a.header = text.Bytes(), reply.ContentType, reply.Header
		if u, ok := openai.ScanUsage(a.raw); ok {
			a.items.Prompt = u.Prompt
		}
		return a, nil
	}
	n := 0
	for _, r := range w.reqs {
		n += len(r.Inputs)
	}
	e := w.reqs[0].Endpoint
	if a.items, err = openai.Split(e, text.Bytes(), n); err == nil {
		b.unfit[e].Store(0)
		return a, nil
	}
	if e != backends.Embeddings {
		b.unfit[e].Add(1)
		err = fmt.Errorf("%w: %w", errUnfit, err)
	}
	return a, fmt.Errorf("replica %s: %w", batch.Replica.ID, err)
}

// errUnfit is an answer to a merged call that cannot be taken apart. It is no fault
// of the replica: engines differ in these answers, and one request alone gets its
// own as it is.
var errUnfit = errors.New("the engine's answer has no shape that can be shared out")

// maxUnfit is after how many answers in a row that could not be taken apart an
// endpoint's requests go alone, for as long as the batcher lives: until then each
// costs a bisect.
const maxUnfit = 3

// merges reports whether r may share its call.
func (b *Batcher) merges(r *backends.Request) bool {
	return b.opt.Merge && r.MergeKey != "" && r.Endpoint.Merged() && b.unfit[r.Endpoint].Load() < maxUnfit
}

// call builds w's call. One that carries one request whole is sent as its client
// wrote it, and answered as the engine does; not embeddings, whose encoding and form
// are put right.
func (b *Batcher) call(w *worker, all bool) (call *backends.Call, whole bool) {
	s, t := w.segs[0], w.segs[0].Work.Load.(*ticket)
	first := s.To-s.From == len(t.req.Inputs)
	if first {
		call = &t.call // whole, so in no other call
	} else {
		call = &backends.Call{}
	}
	first = first || all
	*call = backends.Call{Path: t.req.Path, ID: t.req.ID}
	if call.Path == "" {
		call.Path = t.req.Endpoint.Path()
	}
	if whole = first && len(w.segs) == 1 && t.req.Endpoint != backends.Embeddings; whole {
		call.Body, call.ContentType, call.Header = t.req.Body, t.req.ContentType, t.req.Header
		return call, true
	}
	size := len(t.req.Body) + 64
	for _, r := range w.reqs {
		for _, row := range r.Inputs {
			size += len(row) + 1
		}
	}
	call.Body = openai.AppendMerged(make([]byte, 0, size), w.reqs)
	return call, false
}

// answer is an engine's answer to a merged call.
type answer struct {
	batch  *Batch
	items  openai.Items
	took   time.Duration
	timing backends.Timing

	raw    []byte // the whole answer, to be relayed as it is
	kind   string
	header backends.Header
}

// split gives every segment its rows, and answers the callers that have all. It
// reports whether that was everybody, so that nothing of the text is kept.
func (b *Batcher) split(w *worker, a answer) (all bool) {
	all = true
	rows := a.items.Rows
	w.shares = w.shares[:0]
	for _, s := range w.segs {
		w.shares = append(w.shares, s.Tokens)
	}
	openai.Apportion(w.shares, a.items.Prompt)
	for i, s := range w.segs {
		t := s.Work.Load.(*ticket)
		n := s.To - s.From
		tokens := t.prompt.Add(int64(w.shares[i]))
		if a.raw != nil {
			t.reply = backends.Reply{Status: 200, ContentType: a.kind, Header: a.header}
			t.answer(&a, s.Work.Arrival, a.raw)
			return false
		}
		copy(t.rows[s.From:s.To], rows[:n])
		rows = rows[n:]
		if t.missing.Add(int64(-n)) > 0 {
			all = false
			continue
		}
		size := 256 + len(b.opt.Model)
		for _, row := range t.rows {
			size += len(row)*3/2 + 64
		}
		items := a.items
		items.Rows = t.rows
		text, err := openai.AppendAnswer(make([]byte, 0, size), t.req.Endpoint, items,
			openai.Answer{ID: t.req.ID, Model: b.opt.Model, PromptTokens: int(tokens), Base64: t.req.Base64})
		if err != nil {
			t.end(nil, fmt.Errorf("replica %s: %w", a.batch.Replica.ID, err))
			continue
		}
		t.reply = backends.Reply{Status: 200, ContentType: "application/json"}
		t.answer(&a, s.Work.Arrival, text)
	}
	return all
}

// answer ends t with text, of which it has the last part.
func (t *ticket) answer(a *answer, arrival time.Time, text []byte) {
	t.body.Reset(text)
	timing := a.timing
	timing.Queue = a.batch.At.Sub(arrival)
	timing.Batch = min(a.batch.Held, timing.Queue)
	timing.Replica, timing.BatchRows, timing.PromptTokens = a.batch.Replica.ID, a.batch.Rows, int(t.prompt.Load())
	t.reply.Body, t.reply.Timing = &t.body, timing
	t.end(&t.reply, nil)
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
	switch {
	case errors.Is(err, errUnfit):
		return Rejected
	case errors.Is(err, backends.ErrUnavailable):
		return Declined
	}
	return Broken
}
