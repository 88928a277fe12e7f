package openai

import (
	"bytes"
	"strings"

	"aloft/backends"

	"github.com/tidwall/gjson"
)

// ScanEvent reads the facts of one whole event of a stream of e, as Events.Next
// returns it. An event of an unknown kind gives the zero Chunk, and is relayed
// like any other. It does not validate: it runs once per token.
func ScanEvent(e backends.Endpoint, event []byte) (c Chunk) {
	data := Data(event)
	switch {
	case e == backends.Responses || e == backends.Messages:
		kind := gjson.Get(alias(data), "type").Str
		if kind == "" {
			kind = alias(eventName(event))
		}
		if e == backends.Responses {
			return responsesEvent(kind, data)
		}
		return messagesEvent(kind, data)
	case IsDone(data):
		return Chunk{Last: true}
	}
	c = ScanChunk(data)
	if e != backends.Chat && e != backends.Completions && !c.Failed {
		// Audio and images: any event carries some, or the usage at the end.
		u, _ := ScanUsage(data)
		c.Content, c.PromptTokens, c.CompletionTokens = len(data) > 0, u.Prompt, u.Completion
	}
	c.Failed = c.Failed || string(eventName(event)) == "error"
	return c
}

// eventName is the text of an event's last "event" line.
func eventName(event []byte) (name []byte) {
	for len(event) > 0 {
		var line []byte
		line, event, _ = bytes.Cut(event, []byte{'\n'})
		if value, ok := bytes.CutPrefix(line, []byte("event:")); ok {
			name = bytes.TrimPrefix(value, []byte{' '})
		}
	}
	return name
}

func responsesEvent(kind string, data []byte) (c Chunk) {
	switch kind {
	case "error":
		c.Failed = true
	case "response.completed", "response.incomplete", "response.failed":
		c.Last, c.Failed = true, kind == "response.failed"
		c.Finished = !c.Failed
		u, _ := usage(gjson.Get(alias(data), "response.usage"))
		c.PromptTokens, c.CompletionTokens = u.Prompt, u.Completion
	default: // response.output_text.delta and its many kin
		c.Content = strings.HasSuffix(kind, ".delta") && filled(gjson.Get(alias(data), "delta"))
	}
	return c
}

func messagesEvent(kind string, data []byte) (c Chunk) {
	get := func(path string) gjson.Result { return gjson.Get(alias(data), path) }
	var u Usage
	switch kind {
	case "error":
		c.Failed = true
	case "message_start":
		u, _ = usage(get("message.usage"))
	case "content_block_start": // a tool call has its name here
		c.Content = get("content_block.type").Str == "tool_use"
	case "content_block_delta":
		get("delta").ForEach(func(key, v gjson.Result) bool {
			c.Content = c.Content || key.Str != "type" && filled(v)
			return true
		})
	case "message_delta":
		u, _ = usage(get("usage"))
		c.Finished = get("delta.stop_reason").Type == gjson.String
	case "message_stop":
		c.Last, c.Finished = true, true
	}
	c.PromptTokens, c.CompletionTokens = u.Prompt, u.Completion
	return c
}
