package loadgen

import (
	"errors"
	"fmt"
)

// maxChoices bounds the choices of one answer; the API allows 128.
const maxChoices = 1024

var (
	errErrorEvent = errors.New("error event in the stream")
	errNotJSON    = errors.New("event of the stream is not a JSON object")
)

// stream is what the events of one answer have said so far. It is used again for
// the next answer: reset keeps its memory.
type stream struct {
	responses bool // the events of the responses API
	hear      bool // keep the text that is heard

	done, usage        bool
	broken             bool // a choice says that the server gave it up
	bounded            bool // a response: that it ended at the bound on its tokens
	prompt, completion int  // by usage
	begun              int  // events with a choice, or of a response, be they empty
	chunks             int  // choices in them that brought something for the reader
	visible            int  // of these: text, no reasoning and no tool's argument
	choices            []choice
	heard              []byte // the text of choice 0, as the inside of a JSON string
}

// choice is one of the answers in a stream.
type choice struct {
	index    int
	finished bool
}

func (st *stream) reset(responses, hear bool) {
	*st = stream{responses: responses, hear: hear, choices: st.choices[:0], heard: st.heard[:0]}
}

// take handles one event.
func (st *stream) take(name, data []byte) error {
	if st.done {
		return nil
	}
	if string(data) == "[DONE]" {
		st.done = !st.responses // which end with an event of their own, whatever follows it
		return nil
	}
	c := cursor{p: data}
	failed := string(name) == "error"
	if c.peek() == '{' {
		failed = st.event(&c, name) || failed
	} else {
		c.fail()
	}
	switch {
	case failed && (c.ended() || string(name) == "error"):
		return fmt.Errorf("%w: %s", errErrorEvent, data)
	case !c.ended():
		return errNotJSON
	case len(st.choices) > maxChoices:
		return fmt.Errorf("%w: more than %d choices", errNotJSON, maxChoices)
	}
	return nil
}

// event walks over the object and reports whether it says that the answer failed.
func (st *stream) event(c *cursor, name []byte) (failed bool) {
	var delta []byte
	kind := name
	c.enter('{')
	for key, ok := c.key(); ok; key, ok = c.key() {
		switch string(key) {
		case "choices":
			st.choicesOf(c)
		case "usage":
			st.count(c)
		case "error":
			b := c.peek()
			if text := c.text(); b == '{' || len(text) > 0 {
				failed = true
			}
		case "object":
			failed = string(c.text()) == "error" || failed
		case "type":
			if t := c.text(); t != nil {
				kind = t
			}
		case "delta":
			delta = c.text()
		case "response":
			st.response(c)
		default:
			c.skip()
		}
	}
	if st.responses {
		failed = st.named(kind, delta) || failed
	}
	return failed || st.broken
}

// named handles an event of the responses API by its type.
func (st *stream) named(kind, delta []byte) (failed bool) {
	st.begun++
	switch string(kind) {
	case "response.output_text.delta", "response.refusal.delta":
		if len(delta) > 0 {
			st.chunks, st.visible = st.chunks+1, st.visible+1
			st.listen(delta)
		}
	case "response.reasoning_text.delta", "response.reasoning_summary_text.delta",
		"response.function_call_arguments.delta", "response.custom_tool_call_input.delta", "response.mcp_call_arguments.delta":
		if len(delta) > 0 {
			st.chunks++
		}
	case "response.completed":
		st.done = true
	case "response.incomplete":
		st.done = st.bounded
	case "response.failed", "response.cancelled", "error":
		return true
	}
	return false
}

func (st *stream) listen(text []byte) {
	if st.hear {
		st.heard = appendSaid(st.heard, text)
	}
}

// response handles the object that the first and the last event of the responses
// API carry.
func (st *stream) response(c *cursor) {
	if !c.enter('{') {
		return
	}
	for key, ok := c.key(); ok; key, ok = c.key() {
		switch string(key) {
		case "usage":
			st.count(c)
		case "incomplete_details":
			st.incomplete(c)
		default:
			c.skip()
		}
	}
}

// incomplete handles why a response is: at the bound on its tokens it is what was
// asked for, as a choice with the finish_reason "length" is.
func (st *stream) incomplete(c *cursor) {
	if !c.enter('{') {
		return
	}
	for key, ok := c.key(); ok; key, ok = c.key() {
		if string(key) == "reason" {
			st.bounded = string(c.text()) == "max_output_tokens"
		} else {
			c.skip()
		}
	}
}

// maxCounted bounds the tokens that an answer may say it has: more is no count.
const maxCounted = 1_000_000_000

