package openai

import (
	"fmt"
	"strconv"

	"github.com/tidwall/gjson"
)

// The codes of 400 answers, as the API reference lists them.
const (
	CodeMissing = "missing_required_parameter"
	CodeType    = "invalid_type"
	CodeValue   = "invalid_value"
)

// Error is an API error in OpenAI's shape. Param and Code are null on the wire
// when they are "".
type Error struct {
	Status                     int
	Message, Type, Param, Code string
}

// Error implements error.
func (e *Error) Error() string { return strconv.Itoa(e.Status) + " " + e.Message }

// Invalid is a 400 about one parameter; param and code may be "".
func Invalid(param, code, format string, args ...any) *Error {
	return &Error{
		Status: 400, Type: "invalid_request_error", Param: param, Code: code,
		Message: fmt.Sprintf(format, args...),
	}
}

// AppendError appends {"error":{…}}. All four fields are there, since SDKs and
// tools index them without asking.
func AppendError(dst []byte, e *Error) []byte {
	dst = append(dst, `{"error":{"message":`...)
	dst = gjson.AppendJSONString(dst, e.Message)
	dst = append(dst, `,"type":`...)
	dst = gjson.AppendJSONString(dst, e.Type)
	dst = append(dst, `,"param":`...)
	dst = appendOrNull(dst, e.Param)
	dst = append(dst, `,"code":`...)
	dst = appendOrNull(dst, e.Code)
	return append(dst, "}}"...)
}

func appendOrNull(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, "null"...)
	}
	return gjson.AppendJSONString(dst, s)
}
