package loadgen

import (
	"errors"
	"fmt"
	"strings"
	"unsafe"

	"github.com/tidwall/gjson"
)

// whole judges whole answers for one goroutine. It keeps room between answers
// so that judging one allocates nothing.
type whole struct {
	seen []bool
	file []byte // of a batch's first step: the id that the file got, as JSON
	said []byte // of chat and responses: the answer's text, as the inside of a JSON string
}

var errPlainNotJSON = errors.New("answer is not JSON")

// judge checks that the body of a 200 is what its kind promises, and sets what
// it says of tokens in s. An answer that breaks a promise is no success, however
// quickly it came.
func (p *whole) judge(kind Kind, want expect, body []byte, s *sample) (Outcome, error) {
	p.file, p.said = p.file[:0], p.said[:0]
	if !gjson.ValidBytes(body) {
		return Protocol, errPlainNotJSON
	}
	// Without a copy: body does not change while it is judged, and nothing of it
	// is kept.
	v := gjson.Result{Type: gjson.JSON, Raw: unsafe.String(unsafe.SliceData(body), len(body))}
	if fault := v.Get("error"); fault.IsObject() || fault.Str != "" {
		return Protocol, fmt.Errorf("status 200 with an error: %s", fault.Raw)
	}
	switch kind {
	case Embeddings:
		return p.embeddings(v, want, s)
	case Rerank:
		return p.rerank(v, want, s)
	case Responses:
		return p.response(v, s)
	case Batch:
		return p.batch(v)
	case Job:
		return job(v)
	}
	return p.generation(v, want, s)
}

// mark notes that an answer for input i came, which may come once.
func (p *whole) mark(i gjson.Result) error {
	n := i.Int()
	if i.Type != gjson.Number || n < 0 || n >= int64(len(p.seen)) || p.seen[n] {
		return fmt.Errorf("index %.40s is missing, wrong or there twice, of %d inputs", i.Raw, len(p.seen))
	}
	p.seen[n] = true
	return nil
}

func (p *whole) expect(inputs int) {
	if cap(p.seen) < inputs {
		p.seen = make([]bool, inputs)
	}
	p.seen = p.seen[:inputs]
	clear(p.seen)
}

// embeddings checks that every input got its vector, as numbers or as base64 of
// 32-bit floats.
func (p *whole) embeddings(v gjson.Result, want expect, s *sample) (Outcome, error) {
	p.expect(want.inputs)
	n := 0
	for _, row := range v.Get("data").ForEach {
		if err := p.mark(row.Get("index")); err != nil {
			return Protocol, fmt.Errorf("embedding: %w", err)
		}
		vector := row.Get("embedding")
		switch {
		case vector.Type == gjson.String:
			if !isFloats(vector.Str) {
				return Protocol, fmt.Errorf("embedding %d is no base64 of 32-bit floats", n)
			}
		case !vector.IsArray() || vector.Get("0").Type != gjson.Number:
			return Protocol, fmt.Errorf("embedding %d is empty or no vector", n)
		}
		n++
	}
	if n != want.count {
		return Protocol, fmt.Errorf("%d embeddings for %d inputs", n, want.count)
	}
	s.prompt, _ = counted(v.Get("usage.prompt_tokens"))
	return OK, nil
}

// isFloats reports whether text is base64 of one or more 32-bit floats, by its
// length: its letters were the server's encoder's.
func isFloats(text string) bool {
	size := len(text)/4*3 - strings.Count(text[max(0, len(text)-2):], "=")
	return len(text)%4 == 0 && size > 0 && size%4 == 0
}

// rerank checks that each result is one of the documents, with a score. Their
// order is not judged: some servers leave it to the client.
func (p *whole) rerank(v gjson.Result, want expect, s *sample) (Outcome, error) {
	p.expect(want.inputs)
	n := 0
	for _, row := range v.Get("results").ForEach {
		if err := p.mark(row.Get("index")); err != nil {
			return Protocol, fmt.Errorf("rerank: %w", err)
		}
		if row.Get("relevance_score").Type != gjson.Number {
			return Protocol, fmt.Errorf("rerank: result %d has no relevance_score", n)
		}
		n++
	}
	if n != want.count {
		return Protocol, fmt.Errorf("rerank: %d results, want %d of %d documents", n, want.count, want.inputs)
	}
	s.prompt, _ = counted(firstOf(v.Get("usage"), "prompt_tokens", "total_tokens"))
	return OK, nil
}

