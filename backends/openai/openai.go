// Package openai is the OpenAI wire format as pure functions over bytes: what
// routing needs from a request, the edits a relay may make, merging and
// splitting embeddings, SSE framing and the error shape. No I/O, no clock.
//
// Bodies are relayed, not rebuilt: an engine gets the bytes the client sent
// except the value of "model" (research/gateways.md F13).
package openai

import "aloft/backends"

// Scan is what routing needs from a request body, found without decoding the rest.
type Scan struct {
	Model     string
	Stream    bool
	WantUsage bool     // stream_options.include_usage
	MaxTokens int      // max_completion_tokens, max_tokens; 0 = not given
	Inputs    [][]byte // embeddings: raw JSON value of each row (string or int array); aliases body
	MergeKey  string   // embeddings: the options that must agree for merging
	Base64    bool     // embeddings: encoding_format base64 asked for
	Text      [][]byte // raw JSON strings whose tokens make the prompt
}

// ScanRequest checks body and finds what routing needs; an error is an *Error.
func ScanRequest(e backends.Endpoint, body []byte) (Scan, error) { return Scan{}, nil }

// SetModel appends body to dst with the top-level "model" value replaced.
func SetModel(dst, body []byte, model string) ([]byte, error) { return append(dst, body...), nil }

// ForceUsage appends body to dst with stream_options.include_usage set to true.
func ForceUsage(dst, body []byte) ([]byte, error) { return append(dst, body...), nil }
