package loadgen

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"aloft/loadgen/arrivals"
)

// mooncake is a trace in which prompts begin alike: rows 1 to 3 share the first
// block and 1 and 3 the second, row 4 is all of row 1 and less, 5 shares nothing.
const mooncake = `{"timestamp": 0, "input_length": 1500, "output_length": 1, "hash_ids": [1, 2, 3]}
{"timestamp": 100, "input_length": 900, "output_length": 1, "hash_ids": [1, 4]}
{"timestamp": 200, "input_length": 1700, "output_length": 1, "hash_ids": [1, 2, 5, 6]}
{"timestamp": 300, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]}
{"timestamp": 400, "input_length": 600, "output_length": 1, "hash_ids": [7, 8]}
`

// recordedBodies are the bodies of a replay, in order.
func recordedBodies(t *testing.T, w Workload, seed uint64, copies int) (out []string) {
	t.Helper()
	w.Name, w.URL, w.Model = "w", "http://h", "m"
	w.Phases = []arrivals.Phase{{Name: "p", Duration: time.Second, Process: arrivals.Process{Kind: arrivals.Replay, Trace: arrivals.Trace{File: "t", Format: arrivals.MooncakeFormat, Copies: copies}}}}
	opt := Options{Seed: seed, Open: files(map[string]string{"t": mooncake}), Workloads: []Workload{w}}
	var file bytes.Buffer
	if _, err := WritePlan(&file, opt); err != nil {
		t.Fatal(err)
	}
	// What is saved says it, too.
	opt.Open, opt.Plan = files(map[string]string{"t": mooncake, "plan": file.String()}), "plan"
	plans, err := opt.plan()
	if err != nil {
		t.Fatal(err)
	}
	stocks, err := opt.stocks()
	if err != nil {
		t.Fatal(err)
	}
	worker, err := opt.worker(0, plans[0], stocks[0], time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for worker.prepare() {
		out = append(out, string(worker.ahead.body))
	}
	return out
}

func common(a, b string) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// Requests of a trace whose prompts began alike begin alike, as far as they did
// and no further, whatever their kind.
func TestRecordedPromptsBeginAlike(t *testing.T) {
	for kind, path := range map[Kind]string{
		Chat: "messages.0.content", Responses: "input.0.content", Completions: "prompt", Embeddings: "input.0", Rerank: "documents.0", Batch: "",
	} {
		w := Workload{Kind: kind, Content: Content{Corpus: "", Prefix: &Prefix{Pool: 2, Tokens: 9, Share: 1}}}
		if kind == Batch {
			w.Rows, path = Completions, "body.prompt"
		}
		if w.hasInputs() {
			w.Inputs = 3
		}
		prompts := func(seed uint64) (out []string) {
			for _, body := range recordedBodies(t, w, seed, 1) {
				if kind == Batch {
					_, body, _ = strings.Cut(body, "Content-Type: application/jsonl\r\n\r\n")
					body, _, _ = strings.Cut(body, "\n")
				}
				out = append(out, gjson.Get(body, path).String())
			}
			return out
		}
		all := prompts(1)
		if len(all) != 5 {
			t.Fatalf("%s: %d requests", kind, len(all))
		}
		for i, tokens := range []int{1500, 900, 1700, 1024, 600} {
			if got := float64(len(all[i])) / 4; got < 0.98*float64(tokens) || got > float64(tokens)+1 {
				t.Errorf("%s: prompt %d has %.0f tokens by its length, want %d", kind, i, got, tokens)
			}
		}
		for _, c := range []struct{ a, b, blocks int }{{0, 1, 1}, {0, 2, 2}, {0, 3, 2}, {1, 2, 1}, {1, 3, 1}, {2, 3, 2}, {0, 4, 0}, {1, 4, 0}} {
			from, to := 4*arrivals.Block*c.blocks*98/100, 4*arrivals.Block*c.blocks+40
			if n := common(all[c.a], all[c.b]); n < from || n > to {
				t.Errorf("%s: prompts %d and %d have their first %d bytes alike, want %d to %d", kind, c.a, c.b, n, from, to)
			}
		}
		if again := prompts(1); fmt.Sprint(again) != fmt.Sprint(all) {
			t.Errorf("%s: the same seed says something else", kind)
		}
		if other := prompts(2); common(other[0], all[0]) > 200 {
			t.Errorf("%s: another seed says the same", kind)
		}
	}
}

// A trace laid over itself is other users, who share nothing with the first.
func TestCopiesShareNothing(t *testing.T) {
	all := recordedBodies(t, Workload{Kind: Completions}, 1, 2)
	alike := 0
	for i, a := range all {
		for _, b := range all[:i] {
			if common(gjson.Get(a, "prompt").String(), gjson.Get(b, "prompt").String()) > 1900 {
				alike++
			}
		}
	}
	if len(all) != 10 || alike != 12 { // 6 pairs of the first four, in each copy
		t.Errorf("%d requests, %d pairs begin alike, want 10 and 12", len(all), alike)
	}
}

// A shared beginning is for every kind that has texts.
func TestPrefixOfEveryKind(t *testing.T) {
	for kind, path := range map[Kind]string{
		Chat: "messages.0.content", Responses: "input.0.content", Completions: "prompt", Embeddings: "input.1", Rerank: "query",
	} {
		w := Workload{Kind: kind, Model: "m", Content: Content{Prefix: &Prefix{Pool: 1, Tokens: 100, Share: 1}}}
		if w.hasInputs() {
			w.Inputs = 2
		}
		m, texts := newStock(&w, 1, sources{}).maker(), []string{}
		for i := range 2 {
			body, _ := m.append(nil, &order{index: i, shape: arrivals.Shape{Input: 50}})
			texts = append(texts, gjson.GetBytes(body, path).String())
		}
		if n := common(texts[0], texts[1]); n < 380 || n > 440 {
			t.Errorf("%s: the first %d bytes are alike, want those of 100 tokens: %q", kind, n, texts)
		}
	}
}
