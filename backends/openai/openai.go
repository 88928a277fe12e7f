// Package openai is the OpenAI wire format as pure functions over bytes: what
// routing needs from a request, the edits a relay may make, merging
// calls and sharing out their answers, SSE framing and the error shape. No I/O, no clock.
//
// Bodies are relayed, not rebuilt: an engine gets the bytes the client sent
// except the value of "model" (docs/failures.md F13).
package openai

import (
	"bytes"
	"unsafe"

	"github.com/tidwall/gjson"
)

// maxDepth bounds nesting. The validator recurses, so a body of a few million
// brackets would otherwise overflow the stack, which no recover catches.
const maxDepth = 1000

// alias views b as a string without a copy. The string must not outlive b and b
// must not change meanwhile; both hold inside this package's calls.
func alias(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// valid checks that body is one JSON object.
func valid(body []byte) *Error {
	if tooDeep(body) {
		return Invalid("", "", "the request body is nested more than %d deep", maxDepth)
	}
	if !gjson.ValidBytes(body) {
		return Invalid("", "", "the request body is not valid JSON")
	}
	if w := (walk{data: body}); w.peek() != '{' {
		return Invalid("", "", "the request body must be a JSON object")
	}
	return nil
}

// tooDeep walks the body only when it has enough brackets to matter.
func tooDeep(body []byte) bool {
	if bytes.Count(body, []byte{'['})+bytes.Count(body, []byte{'{'}) <= maxDepth {
		return false
	}
	depth, inString := 0, false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '[' || c == '{':
			if depth++; depth > maxDepth {
				return true
			}
		case c == ']' || c == '}':
			depth--
		}
	}
	return false
}
