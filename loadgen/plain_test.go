package loadgen

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
)

// Whole answers, right ones and such as servers have been seen to send.
func TestJudgeWhole(t *testing.T) {
	const (
		response = `{"id":"r","status":"completed","error":null,"output":[{"type":"reasoning"},{"type":"message","content":[{"type":"output_text","text":"h\u00e9"}]}],"usage":{"input_tokens":3,"output_tokens":2}}`
		ranked   = `{"results":[{"index":1,"relevance_score":0.9},{"index":0,"relevance_score":-1e-3}],"usage":{"total_tokens":8}}`
		created  = `{"id":"batch_1","object":"batch","status":"validating","errors":null}`
	)
	but := strings.Replace
	for _, c := range []struct {
		kind    Kind
		want    expect
		body    string
		outcome Outcome
		problem string
	}{
		{Embeddings, expect{2, 2}, vectors, OK, ""},
		{Embeddings, expect{2, 2}, but(vectors, `[0.5,1]`, `"AAAA"`, 1), Protocol, "no base64 of 32-bit floats"},
		{Embeddings, expect{2, 2}, but(vectors, `[0.5,1]`, `""`, 1), Protocol, "no base64 of 32-bit floats"},
		{Embeddings, expect{2, 2}, but(vectors, `[0.5,1]`, `["a"]`, 1), Protocol, "no vector"},
		{Embeddings, expect{3, 3}, vectors, Protocol, "2 embeddings for 3 inputs"},
		{Embeddings, expect{1, 1}, vectors, Protocol, "index 1 is missing, wrong or there twice, of 1 inputs"},
		{Embeddings, expect{2, 2}, but(vectors, `"index":1`, `"index":0`, 1), Protocol, "twice"},
		{Embeddings, expect{2, 2}, but(vectors, `"index":1,`, ``, 1), Protocol, "missing"},
		{Embeddings, expect{2, 2}, `<html>`, Protocol, "not JSON"},

		{Chat, expect{1, 1}, plain, OK, ""},
		{Chat, expect{2, 1}, plain, Protocol, "1 choices, want 2"},
		{Chat, expect{1, 1}, but(plain, `"stop"`, "null", 1), Truncated, "finish_reason"},
		{Chat, expect{1, 1}, but(plain, `"stop"`, `"abort"`, 1), Protocol, "finish_reason abort"},
		{Chat, expect{1, 1}, but(plain, `"message"`, `"msg"`, 1), Protocol, "neither"},
		{Chat, expect{1, 1}, `{"error":{"message":"out of memory"}}`, Protocol, `status 200 with an error: {"message":"out of memory"}`},
		{Completions, expect{2, 2}, `{"choices":[{"index":0,"text":"","finish_reason":"length"},{"index":1,"text":"a","finish_reason":"stop"}]}`, OK, ""},

		{Rerank, expect{2, 2}, ranked, OK, ""},
		{Rerank, expect{1, 2}, ranked, Protocol, "2 results, want 1 of 2"},
		{Rerank, expect{2, 3}, but(ranked, `"index":0`, `"index":3`, 1), Protocol, "index 3"},
		{Rerank, expect{2, 2}, but(ranked, `0.9`, `null`, 1), Protocol, "relevance_score"},

		{Responses, expect{1, 1}, response, OK, ""},
		{Responses, expect{1, 1}, but(response, `completed`, `in_progress`, 1), Protocol, `status "in_progress"`},
		{Responses, expect{1, 1}, but(response, `"completed"`, `"incomplete","incomplete_details":{"reason":"max_output_tokens"}`, 1), OK, ""},
		{Responses, expect{1, 1}, but(response, `"completed"`, `"incomplete","incomplete_details":{"reason":"content_filter"}`, 1), Truncated, "content_filter"},
		{Responses, expect{1, 1}, `{"status":"completed","output":[]}`, Protocol, "no output"},
		{Responses, expect{1, 1}, `{"status":"failed","error":{"code":"server_error"}}`, Protocol, "server_error"},

		{Batch, expect{1, 1}, `{"id":"file-1","object":"file"}`, OK, ""},
		{Batch, expect{1, 1}, created, OK, ""},
		{Batch, expect{1, 1}, but(created, "validating", "in_progress", 1), OK, ""},
		{Batch, expect{1, 1}, but(but(created, "validating", "failed", 1), "null", `{"data":[{"message":"line 1"}]}`, 1), Protocol, `status "failed", want validating or in_progress: line 1`},
		{Batch, expect{1, 1}, but(created, "batch_1", "", 1), Protocol, "the batch has no id"},
		{Batch, expect{1, 1}, but(created, `"batch"`, `"list"`, 1), Protocol, `object is "list"`},

		{Job, expect{1, 1}, `{"id":"job-1","object":"job","state":"queued","error":null}`, OK, ""},
		{Job, expect{1, 1}, `{"object":"job"}`, Protocol, "no id"},
		{Job, expect{1, 1}, `{"id":"job-1","state":"failed"}`, Protocol, "job is failed"},
	} {
		var judge whole
		var s sample
		outcome, err := judge.judge(c.kind, c.want, []byte(c.body), &s)
		if outcome != c.outcome || (err != nil) != (c.problem != "") || err != nil && !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%s %v %s: %s, %v; want %s with %q", c.kind, c.want, c.body, outcome, err, c.outcome, c.problem)
		}
		switch c.body {
		case plain:
			if c.outcome == OK && (string(judge.said) != "hi" || s.tokens != tokens{prompt: 7, completion: 4}) {
				t.Errorf("chat said %q with %+v", judge.said, s.tokens)
			}
		case response:
			if string(judge.said) != `h\u00e9` || (s.tokens != tokens{prompt: 3, completion: 2}) {
				t.Errorf("response said %q with %+v", judge.said, s.tokens)
			}
		case ranked:
			if c.outcome == OK && s.prompt != 8 {
				t.Errorf("rerank of %d tokens, want 8", s.prompt)
			}
		}
		if c.kind == Batch && strings.Contains(c.body, "file-1") && string(judge.file) != `"file-1"` {
			t.Errorf("upload's id is %s", judge.file)
		}
	}
}

