package jobs

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"unicode/utf8"

	"aloft/backends"

	"github.com/tidwall/gjson"
)

// Limits of an input file (OpenAI's batch guide); the last two are ours.
const (
	maxBatchRows   = 50_000
	maxBatchBytes  = 200 << 20
	maxBatchInputs = 50_000  // embedding inputs, over all rows
	maxLineBytes   = 4 << 20 // rows are held whole, a few per model at a time
	maxCustomID    = 512     // bytes
)

// batchLine is one row of an input file. Its slices alias the line.
type batchLine struct {
	CustomID []byte // raw JSON string, with quotes
	Body     []byte // raw JSON object
	Model    string
	Inputs   int // embedding inputs
}

// parseLine reads one row for a batch with this route.
func parseLine(text []byte, route string) (batchLine, *LineError) {
	bad := func(code, param, format string, args ...any) (batchLine, *LineError) {
		return batchLine{}, &LineError{Code: code, Param: param, Message: fmt.Sprintf(format, args...)}
	}
	if !utf8.Valid(text) || !gjson.ValidBytes(text) {
		return bad("invalid_json_line", "", "This line is not valid JSON.")
	}
	row := gjson.ParseBytes(text)
	if !row.IsObject() {
		return bad("invalid_json_line", "", "This line is not a JSON object.")
	}
	if key := repeated(row); key != "" {
		return bad("invalid_json_line", key, "%s is given more than once.", key)
	}
	id, method, url, body := row.Get("custom_id"), row.Get("method"), row.Get("url"), row.Get("body")
	switch {
	case !id.Exists():
		return bad("missing_required_parameter", "custom_id", "custom_id is missing.")
	case id.Type != gjson.String || id.Str == "" || len(id.Str) > maxCustomID:
		return bad("invalid_custom_id", "custom_id", "custom_id must be a string of 1 to %d bytes.", maxCustomID)
	case method.Str != "POST":
		return bad("invalid_method", "method", "method must be POST.")
	case url.Str != route:
		return bad("mismatched_url", "url", "url must be the batch's endpoint, %s.", route)
	case !body.IsObject():
		return bad("missing_required_parameter", "body", "body must be an object.")
	}
	model := body.Get("model")
	switch {
	case model.Type != gjson.String || model.Str == "":
		return bad("missing_required_parameter", "body.model", "body.model must be a string.")
	case body.Get("stream").Type == gjson.True:
		return bad("invalid_value", "body.stream", "stream is not possible in a batch.")
	}
	l := batchLine{CustomID: []byte(id.Raw), Body: []byte(body.Raw), Model: model.Str}
	if in := body.Get("input"); in.Exists() {
		l.Inputs = 1
		if first := in.Get("0"); in.IsArray() && first.Type != gjson.Number {
			l.Inputs = int(in.Get("#").Int())
		}
	}
	return l, nil
}

// repeated is a key of a row that is there twice, of which parsers disagree on
// which one counts; "" = none. Those of its body are the gateway's to judge.
func repeated(row gjson.Result) (twice string) {
	var seen [4]bool
	row.ForEach(func(key, _ gjson.Result) bool {
		if i := slices.Index(rowKeys[:], key.Str); i >= 0 {
			if seen[i] {
				twice = key.Str
			}
			seen[i] = true
		}
		return twice == ""
	})
	return twice
}

var rowKeys = [4]string{"custom_id", "method", "url", "body"}

// errLongLine is a line over the limit; the reader stands behind it.
var errLongLine = errors.New("line too long")

// lineReader reads lines of any ending. A byte order mark before the first and
// blank lines after the last are no lines; a blank one between two is one.
type lineReader struct {
	in    *bufio.Reader
	most  int // bytes of a line
	line  int // number of the line last returned, from 1
	blank int // blank lines held back until it is known whether something follows
	held  []byte
	heldE error
	buf   []byte
}

func newLineReader(r io.Reader, most int) *lineReader {
	l := &lineReader{in: bufio.NewReaderSize(r, 64<<10), most: most}
	if mark, _ := l.in.Peek(3); string(mark) == "\xef\xbb\xbf" {
		l.in.Discard(3)
	}
	return l
}

