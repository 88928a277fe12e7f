package wire

import "errors"

// maxChunkLine bounds the line before a chunk, extensions included, and the
// trailers together, in bytes.
const maxChunkLine = 16 << 10

var errChunk = errors.New("malformed chunk")

// chunks takes the chunked coding (RFC 9112, section 7.1) off as bytes arrive,
// cut anywhere. It is pure: the same bytes give the same body however they are
// cut. Its zero value is ready.
type chunks struct {
	state chunkState
	left  int64 // of the chunk's data, or the size as read so far
	line  int   // bytes of the line, or of the trailers, so far
	empty bool  // the line of the trailer is empty so far
}

type chunkState uint8

// What is expected next.
const (
	inSize      chunkState = iota // a hexadecimal digit
	inExtension                   // whatever else is in the line
	inData
	afterData // CR or LF
	afterDataCR
	inTrailer
	chunksEnd
)

// decode moves the body's bytes of p to its front and returns how many they are
// and how many of p were taken: all, unless the body has ended.
func (c *chunks) decode(p []byte) (body, taken int, err error) {
	for taken < len(p) && c.state != chunksEnd {
		if c.state == inData {
			n := int(min(c.left, int64(len(p)-taken)))
			copy(p[body:], p[taken:taken+n])
			body, taken, c.left = body+n, taken+n, c.left-int64(n)
			if c.left == 0 {
				c.state = afterData
			}
			continue
		}
		if err := c.step(p[taken]); err != nil {
			return body, taken, err
		}
		taken++
	}
	return body, taken, nil
}

// step takes one byte outside the data.
func (c *chunks) step(b byte) error {
	if c.line++; c.line > maxChunkLine {
		return errors.New("line of a chunk is too long")
	}
	switch c.state {
	case inSize:
		if digit, ok := hex(b); ok {
			if c.left > 1<<40 {
				return errors.New("chunk is too large")
			}
			c.left = c.left<<4 | int64(digit)
			return nil
		}
		if c.line == 1 {
			return errChunk
		}
		switch b {
		case ';', ' ', '\t', '\r':
			c.state = inExtension
		case '\n':
			c.lineEnds()
		default:
			return errChunk
		}
	case inExtension:
		if b == '\n' {
			c.lineEnds()
		}
	case afterData, afterDataCR:
		switch {
		case b == '\r' && c.state == afterData:
			c.state = afterDataCR
		case b == '\n':
			c.state, c.line = inSize, 0
		default:
			return errChunk
		}
	case inTrailer:
		switch {
		case b == '\n' && c.empty:
			c.state = chunksEnd
		case b == '\n':
			c.empty = true
		case b != '\r':
			c.empty = false
		}
	}
	return nil
}

// lineEnds goes on after the line with the size.
func (c *chunks) lineEnds() {
	c.line = 0
	if c.state = inData; c.left == 0 {
		c.state, c.empty = inTrailer, true
	}
}

func hex(b byte) (byte, bool) {
	switch {
	case '0' <= b && b <= '9':
		return b - '0', true
	case 'a' <= b && b <= 'f':
		return b - 'a' + 10, true
	case 'A' <= b && b <= 'F':
		return b - 'A' + 10, true
	}
	return 0, false
}
