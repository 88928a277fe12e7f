package arrivals

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// MaxPlan bounds every plan, in arrivals: 5 million are 40 MB of offsets.
const MaxPlan = 5_000_000

// maxPhase is the longest phase: a week, the longest period that traffic has.
const maxPhase = 7 * 24 * time.Hour

// maxTenants bounds those who send a workload.
const maxTenants = 10_000

// Phase is a stretch of a run with one arrival process.
type Phase struct {
	Name string `yaml:"name"`
	// Duration may be left out (0) for step, which says it itself, and for trace,
	// which then lasts to its end.
	Duration time.Duration `yaml:"duration,omitempty"`
	Process  Process       `yaml:"process"`
}

// Validate reports the first thing that is wrong with the phase.
func (p Phase) Validate() error {
	if p.Name == "" {
		return errors.New("name: a phase has no name")
	}
	if err := p.Process.Validate(); err != nil {
		return Keyed("process", fmt.Errorf("phase %q: %w", p.Name, err))
	}
	if d := p.length(); d < 0 || d > maxPhase || d == 0 && p.Process.Kind != Replay {
		return fmt.Errorf("duration: phase %q lasts %v, want more than 0 and at most %v", p.Name, d, maxPhase)
	}
	if p.Process.Kind == Steps && p.Duration != 0 && p.Duration != (Phase{Process: p.Process}).length() {
		return fmt.Errorf("duration: phase %q lasts %v and its steps %v", p.Name, p.Duration, (Phase{Process: p.Process}).length())
	}
	return nil
}

// length is how long the phase lasts, 0 if only its trace knows.
func (p Phase) length() time.Duration {
	if p.Duration != 0 || p.Process.Kind != Steps {
		return p.Duration
	}
	var sum time.Duration
	for _, s := range p.Process.Steps { // at most 1,000 of a week each: no overflow
		sum += s.For
	}
	return sum
}

// Span is where one phase lies in a plan: its time [From, To) and its arrivals
// Offsets[First : First+N].
type Span struct {
	Name     string        `json:"name"`
	From     time.Duration `json:"from_ns"`
	To       time.Duration `json:"to_ns"`
	First, N int           `json:"-"`
}

// Plan is a schedule: when every request is meant to start, counted from the
// start of the run. Offsets never decrease.
type Plan struct {
	Offsets []time.Duration
	Spans   []Span
	Shapes  []Shape // one for each offset; nil = nothing is planned but times
	// Warm is what comes before, with times of its own: it ends when the plan
	// begins. nil = nothing.
	Warm *Plan
	// Texts say which requests begin alike; those of the warm-up, too. nil = nothing
	// is known of that.
	Texts []Text
	// Notes say what was done to recorded traffic, for the report.
	Notes []string
}

// Shape is what else is planned of a request. Zeroes leave it to the workload.
type Shape struct {
	Input, Output uint32 // tokens
	Shared        uint32 // of the input's tokens, so many at its begin were in an earlier request too
	Text          uint32 // number of its text in the plan's Texts, from 1; 0 = it has one of its own
	Tenant        uint16 // index into the workload's tenants
	Copy          uint16 // of the trace: copies share no text
}

// End is when the last phase ends.
func (p Plan) End() time.Duration {
	if len(p.Spans) == 0 {
		return 0
	}
	return p.Spans[len(p.Spans)-1].To
}

// WarmUp is how long what comes before lasts.
func (p Plan) WarmUp() time.Duration {
	if p.Warm == nil {
		return 0
	}
	return p.Warm.End()
}

