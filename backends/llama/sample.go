package llama

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
)

// sampler picks tokens for one sequence. It draws from its own generator, once
// per token, so the same seed gives the same text whatever else is in the batch
// (as far as llama.cpp's logits are the same: batch shapes change rounding).
type sampler struct {
	temperature float64 // 0 = greedy
	topP        float64
	rng         *rand.Rand
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
		sum = s.cut(sum)
	}
	x := s.rng.Float64() * sum
	for _, c := range s.nucleus {
		if x -= c.p; x < 0 {
			return c.token
		}
	}
	return best
}

// cut keeps the smallest set of most likely tokens that has topP of the mass
// (Holtzman et al. 2019) and returns its mass. Tokens below (1-topP)/n of the
// mass have less than 1-topP together, so the others suffice and only they are
// sorted, which matters with 100,000 tokens.
func (s *sampler) cut(sum float64) float64 {
	floor := (1 - s.topP) * sum / float64(len(s.nucleus))
	s.nucleus = slices.DeleteFunc(s.nucleus, func(c candidate) bool { return c.p < floor })
	slices.SortFunc(s.nucleus, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.p, a.p), cmp.Compare(a.token, b.token))
	})
	var mass float64
	for i, c := range s.nucleus {
		if mass += c.p; mass >= s.topP*sum {
			s.nucleus = s.nucleus[:i+1]
			break
		}
	}
	return mass
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
