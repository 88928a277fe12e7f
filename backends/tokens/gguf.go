package tokens

import (
	"errors"
	"fmt"
	"strings"
)

// The kinds of tokens in a GGUF file (ggml's docs/gguf.md, tokenizer.ggml.token_type).
const (
	normal      = 1
	unknown     = 2
	control     = 3
	userDefined = 4
	unused      = 5
)

// vocabulary is what a file says about its tokens; kinds and scores are as long
// as tokens.
type vocabulary struct {
	tokens []string
	kinds  []int64
	scores []float64
}

// special reports whether a token stands for no text.
func (v *vocabulary) special(i int) bool { return v.kinds[i] == control || v.kinds[i] == unknown }

// maxTokens bounds a vocabulary; the largest have some 260,000.
const maxTokens = 1 << 21

// preTokenizers are the kinds of tokenizer.ggml.pre that are known, and whether a
// word that is a token wins over the merges.
var preTokenizers = map[string]struct {
	cut   cutter
	whole bool
}{
	"gpt-2": {gpt2, false}, "phi-2": {gpt2, false}, "mpt": {gpt2, false}, "olmo": {gpt2, false}, "jais": {gpt2, false},
	"jina-es": {gpt2, false}, "jina-de": {gpt2, false}, "jina-v2-es": {gpt2, false}, "jina-v2-de": {gpt2, false},
	"jina-v1-en": {gpt2, false}, "jina-v2-code": {gpt2, false}, "roberta-bpe": {gpt2, false}, "modern-bert": {gpt2, false},
	"exaone4": {gpt2, false}, "trillion": {gpt2, false}, "gigachat": {gpt2, false}, "mellum": {gpt2, false},
	"starcoder": {starcoder, false}, "refact": {starcoder, false}, "command-r": {starcoder, false}, "smollm": {starcoder, false},
	"codeshell": {starcoder, false}, "exaone": {starcoder, false}, "minerva-7b": {starcoder, false},
	"llama3": {llama3, true}, "llama-v3": {llama3, true}, "llama-bpe": {llama3, true}, "falcon3": {llama3, true},
	"pixtral": {llama3, true}, "lfm2": {llama3, true}, "dbrx": {llama3, false}, "smaug-bpe": {llama3, false},
	"glm4": {llama3, false}, "chatglm-bpe": {llama3, false},
	"qwen2": {qwen2, false}, "deepseek-r1-qwen": {qwen2, false}, "stablelm2": {qwen2, false}, "megrez": {qwen2, false},
	"hunyuan": {qwen2, false}, "grok-2": {qwen2, false},
	"qwen35": {qwen35, false}, "gpt-4o": {gpt4o, false}, "llama4": {gpt4o, false}, "tekken": {tekken, true},
}

// GGUF makes the counter of a model from its file's metadata, as
// backends/llama.ReadGGUF returns it: integers as int64 and so on. Where it does
// not know the kind of tokenizer it says so, rather than to count wrongly.
func GGUF(meta map[string]any) (*Counter, error) {
	g := metadata(meta)
	v, err := g.vocabulary()
	if err != nil {
		return nil, err
	}
	c := Counter{nul: true}
	switch kind := g.text("model"); kind {
	case "bert":
		c.model = bertGGUF(g, v)
	case "llama":
		s := newSentence(v, newJoiner(v, true).scored(v))
		s.prefix = g.flag("add_space_prefix", true)
		c.model = s
	case "t5":
		c.model, err = unigramGGUF(g, v)
	case "gpt2":
		c.model, err = byteLevelGGUF(g, v)
	case "":
		err = errors.New("no tokenizer.ggml.model")
	default:
		err = fmt.Errorf("a tokenizer of kind %q is not known", kind)
	}
	if err != nil {
		return nil, err
	}
	c.around, c.bos = g.around()
	c.added = g.added(v)
	return &c, nil
}

// around is how many tokens llama.cpp puts around a prompt, and whether one of
// them is before it. WordPiece always has both.
func (g metadata) around() (n int, bos bool) {
	kind := g.text("model")
	if kind == "bert" {
		return 2, false
	}
	bos = g.flag("add_bos_token", kind == "llama" || preTokenizers[g.text("pre")].whole)
	if bos {
		n++
	}
	if g.flag("add_eos_token", kind == "t5") {
		n++
	}
	return n, bos
}

