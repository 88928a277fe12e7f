package openai

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"aloft/backends"
)

func TestScanRequest(t *testing.T) {
	type want struct {
		model  string
		stream bool
		usage  bool
		max    int
		inputs []string
		text   []string
		base64 bool
	}
	for _, tc := range []struct {
		name string
		e    backends.Endpoint
		body string
		want want
	}{
		{"chat", backends.Chat, `{"messages":[{"role":"user","content":"hi\n"}],"model":"m"}`,
			want{model: "m", text: []string{`"hi\n"`}}},
		{"chat parts and stream", backends.Chat,
			` {"model":"m","stream":true,"stream_options":{"include_usage":true},"max_tokens":5,"max_completion_tokens":7,
			 "messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"x"}},{"type":"text","text":"b"}]},
			 {"role":"assistant","content":null}]}`,
			want{model: "m", stream: true, usage: true, max: 7, text: []string{`"a"`, `"b"`}}},
		{"max order", backends.Chat, `{"model":"m","max_completion_tokens":7,"max_tokens":5,"messages":[{}]}`, want{model: "m", max: 7}},
		{"max null", backends.Chat, `{"model":"m","max_completion_tokens":null,"max_tokens":5,"messages":[{}]}`, want{model: "m", max: 5}},
		{"usage without stream", backends.Chat, `{"model":"m","stream_options":{"include_usage":true},"messages":[{}]}`, want{model: "m"}},
		{"nulls", backends.Chat, `{"model":"m","stream":null,"stream_options":null,"max_tokens":null,"messages":[{}]}`, want{model: "m"}},
		{"escaped key", backends.Chat, `{"mod\u0065l":"m\u00e9","messages":[{}]}`, want{model: "mé"}},
		{"completion", backends.Completions, `{"model":"m","prompt":"","max_tokens":0}`, want{model: "m", text: []string{`""`}}},
		{"completion list", backends.Completions, `{"model":"m","prompt":["a","b"]}`, want{model: "m", text: []string{`"a"`, `"b"`}}},
		{"completion ids", backends.Completions, `{"model":"m","prompt":[[1,2],[3]]}`, want{model: "m", text: []string{`[1,2]`, `[3]`}}},
		{"one text", backends.Embeddings, `{"model":"m","input":"a"}`, want{model: "m", inputs: []string{`"a"`}, text: []string{`"a"`}}},
		{"texts", backends.Embeddings, `{"model":"m","input":[ "a" , "b\u0000\ud800" ],"encoding_format":"base64","dimensions":3}`,
			want{model: "m", inputs: []string{`"a"`, `"b\u0000\ud800"`}, text: []string{`"a"`, `"b\u0000\ud800"`}, base64: true}},
		{"ids", backends.Embeddings, `{"model":"m","input":[1, 2]}`, want{model: "m", inputs: []string{`[1, 2]`}, text: []string{`[1, 2]`}}},
		{"id lists", backends.Embeddings, `{"model":"m","input":[[1,2],[3]],"encoding_format":"float"}`,
			want{model: "m", inputs: []string{`[1,2]`, `[3]`}, text: []string{`[1,2]`, `[3]`}}},
		{"responses text", backends.Responses, `{"model":"m","input":"a","instructions":"i","max_output_tokens":4,"stream":true}`,
			want{model: "m", stream: true, max: 4, text: []string{`"a"`, `"i"`}}},
		{"responses items", backends.Responses, `{"input":[{"role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_image","image_url":"x"}]},
			{"type":"function_call","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":"o"}],"model":"m"}`,
			want{model: "m", text: []string{`"a"`, `"{}"`, `"o"`}}},
		{"messages", backends.Messages, `{"model":"m","max_tokens":9,"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":"a"},
			{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"b"}]},{"type":"image","source":{"data":"x"}}]}]}`,
			want{model: "m", max: 9, text: []string{`"s"`, `"a"`, `"b"`}}},
		{"rerank", backends.Rerank, `{"model":"m","query":"q","documents":["a",{"text":"b"},{"image":"x"}]}`, want{model: "m", text: []string{`"q"`, `"a"`, `"b"`}}},
		{"score", backends.Score, `{"model":"m","text_1":"a","text_2":["b","c"]}`, want{model: "m", text: []string{`"a"`, `"b"`, `"c"`}}},
		{"score data", backends.Score, `{"model":"m","data_1":{"content":[{"type":"text","text":"a"}]},"data_2":"b"}`, want{model: "m", text: []string{`"a"`, `"b"`}}},
		{"score queries", backends.Score, `{"model":"m","queries":"a","documents":["b"]}`, want{model: "m", inputs: []string{`["a","b"]`}, text: []string{`"a"`, `"b"`}}},
		{"classify", backends.Classify, `{"model":"m","input":["a","b"]}`, want{model: "m", inputs: []string{`"a"`, `"b"`}, text: []string{`"a"`, `"b"`}}},
		{"classify chat", backends.Classify, `{"model":"m","messages":[{"content":"a"}]}`, want{model: "m", text: []string{`"a"`}}},
		{"moderations", backends.Moderations, `{"model":"m","input":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"x"}}]}`, want{model: "m", text: []string{`"a"`}}},
		{"moderations, any model", backends.Moderations, `{"input":"a"}`, want{inputs: []string{`"a"`}, text: []string{`"a"`}}},
		{"moderations, null model", backends.Moderations, `{"model":null,"input":"a"}`, want{inputs: []string{`"a"`}, text: []string{`"a"`}}},
		{"speech", backends.Speech, `{"model":"m","input":"a","voice":"v","stream":true}`, want{model: "m", stream: true, text: []string{`"a"`}}},
		{"images", backends.Images, `{"model":"m","prompt":"a","n":2}`, want{model: "m", text: []string{`"a"`}}},
		{"images, any model", backends.Images, `{"prompt":"a"}`, want{text: []string{`"a"`}}},
		{"tokenize", backends.Tokenize, `{"model":"m","prompt":"a"}`, want{model: "m", text: []string{`"a"`}}},
		{"tokenize chat", backends.Tokenize, `{"model":"m","messages":[{"content":"a"}]}`, want{model: "m", text: []string{`"a"`}}},
		{"detokenize", backends.Detokenize, `{"model":"m","tokens":[1, 2]}`, want{model: "m", text: []string{`[1, 2]`}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, err := ScanRequest(tc.e, []byte(tc.body))
			if err != nil {
				t.Fatal(err)
			}
			got := want{s.Model, s.Stream, s.WantUsage, s.MaxTokens, words(s.Inputs), words(s.Text), s.Base64}
			if !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got %+v\nwant %+v", got, tc.want)
			}
			if (s.MergeKey != "") != (len(s.Inputs) > 0) {
				t.Errorf("merge key %q", s.MergeKey)
			}
		})
	}
}

