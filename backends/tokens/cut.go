package tokens

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// cutter is how a byte-level model cuts a text into words before it merges: the
// regular expression of its pre-tokenizer as a scanner. Go's regexp has no
// lookahead, and at 10 ns a byte no engine of regular expressions is quick enough.
type cutter struct {
	digits      int  // that a word of digits has at most; 0 = any number
	split       bool // each digit by itself, before all else
	contraction contractions
	glue        bool // any one character may stand before letters, not a space alone
	marks       bool // combining marks are letters
	cases       cases
	tail        string // what may follow punctuation: "\r\n", with "/"
	lines       bool   // white space up to the last line's end is one word
}

type contractions uint8

const (
	noContraction    contractions = iota
	lowerContraction              // 's 't 're 've 'm 'll 'd, as a word of its own
	anyContraction                // with capitals, too
	afterWord                     // part of the word before
)

// cases says whether a capital begins a new word.
type cases uint8

const (
	noCases    cases = iota
	asciiCases       // as llama.cpp tells them: only a-z and A-Z have a case
	allCases         // as Unicode does
)

var (
	gpt2      = cutter{contraction: lowerContraction}
	starcoder = cutter{contraction: lowerContraction, split: true}
	llama3    = cutter{digits: 3, contraction: anyContraction, glue: true, tail: "\r\n", lines: true}
	qwen2     = cutter{digits: 1, contraction: anyContraction, glue: true, tail: "\r\n", lines: true}
	qwen35    = cutter{digits: 1, contraction: anyContraction, glue: true, marks: true, tail: "\r\n", lines: true}
	gpt4o     = cutter{digits: 3, contraction: afterWord, glue: true, cases: asciiCases, tail: "\r\n/", lines: true}
	tekken    = cutter{digits: 1, glue: true, cases: asciiCases, tail: "\r\n/", lines: true}
)

// class is what a character is to a cutter.
type class uint8

const (
	end class = iota // of the text
	other
	letter
	number
	space
	mark
)

var ascii = func() (t [utf8.RuneSelf]class) {
	for i := range t {
		t[i] = classOf(rune(i))
	}
	return t
}()

func classOf(r rune) class {
	switch {
	case unicode.IsSpace(r):
		return space
	case unicode.IsLetter(r):
		return letter
	case unicode.IsNumber(r):
		return number
	case unicode.IsMark(r):
		return mark
	}
	return other
}

// look returns the character that text begins with.
func look(text []byte) (r rune, n int, c class) {
	if len(text) == 0 {
		return -1, 0, end
	}
	if b := text[0]; b < utf8.RuneSelf {
		return rune(b), 1, ascii[b]
	}
	r, n = utf8.DecodeRune(text)
	return r, n, classOf(r)
}

// look folds marks into what they are to this cutter.
func (k *cutter) look(text []byte) (rune, int, class) {
	r, n, c := look(text)
	if c == mark {
		if c = other; k.marks {
			c = letter
		}
	}
	return r, n, c
}

// run is how far text goes on in class c.
func (k *cutter) run(text []byte, c class) int {
	at := 0
	for at < len(text) {
		if b := text[at]; b < utf8.RuneSelf {
			if ascii[b] != c {
				break
			}
			at++
			continue
		}
		_, n, is := k.look(text[at:])
		if is != c {
			break
		}
		at += n
	}
	return at
}

// next returns the length of the word that text, which is not empty, begins with.
func (k *cutter) next(text []byte) int {
	r, n, c := k.look(text)
	if r == '\'' && (k.contraction == lowerContraction || k.contraction == anyContraction) {
		if m := k.contracted(text); m > 0 {
			return m
		}
	}
	if size := k.wordOf(text, r, n, c); size > 0 {
		return size
	}
	if c == number {
		return k.numberOf(text)
	}
	from, is := 0, c
	if r == ' ' {
		_, _, is = k.look(text[1:])
		from = 1
		if is == number && !k.glue {
			return 1 + k.numberOf(text[1:])
		}
	}
	if is == other {
		return from + k.punctuation(text[from:])
	}
	return k.blanks(text)
}

