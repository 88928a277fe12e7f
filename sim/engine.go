package sim

import (
	"container/heap"
	"fmt"
	"math"
	"time"

	"aloft/arbiter"
	"aloft/sim/scenario"
)

// Options of a run.
type Options struct {
	Name string // of the policy, as the result shows it
	// Spans bounds the list for the Gantt chart, which covers [SpansFrom, SpansTo);
	// SpansTo 0 = the horizon. 0 spans = none.
	Spans              int
	SpansFrom, SpansTo time.Duration
	Injected           Injected
	// Window is how far back latencies are judged, as arbiter.window says live; 0 = 10 s.
	Window time.Duration
	// Node takes the place of the scenario's cluster; nil = there is none.
	Node *Node
	// Progress is told of the simulated time once a simulated minute; nil = nobody.
	Progress func(at, horizon time.Duration)
}

// engine is one run under way.
type engine struct {
	world  *scenario.World
	opt    Options
	policy Policy
	now    time.Duration
	events events
	seq    int

	machine
	work
	serving []served
	book    book
	view    View
	seen    arbiter.Observation
	placed  bool // the list of replicas is as the slices are

	ordered []*move // whose outcome has not been delivered
	looking
	tallies
	spans  spans
	checks int64
	err    error
}

// looking is when the policy looks.
type looking struct {
	kick     bool // at this instant
	nextLook time.Duration
	looked   time.Duration // the last time
	count    int           // of looks
	skew     time.Duration // by how much the policy's clock is wrong
	urgent   time.Duration // more has arrived than it allowed for
	guard    Guard         // nil = it does not ask
	capped   Capped        // nil = it never lends less
	// lowestCap is the lowest of its limits; 0 = none.
	lowestCap int
}

// never is after every horizon.
const never = time.Duration(math.MaxInt64)

// Run lets a policy run a world. An invariant that breaks fails the run; the
// error names world, seed and time.
func Run(w *scenario.World, p Policy, o Options) (*Result, error) {
	r, err := newRun(w, p, o)
	if err != nil {
		return nil, err
	}
	r.loop()
	if r.err != nil {
		return nil, r.err
	}
	return r.result(), r.err
}

func newRun(w *scenario.World, p Policy, o Options) (*engine, error) {
	if p.Every() <= 0 {
		return nil, fmt.Errorf("sim: policy %s looks every %v, want more than 0", o.Name, p.Every())
	}
	r := &engine{world: w, opt: o, policy: p}
	r.looked = -calm
	r.guard, _ = p.(Guard)
	r.capped, _ = p.(Capped)
	if o.SpansTo == 0 {
		r.opt.SpansTo = w.Horizon
	}
	if err := r.build(); err != nil {
		return nil, err
	}
	if err := r.serve(); err != nil {
		return nil, err
	}
	r.submitAll()
	r.planFaults()
	r.planInjected()
	r.minutely()
	return r, nil // the first look is due at once
}

// loop runs until the horizon. At one instant the machine's events come first,
// then what ends in serving, then arrivals, then looks: a policy sees the state
// after all that has happened.
func (r *engine) loop() {
	for r.err == nil {
		at, what := min(r.nextLook, r.urgent), looks
		if r.kick { // not twice at one instant: what ends at once must not be ordered for ever
			at = min(at, max(r.now, r.looked+calm))
		}
		for i := range r.serving {
			m := &r.serving[i]
			if m.next < len(m.traffic.Arrivals) && m.traffic.Arrivals[m.next].At <= at {
				at, what = m.traffic.Arrivals[m.next].At, arrives+i
			}
		}
		for i := range r.serving {
			if next := r.serving[i].server.Next(); next <= at {
				at, what = next, steps+i
			}
		}
		if len(r.events) > 0 && r.events[0].at <= at {
			at, what = r.events[0].at, happens
		}
		if at >= r.world.Horizon {
			break
		}
		r.now = max(r.now, at)
		r.step(what)
	}
	r.now = r.world.Horizon
	r.advance()
	if r.err == nil && r.now%time.Minute == 0 {
		r.closeMinute()
		r.checkAll()
	}
}

// What happens next: one of these, of a model where one is added.
const (
	looks   = -2
	happens = -1
	steps   = 0
	arrives = 1 << 16
)

func (r *engine) step(what int) {
	switch {
	case what == looks:
		if r.now >= r.nextLook {
			r.nextLook += r.policy.Every()
		}
		r.look()
	case what == happens:
		e := heap.Pop(&r.events).(*event)
		e.do()
	case what >= arrives:
		i := what - arrives
		work := r.serving[i].arrive(r.now)
		if r.guard != nil && r.guard.Arrived(i, work, r.serving[i].server.InFlight()) {
			r.urgent = min(r.urgent, max(r.now, r.looked+calm))
		}
		r.rested(i)
	default:
		r.serving[what].server.Step(r.now)
		r.rested(what)
	}
	r.deliver()
}

// look asks the policy and carries out what it orders.
func (r *engine) look() {
	r.count++
	r.kick, r.looked, r.urgent = false, r.now, never
	r.observe()
	for _, o := range r.policy.Look(r.seen, &r.view) {
		r.carryOut(o)
	}
	r.deliver()
}

// deliver tells the policy of outcomes. It does so after the event that caused
// them, never in the middle of a look.
func (r *engine) deliver() {
	for len(r.ordered) > 0 {
		m := r.ordered[0]
		r.ordered = r.ordered[1:]
		r.policy.Settle(r.clock(), arbiter.Outcome{Move: m.Move, Gen: m.Gen, Took: r.now - m.at,
			Lost: m.lost, Err: m.err, Fault: m.fault})
		if r.capped != nil {
			if c := r.capped.Cap(); c > 0 && (r.lowestCap == 0 || c < r.lowestCap) {
				r.lowestCap = c
			}
		}
	}
	r.ordered = r.ordered[:0]
}

// clock is the policy's.
func (r *engine) clock() time.Time { return epoch.Add(r.now + r.skew) }

// event is something that happens to the machine by itself.
type event struct {
	at  time.Duration
	seq int
	do  func()
	pos int
}

// after lets do happen in d.
func (r *engine) after(d time.Duration, do func()) *event {
	r.seq++
	e := &event{at: r.now + d, seq: r.seq, do: do}
	heap.Push(&r.events, e)
	return e
}

// cancel takes back an event that has not happened.
func (r *engine) cancel(e *event) {
	if e != nil && e.pos >= 0 {
		heap.Remove(&r.events, e.pos)
	}
}

// events is a heap by time, and in the order in which they were planned.
type events []*event

func (h events) Len() int { return len(h) }
func (h events) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h events) Swap(i, j int) { h[i], h[j] = h[j], h[i]; h[i].pos, h[j].pos = i, j }

// Push implements heap.Interface.
func (h *events) Push(x any) { e := x.(*event); e.pos = len(*h); *h = append(*h, e) }

// Pop implements heap.Interface.
func (h *events) Pop() any {
	n := len(*h) - 1
	e := (*h)[n]
	(*h)[n] = nil
	*h, e.pos = (*h)[:n], -1
	return e
}
