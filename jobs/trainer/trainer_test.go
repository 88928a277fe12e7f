package trainer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// watcher keeps the last progress line and stops the run at a step.
type watcher struct {
	last   line
	stopAt int
	stop   context.CancelFunc
}

func (w *watcher) Write(b []byte) (int, error) {
	w.last = line{}
	if err := json.Unmarshal(b, &w.last); err != nil {
		return 0, err
	}
	if w.stop != nil && w.last.Step >= w.stopAt {
		w.stop()
	}
	return len(b), nil
}

// TestPreemptionsLeaveNoTrace interrupts a run at random steps, each time with
// a new process's state, and wants the weights of an uninterrupted run.
func TestPreemptionsLeaveNoTrace(t *testing.T) {
	const steps = 300
	var whole watcher
	if err := Run(t.Context(), Options{Steps: steps, Seed: 7, Progress: &whole}); err != nil {
		t.Fatal(err)
	}
	if len(whole.last.Result) != 64 || whole.last.Step != steps {
		t.Fatalf("last line %+v has no result", whole.last)
	}
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	dir, resume, runs := t.TempDir(), "", 0
	for {
		runs++
		ctx, cancel := context.WithCancel(t.Context())
		w := &watcher{stopAt: r.IntN(steps), stop: cancel}
		err := Run(ctx, Options{
			CheckpointDir: dir, Resume: resume, Steps: steps, Seed: 7, StepsPerCheckpoint: 1 + r.IntN(20), Progress: w,
		})
		cancel()
		if err == nil {
			if w.last.Result != whole.last.Result {
				t.Fatalf("after %d runs the weights differ (seed %d)", runs, seed)
			}
			break
		}
		if !errors.Is(err, ErrPreempted) {
			t.Fatal(err)
		}
		resume = w.last.Checkpoint // the line of the checkpoint is the last one
		if runs > 1000 {
			t.Fatal("no progress")
		}
	}
	if files, _ := os.ReadDir(dir); len(files) > keep {
		t.Errorf("%d checkpoints are left, want at most %d", len(files), keep)
	}
}

func TestSeedDecides(t *testing.T) {
	var a, b watcher
	for seed, w := range map[uint64]*watcher{1: &a, 2: &b} {
		if err := Run(t.Context(), Options{Steps: 5, Seed: seed, Progress: w}); err != nil {
			t.Fatal(err)
		}
	}
	if a.last.Result == b.last.Result {
		t.Error("two seeds gave the same weights")
	}
}

func TestItLearns(t *testing.T) {
	m := newModel(genesis, 3)
	mean := func(n int) (sum float64) {
		for range n {
			sum += m.train()
		}
		return sum / float64(n)
	}
	first, _ := mean(20), mean(1500)
	if end := mean(100); end > 2.2 || first < 2.5 {
		t.Errorf("loss went from %.2f to %.2f nats per character, want below 2.2 (uniform: %.2f)", first, end, math.Log(letters))
	}
}

// TestGradient compares the gradient with finite differences.
func TestGradient(t *testing.T) {
	m := newModel(genesis, 5)
	in, want := m.text[100:100+window], m.text[100+window]
	m.example(in, want)
	got := m.grad
	for i := 0; i < nParams; i += 37 {
		const h = 1e-6
		keep := m.w[i]
		m.w[i] = keep + h
		up := m.example(in, want)
		m.w[i] = keep - h
		down := m.example(in, want)
		m.w[i] = keep
		if d := (up - down) / (2 * h); math.Abs(d-got[i]) > 1e-6 {
			t.Fatalf("gradient of weight %d is %g, differences say %g", i, got[i], d)
		}
	}
}

func TestBadCheckpoints(t *testing.T) {
	dir := t.TempDir()
	m := newModel(genesis, 1)
	m.train()
	good := filepath.Join(dir, "good")
	if err := m.save(good); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	other := newModel(bytes.Repeat([]byte("other text. "), 200), 1)
	otherBytes, err := other.encode()
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(b)
	flipped[len(b)/2] ^= 1
	for name, c := range map[string]struct {
		b    []byte
		want string
	}{
		"empty": {nil, "not one of"}, "cut": {b[:len(b)-9], "damaged"}, "flipped": {flipped, "damaged"},
		"other data": {otherBytes, "other data"}, "text": {bytes.Repeat([]byte("x"), 500), "not one of"},
	} {
		path := filepath.Join(dir, "bad")
		if err := os.WriteFile(path, c.b, 0o600); err != nil {
			t.Fatal(err)
		}
		err := Run(t.Context(), Options{Steps: 2, Resume: path})
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want one that says %q", name, err, c.want)
		}
	}
}

func TestBadOptions(t *testing.T) {
	for _, o := range []Options{
		{}, {Steps: -1}, {Steps: maxSteps + 1}, {Steps: 1, Pace: -1}, {Steps: 1, StepsPerCheckpoint: 1},
		{Steps: 1, Data: "/nonexistent"}, {Steps: 1, CheckpointDir: "/nonexistent", StepsPerCheckpoint: 1},
	} {
		if err := Run(t.Context(), o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
}

func BenchmarkStep(b *testing.B) {
	m := newModel(genesis, 1)
	for b.Loop() {
		m.train()
	}
}
