package gateway

import (
	"fmt"
	"slices"

	"aloft/backends"
	"aloft/backends/openai"
)

// count measures the prompt once, for queue, batch and bill.
func (a *ask) count(scan *openai.Scan, m *Model) error {
	req := &a.req
	if len(scan.Inputs) > 0 {
		req.InputTokens = a.row[:] // most have one row
		if n := len(scan.Inputs); n > 1 {
			req.InputTokens = make([]int, n)
		}
		for i, row := range scan.Inputs {
			req.InputTokens[i] = bounded(m, a.tokens(row))
			req.Tokens += req.InputTokens[i]
		}
	} else {
		for _, text := range scan.Text {
			req.Tokens += a.tokens(text)
		}
		req.Tokens = bounded(m, req.Tokens)
	}
	a.out.PromptTokens = req.Tokens
	longest := req.Tokens
	if len(req.InputTokens) > 0 {
		longest = slices.Max(req.InputTokens)
	}
	if m.Context <= 0 || longest <= m.Context {
		return nil
	}
	return &openai.Error{
		Status: 400, Type: "invalid_request_error", Code: "context_length_exceeded", Param: promptParam(req.Endpoint),
		Message: fmt.Sprintf("the prompt has %d tokens, but the context length of model %q is %d", longest, m.Name, m.Context),
	}
}

// bounded keeps a guess within the context: the engine refuses or cuts what is
// longer. Unbounded, one text of megabytes would count as minutes of demand and
// call every lent slice back, only to be refused.
func bounded(m *Model, tokens int) int {
	if _, guessed := m.Counter.(learner); guessed && m.Context > 0 {
		return min(tokens, m.Context)
	}
	return tokens
}

// learner is a Counter that estimates and learns (backends.Ratio).
type learner interface{ Observe(bytes, tokens int) }

// tokens counts a raw JSON value: a string, or an array of token ids.
func (a *ask) tokens(row []byte) int {
	if len(row) == 0 || row[0] != '"' {
		return openai.CountIDs(row)
	}
	text := unquote(row)
	a.text += len(text)
	return a.measure(text)
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

// learn lets the model's counter learn from what the engine counted, 0 = nothing:
// never from a guess of its own.
func (a *ask) learn(prompt int) {
	if l, ok := a.counter.(learner); ok && prompt > 0 {
		l.Observe(a.text, prompt)
	}
}
