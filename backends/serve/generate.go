package serve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"aloft/backends"
	"aloft/backends/openai"

	"github.com/tidwall/gjson"
)

func (s *Server) generate(w http.ResponseWriter, r *http.Request, e backends.Endpoint) {
	param := "prompt"
	if e == backends.Chat {
		param = "messages"
	}
	body, scan, err := s.scan(w, r, e)
	if err != nil {
		s.fail(w, r, err, param)
		return
	}
	req, err := decodeGenerate(e, body, scan)
	if err != nil {
		s.fail(w, r, err, param)
		return
	}
	if req.Echo && (req.Chat || !s.info.Echo) {
		s.fail(w, r, openai.Invalid("echo", "unsupported_parameter", "'echo': this engine does not support echo"), param)
		return
	}
	if err := s.gate.enter(generate); err != nil {
		s.count.refused.Add(1)
		s.fail(w, r, err, param)
		return
	}
	defer s.gate.leave(generate)
	f := newFrames(e, s.info.Model, scan, time.Now().Unix())
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	var out sink = &wholeSink{}
	if scan.Stream {
		out = &streamSink{server: s, w: w, frames: f}
	}
	finish, err := s.run(ctx, req, out)
	if err != nil {
		s.countFailure(r)
		if st, ok := out.(*streamSink); ok && st.started {
			st.abort(wireError(err, param))
			return
		}
		s.fail(w, r, err, param)
		return
	}
	s.count.generations.Add(1)
	s.count.promptTokens.Add(int64(finish.PromptTokens))
	switch out := out.(type) {
	case *streamSink:
		out.end(finish) // its error: the client left after the last token
	case *wholeSink:
		s.reply(w, http.StatusOK, f.whole(out, finish))
	}
}

// sink takes joined text.
type sink interface{ add(p joined) error }

// joined is text that ends between runes, with the log-probabilities of the
// tokens that made it.
type joined struct {
	text   string
	tokens []Piece // with Logprobs only
}

// run calls the engine and hands its pieces on as whole runes.
func (s *Server) run(ctx context.Context, req *GenerateRequest, out sink) (Finish, error) {
	var held joined
	finish, err := s.engine.Generate(ctx, req, func(p Piece) error {
		if !p.Prompt {
			s.count.generatedTokens.Add(int64(max(p.Tokens, 1)))
		}
		if req.Logprobs >= 0 {
			held.tokens = append(held.tokens, p)
		}
		held.text += p.Text
		whole, rest := cutRune(held.text)
		if whole == "" {
			return nil
		}
		send := joined{whole, held.tokens}
		held = joined{text: rest}
		return out.add(send)
	})
	if err == nil && finish.Reason != "stop" && finish.Reason != "length" {
		err = fmt.Errorf("the engine ended with reason %q", finish.Reason)
	}
	if err == nil && (held.text != "" || len(held.tokens) > 0) {
		err = out.add(held) // half a rune at the end becomes U+FFFD
	}
	return finish, err
}

// cutRune splits text before a last rune that is not complete yet.
func cutRune(text string) (whole, rest string) {
	for i := len(text) - 1; i >= 0 && i >= len(text)-utf8.UTFMax; i-- {
		if utf8.RuneStart(text[i]) {
			if !utf8.FullRuneInString(text[i:]) {
				return text[:i], text[i:]
			}
			break
		}
	}
	return text, ""
}

// wholeSink collects an answer that is not streamed.
type wholeSink struct{ joined }

func (s *wholeSink) add(p joined) error {
	s.text += p.text
	s.tokens = append(s.tokens, p.tokens...)
	return nil
}

// errSlowClient ends a generation whose client does not take its events.
var errSlowClient = errors.New("client takes no events")

// streamSink writes SSE, one event a write and flush. Headers go out with the
// first event, so that errors before it keep their status.
type streamSink struct {
	server  *Server
	w       http.ResponseWriter
	frames  *frames
	started bool
	buf     []byte
}

func (s *streamSink) start() error {
	if s.started {
		return nil
	}
	s.started = true
	h := s.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	s.w.WriteHeader(http.StatusOK)
	if s.frames.chat {
		return s.send(s.frames.role(nil))
	}
	return nil
}

func (s *streamSink) add(p joined) error {
	if err := s.start(); err != nil {
		return err
	}
	return s.send(s.frames.piece(nil, p))
}

