package openai

import (
	"strconv"

	"github.com/tidwall/gjson"
)

// Chunk is what a relay needs to know of one streamed payload.
type Chunk struct {
	Content   bool // text, reasoning, refusal or a tool call: no retry from here on
	Finished  bool // a choice has a finish_reason
	UsageOnly bool // no choices, only usage: the extra frame of include_usage
	Failed    bool // an error instead of a chunk
	Last      bool // the stream ends properly with this event (backends.Endpoint.Marked)
	// Tokens as far as the chunk says, else 0.
	PromptTokens, CompletionTokens int
}

// ScanChunk reads the facts of a payload. What is not a chunk gives the zero
// Chunk. It does not validate: it runs once per token, and a relay passes the
// bytes on either way.
func ScanChunk(data []byte) (c Chunk) {
	choices, sawChoices, sawUsage := 0, false, false
	root := gjson.Parse(alias(data))
	if !root.IsObject() {
		return c
	}
	root.ForEach(func(key, v gjson.Result) bool {
		switch key.Str {
		case "error":
			c.Failed = c.Failed || v.Type != gjson.Null
		case "object":
			c.Failed = c.Failed || v.Str == "error" // vLLM before 0.10
		case "usage":
			var u Usage
			if u, sawUsage = usage(v); sawUsage {
				c.PromptTokens, c.CompletionTokens = u.Prompt, u.Completion
			}
		case "choices":
			sawChoices = true
			if v.IsArray() {
				v.ForEach(func(_, choice gjson.Result) bool {
					choices++
					scanChoice(choice, &c)
					return true
				})
			}
		}
		return true
	})
	c.UsageOnly = sawChoices && choices == 0 && sawUsage
	return c
}

func scanChoice(choice gjson.Result, c *Chunk) {
	if !choice.IsObject() {
		return
	}
	choice.ForEach(func(key, v gjson.Result) bool {
		switch key.Str {
		case "finish_reason":
			c.Finished = c.Finished || v.Type == gjson.String
		case "text":
			c.Content = c.Content || filled(v)
		case "delta":
			if v.IsObject() {
				v.ForEach(func(key, v gjson.Result) bool {
					// Everything but the role is something the client has seen.
					c.Content = c.Content || key.Str != "role" && filled(v)
					return true
				})
			}
		}
		return true
	})
}

// filled reports whether v is more than null, "", [] or {}.
func filled(v gjson.Result) bool {
	switch v.Type {
	case gjson.Null:
		return false
	case gjson.String:
		return v.Str != ""
	case gjson.JSON:
		some := false
		v.ForEach(func(_, _ gjson.Result) bool {
			some = true
			return false
		})
		return some
	}
	return true
}

// Usage is the token count of a reply.
type Usage struct{ Prompt, Completion, Total int }

// ScanUsage finds the token counts of a whole reply: the top-level "usage", as
// OpenAI or Anthropic name its fields, or Cohere's "meta.tokens". One that has
// only a total (rerank) used it all for the prompt.
func ScanUsage(body []byte) (Usage, bool) {
	if u, ok := usage(gjson.Get(alias(body), "usage")); ok {
		return u, true
	}
	return usage(gjson.Get(alias(body), "meta.tokens"))
}

func usage(v gjson.Result) (u Usage, ok bool) {
	if !v.IsObject() {
		return u, false
	}
	total, parts := false, false
	v.ForEach(func(key, v gjson.Result) bool {
		n, err := strconv.Atoi(v.Raw)
		if err != nil || n < 0 {
			return true // null, a detail object, or nonsense: as if not given
		}
		switch key.Str {
		case "prompt_tokens", "input_tokens":
			u.Prompt, parts, ok = n, true, true
		case "completion_tokens", "output_tokens":
			u.Completion, parts, ok = n, true, true
		case "total_tokens":
			u.Total, total, ok = n, true, true
		}
		return true
	})
	switch {
	case !total:
		u.Total = u.Prompt + u.Completion
	case !parts:
		u.Prompt = u.Total
	}
	return u, ok
}
