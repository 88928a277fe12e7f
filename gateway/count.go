package gateway

import (
	"bytes"
	"fmt"
	"math"
	"sync"

	"aloft/backends"
	"aloft/backends/openai"
)

// prompt is what was counted of a request, for what learns from the engine's count.
type prompt struct {
	calibration *backends.Calibration // the model's; nil = none
	bytes       int                   // of its texts
	texts       int                   // how many
	tokens      int                   // of the texts alone, for a chat that is calibrated; else 0
	learned     bool
}

// count measures the prompt once, for queue, batch and bill.
func (a *ask) count(scan *openai.Scan, m *Model) error {
	req := &a.req
	texts := scan.Text
	if n := len(scan.Inputs); n > 0 {
		texts, req.InputTokens = scan.Inputs, a.row[:] // most have one row
		if n > 1 {
			req.InputTokens = make([]int, n)
		}
	}
	chat := templated(req.Endpoint)
	most := bound(m, req)
	longest := 0
	for i, text := range texts {
		n := a.tokens(text)
		if !chat {
			n += a.around(text)
			longest = max(longest, n)
		}
		if !chat {
			n = min(n, most)
		}
		if len(scan.Inputs) > 0 {
			req.InputTokens[i] = n
		}
		req.Tokens += n
	}
	if chat {
		longest = req.Tokens
		if a.prompt.calibration != nil && !a.guesses() {
			a.prompt.tokens = req.Tokens
			req.Tokens = a.prompt.calibration.Chat(req.Tokens, a.prompt.texts)
		}
	}
	if chat || len(scan.Inputs) == 0 && a.guesses() {
		req.Tokens = min(req.Tokens, most)
	}
	a.out.PromptTokens = req.Tokens
	if m.Context <= 0 || longest <= m.Context || most == m.Context {
		return nil
	}
	return &openai.Error{
		Status: 400, Type: "invalid_request_error", Code: "context_length_exceeded", Param: promptParam(req.Endpoint),
		Message: fmt.Sprintf("the prompt has %d tokens, but the context length of model %q is %d", longest, m.Name, m.Context),
	}
}

// bound is the most that a prompt counts for: the context, where the count is a
// guess or the engine may cut what is longer. Unbounded, one text of megabytes
// would count as minutes of demand and call every lent slice back, only to be
// refused.
func bound(m *Model, req *backends.Request) int {
	_, guessed := m.Counter.(learner)
	if m.Context > 0 && (guessed || len(req.Body) > m.Context && bytes.Contains(req.Body, []byte(`"trunc`))) {
		return m.Context
	}
	return math.MaxInt
}

// learner is a Counter that estimates and learns (backends.Ratio).
type learner interface{ Observe(bytes, tokens int) }

// guesses reports whether the model's counter is one.
func (a *ask) guesses() bool {
	_, ok := a.counter.(learner)
	return ok
}

// templated reports whether an engine puts the texts into the model's template:
// of what that adds nobody here knows.
func templated(e backends.Endpoint) bool {
	return e == backends.Chat || e == backends.Responses || e == backends.Messages
}

// around is what the engine adds to a prompt of its own: nothing to token ids.
func (a *ask) around(text []byte) int {
	_, _, pair := openai.Pair(a.req.Endpoint, text)
	if a.prompt.calibration == nil || len(text) == 0 || text[0] != '"' && !pair || a.guesses() {
		return 0
	}
	return a.prompt.calibration.Around
}

// unescaped is memory for texts that have escapes.
var unescaped = sync.Pool{New: func() any { return new([]byte) }}

// tokens counts a raw JSON value: a string, an array of token ids, or a pair.
func (a *ask) tokens(row []byte) int {
	if first, second, ok := openai.Pair(a.req.Endpoint, row); ok {
		return a.tokens(first) + a.tokens(second)
	}
	if len(row) == 0 || row[0] != '"' {
		return openai.CountIDs(row)
	}
	a.prompt.texts++
	if bytes.IndexByte(row, '\\') < 0 {
		text := row[1 : len(row)-1]
		a.prompt.bytes += len(text)
		return a.measure(text)
	}
	buf := unescaped.Get().(*[]byte)
	text := openai.AppendText((*buf)[:0], row)
	a.prompt.bytes += len(text)
	n := a.measure(text)
	if cap(text) <= wholeAlloc {
		*buf = text
	}
	unescaped.Put(buf)
	return n
}

// measure counts the tokens of a text.
func (a *ask) measure(text []byte) int {
	if a.counter == nil {
		return len(text)/4 + 1
	}
	return a.counter.Count(text)
}

// promptParam names the field that a prompt is in.
func promptParam(e backends.Endpoint) string {
	switch e {
	case backends.Chat, backends.Messages:
		return "messages"
	case backends.Completions, backends.Images, backends.Tokenize:
		return "prompt"
	case backends.Rerank:
		return "documents"
	case backends.Embeddings, backends.Responses, backends.Classify, backends.Moderations, backends.Speech:
		return "input"
	}
	return "" // several, or none
}

// meter notes the engine's token counts.
func (a *ask) meter(prompt, completion int) {
	if prompt > 0 {
		a.out.PromptTokens = prompt
	}
	if completion > 0 {
		a.out.CompletionTokens = completion
	}
}

// learn takes what the engine counted, 0 = nothing: never a guess of our own.
func (a *ask) learn(prompt int) {
	if prompt <= 0 || a.prompt.learned {
		return
	}
	a.prompt.learned = true
	if l, ok := a.counter.(learner); ok {
		l.Observe(a.prompt.bytes, prompt)
	}
	if c := a.prompt.calibration; c != nil {
		c.Observe(a.req.Tokens, prompt)
		if a.prompt.tokens > 0 {
			c.LearnChat(a.prompt.tokens, a.prompt.texts, prompt)
		}
	}
}