// metadata is what a GGUF file says.
type metadata map[string]any

func (g metadata) text(key string) string {
	s, _ := g["tokenizer.ggml."+key].(string)
	return s
}

func (g metadata) flag(key string, otherwise bool) bool {
	if b, ok := g["tokenizer.ggml."+key].(bool); ok {
		return b
	}
	return otherwise
}

func (g metadata) vocabulary() (*vocabulary, error) {
	v := &vocabulary{}
	var ok bool
	if v.tokens, ok = g["tokenizer.ggml.tokens"].([]string); !ok || len(v.tokens) == 0 {
		return nil, errors.New("no tokenizer.ggml.tokens")
	}
	n := len(v.tokens)
	if n > maxTokens {
		return nil, fmt.Errorf("a vocabulary of %d tokens, want at most %d: damaged", n, maxTokens)
	}
	switch scores := g["tokenizer.ggml.scores"].(type) {
	case []float64:
		v.scores = scores
	case []int64:
		for _, s := range scores {
			v.scores = append(v.scores, float64(s))
		}
	default:
		v.scores = make([]float64, n)
	}
	if v.kinds, ok = g["tokenizer.ggml.token_type"].([]int64); !ok {
		v.kinds = make([]int64, n)
		for i := range v.kinds {
			v.kinds[i] = normal
		}
	}
	if len(v.scores) < n || len(v.kinds) < n {
		return nil, fmt.Errorf("%d tokens, %d scores and %d types: damaged", n, len(v.scores), len(v.kinds))
	}
	v.scores, v.kinds = v.scores[:n], v.kinds[:n]
	return v, nil
}

// added are the tokens that llama.cpp finds in a text first: what users have
// defined, and, in prompts of models that generate, those that control.
func (g metadata) added(v *vocabulary) added {
	generates := !encoder(g)
	var words []string
	bos := ""
	if id, ok := g["tokenizer.ggml.bos_token_id"].(int64); ok && id >= 0 && id < int64(len(v.tokens)) {
		bos = v.tokens[id]
	}
	for i, t := range v.tokens {
		if t != "" && (v.kinds[i] == userDefined || generates && v.special(i)) {
			words = append(words, t)
		}
	}
	return newAdded(words, bos)
}

// encoder reports whether the model only embeds.
func encoder(g metadata) bool {
	arch, _ := g["general.architecture"].(string)
	causal, said := g[arch+".attention.causal"].(bool)
	return said && !causal || strings.Contains(arch, "bert")
}

func bertGGUF(g metadata, v *vocabulary) *wordPiece {
	// A token that begins a word has a blank before it here. llama.cpp puts one
	// before each word and looks for the longest token; a word may so begin with a
	// blank of its own.
	var head, rest []string
	for _, t := range v.tokens {
		if word, ok := strings.CutPrefix(t, blank); ok && word != "" {
			head = append(head, word)
		}
		if t != "" {
			rest = append(rest, t)
		}
	}
	w := newWordPiece(head, rest)
	w.lower = g.flag("normalizer.lowercase", true)
	w.strip = g.flag("normalizer.strip_accents", w.lower)
	return w
}

func unigramGGUF(g metadata, v *vocabulary) (counter, error) {
	s := newSentence(v, newUnigram(v))
	s.prefix, s.always = g.flag("add_space_prefix", false), true
	s.squeeze = g.flag("remove_extra_whitespaces", false)
	data, _ := g["tokenizer.ggml.precompiled_charsmap"].([]int64)
	text := make([]byte, len(data))
	for i, b := range data {
		text[i] = byte(b)
	}
	var err error
	s.charsmap, err = newCharsmap(text)
	return s, err
}

func byteLevelGGUF(g metadata, v *vocabulary) (counter, error) {
	pre := g.text("pre")
	how, ok := preTokenizers[pre]
	if !ok {
		return nil, fmt.Errorf("pre-tokenizer %q is not known", pre)
	}
	merges, _ := g["tokenizer.ggml.merges"].([]string)
	if len(merges) == 0 {
		return nil, errors.New("no tokenizer.ggml.merges")
	}
	pairs, err := sides(merges)
	if err != nil {
		return nil, err
	}
	return newByteLevel(v, pairs, how.cut, how.whole)
}
