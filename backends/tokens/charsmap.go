package tokens

import (
	"bytes"
	"encoding/binary"
	"errors"
	"unicode/utf8"
)

// charsmap is the normaliser of a SentencePiece model ("precompiled_charsmap"):
// the length of a double array in bytes, the array, then replacements, each
// ended by NUL. A unit of the array has its label in bits 0 to 7, bit 8 says that
// a value hangs on it, bits 10 to 30 are the offset of its children, which bit 9
// multiplies by 256 (Darts-clone).
type charsmap struct {
	units []uint32
	texts []byte
}

var errCharsmap = errors.New("the precompiled charsmap is damaged")

func newCharsmap(data []byte) (*charsmap, error) {
	if len(data) == 0 {
		return nil, nil
	}
	if len(data) < 4 {
		return nil, errCharsmap
	}
	size := binary.LittleEndian.Uint32(data)
	if size%4 != 0 || size == 0 || uint64(size)+4 >= uint64(len(data)) || data[len(data)-1] != 0 {
		return nil, errCharsmap
	}
	m := &charsmap{texts: data[4+size:]}
	for at := uint32(4); at < 4+size; at += 4 {
		m.units = append(m.units, binary.LittleEndian.Uint32(data[at:]))
	}
	return m, nil
}

// unit is a unit of the array; beyond its end one without a label that any byte has.
func (m *charsmap) unit(at uint32) uint32 {
	if at < uint32(len(m.units)) {
		return m.units[at]
	}
	return 1 << 31
}

func offset(unit uint32) uint32 { return unit >> 10 << (unit & (1 << 9) >> 6) }

// match is the longest prefix of text that is replaced, and by what.
func (m *charsmap) match(text []byte) (n int, by []byte) {
	at := offset(m.unit(0))
	for i, b := range text {
		if at ^= uint32(b); b == 0 || m.unit(at)&(1<<31|0xFF) != uint32(b) {
			break
		}
		unit := m.unit(at)
		at ^= offset(unit)
		if unit>>8&1 == 0 {
			continue
		}
		if value := m.unit(at) &^ (1 << 31); value < uint32(len(m.texts)) {
			n, by = i+1, m.texts[value:]
		}
	}
	if n > 0 {
		by = by[:bytes.IndexByte(by, 0)]
	}
	return n, by
}

// normalize appends text with all replacements made.
func (m *charsmap) normalize(dst, text []byte) []byte {
	for len(text) > 0 {
		n, by := m.match(text)
		if n == 0 {
			_, n = utf8.DecodeRune(text)
			by = text[:n]
		}
		dst, text = append(dst, by...), text[n:]
	}
	return dst
}
