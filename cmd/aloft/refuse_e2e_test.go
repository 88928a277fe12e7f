package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"aloft/configs"
)

// tiny is the smallest configuration that serves.
const tiny = `node:
  devices: simulated
  simulated:
    - family: A100-80GB
      layout: [1g.10gb, 1g.10gb, 1g.10gb]
models:
  - name: tiny
    engine: synthetic
    endpoints: [embeddings]
    shape: 1g.10gb
    replicas: {min: 1, max: 2}
    law: {alpha: 5ms, beta: 10us}
`

// Whatever is wrong is told in one line, and leaves nothing behind: after every
// refusal the same data folder serves.
func TestServeRefuses(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	file := write(t, "file", "")
	whole, err := configs.Models.ReadFile("models/aloft-encoder.gguf")
	if err != nil {
		t.Fatal(err)
	}
	llama := func(gguf string) string {
		return strings.Replace(tiny, "engine: synthetic", "engine: llama\n    gguf: "+gguf, 1)
	}
	swap := func(old, new string) string {
		if !strings.Contains(tiny, old) {
			t.Fatalf("no %q", old)
		}
		return strings.Replace(tiny, old, new, 1)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, tt := range []struct {
		name, conf string
		args, env  []string
		want       string // parts of the line, split at |
	}{
		{name: "no configuration file", args: []string{"--config", "/nowhere.yaml"}, want: "/nowhere.yaml|no such file"},
		{name: "no model file", conf: llama("/nowhere.gguf"), want: "model tiny|/nowhere.gguf|does not exist"},
		{name: "truncated model", conf: llama(write(t, "half.gguf", string(whole[:len(whole)/2]))), want: "model tiny|half.gguf"},
		{name: "header only", conf: llama(write(t, "head.gguf", string(whole[:20]))), want: "model tiny|head.gguf"},
		{name: "empty model", conf: llama(write(t, "empty.gguf", "")), want: "model tiny|empty.gguf"},
		{name: "garbage model", conf: llama(write(t, "text.gguf", strings.Repeat("no model ", 1000))), want: "model tiny|text.gguf|not a GGUF"},
		{name: "model is a folder", conf: llama(t.TempDir()), want: "model tiny"},
		{name: "no built-in model", conf: llama("builtin:gpt-5.gguf"), want: "model tiny|gpt-5.gguf"},
		{name: "no engine library", conf: llama("builtin:aloft-encoder.gguf"), env: []string{"ALOFT_ENGINE_LIB=/nowhere"}, want: "/nowhere"},
		{name: "no engine library by search", conf: llama("builtin:aloft-encoder.gguf"), want: "engine library not found|make engine|ALOFT_ENGINE_LIB"},
		{name: "port taken", args: []string{"--listen", taken.Addr().String()}, want: taken.Addr().String() + "|in use"},
		{name: "no such address", args: []string{"--listen", "127.0.0.1:http:80"}, want: "listen on 127.0.0.1:http:80"},
		{name: "open to all", args: []string{"--listen", "0.0.0.0:0"}, want: "0.0.0.0:0|aloft keys make|insecure"},
		{name: "open to all by name", args: []string{"--listen", ":0"}, want: "aloft keys make|insecure"},
		{name: "data below a file", args: []string{"--data", filepath.Join(file, "data")}, want: filepath.Join(file, "data") + "|not a directory"},
		{name: "data cannot be written", args: []string{"--data", "/proc/aloft"}, want: "/proc/aloft"},
		{name: "unknown engine", conf: swap("synthetic", "warp"), want: `line 8|unknown engine "warp"`},
		{name: "unknown key", conf: swap("    endpoints", "    endpiont: x\n    endpoints"), want: `[9:5]|endpiont`},
		{name: "twice the same key", conf: tiny + "node: {devices: auto}\n", want: "node"},
		{name: "not YAML", conf: "models: [", want: "1:"},
		{name: "empty file", conf: "# nothing\n", want: "models|at least one"},
		{name: "unknown family", conf: swap("A100-80GB", "A101"), want: "A101"},
		{name: "unknown profile", conf: swap("shape: 1g.10gb", "shape: 9g.90gb"), want: "model tiny|9g.90gb"},
		{name: "no slice large enough", conf: swap("shape: 1g.10gb", "shape: 3g.40gb"), want: "model tiny|3g.40gb|1g.10gb"},
		{name: "two slices over one", conf: swap("[1g.10gb, 1g.10gb, 1g.10gb]", "[3g.40gb@0, 2g.20gb@0]"), want: "line |2g.20gb"},
		{name: "too many slices", conf: swap("[1g.10gb, 1g.10gb, 1g.10gb]", "[4g.40gb, 4g.40gb]"), want: "line |4g.40gb"},
		{name: "not where it may lie", conf: swap("[1g.10gb, 1g.10gb, 1g.10gb]", "[3g.40gb@1]"), want: "line |3g.40gb"},
		{name: "negative replicas", conf: swap("min: 1", "min: -1"), want: "line 11|replicas"},
		{name: "more least than most", conf: swap("min: 1", "min: 3"), want: "line 11|min 3, max 2"},
		{name: "negative context", conf: tiny + "    context: -1\n", want: "line |context"},
		{name: "negative slots", conf: tiny + "    slots: -1\n", want: "line |slots"},
		{name: "negative batch", conf: tiny + "    batch: {max_batch_size: -1}\n", want: "max"},
		{name: "negative queue", conf: tiny + "    batch: {max_queue: -1}\n", want: "max"},
		{name: "negative law", conf: swap("alpha: 5ms", "alpha: -5ms"), want: "line 12|alpha"},
		{name: "negative memory", conf: swap("layout", "bytes: -1\n      layout"), want: "line |-1"},
		{name: "negative rows", conf: tiny + "jobs: {batch_rows: -1}\n", want: "line |batch_rows"},
		{name: "negative timeout", conf: tiny + "pool: {start_timeout: -1s}\n", want: "tart"},
		{name: "negative body", conf: tiny + "gateway: {max_body: -1}\n", want: "ody"},
		{name: "negative period", conf: tiny + "arbiter: {plan: -1s}\n", want: "lan"},
		{name: "unknown mode", conf: tiny + "arbiter: {mode: give}\n", want: "line |give"},
		{name: "no key", conf: tiny + "gateway: {tls: {cert: x.pem}}\n", want: "line |gateway.tls"},
		{name: "unknown log level", env: []string{"ALOFT_LOG_LEVEL=loud"}, want: "loud|debug, info, warn or error"},
		{name: "unknown log format", env: []string{"ALOFT_LOG_FORMAT=xml"}, want: "xml"},
		{name: "model of no configuration", args: []string{"--gguf", "nobody=x.gguf"}, want: `--gguf|"nobody"`},
		{name: "unknown flag", args: []string{"--lsiten", "x"}, want: "--lsiten"},
		{name: "bad bucket", conf: tiny + "jobs: {blobs: 'ftp://x'}\n", want: "ftp"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args := []string{"serve", "--data", data, "--listen", "127.0.0.1:0"}
			conf := tt.conf
			if conf == "" {
				conf = tiny
			}
			args = append(append(args, "--config", write(t, "aloft.yaml", conf)), tt.args...)
			c := aloft(t, tt.env, args...)
			refused(t, c, strings.Split(tt.want, "|")...)
			if out := c.out.String(); out != "" {
				t.Errorf("printed %q", out)
			}
		})
	}
	for _, dir := range []string{"run", "logs"} {
		left, _ := os.ReadDir(filepath.Join(data, dir))
		for _, e := range left {
			t.Errorf("%s/%s is left", dir, e.Name())
		}
	}
	s := start(t, data, nil, "--config", write(t, "aloft.yaml", tiny))
	if _, err := s.embed("tiny", "at last"); err != nil {
		t.Error(err)
	}
	s.stop(t)
}

