package main

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
)

// What a start would refuse is found by a check, with its line.
func TestConfigCheck(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"nothing", "", ""},
		{"shape", "    shape: 7g.80gb\n", "line 6: models[0].shape: model m: shape: no slice is as large"},
		{"delay", "    target: 10ms\n    batch: {max_queue_delay: 1s}\n", "line 7: models[0].batch: "},
		{"variable", "    overflow: {url: \"http://h\", key_env: ALOFT_TEST_NONE, input_price: 1, budget: 1}\n", "line 6: models[0].overflow: model m: the environment variable ALOFT_TEST_NONE"},
		{"GGUF", "  - {name: n, engine: llama, gguf: none.gguf, endpoints: [chat]}\n", "line 6: models[1].gguf: model n: "},
		{"built-in", "  - {name: n, engine: llama, gguf: \"builtin:none\", endpoints: [chat]}\n", "there is no built-in file"},
		{"program", "  - {name: n, engine: command, command: [aloft-no-such-program], sleep: http, endpoints: [chat]}\n", "line 6: models[1].command: model n: "},
		{"key file", "gateway: {key_file: keys.yaml}\n", "line 6: gateway.key_file: "},
		{"TLS", "gateway: {tls: {cert: none.pem, key: none.pem}}\n", "line 6: gateway.tls: "},
		{"public", "listen: 0.0.0.0:8080\n", "line 6: listen: 0.0.0.0:8080: without keys"},
		{"pool", "pool: {stop_grace: 0s}\n", "line 6: pool: pool: stop_grace is 0s"},
		{"template", "jobs: {templates: [{name: j, kind: train, command: [x], shape: 7g.80gb}]}\n", "line 6: jobs.templates[0].shape: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "c.yaml")
			if err := os.WriteFile(file, []byte(goodModel+tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "keys.yaml"), []byte("keys: [{}]\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			conf, err := loadConfig(file)
			if err != nil {
				t.Fatal(err)
			}
			conf.data = filepath.Join(dir, "data")
			_, err = conf.check()
			if (tc.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q in it", err, tc.want)
			}
			if _, err := os.Stat(conf.data); err == nil {
				t.Error("a check has made the data folder")
			}
		})
	}
}

func TestVersionOf(t *testing.T) {
	info := &debug.BuildInfo{Main: debug.Module{Version: "(devel)"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.time", Value: "2026-11-30T07:00:00Z"}, {Key: "vcs.modified", Value: "true"}}}
	if got := versionOf(info); got != "devel 0123456789ab 2026-11-30T07:00:00Z (modified)" {
		t.Errorf("got %q", got)
	}
	if info.Main.Version = "v1.2.3"; versionOf(info) != "v1.2.3" {
		t.Errorf("got %q", versionOf(info))
	}
	if got := versionOf(&debug.BuildInfo{}); got != "devel" {
		t.Errorf("got %q", got)
	}
}
