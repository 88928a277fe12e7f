package tokens

import "math/bits"

// table maps a pair of numbers to a pair of numbers: merges by the ids of both
// sides, or the edges of a trie by node and byte. A lookup costs a few
// nanoseconds where Go's map costs 20, and a long word makes dozens of them.
// It is filled once, with as many entries as it was made for at most.
type table struct {
	keys   []uint64 // 0 = free; a key is stored plus one
	values []uint64
	shift  uint
}

// none is the value of what is not there; no value equals it.
const none = ^uint64(0)

func newTable(entries int) table {
	size := max(4, bits.Len(uint(entries+entries/2)))
	return table{keys: make([]uint64, 1<<size), values: make([]uint64, 1<<size), shift: 64 - uint(size)}
}

func pair(high, low uint32) uint64 { return uint64(high)<<32 | uint64(low) }

// slot is where a key is, or would be.
func (t *table) slot(key uint64) uint64 {
	at := (key + 1) * 0x9E3779B97F4A7C15 >> t.shift
	for t.keys[at] != 0 && t.keys[at] != key+1 {
		at = (at + 1) & uint64(len(t.keys)-1)
	}
	return at
}

func (t *table) get(key uint64) uint64 {
	if at := t.slot(key); t.keys[at] != 0 {
		return t.values[at]
	}
	return none
}

// put enters what is not there yet; the first of a key stays.
func (t *table) put(key, value uint64) {
	if at := t.slot(key); t.keys[at] == 0 {
		t.keys[at], t.values[at] = key+1, value
	}
}

// trie finds the words of a list that a text begins with.
type trie struct {
	edges table
	ends  []uint32 // by node: what ends there, plus one; 0 = nothing
}

// newTrie holds words, the value of each being its index.
func newTrie(words []string) trie {
	bytes := 1
	for _, w := range words {
		bytes += len(w)
	}
	t := trie{edges: newTable(bytes), ends: make([]uint32, 1, len(words)+1)}
	for i, w := range words {
		node := uint32(0)
		for j := range len(w) {
			next := t.step(node, w[j])
			if next == 0 {
				next = uint32(len(t.ends))
				t.ends = append(t.ends, 0)
				t.edges.put(pair(node, uint32(w[j])), uint64(next))
			}
			node = next
		}
		if t.ends[node] == 0 && node != 0 {
			t.ends[node] = uint32(i) + 1
		}
	}
	return t
}

// step follows a byte; 0 = no word goes on like this.
func (t *trie) step(node uint32, b byte) uint32 {
	if next := t.edges.get(pair(node, uint32(b))); next != none {
		return uint32(next)
	}
	return 0
}

// longest returns the length of the longest word that text begins with, and its
// index; 0 = there is none.
func (t *trie) longest(text []byte) (n, word int) {
	node := uint32(0)
	for i, b := range text {
		if node = t.step(node, b); node == 0 {
			break
		}
		if end := t.ends[node]; end != 0 {
			n, word = i+1, int(end-1)
		}
	}
	return n, word
}
