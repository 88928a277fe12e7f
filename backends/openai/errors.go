package openai

import (
	"fmt"
	"strconv"

	"aloft/backends"

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

// AppendErrorFor appends the body that answers a failed call of e: OpenAI's
// shape, which all but Anthropic's Messages share.
func AppendErrorFor(dst []byte, e backends.Endpoint, err *Error) []byte {
	if e != backends.Messages {
		return AppendError(dst, err)
	}
	dst = append(dst, `{"type":"error","error":{"type":"`...)
	dst = append(dst, anthropicType(err.Status)...)
	dst = append(dst, `","message":`...)
	dst = gjson.AppendJSONString(dst, err.Message)
	return append(dst, "}}"...)
}

// AppendFailure appends the event that tells the client of a stream of e that
// it failed. Nothing may follow it.
func AppendFailure(dst []byte, e backends.Endpoint, err *Error) []byte {
	switch e {
	case backends.Messages:
		dst = append(dst, "event: error\ndata: "...)
		dst = AppendErrorFor(dst, e, err)
	case backends.Responses:
		dst = append(dst, `event: error
data: {"type":"error","code":`...)
		dst = appendOrNull(dst, err.Code)
		dst = append(dst, `,"message":`...)
		dst = gjson.AppendJSONString(dst, err.Message)
		dst = append(dst, `,"param":`...)
		dst = appendOrNull(dst, err.Param)
		// The numbers of the events before are the engine's; no client orders by this one.
		dst = append(dst, `,"sequence_number":0}`...)
	default:
		dst = append(dst, "data: "...)
		dst = AppendError(dst, err)
	}
	return append(dst, "\n\n"...)
}

// anthropicType names a status as Anthropic's API reference does.
func anthropicType(status int) string {
	switch status {
	case 401:
		return "authentication_error"
	case 403:
		return "permission_error"
	case 404:
		return "not_found_error"
	case 413:
		return "request_too_large"
	case 429:
		return "rate_limit_error"
	case 503, 529:
		return "overloaded_error"
	}
	if status >= 500 {
		return "api_error"
	}
	return "invalid_request_error"
}

func appendOrNull(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, "null"...)
	}
	return gjson.AppendJSONString(dst, s)
}
