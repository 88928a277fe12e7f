package openai

import "github.com/tidwall/gjson"

// find returns the value of a top-level key, and refuses a second one.
func find(obj gjson.Result, key, param string) (found gjson.Result, err *Error) {
	obj.ForEach(func(k, v gjson.Result) bool {
		if k.Str != key {
			return true
		}
		if found.Exists() {
			err = Invalid(param, CodeValue, "'%s' is given more than once", param)
			return false
		}
		found = v
		return true
	})
	return found, err
}

// SetModel appends body to dst with the value of the top-level "model"
// replaced, or put in where there is none (ScanRequest says where that is
// allowed); every other byte stays. The error is an *Error: not an object, two
// models, or a model that is not a string.
func SetModel(dst, body []byte, model string) ([]byte, error) {
	root, err := parse(body)
	if err != nil {
		return dst, err
	}
	v, err := find(root, "model", "model")
	switch {
	case err != nil:
		return dst, err
	case !v.Exists():
		field := gjson.AppendJSONString([]byte(`"model":`), model)
		return insert(dst, body, root, alias(field)), nil
	case v.Type != gjson.String && v.Type != gjson.Null:
		return dst, wrongType("model", "a string", v.Raw[0])
	}
	dst = append(dst, body[:v.Index]...)
	dst = gjson.AppendJSONString(dst, model)
	return append(dst, body[v.Index+len(v.Raw):]...), nil
}

// ForceUsage appends body to dst with stream_options.include_usage true, so
// that a stream can be metered; every other byte stays. The relay hides the
// extra frame from clients that did not ask (docs/failures.md F5).
func ForceUsage(dst, body []byte) ([]byte, error) {
	root, err := parse(body)
	if err != nil {
		return dst, err
	}
	options, err := find(root, "stream_options", "stream_options")
	switch {
	case err != nil:
		return dst, err
	case !options.Exists():
		return insert(dst, body, root, `"stream_options":{"include_usage":true}`), nil
	case options.Type == gjson.Null:
		return replace(dst, body, options, `{"include_usage":true}`), nil
	case !options.IsObject():
		return dst, wrongType("stream_options", "an object", options.Raw[0])
	}
	v, err := find(options, "include_usage", "stream_options.include_usage")
	switch {
	case err != nil:
		return dst, err
	case !v.Exists():
		return insert(dst, body, options, `"include_usage":true`), nil
	case v.Type == gjson.True:
		return append(dst, body...), nil
	}
	return replace(dst, body, v, "true"), nil
}

// insert puts a field first in obj, which is part of body.
func insert(dst, body []byte, obj gjson.Result, field string) []byte {
	empty := true
	obj.ForEach(func(_, _ gjson.Result) bool {
		empty = false
		return false
	})
	at := obj.Index + 1
	dst = append(dst, body[:at]...)
	dst = append(dst, field...)
	if !empty {
		dst = append(dst, ',')
	}
	return append(dst, body[at:]...)
}

func replace(dst, body []byte, old gjson.Result, value string) []byte {
	dst = append(dst, body[:old.Index]...)
	dst = append(dst, value...)
	return append(dst, body[old.Index+len(old.Raw):]...)
}
