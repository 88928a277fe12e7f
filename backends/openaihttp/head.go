package openaihttp

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"time"

	"aloft/backends"
)

// maxHead bounds a reply's head in bytes, interim heads included.
const maxHead = 64 << 10

// head is what a call needs to know of a reply's head. Its slices lie in the
// buffer that was parsed.
type head struct {
	status  int
	length  int64 // of the body, -1 = not said
	chunked bool
	close   bool // nothing may follow this reply on its connection
	kind    []byte
	coding  []byte        // Content-Encoding other than identity
	engine  time.Duration // how long the engine says that it took, -1 = not said
	shown   backends.Header
}

// visible are the reply fields that a client may see, besides Content-Type:
// what describes the body or the engine's own doing. Never hop-by-hop fields,
// cookies, Server or CORS (those speak of a connection or a site that is not
// the client's), nor x-request-id and x-ratelimit-*: the gateway has its own,
// and the provider's limits are those of our account with it.
var visible = []string{
	"Content-Disposition", "Content-Language", // of files and audio
	"Deprecation", "Sunset", "Warning",
	"Openai-Processing-Ms", "Openai-Version",
	"Request-Id", // Anthropic's: what its support asks for
	"X-Should-Retry",
}

// visibleWhenRefused are seen on 429 and 503 only.
var visibleWhenRefused = []string{"Retry-After", "Retry-After-Ms"}

// headEnd returns where the head at the start of b ends, 0 if that is not there
// yet. from is how much of b was searched before.
func headEnd(b []byte, from int) int {
	for i := max(from-2, 0); ; {
		n := bytes.IndexByte(b[i:], '\n')
		if n < 0 {
			return 0
		}
		i += n + 1
		switch rest := b[i:]; {
		case len(rest) > 0 && rest[0] == '\n':
			return i + 1
		case len(rest) > 1 && rest[0] == '\r' && rest[1] == '\n':
			return i + 2
		}
	}
}

// parseHead reads a whole head (headEnd). It accepts no more than net/http does.
func parseHead(b []byte) (head, error) {
	h := head{length: -1, engine: -1}
	line, b := cutLine(b)
	minor, err := h.statusLine(line)
	if err != nil {
		return h, err
	}
	keep, coded := false, false
	for {
		if line, b = cutLine(b); len(line) == 0 {
			break
		}
		name, value, ok := bytes.Cut(line, []byte{':'})
		if !ok || !validName(name) || !validValue(value) {
			return h, errors.New("damaged header line")
		}
		value = bytes.Trim(value, " \t")
		switch {
		case is(name, "content-length"):
			n, ok := decimal(value)
			if !ok || h.length >= 0 && h.length != n {
				return h, fmt.Errorf("content length %.40q", value)
			}
			h.length = n
		case is(name, "transfer-encoding"):
			if !is(value, "chunked") || h.chunked || minor == 0 {
				return h, fmt.Errorf("transfer encoding %.40q", value)
			}
			h.chunked = true
		case is(name, "connection"):
			h.close = h.close || hasToken(value, "close")
			keep = keep || hasToken(value, "keep-alive")
		case is(name, "content-type"):
			if h.kind == nil {
				h.kind = value
			}
		case is(name, "content-encoding"):
			if !is(value, "identity") && len(value) > 0 {
				coded = coded || h.coding != nil
				h.coding = value
			}
		default:
			h.note(name, value)
		}
	}
	if coded {
		h.coding = []byte("twice")
	}
	return h, h.frame(minor == 0 && !keep)
}

// frame settles how long the body is (RFC 9112, 6.3) and whether the connection
// can be used after it.
func (h *head) frame(old bool) error {
	h.close = h.close || old
	switch {
	case h.status < 200 || h.status == http.StatusNoContent || h.status == http.StatusNotModified:
		// No body, whatever the fields say. One that is said to have some may send it.
		h.close = h.close || h.status != http.StatusNotModified && (h.length > 0 || h.chunked)
		h.length, h.chunked = 0, false
	case h.chunked:
		h.close = h.close || h.length >= 0 // two lengths: somebody on the way may believe the other
		h.length = -1
	case h.length < 0:
		h.close = true // until the connection ends
	}
	if h.status == http.StatusSwitchingProtocols {
		return errors.New("switches protocols")
	}
	return nil
}

