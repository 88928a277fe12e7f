// Package serving simulates one model's queue and replicas in virtual time: the
// real batcher.Core over replicas that follow the law of the standard scenarios
// (docs/arbiter.md, "The machine that is simulated"). Time is a duration since
// the start; equal calls give equal answers.
//
// Everything here is modelled: no request is sent and no GPU is asked.
package serving

import (
	"cmp"
	"container/heap"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"aloft/batcher"
)

// epoch is when every simulated world starts, for the core, which knows times of
// day.
var epoch = time.Unix(1_700_000_000, 0)

// never is after everything.
const never = time.Duration(math.MaxInt64)

// Options describe one model.
type Options struct {
	Model string
	Law   Law
	SLO   SLO
	// Merge: calls of several requests, as embeddings are served; else generation.
	Merge bool
	// Target is what the core promises to keep: above 0 it holds requests back from
	// replicas with long prompts to read. It refuses nobody for being late. Where
	// longer prompts are allowed more time it is that of the longest, and each request
	// brings its own as a deadline, by which the core orders, and gives up whoever
	// waits beyond it.
	Target time.Duration
	// MaxQueue and QueueTimeout are the batcher's; 0 = its defaults.
	MaxQueue     int
	QueueTimeout time.Duration
	// Window is how far back latencies are judged, as arbiter.window says live; 0 = 10 s.
	Window time.Duration
	// Done is told how each request ended, once. Its argument is its own.
	Done func(Outcome)
}

// SLO is what a good request keeps.
type SLO struct {
	TTFT     time.Duration // to the first token (merged calls: to the answer) ...
	PerInput time.Duration // ... and so much more for each input token
	TPOT     time.Duration // mean time per later token; 0 = no limit
}

// first is the time that a prompt has to its first token.
func (s SLO) first(in int) time.Duration { return s.TTFT + time.Duration(in)*s.PerInput }

// Outcome is how a request ended.
type Outcome struct {
	Index      int           // as given to Arrive
	First, End time.Duration // First < 0: there was no first token
	Ending     Ending
	Good       bool
}

// Ending is the way in which a request ended.
type Ending uint8

// The endings.
const (
	Finished Ending = iota
	Refused         // by the core: the queue was full, it would be late, it waited too long
	Cut             // its replica failed, and it could not try again elsewhere in time
)

// Validate says which option is wrong.
func (o Options) Validate() error {
	switch {
	case o.Done == nil:
		return errors.New("serving: nobody is told of outcomes: Done is nil")
	case o.SLO.TTFT <= 0 || o.SLO.PerInput < 0 || o.SLO.TPOT < 0:
		return fmt.Errorf("serving: slo of %q is %+v, want a ttft above 0 and nothing below 0", o.Model, o.SLO)
	case o.Window < 0:
		return fmt.Errorf("serving: window of %q is %v, want 0 or more", o.Model, o.Window)
	}
	if err := o.core().Validate(); err != nil {
		return err
	}
	return o.Law.validate(o.Merge)
}

func (o Options) core() batcher.Options {
	// The scenarios have one queue that nobody is turned away from. With refusals a
	// full share missed eight times as many requests on bursty-8gpu-code, since what a
	// burst taught the core to distrust it refused long after; and two policies' misses
	// could not be compared, one core having learned more than the other.
	return batcher.Options{Model: o.Model, Merge: o.Merge, Target: o.Target, Keep: true, MaxQueue: o.MaxQueue, QueueTimeout: o.QueueTimeout,
		MaxBatchRows: maxRows, MaxBatchTokens: o.Law.MaxTokens}
}

// maxRows bounds the rows of a merged call.
const maxRows = 64

// Server is one model being served.
type Server struct {
	opt      Options
	core     *batcher.Core
	now      time.Duration
	replicas []*replica        // by number; nil = never seen
	ready    []batcher.Replica // what the core was told last, by number
	queue    upcoming          // replicas, by what happens next on them
	free     []*request
	wake     time.Duration // the core's
	eta      float64
	rows     bool // batch rows ride in ready replicas
	rowed    float64
	load
}

