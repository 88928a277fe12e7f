package trainer

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
)

// example is one line of a file of examples, in any of the forms that a
// fine-tuning file may have (docs/jobs.md); they were checked before.
type example struct {
	Messages []struct {
		Content json.RawMessage `json:"content"` // text, or parts with text
	} `json:"messages"`
	Prompt     string `json:"prompt"`
	Completion string `json:"completion"`
	Text       string `json:"text"`
}

// text is what a model of characters learns of an example, one part a line.
func (e example) text() string {
	parts := []string{e.Prompt, e.Completion, e.Text}
	for _, m := range e.Messages {
		var whole string
		var pieces []struct{ Text string }
		if json.Unmarshal(m.Content, &whole) != nil && json.Unmarshal(m.Content, &pieces) == nil {
			for _, p := range pieces {
				whole += p.Text
			}
		}
		parts = append(parts, whole)
	}
	var b strings.Builder
	for _, p := range parts {
		if p != "" {
			b.WriteString(p + "\n")
		}
	}
	return b.String()
}

// readExamples is the text of a JSONL file of examples.
func readExamples(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("train: examples: %w", err)
	}
	defer f.Close()
	var out []byte
	in := bufio.NewReader(f)
	for n := 1; ; n++ {
		line, err := in.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("train: examples: %w", err)
		}
		end := err != nil
		if strings.TrimSpace(strings.TrimPrefix(string(line), "\ufeff")) != "" {
			var e example
			if err := json.Unmarshal([]byte(strings.TrimPrefix(string(line), "\ufeff")), &e); err != nil {
				return nil, fmt.Errorf("train: examples %s, line %d: %w", path, n, err)
			}
			out = append(out, e.text()...)
		}
		if len(out) > maxData {
			return nil, fmt.Errorf("train: examples %s: want at most %d bytes of text", path, maxData)
		}
		if end {
			break
		}
	}
	if len(out) < 2*window {
		return nil, fmt.Errorf("train: examples %s: want at least %d characters of text", path, 2*window)
	}
	return out, nil
}

// stepsOf is how many steps see as many characters as so many passes over the text.
func stepsOf(epochs int, text []byte) int {
	return min(maxSteps, max(1, (epochs*len(text)+batch-1)/batch))
}

// validated bounds the characters of held-out text whose loss is measured.
const validated = 512

// held is the mean loss over held-out text, at places that are evenly apart.
func (m *model) held(text []byte) float64 {
	n := min(validated, len(text)-window)
	loss := 0.0
	for i := range n {
		at := i * (len(text) - window) / n
		loss += m.example(text[at:at+window], text[at+window]) // its gradient is forgotten by the next step
	}
	return loss / float64(n)
}

// WeightsName is the file of the final weights: little-endian float64, of which
// the reported result is the SHA-256.
const WeightsName = "weights.f64"

// write leaves the final weights in a folder, whole or not at all.
func (m *model) write(dir string) error {
	b := make([]byte, 0, 8*nParams)
	for _, w := range m.w {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(w))
	}
	path := filepath.Join(dir, WeightsName)
	if err := os.WriteFile(path+".tmp", b, 0o644); err != nil {
		return fmt.Errorf("train: weights: %w", err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return fmt.Errorf("train: weights: %w", err)
	}
	return nil
}
