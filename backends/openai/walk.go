package openai

import (
	"bytes"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/tidwall/gjson"
)

// walk reads JSON in one pass and copies nothing: values are spans of data, and
// only those that text is asked for are unescaped. gjson unescapes every string
// that it passes, which costs a copy of each prompt and token.
//
// Commas and colons count as white space: it is for JSON that was validated, or
// whose faults do not matter. Over any other bytes it stays within them and ends.
type walk struct {
	data []byte
	at   int
}

// peek returns the first byte of what comes next, 0 at the end.
func (w *walk) peek() byte {
	for ; w.at < len(w.data); w.at++ {
		if c := w.data[w.at]; c > ' ' && c != ',' && c != ':' {
			return c
		}
	}
	return 0
}

// enter steps into a container that begins with open, '{' or '[', if one is next.
// The caller then takes its members by key, or its elements by item, to the end.
func (w *walk) enter(open byte) bool {
	if w.peek() != open {
		return false
	}
	w.at++
	return true
}

// key returns the next raw key of an object, with its quotes; nil at the end.
// The caller has to take the value.
func (w *walk) key() []byte {
	if w.peek() == '"' {
		return w.str()
	}
	w.at = min(w.at+1, len(w.data)) // the closing bracket
	return nil
}

// item reports whether the array has another element, which the caller has to take.
func (w *walk) item() bool {
	switch w.peek() {
	case ']', '}', 0:
		w.at = min(w.at+1, len(w.data))
		return false
	}
	return true
}

// skip passes over the next value and returns it.
func (w *walk) skip() []byte {
	c, from := w.peek(), w.at
	switch c {
	case '"':
		return w.str()
	case '{', '[':
		w.container()
	default:
		for ; w.at < len(w.data); w.at++ {
			if c := w.data[w.at]; c <= ' ' || c == ',' || c == ']' || c == '}' {
				break
			}
		}
	}
	return w.data[from:w.at:w.at]
}

func (w *walk) container() {
	for depth := 0; w.at < len(w.data); w.at++ {
		switch w.data[w.at] {
		case '"':
			w.str()
			w.at--
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				w.at++
				return
			}
		}
	}
}

// str passes over the string that begins here. One without an end is nil.
func (w *walk) str() []byte {
	from := w.at
	for i := from + 1; ; {
		n := bytes.IndexByte(w.data[i:], '"')
		if n < 0 {
			w.at = len(w.data)
			return nil
		}
		i += n + 1
		last := i - 2 // the byte before the quote; the opening quote ends the count
		for w.data[last] == '\\' {
			last--
		}
		if (i-last)%2 == 0 { // an even number of backslashes: the quote is none of the text
			w.at = i
			return w.data[from:i:i]
		}
	}
}

// text is what a raw string says. It aliases raw, unless that has escapes.
func text(raw []byte) string {
	switch {
	case len(raw) < 2 || raw[0] != '"':
		return ""
	case bytes.IndexByte(raw, '\\') < 0:
		return alias(raw[1 : len(raw)-1])
	}
	return gjson.ParseBytes(raw).Str
}

// AppendText appends what a raw JSON string says. A surrogate without its other
// half becomes U+FFFD.
func AppendText(dst, raw []byte) []byte {
	if len(raw) < 2 || raw[0] != '"' {
		return dst
	}
	for raw = raw[1 : len(raw)-1]; ; {
		n := bytes.IndexByte(raw, '\\')
		if n < 0 || n+1 >= len(raw) {
			return append(dst, raw...)
		}
		dst = append(dst, raw[:n]...)
		c := raw[n+1]
		raw = raw[n+2:]
		switch c {
		case 'b':
			c = '\b'
		case 'f':
			c = '\f'
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case 't':
			c = '\t'
		case 'u':
			r := unit(raw)
			raw = raw[min(4, len(raw)):]
			if utf16.IsSurrogate(r) && len(raw) >= 6 && raw[0] == '\\' && raw[1] == 'u' {
				if whole := utf16.DecodeRune(r, unit(raw[2:])); whole != utf8.RuneError {
					r, raw = whole, raw[6:]
				}
			}
			dst = utf8.AppendRune(dst, r)
			continue
		}
		dst = append(dst, c)
	}
}

// unit reads the four digits of a \u escape.
func unit(raw []byte) rune {
	n, err := strconv.ParseUint(alias(raw[:min(4, len(raw))]), 16, 16)
	if err != nil {
		return utf8.RuneError
	}
	return rune(n)
}

// filled takes the next value and reports whether it is more than null, "", []
// or {}.
func (w *walk) filled() bool {
	switch raw := w.skip(); {
	case len(raw) == 0 || raw[0] == 'n':
		return false
	case raw[0] == '"':
		return len(raw) > 2
	case raw[0] == '{' || raw[0] == '[':
		inner := walk{data: raw, at: 1}
		c := inner.peek()
		return c != '}' && c != ']' && c != 0
	}
	return true
}