func (s *streamSink) send(payload []byte) error {
	s.server.allowWrite(s.w)
	s.buf = openai.AppendEvent(s.buf[:0], payload)
	if _, err := s.w.Write(s.buf); err != nil {
		return fmt.Errorf("%w: %w", errSlowClient, err)
	}
	return http.NewResponseController(s.w).Flush()
}

func (s *streamSink) end(f Finish) error {
	err := s.start()
	if err == nil {
		err = s.send(s.frames.finish(nil, f.Reason))
	}
	if err == nil && s.frames.usage {
		err = s.send(s.frames.usageOnly(nil, f))
	}
	if err == nil {
		err = s.send([]byte("[DONE]"))
	}
	return err
}

// abort ends a started stream with an error frame and no [DONE], so that no
// client takes half an answer for a whole one (docs/failures.md F3).
func (s *streamSink) abort(e *openai.Error) {
	_ = s.send(openai.AppendError(nil, e)) // the client may have left
}

// frames builds the JSON of one answer.
type frames struct {
	chat, usage bool
	head        []byte // up to and with "model"
	object      string
	offset      int // characters of text so far, for a completion's logprobs
}

func newFrames(e backends.Endpoint, model string, scan openai.Scan, created int64) *frames {
	f := &frames{chat: e == backends.Chat, usage: scan.WantUsage, object: "text_completion"}
	prefix := "cmpl-"
	if f.chat {
		prefix, f.object = "chatcmpl-", "chat.completion"
		if scan.Stream {
			f.object = "chat.completion.chunk"
		}
	}
	f.head = append(f.head, `{"id":"`+newID(prefix)+`","object":"`+f.object+`","created":`...)
	f.head = strconv.AppendInt(f.head, created, 10)
	f.head = append(f.head, `,"model":`...)
	f.head = gjson.AppendJSONString(f.head, model)
	return f
}

func (f *frames) open(dst []byte) []byte {
	return append(append(dst, f.head...), `,"choices":[{"index":0,`...)
}

func (f *frames) close(dst []byte, reason string) []byte {
	dst = append(dst, `,"finish_reason":`...)
	if reason == "" {
		dst = append(dst, "null}]"...)
	} else {
		dst = append(append(append(dst, '"'), reason...), `"}]`...)
	}
	if f.usage {
		dst = append(dst, `,"usage":null`...)
	}
	return append(dst, '}')
}

func (f *frames) role(dst []byte) []byte {
	return f.close(append(f.open(dst), `"delta":{"role":"assistant","content":""},"logprobs":null`...), "")
}

func (f *frames) piece(dst []byte, p joined) []byte {
	dst = f.open(dst)
	if f.chat {
		dst = append(gjson.AppendJSONString(append(dst, `"delta":{"content":`...), p.text), '}')
	} else {
		dst = gjson.AppendJSONString(append(dst, `"text":`...), p.text)
	}
	return f.close(f.appendLogprobs(dst, p), "")
}

func (f *frames) finish(dst []byte, reason string) []byte {
	dst = f.open(dst)
	if f.chat {
		dst = append(dst, `"delta":{},"logprobs":null`...)
	} else {
		dst = append(dst, `"text":"","logprobs":null`...)
	}
	return f.close(dst, reason)
}

func (f *frames) usageOnly(dst []byte, fin Finish) []byte {
	dst = append(append(dst, f.head...), `,"choices":[],"usage":`...)
	return append(appendUsage(dst, fin), '}')
}

// whole is the answer that is not streamed.
func (f *frames) whole(s *wholeSink, fin Finish) []byte {
	dst := f.open(nil)
	if f.chat {
		dst = append(dst, `"message":{"role":"assistant","content":`...)
		dst = append(gjson.AppendJSONString(dst, s.text), `,"refusal":null}`...)
	} else {
		dst = gjson.AppendJSONString(append(dst, `"text":`...), s.text)
	}
	dst = f.appendLogprobs(dst, s.joined)
	dst = append(append(append(dst, `,"finish_reason":"`...), fin.Reason...), `"}],"usage":`...)
	return append(appendUsage(dst, fin), '}')
}

func appendUsage(dst []byte, f Finish) []byte {
	return fmt.Appendf(dst, `{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}`,
		f.PromptTokens, f.CompletionTokens, f.PromptTokens+f.CompletionTokens)
}
