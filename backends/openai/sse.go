package openai

import (
	"bytes"
	"fmt"
	"io"

	"aloft/backends"
)

// Events cuts a byte stream into server-sent events, whatever the sizes of the
// reads beneath. Lines may end in LF or CRLF (a lone CR, which the standard
// also allows, is used by no engine and is taken as text). Comments and blank
// lines between events are skipped.
type Events struct {
	r          io.Reader
	max        int
	buf        []byte
	start, end int   // buf[start:end] is read but not handed out
	err        error // of r, kept until the bytes before it are used up
	more       bool  // the last read was full
	// The event is built in place: buf[start:out] is what there is of it. It only
	// loses bytes (CRs, comments), so out never passes pos, where the next line
	// begins; up to scan that line has no end.
	out, pos, scan int
	ahead          []byte // the next event, cut before it was asked for
}

// Sizes of the buffer: thousands of streams may be idle, and one whose engine
// sends several events at once gets more.
const (
	idle  = 1 << 10
	usual = 4 << 10
)

// NewEvents reads events of at most maxEvent bytes from r.
func NewEvents(r io.Reader, maxEvent int) *Events {
	e := &Events{}
	e.Reset(r, maxEvent)
	return e
}

// Reset makes e read another stream, from its start. It keeps the buffer, unless
// a large event made that large.
func (e *Events) Reset(r io.Reader, maxEvent int) {
	size := min(idle, max(maxEvent, 1))
	buf := e.buf
	if cap(buf) < size || cap(buf) > 16<<10 {
		buf = make([]byte, size)
	}
	*e = Events{r: r, max: maxEvent, buf: buf[:size]}
}

// Next returns one whole event: its lines, each ended by "\n", and a blank line.
// It is valid until the next call. io.EOF means that the stream ended between
// events, io.ErrUnexpectedEOF inside one; an event over the limit wraps
// backends.ErrBadReply; other errors are the reader's.
func (e *Events) Next() (event []byte, err error) {
	for !e.Buffered() {
		switch err := e.fill(); {
		case err == io.EOF && e.pos == e.end && e.out == e.start:
			return nil, io.EOF
		case err == io.EOF:
			return nil, io.ErrUnexpectedEOF
		case err != nil:
			return nil, err
		}
	}
	event, e.ahead = e.ahead, nil
	return event, nil
}

// Buffered reports whether the next event is there: Next returns it without a
// read. The event that Next returned last stays valid.
func (e *Events) Buffered() bool {
	for e.ahead == nil {
		i := bytes.IndexByte(e.buf[e.scan:e.end], '\n')
		if i < 0 {
			e.scan = e.end
			return false
		}
		line := bytes.TrimRight(e.buf[e.pos:e.scan+i], "\r")
		e.pos = e.scan + i + 1
		e.scan = e.pos
		switch {
		case len(line) == 0 && e.out > e.start:
			e.buf[e.out] = '\n'
			e.ahead = e.buf[e.start : e.out+1 : e.out+1]
			e.start, e.out = e.pos, e.pos
		case len(line) > 0 && line[0] != ':':
			e.out += copy(e.buf[e.out:], line)
			e.buf[e.out] = '\n'
			e.out++
		case e.out == e.start: // nothing of an event yet: forget what was skipped
			e.start, e.out = e.pos, e.pos
		}
	}
	return true
}

// fill reads once more.
func (e *Events) fill() error {
	if e.err != nil {
		return e.err
	}
	if e.end-e.start >= e.max {
		return fmt.Errorf("event over %d bytes: %w", e.max, backends.ErrBadReply)
	}
	switch room := len(e.buf) - e.end; {
	case e.more:
		e.buf = append(e.buf, make([]byte, min(usual, e.max)-len(e.buf))...)
	case e.start > 0 && room < len(e.buf)/2: // or the reads would get smaller and smaller
		copy(e.buf, e.buf[e.start:e.end])
		e.out, e.pos, e.scan, e.end = e.out-e.start, e.pos-e.start, e.scan-e.start, e.end-e.start
		e.start = 0
	case room == 0:
		e.buf = append(e.buf, make([]byte, min(len(e.buf), e.max-len(e.buf)))...)
	}
	for range 100 {
		var n int
		n, e.err = e.r.Read(e.buf[e.end:])
		if e.end += n; n > 0 {
			e.more = e.end == len(e.buf) && len(e.buf) < min(usual, e.max)
			return nil
		}
		if e.err != nil {
			return e.err
		}
	}
	return io.ErrNoProgress
}

// Data returns the payload of an event: the text of its data lines, joined by
// "\n" where there are several. It aliases the event when there is one.
func Data(event []byte) []byte {
	_, data := split(event)
	return data
}

// split returns the text of an event's last "event" line, and its Data.
func split(event []byte) (name, data []byte) {
	found := false
	for len(event) > 0 {
		line := event
		if i := bytes.IndexByte(event, '\n'); i >= 0 {
			line, event = event[:i], event[i+1:]
		} else {
			event = nil
		}
		if value, ok := bytes.CutPrefix(line, []byte("event:")); ok {
			name = bytes.TrimPrefix(value, []byte{' '})
			continue
		}
		value, ok := bytes.CutPrefix(line, []byte("data:"))
		if !ok {
			continue
		}
		value = bytes.TrimPrefix(value, []byte{' '})
		if !found {
			data, found = value[:len(value):len(value)], true
			continue
		}
		data = append(append(data, '\n'), value...)
	}
	return name, data
}

// IsDone reports whether data is the payload that closes a stream.
func IsDone(data []byte) bool { return string(bytes.TrimSpace(data)) == "[DONE]" }

// AppendEvent appends data as one event. data must be one line.
func AppendEvent(dst, data []byte) []byte {
	dst = append(dst, "data: "...)
	dst = append(dst, data...)
	return append(dst, "\n\n"...)
}
