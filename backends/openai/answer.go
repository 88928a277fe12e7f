package openai

import (
	"aloft/backends"

	"github.com/tidwall/gjson"
)

// answers are where the endpoints that generate put what they have generated,
// as gjson paths; what is no string counts as it stands (a tool's input).
var answers = map[backends.Endpoint][]string{
	backends.Chat: {"choices.#.message.content", "choices.#.message.reasoning_content", "choices.#.message.reasoning",
		"choices.#.message.refusal", "choices.#.message.tool_calls.#.function.arguments"},
	backends.Completions: {"choices.#.text"},
	backends.Responses:   {"output.#.content.#.text", "output.#.content.#.refusal", "output.#.summary.#.text", "output.#.arguments"},
	backends.Messages:    {"content.#.text", "content.#.thinking", "content.#.input"},
}

// AnswerText returns the texts that a whole answer holds, to be counted where an
// engine does not say its usage.
func AnswerText(e backends.Endpoint, body []byte) (out [][]byte) {
	var add func(v gjson.Result)
	add = func(v gjson.Result) {
		switch {
		case v.IsArray():
			v.ForEach(func(_, v gjson.Result) bool { add(v); return true })
		case v.Type == gjson.String && v.Str != "":
			out = append(out, []byte(v.Str))
		case v.IsObject():
			out = append(out, []byte(v.Raw))
		}
	}
	for _, path := range answers[e] {
		add(gjson.GetBytes(body, path))
	}
	return out
}
