package tokens

import (
	"bytes"
	"fmt"
	"slices"
	"unicode/utf8"
)

// blank is what SentencePiece writes for a space.
const blank = "▁"

// sentence is a SentencePiece vocabulary: over the whole text, with spaces
// written as blank. Where no token goes on after a blank that follows something
// else, which no common model has, the text falls into words that are counted
// each for itself.
type sentence struct {
	model  segmenter
	prefix bool // a space goes before the text
	always bool // and before what follows a special token
	words  bool // the text falls into words
	// unlessThere: not where one is already.
	unlessThere bool
	squeeze     bool // each word has one space before it, and there are no others
	single      bool // several spaces are one
	one         map[string]struct{}
	longest     int
	charsmap    *charsmap
}

// segmenter counts the tokens of a text, or of a word.
type segmenter interface {
	tokens(s *scratch, text []byte) int
}

// newSentence tries every token: those that come to one token, alone and whole,
// need no work when they are a word.
func newSentence(v *vocabulary, m segmenter) *sentence {
	out := &sentence{model: m, words: slices.Contains(v.tokens, blank), one: map[string]struct{}{}}
	for i, t := range v.tokens {
		if at := lastBlank(t); at > 0 && !v.special(i) {
			out.words = false
		}
	}
	s := &scratch{}
	for i, t := range v.tokens {
		if t != "" && !v.special(i) && out.model.tokens(s, []byte(t)) == 1 {
			out.one[t] = struct{}{}
			out.longest = max(out.longest, len(t))
		}
	}
	return out
}

// lastBlank is where the last blank is that follows something else; 0 = nowhere.
func lastBlank(token string) int {
	before := false
	for i, r := range token {
		if r == '▁' && before {
			return i
		}
		before = r != '▁'
	}
	return 0
}

func (c *sentence) count(s *scratch, text []byte, first bool) int {
	if c.charsmap != nil {
		s.word = c.charsmap.normalize(s.word[:0], text)
		text = s.word
	}
	out := s.text[:0]
	if c.squeeze {
		out = squeezed(out, text)
	} else {
		if c.prefix && (first || c.always) && !(c.unlessThere && startsBlank(text)) {
			out = append(out, blank...)
		}
		for i, b := range text {
			switch {
			case b != ' ':
				out = append(out, b)
			case !c.single || i == 0 || text[i-1] != ' ':
				out = append(out, blank...)
			}
		}
	}
	s.text = out
	n := 0
	for len(out) > 0 {
		size := len(out)
		if c.words {
			size = wordEnd(out)
		}
		n += c.wordTokens(s, out[:size])
		out = out[size:]
	}
	return n
}

func startsBlank(text []byte) bool {
	return len(text) > 0 && text[0] == ' ' || bytes.HasPrefix(text, []byte(blank))
}

func (c *sentence) wordTokens(s *scratch, word []byte) int {
	if len(word) <= c.longest {
		if _, ok := c.one[string(word)]; ok {
			return 1
		}
	}
	return c.model.tokens(s, word)
}

// wordEnd is the length of the blanks that text begins with and what follows them.
func wordEnd(text []byte) int {
	at := 0
	for bytes.HasPrefix(text[at:], []byte(blank)) {
		at += len(blank)
	}
	if n := bytes.Index(text[at:], []byte(blank)); n >= 0 {
		return at + n
	}
	return len(text)
}

// squeezed appends text with one blank before each word and none elsewhere.
func squeezed(dst, text []byte) []byte {
	before := byte(' ')
	for _, b := range text {
		if b != ' ' {
			if before == ' ' {
				dst = append(dst, blank...)
			}
			dst = append(dst, b)
		}
		before = b
	}
	return dst
}

// joiner is a SentencePiece model of type BPE: neighbours are joined whose text
// together is a token, the one with the best score first. A character that is no
// token counts for its bytes.
type joiner struct {
	ascii  [utf8.RuneSelf]uint32
	chars  map[rune]uint32
	merges merger
	ids    map[string]uint32 // while it is made
}

// strange are the ids of characters that are no token, by their length.
const strange = 5

// newJoiner knows the tokens, and not yet which may be joined. A character that
// is no token counts for its bytes, where those are tokens, or for 1.
func newJoiner(v *vocabulary, bytesToo bool) *joiner {
	j := &joiner{chars: map[rune]uint32{}, ids: make(map[string]uint32, len(v.tokens))}
	for n := range strange {
		w := n
		if !bytesToo {
			w = 1
		}
		j.merges.weight = append(j.merges.weight, uint8(w))
	}
	add := func(text string, weight uint8) uint32 {
		id := uint32(len(j.merges.weight))
		j.ids[text] = id
		j.merges.weight = append(j.merges.weight, weight)
		return id
	}
	for _, t := range v.tokens {
		if _, ok := j.ids[t]; !ok && t != "" {
			add(t, 1)
		}
	}
	for i := range j.ascii {
		j.ascii[i] = 1
	}
	for _, t := range v.tokens {
		for _, r := range t {
			if j.chars[r] != 0 {
				continue
			}
			id, ok := j.ids[string(r)]
			if !ok { // no token, but may become part of one
				id = add(string(r), j.merges.weight[utf8.RuneLen(r)])
			}
			if j.chars[r] = id; r < utf8.RuneSelf {
				j.ascii[r] = id
			}
		}
	}
	return j
}

