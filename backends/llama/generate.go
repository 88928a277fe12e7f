package llama

import (
	"context"
	"fmt"
	"slices"

	yzma "github.com/hybridgroup/yzma/pkg/llama"

	"aloft/backends"
	"aloft/backends/openai"
	"aloft/backends/serve"
)

// sequence is one generation. After it has been sent to the loop, everything
// but ctx and out belongs to the loop.
type sequence struct {
	ctx context.Context
	req *serve.GenerateRequest
	out *mailbox

	sampler sampler
	hold    holdback
	prompt  []yzma.Token
	slot    int // sequence id while it has one
	order   int // of admission
	limit   int // tokens it may generate
	made    int // tokens it has generated
	pos     int // tokens in the KV cache
	next    yzma.Token
	take    int  // tokens in the step being formed
	row     int  // where in the batch its logits are, -1 = none
	scores  bool // each token of the prompt needs logits
	scored  int  // tokens of the prompt that have been echoed
	first   int  // where in the batch its tokens of this step begin
}

// scoreRows is how many tokens of echoed prompts a step may score, over all
// sequences: each needs logits of its own, of vocabulary x 4 bytes.
const scoreRows = 32

// prefilling reports whether part of the prompt is still to be read.
func (s *sequence) prefilling() bool { return s.pos < len(s.prompt) }

// arrive turns a new call's prompt into tokens and lets it wait for a slot.
func (l *loop) arrive(s *sequence) {
	err := errAsleepIf(l.md == nil)
	if err == nil {
		err = l.prepare(s)
	}
	if err != nil {
		l.e.queued.Add(-1)
		s.out.close(ending{err: err})
		return
	}
	l.waiting = append(l.waiting, s)
}

// errAsleepIf keeps the typed nil out of an error variable.
func errAsleepIf(asleep bool) error {
	if asleep {
		return errAsleep
	}
	return nil
}

func (l *loop) prepare(s *sequence) (err error) {
	text := s.req.Prompt
	if s.req.Chat {
		if text, err = l.md.chatPrompt(s.req.Messages); err != nil {
			return err
		}
	}
	if s.req.PromptIDs != nil {
		s.prompt, err = l.md.given(s.req.PromptIDs)
	} else {
		s.prompt, err = l.md.tokenize(text, true)
	}
	switch {
	case err != nil:
		return err
	case len(s.prompt) == 0:
		return openai.Invalid("prompt", openai.CodeValue, "the prompt has no tokens")
	case len(s.prompt) >= l.md.context:
		return fmt.Errorf("a prompt of %d tokens leaves no room in a context of %d: %w", len(s.prompt), l.md.context, backends.ErrTooLong)
	}
	s.scores = s.req.Echo && s.req.Logprobs >= 0
	s.limit = l.md.context - len(s.prompt)
	if s.req.MaxTokens > 0 {
		s.limit = min(s.limit, s.req.MaxTokens)
	}
	return nil
}

// reap forgets cancelled calls and frees their slots.
func (l *loop) reap() {
	kept := l.waiting[:0]
	for _, s := range l.waiting {
		if s.ctx.Err() != nil {
			l.e.queued.Add(-1)
			continue
		}
		kept = append(kept, s)
	}
	clear(l.waiting[len(kept):])
	l.waiting = kept
	for _, s := range l.slots {
		if s != nil && s.ctx.Err() != nil {
			l.finish(s, ending{err: context.Cause(s.ctx)})
		}
	}
}

// admit gives free slots to waiting calls, the lowest first: llama.cpp computes
// neighbouring sequence ids together, so holes cost extra passes.
func (l *loop) admit() {
	for i := range l.slots {
		if len(l.waiting) == 0 {
			return
		}
		if l.slots[i] != nil {
			continue
		}
		s := l.waiting[0]
		l.waiting[0] = nil
		l.waiting = l.waiting[1:]
		l.e.queued.Add(-1)
		l.admitted++
		s.slot, s.order = i, l.admitted
		l.slots[i] = s
	}
}

// finish ends a generation and frees its slot and its KV cells.
func (l *loop) finish(s *sequence, end ending) {
	end.finish.PromptTokens, end.finish.CompletionTokens = len(s.prompt), s.made
	l.slots[s.slot] = nil
	_, _ = yzma.MemorySeqRm(l.md.gen.mem, yzma.SeqId(s.slot), -1, -1) // a whole sequence: cannot fail
	s.out.close(end)
}

