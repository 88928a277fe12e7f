package arrivals

import (
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"time"
)

// A plan's file is a line of JSON that people can read, and then, compressed,
// the numbers: of each workload the gaps between its arrivals in ns, then of
// each arrival input, output and shared tokens and tenant if it has shapes, and
// its text and copy if the plan has texts, which come first, all as varints. The
// line holds each workload's hash, which the numbers must give.
const (
	planFormat  = "aloft.plan"
	planVersion = 2 // 1 had no texts, and is read

	maxHeader = 1 << 20 // bytes of the first line
	maxNamed  = 1000    // workloads, and phases of each
)

// Saved is what a plan's file holds.
type Saved struct {
	Profile   string    // the name of the profile that it was made from
	Seed      uint64    // and its seed
	Workloads []Planned // in the profile's order
}

// Planned is one workload's plan.
type Planned struct {
	Name string
	Plan Plan
}

// header is the first line.
type header struct {
	Format    string          `json:"format"`
	Version   int             `json:"version"`
	Profile   string          `json:"profile"`
	Seed      uint64          `json:"seed"`
	Workloads []headerOfNamed `json:"workloads"`
}

type headerOfNamed struct {
	Name     string         `json:"name"`
	Hash     string         `json:"hash"`
	Arrivals int            `json:"arrivals"`
	Shapes   bool           `json:"shapes"`
	Texts    int            `json:"texts,omitempty"`
	Phases   []headerSpan   `json:"phases"`
	WarmUp   *headerOfNamed `json:"warm_up,omitempty"` // its numbers come first
	Notes    []string       `json:"notes,omitempty"`
}

type headerSpan struct {
	Span
	N int `json:"arrivals"`
}

func headerOf(name string, p Plan) headerOfNamed {
	h := headerOfNamed{name, p.Hash(), len(p.Offsets), p.Shapes != nil, len(p.Texts), nil, nil, p.Notes}
	for _, span := range p.Spans {
		h.Phases = append(h.Phases, headerSpan{span, span.N})
	}
	if p.Warm != nil {
		warm := headerOf("", *p.Warm)
		h.WarmUp = &warm
	}
	return h
}

// Save writes plans to a file.
func Save(w io.Writer, s Saved) error {
	head := header{planFormat, planVersion, s.Profile, s.Seed, nil}
	for _, p := range s.Workloads {
		if err := errors.Join(p.Plan.check(), p.Plan.checkTexts()); err != nil {
			return fmt.Errorf("arrivals: save plan of %q: %w", p.Name, err)
		}
		head.Workloads = append(head.Workloads, headerOf(p.Name, p.Plan))
	}
	line, err := json.Marshal(head)
	if err != nil {
		return fmt.Errorf("arrivals: save plan: %w", err)
	}
	if len(line) >= maxHeader {
		return fmt.Errorf("arrivals: save plan: its first line has %d bytes, want less than %d", len(line), maxHeader)
	}
	if _, err := w.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("arrivals: save plan: %w", err)
	}
	zip := gzip.NewWriter(w)
	buf := bufio.NewWriter(zip)
	for _, p := range s.Workloads {
		for _, t := range p.Plan.Texts {
			writeVarints(buf, uint64(t.Parent), uint64(t.From/Block))
		}
		writeNumbers(buf, p.Plan, len(p.Plan.Texts) > 0)
	}
	if err := errors.Join(buf.Flush(), zip.Close()); err != nil {
		return fmt.Errorf("arrivals: save plan: %w", err)
	}
	return nil
}

// writeNumbers leaves errors to the writer's Flush.
func writeNumbers(w *bufio.Writer, p Plan, texts bool) {
	if p.Warm != nil {
		writeNumbers(w, *p.Warm, texts)
	}
	last := time.Duration(0)
	for _, at := range p.Offsets {
		writeVarints(w, uint64(at-last))
		last = at
	}
	for _, s := range p.Shapes {
		writeVarints(w, uint64(s.Input), uint64(s.Output), uint64(s.Shared), uint64(s.Tenant))
		if texts {
			writeVarints(w, uint64(s.Text), uint64(s.Copy))
		}
	}
}

