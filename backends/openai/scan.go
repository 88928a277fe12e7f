package openai

import (
	"crypto/sha256"
	"slices"
	"strconv"
	"strings"

	"aloft/backends"
)

// maxInputs is how many rows one embeddings request may have (OpenAI's limit).
const maxInputs = 2048

// Scan is what routing needs from a request body, found without decoding the rest.
type Scan struct {
	// Model is "" only where OpenAI lets it be left out (moderations, images):
	// the gateway then takes the only model that serves the endpoint, and
	// Rewrite writes it in.
	Model     string
	Stream    bool
	WantUsage bool   // stream_options.include_usage; chat and completions alone have it
	MaxTokens int    // max_completion_tokens, max_output_tokens, max_tokens; 0 = not given
	N         int    // choices asked for; 0 = not given, which means 1
	CacheKey  string // prompt_cache_key: requests with the same one share a prefix
	Flex      bool   // service_tier flex: later than others is fine

	// Inputs are the rows of a request that may share its engine call, raw: a string
	// or an array of token ids, which alias the body; of scores a pair of strings.
	Inputs [][]byte
	// MergeKey is equal for requests of an endpoint whose options agree, whatever
	// encoding they ask for; "" for what goes alone, which embeddings never do.
	MergeKey         string
	backends.Vectors // embeddings: what was asked for

	// Text are the raw JSON values whose tokens make the prompt: the text of
	// messages, prompts, inputs, documents. Each is a string or an array of
	// token ids (CountIDs). They alias the body.
	Text [][]byte

	model, usage site // of the body: what Rewrite changes
}

// scanner collects one request; it lives for one call.
type scanner struct {
	walk     // over the body, which is valid
	endpoint backends.Endpoint
	out      Scan
	seen     fields
	rows     rowsOf
}

// ScanRequest checks body as far as routing depends on it and says what it
// asks for; all else is the engine's to judge. The error is an *Error with
// status 400. Inputs and Text alias body. Forms are ScanForm's.
func ScanRequest(e backends.Endpoint, body []byte) (Scan, error) {
	s := scanner{walk: walk{data: body}, endpoint: e, rows: rowsOf{merging: mergings[e]}}
	if err := s.scan(rules[e]); err != nil {
		return Scan{}, err
	}
	s.merge()
	// The rest may alias body, a map key should not.
	s.out.Model, s.out.CacheKey = strings.Clone(s.out.Model), strings.Clone(s.out.CacheKey)
	s.out.WantUsage = s.out.WantUsage && s.out.Stream
	return s.out, nil
}

func (s *scanner) scan(rule rule) *Error {
	if err := valid(s.data); err != nil {
		return err
	}
	s.enter('{')
	s.locate()
	for key := s.key(); key != nil; key = s.key() {
		if err := s.field(rule, key); err != nil {
			return err
		}
	}
	if missing := rule.required &^ s.seen; missing != 0 {
		key := missing.first()
		return Invalid(key, CodeMissing, "missing required parameter: '%s'", key)
	}
	return nil
}

// field reads one top-level key and takes its value, as all below do. Any that
// ScanRequest looks at is refused when given twice: parsers disagree on which
// one counts, so the engine could run something else than what was admitted.
func (s *scanner) field(rule rule, key []byte) *Error {
	name, first := text(key), s.peek()
	from := s.at
	f := fieldOf(name) & (rule.required | rule.optional)
	switch {
	case f == 0:
		s.skip()
	case s.seen&f != 0:
		return Invalid(name, CodeValue, "'%s' is given more than once", name)
	case first == 'n' && rule.required&f == 0:
		// null means the default, everywhere but in what is required.
		s.seen |= f
		s.skip()
		if f == fieldStreamOptions {
			s.out.usage = site{at: from, end: s.at, before: `{"include_usage":`, after: "}"}
		}
	default:
		s.seen |= f
		if err := s.read(f); err != nil {
			return err
		}
	}
	if f == fieldModel {
		s.out.model = site{at: from, end: s.at}
	}
	s.note(key, name, f, from)
	return nil
}

func (s *scanner) read(f fields) (err *Error) {
	switch f {
	case fieldModel:
		return s.model()
	case fieldStream:
		s.out.Stream, err = s.boolean("stream")
	case fieldStreamOptions:
		return s.streamOptions()
	case fieldMaxTokens:
		return s.maxTokens()
	case fieldMaxCompletionTokens:
		s.out.MaxTokens, err = s.integer("max_completion_tokens", 1) // wins over max_tokens
	case fieldMaxOutputTokens:
		s.out.MaxTokens, err = s.integer("max_output_tokens", 1)
	case fieldN:
		s.out.N, err = s.integer("n", 1)
	case fieldCacheKey:
		s.out.CacheKey, err = s.string("prompt_cache_key")
	case fieldServiceTier:
		return s.serviceTier()
	case fieldMessages:
		return s.messages()
	case fieldDimensions:
		s.out.Dimensions, err = s.integer("dimensions", 1)
	case fieldEncoding:
		return s.encoding()
	case fieldInput:
		if s.endpoint == backends.Embeddings {
			return s.input()
		}
		s.texts()
	case fieldPrompt:
		if s.endpoint == backends.Completions {
			return s.prompt()
		}
		s.texts()
	case fieldTokens:
		if ids := s.skip(); ids[0] == '[' {
			s.add(ids)
		}
	default: // plain text: query, documents, system …
		s.texts()
	}
	return err
}

