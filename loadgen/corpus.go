package loadgen

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"unicode/utf8"
)

// Bounds of what a workload reads and holds.
const (
	maxCorpus     = 64 << 20 // bytes of a corpus, a file of requests or a pool of prefixes
	maxCorpusLine = 1 << 20  // bytes
	maxTextTokens = 1 << 20  // tokens of one text: the longest context anywhere
)

// defaultBytesPerToken is what English prose has with today's tokenizers, within
// some 15 %; code and other languages have less.
const defaultBytesPerToken = 4

// library is what texts are made of: lines, each kept as the inside of a JSON
// string, so that a text is copied into a body as it stands.
type library struct {
	text []byte
	ends []int // of each line in text
}

func (l *library) add(line string) {
	l.text = appendEscaped(l.text, line)
	l.end()
}

// end makes a line of what was appended to text since the last one.
func (l *library) end() { l.ends = append(l.ends, len(l.text)) }

func (l *library) lines() int { return len(l.ends) }

func (l *library) line(i int) []byte {
	from := 0
	if i > 0 {
		from = l.ends[i-1]
	}
	return l.text[from:l.ends[i]]
}

// appendText appends a text of about size bytes: lines drawn one after another
// and joined by spaces, the first from a word of it on, the last one cut, at a
// space where there is one near. Size 0 means one line as it is. Drawing each
// line anew keeps two long texts from being the same even where there are few
// lines, so that a server's cache of prefixes sees only what Prefix asks for.
func (l *library) appendText(dst []byte, r *rand.Rand, size int) []byte {
	line := l.line(r.IntN(l.lines()))
	if size == 0 {
		return append(dst, line...)
	}
	from := r.IntN(len(line))
	if at := bytes.IndexByte(line[from:], ' '); at >= 0 && from+at+1 < len(line) {
		line = line[from+at+1:]
	}
	for {
		if len(line) > size {
			return append(dst, line[:cutAt(line, size)]...)
		}
		dst = append(dst, line...)
		if size -= len(line); size < 2 { // not even a letter after the space
			return dst
		}
		dst = append(dst, ' ')
		size--
		line = l.line(r.IntN(l.lines()))
	}
}

// cutAt is where to end text, the inside of a JSON string longer than size, after
// about size bytes: at a space within a word's length before that, else at the
// end of the character there. It is never 0.
func cutAt(text []byte, size int) int {
	const word = 16 // bytes; longer is no English word
	near := min(max(1, size-word), size+1)
	if at := bytes.LastIndexByte(text[near:size+1], ' '); at >= 0 {
		return near + at
	}
	at := 0
	for at == 0 || at < size {
		switch {
		case text[at] != '\\':
			_, n := utf8.DecodeRune(text[at:])
			at += n
		case text[at+1] == 'u':
			at += len(`\u0000`)
		default:
			at += len(`\n`)
		}
	}
	return at
}

// appendEscaped appends the inside of the JSON string that says s. What is not
// UTF-8 becomes U+FFFD, as encoding/json has it.
func appendEscaped(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	for _, c := range s {
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', byte(c))
		case c == '\n':
			dst = append(dst, `\n`...)
		case c == '\t':
			dst = append(dst, `\t`...)
		case c < 0x20:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			dst = utf8.AppendRune(dst, c)
		}
	}
	return dst
}

// appendString appends s as a JSON string.
func appendString(dst []byte, s string) []byte {
	return append(appendEscaped(append(dst, '"'), s), '"')
}

// readCorpus reads texts, one a line; empty lines count for nothing. An error
// names the file and the line.
func readCorpus(name string, r io.Reader) (*library, error) {
	l := &library{}
	err := readLines(name, r, func(line []byte) error {
		if !utf8.Valid(line) {
			return errors.New("want UTF-8 text")
		}
		if l.lines() == maxTexts {
			return fmt.Errorf("want at most %d lines", maxTexts)
		}
		l.add(string(line))
		return nil
	})
	if err == nil && l.lines() == 0 {
		err = fmt.Errorf("%s: no text in it, want one a line", name)
	}
	if err != nil {
		return nil, err
	}
	return l, nil
}

// readLines calls take with each line of r that is not blank, trimmed. A line
// is valid during the call only.
func readLines(name string, r io.Reader, take func(line []byte) error) error {
	counted := &io.LimitedReader{R: r, N: maxCorpus + 1}
	lines := bufio.NewScanner(counted)
	lines.Buffer(make([]byte, 0, 64<<10), maxCorpusLine)
	n := 1
	for ; lines.Scan(); n++ {
		line := lines.Bytes()
		if n == 1 {
			line = bytes.TrimPrefix(line, bom)
		}
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		if err := take(line); err != nil {
			return fmt.Errorf("%s:%d: %w", name, n, err)
		}
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return fmt.Errorf("%s:%d: the line is too long, want at most %d bytes", name, n, maxCorpusLine)
	case err != nil:
		return fmt.Errorf("%s:%d: %w", name, n, err)
	case counted.N <= 0:
		return fmt.Errorf("%s: the file is too large, want at most %d bytes", name, maxCorpus)
	}
	return nil
}