// request is one request on its way. They are used again.
type request struct {
	work    batcher.Work
	tokens  [1]int
	index   int
	in, out int
	at      time.Duration // when it arrived
	first   time.Duration // below 0: no token yet
	given   Ending        // if it is given up: Refused, once its replica has failed Cut
}

// New returns a model without replicas.
func New(o Options) (*Server, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.Window = cmp.Or(o.Window, window)
	return &Server{opt: o, core: batcher.NewCore(o.core()), wake: never}, nil
}

// Arrive takes request number index, of in prompt tokens, which will generate out.
func (s *Server) Arrive(now time.Duration, index, in, out int) {
	s.Step(now)
	var q *request
	if n := len(s.free) - 1; n >= 0 {
		q, s.free = s.free[n], s.free[:n]
	} else {
		q = new(request)
	}
	q.index, q.in, q.out, q.at, q.first, q.given = index, max(in, 1), max(out, 1), now, -1, Refused
	q.tokens[0] = q.in
	q.work = batcher.Work{RowTokens: q.tokens[:], Alone: !s.opt.Merge, Arrival: epoch.Add(now), Load: q}
	if s.opt.Target > 0 && s.opt.SLO.PerInput > 0 {
		q.work.Deadline = q.work.Arrival.Add(s.opt.SLO.first(q.in))
	}
	s.arrived(now, s.opt.Law.arrived(q.in, s.opt.Merge))
	s.waiting++
	s.apply(s.core.Arrive(epoch.Add(now), &q.work))
}

// Next is when something happens by itself; the largest duration = never.
func (s *Server) Next() time.Duration {
	if len(s.queue) > 0 {
		return min(s.wake, s.queue[0].at)
	}
	return s.wake
}

// Step lets everything happen that is due by now.
func (s *Server) Step(now time.Duration) {
	for {
		at := s.Next()
		if at > now {
			break
		}
		s.now = max(s.now, at)
		if len(s.queue) > 0 && s.queue[0].at <= s.wake { // ends come first: who waits finds the replica free
			s.step(s.queue[0])
		} else {
			s.apply(s.core.Tick(epoch.Add(s.now)))
		}
	}
	s.now = max(s.now, now)
}

// Add makes a replica ready. One that drains serves on.
func (s *Server) Add(now time.Duration, number int) {
	s.Step(now)
	for len(s.replicas) <= number {
		s.replicas = append(s.replicas, nil)
	}
	r := s.replicas[number]
	if r == nil {
		r = &replica{Law: &s.opt.Law, number: number, id: "r" + strconv.Itoa(number), at: never, pos: -1}
		s.replicas[number] = r
	}
	if r.ready {
		panic("BUG: replica " + r.id + " added twice")
	}
	r.advance(s, now)
	r.ready = true
	slots := s.opt.Law.Slots
	if s.opt.Merge {
		slots = 1
	}
	i, _ := slices.BinarySearchFunc(s.ready, number, byNumber)
	s.ready = slices.Insert(s.ready, i, batcher.Replica{ID: r.id, Slots: slots, Shape: "simulated", Index: number})
	s.apply(s.core.SetReplicas(epoch.Add(now), s.ready))
}

func byNumber(r batcher.Replica, number int) int { return cmp.Compare(r.Index, number) }

// Remove drains a replica: it takes nothing new and finishes what it has. Idle
// tells when.
func (s *Server) Remove(now time.Duration, number int) {
	s.Step(now)
	r := s.replicas[number]
	if !r.ready {
		panic("BUG: replica " + r.id + " removed twice")
	}
	r.advance(s, now)
	r.ready = false
	i, _ := slices.BinarySearchFunc(s.ready, number, byNumber)
	s.ready = slices.Delete(s.ready, i, i+1)
	s.apply(s.core.SetReplicas(epoch.Add(now), s.ready))
}

