package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"
	"unicode/utf8"

	"aloft/backends"
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
		got, err := SetModel([]byte(tc.body), `b"/`)
		if err != nil || string(got) != tc.want {
			t.Errorf("%s\ngot  %s, %v\nwant %s", tc.body, got, err, tc.want)
		}
	}
	for body, code := range map[string]string{
		`{"model":1}`: CodeType, `{"model":"a","model":"b"}`: CodeValue, `{"model":"a"`: "", `["model"]`: "",
	} {
		got, err := SetModel([]byte(body), "b")
		var e *Error
		if !errors.As(err, &e) || e.Code != code || len(got) != 0 {
			t.Errorf("%s: %q, %v, want code %q", body, got, err, code)
		}
	}
}

func TestRewrite(t *testing.T) {
	for _, tc := range []struct{ body, want string }{
		{`{"model":"a","prompt":"p"}`, `{"stream_options":{"include_usage":true},"model":"b","prompt":"p"}`},
		{` { "prompt":"p" , "mod\u0065l": "a"}`, ` {"stream_options":{"include_usage":true}, "prompt":"p" , "mod\u0065l": "b"}`},
		{`{"stream_options":null,"prompt":"p","model":"a"}`, `{"stream_options":{"include_usage":true},"prompt":"p","model":"b"}`},
		{`{"model":"a","prompt":"p","stream_options":{ }}`, `{"model":"b","prompt":"p","stream_options":{"include_usage":true }}`},
		{`{"model":"a","stream_options":{"x":1},"prompt":"p"}`, `{"model":"b","stream_options":{"include_usage":true,"x":1},"prompt":"p"}`},
		{`{"model":"a","stream_options":{"x":1, "include_usage" : false },"prompt":"p"}`, `{"model":"b","stream_options":{"x":1, "include_usage" : true },"prompt":"p"}`},
		{`{"stream_options":{"include_usage":null},"model":"b","prompt":"p"}`, `{"stream_options":{"include_usage":true},"model":"b","prompt":"p"}`},
		{`{"stream_options":{"include_usage":true},"model":"b\/","prompt":"p"}`, `{"stream_options":{"include_usage":true},"model":"b","prompt":"p"}`},
	} {
		s, err := ScanRequest(backends.Completions, []byte(tc.body))
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Rewrite([]byte("pre"), []byte(tc.body), "b", true); string(got) != "pre"+tc.want {
			t.Errorf("%s\ngot  %s\nwant %s", tc.body, got, tc.want)
		}
		if got := s.Rewrite(nil, []byte(tc.body), s.Model, false); string(got) != tc.body {
			t.Errorf("%s\nbecame %s, nothing was to change", tc.body, got)
		}
	}
	body := []byte(`{"input":"i","model":null}`) // a name may be left out here
	s, err := ScanRequest(backends.Moderations, body)
	if got := string(s.Rewrite(nil, body, "b", false)); err != nil || got != `{"input":"i","model":"b"}` {
		t.Errorf("%s, %v", got, err)
	}
}

func FuzzSetModel(f *testing.F) {
	for _, body := range []string{`{"model":"a"}`, ` {"x":{"model":1},"model" : "a","y":[1e5]} `, `{"model":"a","model":"b"}`,
		`{"stream_options":{"include_usage":false},"model":""}`, `{"mod\u0065l":"\ud83d\ude00"}`, `{}`, `{"model":null,"model":null}`} {
		f.Add([]byte(body), "new/name:1\x00é\xff")
	}
	f.Fuzz(func(t *testing.T, body []byte, name string) {
		keep := bytes.Clone(body)
		got, err := SetModel(body, name)
		if !bytes.Equal(keep, body) {
			t.Fatal("changed its input")
		}
		if err != nil || name == "" {
			return
		}
		sameBut(t, body, got, "model")
		back, err := SetModel(got, name)
		if err != nil || !bytes.Equal(back, got) {
			t.Fatalf("second edit: %q, %v", back, err)
		}
	})
}

// sameBut fails unless after is before with other values for the keys.
func sameBut(t *testing.T, body, edited []byte, keys ...string) {
	t.Helper()
	var before, after map[string]json.RawMessage
	if json.Unmarshal(body, &before) != nil || json.Unmarshal(edited, &after) != nil {
		t.Fatalf("%q became %q", body, edited)
	}
	for _, k := range keys {
		delete(before, k)
		delete(after, k)
	}
	if len(before) != len(after) {
		t.Fatalf("%q became %q", body, edited)
	}
	for k, v := range before {
		if !bytes.Equal(v, after[k]) {
			t.Fatalf("%q: %q became %q", k, v, after[k])
		}
	}
}

// Whatever was admitted scans the same after Rewrite, but for what that is for.
func FuzzRewrite(f *testing.F) {
	for _, body := range []string{`{"model":"a","prompt":"x"}`, ` {"x":{"model":1},"prompt":["a"],"model" : "a","stream":true,"y":[1e5]} `,
		`{"prompt":"","stream_options":{"include_usage":false, "u":"}"},"model":"a"}`, `{"mod\u0065l":"\ud83d\ude00","stream\u005foptions":null,"prompt":"p"}`,
		`{"stream_options":{ },"prompt":[[1]],"model":"a"}`} {
		f.Add([]byte(body), "new/name:1\x00é\xff", true)
		f.Add([]byte(body), "b", false)
	}
	f.Fuzz(func(t *testing.T, body []byte, name string, usage bool) {
		s, err := ScanRequest(backends.Completions, body)
		if err != nil || name == "" {
			return
		}
		keep := bytes.Clone(body)
		got := s.Rewrite(nil, body, name, usage)
		if !bytes.Equal(keep, body) {
			t.Fatal("changed its input")
		}
		sameBut(t, body, got, "model", "stream_options")
		again, err := ScanRequest(backends.Completions, got)
		if err != nil {
			t.Fatalf("%q became %q: %v", body, got, err)
		}
		if utf8.ValidString(name) && again.Model != name {
			t.Fatalf("%q became %q: the model is %q", body, got, again.Model)
		}
		if want := s.Stream && (usage || s.WantUsage); again.WantUsage != want || again.Stream != s.Stream || again.MaxTokens != s.MaxTokens {
			t.Fatalf("%q became %q: %+v, then %+v", body, got, s, again)
		}
		if back := again.Rewrite(nil, got, again.Model, usage); !bytes.Equal(back, got) {
			t.Fatalf("%q became %q, then %q", body, got, back)
		}
	})
}
