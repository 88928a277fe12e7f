package tokens_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"aloft/backends/tokens"
)

// meta is the metadata of a made-up model, in the order that it is written.
type meta map[string]any

// write makes a GGUF file of it, without tensors.
func (m meta) write(t testing.TB) string {
	var b bytes.Buffer
	put := func(v any) { _ = binary.Write(&b, binary.LittleEndian, v) }
	str := func(s string) { put(uint64(len(s))); b.WriteString(s) }
	b.WriteString("GGUF")
	put(uint32(3))
	put(uint64(0))
	put(uint64(len(m)))
	for key, value := range m {
		str(key)
		switch v := value.(type) {
		case string:
			put(uint32(8))
			str(v)
		case bool:
			put(uint32(7))
			put(v)
		case int64:
			put(uint32(4))
			put(uint32(v))
		case []string:
			put([]uint32{9, 8})
			put(uint64(len(v)))
			for _, s := range v {
				str(s)
			}
		case []float64:
			put([]uint32{9, 6})
			put(uint64(len(v)))
			for _, f := range v {
				put(float32(f))
			}
		case []int64:
			put([]uint32{9, 5})
			put(uint64(len(v)))
			for _, i := range v {
				put(int32(i))
			}
		case []byte:
			put([]uint32{9, 0})
			put(uint64(len(v)))
			put(v)
		default:
			t.Fatalf("%T", v)
		}
	}
	path := filepath.Join(t.TempDir(), "vocabulary.gguf")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func letterOf(b byte) string { return tokens.Written(string([]byte{b})) }

// bpe makes a byte-level vocabulary of merges learned on text as a whole, so that
// they reach over every place where a pre-tokenizer may cut.
func bpe(text string, n int) meta {
	var vocab, merges []string
	for b := range 256 {
		vocab = append(vocab, letterOf(byte(b)))
	}
	var symbols []string
	for i := range len(text) {
		symbols = append(symbols, letterOf(text[i]))
	}
	for len(merges) < n {
		seen := map[[2]string]int{}
		for i := 1; i < len(symbols); i++ {
			seen[[2]string{symbols[i-1], symbols[i]}]++
		}
		best, most := [2]string{}, 0
		for p, k := range seen {
			if joined := p[0] + p[1]; joined == "<s>" || joined == "</s>" || joined == "<|im_start|>" { // llama.cpp knows these
				continue
			}
			if k > most || k == most && p[0]+p[1] < best[0]+best[1] {
				best, most = p, k
			}
		}
		if most < 2 {
			break
		}
		if merged := best[0] + best[1]; !slices.Contains(vocab, merged) {
			vocab = append(vocab, merged)
		}
		merges = append(merges, best[0]+" "+best[1])
		joined := symbols[:0:0]
		for i := 0; i < len(symbols); i++ {
			if i+1 < len(symbols) && symbols[i] == best[0] && symbols[i+1] == best[1] {
				joined = append(joined, best[0]+best[1])
				i++
			} else {
				joined = append(joined, symbols[i])
			}
		}
		symbols = joined
	}
	vocab = append(vocab, "<s>", "<|im_start|>", "<special>")
	kinds := slices.Repeat([]int64{1}, len(vocab))
	kinds[len(kinds)-3], kinds[len(kinds)-2], kinds[len(kinds)-1] = 3, 3, 4
	return meta{"general.architecture": "llama", "llama.context_length": int64(128), "tokenizer.ggml.model": "gpt2",
		"tokenizer.ggml.tokens": vocab, "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.merges": merges,
		"tokenizer.ggml.bos_token_id": int64(len(vocab) - 3), "tokenizer.ggml.eos_token_id": int64(len(vocab) - 3),
	}
}

// Each kind of pre-tokenizer cuts where the engine's does.
func TestPreTokenizersAsEngine(t *testing.T) {
	all := texts(400)
	m := bpe(strings.Join(all, " ")[:12_000], 250)
	for _, pre := range tokens.PreTokenizers() {
		t.Run(pre, func(t *testing.T) {
			m["tokenizer.ggml.pre"] = pre
			path := m.write(t)
			compare(t, counterOf(t, path), openEngine(t, path, true), append(all, "<special> <special>x <s><|im_start|> a<special>"))
		})
	}
}

// pieces makes tokens of a text's parts, with blanks for spaces.
func pieces(r *rand.Rand, text string, n int) (out []string) {
	runes := []rune(strings.ReplaceAll(text, " ", "▁"))
	seen := map[string]bool{}
	for len(out) < n {
		at := r.IntN(len(runes) - 8)
		piece := string(runes[at : at+1+r.IntN(6)])
		// As real ones: no blank after something else.
		if i := strings.LastIndex(piece, "▁"); strings.Trim(piece[:max(i, 0)], "▁") != "" || seen[piece] || strings.Contains(piece, "\x00") {
			continue
		}
		seen[piece] = true
		out = append(out, piece)
	}
	return out
}

// sentencePiece makes a vocabulary of byte tokens and pieces with coarse scores,
// so that many are equal.
func sentencePiece(r *rand.Rand, text, model string) meta {
	vocab, kinds := []string{"<unk>", "<s>", "</s>", "<special>", "▁"}, []int64{2, 3, 3, 4, 1}
	for b := range 256 {
		vocab, kinds = append(vocab, fmt.Sprintf("<0x%02X>", b)), append(kinds, 6)
	}
	for _, p := range pieces(r, text, 800) {
		if !slices.Contains(vocab, p) {
			vocab, kinds = append(vocab, p), append(kinds, 1)
		}
	}
	scores := make([]float64, len(vocab))
	for i := range scores {
		scores[i] = -float64(r.IntN(40))
		if model == "t5" {
			scores[i] = -float64(float32(3 + r.Float64()*8))
		}
	}
	return meta{"general.architecture": "llama", "llama.context_length": int64(128), "tokenizer.ggml.model": model, "tokenizer.ggml.pre": "default",
		"tokenizer.ggml.tokens": vocab, "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.scores": scores,
		"tokenizer.ggml.unknown_token_id": int64(0), "tokenizer.ggml.bos_token_id": int64(1), "tokenizer.ggml.eos_token_id": int64(2),
	}
}

func TestSentencePieceAsEngine(t *testing.T) {
	all := texts(500)
	corpus := strings.Join(all, " ")
	for i, m := range []meta{
		{"tokenizer.ggml.model": "llama"},
		{"tokenizer.ggml.model": "llama", "tokenizer.ggml.add_space_prefix": false, "tokenizer.ggml.add_eos_token": true},
		{"tokenizer.ggml.model": "t5"},
		{"tokenizer.ggml.model": "t5", "tokenizer.ggml.remove_extra_whitespaces": true, "tokenizer.ggml.add_bos_token": true},
		{"tokenizer.ggml.model": "t5", "tokenizer.ggml.add_space_prefix": false, "tokenizer.ggml.remove_extra_whitespaces": false},
		{"tokenizer.ggml.model": "t5", "tokenizer.ggml.precompiled_charsmap": someCharsmap},
	} {
		t.Run(fmt.Sprint(i, m), func(t *testing.T) {
			model := sentencePiece(rand.New(rand.NewPCG(3, uint64(i))), corpus, m["tokenizer.ggml.model"].(string))
			for k, v := range m {
				model[k] = v
			}
			path := model.write(t)
			compare(t, counterOf(t, path), openEngine(t, path, true), append(all, "<special> <special>x  y <s> a<special>", "ＡＢ ﬁ Ａﬁ"))
		})
	}
}

// someCharsmap replaces Ａ by a and ﬁ by "f i".
var someCharsmap = charsmapOf(map[string]string{"Ａ": "a", "ﬁ": "f i"})

// charsmapOf builds a double array by trying offsets.
func charsmapOf(m map[string]string) []byte {
	units, texts := make([]uint32, 1<<12), []byte{0}
	used := map[uint32]bool{0: true}
	type node struct {
		children map[byte]*node
		value    string
	}
	root := &node{children: map[byte]*node{}}
	for from, to := range m {
		n := root
		for i := range len(from) {
			if n.children[from[i]] == nil {
				n.children[from[i]] = &node{children: map[byte]*node{}}
			}
			n = n.children[from[i]]
		}
		n.value = to
	}
	var place func(n *node, at uint32)
	place = func(n *node, at uint32) {
		labels := []byte{}
		if n.value != "" {
			labels = append(labels, 0)
		}
		for b := range n.children {
			labels = append(labels, b)
		}
		off := uint32(1)
		for ; ; off++ {
			free := true
			for _, b := range labels {
				free = free && !used[at^off^uint32(b)]
			}
			if free && off < 1<<21 {
				break
			}
		}
		units[at] |= off << 10
		for _, b := range labels {
			used[at^off^uint32(b)] = true
			if b == 0 {
				units[at] |= 1 << 8
				units[at^off] = uint32(len(texts)) | 1<<31
				texts = append(append(texts, n.value...), 0)
			} else {
				units[at^off^uint32(b)] = uint32(b)
			}
		}
		for b, c := range n.children {
			place(c, at^off^uint32(b))
		}
	}
	place(root, 0)
	out := binary.LittleEndian.AppendUint32(nil, uint32(4*len(units)))
	for _, u := range units {
		out = binary.LittleEndian.AppendUint32(out, u)
	}
	return append(out, texts...)
}

func TestWordPieceAsEngine(t *testing.T) {
	all := texts(500)
	r := rand.New(rand.NewPCG(5, 6))
	vocab := []string{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
	for _, p := range pieces(r, strings.ToLower(strings.Join(all, " ")), 1500) {
		if p = strings.Trim(p, "▁"); p != "" {
			if r.IntN(2) == 0 {
				p = "▁" + p
			}
			if !slices.Contains(vocab, p) {
				vocab = append(vocab, p)
			}
		}
	}
	kinds := slices.Repeat([]int64{1}, len(vocab))
	for i := range 5 {
		kinds[i] = 3
	}
	m := meta{"general.architecture": "bert", "bert.context_length": int64(128), "tokenizer.ggml.model": "bert", "tokenizer.ggml.pre": "default",
		"tokenizer.ggml.tokens": vocab, "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.unknown_token_id": int64(1),
		"tokenizer.ggml.bos_token_id": int64(2), "tokenizer.ggml.cls_token_id": int64(2), "tokenizer.ggml.eos_token_id": int64(3),
		"tokenizer.ggml.seperator_token_id": int64(3)}
	path := m.write(t)
	compare(t, counterOf(t, path), openEngine(t, path, false), all)
}
