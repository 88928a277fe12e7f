package tokens

import (
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// wordPiece is BERT's tokenizer: words at white space and around punctuation,
// then from each word's beginning the longest token. A word that does not come
// out even is one unknown token.
type wordPiece struct {
	head    trie // tokens that begin a word, without what marks them
	rest    trie
	lower   bool
	strip   bool // accents
	chinese bool // a Chinese character is a word
	// whole says to take characters apart as Hugging Face does. llama.cpp keeps
	// only the first of what one decomposes into, which shows with Hangul.
	whole   bool
	longest int // characters of a word; longer ones are unknown. 0 = any number
}

// newWordPiece takes the tokens that begin a word and those that go on.
func newWordPiece(head, rest []string) *wordPiece {
	return &wordPiece{head: newTrie(head), rest: newTrie(rest), lower: true, strip: true, chinese: true}
}

// plain are the ASCII characters that only need to be written small.
var plain = func() (t [utf8.RuneSelf]byte) {
	for i := range t {
		if r := rune(i); unicode.IsLetter(r) || unicode.IsNumber(r) {
			t[i] = byte(r)
		}
	}
	return t
}()

func (w *wordPiece) count(s *scratch, text []byte, _ bool) int {
	n := 0
	word := s.word[:0]
	flush := func() {
		if len(word) > 0 {
			n += w.pieces(word)
			word = word[:0]
		}
	}
	single := func(r rune) {
		flush()
		word = utf8.AppendRune(word, r)
		flush()
	}
	for len(text) > 0 {
		if b := text[0]; b < utf8.RuneSelf {
			text = text[1:]
			switch {
			case plain[b] != 0:
				if b >= 'A' && b <= 'Z' && w.lower {
					b += 'a' - 'A'
				}
				word = append(word, b)
			case ascii[b] == space:
				flush()
			case b > ' ' && b < 0x7F: // the rest are controls, which vanish
				single(rune(b))
			}
			continue
		}
		r, size := utf8.DecodeRune(text)
		if w.strip {
			w.each(text[:size], r, func(r rune) { word = w.add(word, r, flush, single) })
		} else {
			word = w.add(word, r, flush, single)
		}
		text = text[size:]
	}
	flush()
	s.word = word[:0]
	return n
}

// each calls f for what a character decomposes into.
func (w *wordPiece) each(text []byte, r rune, f func(rune)) {
	if r >= 0xAC00 && r <= 0xD7A3 { // Hangul syllables, by arithmetic (Unicode 3.12)
		const vowels, tails = 21, 28
		i := r - 0xAC00
		f(0x1100 + i/(vowels*tails))
		if w.whole {
			f(0x1161 + i%(vowels*tails)/tails)
			if tail := i % tails; tail > 0 {
				f(0x11A7 + tail)
			}
		}
		return
	}
	d := norm.NFD.Properties(text).Decomposition()
	if len(d) == 0 {
		f(r)
		return
	}
	for len(d) > 0 {
		r, n := utf8.DecodeRune(d)
		f(r)
		if d = d[n:]; !w.whole {
			return
		}
	}
}

// add puts a character beyond ASCII where it belongs.
func (w *wordPiece) add(word []byte, r rune, flush func(), single func(rune)) []byte {
	switch {
	case unicode.IsSpace(r):
		flush()
		return word[:0]
	case r == utf8.RuneError, unicode.Is(unicode.C, r):
		return word
	case w.strip && (unicode.Is(unicode.Mn, r) || !w.whole && unicode.IsMark(r)):
		return word
	}
	if w.lower {
		r = unicode.ToLower(r)
	}
	if unicode.IsPunct(r) || w.chinese && isChinese(r) {
		single(r)
		return word[:0]
	}
	return utf8.AppendRune(word, r)
}

// isChinese follows BERT's own list of blocks.
func isChinese(r rune) bool {
	return r >= 0x4E00 && r <= 0x9FFF || r >= 0x3400 && r <= 0x4DBF || r >= 0x20000 && r <= 0x2A6DF ||
		r >= 0x2A700 && r <= 0x2B81F || r >= 0x2B920 && r <= 0x2CEAF || r >= 0xF900 && r <= 0xFAFF || r >= 0x2F800 && r <= 0x2FA1F
}

// pieces is how many tokens a word comes to.
func (w *wordPiece) pieces(word []byte) int {
	if w.longest > 0 && len(word) > w.longest && utf8.RuneCount(word) > w.longest {
		return 1
	}
	size, _ := w.head.longest(word)
	n := 0
	for ; size > 0; size, _ = w.rest.longest(word) {
		n++
		if word = word[size:]; len(word) == 0 {
			return n
		}
	}
	return 1
}
