package loadgen

import (
	"errors"
	"fmt"
	"io"

	"github.com/tidwall/gjson"
)

// given are request bodies of the user's own. What is kept of each are its
// members but for those that the workload sets, each with a comma before it.
type given struct {
	library
	wants []expect
}

// expect is what a whole answer must hold to be one.
type expect struct {
	count  int // vectors, results or choices
	inputs int // texts or documents that were sent: indexes are below it
}

// readRequests reads bodies of a kind, one JSON object a line. An error names
// the file, the line and what was expected there.
func readRequests(name string, r io.Reader, kind Kind) (*given, error) {
	g := &given{}
	err := readLines(name, r, func(line []byte) error {
		if len(g.wants) == maxTexts {
			return fmt.Errorf("want at most %d requests", maxTexts)
		}
		body := gjson.ParseBytes(line)
		if !gjson.ValidBytes(line) || !body.IsObject() {
			return errors.New("want one JSON object a line, a request's body")
		}
		want, err := expected(kind, body)
		if err != nil {
			return err
		}
		for key, value := range body.ForEach {
			switch key.Str {
			case "model", "stream", "stream_options": // the workload's
			default:
				g.text = append(append(append(append(g.text, ','), key.Raw...), ':'), value.Raw...)
			}
		}
		g.end()
		g.wants = append(g.wants, want)
		return nil
	})
	if err == nil && len(g.wants) == 0 {
		err = fmt.Errorf("%s: no requests in it, want one JSON object a line", name)
	}
	if err != nil {
		return nil, err
	}
	return g, nil
}

// expected says what the answer to a body must hold, or what the body lacks.
func expected(kind Kind, body gjson.Result) (expect, error) {
	bad := func(want string) (expect, error) {
		return expect{}, fmt.Errorf("a body of %s: want %s", kind, want)
	}
	n := 1
	if v := body.Get("n"); v.Exists() {
		if n = int(v.Int()); n < 1 || n > 128 || v.Type != gjson.Number {
			return bad(`"n" from 1 to 128`)
		}
	}
	switch kind {
	case Chat:
		messages := body.Get("messages")
		if !full(messages) {
			return bad(`"messages", an array with at least one message`)
		}
		for _, m := range messages.ForEach {
			if m.Get("role").Type != gjson.String {
				return bad(`each of "messages" to be an object with a "role"`)
			}
		}
		return expect{n, 1}, nil
	case Completions, Embeddings:
		key := map[Kind]string{Completions: "prompt", Embeddings: "input"}[kind]
		inputs := countInputs(body.Get(key))
		if inputs == 0 || inputs > maxInputs {
			return bad(fmt.Sprintf("%q, a text or an array of 1 to %d texts", key, maxInputs))
		}
		if kind == Completions {
			return expect{n * inputs, inputs}, nil
		}
		return expect{inputs, inputs}, nil
	case Responses:
		if countInputs(body.Get("input")) == 0 {
			return bad(`"input", a text or an array of messages`)
		}
		return expect{1, 1}, nil
	case Rerank:
		documents := body.Get("documents")
		if body.Get("query").Type != gjson.String || !full(documents) {
			return bad(`"query", a text, and "documents", an array`)
		}
		want := expect{len(documents.Array()), len(documents.Array())}
		if top := body.Get("top_n"); top.Int() > 0 {
			want.count = min(want.count, int(top.Int()))
		}
		return want, nil
	case Job:
		if body.Get("template").String() == "" {
			return bad(`"template", the name of one`)
		}
		return expect{1, 1}, nil
	}
	panic("BUG: no bodies of kind " + string(kind))
}

// countInputs counts the texts of an input: a text, an array of them, a text as
// an array of token numbers, or an array of such. 0 means none of these.
func countInputs(v gjson.Result) int {
	switch {
	case v.Type == gjson.String && v.Str != "":
		return 1
	case !full(v):
		return 0
	case v.Get("0").Type == gjson.Number:
		return 1
	}
	return len(v.Array())
}

func full(v gjson.Result) bool { return v.IsArray() && v.Get("0").Exists() }