// What is no count of tokens is no usage.
func TestUsageThatIsNone(t *testing.T) {
	for _, usage := range []string{`null`, `{}`, `{"prompt_tokens":-7,"completion_tokens":-4}`, `{"prompt_tokens":"7","completion_tokens":"4"}`, `{"prompt_tokens":1e30,"completion_tokens":1e30}`} {
		body := strings.Replace(plain, `{"prompt_tokens":7,"completion_tokens":4}`, usage, 1)
		var judge whole
		var s sample
		if outcome, err := judge.judge(Chat, expect{1, 1}, []byte(body), &s); outcome != OK || s.tokens != (tokens{estimated: true}) {
			t.Errorf("%s: %s (%v), %+v, want no count", usage, outcome, err, s.tokens)
		}
		st := stream{}
		if err := st.take(nil, []byte(`{"choices":[],"usage":`+usage+`}`)); err != nil || st.usage || st.prompt != 0 || st.completion != 0 {
			t.Errorf("%s in a stream: %v, usage %v of %d and %d, want none", usage, err, st.usage, st.prompt, st.completion)
		}
	}
}

func TestJudgeAllocatesNothing(t *testing.T) {
	var judge whole
	for kind, c := range map[Kind]struct {
		body string
		want expect
	}{
		Embeddings: {vectors, expect{2, 2}}, Chat: {plain, expect{1, 1}},
		Rerank: {`{"results":[{"index":0,"relevance_score":1}]}`, expect{1, 1}}, Job: {`{"id":"a"}`, expect{1, 1}},
	} {
		body, s := []byte(c.body), sample{}
		if n := testing.AllocsPerRun(100, func() {
			if _, err := judge.judge(kind, c.want, body, &s); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations per answer", kind, n)
		}
	}
}

// What is kept of an answer is bounded, and still the inside of a string.
func TestSaidIsBounded(t *testing.T) {
	for _, piece := range []string{"word ", `\n\u00e9`, "語", strings.Repeat("x", 3*maxSaid)} {
		var said []byte
		for range 3 * maxSaid / len(piece) {
			said = appendSaid(said, piece)
		}
		said = appendSaid(said, "more")
		var s string
		if err := json.Unmarshal([]byte(`"`+string(said)+`"`), &s); err != nil || len(said) < maxSaid || len(said) > maxSaid+6 || strings.Contains(s, "more") {
			t.Errorf("%.10s: kept %d bytes, want %d: %v", piece, len(said), maxSaid, err)
		}
	}
}

// Whatever a server sends, it is judged without a panic, and what it said fits
// back into a request.
func FuzzJudgeWhole(f *testing.F) {
	f.Add([]byte(vectors), uint8(0), uint8(2))
	f.Add([]byte(plain), uint8(1), uint8(1))
	f.Add([]byte(`{"results":[{"index":-9223372036854775808,"relevance_score":1}]}`), uint8(4), uint8(1))
	f.Fuzz(func(t *testing.T, body []byte, k, n uint8) {
		var judge whole
		var s sample
		before := string(body)
		outcome, err := judge.judge(kinds[int(k)%len(kinds)], expect{int(n), int(n)}, body, &s)
		if (err == nil) != (outcome == OK) || string(body) != before {
			t.Fatalf("outcome %s with %v", outcome, err)
		}
		if said := `"` + string(judge.said) + `"`; !gjson.Valid(said) || len(judge.file) > 0 && !gjson.ValidBytes(judge.file) {
			t.Fatalf("kept %s, %s", said, judge.file)
		}
	})
}
