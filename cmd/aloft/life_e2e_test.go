package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// timed is a configuration of timed engines whose work takes long enough to be
// interrupted: a generated token 6 ms (the timed engine says 16 to 143 of them),
// an embedding 30 ms.
const timed = `log: {level: debug}
node:
  devices: simulated
  simulated:
    - family: A100-80GB
      layout: [1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb]
models:
  - name: writer
    engine: synthetic
    endpoints: [chat]
    shape: 1g.10gb
    replicas: {min: 1, max: 1}
    slots: 8
  - name: reader
    engine: synthetic
    endpoints: [embeddings]
    shape: 1g.10gb
    replicas: {min: 1, max: 2}
    law: {alpha: 30ms, beta: 100us}
    batch: {max_batch_size: 4}
arbiter:
  guard: 100ms
  plan: 500ms
  hold: 500ms
  window: 5s
  min_samples: 5
  fast_horizon: 1s
  slow_horizon: 2s
gateway: {drain_grace: 10s}
jobs:
  batch_rows: 8
  templates:
    - name: train
      kind: train
      command: ["{aloft}", train, --steps, "{steps}", --every, "20", --pace, 10ms]
      params: [{name: steps, type: int, default: "100", min: 1, max: 100000}]
      shape: 1g.10gb
      grace: 5s
`

// stream begins a chat of 114 tokens and returns after its first content.
func (s *instance) stream(t *testing.T) *bufio.Reader {
	t.Helper()
	const body = `{"model":"writer","stream":true,"messages":[{"role":"user","content":"go on"}]}`
	client := http.Client{Timeout: patience}
	resp, err := client.Post(s.url+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	r := bufio.NewReader(resp.Body)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("no content: %v", err)
		}
		if strings.Contains(line, `"content":"`) && !strings.Contains(line, `"content":""`) {
			return r
		}
	}
}

// On SIGTERM what runs may finish, new work is refused, and all is gone.
func TestStopFinishesStreams(t *testing.T) {
	s := start(t, t.TempDir(), nil, "--config", write(t, "aloft.yaml", timed))
	streams := []*bufio.Reader{s.stream(t), s.stream(t), s.stream(t)}
	if err := s.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if !eventually(patience, func() bool { return s.get("/readyz", nil) != nil }) {
		t.Error("still ready after SIGTERM")
	}
	if _, err := s.embed("reader", "too late"); err == nil {
		t.Error("new work was taken after SIGTERM")
	}
	for i, r := range streams {
		rest, err := io.ReadAll(r)
		if text := string(rest); err != nil || !strings.Contains(text, "[DONE]") || !strings.Contains(text, `"finish_reason":"stop"`) {
			t.Errorf("stream %d broke off: %v\n%.500s", i, err, text[max(0, len(text)-500):])
		}
	}
	s.stopped(t)
	if _, err := os.Stat(filepath.Join(s.data, "run", "address")); err == nil {
		t.Error("the address outlives the server")
	}
}

// A second signal does not wait for what runs; nothing stays behind.
func TestSecondSignalEndsAtOnce(t *testing.T) {
	s := start(t, t.TempDir(), nil, "--config", write(t, "aloft.yaml", timed))
	var clients sync.WaitGroup
	defer clients.Wait()
	for range 200 { // 8 slots: half a minute of work, or more
		clients.Go(func() {
			_ = s.ask(http.MethodPost, "/v1/chat/completions", map[string]any{"model": "writer", "messages": []map[string]string{{"role": "user", "content": "go on"}}}, nil)
		})
	}
	s.stream(t)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		if err := s.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if sig == syscall.SIGINT && !eventually(patience, func() bool { return strings.Contains(s.err.String(), "drain began") }) {
			t.Fatalf("no drain:\n%s", s.err.String())
		}
	}
	if code := s.ended(t, 20*time.Second); code == 0 {
		t.Error("exit code 0 though answers were cut off")
	}
	s.gone(t)
}

