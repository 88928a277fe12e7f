package llama

import (
	"context"
	"fmt"
	"math"

	yzma "github.com/hybridgroup/yzma/pkg/llama"

	"aloft/backends"
	"aloft/backends/openai"
	"aloft/backends/serve"
)

// embedCall is one embeddings call on its way through the loop.
type embedCall struct {
	ctx    context.Context
	req    *serve.EmbedRequest
	rows   [][]yzma.Token
	result serve.EmbedResult
	done   chan error // receives once
}

// take starts to serve a call: its rows become tokens.
func (l *loop) take(c *embedCall) {
	l.e.queued.Add(-1)
	err := errAsleepIf(l.md == nil)
	if err == nil && l.md.emb == nil {
		l.md.emb, err = l.md.newEmbedding() // a generating model's first embeddings call
	}
	for i := 0; i < len(c.req.Inputs) && err == nil && c.ctx.Err() == nil; i++ {
		err = l.md.row(c, i)
	}
	if err != nil {
		c.done <- err
		return
	}
	l.embed = c
}

func (md *model) row(c *embedCall, i int) (err error) {
	var tokens []yzma.Token
	if in := c.req.Inputs[i]; in.Tokens != nil {
		tokens, err = md.given(in.Tokens)
	} else {
		tokens, err = md.tokenize(in.Text, false)
	}
	if err == nil && len(tokens) == 0 {
		err = openai.Invalid("input", openai.CodeValue, "input %d has no tokens", i)
	}
	if err != nil {
		return fmt.Errorf("input %d: %w", i, err)
	}
	c.rows = append(c.rows, tokens)
	c.result.PromptTokens += len(tokens)
	return nil
}

// embedStep computes one batch of the call being served; a call that is larger
// than a batch takes several, with generation steps between them.
func (l *loop) embedStep() {
	c := l.embed
	if c == nil {
		return
	}
	err := context.Cause(c.ctx)
	if err == nil {
		err = l.md.embedBatch(c)
	}
	if err != nil || len(c.result.Vectors) == len(c.rows) {
		l.embed = nil
		c.done <- err
	}
}

// embedBatch computes as many of the call's next rows as fit one batch.
func (md *model) embedBatch(c *embedCall) error {
	b, first := &md.emb.batch, len(c.result.Vectors)
	_ = b.Clear()
	n := 0
	for first+n < len(c.rows) && n < maxEmbedRows && int(b.NTokens)+len(c.rows[first+n]) <= md.embedTokens() {
		for pos, token := range c.rows[first+n] {
			if err := b.Add(token, yzma.Pos(pos), []yzma.SeqId{yzma.SeqId(n)}, true); err != nil {
				return fmt.Errorf("form a batch: %w", err)
			}
		}
		n++
	}
	compute := yzma.Decode
	if md.emb.mem == 0 {
		compute = yzma.Encode
	} else {
		_ = yzma.MemoryClear(md.emb.mem, false)
	}
	if code, err := compute(md.emb.ctx, *b); err != nil || code != 0 {
		return fmt.Errorf("llama.cpp could not embed a batch of %d tokens (code %d): %w", b.NTokens, code, backends.ErrBadReply)
	}
	for i := range n {
		v, err := yzma.GetEmbeddingsSeq(md.emb.ctx, yzma.SeqId(i), int32(md.dim))
		if err != nil || v == nil {
			return fmt.Errorf("llama.cpp gave no embedding for row %d: %w", first+i, backends.ErrBadReply)
		}
		c.result.Vectors = append(c.result.Vectors, unit(v, c.req.Dimensions))
	}
	return nil
}

// unit copies the first dims values (0 = all) of v, scaled to length 1.
func unit(v []float32, dims int) []float32 {
	if dims > 0 {
		v = v[:dims]
	}
	var sum float64
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	out := make([]float32, len(v))
	if sum == 0 || math.IsNaN(sum) || math.IsInf(sum, 0) {
		return out // a vector without direction; NaN would not survive JSON
	}
	scale := 1 / math.Sqrt(sum)
	for i, x := range v {
		out[i] = float32(float64(x) * scale)
	}
	return out
}
