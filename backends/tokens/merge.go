package tokens

import "sync"

// merger joins neighbours, the best pair first and of equals the leftmost, until
// none is left that may be joined: the heart of BPE, and of what SentencePiece
// calls BPE.
type merger struct {
	// pairs: ids of both sides → rank and id of what they become; a lower rank
	// goes first.
	pairs table
	// weight is how many tokens a symbol counts for: 1, or, where the vocabulary
	// has it not, what its bytes count for.
	weight []uint8
}

// scratch is memory for one count.
type scratch struct {
	ids   []uint32
	joins []uint64 // by symbol: the value of pairs for it and the next one
	next  []int32
	prev  []int32
	heap  []candidate
	best  []path // unigram
	text  []byte
	word  []byte
}

var scratches = sync.Pool{New: func() any { return &scratch{} }}

// release gives memory back; what one huge word needed goes to the collector.
func (s *scratch) release() {
	if cap(s.ids) <= 1<<16 && cap(s.text) <= 1<<18 && cap(s.best) <= 1<<16 {
		scratches.Put(s)
	}
}

// longWord is from which number of symbols, or bytes, a word is cut: it counts for
// one token more at each cut at most, and a megabyte without a space takes a tenth of
// a second, not whole ones.
const longWord = 1 << 14

// short is up to which number of symbols looking at all of them is quicker than
// a heap.
const short = 40

// count joins s.ids and adds up what is left.
func (m *merger) count(s *scratch) int {
	if len(s.ids) > short {
		return m.countLong(s)
	}
	ids, joins := s.ids, s.joins[:0]
	for i := 1; i < len(ids); i++ {
		joins = append(joins, m.pairs.get(pair(ids[i-1], ids[i])))
	}
	for len(joins) > 0 {
		at, rank := -1, none>>32
		for i, j := range joins {
			if j>>32 < rank {
				at, rank = i, j>>32
			}
		}
		if at < 0 {
			break
		}
		ids[at] = uint32(joins[at])
		ids = append(ids[:at+1], ids[at+2:]...)
		joins = append(joins[:at], joins[at+1:]...)
		if at > 0 {
			joins[at-1] = m.pairs.get(pair(ids[at-1], ids[at]))
		}
		if at < len(joins) {
			joins[at] = m.pairs.get(pair(ids[at], ids[at+1]))
		}
	}
	s.joins = joins
	n := 0
	for _, id := range ids {
		n += int(m.weight[id])
	}
	return n
}

// candidate is a pair that may be joined, as it was when it was found.
type candidate struct {
	rank        uint32
	at          int32
	left, right uint32
	id          uint32
}

func (a candidate) before(b candidate) bool {
	return a.rank < b.rank || a.rank == b.rank && a.at < b.at
}

// countLong does the same with a heap: n log n for one word of a megabyte.
func (m *merger) countLong(s *scratch) (sum int) {
	all := s.ids
	for len(all) > 0 {
		s.ids = all[:min(len(all), longWord)]
		all = all[len(s.ids):]
		sum += m.countHeap(s)
	}
	return sum
}

func (m *merger) countHeap(s *scratch) int {
	n := len(s.ids)
	s.next, s.prev, s.heap = grown(s.next, n), grown(s.prev, n), s.heap[:0]
	for i := range n {
		s.next[i], s.prev[i] = int32(i+1), int32(i-1)
	}
	for i := range n - 1 {
		m.propose(s, int32(i))
	}
	for len(s.heap) > 0 {
		c := s.pop()
		right := s.next[c.at]
		if s.ids[c.at] != c.left || right >= int32(n) || s.ids[right] != c.right {
			continue // one of them has been joined since
		}
		s.ids[c.at], s.ids[right] = c.id, gone
		after := s.next[right]
		if s.next[c.at] = after; after < int32(n) {
			s.prev[after] = c.at
		}
		m.propose(s, s.prev[c.at])
		m.propose(s, c.at)
	}
	sum := 0
	for at := int32(0); at < int32(n); at = s.next[at] {
		sum += int(m.weight[s.ids[at]])
	}
	return sum
}

// gone is the id of a symbol that has become part of the one before it.
const gone = ^uint32(0)

func grown[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// propose pushes the pair that begins at a symbol, if it may be joined.
func (m *merger) propose(s *scratch, at int32) {
	if at < 0 || s.next[at] >= int32(len(s.ids)) {
		return
	}
	left, right := s.ids[at], s.ids[s.next[at]]
	join := m.pairs.get(pair(left, right))
	if join == none {
		return
	}
	h := append(s.heap, candidate{uint32(join >> 32), at, left, right, uint32(join)})
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !h[i].before(h[up]) {
			break
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
	s.heap = h
}

func (s *scratch) pop() candidate {
	h := s.heap
	top, last := h[0], len(h)-1
	h[0] = h[last]
	h = h[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child >= last {
			break
		}
		if child+1 < last && h[child+1].before(h[child]) {
			child++
		}
		if !h[child].before(h[i]) {
			break
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
	s.heap = h
	return top
}
