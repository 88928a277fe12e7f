package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// What requests leave in the metrics, on /metrics and at a collector: the names
// and buckets of the GenAI conventions, by model and class, and nothing that a
// client made up or that tells who it was.
func TestMetricsOfRequests(t *testing.T) {
	var mu sync.Mutex
	var pushed bytes.Buffer
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/metrics" {
			mu.Lock()
			_, _ = pushed.ReadFrom(r.Body)
			mu.Unlock()
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	defer collector.Close()
	data := t.TempDir()
	secret := strings.TrimSpace(call(t, nil, "keys", "make", "--data", data, "--tenant", "tenant-of-this-test"))
	key := ids(strings.Fields(call(t, nil, "keys", "list", "--data", data)))
	if len(key) != 1 {
		t.Fatalf("keys list names %v, want one key", key)
	}
	s := start(t, data, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.URL, "OTEL_METRIC_EXPORT_INTERVAL=500", "OTEL_EXPORTER_OTLP_METRICS_COMPRESSION=none"},
		"--config", write(t, "aloft.yaml", tiny))
	for model, want := range map[string]int{"tiny": 200, "made-up-model": 404} {
		req, _ := http.NewRequest("POST", s.url+"/v1/embeddings", strings.NewReader(`{"model":"`+model+`","input":"text-of-this-test"}`))
		for name, value := range map[string]string{"Authorization": "Bearer " + secret, "X-Request-Id": "id-of-this-test", "X-Session-Id": "session-of-this-test", "X-Aloft-Priority": "standard"} {
			req.Header.Set(name, value)
		}
		req.Close = true
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s: %d, want %d", model, res.StatusCode, want)
		}
		timing := regexp.MustCompile(`^queue;dur=[\d.]+, batch;dur=[\d.]+, network;dur=[\d.]+, engine;dur=[\d.]+$`)
		if got := res.Header.Get("Server-Timing"); want == 200 && !timing.MatchString(got) {
			t.Errorf("Server-Timing is %q", got)
		}
	}
	var text string
	if err := s.get("/metrics", &text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`gen_ai_server_request_duration_seconds_bucket{`, `gen_ai_client_token_usage`, `gen_ai_request_model="tiny"`, `gen_ai_operation_name="embeddings"`,
		`gen_ai_token_type="input"`, `aloft_class="standard"`,
		`le="0.01"`, `le="0.02"`, `le="81.92"`, `le="4"`, `le="6.7108864e+07"`, // from 10 ms, doubled; powers of four
	} {
		if !strings.Contains(text, want) {
			t.Errorf("/metrics is without %s", want)
		}
	}
	if !eventually(patience, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return strings.Contains(pushed.String(), "gen_ai.server.request.duration") && strings.Contains(pushed.String(), "tiny")
	}) {
		t.Error("the collector got no metrics of requests")
	}
	s.stop(t)
	mu.Lock()
	defer mu.Unlock()
	for where, all := range map[string]string{"/metrics": text, "the collector": pushed.String()} {
		for _, private := range append([]string{"-of-this-test", "made-up-model", secret}, key...) {
			if strings.Contains(all, private) {
				t.Errorf("%s has %s", where, private)
			}
		}
	}
	if log := s.err.String(); strings.Contains(log, "text-of-this-test") || strings.Contains(log, secret) || !strings.Contains(log, "id-of-this-test") {
		t.Errorf("the log has a prompt or a secret, or not the request:\n%s", log)
	}
}

// ids are the words of a listing that name a key.
func ids(words []string) (out []string) {
	for _, w := range words {
		if strings.HasPrefix(w, "key_") || strings.HasPrefix(w, "key-") {
			out = append(out, w)
		}
	}
	return out
}

// With leave, all who reach the address are served, and the log says so.
func TestServeInsecure(t *testing.T) {
	s := start(t, t.TempDir(), nil, "--config", write(t, "aloft.yaml", tiny), "--listen", "0.0.0.0:0", "--insecure")
	if log := s.err.String(); !strings.Contains(log, "open to all who reach the address") || !strings.Contains(log, "without keys") {
		t.Errorf("the log does not say who may come in:\n%s", log)
	}
	s.stop(t)
}
