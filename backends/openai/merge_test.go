package openai

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"aloft/backends"
)

func TestRowsOfMergedRequests(t *testing.T) {
	const classify, moderations, score = backends.Classify, backends.Moderations, backends.Score
	for _, tt := range []struct {
		name string
		e    backends.Endpoint
		body string
		rows []string // nil: it goes alone
	}{
		{"one text", classify, `{"model":"m","input":"a"}`, []string{`"a"`}},
		{"texts", classify, `{"model":"m","input":["a","b"]}`, []string{`"a"`, `"b"`}},
		{"token ids", classify, `{"model":"m","input":[[1,2],[3]]}`, []string{`[1,2]`, `[3]`}},
		{"one list of token ids", classify, `{"model":"m","input":[1,2]}`, []string{`[1,2]`}},
		{"a chat", classify, `{"model":"m","messages":[{"role":"user","content":"a"}]}`, nil},
		{"a chat and an input", classify, `{"model":"m","input":"a","messages":[{"role":"user","content":"a"}]}`, nil},
		{"no chat", classify, `{"model":"m","input":"a","messages":null}`, []string{`"a"`}},
		{"nothing", classify, `{"model":"m"}`, nil},
		{"an empty list", classify, `{"model":"m","input":[]}`, nil},
		{"mixed", classify, `{"model":"m","input":["a",[1]]}`, nil},
		{"text", moderations, `{"input":"a"}`, []string{`"a"`}},
		{"texts", moderations, `{"input":["a",""]}`, []string{`"a"`, `""`}},
		{"parts, which are one input", moderations, `{"input":[{"type":"text","text":"a"}]}`, nil},
		{"token ids", moderations, `{"input":[[1]]}`, nil},
		{"a pair", score, `{"model":"m","text_1":"a","text_2":"b"}`, []string{`["a","b"]`}},
		{"lists of one", score, `{"model":"m","data_2":["b"],"data_1":["a"]}`, []string{`["a","b"]`}},
		{"pairs", score, `{"model":"m","queries":["a","b"],"documents":["c","d"]}`, []string{`["a","c"]`, `["b","d"]`}},
		{"pairs of items", score, `{"model":"m","queries":["a","\"]"],"items":["c","d"]}`, []string{`["a","c"]`, `["\"]","d"]`}},
		{"one to many", score, `{"model":"m","text_1":"a","text_2":["b","c"]}`, nil},
		{"many to one", score, `{"model":"m","text_1":["a","b"],"text_2":"c"}`, nil},
		{"two names of one list", score, `{"model":"m","text_1":"a","queries":"b","text_2":"c"}`, nil},
		{"a list is missing", score, `{"model":"m","text_1":"a"}`, nil},
		{"token ids", score, `{"model":"m","text_1":[1],"text_2":[2]}`, nil},
		{"images", score, `{"model":"m","data_1":"a","data_2":{"content":[{"type":"image_url"}]}}`, nil},
		{"SGLang's own", score, `{"model":"m","query":"a","items":["b"],"label_token_ids":[1]}`, nil},
		{"a rerank", backends.Rerank, `{"model":"m","query":"a","documents":["b"]}`, nil},
		{"a completion", backends.Completions, `{"model":"m","prompt":["a","b"]}`, nil},
		{"a chat", backends.Chat, `{"model":"m","messages":[{"content":"a"}]}`, nil},
	} {
		s, err := ScanRequest(tt.e, []byte(tt.body))
		if err != nil {
			t.Errorf("%s %s: %v", tt.e, tt.name, err)
			continue
		}
		if got := words(s.Inputs); !slices.Equal(got, tt.rows) || (s.MergeKey != "") != (tt.rows != nil) || s.MergeKey != "" && !tt.e.Merged() {
			t.Errorf("%s %s: rows %q, key %q, want %q", tt.e, tt.name, got, s.MergeKey, tt.rows)
		}
	}
}

