package main

import (
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"aloft/backends"
	"aloft/backends/openai"
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
		{"duration without a unit", goodModel + "    target: 600\n", "line 6: a number is no duration, want for example 500ms"},
		{"no models", "listen: 127.0.0.1:0\n", "models: no model is configured"},
		{"unknown engine", strings.Replace(goodModel, "synthetic", "vllm", 1), `line 4: models[0].engine: unknown engine "vllm"`},
		{"no file", strings.Replace(goodModel, "synthetic", "llama", 1), "models[0].gguf: engine llama needs a GGUF file"},
		{"min above max", goodModel + "    replicas: {min: 3, max: 2}\n", "line 6: models[0].replicas: min 3, max 2"},
		{"negative size", goodModel + "    slots: -1\n", "models[0]: slots must be at least 1"},
		{"two with one name", goodModel + strings.TrimPrefix(goodModel, "\nmodels:\n"), `models[1].name: "m" is used twice`},
		{"mixed endpoints", strings.Replace(goodModel, "[embeddings]", "[embeddings, chat]", 1), "give them a model each"},
		{"embeddings and pictures", byCommand + "[embeddings, images]", "embeddings and images cannot share a model"},
		{"unknown endpoint", byCommand + "[chat, dance]", `unknown endpoint "dance", want some of chat, completions, `},
		{"engine without the endpoint", strings.Replace(goodModel, "[embeddings]", "[chat, responses]", 1), "engine synthetic does not serve responses"},
		{"adapter twice", goodModel + "    adapters: [a, b, a]\n", `line 6: models[0].adapters: adapter "a"`},
		{"layout that does not fit", goodModel + "node: {simulated: [{family: A100-80GB, layout: [4g.40gb, 4g.40gb]}]}\n", "line 6: node.simulated: "},
		{"two slices over one", goodModel + "node: {simulated: [{family: A100-80GB, layout: [\"3g.40gb@0\", \"2g.20gb@0\"]}]}\n", "node.simulated: "},
		{"mode", goodModel + "arbiter: {mode: brave}\n", `arbiter: mode is "brave", want lend, static or observe`},
		{"a mark that nothing is above", goodModel + "arbiter: {lend_above: 1}\n", "lend_above is 1, want less than 1"},
		{"a weight that is none", goodModel + "arbiter: {tenants: [{name: a, weight: .nan}]}\n", "arbiter.tenants[0].weight: NaN, want 0 or more"},
		{"no end of borrowing", goodModel + "arbiter: {tenants: [{name: a, borrow_limit: .inf}]}\n", "arbiter.tenants[0].borrow_limit: +Inf, want 0 or more"},
		{"marks crossed", goodModel + "arbiter: {lend_above: 0.1, reclaim_below: 0.2}\n", "lend_above is 0.1, want more than reclaim_below"},
		{"fine-tuning of no model", goodModel + "jobs: {templates: [{name: j, kind: train, command: [x], fine_tune: {models: [n]}}]}\n", `line 6: jobs.templates[0].fine_tune.models[0]: "n" is no configured model`},
		{"fine-tuning by two", goodModel + "jobs: {templates: [{name: j, kind: train, command: [x], fine_tune: {models: [m]}}, {name: k, kind: train, command: [x], fine_tune: {models: [m]}}]}\n", `"m" is trained by template "j" already`},
		{"fine-tuning that cannot be asked for", goodModel + "jobs: {templates: [{name: j, kind: train, command: [x], fine_tune: {models: [m]}, params: [{name: p, type: int, max: 9}]}]}\n", `parameter "p" needs a default`},
		{"suspension without a bound", goodModel + "jobs: {suspend: {program: x}}\n", "line 6: jobs.suspend: memory is 0 bytes, want more than 0"},
		{"suspension by nothing", goodModel + "jobs: {suspend: {memory: 1}}\n", "jobs.suspend: no program given"},
		{"suspension that is off", goodModel + "jobs: {templates: [{name: j, kind: train, command: [x], suspend: true}]}\n", "line 6: jobs.templates[0].suspend: jobs.suspend does not say by which program"},
		{"suspended sessions", goodModel + "jobs: {suspend: {program: x, memory: 1}, templates: [{name: j, kind: session, command: [x], suspend: true}]}\n", "suspend is for programs on one slice, and not for sessions"},
		{"users backwards", goodModel + "jobs: {users: {first: 5, last: 4}}\n", "line 6: jobs.users: users 5 to 4 are no range"},
		{"users without a first", goodModel + "jobs: {users: {last: 4}}\n", "jobs.users: users 0 to 4 are no range"},
		{"users that there cannot be", goodModel + "jobs: {users: {first: 5, last: 5000000000}}\n", "are no range within 1 and 4294967293"},
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

// byCommand is a model whose endpoints follow.
const byCommand = "models:\n  - name: m\n    engine: command\n    command: [engine]\n    sleep: pause\n    endpoints: "

func TestConfigEndpoints(t *testing.T) {
	for _, ok := range []string{
		"[chat, completions, responses, messages, rerank, score, classify, moderations, transcriptions, translations, speech, images, tokenize, detokenize]",
		"[embeddings, tokenize, detokenize, rerank, score, classify, moderations]", "[images, speech]",
	} {
		if _, err := parseConfig([]byte(byCommand + ok)); err != nil {
			t.Errorf("%s: %v", ok, err)
		}
	}
}

// Every endpoint has a first call that the edge itself would let through, or
// none on purpose.
func TestWarmUp(t *testing.T) {
	for _, e := range backends.Endpoints() {
		path, body := warmUp(ModelConfig{Name: "a/b", Endpoints: []string{string(e)}})
		switch e {
		case backends.Transcriptions, backends.Translations, backends.Speech, backends.Images:
			if path != "" || body != nil {
				t.Errorf("%s: %s %s, want none", e, path, body)
			}
			continue
		}
		scan, err := openai.ScanRequest(e, body)
		if err != nil || scan.Model != "a/b" || path != e.EnginePath(e.Path()) {
			t.Errorf("%s: %s %s: %q, %v", e, path, body, scan.Model, err)
		}
	}
	if path, _ := warmUp(ModelConfig{Name: "m", Endpoints: []string{"tokenize", "images", "chat"}}); path != "/v1/chat/completions" {
		t.Errorf("of tokenize, images and chat %s is warmed", path)
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

func TestMergedModels(t *testing.T) {
	for endpoints, want := range map[string]bool{
		"embeddings": true, "classify": true, "score rerank tokenize": true, "moderations": true,
		"rerank": false, "chat": false, "chat classify": false, "images moderations": false, "tokenize": false,
	} {
		m := ModelConfig{Endpoints: strings.Fields(endpoints)}
		if m.fill(); m.merges() != want || (m.Slots == 1) != want {
			t.Errorf("%s: merges %v, %d slots, want %v", endpoints, m.merges(), m.Slots, want)
		}
	}
}
