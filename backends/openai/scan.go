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
	// Model is "" only where OpenAI lets it be left out (moderations, images):
	// the gateway then takes the only model that serves the endpoint, and
	// SetModel writes it in.
	Model     string
	Stream    bool
	WantUsage bool   // stream_options.include_usage; chat and completions alone have it
	MaxTokens int    // max_completion_tokens, max_output_tokens, max_tokens; 0 = not given
	N         int    // choices asked for; 0 = not given, which means 1
	CacheKey  string // prompt_cache_key: requests with the same one share a prefix

	// Inputs are the raw JSON values of an embeddings request's rows, each a
	// string or an array of token ids. They alias the body.
	Inputs [][]byte
	// MergeKey is equal for embedding requests whose options agree, whatever
	// encoding they ask for; never "" for embeddings.
	MergeKey string
	Base64   bool // embeddings: encoding_format base64 asked for

	// Text are the raw JSON values whose tokens make the prompt: the text of
	// messages, prompts, inputs, documents. Each is a string or an array of
	// token ids (CountIDs). They alias the body.
	Text [][]byte
}

// scanner collects one request; it lives for one call.
type scanner struct {
	endpoint backends.Endpoint
	body     []byte
	out      Scan
	seen     fields
	options  []string // embeddings: "key":value of everything that must agree
	err      *Error
}

// ScanRequest checks body as far as routing depends on it and says what it
// asks for; all else is the engine's to judge. The error is an *Error with
// status 400. Inputs and Text alias body. Forms are ScanForm's.
func ScanRequest(e backends.Endpoint, body []byte) (Scan, error) {
	root, err := parse(body)
	if err != nil {
		return Scan{}, err
	}
	s := scanner{endpoint: e, body: body}
	rule := rules[e]
	root.ForEach(func(key, v gjson.Result) bool {
		s.err = s.field(rule, key, v)
		return s.err == nil
	})
	if s.err != nil {
		return Scan{}, s.err
	}
	if missing := rule.required &^ s.seen; missing != 0 {
		key := missing.first()
		return Scan{}, Invalid(key, CodeMissing, "missing required parameter: '%s'", key)
	}
	if e == backends.Embeddings {
		s.out.MergeKey = mergeKey(s.options)
	}
	// The rest may alias body, a map key should not.
	s.out.Model, s.out.CacheKey = strings.Clone(s.out.Model), strings.Clone(s.out.CacheKey)
	s.out.WantUsage = s.out.WantUsage && s.out.Stream
	return s.out, nil
}

// field reads one top-level key. Any that ScanRequest looks at is refused when
// given twice: parsers disagree on which one counts, so the engine could run
// something else than what was admitted.
func (s *scanner) field(rule rule, key, v gjson.Result) *Error {
	if f := fieldOf(key.Str) & (rule.required | rule.optional); f != 0 {
		if s.seen&f != 0 {
			return Invalid(key.Str, CodeValue, "'%s' is given more than once", key.Str)
		}
		// null means the default, everywhere but in what is required.
		if v.Type == gjson.Null && rule.required&f == 0 {
			return nil
		}
		s.seen |= f
		if err := s.read(f, v); err != nil {
			return err
		}
	}
	if s.endpoint == backends.Embeddings && !perCaller(key.Str) {
		s.options = append(s.options, key.Raw+":"+v.Raw)
	}
	return nil
}

func (s *scanner) read(f fields, v gjson.Result) (err *Error) {
	switch f {
	case fieldModel:
		return s.model(v)
	case fieldStream:
		return s.stream(v)
	case fieldStreamOptions:
		return s.streamOptions(v)
	case fieldMaxTokens:
		return s.maxTokens(v)
	case fieldMaxCompletionTokens:
		s.out.MaxTokens, err = integer("max_completion_tokens", v, 1) // wins over max_tokens
	case fieldMaxOutputTokens:
		s.out.MaxTokens, err = integer("max_output_tokens", v, 1)
	case fieldN:
		s.out.N, err = integer("n", v, 1)
	case fieldCacheKey:
		if v.Type != gjson.String {
			return wrongType("prompt_cache_key", "a string", v)
		}
		s.out.CacheKey = v.Str
	case fieldMessages:
		return s.messages(v)
	case fieldDimensions:
		_, err = integer("dimensions", v, 1)
	case fieldEncoding:
		return s.encoding(v)
	case fieldInput:
		if s.endpoint == backends.Embeddings {
			return s.input(v)
		}
		s.texts(v)
	case fieldPrompt:
		if s.endpoint == backends.Completions {
			return s.prompt(v)
		}
		s.texts(v)
	case fieldTokens:
		if v.IsArray() {
			s.add(v)
		}
	default: // plain text: query, documents, system …
		s.texts(v)
	}
	return err
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
	if len(options) == 0 {
		return "embeddings|"
	}
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
	if err == nil && s.seen&fieldMaxCompletionTokens == 0 {
		s.out.MaxTokens = n
	}
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
