package known

import (
	"fmt"
	"strings"
	"time"
)

// marks say what of an answer a write completes.
type marks uint8

const (
	chunky  marks = 1 << iota // an event with choices, be they empty
	content                   // something of the answer: TTFT ends here
	visible                   // something that a reader sees
)

// event is one event of a stream as text, and what is in it.
type event struct {
	text   string
	is     marks
	chunks int // with content
}

// Events as servers send them.
var (
	role    = event{data(`{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`), chunky, 0}
	word    = event{data(`{"choices":[{"index":0,"delta":{"content":"word "},"finish_reason":null}]}`), chunky | content | visible, 1}
	word1   = event{data(`{"choices":[{"index":1,"delta":{"content":"word "},"finish_reason":null}]}`), chunky | content | visible, 1}
	text    = event{data(`{"choices":[{"index":0,"text":"word ","finish_reason":null}]}`), chunky | content | visible, 1}
	thought = event{data(`{"choices":[{"index":0,"delta":{"reasoning_content":"hm "},"finish_reason":null}]}`), chunky | content, 1}
	call    = event{data(`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"look","arguments":""}}]},"finish_reason":null}]}`), chunky | content, 1}
	args    = event{data(`{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"a\":1}"}}]},"finish_reason":null}]}`), chunky | content, 1}
	finish  = event{data(`{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`), chunky, 0}
	finish1 = event{data(`{"choices":[{"index":1,"delta":{},"finish_reason":"stop"}]}`), chunky, 0}
	done    = event{data(`[DONE]`), 0, 0}
	comment = event{": still here\n\n", 0, 0}
	failure = event{data(`{"error":{"message":"the engine is gone","type":"server_error"}}`), 0, 0}
	named   = event{"event: error\ndata: {}\n\n", 0, 0}
	broken  = event{"data: {\"choices\"\n\n", 0, 0}
)

func data(s string) string { return "data: " + s + "\n\n" }

// promptTokens is what every answer of a known server says of its prompt.
const promptTokens = 7

func usage(completion int) event {
	return event{data(fmt.Sprintf(`{"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}`,
		promptTokens, completion, promptTokens+completion)), 0, 0}
}

// crlf is an event with the other line ends.
func crlf(e event) event {
	e.text = strings.ReplaceAll(e.text, "\n", "\r\n")
	return e
}

// cut divides an event into two writes: only the second completes it.
func cut(e event) (first, second event) {
	half := len(e.text) / 2
	return event{text: e.text[:half]}, event{e.text[half:], e.is, e.chunks}
}

// part is one write of an answer.
type part struct {
	at time.Duration // after the whole request was read
	event
	raw bool // written as it is, not as a chunk of the body
}

// at joins events in one write.
func at(d time.Duration, events ...event) part {
	p := part{at: d}
	for _, e := range events {
		p.text += e.text
		p.is |= e.is
		p.chunks += e.chunks
	}
	return p
}

// ending is what a server does after the last part.
type ending int

const (
	keep  ending = iota // the answer is whole: the connection serves the next request
	shut                // closes the connection in order
	abort               // closes it with a reset
	hang                // says nothing more until the client leaves
)

// script is one answer, write by write.
type script struct {
	parts []part
	end   ending
	// tokens are those of the completion by usage; 0: there is no usage.
	tokens int
	// untold: it says nothing of tokens, be it a refusal or of a kind that has none.
	untold bool
}

const streamHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

// stream is an answer of server-sent events. Its head is sent at once.
func stream(tokens int, parts ...part) script {
	return script{parts: append([]part{{event: event{text: streamHead}, raw: true}}, parts...), tokens: tokens}
}

// ends changes what comes after the last part.
func (s script) ends(e ending) script {
	s.end = e
	return s
}

// plain is an answer in one write.
func plain(d time.Duration, status, fields, body string) script {
	return script{untold: status != "200 OK", parts: []part{{at: d, raw: true, event: event{text: fmt.Sprintf(
		"HTTP/1.1 %s\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s", status, fields, len(body), body)}}}}
}

// raw is whatever bytes, at once.
func raw(s string, e ending) script {
	return script{parts: []part{{raw: true, event: event{text: s}}}, end: e}
}

// Events of the responses API, which names them.
var (
	created   = event{typed(`{"type":"response.created","response":{"id":"r1","status":"in_progress"}}`), chunky, 0}
	thinking  = event{typed(`{"type":"response.reasoning_text.delta","delta":"hm "}`), chunky | content, 1}
	delta     = event{typed(`{"type":"response.output_text.delta","delta":"word "}`), chunky | content | visible, 1}
	completed = event{typed(fmt.Sprintf(`{"type":"response.completed","response":{"id":"r1","status":"completed","usage":{"input_tokens":%d,"output_tokens":4}}}`, promptTokens)), chunky, 0}
)

// typed is an event of which the type is its name too.
func typed(s string) string {
	_, rest, _ := strings.Cut(s, `"type":"`)
	name, _, _ := strings.Cut(rest, `"`)
	return "event: " + name + "\n" + data(s)
}

const chatTokens = 4 // of every plain answer

var (
	chatReply = fmt.Sprintf(`{"choices":[{"index":0,"message":{"role":"assistant","content":"four words of text"},"finish_reason":"stop"}],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}`,
		promptTokens, chatTokens)
	rerankReply = fmt.Sprintf(`{"results":[{"index":2,"relevance_score":0.9},{"index":0,"relevance_score":0.5},{"index":1,"relevance_score":0.1}],"usage":{"total_tokens":%d}}`, promptTokens)
	jobReply    = `{"id":"j1","state":"queued"}`
	vectorReply = fmt.Sprintf(`{"data":[{"index":0,"embedding":[0.6,0.8]}],"usage":{"prompt_tokens":%d}}`, promptTokens)
)

// without is a script of a kind of answer that has no tokens.
func without(s script) script {
	s.untold = true
	return s
}

// chat is a plain answer to chat after d.
func chat(d time.Duration) script {
	s := plain(d, "200 OK", "", chatReply)
	s.tokens = chatTokens
	return s
}

// bytes are what is written of a part.
func (p part) bytes() []byte {
	if p.raw {
		return []byte(p.text)
	}
	return fmt.Appendf(nil, "%x\r\n%s\r\n", len(p.text), p.text)
}
