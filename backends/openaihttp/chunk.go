package openaihttp

import "errors"

// The places within a chunked body (RFC 9112, 7.1).
const (
	inSize    = iota // hexadecimal digits
	inExt            // the rest of that line, ignored
	inSizeEnd        // its LF
	inData
	inDataCR
	inDataLF
	inTrailer  // at the start of a line of the trailer, which is ignored
	inField    // within one
	inFieldEnd // its LF
	inEnd      // the LF of the last, empty line
	ended
)

// maxChunkLine bounds a chunk's size line, and maxHead the trailer, in bytes.
const maxChunkLine = 4 << 10

var errChunk = errors.New("damaged chunk")

// chunks takes the framing off a chunked body, in place, so that the body needs
// no buffer of its own between the socket and whoever reads it.
type chunks struct {
	place  int
	left   int64 // of this chunk; within a size line what was read of the number
	line   int   // bytes of the size line or of the trailer so far
	digits int
}

// decode moves the payload in b to its start and returns its size, and how many
// bytes after the body's end b held.
func (c *chunks) decode(b []byte) (n, surplus int, err error) {
	for i := 0; i < len(b); {
		if c.place == ended {
			return n, len(b) - i, nil
		}
		if c.place == inData {
			k := int(min(c.left, int64(len(b)-i)))
			n += copy(b[n:], b[i:i+k])
			i += k
			if c.left -= int64(k); c.left == 0 {
				c.place = inDataCR
			}
			continue
		}
		if !c.step(b[i]) {
			return n, 0, errChunk
		}
		i++
	}
	return n, 0, nil
}

// step takes one byte of the framing.
func (c *chunks) step(b byte) bool {
	switch c.place {
	case inSize:
		return c.size(b)
	case inExt:
		return c.skip(b, maxChunkLine, inSizeEnd)
	case inSizeEnd:
		if c.line, c.digits = 0, 0; c.left == 0 {
			return c.expect(b, '\n', inTrailer)
		}
		return c.expect(b, '\n', inData)
	case inDataCR:
		return c.expect(b, '\r', inDataLF)
	case inDataLF:
		return c.expect(b, '\n', inSize)
	case inTrailer:
		if b == '\r' {
			c.place = inEnd
			return true
		}
		c.place = inField
		return c.skip(b, maxHead, inFieldEnd)
	case inField:
		return c.skip(b, maxHead, inFieldEnd)
	case inFieldEnd:
		return c.expect(b, '\n', inTrailer)
	}
	return c.expect(b, '\n', ended)
}

func (c *chunks) size(b byte) bool {
	digit := int64(-1)
	switch {
	case '0' <= b && b <= '9':
		digit = int64(b - '0')
	case 'a' <= b|0x20 && b|0x20 <= 'f':
		digit = int64(b|0x20-'a') + 10
	}
	switch {
	case digit >= 0:
		c.digits++
		c.left = c.left<<4 | digit
		return c.digits <= 15
	case c.digits == 0:
		return false
	case b == '\r':
		c.place = inSizeEnd
		return true
	case b == ';' || b == ' ' || b == '\t':
		c.place = inExt
		return true
	}
	return false
}

// skip takes a byte of a line that is ignored, up to its CR.
func (c *chunks) skip(b byte, limit, then int) bool {
	if c.line++; c.line > limit || b == '\n' {
		return false
	}
	if b == '\r' {
		c.place = then
	}
	return true
}

func (c *chunks) expect(b, want byte, then int) bool {
	c.place = then
	return b == want
}
