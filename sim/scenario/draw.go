package scenario

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"aloft/loadgen/arrivals"
)

// DrawOptions say which part of a scenario is drawn.
type DrawOptions struct {
	// Traces is the folder of traces. Those that the binary holds (azure-llm-2023,
	// gavel-philly) need none.
	Traces string
	// From and To are a window of the horizon; To 0 = its end. Traffic and jobs are
	// those of the whole horizon that come within it, so the load of a window is that
	// of its hours. It begins as every world does, without queues.
	From, To Hours
	// Rows lets batch rows ride in ready replicas, whatever the scenario says.
	Rows bool
}

// window in seconds of the horizon.
type window struct{ from, to float64 }

func (w window) has(t float64) bool { return t >= w.from && t < w.to }

// Draw draws the world of a seed.
func (s *Scenario) Draw(seed uint64, o DrawOptions) (*World, error) {
	if o.To == 0 {
		o.To = s.HorizonH
	}
	if !(o.From >= 0 && o.From < o.To && o.To <= s.HorizonH) {
		return nil, fmt.Errorf("scenario %s: hours %v to %v are no part of its %v", s.Name, o.From, o.To, s.HorizonH)
	}
	w := &World{Scenario: s, Seed: seed, Rows: o.Rows || s.BatchRows.Enabled, From: o.From.Duration(), Horizon: (o.To - o.From).Duration()}
	part := window{float64(o.From) * 3600, float64(o.To) * 3600}
	for i := range s.Models {
		t, note, err := s.traffic(&s.Models[i], seed, o.Traces, part)
		if err != nil {
			return nil, fmt.Errorf("scenario %s, model %s: %w", s.Name, s.Models[i].Name, err)
		}
		w.Traffic = append(w.Traffic, t)
		w.Notes = append(w.Notes, note)
	}
	jobs, err := s.jobs(seed, o.Traces)
	if err != nil {
		return nil, fmt.Errorf("scenario %s: jobs: %w", s.Name, err)
	}
	load := 0.0
	for _, j := range jobs {
		if at := j.At.Seconds(); part.has(at) {
			j.At = time.Duration(float64(time.Second) * (at - part.from))
			w.Jobs = append(w.Jobs, j)
			load += j.Work()
		}
	}
	if len(w.Jobs) > 0 {
		load /= float64(s.Cluster.Jobs) * w.Horizon.Seconds()
		w.Notes = append(w.Notes, fmt.Sprintf("%d jobs, their work is %.2f of the job share over the time", len(w.Jobs), load))
	}
	if b := s.Backlog; b.Kind != "" {
		w.Backlog = &Job{ID: "backlog", Kind: b.Kind, Slices: 1, Start: b.StartS.Duration(), Stop: b.StopS.Duration(), Loses: b.LosesS.Duration()}
	}
	return w, nil
}

// traffic draws what one model is asked within the window, and says how.
func (s *Scenario) traffic(m *Model, seed uint64, traces string, part window) (Traffic, string, error) {
	t := Traffic{Model: m, TimeScale: 1}
	if m.Arrivals.Process != nil {
		return s.process(t, seed, part)
	}
	text, err := find(traces, m.Arrivals.Trace)
	if err != nil {
		return t, "", err
	}
	rows, note, err := records(text, seed, m.Arrivals.Trace)
	if err != nil {
		return t, "", err
	}
	if of := m.Arrivals.OfModel; of != "" {
		rows = slices.DeleteFunc(rows, func(r arrivals.Record) bool { return r.Model != of })
		if len(rows) == 0 {
			return t, "", fmt.Errorf("trace %s: it has no request of model %s", m.Arrivals.Trace, of)
		}
	}
	t.form(rows)
	if m.Arrivals.AsRecorded {
		t.Copies = 1
		for _, r := range rows {
			if at := r.Offset.Seconds(); part.has(at) {
				t.Arrivals = append(t.Arrivals, Arrival{r.Offset - time.Duration(part.from*float64(time.Second)), int32(r.InputTokens), int32(r.OutputTokens)})
			}
		}
		return t, fmt.Sprintf("%s: %d of %d requests of %s, as recorded%s", m.Name, len(t.Arrivals), len(rows), m.Arrivals.Trace, note), nil
	}
	r, err := newRing(rows, t.Knee)
	if err != nil {
		return t, "", fmt.Errorf("trace %s: %w", m.Arrivals.Trace, err)
	}
	if err := s.lay(&t, r, stream(seed, "arrivals "+m.Name, 0), part); err != nil {
		return t, "", fmt.Errorf("trace %s: %w", m.Arrivals.Trace, err)
	}
	if note != "" {
		note = "; " + note
	}
	return t, fmt.Sprintf("%s: %d requests, %d copies of %s, each turned to a row of its own, time x %.4f%s",
		m.Name, len(t.Arrivals), t.Copies, m.Arrivals.Trace, t.TimeScale, note), nil
}

// form decides which form of knee work holds.
func (t *Traffic) form(rows []arrivals.Record) {
	s := t.Model.Service
	if s.Merged() {
		return
	}
	decode, prefill := 0.0, 0.0
	for _, r := range rows {
		decode += s.decode(int32(r.InputTokens), int32(r.OutputTokens))
		prefill += s.prefill(int32(r.InputTokens))
	}
	t.DecodeBound = decode >= prefill
}

