package llama

import (
	"cmp"
	"math"
	"slices"
)

// sampler picks tokens for one sequence, the same ones for the same seed
// whatever else is in the batch, as far as that can be: batch shapes change the
// rounding of llama.cpp's logits (1e-3 was seen), so a draw must not hang on
// the order of near-equal tokens or on sums over many.
type sampler struct {
	temperature float64 // 0 = greedy
	topP        float64
	seed        uint64
	step        uint64      // picks made
	nucleus     []candidate // scratch
}

type candidate struct {
	token int
	p     float64 // unnormalised
}

// pick returns the next token. A NaN logit counts as impossible.
func (s *sampler) pick(logits []float32) int {
	best := argmax(logits)
	if s.temperature <= 0 || s.topP <= 0 {
		return best
	}
	var sum float64
	s.nucleus = s.nucleus[:0]
	for i, l := range logits {
		if p := math.Exp(float64(l-logits[best]) / s.temperature); p > 0 {
			s.nucleus = append(s.nucleus, candidate{i, p})
			sum += p
		}
	}
	if s.topP < 1 {
		s.cut(sum)
	}
	s.step++
	return race(s.nucleus, mix(s.seed+s.step*golden), best)
}

// race draws a token with probability proportional to p: each runs for an
// exponentially distributed time with rate p, the first wins (the Gumbel-max
// trick). A token's time depends on the seed and on itself alone.
func race(tokens []candidate, seed uint64, winner int) int {
	first := math.Inf(1)
	for _, c := range tokens {
		u := (float64(mix(seed+uint64(c.token)*golden)>>11) + 0.5) / (1 << 53)
		if 1-u >= first*c.p { // -log(u) is no less: most need no logarithm
			continue
		}
		if t := -math.Log(u) / c.p; t < first {
			first, winner = t, c.token
		}
	}
	return winner
}

const golden = 0x9e3779b97f4a7c15 // 2^64 / golden ratio, the step of SplitMix64

// mix is the output function of SplitMix64 (Steele, Lea and Flood 2014).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// cut keeps the smallest set of most likely tokens that has topP of the mass,
// which is sum (Holtzman et al. 2019). It sorts only what is needed, which is
// little of a vocabulary of 100,000 tokens.
func (s *sampler) cut(sum float64) {
	floor := 0.1 // the most likely token has p = 1
	for s.mass(floor) < s.topP*sum && floor > 1e-300 {
		floor /= 10
	}
	s.nucleus = slices.DeleteFunc(s.nucleus, func(c candidate) bool { return c.p < floor })
	slices.SortFunc(s.nucleus, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.p, a.p), cmp.Compare(a.token, b.token))
	})
	var mass float64
	for i, c := range s.nucleus {
		if mass += c.p; mass >= s.topP*sum {
			s.nucleus = s.nucleus[:i+1]
			return
		}
	}
}

// mass adds up the tokens with a p of at least floor.
func (s *sampler) mass(floor float64) (sum float64) {
	for _, c := range s.nucleus {
		if c.p >= floor {
			sum += c.p
		}
	}
	return sum
}

func argmax(logits []float32) int {
	best := 0
	for i, l := range logits {
		if l > logits[best] || logits[best] != logits[best] {
			best = i
		}
	}
	return best
}

// logprobs returns the natural logarithm of the model's own probability of
// token (before temperature and top_p) and the n most likely tokens with theirs.
func logprobs(logits []float32, token, n int) (float64, []candidate) {
	peak := float64(logits[argmax(logits)])
	var sum float64
	var top []candidate
	for i, l := range logits {
		if l != l {
			continue
		}
		sum += math.Exp(float64(l) - peak)
		if len(top) < n || n > 0 && float64(l) > top[n-1].p {
			at := slices.IndexFunc(top, func(c candidate) bool { return float64(l) > c.p })
			if at < 0 {
				at = len(top)
			}
			top = slices.Insert(top, at, candidate{i, float64(l)})
			top = top[:min(len(top), n)]
		}
	}
	norm := peak + math.Log(sum)
	for i := range top {
		top[i].p -= norm
	}
	return float64(logits[token]) - norm, top
}
