package openai

import (
	"slices"

	"aloft/backends"

	"github.com/tidwall/gjson"
)

// site is where a value stands in a body, or, with at == end, where it can be
// put in with what has to be around it.
type site struct {
	at, end       int
	before, after string
}

// locate notes where model and stream_options.include_usage can be put into
// the object that was just entered.
func (s *scanner) locate() {
	s.out.model = site{at: s.at, end: s.at, before: `"model":`, after: ","}
	s.out.usage = site{at: s.at, end: s.at, before: `"stream_options":{"include_usage":`, after: "},"}
	if s.peek() == '}' { // never in a request that has what it must
		s.out.model.after, s.out.usage.after = "", "}"
	}
}

// Rewrite appends body, which s is the scan of, to dst with the model's name
// replaced, or put in where there is none, and with usage (chat and completions
// have it) with stream_options.include_usage true, so that a stream can be
// metered: the relay hides the extra frame from clients that did not ask
// (docs/failures.md F5). Every other byte stays.
func (s *Scan) Rewrite(dst, body []byte, model string, usage bool) []byte {
	dst = slices.Grow(dst, len(body))
	done := 0 // of body
	open := func(p *site) {
		dst = append(append(dst, body[done:p.at]...), p.before...)
		done = p.end
	}
	force := func() {
		open(&s.usage)
		dst = append(append(dst, "true"...), s.usage.after...)
	}
	before := s.usage.at < s.model.at
	if usage && before {
		force()
	}
	if model != s.Model {
		open(&s.model)
		dst = append(gjson.AppendJSONString(dst, model), s.model.after...)
	}
	if usage && !before {
		force()
	}
	return append(dst, body[done:]...)
}

// SetModel is Rewrite of the model for a body of which there is no scan. The
// error is an *Error: not an object, two models, or one that is no name.
func SetModel(body []byte, model string) ([]byte, error) {
	s := scanner{walk: walk{data: body}, endpoint: backends.Chat}
	if err := s.scan(rule{optional: fieldModel}); err != nil {
		return nil, err
	}
	return s.out.Rewrite(nil, body, model, false), nil
}
