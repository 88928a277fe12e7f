package openai

import "strconv"

// Error is an API error in OpenAI's shape. Param and Code are null on the wire
// when empty.
type Error struct {
	Status                     int
	Message, Type, Param, Code string
}

// Error implements error.
func (e *Error) Error() string { return strconv.Itoa(e.Status) + " " + e.Message }

// AppendError appends {"error":{...}} with all four fields present.
func AppendError(dst []byte, e *Error) []byte { return dst }
