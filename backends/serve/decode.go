package serve

import (
	"strconv"
	"strings"

	"aloft/backends"
	"aloft/backends/openai"

	"github.com/tidwall/gjson"
)

// fields are a request's top-level values by their exact names: encoding/json
// would also take "PROMPT", which the scan has not checked. The last of equal
// names counts. Unknown fields are tolerated; those that would change the answer
// in a way our engines cannot honour are refused (refuseUnsupported).
type fields map[string]gjson.Result

func readFields(body []byte) fields {
	f := fields{}
	gjson.ParseBytes(body).ForEach(func(key, v gjson.Result) bool {
		f[key.Str] = v
		return true
	})
	return f
}

// decodeGenerate turns a body that has passed the scan into a request.
func decodeGenerate(e backends.Endpoint, body []byte, scan openai.Scan) (*GenerateRequest, error) {
	f := readFields(body)
	if err := f.refuseUnsupported(); err != nil {
		return nil, err
	}
	req := &GenerateRequest{Chat: e == backends.Chat, MaxTokens: scan.MaxTokens, Echo: f["echo"].Type == gjson.True}
	var err *openai.Error
	for _, read := range []func(*GenerateRequest) *openai.Error{f.prompt, f.sampling, f.stop, f.logprobs} {
		if err = read(req); err != nil {
			return nil, err
		}
	}
	return req, nil
}

// refuseUnsupported answers features that our engines lack with a clear 400
// instead of an answer that silently ignores them.
func (f fields) refuseUnsupported() error {
	for key, v := range f {
		what := ""
		switch key {
		case "n", "best_of":
			if v.Type != gjson.Null && v.Raw != "1" {
				what = "more than one answer a request"
			}
		case "tools", "functions":
			if len(v.Array()) > 0 {
				what = "tools"
			}
		case "response_format":
			if v.Type != gjson.Null && v.Get("type").Str != "text" {
				what = "response formats other than text"
			}
		case "logit_bias":
			if len(v.Map()) > 0 {
				what = "logit bias"
			}
		case "suffix":
			if v.Type == gjson.String && v.Str != "" {
				what = "insertion"
			}
		}
		if what != "" {
			return openai.Invalid(key, "unsupported_parameter", "'%s': this engine does not support %s", key, what)
		}
	}
	if f["max_tokens"].Raw == "0" {
		return openai.Invalid("max_tokens", openai.CodeValue, "'max_tokens' is 0, must be at least 1")
	}
	return nil
}

// text is a string as an engine may see it: tokenizers in C++ end the process
// over bytes that are no UTF-8.
func text(v gjson.Result) string { return strings.ToValidUTF8(v.Str, "\ufffd") }

func (f fields) prompt(req *GenerateRequest) *openai.Error {
	if !req.Chat {
		return prompt(f["prompt"], req)
	}
	for i, m := range f["messages"].Array() {
		role := m.Get("role")
		if role.Type == gjson.Null {
			return openai.Invalid("messages", openai.CodeMissing, "message %d has no 'role'", i)
		}
		if role.Type != gjson.String || role.Str == "" {
			return openai.Invalid("messages", openai.CodeType, "the 'role' of message %d must be a string", i)
		}
		content, err := contentText(m.Get("content"))
		if err != nil {
			return err
		}
		name := text(role)
		if name == "developer" { // the newer name of the same thing
			name = "system"
		}
		req.Messages = append(req.Messages, Message{Role: name, Content: content})
	}
	return nil
}

// contentText joins the text of a message; other parts are refused.
func contentText(v gjson.Result) (string, *openai.Error) {
	switch {
	case v.Type == gjson.Null: // absent too
		return "", nil
	case v.Type == gjson.String:
		return text(v), nil
	case !v.IsArray():
		return "", openai.Invalid("messages", openai.CodeType, "a message's 'content' must be a string or an array of parts")
	}
	var all strings.Builder
	for _, part := range v.Array() {
		if part.Get("type").Str != "text" || part.Get("text").Type != gjson.String {
			return "", openai.Invalid("messages", "unsupported_parameter", "this engine reads text parts only")
		}
		all.WriteString(text(part.Get("text")))
	}
	return all.String(), nil
}

