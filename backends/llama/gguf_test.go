package llama

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// head writes the head of a GGUF file by hand.
type head struct{ bytes.Buffer }

func newHead(tensors, keys uint64) *head {
	h := &head{}
	h.WriteString("GGUF")
	h.le(uint32(3))
	h.le(tensors)
	h.le(keys)
	return h
}

func (h *head) le(v any)      { _ = binary.Write(h, binary.LittleEndian, v) }
func (h *head) str(s string)  { h.le(uint64(len(s))); h.WriteString(s) }
func (h *head) kv(key string) { h.str(key) }

func small() *head {
	h := newHead(1, 3)
	h.kv("general.architecture")
	h.le(uint32(ggufString))
	h.str("llama")
	h.kv("llama.context_length")
	h.le(uint32(4))
	h.le(uint32(256))
	h.kv("tokenizer.ggml.tokens")
	h.le(uint32(ggufArray))
	h.le(uint32(ggufString))
	h.le(uint64(2))
	h.str("a")
	h.str("b")
	h.str("token_embd.weight")
	h.le(uint32(2))
	h.le(uint64(32))
	h.le(uint64(2))
	h.le(uint32(8)) // Q8_0: 34 bytes a block of 32
	h.le(uint64(0))
	for h.Len()%32 != 0 {
		h.WriteByte(0)
	}
	h.Write(make([]byte, 68))
	return h
}

func TestParseGGUF(t *testing.T) {
	b := small().Bytes()
	g, err := parseGGUF(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	if g.Architecture() != "llama" || g.archInt("context_length", 0) != 256 || g.Tensors[0].Name != "token_embd.weight" {
		t.Errorf("read %+v", g)
	}
	// Whatever byte the file ends at, the reader must say so.
	for n := range len(b) {
		if _, err := parseGGUF(bytes.NewReader(b[:n]), int64(n)); err == nil {
			t.Fatalf("a file cut at byte %d of %d passed", n, len(b))
		}
	}
}

func TestParseGGUFRefuses(t *testing.T) {
	cases := []struct {
		name, want string
		build      func() []byte
	}{
		{"garbage", "not a GGUF file", func() []byte { return []byte("hello, this is text") }},
		{"lfs pointer", "Git LFS pointer", func() []byte { return []byte("version https://git-lfs.github.com/spec/v1\n") }},
		{"empty", "truncated", func() []byte { return nil }},
		{"version", "version 9", func() []byte { return append([]byte("GGUF\x09\x00\x00\x00"), make([]byte, 16)...) }},
		{"many tensors", "damaged", func() []byte { return newHead(math.MaxUint64, 0).Bytes() }},
		{"long string", "damaged", func() []byte { h := newHead(0, 1); h.le(uint64(1 << 40)); return h.Bytes() }},
		{"value type", "unknown value type", func() []byte {
			h := newHead(0, 1)
			h.kv("k")
			h.le(uint32(77))
			return h.Bytes()
		}},
		{"array of arrays", "array of arrays", func() []byte {
			h := newHead(0, 1)
			h.kv("k")
			h.le(uint32(ggufArray))
			h.le(uint32(ggufArray))
			h.le(uint64(1))
			return h.Bytes()
		}},
		{"alignment", "power of two", func() []byte {
			h := newHead(0, 1)
			h.kv("general.alignment")
			h.le(uint32(4))
			h.le(uint32(33))
			return h.Bytes()
		}},
		{"dimensions overflow", "impossible", func() []byte {
			h := newHead(1, 0)
			h.str("t")
			h.le(uint32(2))
			h.le(uint64(1 << 40))
			h.le(uint64(1 << 40))
			h.le(uint32(0))
			h.le(uint64(0))
			return h.Bytes()
		}},
		{"five dimensions", "5 dimensions", func() []byte {
			h := newHead(1, 0)
			h.str("t")
			h.le(uint32(5))
			return h.Bytes()
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b := c.build()
			_, err := parseGGUF(bytes.NewReader(b), int64(len(b)))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one that says %q", err, c.want)
			}
		})
	}
}

func TestReadGGUFFiles(t *testing.T) {
	if _, err := ReadGGUF(filepath.Join(t.TempDir(), "none.gguf")); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("missing file: %v", err)
	}
	if _, err := ReadGGUF(t.TempDir()); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("folder: %v", err)
	}
}

func TestCheckServable(t *testing.T) {
	spm := &GGUF{Meta: map[string]any{
		"general.architecture":  "llama",
		"tokenizer.ggml.model":  "llama",
		"tokenizer.ggml.tokens": []string{"a", "b"},
	}, Tensors: make([]Tensor, 1)}
	if err := spm.checkServable(); err == nil || !strings.Contains(err.Error(), "<0x00>") {
		t.Errorf("a vocabulary without byte tokens: %v", err)
	}
	layers := &GGUF{Meta: map[string]any{
		"general.architecture":  "bert",
		"bert.block_count":      int64(0),
		"tokenizer.ggml.tokens": []string{"a"},
	}, Tensors: make([]Tensor, 1)}
	if err := layers.checkServable(); err == nil || !strings.Contains(err.Error(), "bert.block_count is 0") {
		t.Errorf("a model without layers: %v", err)
	}
	if err := (&GGUF{Meta: map[string]any{"general.architecture": "llama"}, Tensors: make([]Tensor, 1)}).checkServable(); err == nil {
		t.Error("a model without a vocabulary passed")
	}
}

func TestReadGGUFReal(t *testing.T) {
	g, err := ReadGGUF(babyllama(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := g.checkServable(); err != nil {
		t.Error(err)
	}
	if n := g.archInt("context_length", 0); n != 256 {
		t.Errorf("context length %d, want 256", n)
	}
}

func FuzzParseGGUF(f *testing.F) {
	f.Add(small().Bytes())
	f.Add(newHead(1, 1).Bytes())
	f.Add([]byte("GGUF"))
	if dir := os.Getenv("ALOFT_SHARED"); dir != "" {
		if b, err := os.ReadFile(filepath.Join(dir, "models", "babyllama.q8.gguf")); err == nil {
			f.Add(b[:min(len(b), 1<<13)])
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		g, err := parseGGUF(bytes.NewReader(b), int64(len(b)))
		if err == nil {
			_ = g.checkServable()
			_ = g.encoderOnly()
			for _, tensor := range g.Tensors {
				if n, _ := tensor.bytes(); n > uint64(len(b)) {
					t.Fatalf("tensor %q of %d bytes passed in a file of %d", tensor.Name, n, len(b))
				}
			}
		}
	})
}
