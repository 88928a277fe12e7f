package openai

import (
	"crypto/sha256"
	"slices"
	"strconv"
	"strings"

	"aloft/backends"

	"github.com/tidwall/gjson"
)

// MaxInputs is how many rows one embeddings request may have (OpenAI's limit).
const MaxInputs = 2048

// Scan is what routing needs from a request body, found without decoding the rest.
type Scan struct {
	Model     string
	Stream    bool
	WantUsage bool // stream_options.include_usage
	MaxTokens int  // max_completion_tokens, max_tokens; 0 = not given

	// Inputs are the raw JSON values of an embeddings request's rows, each a
	// string or an array of token ids. They alias the body.
	Inputs [][]byte
	// MergeKey is equal for embedding requests whose options agree, whatever
	// encoding they ask for; never "" for embeddings.
	MergeKey string
	Base64   bool // embeddings: encoding_format base64 asked for

	// Text are the raw JSON values whose tokens make the prompt: the text of
	// messages, prompts, inputs. Each is a string or an array of token ids
	// (CountIDs). They alias the body.
	Text [][]byte
}

// scanner collects one request; it lives for one call.
type scanner struct {
	endpoint backends.Endpoint
	body     []byte
	out      Scan
	seen     map[string]bool
	options  []string // embeddings: "key":value of everything that must agree
	err      *Error
}

// readers are the keys that ScanRequest looks at, per endpoint. Any of them
// given twice is refused: parsers disagree on which one counts, so the engine
// could run something else than what was admitted.
var readers = map[backends.Endpoint]map[string]func(*scanner, gjson.Result) *Error{
	backends.Chat: {
		"model": (*scanner).model, "stream": (*scanner).stream, "stream_options": (*scanner).streamOptions,
		"max_tokens": (*scanner).maxTokens, "max_completion_tokens": (*scanner).maxCompletionTokens,
		"messages": (*scanner).messages,
	},
	backends.Completions: {
		"model": (*scanner).model, "stream": (*scanner).stream, "stream_options": (*scanner).streamOptions,
		"max_tokens": (*scanner).maxTokens, "prompt": (*scanner).prompt,
	},
	backends.Embeddings: {
		"model": (*scanner).model, "input": (*scanner).input, "encoding_format": (*scanner).encoding,
		"dimensions": (*scanner).dimensions,
	},
}

// required is the parameter besides "model" that an endpoint cannot do without.
var required = map[backends.Endpoint]string{
	backends.Chat: "messages", backends.Completions: "prompt", backends.Embeddings: "input",
}

// ScanRequest checks body as far as routing depends on it and says what it
// asks for. The error is an *Error with status 400. Inputs and Text alias body.
func ScanRequest(e backends.Endpoint, body []byte) (Scan, error) {
	root, err := parse(body)
	if err != nil {
		return Scan{}, err
	}
	s := scanner{endpoint: e, body: body, seen: make(map[string]bool, 8)}
	root.ForEach(func(key, v gjson.Result) bool {
		s.err = s.field(key, v)
		return s.err == nil
	})
	if s.err != nil {
		return Scan{}, s.err
	}
	for _, key := range []string{"model", required[e]} {
		if !s.seen[key] {
			return Scan{}, Invalid(key, CodeMissing, "missing required parameter: '%s'", key)
		}
	}
	if e == backends.Embeddings {
		s.out.MergeKey = mergeKey(s.options)
	}
	s.out.Model = strings.Clone(s.out.Model) // the rest may alias body, a map key should not
	s.out.WantUsage = s.out.WantUsage && s.out.Stream
	return s.out, nil
}

func (s *scanner) field(key, v gjson.Result) *Error {
	read := readers[s.endpoint][key.Str]
	if read != nil {
		if s.seen[key.Str] {
			return Invalid(key.Str, CodeValue, "'%s' is given more than once", key.Str)
		}
		// null means the default, everywhere but in what is required.
		if v.Type == gjson.Null && key.Str != "model" && key.Str != required[s.endpoint] {
			return nil
		}
		s.seen[strings.Clone(key.Str)] = true
		if err := read(s, v); err != nil {
			return err
		}
	}
	if s.endpoint == backends.Embeddings && !perCaller(key.Str) {
		s.options = append(s.options, key.Raw+":"+v.Raw)
	}
	return nil
}