// generation checks a whole answer of chat or completions.
func (p *whole) generation(v gjson.Result, want expect, s *sample) (Outcome, error) {
	n := 0
	for _, choice := range v.Get("choices").ForEach {
		message := choice.Get("message")
		if !message.IsObject() && choice.Get("text").Type != gjson.String {
			return Protocol, fmt.Errorf("choice %d has neither message nor text", n)
		}
		switch reason := choice.Get("finish_reason").String(); {
		case reason == "":
			return Truncated, fmt.Errorf("choice %d has no finish_reason", n)
		case gaveWay(reason):
			return Protocol, fmt.Errorf("status 200 with finish_reason %s", reason)
		}
		if n == 0 {
			p.keep(message.Get("content"))
		}
		n++
	}
	if n != want.count {
		return Protocol, fmt.Errorf("%d choices, want %d", n, want.count)
	}
	s.usage(v.Get("usage"), "prompt_tokens", "completion_tokens")
	return OK, nil
}

// response checks a whole answer of /v1/responses. One that ended at the bound
// on its tokens is complete: that is what was asked for.
func (p *whole) response(v gjson.Result, s *sample) (Outcome, error) {
	switch status := v.Get("status").String(); {
	case status == "completed":
	case status == "incomplete" && v.Get("incomplete_details.reason").String() == "max_output_tokens":
	case status == "incomplete":
		return Truncated, fmt.Errorf("response is incomplete: %.80s", v.Get("incomplete_details").Raw)
	default:
		return Protocol, fmt.Errorf("response has status %.40q, want completed", status)
	}
	n := 0
	for _, item := range v.Get("output").ForEach {
		n++
		if item.Get("type").Str != "message" {
			continue
		}
		for _, part := range item.Get("content").ForEach {
			p.keep(part.Get("text"))
		}
	}
	if n == 0 {
		return Protocol, errors.New("response has no output")
	}
	s.usage(v.Get("usage"), "input_tokens", "output_tokens")
	return OK, nil
}

// batch checks the answer to an upload, an object of type file, and to the
// creation of a batch.
func (p *whole) batch(v gjson.Result) (Outcome, error) {
	id, object, status := v.Get("id"), v.Get("object").String(), v.Get("status").String()
	switch {
	case id.Type != gjson.String || id.Str == "":
		return Protocol, fmt.Errorf("the %.40s has no id", object)
	case object == "file":
		p.file = append(p.file, id.Raw...)
		return OK, nil
	case object != "batch":
		return Protocol, fmt.Errorf("object is %.40q, want file or batch", object)
	}
	switch status {
	case "validating", "in_progress", "finalizing", "completed":
		return OK, nil
	}
	return Protocol, fmt.Errorf("batch has status %.40q, want validating or in_progress: %.120s", status, v.Get("errors.data.0.message").String())
}

func job(v gjson.Result) (Outcome, error) {
	if id := v.Get("id"); id.Type != gjson.String || id.Str == "" {
		return Protocol, errors.New("job has no id")
	}
	switch state := v.Get("state").String(); state {
	case "failed", "cancelled":
		return Protocol, fmt.Errorf("job is %s: %.120s", state, v.Get("error").String())
	}
	return OK, nil
}

// keep appends to what was said. A JSON string's inside stays as it was sent:
// it goes back into one.
func (p *whole) keep(text gjson.Result) {
	if text.Type == gjson.String {
		p.said = appendSaid(p.said, text.Raw[1:len(text.Raw)-1])
	}
}

// maxSaid bounds what is kept of one answer, in bytes: some 16,000 tokens.
const maxSaid = 64 << 10

// appendSaid appends a piece of an answer's text, the inside of a JSON string,
// while there is room. It cuts between characters, so that what it keeps is
// still such an inside.
func appendSaid[T []byte | string](said []byte, piece T) []byte {
	if len(said) >= maxSaid {
		return said
	}
	if said = append(said, piece...); len(said) <= maxSaid {
		return said
	}
	// Filled up, so that nothing follows what was cut.
	said = said[:cutAt(said, maxSaid)]
	for len(said) < maxSaid {
		said = append(said, ' ')
	}
	return said
}

func firstOf(v gjson.Result, keys ...string) gjson.Result {
	for _, key := range keys {
		if got := v.Get(key); got.Exists() {
			return got
		}
	}
	return gjson.Result{}
}

// usage sets what the server counted.
func (s *sample) usage(v gjson.Result, prompt, completion string) {
	s.prompt, _ = counted(v.Get(prompt))
	n, ok := counted(v.Get(completion))
	s.completion, s.estimated = n, !ok
}

// counted is a number of tokens; false where v is none.
func counted(v gjson.Result) (int, bool) {
	if v.Type != gjson.Number || v.Num < 0 || v.Num > maxCounted {
		return 0, false
	}
	return int(v.Num), true
}