// lay lays copies of the ring over each other. The number of copies brings the
// mean rate nearest to the wanted one, and the time scale does the rest, exactly
// for this draw: with it the work that arrives over the horizon is the wanted
// work, to a request.
func (s *Scenario) lay(t *Traffic, r *ring, rnd *rand.Rand, part window) error {
	horizon := float64(s.HorizonH) * 3600
	even := s.Diurnal.even(horizon)
	wanted := t.Model.Arrivals.MeanUtilization * float64(t.Model.Static) * horizon // slice-seconds
	t.Copies = int(t.Model.Arrivals.Copies)
	if t.Copies == 0 {
		t.Copies = max(1, int(wanted/even/(r.total()/r.length)+0.5))
	}
	if t.Copies > maxCopies {
		return fmt.Errorf("%d copies are needed, want at most %d", t.Copies, maxCopies)
	}
	first := make([]int, t.Copies)
	for c := range first {
		first[c] = rnd.IntN(len(r.at))
	}
	if wanted > 0 {
		t.TimeScale = scale(r, first, even, wanted)
	}
	if n := float64(t.Copies*len(r.at)) * even * t.TimeScale / r.length; n > maxArrivals {
		return fmt.Errorf("%.0f requests are needed, want at most %d", n, maxArrivals)
	}
	// Room for the window's share, and a copy's partial lap.
	share := (s.Diurnal.even(part.to) - s.Diurnal.even(part.from)) * t.TimeScale / r.length
	t.Arrivals = make([]Arrival, 0, int(float64(t.Copies*len(r.at))*share*1.02)+1000)
	s.merge(t, r, first, part)
	return nil
}

// scale is how many times as fast the copies must run for their work over the
// even time to be the wanted work.
func scale(r *ring, first []int, even, wanted float64) float64 {
	low, high := 0.0, 2*wanted/even/(r.total()/r.length)/float64(len(first))+2*r.length/even
	for range 60 {
		mid := (low + high) / 2
		sum := 0.0
		for _, f := range first {
			sum += r.upTo(mid*even, f)
		}
		if sum < wanted {
			low = mid
		} else {
			high = mid
		}
	}
	return high
}

// cursor is the next row of one copy.
type cursor struct {
	x    float64 // even time, times the time scale
	row  int
	copy int
}

func (a cursor) before(b cursor) bool { return a.x < b.x || a.x == b.x && a.copy < b.copy }

// merge takes the copies' rows in order of time, and stretches their gaps by the
// day curve.
func (s *Scenario) merge(t *Traffic, r *ring, first []int, part window) {
	heap := make([]cursor, len(first))
	for c, row := range first {
		heap[c] = cursor{0, row, c}
	}
	end := s.Diurnal.even(part.to) * t.TimeScale
	begin := s.Diurnal.even(part.from) * t.TimeScale
	at, last := part.from, time.Duration(0)
	for heap[0].x < end {
		c := &heap[0]
		if c.x >= begin {
			at = s.Diurnal.at(c.x/t.TimeScale, at)
			last = max(last, time.Duration((at-part.from)*float64(time.Second))) // rounding may not turn back time
			t.Arrivals = append(t.Arrivals, Arrival{last, r.in[c.row], r.out[c.row]})
		}
		gap := r.length - r.at[c.row] // to the end of the ring
		if c.row+1 < len(r.at) {
			gap = r.at[c.row+1] - r.at[c.row]
		}
		c.x += gap
		c.row = (c.row + 1) % len(r.at)
		sink(heap)
	}
}

// sink brings the heap in order after its top has moved back.
func sink(heap []cursor) {
	for i := 0; ; {
		k := 2*i + 1
		if k >= len(heap) {
			return
		}
		if k+1 < len(heap) && heap[k+1].before(heap[k]) {
			k++
		}
		if !heap[k].before(heap[i]) {
			return
		}
		heap[i], heap[k] = heap[k], heap[i]
		i = k
	}
}

// sizes are drawn so often to know their mean work; its error is below 1 % for
// a log-normal of coefficient of variation 3.
const sizes = 100_000

// process draws traffic that was not recorded.
func (s *Scenario) process(t Traffic, seed uint64, part window) (Traffic, string, error) {
	a := t.Model.Arrivals
	draw := func(r *rand.Rand) (in, out int32) {
		if in = int32(a.Input.Draw(r)); a.Output != nil {
			out = int32(a.Output.Draw(r))
		}
		return in, out
	}
	r := stream(seed, "mean size "+t.Model.Name, 0)
	sample := make([]arrivals.Record, sizes)
	for i := range sample {
		in, out := draw(r)
		sample[i] = arrivals.Record{InputTokens: int(in), OutputTokens: int(out)}
	}
	t.form(sample)
	mean := 0.0
	for _, rec := range sample {
		mean += t.Knee(int32(rec.InputTokens), int32(rec.OutputTokens)) / sizes
	}
	horizon := float64(s.HorizonH) * 3600
	even := s.Diurnal.even(horizon)
	phase := arrivals.Phase{Name: "all", Duration: time.Duration(even * float64(time.Second)), Process: *a.Process}
	if a.MeanUtilization > 0 {
		rate := a.MeanUtilization * float64(t.Model.Static) * horizon / mean // requests over the horizon
		var err error
		if phase.Process, err = a.Process.Scaled(rate / phase.Expected()); err != nil {
			return t, "", err
		}
	}
	plan, err := arrivals.Build(arrivals.Spec{Seed: stream(seed, "arrivals "+t.Model.Name, 0).Uint64(), Phases: []arrivals.Phase{phase}}, 0)
	if err != nil {
		return t, "", err
	}
	r = stream(seed, "sizes "+t.Model.Name, 0)
	at := 0.0
	for _, x := range plan.Offsets {
		in, out := draw(r)
		if at = s.Diurnal.at(x.Seconds(), at); part.has(at) {
			t.Arrivals = append(t.Arrivals, Arrival{time.Duration((at - part.from) * float64(time.Second)), in, out})
		}
	}
	return t, fmt.Sprintf("%s: %d requests of a %s process", t.Model.Name, len(t.Arrivals), a.Process.Kind), nil
}
