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
	GPUs   []GPU
	Slices []Slice // those of a GPU side by side
	Models []Model
	Jobs   []Job
	Claims []Claim // freed capacity that is kept for who claimed it
	// Plan is false between two plan periods: then only wakes and reclaims are
	// decided (the guard), no loans. Geometry is true when reshapes are planned.
	Plan, Geometry bool
	// Queue is true when a job came, or a slice was left, since the last plan: who
	// waits may take what is idle or held by lower priority, without a plan period
	// in between. Ready replicas are given up by plans alone.
	Queue bool
	// Cap limits the slices lent at once; a breach lowers it (invariant I5).
	Cap int
	// RoomFrom is since when more could have been lent without a break. A loan
	// waits until that has lasted for the hold time, so that needs that come and
	// go do not make one slice go out and back.
	RoomFrom time.Time
}

// GPU is the geometry of one GPU: what a reshape may change.
type GPU struct {
	Index    int
	Server   int        // GPUs of one server share it; a gang stays in one if it fits
	Family   string     // key into the MIG tables; "" = cannot be reshaped
	Mask     uint8      // memory slices taken by instances, free ones included
	Reshaped time.Time  // the last time; zero = never
	Shaping  bool       // a reshape is under way: some of its slices may be missing
	Health   gpu.Health // of the device
}

// Claim is capacity that is kept for one claimant across looks, until it has
// moved in or Until has passed (Kueue #13662): a gang that gathers its members,
// a model or job whose shape is being made. A claim without slices and GPUs says
// that its claimant has timed out and backs off: it may claim nothing before Until.
type Claim struct {
	Job    string // or
	Model  string
	Slices []string // kept as they are
	GPUs   []int    // kept to be reshaped
	// Cut is the part of the one GPU that is kept, where the job's slice is made; size
	// 0 = all of them.
	Cut   gpu.Placement
	Since time.Time
	Until time.Time
	Tries int // times it has timed out before; it backs off
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

// Units is how many compute slices it is: what lent and lendable are counted in.
func (s Slice) Units() int { return units(s.Shape) }

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

	Learned
	Limits

	Back time.Duration // p99 from asleep to ready
	Cold time.Duration // p99 from an empty slice to ready
	Out  time.Duration // p99 from ready to asleep, drain included

	// Useful, Late and Rows are replica time spent since the start on requests
	// that met their target, on those that did not, and on batch rows.
	Useful, Late, Rows time.Duration
}

// Learned is what the core knows of a model by itself.
type Learned struct {
	// RiseFast and RiseSlow are learned quantiles of the rise of the level within
	// the two horizons, at level 1 (they scale with its square root).
	RiseFast, RiseSlow float64
	// HeldFast and HeldSlow are levels that the lines do not fall below yet: the
	// law's hold, and the forecast.
	HeldFast, HeldSlow float64
	Law                Law           // once learned, its hold stands for all other waiting
	SurplusFrom        time.Time     // since when it has had more than it needs; zero = it has not
	Reclaimed          time.Time     // last reclaim for it
	Within             time.Duration // the fast horizon
	Quantile           float64       // of the rises that RiseFast covers
}

// Limits are what an operator allows of a model.
type Limits struct {
	Static    int      // replicas that mode static keeps ready; 0 = Max
	LendLimit int      // slices it may lend at once, 0 = no limit
	Pinned    []string // slices that only it may hold: never lent
	Frozen    bool     // a maintenance window: nothing is lent from it
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
	MinWidth int    // a gang: all of these or none, started together; below 2 = no gang
	Whole    bool   // it begins with all that it will have, and takes no more before it is queued again
	Tenant   string // whose it is; shares are between tenants
	Priority int
	Created  time.Time
	Queued   time.Time // since when it waits for its next slice; zero = it does not
	Deadline time.Time // zero = none
	Model    string    // batch: the model whose offline replica runs on the slice
	Grace    time.Duration
	Slices   []string // those it really holds, as its keeper reports
	// Unsaved is the work that a stop would lose after its grace; Restart what
	// it costs to come back.
	Unsaved, Restart time.Duration
	Rest             time.Duration // expected run time left on MinWidth slices, p90; 0 = unknown
	Running          bool
	Stopping
}