func writeVarints(w *bufio.Writer, values ...uint64) {
	for _, v := range values {
		w.Write(binary.AppendUvarint(w.AvailableBuffer(), v))
	}
}

// check holds a plan to what every reader of it relies on.
func (p Plan) check() error {
	n, from := 0, time.Duration(0)
	if p.Warm != nil {
		if p.Warm.Warm != nil {
			return errors.New("a warm-up before the warm-up")
		}
		if err := p.Warm.check(); err != nil {
			return fmt.Errorf("warm-up: %w", err)
		}
	}
	if p.Shapes != nil && len(p.Shapes) != len(p.Offsets) {
		return fmt.Errorf("%d shapes for %d arrivals", len(p.Shapes), len(p.Offsets))
	}
	if len(p.Spans) == 0 {
		return errors.New("no phases")
	}
	for i, at := range p.Offsets {
		if at < 0 || i > 0 && at < p.Offsets[i-1] {
			return fmt.Errorf("arrival %d is at %v, before what is ahead of it", i, at)
		}
	}
	for _, s := range p.Spans {
		if s.First != n || s.N < 0 || s.N > len(p.Offsets)-n || s.From != from || s.To <= s.From || s.To-s.From > maxPhase+1 {
			return fmt.Errorf("phase %q has %d arrivals from number %d on, in %v to %v, which does not join what is before it", s.Name, s.N, s.First, s.From, s.To)
		}
		n, from = n+s.N, s.To
		if s.N > 0 && (p.Offsets[s.First] < s.From || p.Offsets[n-1] >= s.To) {
			return fmt.Errorf("phase %q has arrivals outside of %v to %v", s.Name, s.From, s.To)
		}
	}
	if n != len(p.Offsets) {
		return fmt.Errorf("%d of %d arrivals belong to no phase", len(p.Offsets)-n, len(p.Offsets))
	}
	return nil
}

// Load reads a plan's file, and checks it whole: against its hash, and that the
// phases are what a run needs.
func Load(r io.Reader) (Saved, error) {
	in := bufio.NewReader(r)
	head, err := readHeader(in)
	if err != nil {
		return Saved{}, fmt.Errorf("arrivals: plan file: %w", err)
	}
	zip, err := gzip.NewReader(in)
	if err != nil {
		return Saved{}, fmt.Errorf("arrivals: plan file, after the first line: %w", err)
	}
	body := bufio.NewReader(zip)
	out := Saved{Profile: head.Profile, Seed: head.Seed}
	for _, h := range head.Workloads {
		plan, err := readTexts(body, h)
		if err == nil {
			err = errors.Join(plan.check(), plan.checkTexts())
		}
		if got := plan.Hash(); err == nil && got != h.Hash {
			err = fmt.Errorf("its hash is %s, and the file says %s: it was changed or damaged", got, h.Hash)
		}
		if err != nil {
			return Saved{}, fmt.Errorf("arrivals: plan file, workload %q: %w", h.Name, err)
		}
		out.Workloads = append(out.Workloads, Planned{h.Name, plan})
	}
	if _, err := body.ReadByte(); !errors.Is(err, io.EOF) { // also checks gzip's sum
		return Saved{}, fmt.Errorf("arrivals: plan file: there is more in it than its first line says (%v)", err)
	}
	return out, nil
}

