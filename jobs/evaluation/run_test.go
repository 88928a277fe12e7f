package evaluation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// server answers as two models would: "good" knows everything, "bad" says no.
type server struct {
	*httptest.Server
	asked atomic.Int64
	busy  atomic.Int64 // answers that are still to be 429
	hook  func(n int64)
}

func serve(t *testing.T) *server {
	s := &server{hook: func(int64) {}}
	s.Server = httptest.NewServer(http.HandlerFunc(s.answer))
	t.Cleanup(s.Close)
	return s
}

func (s *server) answer(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	var in struct {
		Model, Prompt, Input string
		Messages             []struct{ Content string }
		Echo                 bool
	}
	if json.Unmarshal(b, &in) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if s.busy.Add(-1) >= 0 {
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	s.hook(s.asked.Add(1))
	good := in.Model == "good"
	switch {
	case strings.Contains(string(b), "refuse me"):
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"error":{"message":"I refuse"}}`)
	case in.Echo: // each byte a token of 2 bits, or 4
		p := -2 * math.Ln2
		if !good {
			p *= 2
		}
		tokens, values := []string{}, []any{}
		for i, c := range in.Prompt + "!" {
			tokens = append(tokens, string(c))
			if values = append(values, p); i == 0 {
				values[0] = nil
			}
		}
		json.NewEncoder(w).Encode(map[string]any{"usage": map[string]int{"completion_tokens": 1},
			"choices": []any{map[string]any{"logprobs": map[string]any{"tokens": tokens, "token_logprobs": values}}}})
	case in.Input != "": // by the first letter, which "bad" takes for another
		v := make([]float64, 30)
		v[in.Input[0]-'a'] = 2
		v[29] = 0.01
		if !good {
			v[in.Input[0]-'a'], v[28] = 0, float64(in.Input[0]-'a'+1)
		}
		json.NewEncoder(w).Encode(map[string]any{"data": []any{map[string]any{"embedding": v}}})
	default:
		text := "no"
		if good {
			text = strings.TrimPrefix(in.Prompt, "say ")
			if in.Messages != nil {
				text = strings.TrimPrefix(in.Messages[0].Content, "say ")
			}
		}
		w.Header().Set("Content-Type", "text/event-stream")
		field := `"text":%q`
		if in.Messages != nil {
			field = `"delta":{"content":%q}`
		}
		fmt.Fprintf(w, `data: {"choices":[{"index":0,`+field+`,"finish_reason":"stop"}]}`+"\n\ndata: [DONE]\n\n", text)
	}
}

const rows = `{"prompt":"say yes","expect":"yes"}
{"messages":[{"role":"user","content":"say maybe so"}],"expect":["no","maybe"],"match":"prefix"}

{"prompt":"say refuse me","expect":"x"}
{"text":"abcde"}
{"text":"xyz"}
{"query":"apple","relevant":["d1"]}
{"query":"bear","relevant":["d2","d3"]}
{"id":"d1","document":"ant"}
{"id":"d2","document":"bee"}
{"id":"d3","document":"cow"}
`

func set(t *testing.T) Set {
	s, err := ReadSet("test", strings.NewReader(rows))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func near(a *Estimate, want float64, n int) bool {
	return a != nil && math.Abs(a.Value-want) < 1e-6 && a.N == n && a.Low <= a.Value && a.Value <= a.High
}

func TestRunMeasuresAndCompares(t *testing.T) {
	s := serve(t)
	s.busy.Store(2) // is waited out
	o := Options{Set: set(t), Model: Subject{Name: "good", Model: "good", URL: s.URL}, K: 1, Concurrency: 3, Dir: t.TempDir(),
		Against: &Subject{Name: "bad", Model: "bad", URL: s.URL}}
	var last Progress
	o.Report = func(p Progress) { last = p }
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	g, b, a := r.Model, r.Against, r.Agreement
	for what, ok := range map[string]bool{
		"exact":        near(g.ExactMatch, 2./3, 3) && near(b.ExactMatch, 1./3, 3),
		"bits":         near(g.BitsPerByte, 2, 2) && near(b.BitsPerByte, 4, 2) && near(a.BitsPerByte, -2, 2),
		"perplexity":   near(g.Perplexity, 4, 2) && near(b.Perplexity, 16, 2),
		"recall":       near(&g.Retrieval.Recall, 0.75, 2) && g.Retrieval.K == 1 && g.Retrieval.Documents == 3,
		"mrr, ndcg":    near(&g.Retrieval.MRR, 1, 2) && near(&g.Retrieval.NDCG, 1, 2),
		"latency":      g.Latency.TotalP50.N == 2 && g.Latency.FirstP99.N == 2 && g.Latency.TotalP99.Value > 0,
		"failed":       g.Failed == 1 && g.Error == "HTTP 400: I refuse" && b.Failed == 1,
		"same text":    near(a.SameText, 0, 2),
		"paired exact": near(a.ExactMatch, 0.5, 2),
		"cosine":       a.Cosine.N == 5 && a.Total.N == 7,
		"progress":     last.Done == 20 && last.Total == 20 && last.Failed == 2 && last.Checkpoint != "",
		"info":         r.Version == Version && r.Set.Rows == 10 && len(r.Set.SHA256) == 64 && r.Seconds > 0,
	} {
		if !ok {
			text, _ := json.MarshalIndent(r, "", " ")
			t.Errorf("%s: %s\n%+v", what, text, last)
		}
	}
	before := s.asked.Load()
	again, err := Run(t.Context(), o)
	if err != nil || s.asked.Load() != before || again.Model.ExactMatch.Value != g.ExactMatch.Value {
		t.Errorf("what was done was asked again: %d, %v", s.asked.Load()-before, err)
	}
}

// Whatever is cut off when it is stopped or killed, each row counts once.
func TestRunResumes(t *testing.T) {
	s := serve(t)
	dir := t.TempDir()
	o := Options{Set: set(t), Model: Subject{Name: "good", Model: "good", URL: s.URL}, Dir: dir}
	ctx, cancel := context.WithCancel(t.Context())
	s.hook = func(n int64) {
		if n == 4 {
			cancel()
		}
	}
	if _, err := Run(ctx, o); !errors.Is(err, ErrPreempted) {
		t.Fatalf("stopped: %v", err)
	}
	path := filepath.Join(dir, "rows.jsonl")
	kept, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(kept), "\n"); n < 3 || n > 5 {
		t.Fatalf("%d lines are kept:\n%s", n, kept)
	}
	s.hook = func(int64) {}
	want := 0.0
	for _, cut := range []int{len(kept), len(kept) - 1, len(kept) - 20, 30, 0} {
		if err := os.WriteFile(path, kept[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		before := s.asked.Load()
		r, err := Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		whole := max(strings.Count(string(kept[:cut]), "\n")-1, 0) // rows that are kept
		if got := s.asked.Load() - before; got != int64(len(o.Set.Rows)-whole) {
			t.Errorf("cut at %d: %d asked, %d were kept", cut, got, whole)
		}
		if want == 0 {
			want = r.Model.BitsPerByte.Value
		}
		if r.Model.BitsPerByte.Value != want || r.Model.Failed != 1 {
			t.Errorf("cut at %d: %+v", cut, r.Model)
		}
	}
	o.MaxTokens = 7 // another evaluation
	before := s.asked.Load()
	if _, err := Run(t.Context(), o); err != nil || s.asked.Load()-before != int64(len(o.Set.Rows)) {
		t.Errorf("rows of another evaluation were taken: %v", err)
	}
}

func TestRunFails(t *testing.T) {
	s := serve(t)
	only, err := ReadSet("bad", strings.NewReader(`{"prompt":"say refuse me"}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Run(t.Context(), Options{Set: only, Model: Subject{Name: "good", Model: "good", URL: s.URL}}); err == nil || !strings.Contains(err.Error(), "good answered no row: HTTP 400: I refuse") {
		t.Errorf("no answer: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Run(ctx, Options{Set: only, Model: Subject{Model: "m", URL: "http://127.0.0.1:1"}}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nothing kept: %v", err)
	}
	if _, err := Run(ctx, Options{Set: only, Model: Subject{Model: "m", URL: "127.0.0.1"}}); err == nil || !strings.Contains(err.Error(), "want http://HOST:PORT") {
		t.Errorf("bad URL: %v", err)
	}
}

func TestReadSetRefuses(t *testing.T) {
	for in, want := range map[string]string{
		"":                          "has no rows",
		`{"prompt":1}`:              "line 1",
		`{"promt":"a"}`:             `unknown field "promt"`,
		"\n{}":                      "line 2: want one of prompt, messages, text, query and document, got 0",
		`{"prompt":"a","text":"b"}`: "got 2",
		`{"text":"a","expect":"b"}`: "go with prompt or messages",
		`{"prompt":"a","expect":"b","match":"near"}`: "want exact, prefix or contains",
		`{"prompt":"a","expect":3}`:                  "want a text or a list",
		`{"prompt":"a","expect":[" "]}`:              "empty text",
		`{"messages":[]}`:                            "at least one message",
		`{"query":"a"}`:                              "without relevant",
		`{"query":"a","relevant":["d"]}`:             "no such document",
		`{"document":"a"}`:                           "needs an id",
		"{\"id\":\"d\",\"document\":\"a\"}\n{\"id\":\"d\",\"document\":\"b\"}": "line 2: there is another",
	} {
		if _, err := ReadSet("s", strings.NewReader(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", in, err, want)
		}
	}
}

func TestRight(t *testing.T) {
	for _, c := range []struct {
		match, answer string
		want          bool
	}{
		{"", " earth\n", true}, {"", "earth.", false}, {"prefix", "earth. And", true}, {"prefix", "earthly", false}, {"contains", "the earth", true}, {"contains", "sky", false},
	} {
		if got := (Row{Expect: oneOrMore{"earth"}, Match: c.match}).right(c.answer); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func FuzzReadSet(f *testing.F) {
	f.Add(rows)
	f.Fuzz(func(t *testing.T, in string) {
		if s, err := ReadSet("f", strings.NewReader(in)); err == nil && (len(s.Rows) == 0 || s.SetInfo.Rows != len(s.Rows)) {
			t.Errorf("%q: %+v", in, s.SetInfo)
		}
	})
}
