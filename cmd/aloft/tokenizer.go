package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"aloft/backends"
	"aloft/backends/llama"
	"aloft/backends/tokens"
)

// tokenizerJSON is what Hugging Face's library calls a vocabulary.
const tokenizerJSON = "tokenizer.json"

// counting is how a model's tokens are counted.
type counting struct {
	counter     backends.Counter
	calibration *backends.Calibration
}

// by is what tokens are counted by, for people.
func (c *counting) by() string {
	if _, exact := c.counter.(*tokens.Counter); exact {
		return "vocabulary"
	}
	return "estimate"
}

// ratio is our counts over the engines'; nil = no engine has said yet.
func (c *counting) ratio() *float64 {
	if c.calibration == nil {
		return nil
	}
	if r := c.calibration.Ratio(); r > 0 {
		return &r
	}
	return nil
}

// countingOf makes a model's counter from its vocabulary, where one is found and
// known. Else tokens are estimated, which is right on average, and the log says so.
func (s *server) countingOf(c *Config, m *ModelConfig) counting {
	out := counting{&backends.Ratio{}, &backends.Calibration{}}
	path := s.vocabulary(c, m)
	if path == "" {
		return out
	}
	counter, err := openTokenizer(path)
	if err != nil {
		s.log.Warn("tokens are estimated", "model", m.Name, "error", err)
		return out
	}
	out.counter, out.calibration.Around = counter, counter.Around()
	return out
}

// sameVocabulary reports whether a model's tokens are counted as before.
func sameVocabulary(a, b *ModelConfig) bool {
	return a.Engine == b.Engine && a.GGUF == b.GGUF && a.Tokenizer == b.Tokenizer && slices.Equal(a.Command, b.Command)
}

// vocabulary finds the file with a model's vocabulary: as configured, its GGUF, or
// what an engine's command line names; "" = there is none.
func (s *server) vocabulary(c *Config, m *ModelConfig) string {
	if m.Tokenizer != "" {
		path := c.file(m.Tokenizer)
		if st, err := os.Stat(path); err == nil && st.IsDir() {
			return filepath.Join(path, tokenizerJSON)
		}
		return path
	}
	if m.Engine == "llama" {
		path, err := c.gguf(*m, s.data)
		if err != nil {
			return "" // who launches the engine says so
		}
		return path
	}
	for _, arg := range m.Command {
		if flag, value, ok := strings.Cut(arg, "="); ok && strings.HasPrefix(flag, "-") {
			arg = value
		}
		st, err := os.Stat(arg)
		switch {
		case err != nil:
		case st.IsDir():
			if path := filepath.Join(arg, tokenizerJSON); isFile(path) {
				return path
			}
		case strings.HasSuffix(arg, ".gguf"):
			if path := filepath.Join(filepath.Dir(arg), tokenizerJSON); isFile(path) {
				return path
			}
			return arg
		}
	}
	return ""
}

func isFile(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular()
}

// maxTokenizer bounds a tokenizer.json; the largest have some 35 MB.
const maxTokenizer = 256 << 20

// openTokenizer reads a GGUF file's head or a tokenizer.json. Errors name the file.
func openTokenizer(path string) (c *tokens.Counter, err error) {
	if strings.HasSuffix(path, ".gguf") {
		g, err := llama.ReadGGUF(path)
		if err != nil {
			return nil, err
		}
		if c, err = tokens.GGUF(g.Meta); err != nil {
			return nil, fmt.Errorf("tokenizer in %s: %w", path, err)
		}
		return c, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open tokenizer: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxTokenizer+1))
	if err == nil && len(text) > maxTokenizer {
		err = fmt.Errorf("larger than %d bytes", maxTokenizer)
	}
	if err == nil {
		c, err = tokens.JSON(text)
	}
	if err != nil {
		return nil, fmt.Errorf("tokenizer %s: %w", path, err)
	}
	return c, nil
}
