package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"aloft/backends"
)

func TestMergedEmbeddings(t *testing.T) {
	req := func(body string) *backends.Request {
		s, err := ScanRequest(backends.Embeddings, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		return &backends.Request{Endpoint: backends.Embeddings, Body: []byte(body), Inputs: s.Inputs, MergeKey: s.MergeKey}
	}
	got := string(AppendMerged(nil, []*backends.Request{
		req(`{"model":"x","input":["a", "b"],"user":"u","dimensions":8,"encoding_format":"base64"}`),
		req(`{"input":"c","model":"x","dimensions":8}`),
	}))
	want := `{"model":"x","input":["a","b","c"],"dimensions":8,"encoding_format":"base64"}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestSplitEmbeddings(t *testing.T) {
	items, err := Split(backends.Embeddings, []byte(`{"object":"list","data":[
		{"index":1,"embedding":"AACAPw=="},{"embedding":[0.5, -1e-3],"index":0}],"usage":{"prompt_tokens":7,"total_tokens":7}}`), 2)
	if rows := items.Rows; err != nil || items.Prompt != 7 || string(rows[0]) != `[0.5, -1e-3]` || string(rows[1]) != `"AACAPw=="` {
		t.Errorf("rows %q, tokens %d, %v", rows, items.Prompt, err)
	}
	if items, err = Split(backends.Embeddings, []byte(`{"data":[{"index":0,"embedding":[1]}]}`), 1); items.Prompt != -1 || err != nil {
		t.Errorf("tokens %d, %v, want -1 without usage", items.Prompt, err)
	}
	for _, reply := range []string{
		``, `[]`, `{}`, `{"data":{}}`, `{"error":{"message":"x"}}`, `{"data":[]}`,
		`{"data":[{"index":0,"embedding":[1]}]}`,
		`{"data":[{"index":0,"embedding":[1]},{"index":0,"embedding":[1]}]}`,
		`{"data":[{"index":0,"embedding":[1]},{"index":2,"embedding":[1]}]}`,
		`{"data":[{"index":0,"embedding":[1]},{"index":-1,"embedding":[1]}]}`,
		`{"data":[{"index":0,"embedding":[1]},{"embedding":[1]}]}`,
		`{"data":[{"index":0,"embedding":[1]},{"index":1}]}`,
		`{"data":[{"index":0,"embedding":[1]},{"index":1,"embedding":null}]}`,
		`{"data":[{"index":0,"embedding":[1]},{"index":1,"embedding":""}]}`,
		`{"data":[{"index":0,"embedding":[1]},{"index":1,"embedding":[ ]}]}`,
		`{"data":[{"index":0,"embedding":[1]},7]}`,
		`{"data":[{"index":0,"embedding":[1]},{"index":1,"embedding":[2]},{"index":1,"embedding":[2]}]}`,
	} {
		if items, err := Split(backends.Embeddings, []byte(reply), 2); !errors.Is(err, backends.ErrBadReply) || items.Rows != nil {
			t.Errorf("%s: %q, %v, want ErrBadReply", reply, items.Rows, err)
		}
	}
}

func TestAppendEmbeddings(t *testing.T) {
	rows := [][]byte{[]byte(`[1, -0.5]`), []byte(`"AACAPwAAAL8="`), []byte(`"AACAPwAAAL8\u003d"`)}
	got, err := AppendEmbeddings(nil, rows[:2], EmbeddingsReply{"m", 3, false})
	want := `{"object":"list","data":[{"object":"embedding","index":0,"embedding":[1, -0.5]},` +
		`{"object":"embedding","index":1,"embedding":[1,-0.5]}],"model":"m","usage":{"prompt_tokens":3,"total_tokens":3}}`
	if err != nil || string(got) != want {
		t.Errorf("got  %s, %v\nwant %s", got, err, want)
	}
	got, err = AppendEmbeddings(nil, rows[:2], EmbeddingsReply{"m", -1, true})
	want = `{"object":"list","data":[{"object":"embedding","index":0,"embedding":"AACAPwAAAL8="},` +
		`{"object":"embedding","index":1,"embedding":"AACAPwAAAL8="}],"model":"m","usage":{"prompt_tokens":0,"total_tokens":0}}`
	if err != nil || string(got) != want {
		t.Errorf("got  %s, %v\nwant %s", got, err, want)
	}
	if got, err = AppendEmbeddings(nil, rows[2:], EmbeddingsReply{"m", 0, false}); err != nil || !strings.Contains(string(got), "[1,-0.5]") {
		t.Errorf("escaped base64: %s, %v", got, err)
	}
	for _, bad := range []struct {
		row    string
		base64 bool
	}{
		{`[1,null]`, true}, {`[1,"2"]`, true}, {`[1e99]`, true}, {`"AAA"`, false}, {`"AAAA"`, false}, {`""`, false},
		{`"AADAfw=="`, false}, {`"AACAfw=="`, false}, {``, true},
	} {
		if _, err := AppendEmbeddings(nil, [][]byte{[]byte(bad.row)}, EmbeddingsReply{"m", 0, bad.base64}); !errors.Is(err, backends.ErrBadReply) {
			t.Errorf("%s: %v, want ErrBadReply", bad.row, err)
		}
	}
}

// Every float32 an engine can send survives float text and base64 in a circle.
func TestEncodingsRoundTrip(t *testing.T) {
	for _, f := range []float32{0, 1, -1, 0.1, math.MaxFloat32, math.SmallestNonzeroFloat32, 1e-38, 16777217, -3.4e-5} {
		row := append(AppendFloat32([]byte{'['}, f), ']')
		b64, err := appendVector(nil, row, true)
		if err != nil {
			t.Fatal(err)
		}
		back, err := appendVector(nil, b64, false)
		if err != nil || string(back) != string(row) {
			t.Errorf("%s became %s, %v", row, back, err)
		}
	}
}

func FuzzSplitEmbeddings(f *testing.F) {
	f.Add([]byte(`{"data":[{"index":1,"embedding":"AACAPw=="},{"embedding":[0.5],"index":0}],"usage":{"prompt_tokens":7}}`), 2)
	f.Add([]byte(`{"data":[{"index":0,"embedding":[1e400,{},[]]}]}`), 1)
	f.Add([]byte(`{"data":[{"index":1,"embedding":"0"},{"embedding":[],"index":0}]}`), 2)
	f.Add([]byte(`{"data":[{"index":0,"embedding":"A\/=="}]}`), 1)
	f.Fuzz(func(t *testing.T, reply []byte, n int) {
		if n < 0 || n > 64 {
			return
		}
		items, err := Split(backends.Embeddings, reply, n)
		rows := items.Rows
		if err != nil {
			if !errors.Is(err, backends.ErrBadReply) || rows != nil {
				t.Fatalf("%v, %d rows", err, len(rows))
			}
			return
		}
		for _, base64 := range []bool{false, true} {
			out, err := AppendEmbeddings(nil, rows, EmbeddingsReply{"m", 1, base64})
			if err != nil {
				continue
			}
			if !json.Valid(out) {
				t.Fatalf("%q gave %q", reply, out)
			}
			if again, err := Split(backends.Embeddings, out, n); err != nil || len(again.Rows) != n {
				t.Fatalf("own reply %q does not split: %v", out, err)
			}
		}
	})
}

func BenchmarkAppendEmbeddingsToBase64(b *testing.B) {
	row := []byte("[" + strings.Repeat("-0.012345678,", 383) + "0.5]")
	var dst []byte
	for b.Loop() {
		dst, _ = AppendEmbeddings(dst[:0], [][]byte{row}, EmbeddingsReply{"m", 1, true})
	}
}

func TestApportion(t *testing.T) {
	for _, tc := range []struct {
		total int
		own   []int
		want  string
	}{
		{-1, []int{3, 4}, "[3 4]"},
		{7, []int{3, 4}, "[3 4]"},
		{14, []int{3, 4}, "[6 8]"},
		{10, []int{1, 1, 1}, "[3 3 4]"},
		{0, []int{5}, "[0]"},
		{5, []int{0, 0}, "[0 0]"},
	} {
		got := slices.Clone(tc.own)
		if Apportion(got, tc.total); fmt.Sprint(got) != tc.want {
			t.Errorf("%d over %v: %v, want %s", tc.total, tc.own, got, tc.want)
		}
	}
}

func TestRowTokens(t *testing.T) {
	for _, tc := range []struct {
		rows, total int
		counted     []int
		want        string
	}{
		{2, 7, []int{3, 4}, "[3 4]"},
		{3, 10, nil, "[3 3 4]"},
		{2, 9, []int{9}, "[4 5]"},
		{3, 1, nil, "[1 1 1]"},
	} {
		r := &backends.Request{Inputs: make([][]byte, tc.rows), Tokens: tc.total, InputTokens: tc.counted}
		got := RowTokens(r)
		if fmt.Sprint(got) != tc.want {
			t.Errorf("%d rows of %d tokens, counted %v: %v, want %s", tc.rows, tc.total, tc.counted, got, tc.want)
		}
		if got[0] = -1; len(tc.counted) > 0 && tc.counted[0] == -1 {
			t.Error("the request's own counts were handed out")
		}
	}
}

// What was asked to be shorter is so, in whatever encoding it comes.
func TestCheckDimensions(t *testing.T) {
	for _, tt := range []struct {
		rows []string
		want int
		is   error
	}{
		{[]string{`[1,2,3]`}, 0, nil},
		{[]string{`[1, 2.5 ,-3e-1]`, `[1,2,3]`}, 3, nil},
		{[]string{`"AACAPwAAAEA="`}, 2, nil}, // 1, 2
		{[]string{`[1,2,3]`, `[1,2,3,4]`}, 3, ErrDimensions},
		{[]string{`[1,2]`}, 3, ErrDimensions},
		{[]string{`"AACAPwAAAEA="`}, 1, ErrDimensions},
		{[]string{`"?"`}, 1, backends.ErrBadReply},
	} {
		var rows [][]byte
		for _, r := range tt.rows {
			rows = append(rows, []byte(r))
		}
		err := CheckDimensions(rows, tt.want)
		if !errors.Is(err, tt.is) || err != nil && !errors.Is(err, backends.ErrBadReply) {
			t.Errorf("%q, %d asked for: %v, want %v", tt.rows, tt.want, err, tt.is)
		}
	}
}

// A whole answer's text, wherever its endpoint has it.
func TestAnswerText(t *testing.T) {
	for _, tt := range []struct {
		endpoint   backends.Endpoint
		body, want string
	}{
		{backends.Chat, `{"choices":[{"message":{"content":"a\n","reasoning_content":"b"}},{"message":{"content":null,"tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}}]}`, "a\n|b|{}"},
		{backends.Completions, `{"choices":[{"text":"a"},{"text":"b","logprobs":{"tokens":["x"]}}]}`, "a|b"},
		{backends.Responses, `{"output":[{"content":[{"type":"output_text","text":"a"}]},{"type":"function_call","arguments":"{}"}]}`, "a|{}"},
		{backends.Messages, `{"content":[{"type":"text","text":"a"},{"type":"tool_use","input":{"x":1}}]}`, `a|{"x":1}`},
		{backends.Chat, `{"choices":7}`, ""},
		{backends.Embeddings, `{"data":[{"embedding":"x"}]}`, ""},
		{backends.Chat, `[`, ""},
	} {
		if got := string(bytes.Join(AnswerText(tt.endpoint, []byte(tt.body)), []byte("|"))); got != tt.want {
			t.Errorf("%s %s: %q, want %q", tt.endpoint, tt.body, got, tt.want)
		}
	}
}
