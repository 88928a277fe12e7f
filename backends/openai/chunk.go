package openai

import "strconv"

// Chunk is what a relay needs to know of one streamed payload.
type Chunk struct {
	Content   bool // text, reasoning, refusal or a tool call: no retry from here on
	Finished  bool // a choice has a finish_reason
	UsageOnly bool // no choices, only usage: the extra frame of include_usage
	Failed    bool // an error instead of a chunk
	Last      bool // the stream ends properly with this event (backends.Endpoint.Marked)
	// Choices are those of which the chunk has anything, Ended those that it gives
	// a finish_reason: sets of bits by index. Beyond 63 they share a bit.
	Choices, Ended uint64
	// Tokens as far as the chunk says, else 0. Counted: it gives CompletionTokens,
	// be it as 0.
	PromptTokens, CompletionTokens int
	Counted                        bool
}

func (c *Chunk) meter(u Usage) {
	c.PromptTokens, c.CompletionTokens, c.Counted = u.Prompt, u.Completion, u.Counted
}

// scanChunk reads the facts of a payload. What is not a chunk gives the zero
// Chunk. It does not validate: it runs once per token, and a relay passes the
// bytes on either way.
func scanChunk(data []byte) (c Chunk) {
	w := walk{data: data}
	if !w.enter('{') {
		return c
	}
	choices, sawChoices, sawUsage := 0, false, false
	for key := w.key(); key != nil; key = w.key() {
		switch text(key) {
		case "error":
			c.Failed = w.peek() != 'n' || c.Failed
			w.skip()
		case "object":
			c.Failed = text(w.skip()) == "error" || c.Failed // vLLM before 0.10
		case "usage":
			var u Usage
			if u, sawUsage = usage(&w); sawUsage {
				c.meter(u)
			}
		case "choices":
			sawChoices = true
			if !w.enter('[') {
				w.skip()
				continue
			}
			for ; w.item(); choices++ {
				scanChoice(&w, &c)
			}
		default:
			w.skip()
		}
	}
	c.UsageOnly = sawChoices && choices == 0 && sawUsage
	return c
}

func scanChoice(w *walk, c *Chunk) {
	if !w.enter('{') {
		w.skip()
		return
	}
	index, ended := 0, false
	for key := w.key(); key != nil; key = w.key() {
		switch text(key) {
		case "index":
			index, _ = count(w.skip())
		case "finish_reason":
			ended = w.peek() == '"'
			w.skip()
		case "text":
			c.Content = w.filled() || c.Content
		case "delta": // everything but the role is something the client has seen
			c.Content = w.member("role") || c.Content
		default:
			w.skip()
		}
	}
	bit := uint64(1) << min(index, 63)
	c.Choices |= bit
	if ended {
		c.Finished = true
		c.Ended |= bit
	}
}

// member takes the next value, and reports whether it is an object with a
// filled member other than the one called but.
func (w *walk) member(but string) (some bool) {
	if !w.enter('{') {
		w.skip()
		return false
	}
	for key := w.key(); key != nil; key = w.key() {
		some = w.filled() && text(key) != but || some
	}
	return some
}

// Usage is the token count of a reply. Counted: Completion was given, be it as 0.
type Usage struct {
	Prompt, Completion, Total int
	Counted                   bool
}

// ScanUsage finds the token counts of a whole reply: the top-level "usage", as
// OpenAI or Anthropic name its fields, or Cohere's "meta.tokens". One that has
// only a total (rerank) used it all for the prompt.
func ScanUsage(body []byte) (u Usage, ok bool) {
	var meta []byte
	w := walk{data: body}
	if !w.enter('{') {
		return u, false
	}
	for key := w.key(); key != nil; key = w.key() {
		switch text(key) {
		case "usage":
			if u, ok = usage(&w); ok {
				return u, true
			}
		case "meta":
			meta = w.skip()
		default:
			w.skip()
		}
	}
	return usage(&walk{data: lookup(meta, "tokens")})
}

// lookup returns the raw value of a member of obj, nil if there is none.
func lookup(obj []byte, name string) []byte {
	w := walk{data: obj}
	if !w.enter('{') {
		return nil
	}
	for key := w.key(); key != nil; key = w.key() {
		if v := w.skip(); text(key) == name {
			return v
		}
	}
	return nil
}

// usage takes the next value. What Anthropic's prompt cache read or wrote is
// not in its input_tokens (Messages API, "Tracking cache performance"), but is
// part of the prompt all the same.
func usage(w *walk) (u Usage, ok bool) {
	if !w.enter('{') {
		w.skip()
		return u, false
	}
	cached, input, total, parts := 0, false, false, false
	for key := w.key(); key != nil; key = w.key() {
		n, counts := count(w.skip())
		if !counts {
			continue // null, a detail object, or nonsense: as if not given
		}
		switch text(key) {
		case "prompt_tokens", "input_tokens":
			u.Prompt, input, parts, ok = n, true, true, true
		case "cache_read_input_tokens", "cache_creation_input_tokens":
			cached += n
		case "completion_tokens", "output_tokens":
			u.Completion, u.Counted, parts, ok = n, true, true, true
		case "total_tokens":
			u.Total, total, ok = n, true, true
		}
	}
	if input { // else it is the running count of a stream whose start gave both
		u.Prompt += cached
	}
	switch {
	case !total:
		u.Total = u.Prompt + u.Completion
	case !parts:
		u.Prompt = u.Total
	}
	return u, ok
}

// count reads a whole number that is not negative.
func count(raw []byte) (int, bool) {
	if len(raw) == 0 || raw[0] < '0' || raw[0] > '9' {
		return 0, false
	}
	n, err := strconv.Atoi(alias(raw))
	return n, err == nil
}
