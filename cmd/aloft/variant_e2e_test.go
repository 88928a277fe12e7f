package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"aloft/gateway"
)

// large is a model on a slice of twice the size that its variant needs.
const large = `node:
  devices: simulated
  simulated:
    - family: A100-80GB
      layout: [2g.20gb, 2g.20gb, 1g.10gb, 1g.10gb, 1g.10gb]
models:
  - name: large
    aliases: [big]
    engine: synthetic
    endpoints: [embeddings]
    shape: 2g.20gb
    replicas: {min: 1, max: 1}
    law: {alpha: 5ms, beta: 10us}
arbiter: {guard: 250ms, plan: 1s, hold: 3s}
`

// clients send embeddings until they are stopped, and count who answers.
type clients struct {
	stop   atomic.Bool
	wait   sync.WaitGroup
	mu     sync.Mutex
	by     map[string]int // answers by X-Aloft-Variant
	failed []string
}

// load starts n clients of a model; each belongs to a session if sessions says so.
func (s *instance) load(n int, path string, body func(i int) string) *clients {
	c := &clients{by: map[string]int{}}
	for client := range n {
		c.wait.Go(func() {
			for i := client; !c.stop.Load(); i += n {
				by, err := s.askAs(path, body(i), "")
				c.mu.Lock()
				if c.by[by]++; err != nil {
					c.failed = append(c.failed, err.Error())
				}
				c.mu.Unlock()
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	return c
}

func (c *clients) count(by string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.by[by]
}

func (c *clients) end(t *testing.T) {
	t.Helper()
	c.stop.Store(true)
	c.wait.Wait()
	if len(c.failed) > 0 {
		t.Errorf("%d requests failed, the first: %s", len(c.failed), c.failed[0])
	}
	t.Logf("answered by %v", c.by)
}

// askAs sends a request of a session and returns who answered it.
func (s *instance) askAs(path, body, session string) (by string, err error) {
	req, err := http.NewRequest(http.MethodPost, s.url+path, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	if session != "" {
		req.Header.Set("X-Session-Id", session)
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != 200 {
		err = fmt.Errorf("%s: %.300s", resp.Status, text)
	}
	if !bytes.Contains(text, []byte(`"model":"large"`)) && !bytes.Contains(text, []byte(`"model":"aloft-lm"`)) && err == nil {
		err = fmt.Errorf("the answer names another model: %.200s", text)
	}
	return resp.Header.Get("X-Aloft-Variant"), err
}

func embedding(i int) string {
	return fmt.Sprintf(`{"model":"big","input":"sentence %d"}`, i)
}

func (s *instance) variant(t *testing.T, id string) (o gateway.VariantObject) {
	t.Helper()
	if err := json.Unmarshal([]byte(call(t, s.env(), "variant", "show", id, "--json")), &o); err != nil {
		t.Fatal(err)
	}
	return o
}

// A variant is tried, promoted, kept over a restart, rolled back and dropped, by
// hand and under load, and no request fails.
func TestVariant(t *testing.T) {
	file := write(t, "aloft.yaml", large)
	data := t.TempDir()
	s := start(t, data, nil, "--config", file)
	if !eventually(patience, func() bool { _, err := s.embed("large", "x"); return err == nil }) {
		t.Fatal(s.err.String())
	}
	if by, err := s.askAs("/v1/embeddings", embedding(0), ""); by != "" || err != nil {
		t.Errorf("without variants: by %q, %v", by, err)
	}
	s.refusesVariants(t)
	load := s.load(4, "/v1/embeddings", embedding)
	time.Sleep(11 * time.Second) // two looks at who holds what
	out := call(t, s.env(), "variant", "add", "large", "--name", "fast", "--shape", "1g.10gb", "--alpha", "2ms", "--share", "0.5", "--shadow", "0.5")
	if !strings.Contains(out, "large@fast") || !strings.Contains(out, "canary, share 0.5") {
		t.Errorf("variant add: %s", out)
	}
	if !eventually(patience, func() bool { return load.count("fast") > 100 && load.count("base") > 100 }) {
		t.Fatalf("by %v\n%s", load.by, s.err.String())
	}
	// A session stays on its side.
	for _, session := range []string{"a", "b", "c", "d", "e", "f"} {
		seen := map[string]bool{}
		for i := range 8 {
			by, err := s.askAs("/v1/embeddings", embedding(i), session)
			if err != nil {
				t.Error(err)
			}
			seen[by] = true
		}
		if len(seen) != 1 {
			t.Errorf("session %s was served by %v", session, seen)
		}
	}
	if !eventually(patience, func() bool { return s.variant(t, "large@fast").Comparison.Agreement.Samples > 5 }) {
		t.Error("no answers were compared")
	}
	o := s.variant(t, "large@fast")
	if c := o.Comparison; c.Base.Requests < 100 || c.Variant.Requests < 100 || c.Variant.P50 <= 0 || c.Variant.Failed != 0 || o.Gain.Before == nil {
		t.Errorf("comparison: %+v", o)
	}
	// It can be asked for by its own name, and is no model of its own in lists.
	if _, err := s.embed("large@fast", "x"); err != nil {
		t.Error(err)
	}
	var models string
	if err := s.get("/v1/models", &models); err != nil || strings.Contains(models, "@fast") {
		t.Errorf("models: %s, %v", models, err)
	}
	var metrics string
	if err := s.get("/metrics", &metrics); err != nil || !strings.Contains(metrics, `aloft_variant="fast"`) || !strings.Contains(metrics, `aloft_variant="base"`) {
		t.Errorf("metrics do not tell the sides apart: %v", err)
	}
	// A reload touches neither side.
	was := s.engines("large")
	s.rewrite(t, file, strings.Replace(large, "max: 1", "max: 1}\n    target: 900ms\n    affinity: {session: true", 1), `msg="configuration reloaded"`)
	if got := s.engines("large"); !slices.Equal(got, was) || s.variant(t, "large@fast").State != gateway.VariantCanary {
		t.Errorf("engines %v, were %v", got, was)
	}
	out = call(t, s.env(), "variant", "promote", "large", "fast", "--wait")
	if !strings.Contains(out, "promoted") {
		t.Errorf("variant promote: %s", out)
	}
	if !eventually(patience, func() bool {
		by, err := s.askAs("/v1/embeddings", embedding(0), "")
		return by == "fast" && err == nil && len(s.engines("large")) <= 1
	}) {
		t.Errorf("after the promotion the engines are %v", s.engines("large"))
	}
	var model string
	if err := s.get("/v1/models/big", &model); err != nil || !strings.Contains(model, `"shape":"1g.10gb"`) || !strings.Contains(model, `"id":"large"`) {
		t.Errorf("the model is %s, %v", model, err)
	}
	if !eventually(patience, func() bool {
		a := s.variant(t, "large@fast").Gain.After
		return a != nil && a.Seconds > 0 && a.Held < 1.5
	}) {
		t.Errorf("gain: %+v", s.variant(t, "large@fast").Gain.After)
	}
	o = s.variant(t, "large@fast")
	if b, a := o.Gain.Before, o.Gain.After; b.Held < 1.9 || a.Held > 1.5 {
		t.Errorf("held before %v, after %v", b, a)
	}
	for _, out := range []string{call(t, s.env(), "variant", "show", "large", "fast"), call(t, s.env(), "report")} {
		if !strings.Contains(out, "held by the model") || !strings.Contains(out, "warm_reserve") {
			t.Errorf("no gain is shown:\n%s", out)
		}
	}
	if why := call(t, s.env(), "why", "large"); !strings.Contains(why, "fast of large was added") || !strings.Contains(why, "large@fast serves what large is asked") {
		t.Errorf("why large: %s", why)
	}
	load.end(t)
	s.stop(t)

	s = start(t, data, nil, "--config", file)
	if !eventually(patience, func() bool { by, err := s.askAs("/v1/embeddings", embedding(0), ""); return by == "fast" && err == nil }) {
		t.Errorf("after a restart the variant does not serve\n%s", s.err.String())
	}
	load = s.load(4, "/v1/embeddings", embedding)
	if e := call2(t, "variant", "drop", "large@fast", "--data", s.data); !strings.Contains(e, "409") {
		t.Errorf("drop of what serves: %s", e)
	}
	out = call(t, s.env(), "variant", "rollback", "large@fast", "--wait")
	if !strings.Contains(out, "canary, share 0") {
		t.Errorf("variant rollback: %s", out)
	}
	call(t, s.env(), "variant", "share", "large@fast", "--to", "1")
	n := load.count("fast")
	if !eventually(patience, func() bool { return load.count("fast") > n+50 }) {
		t.Errorf("a share of 1 serves nobody: %v", load.by)
	}
	call(t, s.env(), "variant", "drop", "large", "fast")
	if !eventually(patience, func() bool {
		by, err := s.askAs("/v1/embeddings", embedding(0), "")
		return by == "" && err == nil && len(s.engines("large")) == 1
	}) {
		t.Errorf("after the drop the engines are %v", s.engines("large"))
	}
	load.end(t)
	s.stop(t)
}

// refusesVariants asks for what cannot be: nothing of it is kept.
func (s *instance) refusesVariants(t *testing.T) {
	t.Helper()
	for _, c := range []struct{ body, want string }{
		{`{"model":"none","name":"x"}`, "has no model"},
		{`{"model":"large","name":"Fast"}`, "lower-case"},
		{`{"model":"large","name":"base"}`, "lower-case"},
		{`{"model":"large","name":"x"}`, "nothing is otherwise"},
		{`{"model":"large","name":"x","shape":"9g"}`, "9g"},
		{`{"model":"large","name":"x","law":{"alpha":"soon"}}`, "no duration"},
		{`{"model":"large","name":"x","shape":"1g.10gb","share":1.5}`, "want 0 to 1"},
		{`{"model":"large","name":"x","shape":"1g.10gb","rule":{"promote_if":{"samples":0}}}`, "promote_if.samples"},
		{`{"model":"large","name":"x","gguf":"here.gguf"}`, "no absolute path"},
		{`{"model":"large","name":"x","shap":"1g.10gb"}`, "shap"},
	} {
		err := s.ask(http.MethodPost, variantsPath, json.RawMessage(c.body), nil)
		if err == nil || !strings.Contains(err.Error(), "400") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want 400 and %q", c.body, err, c.want)
		}
	}
	for _, path := range []string{"/large@x", "/large@x/promote", "/large@x/rollback"} {
		if err := s.ask(http.MethodPost, variantsPath+path, struct{}{}, nil); err == nil || !strings.Contains(err.Error(), "404") {
			t.Errorf("%s: %v, want 404", path, err)
		}
	}
	var list struct{ Data []gateway.VariantObject }
	if err := s.get(variantsPath, &list); err != nil || len(list.Data) != 0 {
		t.Errorf("%d variants, %v: want none", len(list.Data), err)
	}
}
