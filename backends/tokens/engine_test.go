package tokens_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	yzma "github.com/hybridgroup/yzma/pkg/llama"

	"aloft/backends/llama"
	"aloft/backends/tokens"
)

// loaded opens llama.cpp's library once, for its tokenizers.
var loaded = sync.OnceValue(func() error {
	dir := os.Getenv("ALOFT_ENGINE_LIB")
	if dir == "" {
		dir = filepath.Join("..", "..", ".engine")
	}
	dir, err := llama.LibraryFolder(dir)
	if err != nil {
		return err
	}
	if err := yzma.Load(dir); err != nil {
		return err
	}
	yzma.LogSet(yzma.LogSilent())
	yzma.Init()
	return nil
})

// engine is llama.cpp's own tokenizer of a GGUF file.
type engine struct {
	vocab   yzma.Vocab
	special bool // whether tokens spelled out are read as such
}

func openEngine(t testing.TB, path string, generates bool) *engine {
	t.Helper()
	if err := loaded(); err != nil {
		t.Skip(err)
	}
	p := yzma.ModelDefaultParams()
	p.VocabOnly = 1
	m, err := yzma.ModelLoadFromFile(path, p)
	if err != nil {
		t.Fatalf("llama.cpp does not load %s: %v", path, err)
	}
	t.Cleanup(func() { _ = yzma.ModelFree(m) })
	return &engine{yzma.ModelGetVocab(m), generates}
}

// count is what usage.prompt_tokens of `aloft engine llama` would say.
func (e *engine) count(text string) int {
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD")
	ids := yzma.Tokenize(e.vocab, text, true, e.special)
	if bos := yzma.VocabBOS(e.vocab); yzma.VocabGetAddBOS(e.vocab) && len(ids) > 1 && ids[0] == bos && ids[1] == bos {
		ids = ids[1:]
	}
	return len(ids)
}

func counterOf(t testing.TB, path string) *tokens.Counter {
	t.Helper()
	g, err := llama.ReadGGUF(path)
	if err != nil {
		t.Fatal(err)
	}
	c, err := tokens.GGUF(g.Meta)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// texts are what tokenizers are known to differ on, and seeded mixtures of it.
func texts(n int) []string {
	out := []string{
		"a", "The quick brown fox jumps over the lazy dog.", "In the beginning God created the heaven and the earth.",
		" ", "  ", "   a", "a   ", "a  b", "\t", "\n", "\n\n\n", " \n \r\n x", "\r\n\r\n", "a\u00a0b\u2003c\u3000d", "\u0085", "\x1c\x1d\x1e\x1f",
		"don't I'll WE'RE they'Ve it's 'tis 's 'S 'x '", "1", "12 345 6789", "3.14159 1,000,000 0x1F", "½ ² Ⅻ ١٢٣ ４５", "x1y22z333",
		"café naïve Ångström résumé ÀÉÎÕÜ", "e\u0301a\u0308", "İstanbul ǅungla ß ẞ ﬁ", "Привет, мир! Ёлка", "Ελληνικά ΣΊΣΥΦΟΣ",
		"你好，世界。中文测试", "日本語テスト カタカナ ひらがな", "한국어 테스트 각힣", "שלום עולם", "مرحبا بالعالم ١", "नमस्ते दुनिया", "สวัสดีชาวโลก",
		"🙂", "👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪", "a🙂b", "\x00", "a\x00b", "\x01\x02\x7f", "\xff\xfe", "a\xc3", "\ufffd", "\ufeffBOM", "\u200b\u200d\u00ad",
		"<s>", "</s>", "[CLS] [SEP] [MASK] [UNK]", "<s>hello", "hello</s>there", "<|im_start|>user", "<0x41>", "▁", "▁a▁▁b", "##ing",
		"func main() {\n\tfmt.Println(\"hi\")\n}\n", "https://example.org/a?b=c&d=%20#e", "user@example.com", "snake_case camelCase HTTPServer fooBAR", "--- *** === ...!!!???", "$5 + €7 = £12 ~ ^ ` |",
		"\\ \" / {\"a\": [1, 2]}", strings.Repeat("a", 300), strings.Repeat("ab ", 200), strings.Repeat("你", 100), strings.Repeat(" ", 100), strings.Repeat("\n ", 50), strings.Repeat("zq", 500), strings.Repeat("=", 80),
	}
	r := rand.New(rand.NewPCG(1, 2))
	base := out[:len(out):len(out)]
	runes := []rune("aZé'\n\r\t  19½.,-_/你한ก🙂\u0301ßʼ'sTRe")
	for len(out) < n {
		var b strings.Builder
		for range 1 + r.IntN(8) {
			switch r.IntN(3) {
			case 0:
				b.WriteString(base[r.IntN(len(base))])
			case 1:
				for range r.IntN(12) {
					b.WriteRune(runes[r.IntN(len(runes))])
				}
			case 2:
				words := strings.Fields("and the LORD said unto him behold a small vector of words that are nouns or verbs unbelievably internationalization I'm you've")
				for range r.IntN(10) {
					b.WriteString(words[r.IntN(len(words))] + " ")
				}
			}
		}
		out = append(out, b.String())
	}
	return out
}

func compare(t *testing.T, c *tokens.Counter, e *engine, all []string) {
	t.Helper()
	wrong := 0
	for _, text := range all {
		got, want := c.Count([]byte(text))+c.Around(), e.count(text)
		if got != want {
			if wrong++; wrong <= 10 {
				t.Errorf("%.120q: %d tokens, the engine counts %d", text, got, want)
			}
		}
	}
	if wrong > 0 {
		t.Errorf("%d of %d texts differ", wrong, len(all))
	}
}

// Every text counts exactly as the engine counts it.
func TestCountAsEngine(t *testing.T) {
	for _, m := range []struct {
		file      string
		generates bool
	}{{"aloft-encoder.gguf", false}, {"aloft-lm.gguf", true}, {"babyllama.gguf", true}, {"babyllama.q8.gguf", true}} {
		t.Run(m.file, func(t *testing.T) {
			path := filepath.Join("..", "..", "configs", "models", m.file)
			if strings.HasPrefix(m.file, "baby") {
				if path = filepath.Join(os.Getenv("ALOFT_SHARED"), "models", m.file); os.Getenv("ALOFT_SHARED") == "" {
					t.Skip("ALOFT_SHARED is not set: no BabyLlama")
				}
			}
			compare(t, counterOf(t, path), openEngine(t, path, m.generates), texts(600))
		})
	}
}