// next returns a line without its ending, valid until the next call; io.EOF at
// the end, errLongLine for a line that was skipped.
func (l *lineReader) next() ([]byte, error) {
	if l.blank == 0 && l.held == nil && l.heldE == nil {
		for {
			text, err := l.read()
			if err == nil && len(bytes.TrimSpace(text)) == 0 {
				l.blank++
				continue
			}
			if err != nil && err != errLongLine {
				return nil, err // the blank lines before the end are none
			}
			l.held, l.heldE = text, err
			break
		}
	}
	l.line++
	if l.blank > 0 {
		l.blank--
		return nil, nil
	}
	text, err := l.held, l.heldE
	l.held, l.heldE = nil, nil
	return text, err
}

// read returns the next physical line; io.EOF if there is none.
func (l *lineReader) read() ([]byte, error) {
	l.buf = l.buf[:0]
	long := false
	for {
		part, err := l.in.ReadSlice('\n')
		if long = long || len(l.buf)+len(part) > l.most+2; !long {
			l.buf = append(l.buf, part...)
		}
		switch {
		case err == bufio.ErrBufferFull:
			continue
		case err == io.EOF && len(part) == 0 && len(l.buf) == 0 && !long:
			return nil, io.EOF
		case err != nil && err != io.EOF:
			return nil, err
		}
		text := bytes.TrimSuffix(bytes.TrimSuffix(l.buf, []byte("\n")), []byte("\r"))
		if long || len(text) > l.most {
			return nil, errLongLine
		}
		return text, nil
	}
}

// verdict is what validation found.
type verdict struct {
	Rows   int
	Model  string
	Errors []LineError
}

// validate reads the whole file once and holds one line at a time.
func validate(ctx context.Context, r io.Reader, route string) (verdict, error) {
	var v verdict
	more := 0
	add := func(e LineError) {
		if len(v.Errors) < maxBatchErrors {
			v.Errors = append(v.Errors, e)
		} else {
			more++
		}
	}
	seen := map[[16]byte]struct{}{} // 16 of a hash's bytes: 50,000 long ids stay under 4 MB
	inputs, lines := 0, newLineReader(r, maxLineBytes)
	for {
		if lines.line%1024 == 0 && ctx.Err() != nil {
			return v, context.Cause(ctx)
		}
		text, err := lines.next()
		if err == io.EOF {
			break
		}
		if err == errLongLine {
			add(LineError{Code: "line_too_long", Message: fmt.Sprintf("This line has more than %d bytes.", maxLineBytes), Line: lines.line})
			continue
		}
		if err != nil {
			return v, err
		}
		if v.Rows++; v.Rows > maxBatchRows {
			add(LineError{Code: "too_many_rows", Message: fmt.Sprintf("A batch has at most %d rows.", maxBatchRows), Line: lines.line})
			break
		}
		row, fault := parseLine(text, route)
		if fault != nil {
			fault.Line = lines.line
			add(*fault)
			continue
		}
		sum := sha256.Sum256([]byte(gjson.ParseBytes(row.CustomID).Str))
		id := [16]byte(sum[:16])
		if _, twice := seen[id]; twice {
			add(LineError{Code: "duplicate_custom_id", Param: "custom_id", Line: lines.line,
				Message: fmt.Sprintf("custom_id %s is used by an earlier line.", row.CustomID)})
		}
		seen[id] = struct{}{}
		if v.Model == "" {
			v.Model = row.Model
		} else if row.Model != v.Model {
			add(LineError{Code: "mismatched_model", Param: "body.model", Line: lines.line,
				Message: fmt.Sprintf("The batch is for model %q, this line for %q.", v.Model, row.Model)})
		}
		if inputs += row.Inputs; route == backends.Embeddings.Path() && inputs > maxBatchInputs {
			add(LineError{Code: "too_many_inputs", Param: "body.input", Line: lines.line,
				Message: fmt.Sprintf("A batch has at most %d embedding inputs.", maxBatchInputs)})
			break
		}
	}
	if more > 0 {
		v.Errors = append(v.Errors, LineError{Code: "more_errors", Message: fmt.Sprintf("%d more errors are not listed.", more)})
	}
	if v.Rows == 0 && len(v.Errors) == 0 {
		add(LineError{Code: "empty_file", Message: "The file has no rows."})
	}
	return v, nil
}

// CheckInput finds what a batch for this route would be refused for, by the check
// that it has when it begins.
func CheckInput(ctx context.Context, r io.Reader, route string) ([]LineError, error) {
	in := &io.LimitedReader{R: r, N: maxBatchBytes + 1}
	v, err := validate(ctx, in, route)
	if in.N <= 0 {
		return []LineError{{Code: "file_too_large", Message: fmt.Sprintf("A batch file has at most %d bytes.", maxBatchBytes)}}, nil
	}
	return v.Errors, err
}