// Fail takes a replica away at once, ready or draining. What has begun to answer
// is cut off; the rest tries again elsewhere.
func (s *Server) Fail(now time.Duration, number int) {
	s.Step(now)
	if s.replicas[number].ready {
		s.Remove(now, number)
	}
	lost := s.replicas[number].clear(s, now)
	for _, b := range lost {
		q := b.Segs[0].Work.Load.(*request)
		if q.first >= 0 {
			s.apply(s.core.Done(epoch.Add(now), b, batcher.Result{Outcome: batcher.Answered}))
			s.end(q, now, Cut)
			continue
		}
		for _, g := range b.Segs {
			g.Work.Load.(*request).given = Cut
			s.running, s.waiting = s.running-1, s.waiting+1
		}
		s.apply(s.core.Done(epoch.Add(now), b, batcher.Result{Outcome: batcher.Broken}))
	}
}

// Idle reports whether nothing runs on the replica.
func (s *Server) Idle(number int) bool { return s.Running(number) == 0 }

// Running is how many sequences, or calls, the replica has.
func (s *Server) Running(number int) int {
	if number >= len(s.replicas) || s.replicas[number] == nil {
		return 0
	}
	return s.replicas[number].running()
}

// InFlight is how many requests wait or run.
func (s *Server) InFlight() int { return s.waiting + s.running }

// Ready is how many replicas take requests.
func (s *Server) Ready() int { return len(s.ready) }

// SetEta sets the batcher's patience.
func (s *Server) SetEta(now time.Duration, eta float64) {
	if eta == s.eta {
		return
	}
	s.Step(now)
	s.eta = eta
	s.apply(s.core.SetEta(epoch.Add(now), eta))
}

// apply does what the core decided, none of which asks the core again.
func (s *Server) apply(acts []batcher.Action) {
	for _, a := range acts {
		switch a.Kind {
		case batcher.Dispatch:
			s.replicas[a.Batch.Replica.Index].start(s, a.Batch)
		case batcher.Fail:
			q := a.Work.Load.(*request)
			s.waiting--
			s.finish(q, s.now, q.given)
		default:
			panic("BUG: an action that no option asks for: " + strconv.Itoa(int(a.Kind)))
		}
	}
	s.wake = never
	if at := s.core.Wake(); !at.IsZero() {
		s.wake = max(at.Sub(epoch), s.now)
	}
}

// end notes that q has left its replica.
func (s *Server) end(q *request, now time.Duration, how Ending) {
	s.running--
	s.finish(q, now, how)
}

// finish judges q and gives it back.
func (s *Server) finish(q *request, now time.Duration, how Ending) {
	slo := s.opt.SLO
	o := Outcome{Index: q.index, First: q.first, End: now, Ending: how}
	if how == Finished {
		o.Good = q.first-q.at <= slo.first(q.in)
		if slo.TPOT > 0 && !s.opt.Merge {
			o.Good = o.Good && now-q.first <= time.Duration(q.out)*slo.TPOT
		}
	}
	s.free = append(s.free, q)
	s.opt.Done(o)
}

// upcoming is a heap of replicas by when something happens on them.
type upcoming []*replica

func (h upcoming) Len() int { return len(h) }
func (h upcoming) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].number < h[j].number
}
func (h upcoming) Swap(i, j int) { h[i], h[j] = h[j], h[i]; h[i].pos, h[j].pos = i, j }

// Push implements heap.Interface.
func (h *upcoming) Push(x any) { r := x.(*replica); r.pos = len(*h); *h = append(*h, r) }

// Pop implements heap.Interface.
func (h *upcoming) Pop() any {
	n := len(*h) - 1
	r := (*h)[n]
	(*h)[n] = nil
	*h, r.pos = (*h)[:n], -1
	return r
}

// place puts r where it belongs now that r.at has changed.
func (h *upcoming) place(r *replica) {
	switch {
	case r.at == never && r.pos >= 0:
		heap.Remove(h, r.pos)
	case r.at == never:
	case r.pos < 0:
		heap.Push(h, r)
	default:
		heap.Fix(h, r.pos)
	}
}
