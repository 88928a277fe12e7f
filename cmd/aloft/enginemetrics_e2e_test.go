package main

import (
	"strings"
	"testing"
	"time"
)

// What an engine process says of itself in its metrics reaches its batcher, the
// status, the screen and our own metrics.
func TestEnginesOwnMetrics(t *testing.T) {
	s := start(t, t.TempDir(), nil, "--config", write(t, "aloft.yaml", strings.Replace(tiny, "[embeddings]", "[chat]", 1)))
	var status Status
	ok := eventually(20*time.Second, func() bool {
		if err := s.get("/aloft/v1/status", &status); err != nil {
			t.Fatal(err)
		}
		return len(status.Models) == 1 && status.Models[0].Batching.Engines != nil
	})
	if !ok {
		t.Fatalf("no engine speaks: %+v", status.Models)
	}
	// 0.9 of the synthetic engine's 65,536 tokens
	if e := *status.Models[0].Batching.Engines; e.Speaking != 1 || e.Silent != 0 || e.KVRoom != 58982 || e.KVPromised != 0 {
		t.Errorf("engines: %+v", e)
	}
	var text string
	if err := s.get("/metrics", &text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`aloft_engines_silent{model="tiny"} 0`, `aloft_engines_kv_room{model="tiny"} 58982`} {
		if !strings.Contains(text, want) {
			t.Errorf("/metrics is without %s", want)
		}
	}
	s.stop(t)
}
