package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// A model without a replica goes to its external provider, as far as the budget
// goes; what it cost is known after a restart.
func TestOverflow(t *testing.T) {
	var mu sync.Mutex
	var sent []string
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		sent = append(sent, r.Header.Get("Authorization")+" "+string(body))
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"id":"c","object":"chat.completion","created":1,"model":"large","choices":[{"index":0,"message":{"role":"assistant","content":"from afar"},"finish_reason":"stop"}],"usage":{"prompt_tokens":599990,"completion_tokens":10,"total_tokens":600000}}`)
	}))
	defer provider.Close()
	data := t.TempDir()
	// A dollar for a million tokens: two answers are all that the month allows.
	conf := write(t, "aloft.yaml", fmt.Sprintf(`
node: {devices: simulated}
models:
  - {name: here, engine: synthetic, endpoints: [chat], replicas: {min: 1, max: 1}}
  - name: m
    engine: command
    command: [sleep, "1000"]
    sleep: pause
    endpoints: [chat]
    overflow: {url: %q, key_env: PROVIDER_KEY, model: large, input_price: 1, output_price: 1, budget: 1.0}
`, provider.URL))
	env := []string{"PROVIDER_KEY=provider-secret"}
	s := start(t, data, env, "--config", conf)
	ask := func() (status int, route, text string) {
		res, err := http.Post(s.url+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"hi"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, _ := io.ReadAll(res.Body)
		return res.StatusCode, res.Header.Get("X-Aloft-Route"), string(body)
	}
	for range 2 {
		if status, route, text := ask(); status != 200 || route != "overflow" || !strings.Contains(text, "from afar") {
			t.Errorf("%d by %q: %s", status, route, text)
		}
	}
	mu.Lock()
	if want := `Bearer provider-secret {"model":"large","max_tokens":1,"messages":[{"role":"user","content":"hi"}]}`; len(sent) != 2 || sent[0] != want {
		t.Errorf("provider got %q, want twice %q", sent, want)
	}
	mu.Unlock()
	var metrics string
	if err := s.get("/metrics", &metrics); err != nil || !strings.Contains(metrics, `aloft_overflow_cost_USD{model="m"} 1.2`) || !strings.Contains(metrics, `aloft_route="overflow"`) {
		t.Errorf("metrics: %v, without the cost or the route", err)
	}
	if strings.Contains(s.err.String(), "provider-secret") {
		t.Error("the provider's key is in the log")
	}
	s.stop(t)
	b, err := os.ReadFile(filepath.Join(data, "overflow.json"))
	var kept map[string]struct{ USD float64 }
	if err == nil {
		err = json.Unmarshal(b, &kept)
	}
	if err != nil || kept["m"].USD != 1.2 {
		t.Errorf("kept %s, %v; want 1.2 USD for m", b, err)
	}
}

// The span of a request has the caller's trace, and ends up at the collector.
func TestTraces(t *testing.T) {
	var mu sync.Mutex
	var got bytes.Buffer
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/traces" {
			mu.Lock()
			_, _ = got.ReadFrom(r.Body)
			mu.Unlock()
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	defer collector.Close()
	s := start(t, t.TempDir(), []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.URL, "OTEL_BSP_SCHEDULE_DELAY=100", "OTEL_TRACES_SAMPLER=always_off"},
		"--config", write(t, "aloft.yaml", tiny))
	trace, caller := "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	for _, parent := range []string{"", "00-" + trace + "-" + caller + "-01"} {
		req, _ := http.NewRequest("POST", s.url+"/v1/embeddings", strings.NewReader(`{"model":"tiny","input":"not to be seen"}`))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Traceparent", parent)
		res, err := http.DefaultClient.Do(req)
		if err != nil || res.StatusCode != 200 {
			t.Fatalf("%v, %v", res, err)
		}
		res.Body.Close()
	}
	raw := func(id string) string { b, _ := hex.DecodeString(id); return string(b) }
	if !eventually(10*time.Second, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return strings.Contains(got.String(), raw(trace)) && strings.Contains(got.String(), raw(caller)) && strings.Contains(got.String(), "embeddings tiny")
	}) {
		t.Error("the collector got no span of the caller's trace")
	}
	s.stop(t)
	mu.Lock()
	defer mu.Unlock()
	if n := strings.Count(got.String(), "embeddings tiny"); n != 1 {
		t.Errorf("%d spans, want one: the other request was not to be sampled", n)
	}
	if strings.Contains(got.String(), "not to be seen") {
		t.Error("a prompt is in a span")
	}
}