func words(rows [][]byte) (out []string) {
	for _, r := range rows {
		out = append(out, string(r))
	}
	return out
}

func TestScanRequestRefuses(t *testing.T) {
	many := strings.Repeat(`"a",`, 2048) + `"a"`
	for _, tc := range []struct {
		e           backends.Endpoint
		body        string
		param, code string
	}{
		{backends.Chat, ``, "", ""},
		{backends.Chat, `{`, "", ""},
		{backends.Chat, `[1]`, "", ""},
		{backends.Chat, `"x"`, "", ""},
		{backends.Chat, `{"model":"m"} x`, "", ""},
		{backends.Chat, `{"a":` + strings.Repeat("[", 5_000_000), "", ""},
		{backends.Chat, `{"messages":[{}]}`, "model", CodeMissing},
		{backends.Chat, `{"model":1,"messages":[{}]}`, "model", CodeType},
		{backends.Chat, `{"model":null,"messages":[{}]}`, "model", CodeType},
		{backends.Chat, `{"model":"","messages":[{}]}`, "model", CodeValue},
		{backends.Chat, `{"model":"a","messages":[{}],"model":"b"}`, "model", CodeValue},
		{backends.Chat, `{"model":"a","messages":[{}],"mod\u0065l":"b"}`, "model", CodeValue},
		{backends.Chat, `{"model":"m"}`, "messages", CodeMissing},
		{backends.Chat, `{"model":"m","messages":null}`, "messages", CodeType},
		{backends.Chat, `{"model":"m","messages":[]}`, "messages", CodeValue},
		{backends.Chat, `{"model":"m","messages":{}}`, "messages", CodeType},
		{backends.Chat, `{"model":"m","messages":[{},"x"]}`, "messages[1]", CodeType},
		{backends.Chat, `{"model":"m","messages":[{}],"stream":"yes"}`, "stream", CodeType},
		{backends.Chat, `{"model":"m","messages":[{}],"stream":true,"stream":false}`, "stream", CodeValue},
		{backends.Chat, `{"model":"m","messages":[{}],"stream":null,"stream":true}`, "stream", CodeValue},
		{backends.Moderations, `{"model":null,"input":"a","model":null}`, "model", CodeValue},
		{backends.Completions, `{"model":"m","prompt":"p","stream_options":{"include_usage":null,"include_usage":null}}`, "stream_options.include_usage", CodeValue},
		{backends.Chat, `{"model":"m","messages":[{}],"stream_options":[]}`, "stream_options", CodeType},
		{backends.Chat, `{"model":"m","messages":[{}],"stream_options":{"include_usage":1}}`, "stream_options.include_usage", CodeType},
		{backends.Chat, `{"model":"m","messages":[{}],"max_tokens":0}`, "max_tokens", CodeValue},
		{backends.Chat, `{"model":"m","messages":[{}],"max_tokens":-3}`, "max_tokens", CodeValue},
		{backends.Chat, `{"model":"m","messages":[{}],"max_tokens":1.5}`, "max_tokens", CodeType},
		{backends.Chat, `{"model":"m","messages":[{}],"max_tokens":1e99}`, "max_tokens", CodeType},
		{backends.Chat, `{"model":"m","messages":[{}],"max_completion_tokens":"9"}`, "max_completion_tokens", CodeType},
		{backends.Completions, `{"model":"m"}`, "prompt", CodeMissing},
		{backends.Completions, `{"model":"m","prompt":null}`, "prompt", CodeType},
		{backends.Completions, `{"model":"m","prompt":[]}`, "prompt", CodeValue},
		{backends.Completions, `{"model":"m","prompt":["a",1]}`, "prompt", CodeType},
		{backends.Responses, `{"model":"m"}`, "input", CodeMissing},
		{backends.Messages, `{"model":"m","messages":[{}]}`, "max_tokens", CodeMissing},
		{backends.Rerank, `{"model":"m","query":"q"}`, "documents", CodeMissing},
		{backends.Score, `{"text_1":"a"}`, "model", CodeMissing},
		{backends.Classify, `{"input":"a"}`, "model", CodeMissing},
		{backends.Moderations, `{"model":"m"}`, "input", CodeMissing},
		{backends.Moderations, `{"model":"","input":"a"}`, "model", CodeValue},
		{backends.Speech, `{"model":"m"}`, "input", CodeMissing},
		{backends.Images, `{"prompt":"a","n":0}`, "n", CodeValue},
		{backends.Tokenize, `{"prompt":"a"}`, "model", CodeMissing},
		{backends.Detokenize, `{"model":"m"}`, "tokens", CodeMissing},
		{backends.Embeddings, `{"model":"m"}`, "input", CodeMissing},
		{backends.Embeddings, `{"model":"m","input":{}}`, "input", CodeType},
		{backends.Embeddings, `{"model":"m","input":""}`, "input", CodeValue},
		{backends.Embeddings, `{"model":"m","input":[]}`, "input", CodeValue},
		{backends.Embeddings, `{"model":"m","input":["x",""]}`, "input", CodeValue},
		{backends.Embeddings, `{"model":"m","input":["a",1]}`, "input", CodeType},
		{backends.Embeddings, `{"model":"m","input":[1,"a"]}`, "input", CodeType},
		{backends.Embeddings, `{"model":"m","input":[1,[2]]}`, "input", CodeType},
		{backends.Embeddings, `{"model":"m","input":[[1],2]}`, "input", CodeType},
		{backends.Embeddings, `{"model":"m","input":[[]]}`, "input", CodeType},
		{backends.Embeddings, `{"model":"m","input":[[1,"a"]]}`, "input", CodeType},
		{backends.Embeddings, `{"model":"m","input":[-1]}`, "input", CodeType},
		{backends.Embeddings, `{"model":"m","input":[1.5]}`, "input", CodeType},
		{backends.Embeddings, `{"model":"m","input":[null]}`, "input", CodeType},
		{backends.Embeddings, `{"model":"m","input":[` + many + `]}`, "input", CodeValue},
		{backends.Embeddings, `{"model":"m","input":"a","encoding_format":"hex"}`, "encoding_format", CodeValue},
		{backends.Embeddings, `{"model":"m","input":"a","encoding_format":4}`, "encoding_format", CodeType},
		{backends.Embeddings, `{"model":"m","input":"a","dimensions":"8"}`, "dimensions", CodeType},
		{backends.Embeddings, `{"model":"m","input":"a","dimensions":0}`, "dimensions", CodeValue},
		{backends.Embeddings, `{"model":"m","input":"a","dimensions":2.5}`, "dimensions", CodeType},
	} {
		_, err := ScanRequest(tc.e, []byte(tc.body))
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%.80s: error %v, want an *Error", tc.body, err)
			continue
		}
		if e.Status != 400 || e.Type != "invalid_request_error" || e.Param != tc.param || e.Code != tc.code {
			t.Errorf("%.80s: %+v, want param %q code %q", tc.body, e, tc.param, tc.code)
		}
	}
}

