package main

import (
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
)

const goodModel = `
models:
  - name: m
    engine: synthetic
    endpoints: [embeddings]
`

func TestConfigDefaults(t *testing.T) {
	c, err := parseConfig([]byte(goodModel))
	if err != nil {
		t.Fatal(err)
	}
	m := c.Models[0]
	if c.Listen != "127.0.0.1:8080" || c.Arbiter.Plan != 10*time.Second || m.Replicas.Max != 1 || m.Slots != 1 || m.Target != time.Second {
		t.Errorf("defaults not filled in: %+v", c)
	}
}

// Each mistake is one line that says what was expected, and where.
func TestConfigMistakes(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"unknown key", goodModel + "modells: []\n", `[6:1] unknown field "modells"`},
		{"not YAML", "models: [", "[1:9]"},
		{"wrong type", goodModel + "arbiter: {plan: soon}\n", `line 6: "soon" is no duration`},
		{"no models", "listen: 127.0.0.1:0\n", "models: no model is configured"},
		{"unknown engine", strings.Replace(goodModel, "synthetic", "vllm", 1), `line 4: models[0].engine: unknown engine "vllm"`},
		{"no file", strings.Replace(goodModel, "synthetic", "llama", 1), "models[0].gguf: engine llama needs a GGUF file"},
		{"min above max", goodModel + "    replicas: {min: 3, max: 2}\n", "line 6: models[0].replicas: min 3, max 2"},
		{"negative size", goodModel + "    slots: -1\n", "models[0]: slots must be at least 1"},
		{"two with one name", goodModel + strings.TrimPrefix(goodModel, "\nmodels:\n"), `models[1].name: "m" is used twice`},
		{"mixed endpoints", strings.Replace(goodModel, "[embeddings]", "[embeddings, chat]", 1), "give them a model each"},
		{"layout that does not fit", goodModel + "node: {simulated: [{family: A100-80GB, layout: [4g.40gb, 4g.40gb]}]}\n", "line 6: node.simulated: "},
		{"two slices over one", goodModel + "node: {simulated: [{family: A100-80GB, layout: [\"3g.40gb@0\", \"2g.20gb@0\"]}]}\n", "node.simulated: "},
		{"mode", goodModel + "arbiter: {mode: brave}\n", `arbiter: mode is "brave", want lend, static or observe`},
		{"marks crossed", goodModel + "arbiter: {lend_above: 0.1, reclaim_below: 0.2}\n", "lend_above is 0.1, want more than reclaim_below"},
		{"log level", goodModel + "log: {level: loud}\n", `log.level: "loud", want debug`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := parseConfig([]byte(tc.text))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q in it", err, tc.want)
			}
		})
	}
}

// FuzzConfig: any text is a configuration or an error, never a panic.
func FuzzConfig(f *testing.F) {
	f.Add([]byte(goodModel))
	f.Add([]byte("models: [{name: a, replicas: {min: 1}}]\nnode: {simulated: [{layout: [x]}]}"))
	f.Fuzz(func(t *testing.T, text []byte) { _, _ = parseConfig(text) })
}

func TestConfigShowHidesSecrets(t *testing.T) {
	c := Config{
		Models: []ModelConfig{{Env: map[string]string{"HF_TOKEN": "topsecret"}}},
		Jobs:   JobsConfig{Blobs: "mem://user:topsecret@host", Templates: []TemplateConfig{{Env: map[string]string{"KEY": "topsecret"}}}},
	}
	c.hideSecrets()
	shown, err := yaml.Marshal(c)
	if err != nil || strings.Contains(string(shown), "topsecret") || !strings.Contains(string(shown), "HF_TOKEN") {
		t.Errorf("%v\n%s", err, shown)
	}
}