// scored joins what together is a token, the best score first.
func (j *joiner) scored(v *vocabulary) *joiner {
	pairs := 0
	for _, t := range v.tokens {
		cuts(t, j.ids, func(left, right uint32) { pairs++ })
	}
	j.merges.pairs = newTable(pairs)
	ranks := ranking(v.scores)
	for i, t := range v.tokens {
		cuts(t, j.ids, func(left, right uint32) {
			j.merges.pairs.put(pair(left, right), pair(ranks[i], j.ids[t]))
		})
	}
	j.ids = nil
	return j
}

// ranked joins by a list of merges.
func (j *joiner) ranked(merges [][2]string) error {
	j.merges.pairs = newTable(len(merges))
	for rank, m := range merges {
		left, ok := j.ids[m[0]]
		right, also := j.ids[m[1]]
		whole, too := j.ids[m[0]+m[1]]
		if !ok || !also || !too {
			return fmt.Errorf("merge %d (%.80q) is of no tokens: damaged", rank, m)
		}
		j.merges.pairs.put(pair(left, right), pair(uint32(rank), whole))
	}
	j.ids = nil
	return nil
}

// cuts calls f for each way to cut a token into two.
func cuts(token string, ids map[string]uint32, f func(left, right uint32)) {
	for i := range token {
		if left, ok := ids[token[:i]]; ok {
			if right, ok := ids[token[i:]]; ok {
				f(left, right)
			}
		}
	}
}

// ranking numbers scores from the best; equal ones have the same number.
func ranking(scores []float64) []uint32 {
	order := make([]int, len(scores))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		switch {
		case scores[a] > scores[b]:
			return -1
		case scores[a] < scores[b]:
			return 1
		}
		return 0
	})
	out := make([]uint32, len(scores))
	for i, at := range order {
		if i > 0 {
			out[at] = out[order[i-1]]
			if scores[at] != scores[order[i-1]] {
				out[at]++
			}
		}
	}
	return out
}

func (j *joiner) tokens(s *scratch, text []byte) int {
	s.ids = s.ids[:0]
	for len(text) > 0 {
		if b := text[0]; b < utf8.RuneSelf {
			s.ids = append(s.ids, j.ascii[b])
			text = text[1:]
			continue
		}
		r, n := utf8.DecodeRune(text)
		id, ok := j.chars[r]
		if !ok {
			id = uint32(n)
		}
		s.ids = append(s.ids, id)
		text = text[n:]
	}
	return j.merges.count(s)
}

// unigram is a SentencePiece model of type unigram: the cut into tokens with the
// best sum of scores (Viterbi). Characters that are no token are one token
// together with such neighbours.
type unigram struct {
	words   trie
	scores  []float64
	unknown float64
	bytes   bool // such a character counts for its bytes instead
}

// path is the best way to a place in a text.
type path struct {
	score   float64
	from    int32
	unknown bool
}

// unknownPenalty is what SentencePiece takes off the worst score of all.
const unknownPenalty = 10

func newUnigram(v *vocabulary) *unigram {
	u := &unigram{}
	var words []string
	worst := 0.0
	for i, t := range v.tokens {
		switch v.kinds[i] {
		case normal:
			worst = min(worst, v.scores[i])
			words, u.scores = append(words, t), append(u.scores, v.scores[i])
		case userDefined:
			words, u.scores = append(words, t), append(u.scores, 0)
		case unused:
			words, u.scores = append(words, t), append(u.scores, v.scores[i])
		}
	}
	u.words, u.unknown = newTrie(words), worst-unknownPenalty
	return u
}

func (u *unigram) tokens(s *scratch, text []byte) (n int) {
	for len(text) > longWord {
		cut := longWord
		for !utf8.RuneStart(text[cut]) {
			cut--
		}
		n += u.best(s, text[:cut])
		text = text[cut:]
	}
	return n + u.best(s, text)
}

func (u *unigram) best(s *scratch, text []byte) int {
	s.best = grown(s.best, len(text)+1)
	best := s.best
	for i := range best {
		best[i] = path{from: -1}
	}
	best[0].from = 0
	for at := 0; at < len(text); {
		_, size := utf8.DecodeRune(text[at:])
		here, found := best[at].score, false
		node := uint32(0)
		for to := at; to < len(text); {
			if node = u.words.step(node, text[to]); node == 0 {
				break
			}
			to++
			if end := u.words.ends[node]; end != 0 {
				found = found || to-at == size
				best[to].offer(path{here + u.scores[end-1], int32(at), false})
			}
		}
		if !found {
			best[at+size].offer(path{here + u.unknown, int32(at), true})
		}
		at += size
	}
	n, after := 0, false
	for at := len(text); at > 0; at = int(best[at].from) {
		switch {
		case best[at].unknown && u.bytes:
			n += at - int(best[at].from)
		case !best[at].unknown || !after:
			n++
		}
		after = best[at].unknown
	}
	return n
}

func (p *path) offer(other path) {
	if p.from < 0 || other.score > p.score {
		*p = other
	}
}