func TestMergeKey(t *testing.T) {
	key := func(options string) string {
		t.Helper()
		s, err := ScanRequest(backends.Embeddings, []byte(`{"model":"m","input":"a"`+options+`}`))
		if err != nil {
			t.Fatal(err)
		}
		return s.MergeKey
	}
	for _, same := range [][2]string{
		{``, `,"encoding_format":"base64","user":"u","dimensions":null`},
		{`,"dimensions":8,"truncate":true`, `,"truncate":true,"dimensions":8`},
	} {
		if key(same[0]) != key(same[1]) {
			t.Errorf("%q and %q do not merge: %q %q", same[0], same[1], key(same[0]), key(same[1]))
		}
	}
	long := `,"p":"` + strings.Repeat("x", 500)
	for _, differ := range [][2]string{
		{``, `,"dimensions":8`}, {`,"dimensions":8`, `,"dimensions":9`}, {``, `,"input_type":"query"`}, {long + `1"`, long + `2"`},
	} {
		if key(differ[0]) == key(differ[1]) {
			t.Errorf("%.60q and %.60q merge", differ[0], differ[1])
		}
	}
	if n := len(key(long + `"`)); n > 200 {
		t.Errorf("a long option makes a merge key of %d bytes", n)
	}
}

func TestCountIDs(t *testing.T) {
	for row, want := range map[string]int{`"a,b"`: 0, `[1]`: 1, `[1, 2,3]`: 3, ``: 0} {
		if got := CountIDs([]byte(row)); got != want {
			t.Errorf("%s: %d ids, want %d", row, got, want)
		}
	}
}

