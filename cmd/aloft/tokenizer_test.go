package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A model's vocabulary is found where its files are; what cannot be read is said
// once, with its path, and tokens are estimated.
func TestCountingOf(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := put("hf/tokenizer.json", `{"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]},"pre_tokenizer":{"type":"ByteLevel"},"post_processor":{"type":"RobertaProcessing"}}`)
	put("bad/tokenizer.json", `{"model":{`)
	put("models/none", "")
	put("cut.gguf", "GGUF\x03\x00")
	gguf, err := os.ReadFile(filepath.Join("..", "..", "configs", "models", "aloft-encoder.gguf"))
	if err != nil {
		t.Fatal(err)
	}
	put("whole.gguf", string(gguf))
	at := func(p string) string { return filepath.Join(dir, p) }
	for _, tc := range []struct {
		name   string
		m      ModelConfig
		tokens int    // of "ab", with what is around it
		log    string // a part of the line
	}{
		{"none", ModelConfig{Engine: "synthetic"}, 1, ""},
		{"file", ModelConfig{Engine: "synthetic", Files: Files{Tokenizer: good}}, 3, ""},
		{"relative folder", ModelConfig{Engine: "synthetic", Files: Files{Tokenizer: "hf"}}, 3, ""},
		{"built in", ModelConfig{Engine: "llama", Files: Files{GGUF: "builtin:aloft-encoder.gguf"}}, 3, ""},
		{"GGUF", ModelConfig{Engine: "llama", Files: Files{GGUF: "whole.gguf"}}, 3, ""},
		{"command, folder", ModelConfig{Engine: "command", Command: []string{"vllm", "serve", at("hf"), "--port", "{port}"}}, 3, ""},
		{"command, flag", ModelConfig{Engine: "command", Command: []string{"llama-server", "--model=" + at("whole.gguf")}}, 3, ""},
		{"command, a name", ModelConfig{Engine: "command", Command: []string{"vllm", "serve", "org/model"}}, 1, ""},
		{"damaged", ModelConfig{Engine: "synthetic", Files: Files{Tokenizer: "bad"}}, 1, "tokenizer " + at("bad/tokenizer.json") + ": is no tokenizer.json"},
		{"damaged GGUF", ModelConfig{Engine: "command", Command: []string{"x", at("cut.gguf")}}, 1, at("cut.gguf") + ": truncated"},
		{"absent", ModelConfig{Engine: "synthetic", Files: Files{Tokenizer: "gone.json"}}, 1, "gone.json: no such file"},
	} {
		var log bytes.Buffer
		s := &server{data: dir, log: slog.New(slog.NewTextHandler(&log, nil))}
		tc.m.Name = "m"
		got := s.countingOf(&Config{path: at("aloft.yaml")}, &tc.m)
		if n := got.counter.Count([]byte("ab")) + got.calibration.Around; n != tc.tokens {
			t.Errorf("%s: %d tokens, want %d", tc.name, n, tc.tokens)
		}
		if want := map[bool]string{true: "vocabulary", false: "estimate"}[tc.tokens == 3]; got.by() != want {
			t.Errorf("%s: counted by %s, want %s", tc.name, got.by(), want)
		}
		if lines := strings.Count(log.String(), "\n"); (tc.log != "") != (lines == 1) || !strings.Contains(log.String(), tc.log) {
			t.Errorf("%s: logged %q, want one line about %q", tc.name, log.String(), tc.log)
		}
	}
}
