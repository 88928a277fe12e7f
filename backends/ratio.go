package backends

import (
	"math"
	"sync/atomic"
)

// Ratio is the Counter of a model whose vocabulary is not at hand: bytes per
// token, learned from the usage that engines report. The zero value assumes 4.
type Ratio struct{ bits atomic.Uint64 }

// Count implements Counter; a non-empty text has at least one token.
func (r *Ratio) Count(text []byte) int {
	return int(math.Ceil(float64(len(text)) / r.bytesPerToken()))
}

// Observe learns from one answer: a moving average that forgets slowly, so that
// one odd prompt does not shift every estimate. Races lose a sample, no more.
func (r *Ratio) Observe(bytes, tokens int) {
	if bytes <= 0 || tokens <= 0 {
		return
	}
	const weight = 0.05
	next := r.bytesPerToken()*(1-weight) + weight*float64(bytes)/float64(tokens)
	r.bits.Store(math.Float64bits(next))
}

func (r *Ratio) bytesPerToken() float64 {
	if bits := r.bits.Load(); bits != 0 {
		return math.Float64frombits(bits)
	}
	return 4
}
