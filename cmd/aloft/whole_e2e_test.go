package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// The whole API with the official clients of OpenAI and Anthropic, in front of
// a scripted engine: the embedded one has no tools, no structured output, no
// audio and no images, and says so.
func TestWholeAPI(t *testing.T) {
	dir := nodeModules(t)
	conf := write(t, "aloft.yaml", fmt.Sprintf(`
node: {devices: simulated}
models:
  - name: stub
    aliases: [alias-of-stub]
    engine: command
    sleep: pause
    command: [node, %s, "{port}"]
    endpoints: [chat, responses, messages, rerank, score, classify, moderations, transcriptions, speech, images, tokenize, detokenize]
    replicas: {min: 1, max: 1}
`, filepath.Join(dir, "engine.mjs")))
	s := start(t, t.TempDir(), nil, "--config", conf)
	defer s.stop(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", "whole.mjs", s.url)
	cmd.Dir, cmd.WaitDelay = dir, time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("node whole.mjs: %v\n%s", err, out)
	}
	got := map[string]string{}
	for sc := bufio.NewScanner(bytes.NewReader(out)); sc.Scan(); {
		var l struct {
			Name, Error string
			Got         json.RawMessage
		}
		if err := json.Unmarshal(sc.Bytes(), &l); err != nil {
			t.Fatalf("%v in %s", err, sc.Text())
		}
		got[l.Name] = string(l.Got) + l.Error
	}
	for name, want := range map[string]string{
		"tools":                        `{"finish":"tool_calls","calls":[{"id":"call_a","name":"weather","args":"{\"city\":\"Zürich 🏔\"}"},{"id":"call_b","name":"time","args":"{\"zone\":\"CET\"}"}]}`,
		"tools by the helper":          `["{\"city\":\"Zürich 🏔\"}","{\"zone\":\"CET\"}"]`,
		"structured output":            `{"schema":"answer","strict":true}`,
		"choices":                      `["a0b0","a1b1","a2b2"]`,
		"responses":                    `{"text":"Hello","tokens":7}`,
		"responses stream":             `{"text":"Hello","first":"response.created","last":"response.completed","events":7}`,
		"messages":                     `{"text":"Hello","tokens":2}`,
		"messages stream":              `{"text":"Hello","stop":"end_turn","tokens":2}`,
		"messages error":               `{"status":404,"kind":"not_found_error","name":"NotFoundError"}`,
		"moderations":                  `false`,
		"moderations without a model":  `"stub"`,
		"images":                       `"a sky"`,
		"speech":                       `[255,251,0,1,2,254,255]`,
		"transcription":                `"N bytes, model stub"`,
		"/v1/rerank":                   `2`,
		"/v2/rerank":                   `2`,
		"/rerank":                      `2`,
		"tokenize":                     `[104,233]`,
		"detokenize":                   `"hé"`,
		"classify":                     `"calm"`,
		"score":                        `0.5`,
		"a refusal is not tried again": `{"status":422,"message":"the engine does not like this"}`,
		"each call once":               `"1"`,
		"model":                        `"stub"`,
	} {
		if got[name] != want {
			t.Errorf("%s: %s\nwant %s", name, got[name], want)
		}
	}
}