// After kill -9 nothing keeps running, and the next server on the data folder
// brings batch and training to their end: every row once, no step twice.
func TestKilledServerResumes(t *testing.T) {
	data, conf := t.TempDir(), write(t, "aloft.yaml", timed)
	s := start(t, data, nil, "--config", conf)
	var batch, job string
	var b batchObject
	var j struct {
		State    string
		Progress struct{ Done, Resumes int64 }
	}
	// Well into both: some rows are done, the first checkpoint is written. Where one
	// of them ends before the other is so far, both are tried larger.
	n := 400
	for ; ; n *= 4 {
		batch, _, _ = strings.Cut(call(t, s.env(), "batch", "submit", rows(t, "reader", n)), " ")
		job, _, _ = strings.Cut(call(t, s.env(), "jobs", "submit", "train", fmt.Sprint("steps=", n)), " ")
		over := false
		if !eventually(patience, func() bool {
			if err := s.get("/v1/batches/"+batch, &b); err != nil {
				t.Fatal(err)
			}
			if err := s.get("/aloft/v1/jobs/"+job, &j); err != nil {
				t.Fatal(err)
			}
			over = b.ended() || j.State == "succeeded"
			return over || b.RequestCounts.Completed >= 20 && j.Progress.Done >= 45
		}) {
			t.Fatalf("batch %+v, job %+v after %v\n%s", b, j, patience, call(t, s.env(), "why"))
		}
		if !over {
			break
		}
		if n > 5000 {
			t.Fatalf("too fast to be killed: batch %+v, job %+v", b, j)
		}
		call(t, s.env(), "jobs", "wait", job)
	}
	children := s.running()
	if len(children) < 4 { // the server, two engines, the training
		t.Errorf("only %d processes: %v", len(children), children)
	}
	_ = s.Process.Signal(syscall.SIGKILL)
	s.ended(t, patience)
	s.gone(t)

	s = start(t, data, nil, "--config", conf)
	if out := call(t, s.env(), "batch", "wait", batch); !strings.Contains(out, fmt.Sprintf("%d of %d rows done, 0 failed", n, n)) {
		t.Errorf("batch after the restart: %s", out)
	}
	checkRows(t, call(t, s.env(), "batch", "results", batch), n)
	if !eventually(patience, func() bool { return s.get("/aloft/v1/jobs/"+job, &j) == nil && j.State == "succeeded" }) {
		t.Fatalf("job after the restart: %+v\n%s", j, call(t, s.env(), "why", job))
	}
	if j.Progress.Resumes != 1 || j.Progress.Done != int64(n) {
		t.Errorf("job after the restart: %+v, want %d steps and one resume", j, n)
	}
	s.stop(t)
}

// engineProcesses lists the pids of a model's engines.
func (s *instance) engineProcesses(model string) []int {
	var out []int
	for _, pid := range s.running() {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		args := strings.Split(string(line), "\x00")
		if i := slices.Index(args, "--name"); i > 0 && args[i+1] == model {
			out = append(out, pid)
		}
	}
	return out
}

// enginesKilled kills every engine of the encoder while clients ask it: the
// other model does not notice, and the encoder comes back by itself.
func (s *instance) enginesKilled(t *testing.T) {
	before := s.engineProcesses(encoder)
	if len(before) == 0 {
		t.Fatal("the encoder has no engine")
	}
	for _, pid := range before {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	if err := s.ask(http.MethodPost, "/v1/completions", map[string]any{"model": lm, "prompt": "And", "max_tokens": 4}, nil); err != nil {
		t.Errorf("the other model: %v", err)
	}
	var last error
	if !eventually(patience, func() bool { _, last = s.embed(encoder, "still there?"); return last == nil }) {
		t.Fatalf("no embedding after %v: %v\n%s", patience, last, call(t, s.env(), "top", "--once"))
	}
	for _, pid := range s.engineProcesses(encoder) {
		if slices.Contains(before, pid) {
			t.Errorf("process %d survived SIGKILL", pid)
		}
	}
	for i := range 20 {
		if _, err := s.embed(encoder, fmt.Sprint("afterwards ", i)); err != nil {
			t.Errorf("request %d after the restart: %v", i, err)
		}
	}
}

// TestSilentEngine: an engine that hangs (here: stopped) is ended by its health
// checks, and the request that waited for it is answered by another replica.
func TestSilentEngine(t *testing.T) {
	s := start(t, t.TempDir(), nil, "--config", write(t, "aloft.yaml", tiny))
	if _, err := s.embed("tiny", "before"); err != nil {
		t.Fatal(err)
	}
	pids := s.engineProcesses("tiny")
	if len(pids) == 0 {
		t.Fatal("no engine")
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	for {
		if _, err := s.embed("tiny", "after"); err == nil {
			break
		} else if took := time.Since(began); took > patience {
			t.Fatalf("no answer after %v: %v", took, err)
		}
	}
}
