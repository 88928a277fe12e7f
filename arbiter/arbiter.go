// Package arbiter decides which workload holds which slice: it lends what
// serving does not need now to queued jobs and reclaims it before p99 suffers.
//
// Decide is a pure function from a Snapshot to a Plan, so that the simulator
// can call it and every live decision can be replayed. The loop (loop.go) takes
// the snapshots and carries plans out through Serving and Work; the ledger
// (ledger.go) accounts for every powered-on slice-second.
package arbiter

import (
	"time"

	"aloft/gpu"
)

// Snapshot is all that a decision may see.
type Snapshot struct {
	Now    time.Time
	Slices []Slice
	Models []Model
	Jobs   []Job
	// Plan is false between two plan periods: then only wakes and reclaims are
	// decided (the guard), no loans.
	Plan bool
	// Cap limits the slices lent at once; a breach lowers it (invariant I5).
	Cap int
	// RoomFrom is since when more could have been lent without a break. A loan
	// waits until that has lasted for the hold time, so that needs that come and
	// go do not make one slice go out and back.
	RoomFrom time.Time
}

// Phase is what a slice is doing.
type Phase string

// The phases of a slice.
const (
	Free       Phase = "free"
	Loading    Phase = "loading" // a replica loads or wakes
	Ready      Phase = "ready"   // a replica serves
	Draining   Phase = "draining"
	Asleep     Phase = "asleep"    // a sleeping replica and nothing else
	JobStart   Phase = "job_start" // a job was given the slice and has made no progress yet
	JobRuns    Phase = "job_runs"
	Checkpoint Phase = "checkpoint" // a job was asked to leave
	Reshaping  Phase = "reshaping"
	Unhealthy  Phase = "unhealthy"
)

// Slice is one slice with its holder.
type Slice struct {
	gpu.Slice
	Phase  Phase
	Model  string // whose replica is on it, ready or asleep; "" = none
	Job    string // the job that borrows it; "" = none
	Moving bool   // a move that touches it is under way
	To     string // while moving: the model or job it goes to
	Since  time.Time
}

// Lent reports whether a job holds the slice or is about to.
func (s Slice) Lent() bool { return s.Job != "" }

// Model is one served model as a decision sees it.
type Model struct {
	Name     string
	Needs    gpu.Shape // smallest slice that will do
	Min, Max int       // replicas

	// Work is what arrived in the last seconds, newest last, one entry a second,
	// in seconds of one replica's time (merged calls: tokens/µ*; generation:
	// prompt tokens over the prefill rate).
	Work []float64
	// InFlight are the sequences running or waiting; Slots is what one replica
	// holds at once. Generation only: Slots 0 means merged calls.
	InFlight float64
	Slots    int

	Target  time.Duration // p99 target
	P99     time.Duration
	Samples int // in the latency window; below Policy.MinSamples there is no headroom

	// RiseFast and RiseSlow are learned quantiles of the rise of the level within
	// the two horizons, at level 1 (they scale with its square root).
	RiseFast, RiseSlow float64

	Back        time.Duration // p99 from asleep to ready
	Out         time.Duration // p99 from ready to asleep, drain included
	SurplusFrom time.Time     // since when it has had more than it needs; zero = it has not
	Reclaimed   time.Time     // last reclaim for it

	// Useful, Late and Rows are replica time spent since the start on requests
	// that met their target, on those that did not, and on batch rows.
	Useful, Late, Rows time.Duration
}

// Headroom is 1 − p99/target, the share of the target still unused; ok is false
// when the window has too few samples to say.
func (m Model) Headroom(minSamples int) (h float64, ok bool) {
	if m.Samples < minSamples || m.Target <= 0 {
		return 0, false
	}
	return 1 - m.P99.Seconds()/m.Target.Seconds(), true
}

// Traffic reports whether anything arrived in the last ten seconds or runs.
func (m Model) Traffic() bool {
	sum := m.InFlight
	for _, w := range m.Work[max(0, len(m.Work)-10):] {
		sum += w
	}
	return sum > 0
}