// Hash identifies all that is sent and when: offsets, warm-up, spans and shapes.
// Equal plans have equal hashes on any machine.
func (p Plan) Hash() string {
	h := sha256.New()
	b := make([]byte, 0, 64)
	le := binary.LittleEndian
	write := func(values ...uint64) {
		b = b[:0]
		for _, v := range values {
			b = le.AppendUint64(b, v)
		}
		h.Write(b)
	}
	write(uint64(len(p.Offsets)), uint64(len(p.Shapes)), uint64(len(p.Spans)))
	for _, at := range p.Offsets {
		write(uint64(at))
	}
	for _, s := range p.Shapes {
		write(uint64(s.Input)<<32|uint64(s.Output), uint64(s.Shared)<<32|uint64(s.Tenant))
		if s.Text != 0 {
			write(uint64(s.Text)<<32 | uint64(s.Copy))
		}
	}
	for _, t := range p.Texts {
		write(uint64(t.Parent)<<32 | uint64(t.From))
	}
	for _, s := range p.Spans {
		write(uint64(len(s.Name)))
		io.WriteString(h, s.Name)
		write(uint64(s.From), uint64(s.To), uint64(s.First), uint64(s.N))
	}
	if p.Warm != nil {
		io.WriteString(h, p.Warm.Hash())
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// Spec is what a plan is made from.
type Spec struct {
	// Seed and Stream decide every draw. Streams are independent, so that changing
	// one workload leaves the others as they were; times, tenants and sizes each
	// have random numbers of their own for the same reason.
	Seed, Stream uint64
	// WarmUp is how long arrivals like those at the begin of the first phase come
	// before it, with random numbers of their own.
	WarmUp time.Duration
	Phases []Phase
	// Tenants send the requests, each a share of them; none plans no tenants. A
	// recorded request of one of them stays its own.
	Tenants []Tenant
	// Input and Output are the sizes, in tokens, of requests whose process says
	// none; nil leaves them to the workload.
	Input, Output *Dist
	// Closed plans the phases and no arrivals, for a closed loop.
	Closed bool
	// Open opens the file of a trace; nil means that none is to be had.
	Open func(file string) (io.ReadCloser, error)
}

// Tenant is one of those who send.
type Tenant struct {
	Name  string
	Share float64 // of the arrivals, relative to the others'
}

// The random streams of a workload.
const (
	timesStream = iota << 32
	tenantsStream
	inputStream
	outputStream
	warmStream // and as many after it
)

// Rand returns the generator for (seed, stream). Streams are independent.
func Rand(seed, stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream)) }

