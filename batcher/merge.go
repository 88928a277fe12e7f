package batcher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/tidwall/gjson"

	"aloft/backends"
	"aloft/backends/openai"
)

// maxReply bounds a merged call's answer in memory: 2,048 rows of 4,096 numbers
// in decimal stay below it.
const maxReply = 256 << 20

// body is an answer that lies in memory.
func body(b []byte) io.ReadCloser { return io.NopCloser(bytes.NewReader(b)) }

// merged makes one engine call for all of batch's rows and hands each caller its
// own.
func (b *Batcher) merged(ctx context.Context, batch *Batch) {
	start := time.Now()
	// A caller may have left since the batch was formed; its rows stay home.
	var segs []Seg
	var reqs []*backends.Request
	for _, s := range batch.Segs {
		if t := s.Work.Load.(*ticket); t.ctx.Err() == nil {
			part := *t.req
			part.Inputs = t.req.Inputs[s.From:s.To]
			segs, reqs = append(segs, s), append(reqs, &part)
		}
	}
	if len(segs) == 0 {
		b.tell(event{kind: evDone, batch: batch, result: Result{Outcome: Dropped, Err: backends.ErrClientGone}})
		return
	}
	rows, prompt, err := b.embed(ctx, batch, reqs)
	took := time.Since(start)
	r := Result{Took: took, Err: err, Outcome: outcome(ctx, err)}
	b.broken(batch, r.Outcome, err)
	if err == nil {
		b.split(answer{batch, rows, prompt, took}, segs)
	}
	b.tell(event{kind: evDone, batch: batch, result: r})
}

// embed sends reqs as one call and returns the raw vector of each row and the
// engine's count of prompt tokens, -1 when it gave none.
func (b *Batcher) embed(ctx context.Context, batch *Batch, reqs []*backends.Request) ([][]byte, int, error) {
	n := 0
	for _, r := range reqs {
		n += len(r.Inputs)
	}
	call := &backends.Call{
		Path: reqs[0].Endpoint.Path(), ID: reqs[0].ID,
		Body: openai.AppendMergedEmbeddings(nil, gjson.GetBytes(reqs[0].Body, "model").Str, reqs),
	}
	reply, err := batch.Replica.Backend.Do(ctx, call)
	if err != nil {
		return nil, 0, fmt.Errorf("replica %s: %w", batch.Replica.ID, err)
	}
	if reply.Status != 200 {
		return nil, 0, refusal(reply)
	}
	text, err := io.ReadAll(io.LimitReader(reply.Body, maxReply+1))
	reply.Body.Close()
	if err == nil && len(text) > maxReply {
		err = fmt.Errorf("more than %d bytes", maxReply)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("replica %s: read answer: %w: %w", batch.Replica.ID, backends.ErrBadReply, err)
	}
	rows, prompt, err := openai.SplitEmbeddings(text, n)
	if err == nil && len(rows) != n {
		err = fmt.Errorf("%w: %d vectors for %d rows", backends.ErrBadReply, len(rows), n)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("replica %s: %w", batch.Replica.ID, err)
	}
	return rows, prompt, nil
}

// answer is an engine's answer to a merged call.
type answer struct {
	batch  *Batch
	rows   [][]byte
	prompt int // tokens; -1 = not said
	took   time.Duration
}

// split gives every segment its rows, and answers the callers that have all.
func (b *Batcher) split(a answer, segs []Seg) {
	batch, rows := a.batch, a.rows
	counts := apportion(a.prompt, segs)
	for i, s := range segs {
		t := s.Work.Load.(*ticket)
		n := s.To - s.From
		copy(t.rows[s.From:s.To], rows[:n])
		rows = rows[n:]
		tokens := t.prompt.Add(int64(counts[i]))
		if t.missing.Add(int64(-n)) > 0 {
			continue
		}
		text, err := openai.AppendEmbeddings(nil, t.rows, openai.EmbeddingsReply{Model: b.opt.Model, PromptTokens: int(tokens), Base64: t.req.Base64})
		if err != nil {
			t.end(nil, fmt.Errorf("replica %s: %w", batch.Replica.ID, err))
			continue
		}
		t.end(&backends.Reply{
			Status: 200, ContentType: "application/json", Body: body(text),
			Timing: backends.Timing{
				Queue: batch.At.Sub(s.Work.Arrival), Batch: min(batch.Held, batch.At.Sub(s.Work.Arrival)), Engine: a.took,
				Replica: batch.Replica.ID, BatchRows: batch.Rows, PromptTokens: int(tokens),
			},
		}, nil)
	}
}

// apportion divides the engine's token count over the segments in proportion to
// our own counts, so that the shares sum to it; without a count (-1) our own
// stand.
func apportion(total int, segs []Seg) []int {
	shares := make([]int, len(segs))
	sum := 0
	for _, s := range segs {
		sum += s.Tokens
	}
	before, given := 0, 0
	for i, s := range segs {
		shares[i] = s.Tokens
		if total >= 0 {
			before += s.Tokens
			shares[i] = int(int64(total)*int64(before)/int64(sum)) - given
			given += shares[i]
		}
	}
	return shares
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
	var s *statusError
	switch {
	case err == nil:
		return Answered
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
	return Broken
}
