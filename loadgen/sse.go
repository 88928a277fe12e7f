package loadgen

import (
	"bytes"
	"errors"
)

// maxEvent bounds one event of a stream, in bytes. A token with its JSON has
// some 300; log probabilities of 20 alternatives a few thousand.
const maxEvent = 1 << 20

var errEventTooLarge = errors.New("an event of the stream exceeds 1 MiB")

// events takes a stream of server-sent events apart as its bytes arrive (WHATWG
// HTML, section 9.2.6). Lines end in LF, CR or CRLF, and may be cut anywhere by
// the reads. It is pure: the same bytes give the same events however they are
// cut.
type events struct {
	line  []byte // the unfinished line
	data  []byte // the data lines of the unfinished event, each with a final LF
	name  []byte
	lines int  // so far; the first may begin with a byte order mark
	cr    bool // the last byte was a CR, so an LF now belongs to it
}

// reset forgets what came, and keeps the memory.
func (e *events) reset() {
	*e = events{line: e.line[:0], data: e.data[:0], name: e.name[:0]}
}

// lineEnd returns where the first CR or LF is, or -1. It is asked for every line,
// and nearly all end in LF, which can be found many bytes at a time.
func lineEnd(p []byte) int {
	lf := bytes.IndexByte(p, '\n')
	if lf >= 0 {
		p = p[:lf]
	}
	if cr := bytes.IndexByte(p, '\r'); cr >= 0 {
		return cr
	}
	return lf
}

var bom = []byte("\xef\xbb\xbf")

// feed takes the next bytes and calls emit with every event that they complete.
// name is empty unless the server named the event; both are valid during the
// call only. An error from emit ends it and is returned.
func (e *events) feed(p []byte, emit func(name, data []byte) error) error {
	if e.cr && len(p) > 0 {
		e.cr = false
		if p[0] == '\n' {
			p = p[1:]
		}
	}
	for len(p) > 0 {
		i := lineEnd(p)
		if i < 0 {
			if e.line = append(e.line, p...); len(e.line)+len(e.data) > maxEvent {
				return errEventTooLarge
			}
			return nil
		}
		line := p[:i]
		if len(e.line) > 0 {
			e.line = append(e.line, line...)
			line = e.line
		}
		cr := p[i] == '\r'
		p = p[i+1:]
		if cr && len(p) > 0 && p[0] == '\n' {
			p = p[1:]
		} else {
			e.cr = cr && len(p) == 0
		}
		err := e.take(line, emit)
		e.line = e.line[:0]
		if err != nil {
			return err
		}
	}
	return nil
}

// take handles one whole line.
func (e *events) take(line []byte, emit func(name, data []byte) error) error {
	if e.lines == 0 {
		line = bytes.TrimPrefix(line, bom)
	}
	e.lines++
	if len(line) == 0 { // the end of an event
		if len(e.data) == 0 {
			e.name = e.name[:0]
			return nil
		}
		err := emit(e.name, e.data[:len(e.data)-1])
		e.data, e.name = e.data[:0], e.name[:0]
		return err
	}
	field, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(field) { // "" is a comment; id and retry do not matter here
	case "data":
		e.data = append(append(e.data, value...), '\n')
		if len(e.data) > maxEvent { // the line is in it
			return errEventTooLarge
		}
	case "event":
		e.name = append(e.name[:0], value...)
	}
	return nil
}
