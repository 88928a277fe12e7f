package arrivals

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// MaxPlan bounds every plan, in arrivals: 5 million are 40 MB of offsets.
const MaxPlan = 5_000_000

// maxPhase is the longest phase: a week, the longest period that traffic has.
const maxPhase = 7 * 24 * time.Hour

// Phase is a stretch of a run with one arrival process.
type Phase struct {
	Name     string        `yaml:"name"`
	Duration time.Duration `yaml:"duration"`
	Process  Process       `yaml:"process"`
}

// Validate reports the first thing that is wrong with the phase.
func (p Phase) Validate() error {
	if p.Name == "" {
		return errors.New("a phase has no name")
	}
	if p.Duration <= 0 || p.Duration > maxPhase {
		return fmt.Errorf("phase %q lasts %v, want more than 0 and at most %v", p.Name, p.Duration, maxPhase)
	}
	if err := p.Process.Validate(); err != nil {
		return fmt.Errorf("phase %q: %w", p.Name, err)
	}
	return nil
}

// Span is where one phase lies in a plan: its time [From, To) and its arrivals
// Offsets[First : First+N].
type Span struct {
	Name     string
	From, To time.Duration
	First, N int
}

// Plan is a schedule: when every request is meant to start, counted from the
// start of the run. Offsets never decrease.
type Plan struct {
	Offsets []time.Duration
	Spans   []Span
	Shapes  []Shape // one for each offset; nil = nothing is planned but times
}

// Shape is what else is planned of a request. Zeroes leave it to the workload.
type Shape struct {
	Input, Output uint32 // tokens
	Tenant        uint16 // index into the workload's tenants
}

// End is when the last phase ends.
func (p Plan) End() time.Duration {
	if len(p.Spans) == 0 {
		return 0
	}
	return p.Spans[len(p.Spans)-1].To
}

// Hash identifies the schedule: equal plans have equal hashes on any machine.
func (p Plan) Hash() string {
	h := sha256.New()
	var b [8]byte
	for _, at := range p.Offsets {
		binary.LittleEndian.PutUint64(b[:], uint64(at))
		h.Write(b[:])
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// Rand returns the generator that everything planned for (seed, stream) draws
// from. Streams are independent, so that changing one workload leaves the
// arrivals of the others as they were.
func Rand(seed, stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream)) }

// Build plans the phases one after another. Gaps are used as drawn and never
// rescaled to hit a count, since that would bend the process. It fails, rather
// than cut short, when the plan would exceed limit (0 means MaxPlan).
func Build(r *rand.Rand, phases []Phase, limit int) (Plan, error) {
	if limit <= 0 || limit > MaxPlan {
		limit = MaxPlan
	}
	if len(phases) == 0 {
		return Plan{}, errors.New("arrivals: no phases")
	}
	expected := 0.0
	for _, ph := range phases {
		if err := ph.Validate(); err != nil {
			return Plan{}, fmt.Errorf("arrivals: %w", err)
		}
		expected += ph.Process.expected(ph.Duration)
	}
	if expected > float64(limit) {
		return Plan{}, fmt.Errorf("arrivals: about %.0f arrivals expected, at most %d are planned", expected, limit)
	}
	plan := Plan{Offsets: make([]time.Duration, 0, int(expected)+int(expected)/8+8)}
	var from time.Duration
	for _, ph := range phases {
		// A stream per phase: a longer phase must not move the next one's gaps.
		stream := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
		first, full := len(plan.Offsets), false
		ph.Process.draw(stream, ph.Duration, func(at time.Duration) bool {
			if full = len(plan.Offsets) == limit; full {
				return false
			}
			plan.Offsets = append(plan.Offsets, from+at)
			return true
		})
		if full {
			return Plan{}, fmt.Errorf("arrivals: phase %q passes the limit of %d arrivals", ph.Name, limit)
		}
		plan.Spans = append(plan.Spans, Span{ph.Name, from, from + ph.Duration, first, len(plan.Offsets) - first})
		from += ph.Duration
	}
	return plan, nil
}

// Replay plans recorded arrivals as they were, as one phase that ends with the
// last of them. The records must be in order of time (Read sorts them).
func Replay(name string, records []Record) (Plan, error) {
	if len(records) == 0 || len(records) > MaxPlan {
		return Plan{}, fmt.Errorf("arrivals: replay of %d records, want 1 to %d", len(records), MaxPlan)
	}
	plan := Plan{Offsets: make([]time.Duration, len(records))}
	for i, rec := range records {
		if i > 0 && rec.Offset < records[i-1].Offset {
			return Plan{}, fmt.Errorf("arrivals: record %d comes at %v, before the one ahead of it", i, rec.Offset)
		}
		plan.Offsets[i] = rec.Offset
	}
	plan.Spans = []Span{{Name: name, To: records[len(records)-1].Offset + 1, N: len(records)}}
	return plan, nil
}
