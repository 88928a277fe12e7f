package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"aloft/jobs/evaluation"
)

// A training, a quantization after it and an evaluation after that, on borrowed
// slices; then the smaller file's result is there to decide by.
func TestQuantizeAndEvaluateJobs(t *testing.T) {
	s := quickStart(t)
	submit := func(args ...string) string {
		id, _, _ := strings.Cut(call(t, s.env(), append([]string{"jobs", "submit"}, args...)...), " ")
		return id
	}
	train := submit("train-demo", "steps=20")
	quantize := submit("--after", train, "quantize", "type=q4_0", "out=small.gguf")
	evaluate := submit("--after", quantize, "evaluate", "model=small.gguf")
	served := submit("evaluate-served")
	outside := submit("quantize", "out=../small.gguf")
	for id, want := range map[string]string{train: "succeeded", quantize: "succeeded", evaluate: "succeeded", served: "succeeded", outside: "failed"} {
		var shown string
		if !eventually(patience, func() bool {
			shown = call(t, s.env(), "jobs", "show", id)
			return strings.Contains(shown, want)
		}) {
			t.Fatalf("%s has not %s:\n%s\n%s", id, want, shown, call(t, s.env(), "jobs", "logs", id))
		}
	}
	var job struct {
		Result  json.RawMessage
		Started float64 `json:"started_at"`
	}
	if err := json.Unmarshal([]byte(call(t, s.env(), "jobs", "show", "--json", quantize)), &job); err != nil {
		t.Fatal(err)
	}
	var q quantized
	if err := json.Unmarshal(job.Result, &q); err != nil || q.Kind != "quantization" || q.BytesOut >= q.BytesIn/4 {
		t.Errorf("quantization: %s, %v", job.Result, err)
	}
	if st, err := os.Stat(filepath.Join(s.data, "models", "small.gguf")); err != nil || st.Size() != q.BytesOut {
		t.Errorf("the smaller file: %v, %v", st, err)
	}
	if err := json.Unmarshal([]byte(call(t, s.env(), "jobs", "show", "--json", evaluate)), &job); err != nil {
		t.Fatal(err)
	}
	r, err := evaluation.Decode(job.Result)
	if err != nil {
		t.Fatalf("%s: %v", job.Result, err)
	}
	m, b := r.Model, r.Against
	if b == nil || m.Name != "small" || m.Bytes != q.BytesOut || m.Failed+b.Failed > 0 || m.ExactMatch.Value < 0.4 ||
		b.BitsPerByte.Value > 1.5 || r.Agreement.BitsPerByte.Value > 0.1 || r.Agreement.SameText.Value < 0.3 {
		t.Errorf("evaluation: %s", job.Result)
	}
	if shown := call(t, s.env(), "jobs", "show", served); !strings.Contains(shown, "bits per byte") || !strings.Contains(shown, "aloft-lm") {
		t.Errorf("jobs show %s:\n%s", served, shown)
	}
	s.stop(t)
}

// The program by itself: told to stop it keeps its rows and asks to be run again.
func TestEvaluateResumes(t *testing.T) {
	lib := needLibrary(t)
	dir := t.TempDir()
	set := filepath.Join(dir, "set.jsonl")
	const rows = 150 // of which a few are kept before it is told to stop
	row := `{"text":"` + strings.Repeat("And the king rose up early in the morning. ", 8) + `"}` + "\n"
	if err := os.WriteFile(set, []byte(strings.Repeat(row, rows)), 0o600); err != nil {
		t.Fatal(err)
	}
	env := []string{"ALOFT_ENGINE_LIB=" + lib, "ALOFT_CHECKPOINT_DIR=" + dir, "ALOFT_PROGRESS_FILE=" + filepath.Join(dir, "progress")}
	args := []string{"evaluate", "--set", set, "--gguf", "builtin:aloft-lm.gguf"}
	kept := func() int {
		b, _ := os.ReadFile(filepath.Join(dir, "rows.jsonl")) // not there yet: none
		return strings.Count(string(b), "\n") - 1
	}
	c := aloft(t, env, args...)
	if !eventually(patience, func() bool { return kept() > 3 }) {
		t.Fatalf("no rows: %s", c.err.String())
	}
	_ = c.Process.Signal(syscall.SIGTERM)
	if code := c.ended(t, patience); code != 75 {
		t.Fatalf("exit code %d, want 75: %s", code, c.err.String())
	}
	before := kept()
	if before < 3 || before >= rows {
		t.Fatalf("%d of %d rows are kept", before, rows)
	}
	began := time.Now()
	call(t, env, args...)
	text, err := os.ReadFile(filepath.Join(dir, "progress"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	var last struct {
		Step   int
		Result json.RawMessage
	}
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil {
		t.Fatal(err)
	}
	r, err := evaluation.Decode(last.Result)
	if err != nil || last.Step != rows || r.Model.BitsPerByte.N != rows || kept() != rows || !strings.Contains(string(text), "rows.jsonl") {
		t.Errorf("after %d rows and %v more: %s, %v", before, time.Since(began), lines[len(lines)-1], err)
	}
}

func TestEvaluateRefuses(t *testing.T) {
	dir := t.TempDir()
	for want, args := range map[string][]string{
		"no built-in set \"none\", want language, search": {"--set", "builtin:none", "--model", "m"},
		"no such file":                     {"--set", "none.jsonl", "--model", "m"},
		"without a folder":                 {"--set", "builtin:language", "--gguf", "../m.gguf", "--folder", dir},
		"no server serves":                 {"--set", "builtin:language", "--model", "m", "--data", dir},
		"there is no built-in model \"x\"": {"--set", "builtin:language", "--gguf", "builtin:x"},
	} {
		if got := call2(t, append([]string{"evaluate"}, args...)...); !strings.Contains(got, want) {
			t.Errorf("%v: %s, want %q", args, got, want)
		}
	}
}