// mergeKey does not depend on the order of keys. Long ones are hashed, so that
// a request with a huge option does not pin it.
func mergeKey(prefix string, options []string) string {
	slices.Sort(options)
	key := prefix + strings.Join(options, "|")
	if len(key) > 200 {
		sum := sha256.Sum256([]byte(key))
		return prefix + "#" + string(sum[:])
	}
	return key
}

func (s *scanner) model() (err *Error) {
	if s.out.Model, err = s.string("model"); err == nil && s.out.Model == "" {
		err = Invalid("model", CodeValue, "'model' is empty")
	}
	return err
}

func (s *scanner) streamOptions() (err *Error) {
	if !s.enter('{') {
		return wrongType("stream_options", "an object", s.peek())
	}
	const param = "stream_options.include_usage"
	seen := false
	s.out.usage = site{at: s.at, end: s.at, before: `"include_usage":`, after: ","}
	if s.peek() == '}' {
		s.out.usage.after = ""
	}
	for key := s.key(); key != nil; key = s.key() {
		first, from := s.peek(), s.at
		switch {
		case text(key) != "include_usage":
			s.skip()
			continue
		case seen:
			return Invalid(param, CodeValue, "'%s' is given more than once", param)
		case first == 'n':
			s.skip()
		default:
			if s.out.WantUsage, err = s.boolean(param); err != nil {
				return err
			}
		}
		seen = true
		s.out.usage = site{at: from, end: s.at}
	}
	return nil
}

func (s *scanner) maxTokens() *Error {
	least := 1
	if s.endpoint == backends.Completions {
		least = 0 // with echo, to score a prompt
	}
	n, err := s.integer("max_tokens", least)
	if err == nil && s.out.MaxTokens == 0 { // else max_completion_tokens was given
		s.out.MaxTokens = n
	}
	return err
}

func (s *scanner) encoding() *Error {
	encoding, err := s.string("encoding_format")
	if err == nil && encoding != "float" && encoding != "base64" {
		err = Invalid("encoding_format", CodeValue, "'encoding_format' must be 'float' or 'base64'")
	}
	s.out.Base64 = encoding == "base64"
	return err
}

// serviceTier reads OpenAI's tiers. None but flex changes anything: a caller is
// served as well as its key allows, and OpenAI too serves a priority that it cannot
// give as default.
func (s *scanner) serviceTier() *Error {
	tier, err := s.string("service_tier")
	if err != nil {
		return err
	}
	switch tier {
	case "auto", "default", "priority", "scale":
	case "flex":
		s.out.Flex = true
	default:
		return Invalid("service_tier", CodeValue, "'service_tier' must be 'auto', 'default', 'flex' or 'priority'")
	}
	return nil
}

func (s *scanner) string(param string) (string, *Error) {
	if c := s.peek(); c != '"' {
		return "", wrongType(param, "a string", c)
	}
	return text(s.skip()), nil
}

func (s *scanner) boolean(param string) (bool, *Error) {
	c := s.peek()
	if c != 't' && c != 'f' {
		return false, wrongType(param, "a boolean", c)
	}
	s.skip()
	return c == 't', nil
}

func (s *scanner) integer(param string, least int) (int, *Error) {
	c := s.peek()
	if c != '-' && (c < '0' || c > '9') {
		return 0, wrongType(param, "an integer", c)
	}
	n, err := strconv.Atoi(alias(s.skip()))
	if err != nil {
		return 0, Invalid(param, CodeType, "'%s' must be an integer", param)
	}
	if n < least {
		return 0, Invalid(param, CodeValue, "'%s' is %d, must be at least %d", param, n, least)
	}
	return n, nil
}

// wrongType names what was given by its first byte.
func wrongType(param, want string, first byte) *Error {
	got := "a number"
	switch first {
	case '{':
		got = "an object"
	case '[':
		got = "an array"
	case '"':
		got = "a string"
	case 't', 'f':
		got = "a boolean"
	case 'n':
		got = "null"
	}
	return Invalid(param, CodeType, "'%s' must be %s, got %s", param, want, got)
}
