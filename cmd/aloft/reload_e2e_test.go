package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"aloft/gateway/keys"
)

const second = `  - name: second
    engine: synthetic
    endpoints: [embeddings]
    shape: 1g.10gb
    replicas: {min: 1, max: 1}
    law: {alpha: 5ms, beta: 10us}
`

// engines lists the processes of a model's engines.
func (s *instance) engines(model string) []int {
	var out []int
	for _, pid := range s.running() {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		args := strings.Split(string(line), "\x00")
		if i := slices.Index(args, "--name"); i > 0 && args[i+1] == model && slices.Contains(args, "engine") {
			out = append(out, pid)
		}
	}
	slices.Sort(out)
	return out
}

// rewrite replaces a file the way editors do, and waits until the server's log says so.
func (s *instance) rewrite(t *testing.T, path, text, says string) {
	t.Helper()
	before := strings.Count(s.err.String(), says)
	if err := keys.WriteFile(path, []byte(text)); err != nil {
		t.Fatal(err)
	}
	if !eventually(patience, func() bool { return strings.Count(s.err.String(), says) > before }) {
		t.Fatalf("the log does not say %q:\n%s", says, s.err.String())
	}
}

// A reload touches what changed and nothing else, and a file with a mistake
// changes nothing.
func TestReload(t *testing.T) {
	conf := tiny + second
	file := write(t, "aloft.yaml", conf)
	s := start(t, t.TempDir(), nil, "--config", file)
	serves := func(model string) {
		t.Helper()
		if !eventually(patience, func() bool { _, err := s.embed(model, "x"); return err == nil }) {
			_, err := s.embed(model, "x")
			t.Fatalf("%s: %v\n%s", model, err, s.err.String())
		}
	}
	serves("tiny")
	serves("second")
	first, other := s.engines("tiny"), s.engines("second")

	const done = `msg="configuration reloaded"`
	target := strings.Replace(conf, "shape: 1g", "target: 700ms\n    aliases: [small]\n    shape: 1g", 1)
	s.rewrite(t, file, target, done)
	serves("small")
	if got := s.engines("tiny"); !slices.Equal(got, first) {
		t.Errorf("engines %v, were %v: a target touched them", got, first)
	}
	for _, bad := range []struct{ name, text, want string }{
		{"mistake", strings.Replace(target, "target: 700ms", "target: soon", 1), "line 10"},
		{"unknown engine", strings.Replace(target, "engine: synthetic", "engine: warp", 1), "line 8"},
		{"no such shape", strings.Replace(target, "shape: 1g.10gb", "shape: 9g.90gb", 1), "line 12"},
		{"no model file", strings.Replace(target, "engine: synthetic", "engine: llama\n    gguf: /nowhere.gguf", 1), "/nowhere.gguf"},
		{"restart", target + "pool: {stop_grace: 1s}\n", "pool.stop_grace"},
	} {
		before := len(s.err.String())
		s.rewrite(t, file, bad.text, `msg="configuration not reloaded"`)
		if log := s.err.String()[before:]; !strings.Contains(log, bad.want) || !strings.Contains(log, "aloft.yaml") {
			t.Errorf("%s: the log does not say %q:\n%s", bad.name, bad.want, log)
		}
		serves("small")
	}
	old := s.engines("tiny")
	law := strings.Replace(target, "alpha: 5ms", "alpha: 6ms", 1)
	s.rewrite(t, file, law, done)
	if !eventually(patience, func() bool {
		now := s.engines("tiny")
		return len(now) > 0 && !slices.ContainsFunc(now, func(pid int) bool { return slices.Contains(old, pid) })
	}) {
		t.Errorf("engines %v, were %v: want new ones alone", s.engines("tiny"), old)
	}
	serves("tiny")
	if got := s.engines("second"); !slices.Equal(got, other) {
		t.Errorf("engines of the other model %v, were %v", got, other)
	}
	s.rewrite(t, file, strings.Replace(law, second, "", 1), done)
	if _, err := s.embed("second", "x"); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("a removed model: %v, want 404", err)
	}
	if !eventually(patience, func() bool { return len(s.engines("second")) == 0 }) {
		t.Error("the engine of a removed model runs on")
	}
	if err := os.WriteFile(file, []byte(law), 0o644); err != nil {
		t.Fatal(err)
	}
	_ = s.Process.Signal(syscall.SIGHUP)
	serves("second")
	var metrics string
	if err := s.get("/metrics", &metrics); err != nil || !strings.Contains(metrics, `aloft_config_reloads_total{result="refused"} 5`) {
		t.Errorf("metrics do not count the reloads: %v", err)
	}
	s.stop(t)
}

// No request is lost while models change under load.
func TestReloadUnderLoad(t *testing.T) {
	file := write(t, "aloft.yaml", tiny)
	s := start(t, t.TempDir(), nil, "--config", file)
	if !eventually(patience, func() bool { _, err := s.embed("tiny", "x"); return err == nil }) {
		t.Fatal(s.err.String())
	}
	var asked atomic.Int64
	var stop atomic.Bool
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for !stop.Load() {
				if _, err := s.embed("tiny", "x"); err != nil {
					t.Errorf("request %d: %v", asked.Load(), err)
				}
				asked.Add(1)
			}
		})
	}
	for i := range 3 { // the batcher is replaced, then the engine, then both
		was := s.engines("tiny")
		text := strings.Replace(tiny, "alpha: 5ms", fmt.Sprintf("alpha: %dms", 5+(i+1)/2), 1)
		text = strings.Replace(text, "shape: 1g", fmt.Sprintf("target: %dms\n    shape: 1g", 700+i), 1)
		s.rewrite(t, file, text, `msg="configuration reloaded"`)
		if i%2 == 1 && !eventually(patience, func() bool { now := s.engines("tiny"); return len(now) >= 1 && !slices.Contains(now, was[0]) }) {
			t.Errorf("engines %v, were %v", s.engines("tiny"), was)
		}
		time.Sleep(300 * time.Millisecond)
	}
	stop.Store(true)
	clients.Wait()
	if asked.Load() < 10 {
		t.Errorf("%d requests in all: nothing was shown", asked.Load())
	}
	s.stop(t)
}
