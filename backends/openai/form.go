package openai

import (
	"bytes"
	"mime"
	"net/textproto"
	"strings"
)

// Bounds of a form. The file is bounded by the body's limit alone.
const (
	maxParts      = 64
	maxPartHeader = 4096 // bytes
	maxFormField  = 1024 // bytes, of those that are read here
)

// ScanForm finds what routing needs in a multipart/form-data body, without
// copying the file: Model and Stream. It is stricter than most parsers (RFC 2046
// to the letter: CRLF, no preamble, a closing boundary), so that no engine can
// read another model than the one that was admitted. The error is an *Error
// with status 400.
func ScanForm(contentType string, body []byte) (Scan, error) {
	f, err := parseForm(contentType, body)
	if err != nil {
		return Scan{}, err
	}
	return Scan{Model: string(f.model), Stream: f.stream}, nil
}

// SetFormModel appends body to dst with the value of the form's model replaced;
// every other byte stays. The error is an *Error.
func SetFormModel(dst, body []byte, contentType, model string) ([]byte, error) {
	f, err := parseForm(contentType, body)
	if err != nil {
		return dst, err
	}
	out := append(dst, body[:f.at]...)
	out = append(out, model...)
	out = append(out, body[f.at+len(f.model):]...)
	// A name with the boundary in it, or with line ends, would make another form.
	if f, err = parseForm(contentType, out[len(dst):]); err != nil || string(f.model) != model {
		return dst, Invalid("model", CodeValue, "'model' cannot be written into a form")
	}
	return out, nil
}

// form is what is known of a form so far.
type form struct {
	model       []byte
	at          int // where the model's value begins in the body; 0 = none yet
	stream      bool
	sawStream   bool
	isFile, enc bool // of the part at hand
}

func parseForm(contentType string, body []byte) (f form, err *Error) {
	kind, params, bad := mime.ParseMediaType(contentType)
	mark := params["boundary"]
	if bad != nil || kind != "multipart/form-data" || mark == "" || len(mark) > 70 {
		return f, Invalid("", "", "the Content-Type must be multipart/form-data with a boundary")
	}
	delimiter := []byte("\r\n--" + mark)
	if !bytes.HasPrefix(body, delimiter[2:]) {
		return f, Invalid("", "", "the form must begin with its boundary at byte 0: '--' and the Content-Type's boundary, nothing before it")
	}
	pos := len(delimiter) - 2
	for parts := 0; ; parts++ {
		rest := body[pos:]
		switch {
		case string(rest) == "--" || bytes.HasPrefix(rest, []byte("--\r\n")):
			return f, f.complete()
		case !bytes.HasPrefix(rest, []byte("\r\n")):
			return f, Invalid("", "", "the form has a damaged boundary: expected CRLF, or '--' and CRLF or the end, at byte %d", pos)
		case parts == maxParts:
			return f, Invalid("", "", "the form has more than %d parts", maxParts)
		}
		head := bytes.Index(rest[:min(len(rest), maxPartHeader)], []byte("\r\n\r\n"))
		if head < 0 {
			return f, Invalid("", "", "the form's part %d has no end of its header within %d bytes", parts, maxPartHeader)
		}
		if bytes.Contains(rest[:head+4], delimiter) {
			return f, Invalid("", "", "the form's part %d has no end of its header", parts)
		}
		// The blank line before the value may be the delimiter's own line end.
		start := pos + head + 4
		end := bytes.Index(body[start-2:], delimiter)
		if end < 0 {
			return f, Invalid("", "", "the form ends within part %d: it was cut off", parts)
		}
		if end < 2 {
			return f, Invalid("", "", "the form's part %d has no value", parts)
		}
		value := body[start : start-2+end]
		if err = f.part(rest[2:max(2, head)], value, start); err != nil {
			return f, err
		}
		pos = start - 2 + end + len(delimiter)
	}
}

func (f *form) complete() *Error {
	if f.at == 0 {
		return Invalid("model", CodeMissing, "missing required parameter: 'model'")
	}
	return nil
}

// part reads one part; start is where value lies in the body.
func (f *form) part(header, value []byte, start int) *Error {
	name, err := f.name(header)
	if err != nil || name != "model" && name != "stream" {
		return err
	}
	switch {
	case f.isFile || f.enc:
		return Invalid(name, CodeType, "'%s' must be a plain field", name)
	case len(value) > maxFormField:
		return Invalid(name, CodeValue, "'%s' is longer than %d bytes", name, maxFormField)
	case name == "model" && f.at != 0, name == "stream" && f.sawStream:
		return Invalid(name, CodeValue, "'%s' is given more than once", name)
	case name == "model" && (len(value) == 0 || bytes.ContainsAny(value, "\r\n")):
		return Invalid(name, CodeValue, "'model' is empty or has line ends")
	case name == "model":
		f.model, f.at = value, start
		return nil
	}
	f.sawStream = true
	switch strings.ToLower(string(value)) { // as FastAPI reads a boolean
	case "true", "1", "on", "yes", "t", "y":
		f.stream = true
	case "false", "0", "off", "no", "f", "n", "":
	default:
		return Invalid(name, CodeType, "'stream' must be a boolean")
	}
	return nil
}

// name reads a part's header. Each line is one field: folded lines are refused.
func (f *form) name(header []byte) (name string, err *Error) {
	damaged := Invalid("", "", "the form has a part with a damaged header")
	seen := false
	f.isFile, f.enc = false, false
	for line := range bytes.SplitSeq(header, []byte("\r\n")) {
		key, value, ok := bytes.Cut(line, []byte{':'})
		if !ok || len(key) == 0 || bytes.ContainsAny(key, " \t") || bytes.ContainsAny(line, "\r\n\x00") {
			return "", damaged
		}
		switch textproto.CanonicalMIMEHeaderKey(string(key)) {
		case "Content-Disposition":
			kind, params, bad := mime.ParseMediaType(string(value))
			if bad != nil || kind != "form-data" || seen {
				return "", damaged
			}
			seen, name = true, params["name"]
			_, f.isFile = params["filename"]
		case "Content-Transfer-Encoding":
			switch strings.ToLower(string(bytes.TrimSpace(value))) {
			case "7bit", "8bit", "binary":
			default:
				f.enc = true
			}
		}
	}
	if !seen {
		return "", damaged
	}
	return name, nil
}
