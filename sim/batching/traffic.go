package batching

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"aloft/loadgen/arrivals"
)

// Traffic is what a world is asked: one process per sender, at rates that are
// shares of a total, and sizes. Plans of it are those of loadgen/arrivals, so that
// a generator of real load sends the very same.
type Traffic struct {
	Name string
	Kind arrivals.Kind // Poisson, Gamma or Replay
	CV   float64       // of Gamma's gaps
	// Trace is replayed whole, laid over itself Copies times, in as much less time
	// as the rate asks for; its requests keep their own sizes.
	Trace   string
	Copies  int
	Lengths *arrivals.Dist
	Senders []Sender // none = one without a name
	// Leaving is the share of clients that give up after an exponential time of
	// mean LeaveAfter.
	Leaving    float64
	LeaveAfter time.Duration
}

// Sender is one tenant.
type Sender struct {
	Tenant string
	Share  float64 // of the rate
}

// opener opens the file of a trace.
type opener = func(file string) (io.ReadCloser, error)

// spec of a plan for one sender. A trace's time is told by its rows: rate 0 plays
// it as it was recorded.
func (t Traffic) spec(rate float64, d time.Duration, recorded float64) arrivals.Spec {
	p := arrivals.Process{Kind: t.Kind, Rate: rate, CV: t.CV}
	if t.Kind == arrivals.Replay {
		p = arrivals.Process{Kind: t.Kind, Trace: arrivals.Trace{File: t.Trace, Format: arrivals.AzureFormat, Copies: t.Copies}}
		if d = 0; rate > 0 {
			p.Speed = rate / (recorded * float64(t.Copies))
		}
	}
	return arrivals.Spec{Phases: []arrivals.Phase{{Name: "steady", Duration: d, Process: p}}, Input: t.Lengths}
}

// Source draws traffic. It has read what does not depend on the rate.
type Source struct {
	Traffic
	Mean     float64 // tokens a request
	open     opener
	recorded float64 // rate of the trace, requests a second
}

// meanOf is how many draws the mean length is taken of; its error is below 1 % for
// the heaviest tail that is used.
const meanOf = 100_000

// NewSource measures the mean length of t's requests, and a trace's rate; open
// opens it.
func NewSource(t Traffic, open opener) (*Source, error) {
	s := &Source{Traffic: t, open: open}
	one := t
	one.Copies = 1
	spec := one.spec(0, 0, 0)
	if t.Kind != arrivals.Replay {
		spec.Phases[0].Duration, spec.Phases[0].Process = meanOf*time.Millisecond, arrivals.Process{Kind: arrivals.Constant, Rate: 1000}
	}
	spec.Open = open
	p, err := arrivals.Build(spec, 0)
	if err != nil {
		return nil, fmt.Errorf("traffic %s: %w", t.Name, err)
	}
	for _, shape := range p.Shapes {
		s.Mean += float64(shape.Input) / float64(len(p.Shapes))
	}
	s.recorded = float64(len(p.Offsets)) / p.End().Seconds()
	return s, nil
}

// Drawn is a plan of each sender and the requests that they make together.
type Drawn struct {
	Requests []Request // in order of arrival
	Hashes   []string  // of the plans, in the order of the senders
}

// Draw plans d of traffic at rate requests a second, all senders together; a trace
// lasts as long as its rate makes it.
func (s *Source) Draw(rate float64, d time.Duration, seed uint64) (*Drawn, error) {
	senders := s.Senders
	if len(senders) == 0 {
		senders = []Sender{{Share: 1}}
	}
	all := &Drawn{}
	for i, from := range senders {
		spec := s.spec(rate*from.Share, d, s.recorded)
		spec.Seed, spec.Stream, spec.Open = seed, uint64(i), s.open
		p, err := arrivals.Build(spec, 0)
		if err != nil {
			return nil, fmt.Errorf("traffic %s: %w", s.Name, err)
		}
		all.Hashes = append(all.Hashes, p.Hash())
		for j, at := range p.Offsets {
			all.Requests = append(all.Requests, Request{At: at, Tokens: int(p.Shapes[j].Input), Tenant: from.Tenant})
		}
	}
	slices.SortStableFunc(all.Requests, func(a, b Request) int { return int(a.At - b.At) })
	if s.Leaving > 0 {
		r := rand.New(rand.NewPCG(seed, 1<<32))
		for i := range all.Requests {
			if after := r.ExpFloat64(); r.Float64() < s.Leaving {
				all.Requests[i].Leaves = 1 + time.Duration(after*float64(s.LeaveAfter))
			}
		}
	}
	return all, nil
}
