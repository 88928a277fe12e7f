package tokens

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// byteLevel is GPT-2's BPE over bytes: the text is cut into words, and each
// word's bytes are joined by the merges.
type byteLevel struct {
	cut    cutter
	bytes  [256]uint32 // the symbol of each byte
	merges merger
	// one holds the words that come to a single token, as most do: one lookup
	// instead of a merge.
	one     map[string]struct{}
	longest int // of them
}

// printable are the characters that byte-level vocabularies write bytes as:
// itself where it is printable Latin-1, else the next from U+0100 on.
var printable = func() (to [256]rune) {
	n := rune(0x100)
	for b := range to {
		switch {
		case b >= '!' && b <= '~', b >= 0xA1 && b <= 0xAC, b >= 0xAE:
			to[b] = rune(b)
		default:
			to[b] = n
			n++
		}
	}
	return to
}()

var unprintable = func() map[rune]byte {
	m := map[rune]byte{}
	for b, r := range printable {
		m[r] = byte(b)
	}
	return m
}()

// raw is the bytes that a token of a byte-level vocabulary stands for.
func raw(token string) (string, bool) {
	out := make([]byte, 0, len(token))
	for _, r := range token {
		b, ok := unprintable[r]
		if !ok {
			return "", false
		}
		out = append(out, b)
	}
	return string(out), true
}

// newByteLevel builds the counter; whole words win over merges where the model
// says so. split gives the two sides of each merge.
func newByteLevel(v *vocabulary, merges [][2]string, cut cutter, ignoreMerges bool) (*byteLevel, error) {
	b := &byteLevel{cut: cut, one: make(map[string]struct{}, len(v.tokens))}
	known := make(map[string]bool, len(v.tokens))
	for i, t := range v.tokens {
		if text, ok := raw(t); ok && !v.special(i) {
			known[text] = true
		}
	}
	ids := make(map[string]uint32, len(known))
	intern := func(text string) uint32 {
		id, ok := ids[text]
		if !ok {
			id = uint32(len(ids))
			ids[text] = id
			b.merges.weight = append(b.merges.weight, weigh(text, known))
		}
		return id
	}
	for i := range b.bytes {
		b.bytes[i] = intern(string([]byte{byte(i)}))
	}
	b.merges.pairs = newTable(len(merges))
	for rank, m := range merges {
		left, ok := raw(m[0])
		right, also := raw(m[1])
		if !ok || !also || left == "" || right == "" {
			return nil, fmt.Errorf("merge %d (%q) is of no byte-level vocabulary: damaged", rank, m)
		}
		b.merges.pairs.put(pair(intern(left), intern(right)), pair(uint32(rank), intern(left+right)))
	}
	s := &scratch{}
	for text := range known {
		if ignoreMerges || b.merged(s, []byte(text)) == 1 {
			b.one[text] = struct{}{}
			b.longest = max(b.longest, len(text))
		}
	}
	return b, nil
}

// weigh is what a symbol counts for. Of one that is no token llama.cpp tries
// each byte of how it is written.
func weigh(text string, known map[string]bool) uint8 {
	if known[text] {
		return 1
	}
	n := 0
	for i := range len(text) {
		if r := printable[text[i]]; r < utf8.RuneSelf && known[string(rune(text[i]))] {
			n++
		}
	}
	return uint8(min(n, 255))
}

func (b *byteLevel) merged(s *scratch, word []byte) int {
	s.ids = s.ids[:0]
	for _, c := range word {
		s.ids = append(s.ids, b.bytes[c])
	}
	return b.merges.count(s)
}

func (b *byteLevel) count(s *scratch, text []byte, _ bool) int {
	n := 0
	for len(text) > 0 {
		size := b.cut.part(text)
		part := text[:size]
		for text = text[size:]; len(part) > 0; part = part[size:] {
			size = b.cut.next(part)
			n += b.wordTokens(s, part[:size])
		}
	}
	return n
}

func (b *byteLevel) wordTokens(s *scratch, word []byte) int {
	if len(word) <= b.longest {
		if _, ok := b.one[string(word)]; ok {
			return 1
		}
	}
	return b.merged(s, word)
}

// sides splits merges as files write them, "left right".
func sides(merges []string) ([][2]string, error) {
	out := make([][2]string, len(merges))
	for i, m := range merges {
		at := -1
		if len(m) > 1 {
			at = strings.IndexByte(m[1:], ' ') + 1 // a side may begin with a space
		}
		if at < 1 {
			return nil, fmt.Errorf("merge %d (%.40q) is no pair: damaged", i, m)
		}
		out[i] = [2]string{m[:at], m[at+1:]}
	}
	return out, nil
}
