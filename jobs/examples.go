package jobs

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tidwall/gjson"
)

// minExamples is the least that a training file must have (OpenAI's). A
// validation file needs one.
const minExamples = 10

// maxExampleErrors bounds what is said about one bad file; the last line of a
// longer list says how many more there are.
const maxExampleErrors = 20

// The forms of an example. A file has one of them throughout.
const (
	formChat       = "messages"   // {"messages":[{"role":…,"content":…},…]}
	formCompletion = "completion" // {"prompt":…,"completion":…}
	formText       = "text"       // {"text":…}: ours, for models that only continue text
)

// examples is what the reading of a file of examples found.
type examples struct {
	Count  int
	Errors []LineError
}

// readExamples reads the whole file once and holds one line at a time.
func readExamples(ctx context.Context, r io.Reader) (examples, error) {
	var out examples
	more, form := 0, ""
	add := func(line int, format string, args ...any) {
		if len(out.Errors) == maxExampleErrors {
			more++
			return
		}
		out.Errors = append(out.Errors, LineError{Line: line, Message: fmt.Sprintf(format, args...)})
	}
	for lines := newLineReader(r, maxLineBytes); ; {
		if lines.line%1024 == 0 && ctx.Err() != nil {
			return out, context.Cause(ctx)
		}
		text, err := lines.next()
		if err == io.EOF {
			break
		}
		if err != nil && err != errLongLine {
			return out, err
		}
		out.Count++
		if err == errLongLine {
			add(lines.line, "has more than %d bytes", maxLineBytes)
			continue
		}
		is, fault := parseExample(text)
		switch {
		case fault != "":
			add(lines.line, "%s", fault)
		case form == "":
			form = is
		case is != form:
			add(lines.line, "is an example with %q, the lines before have %q", is, form)
		}
	}
	if more > 0 {
		out.Errors = append(out.Errors, LineError{Message: fmt.Sprintf("%d more lines are wrong", more)})
	}
	return out, nil
}

// parseExample says which form an example has, or what is wrong with it.
func parseExample(text []byte) (form, fault string) {
	if !utf8.Valid(text) || !gjson.ValidBytes(text) {
		return "", "is not valid JSON"
	}
	row := gjson.ParseBytes(text)
	if !row.IsObject() {
		return "", "is not a JSON object"
	}
	for _, f := range []string{formChat, formCompletion, formText} {
		if row.Get(f).Exists() {
			form = f
			break
		}
	}
	switch form {
	case formChat:
		fault = chatFault(row.Get(formChat))
	case formCompletion:
		fault = emptyFault(row, formCompletion)
		if row.Get("prompt").Type != gjson.String {
			fault = `"prompt" must be a string`
		}
	case formText:
		fault = emptyFault(row, formText)
	default:
		fault = `has neither "messages", nor "prompt" and "completion", nor "text"`
	}
	return form, fault
}

func emptyFault(row gjson.Result, key string) string {
	if v := row.Get(key); v.Type != gjson.String || strings.TrimSpace(v.Str) == "" {
		return fmt.Sprintf("%q must be a string that is not empty", key)
	}
	return ""
}

var chatRoles = []string{"system", "developer", "user", "assistant", "tool", "function"}

// chatFault says what is wrong with the messages of an example.
func chatFault(messages gjson.Result) string {
	if !messages.IsArray() || len(messages.Array()) == 0 {
		return `"messages" must be an array that is not empty`
	}
	taught := false
	for i, m := range messages.Array() {
		role, content := m.Get("role"), m.Get("content")
		calls := m.Get("tool_calls").Exists() || m.Get("function_call").Exists()
		switch {
		case !m.IsObject() || !slices.Contains(chatRoles, role.Str):
			return fmt.Sprintf("message %d: \"role\" must be one of %v", i+1, chatRoles)
		case content.Type == gjson.String, role.Str == "assistant" && calls:
		case content.IsArray():
			if fault := partsFault(content); fault != "" {
				return fmt.Sprintf("message %d: %s", i+1, fault)
			}
		default:
			return fmt.Sprintf("message %d: \"content\" must be a string or an array of text parts", i+1)
		}
		taught = taught || role.Str == "assistant"
	}
	if !taught {
		return "has no message of the assistant to learn from"
	}
	return ""
}

func partsFault(parts gjson.Result) string {
	for _, p := range parts.Array() {
		if p.Get("type").Str != "text" || p.Get("text").Type != gjson.String {
			return "only parts of type text can be trained on"
		}
	}
	return ""
}

// fault is the code and the message of a file that cannot be used; two
// empty strings = it can.
func (e examples) fault(param string, least int) (code, message string) {
	switch {
	case len(e.Errors) > 0:
		var b strings.Builder
		fmt.Fprintf(&b, "the job failed due to an invalid %s:", strings.ReplaceAll(param, "_", " "))
		for i, l := range e.Errors[:min(3, len(e.Errors))] {
			b.WriteString([]string{" ", "; "}[min(i, 1)] + l.String())
		}
		if n := len(e.Errors) - 3; n > 0 {
			b.WriteString("; the events list more")
		}
		return "invalid_" + param, b.String()
	case e.Count < least:
		return CodeTooFew, fmt.Sprintf("%s has %d example(s), but must have at least %d", strings.ReplaceAll(param, "_", " "), e.Count, least)
	}
	return "", ""
}

// String is the error with its line.
func (e LineError) String() string {
	if e.Line == 0 {
		return e.Message
	}
	return fmt.Sprintf("line %d %s", e.Line, e.Message)
}