// part is the length of what is cut by itself: a digit, or all up to the next
// one, where digits are split off first.
func (k *cutter) part(text []byte) int {
	if !k.split {
		return len(text)
	}
	for at := 0; at < len(text); {
		_, n, c := k.look(text[at:])
		switch {
		case c != number:
			at += n
		case at == 0:
			return n
		default:
			return at
		}
	}
	return len(text)
}

// wordOf is the length of the letters that text begins with, together with what
// may stand before them; 0 = there are none.
func (k *cutter) wordOf(text []byte, r rune, n int, c class) int {
	before := 0
	switch {
	case c == letter:
	case !k.glue && r != ' ', c == number, k.glue && (r == '\r' || r == '\n'):
		return 0
	default:
		if _, _, is := k.look(text[n:]); is != letter && (k.cases != allCases || !k.marked(text[n:])) {
			if k.cases != allCases || !k.marked(text) {
				return 0
			}
		} else {
			before = n
		}
	}
	if k.cases == noCases {
		return before + k.run(text[before:], letter)
	}
	size := before + k.camel(text[before:])
	if k.contraction == afterWord {
		size += k.contracted(text[size:])
	}
	return size
}

// marked reports whether text begins with a combining mark.
func (k *cutter) marked(text []byte) bool {
	_, _, c := look(text)
	return c == mark
}

// sorts tells whether a character may be among the capitals, and among the small
// letters, of a word; those without a case may be both.
func (k *cutter) sorts(text []byte) (n int, upper, lower bool) {
	r, n, c := look(text)
	switch {
	case k.cases == asciiCases:
		return n, c == letter && !(r >= 'a' && r <= 'z'), c == letter && !(r >= 'A' && r <= 'Z')
	case c == letter:
		return n, !unicode.IsLower(r), !unicode.IsUpper(r) && !unicode.IsTitle(r)
	}
	return n, c == mark, c == mark
}

// camel is the length of capitals and small letters after them: "helloWorld" is
// two words. Small letters must follow if that is possible at all, for which one
// without a case will do.
func (k *cutter) camel(text []byte) int {
	at, last := 0, -1 // last: where the small letters may begin at the latest
	for at < len(text) {
		n, upper, lower := k.sorts(text[at:])
		if lower {
			last = at
		}
		if !upper {
			break
		}
		at += n
	}
	if last < 0 {
		return at
	}
	for at = last; at < len(text); {
		n, _, lower := k.sorts(text[at:])
		if !lower {
			break
		}
		at += n
	}
	return at
}

// contracted is the length of 's, 't, 're, 've, 'm, 'll or 'd.
func (k *cutter) contracted(text []byte) int {
	if len(text) < 2 || text[0] != '\'' {
		return 0
	}
	a, b := text[1], byte(0)
	if len(text) > 2 {
		b = text[2]
	}
	if k.contraction != lowerContraction {
		a, b = small(a), small(b)
	}
	switch {
	case a == 's', a == 't', a == 'm', a == 'd':
		return 2
	case a == 'r' && b == 'e', a == 'v' && b == 'e', a == 'l' && b == 'l':
		return 3
	}
	return 0
}

func small(b byte) byte {
	if b >= 'A' && b <= 'Z' {
		return b + 'a' - 'A'
	}
	return b
}

func (k *cutter) numberOf(text []byte) int {
	if k.digits == 0 {
		return k.run(text, number)
	}
	at := 0
	for range k.digits {
		_, n, c := k.look(text[at:])
		if c != number {
			break
		}
		at += n
	}
	return at
}

func (k *cutter) punctuation(text []byte) int {
	at := k.run(text, other)
	for at < len(text) && strings.IndexByte(k.tail, text[at]) >= 0 {
		at++
	}
	return at
}

// blanks is white space: up to the last line's end in it if that matters, else
// all of it, but for the last one where a word follows that takes it.
func (k *cutter) blanks(text []byte) int {
	at, last, line := 0, 0, 0
	for at < len(text) {
		r, n, c := k.look(text[at:])
		if c != space {
			break
		}
		last = at
		at += n
		if r == '\r' || r == '\n' {
			line = at
		}
	}
	switch {
	case k.lines && line > 0:
		return line
	case at < len(text) && last > 0:
		return last
	}
	return at
}