func readHeader(in *bufio.Reader) (header, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		if line = append(line, part...); len(line) > maxHeader {
			return header{}, fmt.Errorf("its first line is longer than %d bytes", maxHeader)
		}
		if err == nil {
			break
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return header{}, fmt.Errorf("its first line: %w", noEOF(err))
		}
	}
	var h header
	if err := json.Unmarshal(line, &h); err != nil {
		return header{}, fmt.Errorf("its first line: %w", err)
	}
	if h.Format != planFormat || h.Version < 1 || h.Version > planVersion {
		return header{}, fmt.Errorf("it is %q version %d, want %q version %d", h.Format, h.Version, planFormat, planVersion)
	}
	left := MaxPlan
	if n := len(h.Workloads); n == 0 || n > maxNamed {
		return header{}, fmt.Errorf("%d workloads, want 1 to %d", n, maxNamed)
	}
	for _, w := range h.Workloads {
		if w.Texts < 0 || w.Texts > maxTexts {
			return header{}, fmt.Errorf("workload %q has %d texts, at most %d are planned", w.Name, w.Texts, maxTexts)
		}
		for p := &w; p != nil; p = p.WarmUp { // of a line that is bounded
			if p.Arrivals < 0 || p.Arrivals > left {
				return header{}, fmt.Errorf("workload %q has %d arrivals, at most %d are planned over all", w.Name, p.Arrivals, MaxPlan)
			}
			left -= p.Arrivals
		}
	}
	return h, nil
}

// readTexts reads one workload's texts and plan.
func readTexts(in io.ByteReader, h headerOfNamed) (Plan, error) {
	var texts []Text
	for i := range h.Texts {
		parent, err := binary.ReadUvarint(in)
		if err != nil {
			return Plan{}, fmt.Errorf("text %d: %w", i, noEOF(err))
		}
		from, err := binary.ReadUvarint(in)
		if err != nil {
			return Plan{}, fmt.Errorf("text %d: %w", i, noEOF(err))
		}
		if parent > maxTexts || from > math.MaxUint32/Block {
			return Plan{}, fmt.Errorf("text %d begins with %d blocks of text %d, above the bounds", i+1, from, parent)
		}
		texts = append(texts, Text{uint32(parent), uint32(from) * Block})
	}
	plan, err := readPlan(in, h, h.Texts > 0)
	plan.Texts = texts
	return plan, err
}

// readPlan reads one workload's numbers. Space is taken as they come: a first
// line that lies about their number costs nothing.
func readPlan(in io.ByteReader, h headerOfNamed, texts bool) (Plan, error) {
	plan := Plan{Notes: h.Notes}
	if h.WarmUp != nil {
		warm, err := readPlan(in, *h.WarmUp, texts)
		if err != nil {
			return Plan{}, fmt.Errorf("warm-up: %w", err)
		}
		plan.Warm = &warm
	}
	first := 0
	for _, s := range h.Phases {
		s.First, s.Span.N = first, s.N
		plan.Spans = append(plan.Spans, s.Span)
		if first += s.N; s.N < 0 || first < 0 || first > h.Arrivals {
			return Plan{}, fmt.Errorf("phase %q has %d arrivals of %d", s.Name, s.N, h.Arrivals)
		}
	}
	at := uint64(0)
	for i := range h.Arrivals {
		gap, err := binary.ReadUvarint(in)
		if err != nil {
			return Plan{}, fmt.Errorf("arrival %d: %w", i, noEOF(err))
		}
		if at += gap; gap > math.MaxInt64/2 || at > math.MaxInt64/2 {
			return Plan{}, fmt.Errorf("arrival %d is too late", i)
		}
		plan.Offsets = append(plan.Offsets, time.Duration(at))
	}
	if !h.Shapes {
		return plan, nil
	}
	plan.Shapes = []Shape{}
	for i := range h.Arrivals {
		var v [6]uint64
		n := 4
		if texts {
			n = 6
		}
		for k := range n {
			var err error
			if v[k], err = binary.ReadUvarint(in); err != nil {
				return Plan{}, fmt.Errorf("shape %d: %w", i, noEOF(err))
			}
			if v[k] > maxSize || k == 3 && v[k] >= maxTenants || k == 5 && v[k] >= maxCopies {
				return Plan{}, fmt.Errorf("shape %d has a size of %d tokens or tenant %d, above the bounds", i, v[k], v[3])
			}
		}
		plan.Shapes = append(plan.Shapes, Shape{uint32(v[0]), uint32(v[1]), uint32(v[2]), uint32(v[4]), uint16(v[3]), uint16(v[5])})
	}
	return plan, nil
}

// noEOF: an end inside of something is no proper end.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
