package pool

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// State of a replica.
type State string

// The states, in the order a replica goes through them.
const (
	Loading  State = "loading" // the process starts and loads the model
	Warming  State = "warming" // answers its first request
	Ready    State = "ready"
	Draining State = "draining" // takes no new calls, finishes the running ones
	Sleeping State = "sleeping" // process alive, model unloaded; holds its slice
	Waking   State = "waking"
	Failed   State = "failed"  // its engine ended or never came up; restarts after a back-off
	Stopped  State = "stopped" // gone
)

// next lists the legal steps; anything else is a bug in this package.
var next = map[State][]State{
	Loading:  {Warming, Failed, Draining},
	Warming:  {Ready, Failed, Draining},
	Ready:    {Draining, Failed},
	Draining: {Sleeping, Stopped, Failed},
	Sleeping: {Waking, Draining, Failed},
	Waking:   {Ready, Failed, Draining},
	Failed:   {Loading, Draining},
	Stopped:  {},
}

// Step names a measured step of a model's replicas.
type Step struct {
	Model string
	Name  string // "start" (launch to ready), "wake", "sleep", "drain", "stop"
}

// Timing summarises the last samples of a step.
type Timing struct {
	Samples  int
	P50, P99 time.Duration
}

// samples keeps the newest 64 durations of a step.
type samples struct{ d []time.Duration }

func (s *samples) add(d time.Duration) {
	if len(s.d) == 64 {
		s.d = s.d[1:]
	}
	s.d = append(s.d, d)
}

func (s *samples) summary() Timing {
	sorted := slices.Clone(s.d)
	slices.Sort(sorted)
	n := len(sorted)
	at := func(q float64) time.Duration { return sorted[min(n-1, int(q*float64(n)))] }
	return Timing{Samples: n, P50: at(0.50), P99: at(0.99)}
}

// cmpID orders "chat-2" before "chat-10".
func cmpID(a, b string) int {
	an, ai := splitID(a)
	bn, bi := splitID(b)
	return cmp.Or(strings.Compare(an, bn), cmp.Compare(ai, bi))
}

func splitID(id string) (string, int) {
	i := strings.LastIndexByte(id, '-')
	n, _ := strconv.Atoi(id[i+1:])
	return id[:max(i, 0)], n
}

// index is the sequence number at the end of an id.
func index(id string) int { _, n := splitID(id); return n }

func sortReady(r []ReadyReplica) {
	slices.SortFunc(r, func(a, b ReadyReplica) int { return cmp.Compare(a.Index, b.Index) })
}
