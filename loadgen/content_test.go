package loadgen

import (
	"errors"
	"io"
	"strings"
	"testing"
)

func TestContentRefuses(t *testing.T) {
	prefix := func(p Prefix) func(*Workload) { return func(w *Workload) { w.Prefix = &p } }
	for want, spoil := range map[string]func(*Workload){
		"inputs belongs to embeddings, rerank and batch": func(w *Workload) { w.Inputs = 2 },
		"inputs is 8193, want 0 to 8192":                 func(w *Workload) { w.Kind, w.Inputs = Rerank, 8193 },
		"inputs is 50001, want 0 to 50000":               func(w *Workload) { w.Kind, w.Inputs = Batch, 50001 },
		"encoding belongs to embeddings":                 func(w *Workload) { w.Encoding = "float" },
		`encoding is "int8"`:                             func(w *Workload) { w.Kind, w.Encoding = Embeddings, "int8" },
		"rows belongs to batch":                          func(w *Workload) { w.Rows = Chat },
		`rows is "rerank", want one of`:                  func(w *Workload) { w.Kind, w.Rows = Batch, Rerank },
		"stream does not belong to kind batch":           func(w *Workload) { w.Kind, w.Stream = Batch, true },
		"max_tokens does not belong to kind embeddings":  func(w *Workload) { w.Kind, w.MaxTokens = Batch, 3 },
		"a job needs template, or a file":                func(w *Workload) { w.Kind, w.Model = Job, "" },
		"model does not belong to kind job":              func(w *Workload) { w.Kind, w.Template = Job, "t" },
		"template and params belong to job":              func(w *Workload) { w.Template = "t" },
		"texts and corpus: want one":                     func(w *Workload) { w.Texts, w.Corpus = []string{"a"}, "f" },
		"corpus does not go with whole requests":         func(w *Workload) { w.Corpus, w.Requests = "f", "g" },
		"max_tokens does not go with whole requests":     func(w *Workload) { w.MaxTokens, w.Requests = 5, "g" },
		"bytes_per_token is 65":                          func(w *Workload) { w.BytesPerToken = 65 },
		"prefix: 8192 texts that each begin":             func(w *Workload) { w.Kind, w.Inputs, w.Prefix = Embeddings, 8192, &Prefix{1, 10000, 1} },
		"input_tokens: kind is":                          func(w *Workload) { w.InputTokens = &Dist{} },
		"output_tokens does not belong to kind rerank":   func(w *Workload) { w.Kind, w.OutputTokens = Rerank, &Dist{Kind: "fixed", Mean: 1} },
		"100 such texts can be more than 67108864 bytes": func(w *Workload) { w.Kind, w.Inputs, w.InputTokens = Embeddings, 100, &Dist{Kind: "fixed", Mean: 2e5} },
		"prefix.pool is 0, want 1 to 10000":              prefix(Prefix{0, 1, 1}),
		"prefix.tokens is 0":                             prefix(Prefix{1, 0, 1}),
		"prefix.share is 1.5":                            prefix(Prefix{1, 1, 1.5}),
		"10000 of 10000 tokens are more than":            prefix(Prefix{10000, 10000, 1}),
	} {
		w := Workload{Name: "w", Kind: Chat, Model: "m", URL: "http://127.0.0.1:1", Phases: steady(1, 1)}
		spoil(&w)
		if err := w.validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}

// The files of a profile are opened by whoever read it, and an error names them.
func TestFilesOfAProfile(t *testing.T) {
	files := map[string]string{"texts.txt": "one\n", "bad.jsonl": "{}\n", "good.jsonl": `{"input":"a"}`}
	opt := Options{
		Open: func(name string) (io.ReadCloser, error) {
			text, ok := files[name]
			if !ok {
				return nil, errors.New("no such file: " + name)
			}
			return io.NopCloser(strings.NewReader(text)), nil
		},
		Workloads: []Workload{{Name: "w", Kind: Embeddings, Model: "m"}},
	}
	w := &opt.Workloads[0]
	for want, c := range map[string]Content{
		"":                         {Corpus: "texts.txt"},
		" ":                        {Requests: "good.jsonl"},
		`"w": bad.jsonl:1: a body`: {Requests: "bad.jsonl"},
		"no such file: none.txt":   {Corpus: "none.txt"},
	} {
		w.Content = c
		stocks, err := opt.stocks()
		if ok := strings.TrimSpace(want) == ""; ok != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want %q", c, err, want)
		} else if ok {
			if body, _ := stocks[0].maker().append(nil, &order{}); len(body) == 0 {
				t.Errorf("%+v makes no body", c)
			}
		}
	}
	opt.Open = nil
	w.Content = Content{Corpus: "texts.txt"}
	if _, err := opt.stocks(); err == nil || !strings.Contains(err.Error(), "nothing here opens files") {
		t.Errorf("without Open: %v", err)
	}
}
