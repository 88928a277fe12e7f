package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The whole API with the official clients of OpenAI and Anthropic, in front of
// a scripted engine: the embedded one has no tools, no structured output, no
// audio and no images, and says so.
func TestWholeAPI(t *testing.T) {
	dir := nodeModules(t)
	text := fmt.Sprintf(`
node: {devices: simulated}
models:
  - name: stub
    aliases: [alias-of-stub]
    engine: command
    sleep: pause
    command: [node, %s, "{port}"]
    endpoints: [chat, responses, messages, rerank, score, classify, moderations, transcriptions, speech, images, tokenize, detokenize]
    replicas: {min: 1, max: 1}
    adapters: [de]
`, filepath.Join(dir, "engine.mjs"))
	conf := write(t, "aloft.yaml", text)
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
	s.rewrite(t, conf, strings.Replace(text, "[de]", "[fr, de]", 1), `msg="configuration reloaded"`)
	adapters(t, s)
}

// adapters asks for one that the engine lists, by name and alias, and for one
// that it does not. Only the engine of the reload is known to have the first:
// who asks for it waits for that one.
func adapters(t *testing.T, s *instance) {
	t.Helper()
	for _, tt := range []struct {
		model, want string // in the answer
		status      int
	}{
		{"stub:fr", `"model":"fr"`, 200},
		{"alias-of-stub:fr", `"model":"fr"`, 200},
		{"stub", `"model":"stub"`, 200},
		{"stub:de", "no_replica", 503},
		{"stub:xx", "model_not_found", 404},
	} {
		resp, err := http.Post(s.url+"/v1/moderations", "application/json", strings.NewReader(`{"input":"x","model":"`+tt.model+`"}`))
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		said := string(body) + resp.Header.Get("X-Aloft-Reason")
		if resp.StatusCode != tt.status || !strings.Contains(said, tt.want) {
			t.Errorf("%s: %d %s %v, want %d %s", tt.model, resp.StatusCode, body, resp.Header, tt.status, tt.want)
		}
	}
	var list struct {
		Data []struct{ ID, Parent, State string }
	}
	if err := s.get("/v1/models", &list); err != nil || fmt.Sprint(list.Data) != "[{stub  ready} {stub:fr stub ready} {stub:de stub missing}]" {
		t.Errorf("listed %v, %v", list.Data, err)
	}
}
