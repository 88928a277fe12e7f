package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// Flags > environment > file > defaults.
func TestSettings(t *testing.T) {
	conf := write(t, "aloft.yaml", "listen: 127.0.0.3:1\nlog: {level: warn}\n"+tiny)
	plain := write(t, "plain.yaml", tiny)
	env := []string{"ALOFT_LISTEN=127.0.0.2:1", "ALOFT_LOG_LEVEL=error", "ALOFT_DATA=/env"}
	flags := []string{"--listen", "127.0.0.1:1", "--log-level", "debug", "--data", "/flag"}
	for _, tt := range []struct {
		name                string
		env, flags          []string
		listen, level, data string
	}{
		{"defaults", nil, []string{"--config", plain}, "127.0.0.1:8080", "info", "aloft-data"},
		{"file", nil, []string{"--config", conf}, "127.0.0.3:1", "warn", "aloft-data"},
		{"environment over file", env, []string{"--config", conf}, "127.0.0.2:1", "error", "/env"},
		{"flags over environment", env, append([]string{"--config", conf}, flags...), "127.0.0.1:1", "debug", "/flag"},
		{"flags over file", nil, append([]string{"--config", conf}, flags...), "127.0.0.1:1", "debug", "/flag"},
		{"file by environment", []string{"ALOFT_CONFIG=" + conf}, nil, "127.0.0.3:1", "warn", "aloft-data"},
		{"file by flag", []string{"ALOFT_CONFIG=" + conf}, []string{"--config", plain}, "127.0.0.1:8080", "info", "aloft-data"},
		{"quick start", nil, nil, "127.0.0.1:8080", "info", "aloft-data"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out := call(t, tt.env, append([]string{"config", "show"}, tt.flags...)...)
			for _, want := range []string{"\nlisten: " + tt.listen + "\n", "\n  level: " + tt.level + "\n", "data folder " + tt.data + "\n"} {
				if !strings.Contains(out, want) {
					t.Errorf("%q is not in:\n%s", want, out)
				}
			}
		})
	}
}

// What `config show` prints is a configuration that does the same, and holds no secret.
func TestConfigShowIsAConfiguration(t *testing.T) {
	key := strings.Repeat("ab", 32)
	conf := write(t, "aloft.yaml", strings.Replace(tiny, "shape: 1g", "env: {TOKEN: "+key+"}\n    shape: 1g", 1))
	shown := call(t, nil, "config", "show", "--config", conf)
	if strings.Contains(shown, key) {
		t.Error("a secret is shown")
	}
	if call(t, nil, "config", "check", conf) == "" {
		t.Error("config check says nothing")
	}
	quick := call(t, nil, "config", "show")
	again := call(t, nil, "config", "show", "--config", write(t, "quick.yaml", quick))
	body := func(s string) string { _, rest, _ := strings.Cut(s, "\n"); return rest }
	if body(quick) != body(again) {
		t.Errorf("shown:\n%s\nand again:\n%s", quick, again)
	}
}

// A server takes its settings from the environment alone; its log is as asked.
func TestServeByEnvironment(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	c := aloft(t, []string{"ALOFT_CONFIG=" + write(t, "aloft.yaml", tiny), "ALOFT_LISTEN=127.0.0.1:0", "ALOFT_DATA=" + data,
		"ALOFT_LOG_LEVEL=debug", "ALOFT_LOG_FORMAT=json"}, "serve")
	s := &instance{command: c, data: data}
	if !s.ready() {
		t.Fatalf("not ready:\n%s", c.err.String())
	}
	const secret = "nobody else may read this"
	if _, err := s.embed("tiny", secret); err != nil {
		t.Error(err)
	}
	s.stop(t)
	debug := false
	for line := range strings.Lines(c.err.String()) {
		var v struct{ Time, Level, Msg string }
		if err := json.Unmarshal([]byte(line), &v); err != nil || v.Msg == "" {
			t.Fatalf("not a JSON log line: %s", line)
		}
		debug = debug || v.Level == "DEBUG"
	}
	if !debug {
		t.Error("no debug line in the log")
	}
	if strings.Contains(c.err.String(), secret) {
		t.Error("the log holds a prompt's text")
	}
}

// Keys: a request without one is refused, and another's jobs are not shown.
func TestServeWithKeys(t *testing.T) {
	// SHA-256 of "red" and "blue".
	keys := write(t, "keys.yaml", `keys:
  - {id: key_red, sha256: b1f51a511f1da0cd348b8f8598db32e61cb963e5fc69e2b41485bf99590ed75a, tenant: red}
  - {id: key_blue, sha256: 16477688c0e00699c6cfa4497a3612d7e83c532062b64b250fed8908128ed548, tenant: blue}
`)
	conf := write(t, "aloft.yaml", tiny+"gateway: {insecure: true, key_file: "+keys+"}\n")
	s := start(t, t.TempDir(), nil, "--config", conf, "--listen", "0.0.0.0:0")
	s.url = strings.Replace(s.url, "[::]", "127.0.0.1", 1)
	if err := s.get("/v1/models", nil); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("without a key: %v", err)
	}
	red := []string{"ALOFT_URL=" + s.url, "ALOFT_API_KEY=red"}
	id, _, _ := strings.Cut(call(t, red, "batch", "submit", rows(t, "tiny", 3), "--wait"), " ")
	checkRows(t, call(t, red, "batch", "results", id), 3)
	refused(t, aloft(t, []string{"ALOFT_URL=" + s.url, "ALOFT_API_KEY=blue"}, "batch", "results", id), "404")
	refused(t, aloft(t, []string{"ALOFT_URL=" + s.url, "ALOFT_API_KEY=green"}, "batch", "results", id), "401")
	s.stop(t)
}

