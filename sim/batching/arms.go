package batching

import (
	"time"

	"aloft/backends/synthetic/law"
	"aloft/batcher"
	"aloft/loadgen/arrivals"
)

// The names of the arms.
const (
	NoBatch   = "no batch"
	Eager     = "eager"
	FixedArm  = "fixed"
	Tuned     = "tuned"
	AIMDArm   = "AIMD"
	AIMDHalf  = "AIMD, half"
	TokenArm  = "token FIFO"
	CorkArm   = "cork"
	LateArm   = "shed-late EDF"
	Ours      = "ours, eta 0"
	OursSaves = "ours, eta 1"
	// OursBlind is Ours with all requests of one tenant: deadlines alone decide.
	OursBlind = "ours, deadlines only"
)

// Arms is how the arms of every cell are called, in the order of tables.
var Arms = []string{NoBatch, Eager, FixedArm, Tuned, AIMDArm, AIMDHalf, TokenArm, CorkArm, LateArm, Ours, OursSaves}

// rows is how many rows the arms with a fixed one put in a call.
const rows = 32

// Usual is how an operator sets Triton's batcher for a target of 100 ms without a
// search: 32 rows, 5 ms and 50 ms; for other targets in proportion.
func Usual(target time.Duration) Fixed {
	return Fixed{Size: rows, Delay: target / 20, Timeout: target / 2}
}

// New makes the arm of this name for a world; tuned is what a search found.
func New(name string, w World, tuned Fixed) Policy {
	fleet := w.Fleet()
	switch name {
	case NoBatch:
		return Fixed{Size: 1}.Policy(fleet)
	case Eager: // as large as a call may be that fits into the target
		return Fixed{Size: 2 * rows, Timeout: w.Target}.Policy(fleet)
	case FixedArm:
		return Usual(w.Target).Policy(fleet)
	case Tuned:
		return tuned.Policy(fleet)
	case AIMDArm:
		return AIMD{Objective: w.Target}.Policy(fleet)
	case AIMDHalf: // for who knows that a call may have waited for another
		return AIMD{Objective: w.Target / 2}.Policy(fleet)
	case TokenArm: // likewise: a call may take half of the target
		return TokenFIFO{Tokens: w.within(w.Target / 2), Padded: w.Law.Padded}.Policy(fleet)
	case CorkArm:
		return Cork{Size: rows, Target: w.Target}.Policy(fleet)
	case LateArm: // two standard deviations of a call's time to spare
		return ShedLateEDF{Law: w.Law, Margin: 1 + 2*w.Noise, Target: w.Target}.Policy(fleet)
	case Ours, OursBlind:
		return Core(w, 0)
	case OursSaves:
		return Core(w, 1)
	}
	panic("BUG: no arm " + name)
}

// within is the largest call that takes so long, in tokens.
func (w World) within(d time.Duration) int {
	return max(1, int((d.Seconds()*1e3-w.Law.AlphaMs)/w.Law.BetaMsPerToken))
}

// Options are what ours is told: the target, and that no limit of the engine's is
// in the way.
func Options(w World) batcher.Options {
	return batcher.Options{Model: "timed", Merge: true, Target: w.Target, MaxBatchRows: 1 << 10, MaxBatchTokens: 1 << 20, MaxQueue: 1 << 20}
}

// Core is the real batcher, which is told the target and nothing of the law.
func Core(w World, eta float64) *batcher.Core {
	c := batcher.NewCore(Options(w))
	c.SetReplicas(epoch, w.Fleet())
	c.SetEta(epoch, eta)
	return c
}

// Paper is the world of research/batching-loadgen.md, section 4: four replicas of
// T = 6 ms + 10 µs a token that answer within 100 ms.
func Paper() World {
	l := law.Default()
	l.AlphaMs, l.BetaMsPerToken = 6, 0.010
	return World{Law: l, Replicas: 4, Target: 100 * time.Millisecond, Noise: 0.05, Warm: 2 * time.Second}
}

// HeavyTail is its lengths: lognormal of median 120 and mean about 196, at most
// 2,048; EvenLengths has the same mean and no tail.
func HeavyTail() *arrivals.Dist {
	return &arrivals.Dist{Kind: "lognormal", Mean: 197.8, CV: 1.311, Max: 2048}
}

// EvenLengths are between 100 and 300 tokens.
func EvenLengths() *arrivals.Dist { return &arrivals.Dist{Kind: "uniform", Min: 100, Max: 300} }
