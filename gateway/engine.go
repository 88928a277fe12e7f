package gateway

import (
	"bytes"
	"strconv"
	"time"

	"aloft/backends"
	"aloft/backends/openai"

	"github.com/tidwall/gjson"
)

// engineFault turns an engine's error answer into one for the client. The body
// is passed on untouched where it has OpenAI's shape; engines also send
// {"message":…}, {"detail":…} or plain text (docs/failures.md).
func engineFault(status int, body []byte) error {
	if status < 400 || status > 599 || status == 401 || status == 403 {
		return errNotAnswer // a refused key is ours, not the client's
	}
	f := fault{reason: reasonOf(status)}
	f.Error = openai.Error{Status: status, Type: "invalid_request_error", Message: "the engine refused the request"}
	if status >= 500 {
		f.Type, f.Message = "server_error", "the engine failed"
	}
	valid := gjson.ValidBytes(body)
	if e := gjson.GetBytes(body, "error"); valid && e.IsObject() && e.Get("message").Type == gjson.String {
		f.raw, f.Message, f.Code = body, e.Get("message").Str, e.Get("code").String()
		return engineError{f}
	}
	for _, path := range []string{"error", "message", "detail"} {
		if v := gjson.GetBytes(body, path); valid && v.Type == gjson.String && v.Str != "" {
			f.Message = v.Str
			break
		}
	}
	return engineError{f}
}

// announced is when an engine, or a provider, that refused wants to be asked
// again; 0 = it did not say. Dates are not read: no engine sends them.
func announced(h backends.Header) time.Duration {
	units := map[string]int64{"Retry-After-Ms": 1, "Retry-After": 1000}
	const most = 3_600_000 // ms
	wait := time.Duration(0)
	for _, f := range h {
		unit := units[f.Name]
		if unit == 0 || wait > 0 && unit > 1 { // the finer one counts
			continue
		}
		if n, err := strconv.ParseInt(f.Value, 10, 64); err == nil && n > 0 {
			wait = time.Duration(min(n, most/unit)*unit) * time.Millisecond
		}
	}
	return wait
}

// statusOf is the status that an error event stands for: engines put it into
// "code", in the error or beside it.
func statusOf(data []byte) int {
	for _, path := range []string{"error.code", "code", "error.status"} {
		if n := gjson.GetBytes(data, path).Int(); n >= 400 && n <= 599 {
			return int(n)
		}
	}
	return 502
}

// engineError is an engine's own error answer.
type engineError struct{ f fault }

func (e engineError) Error() string { return "engine: " + e.f.Message }

// errNotAnswer is a status that a client cannot be told.
var errNotAnswer = cause{"the engine's status is no answer to the request", backends.ErrBadReply}

// unquote returns the text of a raw JSON string.
func unquote(raw []byte) []byte {
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw[1 : len(raw)-1]
	}
	return []byte(gjson.ParseBytes(raw).Str)
}
