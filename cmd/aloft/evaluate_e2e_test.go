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

// The program by itself: told to stop it keeps its rows and asks to be run again.
func TestEvaluateResumes(t *testing.T) {
	lib := needLibrary(t)
	dir := t.TempDir()
	set := filepath.Join(dir, "set.jsonl")
	row := `{"text":"` + strings.Repeat("And the king rose up early in the morning. ", 8) + `"}` + "\n"
	if err := os.WriteFile(set, []byte(strings.Repeat(row, 300)), 0o600); err != nil {
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
	if before < 3 || before >= 300 {
		t.Fatalf("%d of 300 rows are kept", before)
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
	if err != nil || last.Step != 300 || r.Model.BitsPerByte.N != 300 || kept() != 300 || !strings.Contains(string(text), "rows.jsonl") {
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