// gaveWay reports whether a finish_reason says that the server did not finish.
// Such are no part of the API: vLLM and SGLang send abort, vLLM error, and
// TensorRT-LLM cancelled and timeout.
func gaveWay[T []byte | string](finishReason T) bool {
	switch string(finishReason) {
	case "abort", "error", "cancelled", "timeout":
		return true
	}
	return false
}

// count handles usage. Where it comes with every event the last one stands.
func (st *stream) count(c *cursor) {
	if !c.enter('{') {
		return
	}
	for key, ok := c.key(); ok; key, ok = c.key() {
		switch string(key) {
		case "prompt_tokens", "input_tokens":
			if n, ok := c.whole(); ok && n >= 0 && n <= maxCounted {
				st.prompt = n
			}
		case "completion_tokens", "output_tokens":
			if n, ok := c.whole(); ok && n >= 0 && n <= maxCounted {
				st.completion, st.usage = n, true
			}
		default:
			c.skip()
		}
	}
}

func (st *stream) choicesOf(c *cursor) {
	if !c.enter('[') {
		return
	}
	for c.item() {
		st.begun++
		st.choice(c)
	}
}

// part is what a choice of one event brought.
type part struct{ any, visible bool }

// choice handles one choice of an event. A chunk with only a role, which many
// servers send before they have begun, brings nothing.
func (st *stream) choice(c *cursor) {
	if !c.enter('{') {
		return
	}
	var got part
	index, finished, heard := 0, false, len(st.heard)
	for key, ok := c.key(); ok; key, ok = c.key() {
		switch string(key) {
		case "index":
			index, _ = c.whole()
		case "finish_reason":
			reason := c.text()
			finished = len(reason) > 0 || finished
			st.broken = gaveWay(reason) || st.broken
		case "text":
			st.visibleText(c, &got)
		case "delta":
			st.delta(c, &got)
		default:
			c.skip()
		}
	}
	if index != 0 {
		st.heard = st.heard[:heard]
	}
	if got.any {
		st.chunks++
	}
	if got.visible {
		st.visible++
	}
	for i := range st.choices {
		if st.choices[i].index == index {
			st.choices[i].finished = st.choices[i].finished || finished
			return
		}
	}
	if len(st.choices) <= maxChoices {
		st.choices = append(st.choices, choice{index, finished})
	}
}

func (st *stream) visibleText(c *cursor, got *part) {
	if text := c.text(); len(text) > 0 {
		got.any, got.visible = true, true
		st.listen(text)
	}
}

// delta handles what a chat's choice adds.
func (st *stream) delta(c *cursor, got *part) {
	if !c.enter('{') {
		return
	}
	for key, ok := c.key(); ok; key, ok = c.key() {
		switch string(key) {
		case "content", "refusal":
			st.visibleText(c, got)
		case "reasoning_content", "reasoning":
			got.any = len(c.text()) > 0 || got.any
		case "function_call":
			function(c, got)
		case "tool_calls":
			if !c.enter('[') {
				continue
			}
			for c.item() {
				toolCall(c, got)
			}
		default:
			c.skip()
		}
	}
}

func toolCall(c *cursor, got *part) {
	if !c.enter('{') {
		return
	}
	for key, ok := c.key(); ok; key, ok = c.key() {
		if string(key) == "function" {
			function(c, got)
		} else {
			c.skip()
		}
	}
}

func function(c *cursor, got *part) {
	if !c.enter('{') {
		return
	}
	for key, ok := c.key(); ok; key, ok = c.key() {
		if k := string(key); k == "name" || k == "arguments" {
			got.any = len(c.text()) > 0 || got.any
		} else {
			c.skip()
		}
	}
}

// class says which failure an error of take or feed is.
func (st *stream) class(err error) Outcome {
	if errors.Is(err, errErrorEvent) {
		return StreamError
	}
	return Protocol
}

// complete checks that a stream that has ended had come to its end, and brought
// as many choices as were asked for. err is what the last read said.
func (st *stream) complete(want int, err error) (Outcome, error) {
	switch {
	case !st.done && st.responses:
		return Truncated, fmt.Errorf("stream ended without response.completed: %w", err)
	case !st.done:
		return Truncated, fmt.Errorf("stream ended without [DONE]: %w", err)
	case st.responses:
		return OK, nil
	case len(st.choices) == 0:
		return Truncated, errors.New("stream ended without a choice")
	}
	for _, c := range st.choices {
		if !c.finished {
			return Truncated, fmt.Errorf("stream ended without finish_reason for choice %d", c.index)
		}
	}
	if len(st.choices) != want {
		return Protocol, fmt.Errorf("%d choices, want %d", len(st.choices), want)
	}
	return OK, nil
}