// Any GGUF takes the place of a built-in model.
func TestServeOtherModel(t *testing.T) {
	shared := os.Getenv("ALOFT_SHARED")
	if shared == "" {
		t.Skip("ALOFT_SHARED names no folder with models/babyllama.gguf")
	}
	model, _ := filepath.Abs(filepath.Join(shared, "models", "babyllama.gguf"))
	if _, err := os.Stat(model); err != nil {
		t.Skip(err)
	}
	s := quickStart(t, "--gguf", lm+"="+model)
	var v struct{ Choices []struct{ Text string } }
	err := s.ask(http.MethodPost, "/v1/completions", map[string]any{"model": lm, "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}, &v)
	if err != nil || len(v.Choices) != 1 || v.Choices[0].Text == "" {
		t.Errorf("completion %+v, %v", v, err)
	}
	engines := s.engineProcesses(lm)
	if len(engines) == 0 {
		t.Errorf("no engine of %s", lm)
	}
	for _, pid := range engines {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if !slices.Contains(strings.Split(string(line), "\x00"), model) {
			t.Errorf("an engine of %s runs %q", lm, line)
		}
	}
	s.stop(t)
}

// outside is a configuration whose engine is somebody else's program: here our
// own timed engine, told only its port, and put to sleep by SIGSTOP.
const outside = `node:
  devices: simulated
  simulated:
    - family: A100-80GB
      layout: [1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb]
models:
  - name: inside
    engine: synthetic
    endpoints: [chat, completions]
    shape: 1g.10gb
    replicas: {min: 1, max: 1}
  - name: outside
    aliases: [alias]
    engine: command
    command: [BINARY, engine, synthetic, --listen, "127.0.0.1:{port}", --name, "{name}", --alpha, 2ms, --beta, 2ms]
    env: {MARK: "of the configuration"}
    sleep: pause
    endpoints: [embeddings]
    shape: 1g.10gb
    replicas: {min: 1, max: 3}
arbiter:
  guard: 100ms
  plan: 500ms
  hold: 500ms
  after_reclaim: 1s
  window: 5s
  min_samples: 5
  fast_horizon: 1s
  slow_horizon: 2s
  rise_quantile: 0.5 # one burst must not forbid the next loan
  spare: 0
  budget: {detect: 200ms, kill: 1s, back: 3s}
jobs:
  templates:
    - name: train
      kind: train
      command: ["{aloft}", train, --steps, "{steps}", --pace, 10ms]
      params: [{name: steps, type: int, default: "100", min: 1, max: 100000}]
      shape: 1g.10gb
`

// Timed and foreign engines serve; a foreign one is paused while its slice is
// lent, and goes on when it is needed.
func TestServeOtherEngines(t *testing.T) {
	bin, err := build()
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, t.TempDir(), nil, "--config", write(t, "aloft.yaml", strings.Replace(outside, "BINARY", bin, 1)))
	for _, model := range []string{"outside", "alias"} {
		if n, err := s.embed(model, "hello"); err != nil || n == 0 {
			t.Errorf("%s: %d numbers, %v", model, n, err)
		}
	}
	chat := map[string]any{"model": "inside", "messages": []map[string]string{{"role": "user", "content": "hello"}}}
	if err := s.ask(http.MethodPost, "/v1/chat/completions", chat, nil); err != nil {
		t.Error(err)
	}
	full := func() bool { return len(s.engineProcesses("outside")) == 3 && len(s.paused()) == 0 }
	if !eventually(patience, full) {
		t.Fatalf("no warm pool of three:\n%s", call(t, s.env(), "top", "--once"))
	}
	job, _, _ := strings.Cut(call(t, s.env(), "jobs", "submit", "train", "steps=100000"), " ")
	if !eventually(patience, func() bool { return len(s.paused()) > 0 }) {
		t.Fatalf("no engine was paused:\n%s\n%s", call(t, s.env(), "top", "--once"), call(t, s.env(), "why"))
	}
	if _, err := s.embed("outside", "while one sleeps"); err != nil {
		t.Error(err)
	}
	// A burst takes the slice back: the training yields, the engine goes on.
	burst := aloft(t, nil, "load", "--url", s.url, "--model", "outside", "--rate", "120", "--arrivals", "constant", "--for", "60s")
	if !eventually(patience, func() bool { return len(s.paused()) == 0 }) {
		t.Errorf("no engine was woken:\n%s\n%s", call(t, s.env(), "top", "--once"), call(t, s.env(), "why")+burst.err.String())
	}
	_ = burst.Process.Signal(syscall.SIGINT)
	burst.ended(t, patience)
	if out := call(t, s.env(), "jobs", "show", job); !strings.Contains(out, "preempted") {
		t.Errorf("the training was not preempted: %s", out)
	}
	// A server whose engine is paused must end as well.
	if !eventually(patience, func() bool { return len(s.paused()) > 0 }) {
		t.Errorf("no engine was paused again:\n%s", call(t, s.env(), "why"))
	}
	s.stop(t)
}

// paused lists the processes of a server that SIGSTOP holds.
func (s *instance) paused() []int {
	var out []int
	for _, pid := range s.running() {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if _, rest, ok := strings.Cut(string(b), ") "); ok && strings.HasPrefix(rest, "T") {
			out = append(out, pid)
		}
	}
	return out
}
