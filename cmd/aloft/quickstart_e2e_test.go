package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// One server with the built-in quick start, and everything that people do with it.
func TestQuickStart(t *testing.T) {
	s := quickStart(t)
	if !strings.Contains(s.out.String(), "curl "+s.url+"/v1/chat/completions") {
		t.Errorf("no curl line in the greeting:\n%s", s.out.String())
	}
	t.Run("go-sdk", func(t *testing.T) { goSDK(t, s.url) })
	t.Run("node-sdk", func(t *testing.T) { nodeSDK(t, s.url) })
	t.Run("fine-tuning", s.fineTuning)
	t.Run("batch", s.batchCommands)
	t.Run("jobs", s.jobCommands)
	t.Run("top", s.topCommand)
	t.Run("load", s.loadCommand)
	t.Run("metrics", s.metrics)
	t.Run("in-use", s.inUse)
	t.Run("engines-killed", s.enginesKilled)
	s.stop(t)
	if e := call2(t, "jobs", "list", "--data", s.data); !strings.Contains(e, "no server serves the data folder") {
		t.Errorf("without a server: %s", e)
	}
}

// env points client commands at the server the way a person would.
func (s *instance) env() []string { return []string{"ALOFT_DATA=" + s.data} }

// rows writes a batch file of n embedding rows.
func rows(t *testing.T, model string, n int) string {
	t.Helper()
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"custom_id":"row-%d","method":"POST","url":"/v1/embeddings","body":{"model":%q,"input":"sentence number %d"}}`+"\n", i, model, i)
	}
	return write(t, "rows.jsonl", b.String())
}

// checkRows reads a batch's results: every row must be there once, with a vector.
func checkRows(t *testing.T, results string, n int) {
	t.Helper()
	seen := map[string]int{}
	for line := range strings.Lines(results) {
		var row struct {
			CustomID string `json:"custom_id"`
			Response struct {
				StatusCode int `json:"status_code"`
				Body       struct {
					Data []struct{ Embedding []float64 }
				}
			}
		}
		if err := json.Unmarshal([]byte(line), &row); err != nil {
			t.Fatalf("%v in %.200s", err, line)
		}
		if r := row.Response; r.StatusCode != 200 || len(r.Body.Data) != 1 || len(r.Body.Data[0].Embedding) == 0 {
			t.Errorf("row %s: %.200s", row.CustomID, line)
		}
		seen[row.CustomID]++
	}
	for i := range n {
		if k := "row-" + strconv.Itoa(i); seen[k] != 1 {
			t.Errorf("%s is there %d times", k, seen[k])
		}
	}
	if len(seen) != n {
		t.Errorf("%d different rows, want %d", len(seen), n)
	}
}

func (s *instance) batchCommands(t *testing.T) {
	out := call(t, s.env(), "batch", "submit", rows(t, "aloft-encoder", 40), "--wait")
	id, _, _ := strings.Cut(out, " ")
	if !strings.HasPrefix(id, "batch_") || !strings.Contains(out, "completed") || !strings.Contains(out, "40 of 40 rows done, 0 failed") {
		t.Fatalf("batch submit --wait: %s", out)
	}
	checkRows(t, call(t, s.env(), "batch", "results", id), 40)
	file := filepath.Join(t.TempDir(), "results.jsonl")
	call(t, s.env(), "batch", "results", id, "-o", file)
	text, _ := os.ReadFile(file)
	checkRows(t, string(text), 40)
	if out := call(t, s.env(), "batch", "status", id, "--json"); !json.Valid([]byte(out)) || !strings.Contains(out, id) {
		t.Errorf("batch status --json: %s", out)
	}
	if out := call2(t, "batch", "results", id, "--errors", "--data", s.data); !strings.Contains(out, "has no error file") {
		t.Errorf("batch results --errors: %s", out)
	}
	if out := call2(t, "batch", "status", "batch_none", "--data", s.data); !strings.Contains(out, `there is no batch "batch_none"`) {
		t.Errorf("batch status of none: %s", out)
	}
}

func (s *instance) jobCommands(t *testing.T) {
	out := call(t, s.env(), "jobs", "submit", "train-demo", "steps=60")
	id, state, _ := strings.Cut(strings.TrimSpace(out), " ")
	if !strings.HasPrefix(id, "job_") || state == "" {
		t.Fatalf("jobs submit: %s", out)
	}
	var shown string
	if !eventually(patience, func() bool {
		shown = call(t, s.env(), "jobs", "show", id)
		return strings.Contains(shown, "succeeded")
	}) {
		t.Fatalf("not done after %v: %s\n%s", patience, shown, call(t, s.env(), "why", id))
	}
	if !strings.Contains(shown, "60 of 60 steps") {
		t.Errorf("jobs show: %s", shown)
	}
	if out := call(t, s.env(), "jobs", "list"); !strings.Contains(out, id) {
		t.Errorf("jobs list: %s", out)
	}
	// The loan, and nothing about others.
	why := call(t, s.env(), "why", id)
	if !strings.Contains(why, "lend ") {
		t.Errorf("why %s: %s", id, why)
	}
	for line := range strings.Lines(why) {
		if !strings.Contains(line, id) {
			t.Errorf("why %s says: %s", id, line)
		}
	}
	all := call(t, s.env(), "why")
	if !strings.Contains(all, "aloft-lm") || !strings.Contains(all, id) {
		t.Errorf("why: %s", all)
	}
	if out := call2(t, "jobs", "submit", "train-demo", "steps=-3", "--data", s.data); !strings.Contains(out, "steps") {
		t.Errorf("steps=-3: %s", out)
	}
	if out := call2(t, "jobs", "submit", "rm-rf", "--data", s.data); !strings.Contains(out, "rm-rf") {
		t.Errorf("unknown template: %s", out)
	}
	id, _, _ = strings.Cut(strings.TrimSpace(call(t, s.env(), "jobs", "submit", "train-demo", "steps=1000000")), " ")
	call(t, s.env(), "jobs", "cancel", id)
	if !eventually(patience, func() bool { return strings.Contains(call(t, s.env(), "jobs", "show", id), "cancelled") }) {
		t.Errorf("not cancelled: %s", call(t, s.env(), "jobs", "show", id))
	}
}

func (s *instance) topCommand(t *testing.T) {
	out := call(t, s.env(), "top", "--once")
	for _, want := range []string{"g0/s0", "aloft-encoder", "aloft-lm", "ledger of"} {
		if !strings.Contains(out, want) {
			t.Errorf("top --once lacks %q:\n%s", want, out)
		}
	}
	var v Status
	if err := json.Unmarshal([]byte(call(t, s.env(), "top", "--json")), &v); err != nil || len(v.Slices) != 5 || !v.Modelled {
		t.Errorf("top --json: %d slices, modelled %v, %v", len(v.Slices), v.Modelled, err)
	}
	if v.Arbiter.Violations != 0 {
		t.Errorf("%d invariants broken: %s", v.Arbiter.Violations, call(t, s.env(), "why"))
	}
}

func (s *instance) loadCommand(t *testing.T) {
	for _, kind := range []string{"embeddings", "chat"} {
		file := filepath.Join(t.TempDir(), "load.json")
		args := []string{"load", "--url", s.url, "--kind", kind, "--rate", "4", "--for", "2s", "--target", "60s", "--tokens", "8", "--json", file}
		if kind == "chat" {
			args = append(args, "--model", "aloft-lm", "--stream")
		}
		out := call(t, nil, args...)
		var v struct {
			Results []struct {
				Model                           string
				Offered, OK, Late, Shed, Failed int
			}
		}
		text, _ := os.ReadFile(file)
		if err := json.Unmarshal(text, &v); err != nil || len(v.Results) != 1 {
			t.Fatalf("load --json: %v\n%s", err, text)
		}
		if r := v.Results[0]; r.Offered == 0 || r.OK != r.Offered || r.Failed != 0 {
			t.Errorf("load: %+v", r)
		}
		if !strings.Contains(out, kind) {
			t.Errorf("load printed %s", out)
		}
	}
}

func (s *instance) metrics(t *testing.T) {
	var text string
	if err := s.get("/metrics", &text); err != nil {
		t.Fatal(err)
	}
	sum, ratio, requests := 0.0, -1.0, 0.0
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		v, _ := strconv.ParseFloat(value, 64)
		switch {
		case strings.HasPrefix(name, "aloft_ledger_share{"):
			sum += v
		case name == "aloft_ratio":
			ratio = v
		case strings.HasPrefix(name, "gen_ai_server_request_duration_seconds_count{"):
			requests += v
		}
	}
	if sum < 0.999 || sum > 1.001 {
		t.Errorf("aloft_ledger_share sums to %v, want 1", sum)
	}
	if ratio < 0 || ratio > 1 {
		t.Errorf("aloft_ratio is %v", ratio)
	}
	if requests < 10 {
		t.Errorf("gen_ai_server_request_duration counts %v requests", requests)
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if err := s.get(path, nil); err != nil {
			t.Error(err)
		}
	}
}

// inUse starts a second server on the same data folder: it must refuse, and
// leave the first one alone.
func (s *instance) inUse(t *testing.T) {
	before := len(s.running())
	second := aloft(t, nil, "serve", "--listen", "127.0.0.1:0", "--data", s.data)
	if code := second.ended(t, patience); code != 1 || !strings.Contains(second.err.String(), "in use by another aloft (pid "+strconv.Itoa(s.Process.Pid)+")") {
		t.Errorf("exit code %d: %s", code, second.err.String())
	}
	time.Sleep(100 * time.Millisecond)
	if after := len(s.running()); after != before {
		t.Errorf("the first server had %d processes, now %d", before, after)
	}
	if err := s.get("/readyz", nil); err != nil {
		t.Error(err)
	}
}

// call2 runs the binary to an error, which must be one line, and returns it.
func call2(t *testing.T, args ...string) string {
	t.Helper()
	c := aloft(t, nil, args...)
	if code := c.ended(t, patience); code != 1 {
		t.Errorf("aloft %v: exit code %d, want 1", args, code)
	}
	text := strings.TrimSpace(c.err.String())
	if text == "" || strings.Contains(text, "\n") || !strings.HasPrefix(text, "aloft: ") {
		t.Errorf("aloft %v: want one line that starts with \"aloft: \", got:\n%s", args, text)
	}
	return text
}
