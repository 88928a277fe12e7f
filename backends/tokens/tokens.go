// Package tokens counts the tokens of a text as a model's own tokenizer would,
// without making them: byte-level BPE (GPT-2, Llama 3, Qwen), SentencePiece (BPE as
// Llama 2, unigram as XLM-RoBERTa) and WordPiece (BERT), from the vocabulary in a
// GGUF file or in a tokenizer.json.
//
// A Counter is made once and then only read: any number of goroutines may count.
package tokens

import (
	"bytes"
	"unicode/utf8"
)

// maxExact is up to how many bytes of a text are counted. What is longer is
// counted so far and the rest in proportion: counting happens on the way of every
// request, and takes some 10 ms for that many.
const maxExact = 1 << 20

// Counter is a backends.Counter.
type Counter struct {
	model  counter
	added  added
	around int  // tokens that the engine puts around each prompt
	bos    bool // of them one before it, which a text may also spell out
	nul    bool // NUL is read as U+FFFD, since C ends a text there
}

// counter counts what is between special tokens; first says that nothing is
// before it but special tokens.
type counter interface {
	count(s *scratch, text []byte, first bool) int
}

// Around returns how many tokens the engine adds to each prompt, as the beginning
// and the end of a sequence. Count leaves them out.
func (c *Counter) Around() int { return c.around }

// Count implements backends.Counter.
func (c *Counter) Count(text []byte) int {
	if len(text) == 0 {
		return 0
	}
	if len(text) > maxExact {
		head := maxExact
		for head > 0 && !utf8.RuneStart(text[head]) {
			head--
		}
		return int(float64(c.Count(text[:head])) * float64(len(text)) / float64(head))
	}
	if !utf8.Valid(text) {
		text = bytes.ToValidUTF8(text, []byte("\uFFFD"))
	}
	if c.nul && bytes.IndexByte(text, 0) >= 0 {
		text = bytes.ReplaceAll(text, []byte{0}, []byte("\uFFFD"))
	}
	s := scratches.Get().(*scratch)
	n := c.parts(s, text)
	s.release()
	return n
}

// parts counts the special tokens that a text spells out, and what is between.
func (c *Counter) parts(s *scratch, text []byte) int {
	n, first := 0, true
	for from := text; len(text) > 0; {
		at, size, special := c.added.find(text)
		if at > 0 {
			n += c.model.count(s, text[:at], first)
			first = false
		}
		if size > 0 {
			if n++; c.bos && at == 0 && len(text) == len(from) && special == c.added.bos {
				n-- // the engine's own, which it does not put there twice
			}
			first = true
		}
		text = text[at+size:]
	}
	return n
}

// added are tokens that are found in a text before all else.
type added struct {
	words  trie
	firsts [256]bool
	some   bool
	bos    int // index of the one that begins a sequence; -1 = none
}

func newAdded(words []string, bos string) added {
	a := added{bos: -1}
	if len(words) == 0 {
		return a
	}
	a.some, a.words = true, newTrie(words)
	for i, w := range words {
		a.firsts[w[0]] = true
		if w == bos {
			a.bos = i
		}
	}
	return a
}

// find returns where the first of them is, how long, and which; without one the
// end of the text and 0.
func (a *added) find(text []byte) (at, size, which int) {
	if !a.some {
		return len(text), 0, -1
	}
	for at, b := range text {
		if a.firsts[b] {
			if n, which := a.words.longest(text[at:]); n > 0 {
				return at, n, which
			}
		}
	}
	return len(text), 0, -1
}
