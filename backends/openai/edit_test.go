package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"
)

func TestSetModel(t *testing.T) {
	for _, tc := range []struct{ body, want string }{
		{`{"model":"a"}`, `{"model":"b\"/"}`},
		{"\n{ \"x\" : 9007199254740993 , \"model\"\t:  \"a\"  , \"ü\":[ 1.0 , {\"model\":\"in\"} ] } ",
			"\n{ \"x\" : 9007199254740993 , \"model\"\t:  \"b\\\"/\"  , \"ü\":[ 1.0 , {\"model\":\"in\"} ] } "},
		{`{"x":1}`, `{"model":"b\"/","x":1}`},
		{`{"model":null}`, `{"model":"b\"/"}`},
		{`{"z":{"model":"x"},"mod\u0065l":"a"}`, `{"z":{"model":"x"},"mod\u0065l":"b\"/"}`},
	} {
		got, err := SetModel([]byte("pre"), []byte(tc.body), `b"/`)
		if err != nil || string(got) != "pre"+tc.want {
			t.Errorf("%s\ngot  %s, %v\nwant %s", tc.body, got, err, tc.want)
		}
	}
	for body, code := range map[string]string{
		`{"model":1}`: CodeType, `{"model":"a","model":"b"}`: CodeValue, `{"model":"a"`: "", `["model"]`: "",
	} {
		got, err := SetModel(nil, []byte(body), "b")
		var e *Error
		if !errors.As(err, &e) || e.Code != code || len(got) != 0 {
			t.Errorf("%s: %q, %v, want code %q", body, got, err, code)
		}
	}
}

func TestForceUsage(t *testing.T) {
	for _, tc := range []struct{ body, want string }{
		{`{}`, `{"stream_options":{"include_usage":true}}`},
		{` { "a":1}`, ` {"stream_options":{"include_usage":true}, "a":1}`},
		{`{"stream_options":null,"a":1}`, `{"stream_options":{"include_usage":true},"a":1}`},
		{`{"stream_options":{ }}`, `{"stream_options":{"include_usage":true }}`},
		{`{"stream_options":{"x":1}}`, `{"stream_options":{"include_usage":true,"x":1}}`},
		{`{"stream_options":{"x":1, "include_usage" : false}}`, `{"stream_options":{"x":1, "include_usage" : true}}`},
		{`{"stream_options":{"include_usage":null}}`, `{"stream_options":{"include_usage":true}}`},
		{`{"stream_options":{"include_usage":true}}`, `{"stream_options":{"include_usage":true}}`},
	} {
		got, err := ForceUsage(nil, []byte(tc.body))
		if err != nil || string(got) != tc.want {
			t.Errorf("%s\ngot  %s, %v\nwant %s", tc.body, got, err, tc.want)
		}
	}
	for _, body := range []string{`{"stream_options":1}`, `{"stream_options":{},"stream_options":{}}`,
		`{"stream_options":{"include_usage":false,"include_usage":false}}`, `x`} {
		if _, err := ForceUsage(nil, []byte(body)); err == nil {
			t.Errorf("%s: no error", body)
		}
	}
}

func FuzzSetModel(f *testing.F) {
	for _, body := range []string{`{"model":"a"}`, ` {"x":{"model":1},"model" : "a","y":[1e5]} `, `{"model":"a","model":"b"}`,
		`{"stream_options":{"include_usage":false},"model":""}`, `{"mod\u0065l":"\ud83d\ude00"}`} {
		f.Add([]byte(body), "new/name:1\x00é\xff")
	}
	f.Fuzz(func(t *testing.T, body []byte, name string) {
		keep := bytes.Clone(body)
		got, err := SetModel(nil, body, name)
		if !bytes.Equal(keep, body) {
			t.Fatal("changed its input")
		}
		if err == nil {
			var before, after map[string]json.RawMessage
			if json.Unmarshal(body, &before) != nil || json.Unmarshal(got, &after) != nil ||
				len(after)-len(before) != 0 && before["model"] != nil {
				t.Fatalf("%q became %q", body, got)
			}
			for k, v := range before {
				if k != "model" && !bytes.Equal(v, after[k]) {
					t.Fatalf("%q: %q became %q", k, v, after[k])
				}
			}
			back, err := SetModel(nil, got, name)
			if err != nil || !bytes.Equal(back, got) {
				t.Fatalf("second edit: %q, %v", back, err)
			}
		}
		if got, err = ForceUsage(nil, body); err == nil {
			var v struct {
				O struct {
					U bool `json:"include_usage"`
				} `json:"stream_options"`
			}
			if !json.Valid(got) || bytes.Contains(body, []byte("\\u")) {
				if !json.Valid(got) {
					t.Fatalf("%q became %q", body, got)
				}
				return
			}
			// encoding/json folds the case of keys and takes the last; only then may it differ.
			if json.Unmarshal(got, &v) == nil && !v.O.U && !bytes.Contains(bytes.ToLower(body), []byte("include_usage")) &&
				!bytes.Contains(bytes.ToLower(body), []byte("stream_options")) {
				t.Fatalf("%q became %q: no usage", body, got)
			}
		}
	})
}
