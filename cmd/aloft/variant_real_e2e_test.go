package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"aloft/configs"
	"aloft/gateway"
)

// The quick start's language model on a slice of two, quantized, tried with half
// of the requests of the load generator, and promoted by its rule while they come:
// none fails, and the ledger has a slice more for others.
func TestVariantQuantized(t *testing.T) {
	lib := needLibrary(t)
	const small = "shape: 1g.10gb\n    replicas: {min: 1, max: 2}\n    slots: 4"
	conf := strings.Replace(string(configs.Quickstart), small, "shape: 2g.20gb\n    replicas: {min: 1, max: 1}\n    slots: 4", 1)
	if conf == string(configs.Quickstart) {
		t.Fatal("the quick start's language model is configured otherwise")
	}
	// The encoder's warm replicas would take every small slice.
	conf = strings.Replace(conf, "replicas: {min: 1, max: 3}", "replicas: {min: 1, max: 2}", 1)
	env := []string{"ALOFT_ENGINE_LIB=" + lib}
	q8 := filepath.Join(t.TempDir(), "q8.gguf")
	call(t, env, "engine", "quantize", "builtin:aloft-lm.gguf", q8, "--type", "q8_0")
	s := start(t, t.TempDir(), env, "--config", write(t, "aloft.yaml", conf))
	chat := `{"model":"aloft-lm","max_tokens":4,"messages":[{"role":"user","content":"Hello"}]}`
	if !eventually(patience, func() bool { _, err := s.askAs("/v1/chat/completions", chat, ""); return err == nil }) {
		t.Fatal(s.err.String())
	}
	time.Sleep(11 * time.Second) // two looks at who holds what
	rule := write(t, "rule.yaml", "promote_if: {samples: 30, agreement: 0.3, compared: 5, p99_ratio: 50}\ndrop_if: {samples: 20, error_rate: 0.5}\n")
	call(t, s.env(), "variant", "add", "aloft-lm", "--name", "q8", "--gguf", q8, "--shape", "1g.10gb", "--share", "0.5", "--shadow", "0.3", "--rule", rule)
	file := filepath.Join(t.TempDir(), "load.json")
	load := aloft(t, nil, "load", "--url", s.url, "--kind", "chat", "--model", "aloft-lm", "--rate", "4", "--for", "50s", "--target", "60s", "--tokens", "8", "--json", file)
	promoted := eventually(patience, func() bool { return s.variant(t, "aloft-lm@q8").State == gateway.VariantPromoted })
	select {
	case <-load.done:
		t.Error("the load ended before the promotion did: nothing is shown of requests under way")
	default:
	}
	if code := load.ended(t, 2*patience); code != 0 {
		t.Errorf("load: exit code %d\n%s%s", code, load.out.String(), load.err.String())
	}
	o := s.variant(t, "aloft-lm@q8")
	if !promoted {
		t.Fatalf("not promoted: %+v\n%s", o, call(t, s.env(), "variant", "show", "aloft-lm", "q8"))
	}
	var v struct {
		Results []struct{ Offered, OK, Late, Shed, Failed int }
	}
	text, _ := os.ReadFile(file)
	if err := json.Unmarshal(text, &v); err != nil || len(v.Results) != 1 {
		t.Fatalf("load --json: %v\n%s", err, text)
	}
	if r := v.Results[0]; r.Offered < 100 || r.OK != r.Offered || r.Failed != 0 || r.Shed != 0 {
		t.Errorf("load: %+v", r)
	}
	if why := call(t, s.env(), "why", "aloft-lm"); !strings.Contains(why, "variant q8 of aloft-lm is promoted") || !strings.Contains(why, "agreement") || !strings.Contains(why, "aloft-lm@q8 serves what aloft-lm is asked") {
		t.Errorf("why aloft-lm: %s", why)
	}
	if !eventually(patience, func() bool {
		a := s.variant(t, "aloft-lm@q8").Gain.After
		return a != nil && a.Seconds > 0 && a.Held < 1.5
	}) {
		t.Errorf("gain: %+v", s.variant(t, "aloft-lm@q8").Gain.After)
	}
	shown := call(t, s.env(), "variant", "show", "aloft-lm", "q8")
	t.Log(shown)
	if !strings.Contains(shown, "held by the model                2.00") || !strings.Contains(shown, q8) {
		t.Errorf("variant show:\n%s", shown)
	}
	if report := call(t, s.env(), "report"); !strings.Contains(report, "aloft-lm@q8 is in the place of aloft-lm") {
		t.Errorf("report:\n%s", report)
	}
	s.stop(t)
}
