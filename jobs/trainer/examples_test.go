package trainer

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "examples.jsonl")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReadExamples(t *testing.T) {
	got, err := readExamples(file(t, `{"messages":[{"role":"user","content":"who built it?"},{"role":"assistant","content":[{"type":"text","text":"No"},{"type":"text","text":"ah."}]}]}
{"prompt":"and when?","completion":"long ago."}

{"text":"the end"}`))
	if want := "who built it?\nNoah.\nand when?\nlong ago.\nthe end\n"; err != nil || string(got) != want {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	for _, bad := range []string{"", `{"text":"short"}`, "{"} {
		if _, err := readExamples(file(t, bad)); err == nil || !strings.Contains(err.Error(), "examples") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// A run over a file of examples learns them, measures held-out ones, and leaves
// weights of which the result is the sum.
func TestExamplesAreLearned(t *testing.T) {
	examples := file(t, strings.Repeat(`{"messages":[{"role":"user","content":"what do the heavens declare?"},{"role":"assistant","content":"the glory of god, and the firmament sheweth his handywork."}]}`+"\n", 20))
	dir := t.TempDir()
	var w watcher
	err := Run(t.Context(), Options{Examples: examples, Validation: examples, Epochs: 4, Rate: 2, Seed: 1, Progress: &w, OutputDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if got := w.last.Metrics; got["valid_loss"] > 1 || got["valid_loss"] <= 0 || got["trained_tokens"] != float64(w.last.Total*batch) {
		t.Errorf("measured %v after %d steps, want a loss below 1 (uniform: 3.5)", got, w.last.Total)
	}
	weights, err := os.ReadFile(filepath.Join(dir, WeightsName))
	if sum := sha256.Sum256(weights); err != nil || hex.EncodeToString(sum[:]) != w.last.Result {
		t.Errorf("the weights' sum is not the result %s: %v", w.last.Result, err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("%d files are left, want 1", len(left))
	}
}

func TestStepsOf(t *testing.T) {
	for _, tt := range []struct{ epochs, bytes, want int }{{1, 160, 10}, {3, 161, 31}, {1, 1, 1}, {maxSteps, 160, maxSteps}} {
		if got := stepsOf(tt.epochs, make([]byte, tt.bytes)); got != tt.want {
			t.Errorf("%s: %d", fmt.Sprint(tt), got)
		}
	}
}