func TestAppendError(t *testing.T) {
	got := string(AppendError(nil, Invalid("input", "", "bad \"%s\"", "x")))
	want := `{"error":{"message":"bad \"x\"","type":"invalid_request_error","param":"input","code":null}}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// The scan runs once per request and must not copy its text.
func TestScanRequestAllocs(t *testing.T) {
	body := []byte(`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("word ", 2000) + `"}],"stream":true}`)
	n := testing.AllocsPerRun(100, func() {
		if _, err := ScanRequest(backends.Chat, body); err != nil {
			t.Fatal(err)
		}
	})
	if n > 2 {
		t.Errorf("chat: %v allocations, want at most 2", n)
	}
	for messages := 2; messages <= 8; messages++ {
		list := strings.Repeat(`{"role":"user","content":"a\n\"b\" \u00e9 `+strings.Repeat("more ", 100)+`"},`, messages)
		body = []byte(`{"model":"m","messages":[` + strings.TrimSuffix(list, ",") + `],"temperature":0.5,"tools":[{"d":"x\ny"}],"user":"\u00e9","stream":true}`)
		if n := testing.AllocsPerRun(20, func() { _, _ = ScanRequest(backends.Chat, body) }); n > 2 {
			t.Errorf("chat of %d messages with escapes: %v allocations, want at most 2", messages, n)
		}
	}
	body = []byte(`{"model":"m","input":"some text"}`)
	n = testing.AllocsPerRun(100, func() { _, _ = ScanRequest(backends.Embeddings, body) })
	if n > 2 {
		t.Errorf("embeddings: %v allocations, want at most 2", n)
	}
}

