package loadgen

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// maxPoints bounds a time line: an hour of seconds. Longer runs have longer steps.
const maxPoints = 3600

// Point is one step of a phase's time line. Requests are in the step in which
// they were meant to start, so that offered = good + late + shed + failed.
type Point struct {
	At       float64 `json:"at_s"` // start of the step, from the start of the run
	Offered  int     `json:"offered"`
	Good     int     `json:"good"`
	Late     int     `json:"late"`
	Shed     int     `json:"shed"`
	Failed   int     `json:"failed"`
	Tokens   int     `json:"good_tokens"`
	P50      float64 `json:"p50_ms"` // of e2e, to 1 %; 0 without values
	P99      float64 `json:"p99_ms"`
	InFlight int     `json:"in_flight"` // sent and not ended, at the end of the step
}

// timeline gathers the points of one phase.
type timeline struct {
	step time.Duration
	bins []bin
}

type bin struct {
	tally  Tally
	tokens int
	opened int // requests sent in this step less those that ended in it
	e2e    *hdrhistogram.PackedHistogram
}

// stepFor is the step of a run that takes so long: whole seconds.
func stepFor(total time.Duration) time.Duration {
	return max(1, (total+maxPoints*time.Second-1)/(maxPoints*time.Second)) * time.Second
}

func (t *timeline) bin(at time.Duration) *bin {
	i := min(max(int(at/t.step), 0), maxPoints-1)
	for len(t.bins) <= i {
		t.bins = append(t.bins, bin{})
	}
	return &t.bins[i]
}

func (t *timeline) add(s *sample) {
	if s.wasSent {
		t.bin(s.sent).opened++
		t.bin(s.end).opened--
	}
	b := t.bin(s.intended)
	b.tally.add(s)
	if s.outcome == OK {
		b.tokens += s.completion
	}
	if s.answered() || s.gaveUp() {
		if b.e2e == nil {
			b.e2e = packed(2)
		}
		_ = b.e2e.RecordValue(micros(s.latency()))
	}
}

// points are the steps from the first with a request to the last.
func (t *timeline) points() []Point {
	var out []Point
	open := 0
	for i := range t.bins {
		b := &t.bins[i]
		open += b.opened
		if len(out) == 0 && b.tally == (Tally{}) && open == 0 {
			continue
		}
		p := Point{
			At: (time.Duration(i) * t.step).Seconds(), Offered: b.tally.Offered, Good: b.tally.OK, Late: b.tally.Late,
			Shed: b.tally.Shed, Failed: b.tally.Failed, Tokens: b.tokens, InFlight: open,
		}
		if b.e2e != nil {
			at := b.e2e.ValueAtPercentilesSlice(percentiles(b.e2e.TotalCount(), 0.5, 0.99))
			p.P50, p.P99 = float64(at[0])/1000, float64(at[1])/1000
		}
		out = append(out, p)
	}
	return out
}