// Stopping says how a job leaves.
type Stopping struct {
	Leave     time.Duration // from the signal to an empty slice, p99; 0 = unknown
	Save      time.Duration // a checkpoint, p99; 0 = it cannot save
	Preempted []time.Time   // stops within the last hour
}

// fastLeave is the longest stop of a job that counts as fast: it gives its slice
// back within the fast horizon.
const fastLeave = 2 * time.Second

// Fast reports whether the job gives its slice back at once: nothing to save.
func (j *Job) Fast() bool { return j.Kind == "batch" || j.Leave > 0 && j.Leave <= fastLeave }

// Waits reports whether the job could use another slice.
func (j *Job) Waits() bool {
	return j.Have < j.MaxWidth && !(j.Whole && j.Have >= max(1, j.MinWidth))
}

// Gang reports whether the job starts with several slices or not at all.
func (j *Job) Gang() bool { return j.MinWidth > 1 && j.Have < j.MinWidth }

// Broken reports whether the job is a gang that has lost a member, or never had all.
func (j *Job) Broken() bool { return j.Gang() && j.Have > 0 }

// Cost is what stopping the job now loses, in slice time: what is not saved, or
// the time to save it within the grace; and what it takes to come back.
func (j *Job) Cost() time.Duration {
	lost := j.Unsaved
	if !j.Fast() && j.Grace > 0 {
		lost = min(lost, j.Grace)
	}
	return lost + j.Restart
}

// Light reports whether the job may be stopped at any time for next to nothing:
// rows of a file. All others are kept where serving is least likely to come back.
func (j *Job) Light() bool { return j.Kind == "batch" || j.Kind == "embed" }

// Action is what a move does.
type Action string

// The actions.
const (
	Start   Action = "start"   // launch a replica on a free slice
	Wake    Action = "wake"    // bring a sleeping replica back
	Lend    Action = "lend"    // give a slice to a job; a ready replica there goes to sleep
	Reclaim Action = "reclaim" // take a slice back from a job for a model
	Vacate  Action = "vacate"  // empty a slice for a claim: stop the job or the replica that is on it
	Reshape Action = "reshape" // give a GPU other instances; its free slices go, new ones come
	Hold    Action = "hold"    // a slice that could be lent is not; recorded, moves nothing
	Follow  Action = "follow"  // a model has a new law; recorded, moves nothing
	Variant Action = "variant" // what serves a model is another; recorded, moves nothing
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
	NotWorthIt  Reason = "not_worth_it" // going out and coming back would cost more than it brings
	OverLimit   Reason = "limit"        // the model may lend, or the tenant borrow, no more
	ForJob      Reason = "for_job"      // a job of higher priority, or a gang, claims it
	LostMember  Reason = "lost_member"  // what is left of a gang cannot run
	OtherShape  Reason = "shape"        // what waits needs other instances
	FromPast    Reason = "from_past"    // the law was learned from the model's history
	Added       Reason = "added"        // a variant is there
	ByHand      Reason = "by_hand"      // somebody wanted it so
	ByRule      Reason = "by_rule"      // the variant's rule did
	InPlace     Reason = "in_place"     // who was to take over has
	GaveUp      Reason = "gave_up"      // it could not
)

// Move is one step of a plan.
type Move struct {
	Action Action          `json:"action"`
	Slice  string          `json:"slice"`
	Gang   []string        `json:"gang,omitempty"`   // lend: the other slices of a gang, started together
	GPU    int             `json:"gpu,omitempty"`    // reshape
	Layout []gpu.Placement `json:"layout,omitempty"` // reshape: all instances that the GPU has after it
	Model  string          `json:"model,omitempty"`  // who gets it, or lends it
	Job    string          `json:"job,omitempty"`    // who borrows it, or gives it back
	Reason Reason          `json:"reason"`
	Why    Numbers         `json:"why"`
	Bound  time.Duration   `json:"bound,omitempty"` // lend, reclaim: the promised reclaim time, ns
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
	Within   time.Duration `json:"within"`   // the fast horizon, ns
	Quantile float64       `json:"quantile"` // of the rises that Fast covers; above 1: so many times the worst
	Hold     time.Duration `json:"hold"`     // for how long Fast does not fall: the law's, ns; 0 = there is none
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
	// Claims are all that are to be kept after this plan; one that is missing has
	// been met or is given up. The core keeps the timeout of the first time.
	Claims []Claim
}
