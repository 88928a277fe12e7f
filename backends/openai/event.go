package openai

import (
	"strings"

	"aloft/backends"
)

// ScanEvent reads the facts of one whole event of a stream of e, as Events.Next
// returns it. An event of an unknown kind gives the zero Chunk, and is relayed
// like any other. It does not validate: it runs once per token.
func ScanEvent(e backends.Endpoint, event []byte) (c Chunk) {
	name, data := split(event)
	switch {
	case e == backends.Responses:
		return responsesEvent(name, data)
	case e == backends.Messages:
		return messagesEvent(name, data)
	case IsDone(data):
		return Chunk{Last: true}
	}
	c = scanChunk(data)
	if e != backends.Chat && e != backends.Completions && !c.Failed {
		// Audio and images: any event carries some, or the usage at the end.
		u, _ := ScanUsage(data)
		c.Content = len(data) > 0
		c.meter(u)
	}
	c.Failed = c.Failed || string(name) == "error"
	return c
}

func responsesEvent(name, data []byte) (c Chunk) {
	kind, delta, response := "", false, []byte(nil)
	if w := (walk{data: data}); w.enter('{') {
		for key := w.key(); key != nil; key = w.key() {
			switch text(key) {
			case "type":
				kind = text(w.skip())
			case "delta":
				delta = w.filled()
			case "response":
				response = w.skip()
			default:
				w.skip()
			}
		}
	}
	if kind == "" {
		kind = alias(name)
	}
	switch kind {
	case "error":
		c.Failed = true
	case "response.completed", "response.incomplete", "response.failed":
		c.Last, c.Failed = true, kind == "response.failed"
		c.Finished = !c.Failed
		u, _ := usage(&walk{data: lookup(response, "usage")})
		c.meter(u)
	default: // response.output_text.delta and its many kin
		c.Content = delta && strings.HasSuffix(kind, ".delta")
	}
	return c
}

func messagesEvent(name, data []byte) (c Chunk) {
	kind := ""
	var message, block, delta []byte
	var u Usage
	if w := (walk{data: data}); w.enter('{') {
		for key := w.key(); key != nil; key = w.key() {
			switch text(key) {
			case "type":
				kind = text(w.skip())
			case "message":
				message = w.skip()
			case "content_block":
				block = w.skip()
			case "delta":
				delta = w.skip()
			case "usage":
				u, _ = usage(&w)
			default:
				w.skip()
			}
		}
	}
	if kind == "" {
		kind = alias(name)
	}
	switch kind {
	case "error":
		c.Failed = true
	case "message_start":
		u, _ = usage(&walk{data: lookup(message, "usage")})
		c.meter(u)
		c.Counted = false // what follows is not in it
	case "content_block_start": // a tool call has its name here
		c.Content = text(lookup(block, "type")) == "tool_use"
	case "content_block_delta":
		c.Content = (&walk{data: delta}).member("type")
	case "message_delta":
		c.meter(u)
		c.Finished = (&walk{data: lookup(delta, "stop_reason")}).peek() == '"'
	case "message_stop":
		c.Last, c.Finished = true, true
	}
	return c
}
