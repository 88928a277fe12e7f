package wire

import (
	"bytes"
	"errors"
	"math"
	"time"
)

// Head is what a client of the API needs of the head of an answer. Its bytes are
// valid until the next answer of the connection.
type Head struct {
	Status int
	First  time.Duration // when the first byte of the answer was read
	// Headers, as sent; empty where there was none.
	Type         []byte // Content-Type
	Coding       []byte // Content-Encoding
	RetryAfter   []byte
	RetryAfterMS []byte // retry-after-ms, which the clients of OpenAI ask first
	ShouldRetry  []byte // x-should-retry, which they obey
}

// framing is how the body of an answer ends.
type framing struct {
	chunked bool
	length  int64 // -1: unknown, the body ends with the connection
	keep    bool  // the connection may serve another request
}

var errHead = errors.New("malformed head")

// parseHead reads the head of an answer, without its last empty line. It is
// pure; the Head's bytes are parts of p.
func parseHead(p []byte) (h Head, f framing, err error) {
	line, rest := cutLine(p)
	minor, ok := byte(0), false
	if minor, h.Status, ok = statusLine(line); !ok {
		return h, f, errHead
	}
	f.length, f.keep = -1, minor >= '1'
	for len(rest) > 0 {
		line, rest = cutLine(rest)
		colon := bytes.IndexByte(line, ':')
		if colon <= 0 || !isTokenBytes(line[:colon]) { // a folded line begins with a space
			return h, f, errHead
		}
		if err := f.header(&h, line[:colon], bytes.Trim(line[colon+1:], " \t")); err != nil {
			return h, f, err
		}
	}
	if f.chunked { // RFC 9112, section 6.3: it goes before a length, and such a sender is not trusted further
		f.keep = f.keep && f.length < 0
		f.length = -1
	}
	if h.Status < 200 || h.Status == 204 || h.Status == 304 {
		f.chunked, f.length = false, 0
	}
	f.keep = f.keep && (f.chunked || f.length >= 0)
	return h, f, nil
}

// header takes one header into account.
func (f *framing) header(h *Head, name, value []byte) error {
	switch {
	case is(name, "content-length"):
		n, ok := decimal(value)
		if !ok || f.length >= 0 && f.length != n {
			return errors.New("malformed Content-Length")
		}
		f.length = n
	case is(name, "transfer-encoding"):
		if !is(value, "chunked") || f.chunked {
			return errors.New("unknown Transfer-Encoding")
		}
		f.chunked = true
	case is(name, "connection"):
		for option := range bytes.SplitSeq(value, comma) {
			switch option = bytes.Trim(option, " \t"); {
			case is(option, "close"):
				f.keep = false
			case is(option, "keep-alive"):
				f.keep = true
			}
		}
	case is(name, "content-type"):
		h.Type = value
	case is(name, "content-encoding"):
		h.Coding = value
	case is(name, "retry-after"):
		h.RetryAfter = value
	case is(name, "retry-after-ms"):
		h.RetryAfterMS = value
	case is(name, "x-should-retry"):
		h.ShouldRetry = value
	}
	return nil
}

var comma = []byte(",")

// cutLine cuts the first line off. Lines end in CRLF or, from lenient servers, LF.
func cutLine(p []byte) (line, rest []byte) {
	line, rest, _ = bytes.Cut(p, []byte{'\n'})
	return bytes.TrimSuffix(line, []byte{'\r'}), rest
}

// statusLine reads "HTTP/1.1 200 OK"; the reason may be missing.
func statusLine(p []byte) (minor byte, status int, ok bool) {
	if len(p) < len("HTTP/1.1 200") || string(p[:7]) != "HTTP/1." || p[8] != ' ' || len(p) > 12 && p[12] != ' ' {
		return 0, 0, false
	}
	n, ok := decimal(p[9:12])
	return p[7], int(n), ok && n >= 100 && p[7] >= '0' && p[7] <= '9'
}

// is reports whether p is the word, which is in small letters, in any case.
func is(p []byte, word string) bool {
	if len(p) != len(word) {
		return false
	}
	for i, c := range p {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != word[i] {
			return false
		}
	}
	return true
}

// decimal reads a number without sign that fits.
func decimal(p []byte) (int64, bool) {
	n := int64(0)
	for _, c := range p {
		if c < '0' || c > '9' || n > (math.MaxInt64-9)/10 {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, len(p) > 0
}

func isTokenBytes(p []byte) bool {
	for _, c := range p {
		if c <= ' ' || c >= 0x7f {
			return false
		}
	}
	return true
}

// headEnd returns where the head ends and the body begins, or 0 when there is
// no empty line yet.
func headEnd(p []byte) (head, body int) {
	for at := 0; ; {
		i := bytes.IndexByte(p[at:], '\n')
		if i < 0 {
			return 0, 0
		}
		at += i + 1
		switch {
		case at < len(p) && p[at] == '\n':
			return at, at + 1
		case at+1 < len(p) && p[at] == '\r' && p[at+1] == '\n':
			return at, at + 2
		}
	}
}