func TestKeysOfMergedRequests(t *testing.T) {
	key := func(e backends.Endpoint, rest string) string {
		t.Helper()
		s, err := ScanRequest(e, []byte(`{"model":"m",`+rest+`}`))
		if err != nil || s.MergeKey == "" {
			t.Fatalf("%s: %v, key %q", rest, err, s.MergeKey)
		}
		return s.MergeKey
	}
	for _, tt := range []struct {
		e    backends.Endpoint
		a, b string
		same bool
	}{
		{backends.Embeddings, `"input":"a"`, `"input":["b","c"],"user":"u","service_tier":"flex","encoding_format":"base64"`, true},
		{backends.Embeddings, `"input":"a"`, `"input":[1,2]`, false},
		{backends.Embeddings, `"input":[[1],[2]]`, `"input":[1,2]`, true},
		{backends.Embeddings, `"input":"a","truncate_prompt_tokens":8`, `"input":"a","truncate_prompt_tokens":9`, false},
		{backends.Classify, `"input":"a"`, `"user":"u","input":["b"]`, true},
		{backends.Classify, `"input":"a"`, `"input":"a","use_activation":false`, false},
		{backends.Classify, `"input":"a","add_special_tokens":true`, `"input":"a","add_special_tokens":false`, false},
		{backends.Classify, `"input":"a","cache_salt":"x"`, `"input":"a","cache_salt":"y"`, false},
		{backends.Classify, `"input":"a"`, `"input":[[1]]`, false},
		{backends.Moderations, `"input":"a"`, `"input":["b"]`, true},
		{backends.Moderations, `"input":"a"`, `"input":"a","threshold":0.5`, false},
		{backends.Score, `"text_1":"a","text_2":"b"`, `"queries":["a","c"],"documents":["b","d"]`, true},
		{backends.Score, `"text_1":"a","text_2":"b"`, `"text_1":"a","text_2":"b","truncate_prompt_tokens":1`, false},
	} {
		a, b := key(tt.e, tt.a), key(tt.e, tt.b)
		if (a == b) != tt.same {
			t.Errorf("%s %s and %s: %q %q, want same %v", tt.e, tt.a, tt.b, a, b, tt.same)
		}
	}
	if a, b := key(backends.Classify, `"input":"a"`), key(backends.Moderations, `"input":"a"`); a == b {
		t.Errorf("two endpoints share the key %q", a)
	}
}