// step decodes one batch over all sequences and samples from it.
func (l *loop) step() {
	if l.md == nil || l.md.gen == nil {
		return
	}
	allot(l.slots, l.e.opt.BatchTokens)
	b := &l.md.gen.batch
	_ = b.Clear()
	for _, s := range l.slots {
		if s != nil {
			s.row = -1
			l.add(b, s)
		}
	}
	if b.NTokens == 0 {
		return
	}
	if code, err := yzma.Decode(l.md.gen.ctx, *b); err != nil || code != 0 {
		l.fail(fmt.Errorf("llama.cpp could not decode a batch of %d tokens (code %d): %w", b.NTokens, code, backends.ErrBadReply))
		return
	}
	for _, s := range l.slots {
		if s != nil && s.req.Echo && s.scored < len(s.prompt) {
			if err := l.echo(s); err != nil {
				l.finish(s, ending{err: err})
				continue
			}
		}
		if s != nil && s.row >= 0 {
			l.sample(s)
		}
	}
}

// echo passes on the tokens of the prompt whose probability is known: the first,
// which has none, and each that follows one of this step.
func (l *loop) echo(s *sequence) error {
	if s.scored == 0 {
		s.out.put(serve.Piece{Text: l.md.piece(int(s.prompt[0])), Prompt: true, First: true})
		s.scored = 1
	}
	for begin := s.pos - s.take; s.scored <= s.pos && s.scored < len(s.prompt); s.scored++ {
		token := int(s.prompt[s.scored])
		piece := serve.Piece{Text: l.md.piece(token), Prompt: true}
		if s.scores {
			logits, err := yzma.GetLogitsIth(l.md.gen.ctx, int32(s.first+s.scored-1-begin), l.md.tokens)
			if err != nil || logits == nil {
				return fmt.Errorf("llama.cpp gave no logits: %w", backends.ErrBadReply)
			}
			piece.Logprob, piece.Top = l.logprobs(logits, token, s.req.Logprobs)
		}
		s.out.put(piece)
	}
	return nil
}

// allot sets what each sequence puts into a step of at most room tokens: one
// token for each that generates, the rest for prompts, oldest first. So a long
// prompt never keeps the others from their next token for more than a step.
func allot(slots []*sequence, room int) {
	var prompts []*sequence
	for _, s := range slots {
		switch {
		case s == nil:
		case s.prefilling():
			prompts = append(prompts, s)
		default:
			s.take = 1
			room--
		}
	}
	slices.SortFunc(prompts, func(a, b *sequence) int { return a.order - b.order })
	score := scoreRows
	for _, s := range prompts {
		s.take = min(room, len(s.prompt)-s.pos)
		if s.scores {
			s.take = min(s.take, score)
			score -= s.take
		}
		room -= s.take
	}
}

// add puts the sequence's next tokens into the batch.
func (l *loop) add(b *yzma.Batch, s *sequence) {
	seq := []yzma.SeqId{yzma.SeqId(s.slot)}
	s.first = int(b.NTokens)
	for range s.take {
		token, last := s.next, true
		if s.prefilling() {
			token, last = s.prompt[s.pos], s.pos == len(s.prompt)-1
		}
		if last {
			s.row = int(b.NTokens)
		}
		if err := b.Add(token, yzma.Pos(s.pos), seq, last || s.scores); err != nil {
			panic("BUG: step larger than its batch: " + err.Error())
		}
		s.pos++
	}
}

// fail ends every running generation: after a failed decode nobody knows what
// the cache holds.
func (l *loop) fail(err error) {
	l.e.log.Error("decode failed", "model", l.e.opt.Name, "error", err)
	for _, s := range l.slots {
		if s != nil {
			l.finish(s, ending{err: err})
		}
	}
	_ = yzma.MemoryClear(l.md.gen.mem, false)
}

// sample picks the sequence's next token and passes its text on.
func (l *loop) sample(s *sequence) {
	logits, err := yzma.GetLogitsIth(l.md.gen.ctx, int32(s.row), l.md.tokens)
	if err != nil || logits == nil {
		l.finish(s, ending{err: fmt.Errorf("llama.cpp gave no logits: %w", backends.ErrBadReply)})
		return
	}
	token := s.sampler.pick(logits)
	if yzma.VocabIsEOG(l.md.vocab, yzma.Token(token)) {
		s.hold.flush(s.out.put)
		l.finish(s, ending{finish: serve.Finish{Reason: "stop"}})
		return
	}
	s.made++
	s.next = yzma.Token(token)
	piece := serve.Piece{Text: l.md.piece(token), Tokens: 1}
	if s.req.Logprobs >= 0 {
		piece.Logprob, piece.Top = l.logprobs(logits, token, s.req.Logprobs)
	}
	if s.hold.push(piece, s.out.put) {
		l.finish(s, ending{finish: serve.Finish{Reason: "stop"}})
	} else if s.made == s.limit {
		s.hold.flush(s.out.put)
		l.finish(s, ending{finish: serve.Finish{Reason: "length"}})
	}
}

func (l *loop) logprobs(logits []float32, token, n int) (float64, []serve.TopLogprob) {
	p, best := logprobs(logits, token, n)
	top := make([]serve.TopLogprob, len(best))
	for i, c := range best {
		top[i] = serve.TopLogprob{Text: l.md.piece(c.token), Logprob: c.p}
	}
	return p, top
}
