package serve

import (
	"encoding/json"
	"errors"
	"math"
	"strings"

	"aloft/backends"
	"aloft/backends/openai"

	"github.com/tidwall/gjson"
)

// generateBody is what our engines read of a chat or completion request.
// Unknown fields are tolerated; those that would change the answer in a way we
// cannot honour are refused (refuseUnsupported).
type generateBody struct {
	Messages    []messageBody   `json:"messages"`
	Prompt      json.RawMessage `json:"prompt"`
	Temperature *float64        `json:"temperature"`
	TopP        *float64        `json:"top_p"`
	Seed        *int64          `json:"seed"`
	Stop        json.RawMessage `json:"stop"`
	Logprobs    json.RawMessage `json:"logprobs"` // chat: a boolean; completions: an integer
	TopLogprobs *int            `json:"top_logprobs"`
}

type messageBody struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

// decodeGenerate turns a scanned body into a request.
func decodeGenerate(e backends.Endpoint, body []byte, scan openai.Scan) (*GenerateRequest, error) {
	if err := refuseUnsupported(body); err != nil {
		return nil, err
	}
	var in generateBody
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, unmarshalError(err)
	}
	req := &GenerateRequest{Chat: e == backends.Chat, MaxTokens: scan.MaxTokens, Seed: in.Seed, Logprobs: -1}
	var err *openai.Error
	if req.Chat {
		req.Messages, err = messages(in.Messages)
	} else {
		err = prompt(in.Prompt, req)
	}
	for _, step := range []func() *openai.Error{
		func() (err *openai.Error) {
			req.Temperature, err = within("temperature", in.Temperature, 2)
			return err
		},
		func() (err *openai.Error) { req.TopP, err = within("top_p", in.TopP, 1); return err },
		func() (err *openai.Error) { req.Stop, err = stopStrings(in.Stop); return err },
		func() (err *openai.Error) { req.Logprobs, err = logprobs(&in, req.Chat); return err },
	} {
		if err == nil {
			err = step()
		}
	}
	if err != nil {
		return nil, err
	}
	return req, nil
}

func unmarshalError(err error) error {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return openai.Invalid(wrong.Field, openai.CodeType, "'%s' must not be a %s", wrong.Field, wrong.Value)
	}
	return openai.Invalid("", "", "the request body cannot be read: %v", err)
}

// refuseUnsupported answers features that our engines lack with a clear 400
// instead of an answer that silently ignores them.
func refuseUnsupported(body []byte) (err error) {
	refuse := func(key, what string) {
		err = openai.Invalid(key, "unsupported_parameter", "'%s': this engine does not support %s", key, what)
	}
	gjson.ParseBytes(body).ForEach(func(key, v gjson.Result) bool {
		switch k := key.Str; k {
		case "n", "best_of":
			if v.Type != gjson.Null && v.Raw != "1" {
				refuse(k, "more than one answer a request")
			}
		case "tools", "functions":
			if len(v.Array()) > 0 {
				refuse(k, "tools")
			}
		case "response_format":
			if kind := v.Get("type").Str; v.Type != gjson.Null && kind != "text" {
				refuse(k, "response formats other than text")
			}
		case "logit_bias":
			if len(v.Map()) > 0 {
				refuse(k, "logit bias")
			}
		case "echo":
			if v.Type == gjson.True {
				refuse(k, "echo")
			}
		case "suffix":
			if v.Type == gjson.String && v.Str != "" {
				refuse(k, "insertion")
			}
		case "max_tokens":
			if v.Raw == "0" {
				err = openai.Invalid(k, openai.CodeValue, "'max_tokens' is 0, must be at least 1")
			}
		}
		return err == nil
	})
	return err
}

func messages(in []messageBody) ([]Message, *openai.Error) {
	out := make([]Message, len(in))
	for i, m := range in {
		if m.Role == "" {
			return nil, openai.Invalid("messages", openai.CodeMissing, "message %d has no 'role'", i)
		}
		text, err := contentText(m.Content)
		if err != nil {
			return nil, err
		}
		if m.Role == "developer" { // the newer name of the same thing
			m.Role = "system"
		}
		out[i] = Message{Role: m.Role, Content: text}
	}
	return out, nil
}