// refused checks that a run ended with exit code 1 and one line that has all parts.
func refused(t *testing.T, c *command, parts ...string) {
	t.Helper()
	if code := c.ended(t, patience); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	text := strings.TrimSpace(c.err.String())
	if !strings.HasPrefix(text, "aloft: ") || strings.Contains(text, "\n") {
		t.Errorf("want one line that starts with \"aloft: \", got:\n%s", text)
	}
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%q is not in: %s", p, text)
		}
	}
	c.gone(t)
}

// The commands that run alone refuse as well.
func TestCommandsRefuse(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "http://" + free.Addr().String()
	free.Close()
	rows := rows(t, encoder, 1)
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"engine", "llama", "--model", "/nowhere.gguf", "--lib", "/nowhere"}, "/nowhere"},
		{[]string{"engine", "synthetic", "--listen", "127.0.0.1:http:80"}, "listen on"},
		{[]string{"config", "check", write(t, "bad.yaml", tiny+"x: 1\n")}, "x"},
		{[]string{"batch", "submit", rows, "--url", nobody}, "no server at " + nobody},
		{[]string{"batch", "submit", rows, "--url", nobody, "--endpoint", "/v1/images"}, "endpoint"},
		{[]string{"batch", "submit", "/nowhere.jsonl", "--url", nobody}, "/nowhere.jsonl"},
		{[]string{"jobs", "list", "--url", nobody}, "no server at " + nobody},
		{[]string{"top", "--once", "--url", nobody}, "no server at " + nobody},
		{[]string{"why", "--url", "not a url"}, "not a url"},
		{[]string{"load", "--rate", "-1"}, "rate"},
		{[]string{"load", "--kind", "video"}, "kind"},
		{[]string{"load", write(t, "load.yaml", "workloads: []\n")}, "workload"},
		{[]string{"load", write(t, "load.yaml", "wrokloads: []\n")}, "wrokloads"},
		{[]string{"fly"}, "fly"},
	} {
		t.Run(tt.args[0], func(t *testing.T) {
			refused(t, aloft(t, nil, tt.args...), tt.want)
		})
	}
}
