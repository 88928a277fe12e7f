package tokens_test

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"aloft/backends/llama"
	"aloft/backends/tokens"
)

type object = map[string]any

// numbered is a vocabulary as tokenizer.json has it.
func numbered(vocab []string) object {
	out := object{}
	for i, t := range vocab {
		out[t] = i
	}
	return out
}

func fromJSON(t testing.TB, f object) *tokens.Counter {
	t.Helper()
	text, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	c, err := tokens.JSON(text)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// agree holds two counters of one vocabulary to each other, on texts of which
// both mean the same.
func agree(t *testing.T, a, b *tokens.Counter, skip func(string) bool) {
	t.Helper()
	n := 0
	for _, text := range texts(500) {
		if strings.Contains(text, "\x00") || skip != nil && skip(text) {
			continue
		}
		n++
		if got, want := a.Count([]byte(text)), b.Count([]byte(text)); got != want {
			t.Errorf("%.100q: %d tokens by tokenizer.json, %d by the GGUF file", text, got, want)
		}
	}
	if n < 100 {
		t.Errorf("compared %d texts", n)
	}
}

// The same vocabulary counts the same from both kinds of files.
func TestJSONAsGGUF(t *testing.T) {
	bytelevel := object{"type": "Sequence", "pretokenizers": []object{
		{"type": "Split", "pattern": object{"Regex": `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`}, "behavior": "Isolated"},
		{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}}}
	t.Run("lm", func(t *testing.T) {
		g, err := llama.ReadGGUF(filepath.Join("..", "..", "configs", "models", "aloft-lm.gguf"))
		if err != nil {
			t.Fatal(err)
		}
		vocab, merges := g.Meta["tokenizer.ggml.tokens"].([]string), g.Meta["tokenizer.ggml.merges"].([]string)
		added := []object{{"id": 0, "content": "<s>", "special": true}, {"id": 1, "content": "</s>", "special": true}}
		post := object{"type": "TemplateProcessing", "single": []object{{"SpecialToken": object{"id": "<s>"}}, {"Sequence": object{"id": "A"}}}}
		f := object{"added_tokens": added, "pre_tokenizer": object{"type": "ByteLevel"}, "post_processor": post,
			"model": object{"type": "BPE", "vocab": numbered(vocab), "merges": merges}}
		c := fromJSON(t, f)
		begins := func(s string) bool { return strings.HasPrefix(s, "<s>") } // llama.cpp drops one of two
		agree(t, c, counterOf(t, filepath.Join("..", "..", "configs", "models", "aloft-lm.gguf")), begins)
		if c.Around() != 1 {
			t.Errorf("%d tokens around a text, want 1", c.Around())
		}
		meta := meta{}
		for k, v := range g.Meta {
			meta[k] = v
		}
		meta["tokenizer.ggml.pre"] = "smaug-bpe"
		other, err := tokens.GGUF(meta)
		if err != nil {
			t.Fatal(err)
		}
		var pairs [][2]string
		for _, m := range merges {
			left, right, _ := strings.Cut(m, " ")
			pairs = append(pairs, [2]string{left, right})
		}
		f["pre_tokenizer"], f["model"].(object)["merges"] = bytelevel, pairs
		agree(t, fromJSON(t, f), other, begins)
	})
	t.Run("encoder", func(t *testing.T) {
		path := filepath.Join("..", "..", "configs", "models", "aloft-encoder.gguf")
		g, err := llama.ReadGGUF(path)
		if err != nil {
			t.Fatal(err)
		}
		var vocab []string
		for _, piece := range g.Meta["tokenizer.ggml.tokens"].([]string) {
			if word, ok := strings.CutPrefix(piece, "▁"); ok {
				vocab = append(vocab, word)
			} else if !strings.HasPrefix(piece, "[") {
				vocab = append(vocab, "##"+piece)
			}
		}
		c := fromJSON(t, object{"normalizer": object{"type": "BertNormalizer", "lowercase": true}, "pre_tokenizer": object{"type": "BertPreTokenizer"},
			"post_processor": object{"type": "BertProcessing"}, "model": object{"type": "WordPiece", "vocab": numbered(vocab), "continuing_subword_prefix": "##", "max_input_chars_per_word": 10_000}})
		agree(t, c, counterOf(t, path), func(s string) bool {
			return strings.ContainsFunc(s, func(r rune) bool { return r >= 0xAC00 && r <= 0xD7A3 })
		})
		if c.Around() != 2 {
			t.Errorf("%d tokens around a text, want 2", c.Around())
		}
	})
	t.Run("unigram", func(t *testing.T) {
		m := sentencePiece(rand.New(rand.NewPCG(9, 9)), strings.Join(texts(300), " "), "t5")
		m["tokenizer.ggml.add_space_prefix"] = true
		m["tokenizer.ggml.token_type"].([]int64)[3] = 1
		same, err := tokens.GGUF(m)
		if err != nil {
			t.Fatal(err)
		}
		var vocab []any
		for i, piece := range m["tokenizer.ggml.tokens"].([]string) {
			if kind := m["tokenizer.ggml.token_type"].([]int64)[i]; kind == 6 || kind == 3 {
				piece = strings.Repeat("\x07", i+2) // in no text
			}
			vocab = append(vocab, []any{piece, m["tokenizer.ggml.scores"].([]float64)[i]})
		}
		c := fromJSON(t, object{"pre_tokenizer": object{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
			"added_tokens": []object{{"content": "<s>"}, {"content": "</s>"}, {"content": "<unk>"}}, "model": object{"type": "Unigram", "unk_id": 0, "vocab": vocab}})
		agree(t, c, same, func(s string) bool {
			return strings.HasPrefix(s, " ") || strings.Contains(s, "▁") || strings.Contains(s, "<s>") || strings.Contains(s, "</s>")
		})
	})
}

// SentencePiece's BPE from merges, as Llama 2's tokenizer.json has it.
func TestJSONBlankBPE(t *testing.T) {
	f := object{"normalizer": object{"type": "Sequence", "normalizers": []object{{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": object{"String": " "}, "content": "▁"}}},
		"model": object{"type": "BPE", "byte_fallback": true, "vocab": numbered([]string{"▁", "a", "b", "c", "ab", "▁a", "abc", "▁ab"}),
			"merges": []string{"a b", "▁ a", "ab c", "▁ ab"}}}
	c := fromJSON(t, f)
	for text, want := range map[string]int{"a": 1, "ab": 1, "abc": 2, "b": 2, "a b": 3, "é": 3, "abc abc": 4, "": 0} {
		if got := c.Count([]byte(text)); got != want {
			t.Errorf("%q: %d tokens, want %d", text, got, want)
		}
	}
}

// What is damaged, or not known, is an error and no wrong count.
func TestRefused(t *testing.T) {
	vocab := numbered([]string{"a", "b"})
	for want, text := range map[string]string{
		"is no tokenizer.json: it has no model": `{"version":"1.0"}`, "is no tokenizer.json: unexpected end": `{"model":`, "is no tokenizer.json: invalid character": "GGUF",
	} {
		if _, err := tokens.JSON([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	for want, f := range map[string]object{
		`kind "WordLevel" is not known`:        {"model": object{"type": "WordLevel", "vocab": vocab}},
		"merge 0":                              {"pre_tokenizer": object{"type": "ByteLevel"}, "model": object{"type": "BPE", "vocab": vocab, "merges": []string{"ab"}}},
		"regular expression":                   {"pre_tokenizer": object{"type": "Sequence", "pretokenizers": []object{{"type": "Split", "pattern": object{"Regex": "x"}, "behavior": "Isolated"}, {"type": "ByteLevel", "use_regex": false}}}, "model": object{"type": "BPE", "vocab": vocab, "merges": []string{}}},
		"of no tokens":                         {"model": object{"type": "BPE", "vocab": vocab, "merges": []string{"a b"}}},
		"as BERT has it":                       {"model": object{"type": "WordPiece", "vocab": vocab}},
		"charsmap is damaged":                  {"normalizer": object{"type": "Precompiled", "precompiled_charsmap": "AAAA"}, "model": object{"type": "Unigram", "vocab": []any{[]any{"a", 0}}}},
		"no token with its score":              {"model": object{"type": "Unigram", "vocab": []any{[]any{0, "a"}}}},
		"a vocabulary of 0 tokens":             {"model": object{"type": "BPE", "vocab": object{}, "merges": []string{}}},
		`a normalizer "Strip" for unigram`:     {"normalizer": object{"type": "Strip"}, "model": object{"type": "Unigram", "vocab": []any{[]any{"a", 0}}}},
		`a pre-tokenizer "Whitespace" for BPE`: {"pre_tokenizer": object{"type": "Whitespace"}, "model": object{"type": "BPE", "vocab": vocab, "merges": []string{}}},
		"puts a space before":                  {"pre_tokenizer": object{"type": "ByteLevel", "add_prefix_space": true}, "model": object{"type": "BPE", "vocab": vocab, "merges": []string{}}},
	} {
		text, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tokens.JSON(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	for want, m := range map[string]meta{
		"no tokenizer.ggml.tokens":         {"tokenizer.ggml.model": "bert"},
		"no tokenizer.ggml.model":          {"tokenizer.ggml.tokens": []string{"a"}},
		`kind "rwkv" is not known`:         {"tokenizer.ggml.model": "rwkv", "tokenizer.ggml.tokens": []string{"a"}},
		`pre-tokenizer "new" is not known`: {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "new", "tokenizer.ggml.tokens": []string{"a"}},
		"no tokenizer.ggml.merges":         {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": []string{"a"}},
		"byte-level vocabulary":            {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": []string{"a"}, "tokenizer.ggml.merges": []string{"a 你"}},
		"2 tokens, 1 scores":               {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": []string{"a", "b"}, "tokenizer.ggml.scores": []float64{0}},
	} {
		if _, err := tokens.GGUF(m); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", m, err, want)
		}
	}
}

// A text of any length takes bounded work, and what is beyond is in proportion.
func TestLongTexts(t *testing.T) {
	for name, c := range benchmarked(t) {
		for _, text := range []string{"a", "日本", " ", "zq1 "} {
			mega := []byte(strings.Repeat(text, (3<<20)/len(text)))
			third := c.Count(mega[:len(mega)/3/len(text)*len(text)])
			if got := c.Count(mega); got < third*29/10 || got > third*31/10 {
				t.Errorf("%s: %q: %d tokens, and %d for a third", name, text, got, third)
			}
		}
	}
}

// underRace is set in a race build.
var underRace bool

func TestCountAllocates(t *testing.T) {
	if underRace {
		t.Skip("under the race detector pools forget: allocations cannot be counted")
	}
	for name, c := range benchmarked(t) {
		text := []byte(prose + "naïve 你好 \n")
		if n := testing.AllocsPerRun(200, func() { c.Count(text) }); n > 0.1 {
			t.Errorf("%s: %v allocations a count", name, n)
		}
	}
}

// Any file is an error or a counter that counts whatever text.
func FuzzJSON(f *testing.F) {
	f.Add([]byte(`{"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]},"pre_tokenizer":{"type":"ByteLevel"}}`), []byte("ab a"))
	f.Add([]byte(`{"model":{"type":"BPE","byte_fallback":true,"vocab":{"▁":0,"b":1,"▁b":2},"merges":[["▁","b"]]},"pre_tokenizer":{"type":"Metaspace"}}`), []byte(" b é"))
	f.Add([]byte(`{"model":{"type":"WordPiece","vocab":{"a":0,"##b":1}},"normalizer":{"type":"BertNormalizer"},"pre_tokenizer":{"type":"BertPreTokenizer"},"added_tokens":[{"content":"[X]"}]}`), []byte("ab [X] É 각"))
	f.Add([]byte(`{"model":{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0],["▁a",-1.5]]},"normalizer":{"type":"Precompiled","precompiled_charsmap":"BAAAAAAAAAAA"}}`), []byte("a  b"))
	f.Fuzz(func(t *testing.T, file, text []byte) {
		c, err := tokens.JSON(file)
		if err != nil {
			return
		}
		if n := c.Count(text); n < 0 || n > 16*len(text)+16 {
			t.Errorf("%d tokens in %d bytes", n, len(text))
		}
	})
}

// The same for GGUF metadata, by way of a real head.
func FuzzGGUF(f *testing.F) {
	path := filepath.Join(f.TempDir(), "m.gguf")
	for _, m := range []meta{bpe(prose, 20), sentencePiece(rand.New(rand.NewPCG(1, 1)), strings.Join(texts(80), " "), "t5")} {
		m["tokenizer.ggml.pre"], m["tokenizer.ggml.precompiled_charsmap"] = "qwen2", someCharsmap[:64]
		file, err := os.ReadFile(m.write(f))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(file, []byte("In the 1 beginning ＡＢ"))
	}
	f.Fuzz(func(t *testing.T, file, text []byte) {
		if err := os.WriteFile(path, file, 0o600); err != nil {
			t.Fatal(err)
		}
		g, err := llama.ReadGGUF(path)
		if err != nil {
			return
		}
		c, err := tokens.GGUF(g.Meta)
		if err != nil {
			return
		}
		if n := c.Count(text); n < 0 || n > 16*len(text)+16 {
			t.Errorf("%d tokens in %d bytes", n, len(text))
		}
	})
}