// contentText joins the text of a message; other parts are refused.
func contentText(raw json.RawMessage) (string, *openai.Error) {
	v := gjson.ParseBytes(raw)
	switch {
	case v.Type == gjson.Null: // absent too
		return "", nil
	case v.Type == gjson.String:
		return v.Str, nil
	case !v.IsArray():
		return "", openai.Invalid("messages", openai.CodeType, "a message's 'content' must be a string or an array of parts")
	}
	var text strings.Builder
	for _, part := range v.Array() {
		if part.Get("type").Str != "text" || part.Get("text").Type != gjson.String {
			return "", openai.Invalid("messages", "unsupported_parameter", "this engine reads text parts only")
		}
		text.WriteString(part.Get("text").Str)
	}
	return text.String(), nil
}

// prompt reads one prompt in any of its four forms; the scan has checked them.
func prompt(raw json.RawMessage, req *GenerateRequest) *openai.Error {
	v := gjson.ParseBytes(raw)
	if items := v.Array(); v.IsArray() && items[0].Type != gjson.Number {
		if len(items) != 1 {
			return openai.Invalid("prompt", "unsupported_parameter", "this engine takes one prompt a request, got %d", len(items))
		}
		v = items[0]
	}
	if v.Type == gjson.String {
		req.Prompt = v.Str
		return nil
	}
	for _, id := range v.Array() {
		req.PromptIDs = append(req.PromptIDs, int(id.Int()))
	}
	return nil
}

// within returns -1 when v is not given.
func within(param string, v *float64, most float64) (float64, *openai.Error) {
	switch {
	case v == nil:
		return -1, nil
	case math.IsNaN(*v) || *v < 0 || *v > most:
		return 0, openai.Invalid(param, openai.CodeValue, "'%s' is %v, must be between 0 and %v", param, *v, most)
	}
	return *v, nil
}

func stopStrings(raw json.RawMessage) ([]string, *openai.Error) {
	v := gjson.ParseBytes(raw)
	if v.Type == gjson.Null {
		return nil, nil
	}
	items := v.Array() // a lone string counts as one item
	if len(items) > 4 {
		return nil, openai.Invalid("stop", openai.CodeValue, "'stop' has %d strings, at most 4 are allowed", len(items))
	}
	out := make([]string, len(items))
	for i, item := range items {
		if item.Type != gjson.String || item.Str == "" {
			return nil, openai.Invalid("stop", openai.CodeType, "'stop' must be a string or an array of strings, none empty")
		}
		out[i] = item.Str
	}
	return out, nil
}

func logprobs(in *generateBody, chat bool) (int, *openai.Error) {
	v := gjson.ParseBytes(in.Logprobs)
	top := 0
	if in.TopLogprobs != nil {
		top = *in.TopLogprobs
	}
	switch {
	case chat && top != 0 && v.Type != gjson.True:
		return 0, openai.Invalid("top_logprobs", openai.CodeValue, "'top_logprobs' needs 'logprobs' to be true")
	case chat && (top < 0 || top > 20):
		return 0, openai.Invalid("top_logprobs", openai.CodeValue, "'top_logprobs' is %d, must be between 0 and 20", top)
	case chat && v.Type == gjson.True:
		return top, nil
	case v.Type == gjson.Null, chat && v.Type == gjson.False:
		return -1, nil
	case chat:
		return 0, openai.Invalid("logprobs", openai.CodeType, "'logprobs' must be a boolean")
	case v.Type != gjson.Number || v.Num != math.Trunc(v.Num) || v.Num < 0 || v.Num > 5:
		return 0, openai.Invalid("logprobs", openai.CodeValue, "'logprobs' must be an integer between 0 and 5")
	}
	return int(v.Num), nil
}