// Job is one queued or running job.
type Job struct {
	ID       string
	Kind     string
	Needs    gpu.Shape
	Have     int // slices it holds or is being given
	MaxWidth int
	Priority int
	Created  time.Time
	Model    string // batch: the model whose offline replica runs on the slice
	Grace    time.Duration
	Slices   []string // those it really holds, as its keeper reports
	// Unsaved is the work that a stop would lose after its grace; Restart what
	// it costs to come back.
	Unsaved, Restart time.Duration
	Running          bool
}

// Fast reports whether the job gives its slice back at once: nothing to save.
func (j Job) Fast() bool { return j.Kind == "batch" }

// Waits reports whether the job could use another slice.
func (j Job) Waits() bool { return j.Have < j.MaxWidth }

// order is the sequence in which kinds are lent to: cheap to take back first.
var order = map[string]int{"batch": 0, "quantize": 1, "evaluate": 2, "train": 3, "session": 4}

// Cost is what stopping the job now loses, in slice time.
func (j Job) Cost() time.Duration {
	if j.Fast() {
		return 0
	}
	return min(j.Unsaved, j.Grace) + j.Restart
}

// Action is what a move does.
type Action string

// The actions.
const (
	Start   Action = "start"   // launch a replica on a free slice
	Wake    Action = "wake"    // bring a sleeping replica back
	Lend    Action = "lend"    // give a slice to a job; a ready replica there goes to sleep
	Reclaim Action = "reclaim" // take a slice back from a job for a model
	Hold    Action = "hold"    // a slice that could be lent is not; recorded, moves nothing
)

// Reason says why; a closed list.
type Reason string

// The reasons.
const (
	BelowMin    Reason = "below_min"    // fewer replicas than configured
	NeedsMore   Reason = "needs_more"   // the arrival envelope calls for more replicas
	RiseAhead   Reason = "rise_ahead"   // the learned rise may come within the horizon
	WarmPool    Reason = "warm_pool"    // no job waits: a ready replica costs nothing
	SpareGone   Reason = "spare_gone"   // the shared spare is used up
	Surplus     Reason = "surplus"      // serving needs less than it has
	NoNeed      Reason = "free_slice"   // nobody holds the slice
	LowHeadroom Reason = "low_headroom" // lending vetoed
	NoHeadroom  Reason = "no_headroom"  // too few samples under traffic: lending vetoed
	NotLongYet  Reason = "hold_time"    // surplus for less than the hold time
	CapReached  Reason = "cap"          // the lending cap after a broken bound
	NeededSoon  Reason = "needed"       // now or within the horizon
)

// Move is one step of a plan.
type Move struct {
	Action Action        `json:"action"`
	Slice  string        `json:"slice"`
	Model  string        `json:"model,omitempty"` // who gets it, or lends it
	Job    string        `json:"job,omitempty"`   // who borrows it, or gives it back
	Reason Reason        `json:"reason"`
	Why    Numbers       `json:"why"`
	Bound  time.Duration `json:"bound,omitempty"` // lend, reclaim: the promised reclaim time, ns
}

// Numbers are what a decision rested on.
type Numbers struct {
	Level    float64       `json:"level"`    // replicas needed now, before rounding
	Need     int           `json:"need"`     // replicas needed now
	Fast     int           `json:"fast"`     // and within the fast horizon
	Slow     int           `json:"slow"`     // and within the slow horizon
	Have     int           `json:"have"`     // ready or on their way
	Lent     int           `json:"lent"`     // slices lent, all models
	Lendable int           `json:"lendable"` // slices that may be lent, all models
	Room     *float64      `json:"headroom"` // nil = none
	Latency  time.Duration `json:"p99"`      // p99 of the window, ns
	Gain     time.Duration `json:"gain"`     // lend: expected useful time, ns
	Cost     time.Duration `json:"cost"`     // lend: out and back; reclaim: work lost, ns
	For      time.Duration `json:"for"`      // how long the state lasted, ns
}

// Setting steers one model's batcher.
type Setting struct {
	Model string
	Eta   float64 // 0 eager … 1 as late as the deadline allows
	Rows  bool    // batch rows may ride in ready replicas
}

// Plan is the result of a decision, in the order in which it is to be done.
type Plan struct {
	Moves    []Move
	Holds    []Move
	Settings []Setting
	Needs    map[string]Numbers
}
