package loadgen

import "strconv"

// maxDepth bounds how deep the events of a stream nest; real ones need 8.
const maxDepth = 1000

// cursor walks over one JSON document and checks it on the way (RFC 8259). The
// events of a stream come by the hundred thousand, and a handful of fields is
// wanted of each: one pass without an allocation finds them.
//
// Each value must be consumed by exactly one of enter, text, whole and skip. What
// is not as asked is skipped. Keys are compared as they are written: no server
// writes a letter of a key as \u0061.
type cursor struct {
	p     []byte
	i     int
	depth int
	fresh bool // no element of the object or array has been seen
	bad   bool // the document is no JSON; nothing more will be found
}

// fail ends the walk.
func (c *cursor) fail() { c.bad, c.i = true, len(c.p) }

// peek returns the next byte that is no space, 0 at the end.
func (c *cursor) peek() byte {
	for ; c.i < len(c.p); c.i++ {
		switch b := c.p[c.i]; b {
		case ' ', '\t', '\n', '\r':
		default:
			return b
		}
	}
	return 0
}

// enter steps into an object or array; another value is skipped.
func (c *cursor) enter(open byte) bool {
	if c.peek() != open {
		c.skip()
		return false
	}
	c.step()
	return !c.bad
}

func (c *cursor) step() {
	if c.depth++; c.depth > maxDepth {
		c.fail()
		return
	}
	c.i, c.fresh = c.i+1, true
}

// more goes to the next element and reports whether there is one; after the last
// it has left the object or array.
func (c *cursor) more(end byte) bool {
	b := c.peek()
	switch {
	case c.bad:
		return false
	case b == end:
		c.i, c.depth, c.fresh = c.i+1, c.depth-1, false
		return false
	case c.fresh:
	case b != ',':
		c.fail()
		return false
	default:
		c.i++
		if c.peek() == end {
			c.fail()
			return false
		}
	}
	c.fresh = false
	return true
}

// item goes to the next element of an array.
func (c *cursor) item() bool { return c.more(']') }

// key goes to the next value of an object and returns its key.
func (c *cursor) key() ([]byte, bool) {
	if !c.more('}') {
		return nil, false
	}
	if c.peek() != '"' {
		c.fail()
		return nil, false
	}
	key := c.quoted()
	if c.peek() != ':' {
		c.fail()
		return nil, false
	}
	c.i++
	return key, true
}

// text consumes a value and returns the inside of the string that it is, escapes
// as they are; nil if it is none.
func (c *cursor) text() []byte {
	if c.peek() != '"' {
		c.skip()
		return nil
	}
	return c.quoted()
}

// whole consumes a value and returns the whole number that it is.
func (c *cursor) whole() (n int, ok bool) {
	b := c.peek()
	from := c.i
	c.skip()
	if c.bad || b != '-' && (b < '0' || b > '9') {
		return 0, false
	}
	raw := c.p[from:c.i]
	if len(raw) > 15 || b == '-' {
		f, err := strconv.ParseFloat(string(raw), 64) // rare
		return int(f), err == nil && f > -1e15 && f < 1e15
	}
	for _, d := range raw {
		if d < '0' || d > '9' {
			f, err := strconv.ParseFloat(string(raw), 64)
			return int(f), err == nil && f < 1e15
		}
		n = n*10 + int(d-'0')
	}
	return n, true
}

// skip consumes any value.
func (c *cursor) skip() {
	switch b := c.peek(); b {
	case '{':
		for c.step(); ; c.skip() {
			if _, ok := c.key(); !ok {
				return
			}
		}
	case '[':
		for c.step(); c.item(); c.skip() {
		}
	case '"':
		c.quoted()
	case 't':
		c.word("true")
	case 'f':
		c.word("false")
	case 'n':
		c.word("null")
	default:
		c.number()
	}
}

func (c *cursor) word(w string) {
	if len(c.p)-c.i < len(w) || string(c.p[c.i:c.i+len(w)]) != w {
		c.fail()
		return
	}
	c.i += len(w)
}

// number consumes a number: -? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)?
func (c *cursor) number() {
	if c.at('-') {
		c.i++
	}
	if c.at('0') {
		c.i++
	} else if !c.digits() {
		return
	}
	if c.at('.') {
		if c.i++; !c.digits() {
			return
		}
	}
	if c.at('e') || c.at('E') {
		if c.i++; c.at('+') || c.at('-') {
			c.i++
		}
		c.digits()
	}
}

func (c *cursor) at(b byte) bool { return c.i < len(c.p) && c.p[c.i] == b }

// digits consumes at least one digit.
func (c *cursor) digits() bool {
	from := c.i
	for c.i < len(c.p) && c.p[c.i] >= '0' && c.p[c.i] <= '9' {
		c.i++
	}
	if c.i == from {
		c.fail()
		return false
	}
	return true
}

// quoted consumes a string and returns its inside.
func (c *cursor) quoted() []byte {
	from := c.i + 1
	for i := from; i < len(c.p); i++ {
		switch b := c.p[i]; {
		case b == '"':
			c.i = i + 1
			return c.p[from:i]
		case b == '\\':
			if i++; !c.escape(&i) {
				c.fail()
				return nil
			}
		case b < ' ':
			c.fail()
			return nil
		}
	}
	c.fail()
	return nil
}

// escape checks what stands after a backslash and leaves i at its last byte.
func (c *cursor) escape(i *int) bool {
	if *i >= len(c.p) {
		return false
	}
	switch c.p[*i] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return true
	case 'u':
		for range 4 {
			if *i++; *i >= len(c.p) || !isHex(c.p[*i]) {
				return false
			}
		}
		return true
	}
	return false
}

func isHex(b byte) bool {
	return '0' <= b && b <= '9' || 'a' <= b && b <= 'f' || 'A' <= b && b <= 'F'
}

// ended reports whether the walk has come to the end of a document that is
// right.
func (c *cursor) ended() bool { return c.peek() == 0 && c.i == len(c.p) && !c.bad && c.depth == 0 }
