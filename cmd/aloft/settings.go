package main

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"aloft/backends/llama"
	"aloft/configs"
	"aloft/gateway/keys"
)

// common are the flags that every server command has.
type common struct {
	Config string            `help:"Configuration file ($$ALOFT_CONFIG); default: the built-in quick start." short:"c" type:"path" placeholder:"FILE"`
	Listen string            `help:"Address to serve on ($$ALOFT_LISTEN); port 0 picks one." placeholder:"HOST:PORT"`
	Data   string            `help:"Data folder ($$ALOFT_DATA), where all state lies; default: aloft-data." placeholder:"DIR"`
	GGUF   map[string]string `name:"gguf" help:"Use this GGUF file for a model (repeatable)." placeholder:"MODEL=FILE"`
	Open   bool              `name:"insecure" help:"Serve a public address without keys or without TLS."`
	Level  string            `name:"log-level" help:"debug, info, warn or error ($$ALOFT_LOG_LEVEL)." placeholder:"LEVEL"`
}

// load reads file, environment and flags, in rising precedence.
func (f common) load() (*Config, error) {
	env, err := environment()
	if err != nil {
		return nil, err
	}
	c, err := loadConfig(cmp.Or(f.Config, env.Config))
	if err != nil {
		return nil, err
	}
	c.Listen = cmp.Or(f.Listen, env.Listen, c.Listen)
	c.Gateway.Insecure = c.Gateway.Insecure || f.Open
	c.Log.Level = cmp.Or(f.Level, env.Level, c.Log.Level)
	c.Log.Format = cmp.Or(env.Format, c.Log.Format)
	c.Engine.Library = cmp.Or(env.Library, c.Engine.Library)
	c.data = cmp.Or(f.Data, env.Data, "aloft-data")
	for name, file := range f.GGUF {
		found := false
		for i := range c.Models {
			if m := &c.Models[i]; m.Name == name {
				if m.GGUF, err = filepath.Abs(file); err != nil {
					return nil, err
				}
				found = true
			}
		}
		if !found {
			return nil, fmt.Errorf("--gguf %s=%s: the configuration has no model %q", name, file, name)
		}
	}
	return c, c.validate()
}

func logLevel(s string) (slog.Level, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(s)); err != nil {
		return l, fmt.Errorf("%q, want debug, info, warn or error", s)
	}
	return l, nil
}

// logger writes structured lines to w.
func (c *Config) logger(w io.Writer, level *slog.LevelVar) *slog.Logger {
	l, _ := logLevel(c.Log.Level) // checked by validate
	level.Set(l)
	opt := &slog.HandlerOptions{Level: level}
	if c.Log.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, opt))
	}
	return slog.New(slog.NewTextHandler(w, opt))
}

// folders below the data folder.
var folders = []string{"blobs", "checkpoints", "ledger", "logs", "models", "pasts", "recordings", "run"}

// openData makes the data folder, readable by nobody else since it holds users'
// texts, and locks it: two servers on one would end each other's processes.
func openData(dir string) (data string, unlock func(), err error) {
	if data, err = filepath.Abs(dir); err != nil {
		return "", nil, err
	}
	for _, f := range folders {
		if err := os.MkdirAll(filepath.Join(data, f), 0o700); err != nil {
			return "", nil, fmt.Errorf("data folder %s: %w", dir, err)
		}
	}
	unlock, err = lockFile(filepath.Join(data, "lock"))
	return data, unlock, err
}

// model returns the path of a model's GGUF file, checked; built-in ones are
// written below the data folder once.
func (c *Config) gguf(m ModelConfig, data string) (string, error) {
	name, builtin := strings.CutPrefix(m.GGUF, "builtin:")
	path := c.file(m.GGUF)
	if builtin {
		b, err := configs.Models.ReadFile("models/" + name)
		if err != nil {
			return "", fmt.Errorf("model %s: there is no built-in file %q", m.Name, name)
		}
		path = filepath.Join(data, "models", name)
		if st, err := os.Stat(path); err != nil || st.Size() != int64(len(b)) {
			if err := keys.WriteFile(path, b); err != nil {
				return "", fmt.Errorf("model %s: %w", m.Name, err)
			}
		}
	}
	if _, err := llama.ReadGGUF(path); err != nil {
		return "", fmt.Errorf("model %s: %w", m.Name, err)
	}
	return path, nil
}

// library finds llama.cpp's shared libraries: as configured, else beside the
// binary, else in the .engine folder of a checkout above it or the working folder.
func (c *Config) library() (string, error) {
	if c.Engine.Library != "" {
		return llama.LibraryFolder(c.file(c.Engine.Library))
	}
	var tried []string
	if exe, err := os.Executable(); err == nil {
		dir := filepath.Dir(exe)
		tried = append(tried, filepath.Join(dir, "lib"), filepath.Join(dir, ".engine"), filepath.Join(filepath.Dir(dir), ".engine"))
	}
	tried = append(tried, ".engine")
	for _, dir := range tried {
		if found, err := llama.LibraryFolder(dir); err == nil {
			return filepath.Abs(found)
		}
	}
	return "", fmt.Errorf("engine library not found (looked in %v): run `make engine`, or set ALOFT_ENGINE_LIB to a folder with libllama.so", tried)
}