func TestAppendMerged(t *testing.T) {
	for _, tt := range []struct {
		e      backends.Endpoint
		bodies []string
		want   string
	}{
		{backends.Classify, []string{`{"model":"x","input":"a","user":"u","use_activation":true}`, `{"use_activation":true,"input":["b","c"],"model":"x"}`},
			`{"model":"x","input":["a","b","c"],"use_activation":true}`},
		{backends.Moderations, []string{`{"input":["a"]}`, `{"input":"b","model":"x"}`}, `{"input":["a","b"]}`},
		{backends.Score, []string{`{"model":"x","text_2":"b","text_1":"a","queries":null}`, `{"model":"x","queries":["c","e"],"documents":["d","f"]}`},
			`{"model":"x","text_2":["b","d","f"],"text_1":["a","c","e"]}`},
	} {
		var reqs []*backends.Request
		for _, body := range tt.bodies {
			s, err := ScanRequest(tt.e, []byte(body))
			if err != nil {
				t.Fatal(err)
			}
			reqs = append(reqs, &backends.Request{Endpoint: tt.e, Body: []byte(body), Inputs: s.Inputs})
		}
		if got := string(AppendMerged(nil, reqs)); got != tt.want {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
	}
}

// The answers of engines, as vLLM and OpenAI write them, and the second caller's part
// of each.
func TestSharedAnswers(t *testing.T) {
	for _, tt := range []struct {
		e             backends.Endpoint
		reply, second string
	}{
		{backends.Classify,
			`{"id":"classify-1","object":"list","created":5,"model":"e","data":[{"index":1,"label":"B","probs":[0.1,0.9],"num_classes":2},{"index":0,"label":"A","probs":[1,0],"num_classes":2},{"num_classes":2,"label":"\"}","probs":[],"index" : 2 }],"usage":{"prompt_tokens":9,"total_tokens":9,"completion_tokens":0,"prompt_tokens_details":null}}`,
			`{"id":"r2","object":"list","created":5,"model":"m","data":[{"index":0,"label":"B","probs":[0.1,0.9],"num_classes":2},{"num_classes":2,"label":"\"}","probs":[],"index" : 1 }],"usage":{"prompt_tokens":7,"total_tokens":7}}`},
		{backends.Score,
			`{"id":"score-1","object":"list","created":5,"model":"e","data":[{"index":0,"object":"score","score":0.5},{"index":1,"object":"score","score":1e-3},{"index":2,"object":"score","score":-1}],"usage":{"prompt_tokens":9}}`,
			`{"id":"r2","object":"list","created":5,"model":"m","data":[{"index":0,"object":"score","score":1e-3},{"index":1,"object":"score","score":-1}],"usage":{"prompt_tokens":7,"total_tokens":7}}`},
		{backends.Moderations,
			`{"id":"modr-1","model":"e","results":[{"flagged":false},{"flagged":true,"categories":{"index":4}},{"flagged":false,"category_scores":{}}]}`,
			`{"id":"r2","model":"m","results":[{"flagged":true,"categories":{"index":4}},{"flagged":false,"category_scores":{}}]}`},
	} {
		items, err := Split(tt.e, []byte(tt.reply), 3)
		if err != nil {
			t.Errorf("%s: %v", tt.e, err)
			continue
		}
		items.Rows = items.Rows[1:]
		got, err := AppendAnswer(nil, tt.e, items, Answer{ID: "r2", Model: "m", PromptTokens: 7})
		if err != nil || string(got) != tt.second {
			t.Errorf("got  %s, %v\nwant %s", got, err, tt.second)
		}
	}
}

func TestSplitRefuses(t *testing.T) {
	for _, tt := range []struct {
		e     backends.Endpoint
		reply string
	}{
		{backends.Classify, `{"data":[{"index":0}]}`},
		{backends.Classify, `{"data":[{"index":0},{"index":0}]}`},
		{backends.Classify, `{"data":[{"index":0},{"index":2}]}`},
		{backends.Classify, `{"data":[{"index":0},{"index":1},{"index":2}]}`},
		{backends.Classify, `{"data":[{"index":0},{}]}`},
		{backends.Classify, `{"data":[{"index":0},{"index":1,"index":1}]}`},
		{backends.Classify, `{"data":[{"index":0},{"index":"1"}]}`},
		{backends.Classify, `{"data":[{"index":0},7]}`},
		{backends.Classify, `{"data":[{"index":0},{"index":1}],"data":[{"index":1},{"index":0}]}`},
		{backends.Classify, `[[{"label":"A","score":1}],[{"label":"B","score":1}]]`}, // TEI's
		{backends.Classify, `{"results":[{"index":0},{"index":1}]}`},
		{backends.Score, `{"scores":[[0.5],[0.1]]}`}, // SGLang's
		{backends.Score, `{"data":{"0":1}}`},
		{backends.Moderations, `{"results":[{"flagged":false}]}`},
		{backends.Moderations, `{"results":[{"flagged":false},null]}`},
		{backends.Moderations, `{"results":null}`},
	} {
		if items, err := Split(tt.e, []byte(tt.reply), 2); !errors.Is(err, backends.ErrBadReply) || items.Rows != nil || items.Prompt != -1 {
			t.Errorf("%s %s: %q, %v, want ErrBadReply", tt.e, tt.reply, items.Rows, err)
		}
	}
}

func FuzzSplit(f *testing.F) {
	f.Add(byte(0), []byte(`{"data":[{"index":1,"label":"a"},{"index":0}],"usage":{"prompt_tokens":7},"id":"x"}`), 2)
	f.Add(byte(1), []byte(`{"results":[{"flagged":true},{"index":5}],"model":3}`), 2)
	f.Add(byte(2), []byte(`{"data":[{"score":1,"index": 0}],"usage":null,"id":{}}`), 1)
	f.Add(byte(2), []byte(`{"\u0064ata":[{"ind\u0065x":0}],"data":7}`), 1)
	endpoints := []backends.Endpoint{backends.Classify, backends.Moderations, backends.Score}
	f.Fuzz(func(t *testing.T, which byte, reply []byte, n int) {
		if n < 0 || n > 64 {
			return
		}
		e := endpoints[int(which)%len(endpoints)]
		items, err := Split(e, reply, n)
		if err != nil {
			if !errors.Is(err, backends.ErrBadReply) || items.Rows != nil {
				t.Fatalf("%v, %d rows", err, len(items.Rows))
			}
			return
		}
		slices.Reverse(items.Rows) // any of them, in any place
		out, err := AppendAnswer(nil, e, items, Answer{ID: "i", Model: "m", PromptTokens: 3})
		if err != nil || !json.Valid(out) {
			t.Fatalf("%q gave %q, %v", reply, out, err)
		}
		again, err := Split(e, out, n)
		if err != nil {
			t.Fatalf("own answer %q does not split: %v", out, err)
		}
		for i, row := range again.Rows {
			if !mergings[e].indexed && string(row) != string(items.Rows[i]) || !reflect.DeepEqual(without(row), without(items.Rows[i])) {
				t.Fatalf("item %d of %q became %q", i, items.Rows[i], row)
			}
		}
	})
}

// without is an item but for its index.
func without(item []byte) map[string]json.RawMessage {
	out := map[string]json.RawMessage{}
	_ = json.Unmarshal(item, &out)
	delete(out, "index")
	for k := range out { // encoding/json keeps the last, whatever the case of its letters
		if strings.EqualFold(k, "index") {
			delete(out, k)
		}
	}
	return out
}
