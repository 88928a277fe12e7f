// Package law is how long the timed engine takes: pure functions of sizes. The
// engine (backends/synthetic) sleeps by it and the simulator counts by it, so
// that both speak of the same machine.
package law

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Law describes one engine on one shape. Times are milliseconds so that it
// reads well in a configuration file.
type Law struct {
	// An embeddings batch of S tokens takes AlphaMs + BetaMsPerToken·S
	// Padded engines compute rows × longest.
	AlphaMs        float64
	BetaMsPerToken float64
	Padded         bool

	// A decode step over n sequences takes StepMs + StepMsPerSeq·n and gives
	// each one token; prompts that join it add their prefill time.
	StepMs            float64
	StepMsPerSeq      float64
	PrefillTokensPerS float64

	Slots       int // sequences that decode at once
	KVTokens    int // tokens of KV cache over all of them, 0 = no limit
	BlockTokens int // KV is given out in blocks of this many tokens

	StartMs float64 // process start to ready
	SleepMs float64
	WakeMs  float64
}

// Default is a small encoder or language model on one whole GPU, of the order
// that published figures give; not a measurement of any machine.
func Default() Law {
	return Law{
		AlphaMs: 4, BetaMsPerToken: 0.02,
		StepMs: 6, StepMsPerSeq: 0.15, PrefillTokensPerS: 20000,
		Slots: 16, KVTokens: 65536, BlockTokens: 16,
		StartMs: 0, SleepMs: 200, WakeMs: 500,
	}
}

// Validate says which number is out of range.
func (l Law) Validate() error {
	for name, v := range map[string]float64{
		"alpha_ms": l.AlphaMs, "beta_ms_per_token": l.BetaMsPerToken, "step_ms": l.StepMs, "step_ms_per_seq": l.StepMsPerSeq,
		"start_ms": l.StartMs, "sleep_ms": l.SleepMs, "wake_ms": l.WakeMs,
	} {
		if !(v >= 0 && v <= 1e7) { // NaN too; 1e7 ms is almost three hours
			return fmt.Errorf("law: %s is %v, want 0 to 1e7 ms", name, v)
		}
	}
	switch {
	case !(l.PrefillTokensPerS > 0) || math.IsInf(l.PrefillTokensPerS, 0):
		return fmt.Errorf("law: prefill_tokens_per_s is %v, want more than 0", l.PrefillTokensPerS)
	case l.Slots < 0 || l.KVTokens < 0:
		return errors.New("law: slots or kv_tokens is negative")
	case l.BlockTokens < 1:
		return fmt.Errorf("law: block_tokens is %d, want at least 1", l.BlockTokens)
	}
	return nil
}

// Scaled is the law on a shape with the given shares of the compute and of the
// memory (and its bandwidth) of the shape that l describes. Computing (beta,
// prefill) follows the compute share; decoding, which reads weights and cache
// for every token, the memory share; launch overhead and the host's part of
// sleeping and waking stay. KV and slots shrink with memory, slots to at least
// one. Shares must be above 0.
func (l Law) Scaled(compute, memory float64) Law {
	l.BetaMsPerToken /= compute
	l.PrefillTokensPerS *= compute
	l.StepMs /= memory
	l.StepMsPerSeq /= memory
	l.KVTokens = int(float64(l.KVTokens) * memory)
	if l.Slots > 0 {
		l.Slots = max(1, int(float64(l.Slots)*memory))
	}
	return l
}

func ms(v float64) time.Duration { return time.Duration(v * float64(time.Millisecond)) }

// BatchTokens is the size that counts for a batch of rows of these lengths.
func (l Law) BatchTokens(lengths []int) int {
	sum, longest := 0, 0
	for _, n := range lengths {
		sum += n
		longest = max(longest, n)
	}
	if l.Padded {
		return len(lengths) * longest
	}
	return sum
}

// Batch is the time of one embeddings batch.
func (l Law) Batch(tokens int) time.Duration { return ms(l.AlphaMs + l.BetaMsPerToken*float64(tokens)) }

// Prefill is the time that a prompt adds to the step it joins.
func (l Law) Prefill(tokens int) time.Duration {
	return ms(float64(tokens) / l.PrefillTokensPerS * 1000)
}

// Step is the time of one decode step over seqs sequences.
func (l Law) Step(seqs int) time.Duration { return ms(l.StepMs + l.StepMsPerSeq*float64(seqs)) }

// KV is how many tokens of cache a sequence of this size holds, whole blocks.
func (l Law) KV(tokens int) int {
	return (tokens + l.BlockTokens - 1) / l.BlockTokens * l.BlockTokens
}

// Fits reports whether a sequence that will hold kv joins running ones, of
// which there are seqs with used tokens of cache.
func (l Law) Fits(seqs, used, kv int) bool {
	return seqs < l.Slots && (l.KVTokens == 0 || used+kv <= l.KVTokens)
}

// Knee is the batch size at which launch overhead is the share eps of the
// batch: alpha(1-eps)/(eps·beta); at least 1.
func (l Law) Knee(eps float64) int {
	if l.BetaMsPerToken == 0 {
		return math.MaxInt32 // larger is always better
	}
	return max(1, int(math.Min(l.AlphaMs*(1-eps)/(eps*l.BetaMsPerToken), math.MaxInt32)))
}

// Start, Sleep and Wake are the times of the state changes.
func (l Law) Start() time.Duration { return ms(l.StartMs) }

// Sleep is the time to go to sleep, running work already done.
func (l Law) Sleep() time.Duration { return ms(l.SleepMs) }

// Wake is the time from asleep to serving.
func (l Law) Wake() time.Duration { return ms(l.WakeMs) }