func (h *head) statusLine(line []byte) (minor int, err error) {
	// HTTP/1.1 200 OK; the last blank may be missing.
	if len(line) < 12 || string(line[:7]) != "HTTP/1." || line[7] != '0' && line[7] != '1' || line[8] != ' ' || len(line) > 12 && line[12] != ' ' {
		return 0, fmt.Errorf("status line %.40q", line)
	}
	n, ok := decimal(line[9:12])
	if !ok || n < 100 {
		return 0, fmt.Errorf("status line %.40q", line)
	}
	h.status = int(n)
	return int(line[7] - '0'), nil
}

// note keeps what a field says of the engine's time, and shows it if it may be seen.
func (h *head) note(name, value []byte) {
	switch {
	case is(name, "openai-processing-ms"):
		if d := millis(value); d >= 0 {
			h.engine = d
		}
	case is(name, "server-timing"):
		if d := serverTiming(value); d >= 0 && h.engine < 0 {
			h.engine = d
		}
		return
	}
	for _, v := range visible {
		if is(name, v) {
			h.shown = append(h.shown, backends.Field{Name: v, Value: string(value)})
			return
		}
	}
	if h.status == http.StatusTooManyRequests || h.status == http.StatusServiceUnavailable {
		for _, v := range visibleWhenRefused {
			if is(name, v) {
				h.shown = append(h.shown, backends.Field{Name: v, Value: string(value)})
			}
		}
	}
}

// serverTiming returns the time of the metric "total", or the longest one: the
// parts of a sum may overlap. -1 = none given.
func serverTiming(value []byte) time.Duration {
	longest := time.Duration(-1)
	for metric := range bytes.SplitSeq(value, []byte{','}) {
		name, params, _ := bytes.Cut(metric, []byte{';'})
		for param := range bytes.SplitSeq(params, []byte{';'}) {
			dur, ok := bytes.CutPrefix(bytes.TrimSpace(param), []byte("dur="))
			if !ok {
				continue
			}
			d := millis(bytes.Trim(dur, `"`))
			if d >= 0 && is(bytes.TrimSpace(name), "total") {
				return d
			}
			longest = max(longest, d)
		}
	}
	return longest
}

// millis reads a decimal number of milliseconds, below a day; -1 = it is none.
func millis(b []byte) time.Duration {
	whole, part, dot := bytes.Cut(b, []byte{'.'})
	n, ok := decimal(whole)
	if !ok || n >= 24*3600*1000 {
		return -1
	}
	d := time.Duration(n) * time.Millisecond
	if !dot || len(part) == 0 {
		return d
	}
	part = part[:min(len(part), 6)] // nanoseconds
	f, ok := decimal(part)
	if !ok {
		return -1
	}
	for range 6 - len(part) {
		f *= 10
	}
	return d + time.Duration(f)
}

// decimal reads 1 to 18 digits.
func decimal(b []byte) (n int64, ok bool) {
	if len(b) == 0 || len(b) > 18 {
		return 0, false
	}
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}

// cutLine returns the first line without its end, and what follows it.
func cutLine(b []byte) (line, rest []byte) {
	line, rest, _ = bytes.Cut(b, []byte{'\n'})
	return bytes.TrimSuffix(line, []byte{'\r'}), rest
}

// is reports whether b is s but for the case of letters.
func is(b []byte, s string) bool { return len(b) == len(s) && bytes.EqualFold(b, []byte(s)) }

func hasToken(list []byte, token string) bool {
	for part := range bytes.SplitSeq(list, []byte{','}) {
		if is(bytes.Trim(part, " \t"), token) {
			return true
		}
	}
	return false
}

// inToken are the bytes of a token (RFC 9110, 5.6.2).
var inToken = func() (in [256]bool) {
	for _, c := range []byte("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") {
		in[c] = true
	}
	return in
}()

// validName reports whether b is a token. A folded line, which begins with a
// blank, is not.
func validName[T string | []byte](b T) bool {
	for i := range len(b) {
		if !inToken[b[i]] {
			return false
		}
	}
	return len(b) > 0
}

// validValue reports whether b has no control characters but tabs: one that
// ended the line would begin a field of its own.
func validValue[T string | []byte](b T) bool {
	for i := range len(b) {
		if c := b[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}