// prompt reads one prompt in any of its four forms; the scan has checked them.
func prompt(v gjson.Result, req *GenerateRequest) *openai.Error {
	if items := v.Array(); v.IsArray() && items[0].Type != gjson.Number {
		if len(items) != 1 {
			return openai.Invalid("prompt", "unsupported_parameter", "this engine takes one prompt a request, got %d", len(items))
		}
		v = items[0]
	}
	if v.Type == gjson.String {
		req.Prompt = text(v)
		return nil
	}
	for _, id := range v.Array() {
		req.PromptIDs = append(req.PromptIDs, int(id.Int()))
	}
	return nil
}

func (f fields) sampling(req *GenerateRequest) (err *openai.Error) {
	if req.Temperature, err = f.within("temperature", 2); err != nil {
		return err
	}
	if req.TopP, err = f.within("top_p", 1); err != nil {
		return err
	}
	if v := f["seed"]; v.Type != gjson.Null {
		n, bad := strconv.ParseInt(v.Raw, 10, 64)
		if bad != nil {
			return openai.Invalid("seed", openai.CodeType, "'seed' must be an integer")
		}
		req.Seed = &n
	}
	return nil
}

// within returns -1 when the field is not given.
func (f fields) within(param string, most float64) (float64, *openai.Error) {
	switch v := f[param]; {
	case v.Type == gjson.Null:
		return -1, nil
	case v.Type != gjson.Number:
		return 0, openai.Invalid(param, openai.CodeType, "'%s' must be a number", param)
	case !(v.Num >= 0 && v.Num <= most):
		return 0, openai.Invalid(param, openai.CodeValue, "'%s' is %s, must be between 0 and %v", param, v.Raw, most)
	default:
		return v.Num, nil
	}
}

func (f fields) stop(req *GenerateRequest) *openai.Error {
	v := f["stop"]
	if v.Type == gjson.Null {
		return nil
	}
	items := v.Array() // a lone string counts as one item
	if len(items) > 4 {
		return openai.Invalid("stop", openai.CodeValue, "'stop' has %d strings, at most 4 are allowed", len(items))
	}
	for _, item := range items {
		if item.Type != gjson.String || item.Str == "" {
			return openai.Invalid("stop", openai.CodeType, "'stop' must be a string or an array of strings, none empty")
		}
		req.Stop = append(req.Stop, text(item))
	}
	return nil
}

// logprobs reads a boolean and top_logprobs (chat) or an integer (completions).
func (f fields) logprobs(req *GenerateRequest) *openai.Error {
	v, top := f["logprobs"], f["top_logprobs"]
	req.Logprobs = -1
	if !req.Chat {
		if v.Type == gjson.Null {
			return nil
		}
		return wholeNumber("logprobs", v, 5, &req.Logprobs)
	}
	switch {
	case v.Type != gjson.Null && !v.IsBool():
		return openai.Invalid("logprobs", openai.CodeType, "'logprobs' must be a boolean")
	case v.Type != gjson.True && top.Num != 0:
		return openai.Invalid("top_logprobs", openai.CodeValue, "'top_logprobs' needs 'logprobs' to be true")
	case v.Type != gjson.True:
		return nil
	case top.Type == gjson.Null:
		req.Logprobs = 0
		return nil
	}
	return wholeNumber("top_logprobs", top, 20, &req.Logprobs)
}

func wholeNumber(param string, v gjson.Result, most int, to *int) *openai.Error {
	n, err := strconv.Atoi(v.Raw)
	if v.Type != gjson.Number || err != nil || n < 0 || n > most {
		return openai.Invalid(param, openai.CodeValue, "'%s' must be an integer between 0 and %d", param, most)
	}
	*to = n
	return nil
}
