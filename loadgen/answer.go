package loadgen

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/tidwall/gjson"
)

// read takes the whole answer. On success it has set the times and tokens of s;
// else it says which failure it was.
func (c *client) read(res *http.Response, s *sample, want expect) (Outcome, error) {
	if res.StatusCode != http.StatusOK {
		s.retryAfter = res.Header.Get("Retry-After") != ""
		text, _ := io.ReadAll(io.LimitReader(res.Body, maxProblem))
		return refusal(res.StatusCode), fmt.Errorf("HTTP %d: %s", res.StatusCode, bytes.TrimSpace(text))
	}
	if c.w.Stream {
		if kind := res.Header.Get("Content-Type"); !strings.HasPrefix(kind, "text/event-stream") {
			return Protocol, fmt.Errorf("asked for a stream, got content type %q", kind)
		}
		return c.readStream(res.Body, s)
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxBody+1))
	s.end = c.now()
	switch {
	case err != nil:
		return Truncated, fmt.Errorf("read answer: %w", err)
	case len(body) > maxBody:
		return Protocol, fmt.Errorf("answer exceeds %d bytes", maxBody)
	}
	var judge whole
	return judge.judge(c.w.Kind, want, body, s)
}

// readers are the buffers of streams in flight.
var readers = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}

// readStream takes server-sent events until [DONE]. Every event of one read has
// that read's time: it was there then, and no finer time is known.
func (c *client) readStream(body io.Reader, s *sample) (Outcome, error) {
	buf := readers.Get().(*[]byte)
	defer readers.Put(buf)
	var split events
	var st stream
	for {
		n, err := body.Read(*buf)
		now := c.now()
		had := st.chunks
		if ferr := split.feed((*buf)[:n], st.take); ferr != nil {
			return st.class(ferr), ferr
		}
		if had == 0 && st.chunks > 0 {
			s.first = now
		}
		if st.chunks > had {
			s.last = now
		}
		s.end = now
		if st.done || err != nil {
			if outcome, problem := st.complete(err); problem != nil {
				return outcome, problem
			}
			break
		}
	}
	s.prompt, s.completion, s.chunks = st.prompt, st.completion, st.chunks
	if s.estimated = !st.usage; s.estimated {
		s.completion = st.chunks
	}
	return OK, nil
}

var (
	errErrorEvent = errors.New("error event in the stream")
	errNotJSON    = errors.New("event of the stream is not a JSON object")
)

// stream is what the events of one answer have said so far.
type stream struct {
	done, usage        bool
	prompt, completion int // by usage
	chunks             int // events with something for the reader in them
	finished           map[int64]bool
}

// take handles one event.
func (st *stream) take(name, data []byte) error {
	if st.done {
		return nil
	}
	if string(data) == "[DONE]" {
		st.done = true
		return nil
	}
	v := gjson.ParseBytes(data)
	if string(name) == "error" || v.Get("error").IsObject() || v.Get("object").String() == "error" {
		return fmt.Errorf("%w: %s", errErrorEvent, data)
	}
	if !v.IsObject() || !gjson.ValidBytes(data) {
		return errNotJSON
	}
	v.Get("choices").ForEach(func(_, choice gjson.Result) bool {
		if st.finished == nil {
			st.finished = map[int64]bool{}
		}
		index := choice.Get("index").Int()
		if hasContent(choice) {
			st.chunks++
		}
		st.finished[index] = st.finished[index] || choice.Get("finish_reason").String() != ""
		return true
	})
	if u := v.Get("usage"); u.Get("completion_tokens").Exists() {
		st.usage = true
		st.prompt, st.completion = int(u.Get("prompt_tokens").Int()), int(u.Get("completion_tokens").Int())
	}
	return nil
}

// hasContent reports whether a choice carries part of the answer. A chunk with
// only a role, which many servers send before they have begun, does not count.
func hasContent(choice gjson.Result) bool {
	if choice.Get("text").String() != "" {
		return true
	}
	delta := choice.Get("delta")
	for _, key := range []string{"content", "reasoning_content", "reasoning", "refusal"} {
		if delta.Get(key).String() != "" {
			return true
		}
	}
	call := delta.Get("tool_calls.0.function")
	return call.Get("name").String() != "" || call.Get("arguments").String() != ""
}

// class says which failure an error of take or feed is.
func (st *stream) class(err error) Outcome {
	if errors.Is(err, errErrorEvent) {
		return StreamError
	}
	return Protocol
}

// complete checks that a stream that has ended had come to its end. err is what
// the last read said.
func (st *stream) complete(err error) (Outcome, error) {
	if !st.done {
		return Truncated, fmt.Errorf("stream ended without [DONE]: %w", err)
	}
	if len(st.finished) == 0 {
		return Truncated, errors.New("stream ended without a choice")
	}
	for index, finished := range st.finished {
		if !finished {
			return Truncated, fmt.Errorf("stream ended without finish_reason for choice %d", index)
		}
	}
	return OK, nil
}