func FuzzScanRequest(f *testing.F) {
	for i, body := range []string{
		`{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true,"stream_options":{"include_usage":true}}`,
		`{"model":"m","messages":[{"content":[{"type":"text","text":"a"}]}]}`,
		`{"model":"m","prompt":["a","b"],"max_tokens":3}`,
		`{"model":"m","input":["a","b"],"encoding_format":"base64","dimensions":8}`,
		`{"model":"m","input":[[1,2],[3]]}`,
		`{"model":"m","text_1":["a"],"text_2":"b","use_activation":false}`,
		`{"model":"m","queries":["a","\u0062"],"documents":["c","d"],"data_1":null}`,
		`{"model":"m","input":[1,2]}`, `{"a":[[[[`, "{\"model\":\"\\ud800\"}",
	} {
		f.Add(byte(i), []byte(body))
	}
	var endpoints []backends.Endpoint
	for _, e := range backends.Endpoints() {
		if !e.Form() {
			endpoints = append(endpoints, e)
		}
	}
	f.Fuzz(func(t *testing.T, which byte, body []byte) {
		e := endpoints[int(which)%len(endpoints)]
		s, err := ScanRequest(e, body)
		if err != nil {
			var wire *Error
			if !errors.As(err, &wire) || wire.Status != 400 || !json.Valid(AppendError(nil, wire)) {
				t.Fatalf("error %#v", err)
			}
			return
		}
		if !json.Valid(body) || s.Model == "" && rules[e].required&fieldModel != 0 {
			t.Fatalf("accepted %q as %+v", body, s)
		}
		for _, row := range append(s.Inputs, s.Text...) {
			if !json.Valid(row) {
				t.Fatalf("row %q of %q is no JSON", row, body)
			}
		}
		if (s.MergeKey == "") != (len(s.Inputs) == 0) {
			t.Fatalf("%q has key %q and rows %q", body, s.MergeKey, s.Inputs)
		}
		if s.MergeKey == "" {
			return
		}
		// A merged call of this request alone must scan to the same rows and key
		// ([1,2] becomes [[1,2]], the same row).
		merged := AppendMerged(nil, []*backends.Request{{Endpoint: e, Body: body, Inputs: s.Inputs}})
		again, err := ScanRequest(e, merged)
		if err != nil || again.MergeKey != s.MergeKey || again.Base64 != s.Base64 || !reflect.DeepEqual(again.Inputs, s.Inputs) {
			t.Fatalf("%q merged to %q, which scans to %+v, %v", body, merged, again, err)
		}
	})
}