// perCaller names the fields of an embeddings request that need not agree for
// merging, and that a merged call therefore does not carry over.
func perCaller(key string) bool {
	switch key {
	case "model", "input", "encoding_format", "user", "stream", "stream_options":
		return true
	}
	return false
}

// mergeKey does not depend on the order of keys. Long ones are hashed, so that
// a request with a huge option does not pin it.
func mergeKey(options []string) string {
	slices.Sort(options)
	key := "embeddings|" + strings.Join(options, "|")
	if len(key) > 200 {
		sum := sha256.Sum256([]byte(key))
		return "embeddings#" + string(sum[:])
	}
	return key
}

func (s *scanner) model(v gjson.Result) *Error {
	if v.Type != gjson.String {
		return wrongType("model", "a string", v)
	}
	if v.Str == "" {
		return Invalid("model", CodeValue, "'model' is empty")
	}
	s.out.Model = v.Str
	return nil
}

func (s *scanner) stream(v gjson.Result) *Error {
	if !v.IsBool() {
		return wrongType("stream", "a boolean", v)
	}
	s.out.Stream = v.Bool()
	return nil
}

func (s *scanner) streamOptions(v gjson.Result) (err *Error) {
	if !v.IsObject() {
		return wrongType("stream_options", "an object", v)
	}
	seen := false
	v.ForEach(func(key, v gjson.Result) bool {
		switch {
		case key.Str != "include_usage":
			return true
		case seen:
			err = Invalid("stream_options.include_usage", CodeValue, "'stream_options.include_usage' is given more than once")
		case !v.IsBool() && v.Type != gjson.Null:
			err = wrongType("stream_options.include_usage", "a boolean", v)
		}
		s.out.WantUsage, seen = v.Bool(), true
		return err == nil
	})
	return err
}

func (s *scanner) maxTokens(v gjson.Result) *Error {
	least := 1
	if s.endpoint == backends.Completions {
		least = 0 // with echo, to score a prompt
	}
	n, err := integer("max_tokens", v, least)
	if err == nil && !s.seen["max_completion_tokens"] {
		s.out.MaxTokens = n
	}
	return err
}

// maxCompletionTokens wins over the deprecated max_tokens.
func (s *scanner) maxCompletionTokens(v gjson.Result) *Error {
	n, err := integer("max_completion_tokens", v, 1)
	if err == nil {
		s.out.MaxTokens = n
	}
	return err
}

func (s *scanner) dimensions(v gjson.Result) *Error {
	_, err := integer("dimensions", v, 1)
	return err
}

func (s *scanner) encoding(v gjson.Result) *Error {
	switch {
	case v.Type != gjson.String:
		return wrongType("encoding_format", "a string", v)
	case v.Str != "float" && v.Str != "base64":
		return Invalid("encoding_format", CodeValue, "'encoding_format' must be 'float' or 'base64'")
	}
	s.out.Base64 = v.Str == "base64"
	return nil
}

func integer(param string, v gjson.Result, least int) (int, *Error) {
	if v.Type != gjson.Number {
		return 0, wrongType(param, "an integer", v)
	}
	n, err := strconv.Atoi(v.Raw)
	if err != nil {
		return 0, Invalid(param, CodeType, "'%s' must be an integer", param)
	}
	if n < least {
		return 0, Invalid(param, CodeValue, "'%s' is %d, must be at least %d", param, n, least)
	}
	return n, nil
}

func wrongType(param, want string, v gjson.Result) *Error {
	got := "a " + strings.ToLower(v.Type.String())
	switch {
	case v.IsObject():
		got = "an object"
	case v.IsArray():
		got = "an array"
	case v.IsBool():
		got = "a boolean"
	case v.Type == gjson.Null:
		got = "null"
	}
	return Invalid(param, CodeType, "'%s' must be %s, got %s", param, want, got)
}