// Scramble makes seeds that have nothing in common of neighbouring numbers: one
// step of SplitMix64 (Steele, Lea and Flood 2014).
func Scramble(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// arrival is a planned request. Its tenant may still be anyone.
type arrival struct {
	at time.Duration
	Shape
}

const anyone = math.MaxUint16

func sortArrivals(a []arrival) {
	slices.SortStableFunc(a, func(a, b arrival) int { return cmp.Compare(a.at, b.at) })
}

// errFull: the plan would have more arrivals than it may.
var errFull = errors.New("passes the limit")

// builder plans one Spec.
type builder struct {
	spec    Spec
	left    int // arrivals that may still come
	tenants map[string]uint16
	texts   []Text
	notes   []string
}

func (b *builder) note(format string, args ...any) {
	if s := fmt.Sprintf(format, args...); !slices.Contains(b.notes, s) {
		b.notes = append(b.notes, s)
	}
}

// Build plans the phases one after another, and the warm-up. Gaps are used as
// drawn and never rescaled to hit a count, since that would bend the process. It
// fails, rather than cut short, when the plan would exceed limit (0 means
// MaxPlan).
func Build(spec Spec, limit int) (Plan, error) {
	if limit <= 0 || limit > MaxPlan {
		limit = MaxPlan
	}
	b := &builder{spec: spec, left: limit, tenants: map[string]uint16{}}
	if err := b.validate(limit); err != nil {
		return Plan{}, fmt.Errorf("arrivals: %w", err)
	}
	var warm *Plan
	if spec.WarmUp > 0 && !spec.Closed {
		p, err := b.plan(warmStream, []Phase{{"warm-up", spec.WarmUp, spec.Phases[0].Process.begin()}})
		if err != nil {
			return Plan{}, fmt.Errorf("arrivals: %w", b.full(err, limit))
		}
		warm = &p
	}
	plan, err := b.plan(0, spec.Phases)
	if err != nil {
		return Plan{}, fmt.Errorf("arrivals: %w", b.full(err, limit))
	}
	plan.Warm, plan.Texts, plan.Notes = warm, b.texts, b.notes
	return plan, nil
}

// plan plans phases from the streams that lie so far from the workload's own.
func (b *builder) plan(from uint64, phases []Phase) (Plan, error) {
	var plan Plan
	var all []arrival
	var begin time.Duration
	r := Rand(b.spec.Seed, b.spec.Stream+from+timesStream)
	for i, ph := range phases {
		// A stream per phase: a longer phase must not move the next one's gaps.
		stream := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
		var more []arrival
		d, err := ph.length(), error(nil)
		if !b.spec.Closed {
			more, d, err = b.draw(stream, ph.Process, d)
		}
		if err != nil {
			return Plan{}, Keyed(fmt.Sprintf("phases[%d]", i), Keyed("process", fmt.Errorf("phase %q: %w", ph.Name, err)))
		}
		plan.Spans = append(plan.Spans, Span{ph.Name, begin, begin + d, len(all), len(more)})
		for _, a := range more {
			a.at += begin
			all = append(all, a)
		}
		b.left -= len(more)
		begin += d
	}
	plan.Offsets = make([]time.Duration, len(all))
	for i, a := range all {
		plan.Offsets[i] = a.at
	}
	plan.Shapes = b.shapes(from, all)
	return plan, nil
}

func (b *builder) full(err error, limit int) error {
	if errors.Is(err, errFull) {
		return fmt.Errorf("%w of %d arrivals", err, limit)
	}
	return err
}

func (b *builder) validate(limit int) error {
	s := b.spec
	if len(s.Phases) == 0 {
		return errors.New("phases: no phases")
	}
	if s.WarmUp < 0 || s.WarmUp > maxPhase {
		return fmt.Errorf("warm_up is %v, want 0 to %v", s.WarmUp, maxPhase)
	}
	expected := 0.0
	for i, ph := range s.Phases {
		if s.Closed {
			if d := ph.length(); d <= 0 || d > maxPhase {
				return Keyed(fmt.Sprintf("phases[%d]", i), fmt.Errorf("duration: phase %q lasts %v, want more than 0 and at most %v in a closed loop", ph.Name, d, maxPhase))
			}
			continue
		}
		if err := ph.Validate(); err != nil {
			return Keyed(fmt.Sprintf("phases[%d]", i), err)
		}
		expected += ph.Process.expected(ph.length())
		if i == 0 && s.WarmUp > 0 {
			expected += ph.Process.begin().expected(s.WarmUp)
		}
	}
	if expected > float64(limit) {
		return fmt.Errorf("phases: about %.0f arrivals expected, at most %d are planned", expected, limit)
	}
	if len(s.Tenants) > maxTenants {
		return fmt.Errorf("tenants are %d, want at most %d", len(s.Tenants), maxTenants)
	}
	for i, t := range s.Tenants {
		if !(t.Share >= 0 && t.Share <= MaxRate) {
			return Keyed(fmt.Sprintf("tenants[%d]", i), fmt.Errorf("share is %v, want 0 to %.0f", t.Share, MaxRate))
		}
		b.tenants[t.Name] = uint16(i)
	}
	if err := sizeLaw("input_tokens", s.Input); err != nil {
		return err
	}
	return sizeLaw("output_tokens", s.Output)
}

// shapes plans tenants and sizes: nil when there are none.
func (b *builder) shapes(from uint64, all []arrival) []Shape {
	s := b.spec
	some := len(s.Tenants) > 0 || s.Input != nil || s.Output != nil
	tenants, input, output := Rand(s.Seed, s.Stream+from+tenantsStream), Rand(s.Seed, s.Stream+from+inputStream), Rand(s.Seed, s.Stream+from+outputStream)
	shares := make([]float64, len(s.Tenants)) // summed up
	sum := 0.0
	for i, t := range s.Tenants {
		sum += t.Share
		shares[i] = sum
	}
	shapes := make([]Shape, len(all))
	for i, a := range all {
		// Every number is drawn, used or not, so that requests do not change places.
		shape, who := a.Shape, 0
		if sum > 0 {
			who, _ = slices.BinarySearch(shares, uniform(tenants)*sum)
		}
		if shape.Tenant == anyone {
			shape.Tenant = uint16(who)
		}
		if s.Input != nil {
			if n := uint32(s.Input.Draw(input)); shape.Input == 0 {
				shape.Input = n
			}
		}
		if s.Output != nil {
			if n := uint32(s.Output.Draw(output)); shape.Output == 0 {
				shape.Output = n
			}
		}
		shapes[i] = shape
		some = some || shape != Shape{}
	}
	if !some {
		return nil
	}
	return shapes
}
