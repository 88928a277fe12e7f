package synthetic

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"aloft/backends"
	"aloft/backends/serve"
)

// sequence is one generation on its way through decode.
type sequence struct {
	ctx    context.Context
	prompt int // tokens
	left   int // tokens still to generate
	kv     int // tokens of cache that it holds to its end
	// out gets one message a token. It has room for all, so decode never waits
	// for a caller; messages have no size, so the room costs nothing.
	out chan struct{}
}

// Generate implements serve.Engine.
func (e *engine) Generate(ctx context.Context, req *serve.GenerateRequest, emit func(serve.Piece) error) (serve.Finish, error) {
	prompt, promptTokens := promptOf(req)
	room := e.opt.Context - promptTokens
	if room < 1 {
		return serve.Finish{}, tooLong(promptTokens+1, e.opt.Context)
	}
	words, reason := e.answer(req, prompt, room)
	l := e.opt.Law
	s := &sequence{ctx: ctx, prompt: promptTokens, left: len(words), out: make(chan struct{}, len(words)),
		kv: l.KV(promptTokens + len(words))}
	if l.KVTokens > 0 && s.kv > l.KVTokens {
		return serve.Finish{}, tooLong(s.kv, l.KVTokens)
	}
	select {
	case e.join <- s:
	case <-ctx.Done():
		return serve.Finish{}, context.Cause(ctx)
	case <-e.over:
		return serve.Finish{}, backends.ErrDraining
	}
	for _, w := range words {
		select {
		case <-s.out:
		case <-ctx.Done():
			return serve.Finish{}, context.Cause(ctx)
		case <-e.over:
			return serve.Finish{}, backends.ErrDraining
		}
		if err := emit(serve.Piece{Text: w, Tokens: 1, Logprob: -0.1}); err != nil {
			return serve.Finish{}, err
		}
	}
	return serve.Finish{Reason: reason, PromptTokens: promptTokens, CompletionTokens: len(words)}, nil
}

// decode is the engine's one loop, continuous batching: each step takes in who
// waits while there are slots and cache, lasts as long as the law says, and
// gives every sequence a token. It owns all sequences.
func (e *engine) decode(ctx context.Context) {
	defer close(e.over)
	var waiting, running []*sequence
	var due time.Time
	for {
		if len(running)+len(waiting) == 0 {
			select {
			case s := <-e.join:
				waiting = append(waiting, s)
				due = time.Now()
			case <-ctx.Done():
				return
			}
		}
		waiting = e.newcomers(waiting)
		gone := func(s *sequence) bool { return s.ctx.Err() != nil || s.left == 0 }
		waiting, running = slices.DeleteFunc(waiting, gone), slices.DeleteFunc(running, gone)
		var prefill time.Duration
		waiting, running, prefill = e.admit(waiting, running)
		if len(running) == 0 {
			continue // everybody left
		}
		// Steps follow each other by the law's clock, so that late wake-ups of
		// this goroutine do not add up; a long stall is not caught up, though.
		if now := time.Now(); now.Sub(due) > 100*time.Millisecond {
			due = now
		}
		due = due.Add(prefill + e.opt.Law.Step(len(running)))
		if e.wait(ctx, due) != nil {
			return
		}
		for _, s := range running {
			s.left--
			s.out <- struct{}{}
		}
	}
}

// newcomers takes in who is at the door, without waiting.
func (e *engine) newcomers(waiting []*sequence) []*sequence {
	for {
		select {
		case s := <-e.join:
			waiting = append(waiting, s)
		default:
			return waiting
		}
	}
}

// admit moves the head of the queue into the batch, in order: nobody overtakes,
// so a large prompt is not starved.
func (e *engine) admit(waiting, running []*sequence) (w, r []*sequence, prefill time.Duration) {
	used := 0
	for _, s := range running {
		used += s.kv
	}
	for len(waiting) > 0 && e.opt.Law.Fits(len(running), used, waiting[0].kv) {
		s := waiting[0]
		waiting, running = waiting[1:], append(running, s)
		used += s.kv
		prefill += e.opt.Law.Prefill(s.prompt)
	}
	return waiting, running, prefill
}

// promptOf is the text that the answer is made from, and the prompt's size:
// four tokens a message for its frame.
func promptOf(req *serve.GenerateRequest) (serve.Input, int) {
	if req.PromptIDs != nil {
		return serve.Input{Tokens: req.PromptIDs}, len(req.PromptIDs)
	}
	if !req.Chat {
		return serve.Input{Text: req.Prompt}, textTokens(req.Prompt)
	}
	var text strings.Builder
	n := 0
	for _, m := range req.Messages {
		text.WriteString(m.Content + "\n")
		n += 4 + textTokens(m.Content)
	}
	return serve.Input{Text: text.String()}, n
}

// answer repeats the prompt's words, from a place and of a length that the
// prompt's hash decides, up to a stop string or a limit. One word is one token.
// room is what the context leaves.
func (e *engine) answer(req *serve.GenerateRequest, prompt serve.Input, room int) (words []string, reason string) {
	h := hash(prompt)
	n := e.opt.OutputTokens
	if n == 0 {
		n = 16 + int(h%128)
	}
	reason = "stop"
	limit := room
	if req.MaxTokens > 0 {
		limit = min(limit, req.MaxTokens)
	}
	if n > limit {
		n, reason = limit, "length"
	}
	from := strings.Fields(prompt.Text)
	if len(from) == 0 {
		from = []string{"synthetic", "engine", "no", "model"}
	}
	var text strings.Builder
	for i := range n {
		w := from[(int(h%uint64(len(from)))+i)%len(from)]
		if i > 0 {
			w = " " + w
		}
		before := text.Len()
		text.WriteString(w)
		words = append(words, w)
		for _, stop := range req.Stop {
			if at := strings.Index(text.String(), stop); at >= 0 {
				return cutAt(words, at, before), "stop"
			}
		}
	}
	return words, reason
}

// cutAt drops the text from byte at on; the last word begins at byte before. A
// stop string may begin in an earlier word. Words stay in the list, empty: they
// were generated and cost their step.
func cutAt(words []string, at, before int) []string {
	for i := len(words) - 1; i >= 0; i-- {
		if before >= at {
			words[i] = ""
		} else {
			words[i] = words[i][:at-before]
			break
		}
		if i > 0 {
			before -= len(words[i-1])
		}
	}
	return words
}

func tooLong(tokens, limit int) error {
	return fmt.Errorf("%d tokens, %d fit: %w", tokens, limit, backends.ErrTooLong)
}
