// Package sim runs a world of package scenario under a policy in virtual time:
// slices, jobs, moves and faults as discrete events, requests through package
// serving, decisions by the arbiter's own core or by a rival of it. Equal inputs
// give equal results, to the byte.
//
// Everything here is modelled: no request is sent, no job runs, no GPU is asked.
// What is counted, and how, are the rules of the standard scenarios; where they
// are silent the choice stands in the comment at the place.
package sim

import (
	"fmt"
	"math/bits"
	"time"

	"aloft/arbiter"
)

// Result is what one run of a world under a policy came to. All of it is modelled.
type Result struct {
	Scenario string  `json:"scenario"`
	Policy   string  `json:"policy"`
	Seed     uint64  `json:"seed"`
	HorizonS float64 `json:"horizon_s"`
	Slices   int     `json:"slices"` // in units of the smallest shape: a whole GPU is seven

	// Ledger holds slice-seconds by account. They sum to slices × horizon, exactly
	// before they are rounded to seconds; broken slices are powered on too.
	Ledger map[arbiter.Account]float64 `json:"ledger_slice_s"`
	// Aloft is (useful serving + useful job) / (slices × horizon).
	Aloft float64 `json:"aloft_ratio"`

	Total  Served        `json:"total"`
	Models []ModelResult `json:"models"`

	Jobs     JobFigures    `json:"jobs"`
	Moves    []MoveCount   `json:"moves"` // by action and reason, sorted
	Reclaims []ReclaimTime `json:"reclaims"`
	// LendingCap is the lowest limit that the policy set itself on slices lent at once,
	// after a broken bound; 0 = it never did.
	LendingCap int `json:"lending_cap,omitempty"`

	Series Series `json:"series"`
	Spans  Spans  `json:"spans"`

	Looks            int        `json:"looks"` // of the policy
	Checks           int64      `json:"invariant_checks"`
	Incidents        []Incident `json:"incidents"` // the first maxIncidents
	IncidentsLeftOut int        `json:"incidents_left_out"`
}

// Served counts judged requests: those that arrive after the warm-up and before
// the tail.
type Served struct {
	Requests   int     `json:"requests"`
	Good       int     `json:"good"`
	Attainment float64 `json:"attainment"` // good / requests; 1 without requests
	Refused    int     `json:"refused"`    // by the batcher; never good
	Cut        int     `json:"cut"`        // by a failure; never good
	Unfinished int     `json:"unfinished"` // at the horizon; never good
	// Hopeless would have missed on an idle replica too: reported apart, never dropped.
	Hopeless int `json:"hopeless"`
}

// ModelResult is one model's serving.
type ModelResult struct {
	Name   string `json:"model"`
	Static int    `json:"static_share_slices"`
	Served
	TTFT      Spread   `json:"ttft_s"`
	TPOT      Spread   `json:"tpot_s"`      // mean time per later token of a request
	KneeGood  float64  `json:"knee_good_s"` // slice-seconds of knee work of all good requests
	KneeLate  float64  `json:"knee_late_s"` // and of finished ones that were not good
	ReadyMean float64  `json:"ready_mean"`  // replicas ready, mean over the horizon
	Copies    int      `json:"copies"`      // of the trace, laid over each other
	TimeScale float64  `json:"time_scale"`  // the small rest
	Judged    [2]int   `json:"judged"`      // arrivals [from, to) are judged
	GoodBits  []uint64 `json:"-"`           // bit i: arrival i was good
}

// Spread is a distribution in seconds.
type Spread struct {
	N    int     `json:"n"`
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P95  float64 `json:"p95"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
}

// JobFigures are the figures of the jobs. Submitted, queueing and completion are
// of foreground jobs; the slice-seconds are of all, the backlog's too.
type JobFigures struct {
	OfferedLoad float64 `json:"offered_load"` // work submitted / (job share × horizon)
	Submitted   int     `json:"submitted"`
	Finished    int     `json:"finished"`
	Unfinished  int     `json:"unfinished"` // counted in completion with their age
	// Queueing: all seconds queued, also after a preemption. Completion: finish −
	// submission.
	Queueing   Spread `json:"queueing_s"`
	Completion Spread `json:"completion_s"`
	// QueuedBy splits all queued seconds: too few idle slices for the job
	// (capacity), enough but not in its shape (shape), enough in its shape that
	// it was not given (policy).
	QueuedBy QueuedBy `json:"queued_by_s"`

	ProgressS   float64 `json:"progress_slice_s"` // made, lost or kept
	LostS       float64 `json:"lost_slice_s"`     // charged when lost
	OverheadS   float64 `json:"overhead_slice_s"` // starts, restarts, checkpoints
	Lost        float64 `json:"lost"`             // over progress made
	Overhead    float64 `json:"overhead"`         // over progress made
	Preemptions int     `json:"preemptions"`      // foreground
	BacklogS    float64 `json:"backlog_slice_s"`  // progress of the backlog that was kept

	List []JobResult `json:"list"` // foreground, in order of submission
}

// QueuedBy is queued time by cause, seconds.
type QueuedBy struct {
	Capacity float64 `json:"capacity"`
	Shape    float64 `json:"shape"`
	Policy   float64 `json:"policy"`
}

// JobResult is one foreground job. Seconds since the start of the run.
type JobResult struct {
	ID      string  `json:"id"`
	Kind    string  `json:"kind"`
	Width   int     `json:"width_slices"`
	AtS     float64 `json:"at_s"`
	StartS  float64 `json:"start_s"`  // first; −1 = never
	FinishS float64 `json:"finish_s"` // −1 = not finished
	QueuedS float64 `json:"queued_s"`
	Stops   int     `json:"stops"`
	LostS   float64 `json:"lost_slice_s"`
}

// MoveCount is how often a policy ordered a kind of move, and how it ended.
type MoveCount struct {
	Action  arbiter.Action `json:"action"`
	Reason  arbiter.Reason `json:"reason"`
	Done    int            `json:"done"`
	Failed  int            `json:"failed"`  // by a fault
	Refused int            `json:"refused"` // not legal in the state that it met
}

// ReclaimTime is the reclaims of one class: from the decision to a ready replica.
// The bound is fixed before the run.
type ReclaimTime struct {
	Class   string  `json:"class"` // fast: stops at once; saves: checkpoints first; each also "cold": no sleeper there
	Kept    int     `json:"kept"`
	Broken  int     `json:"broken"`
	Faulted int     `json:"broken_by_fault"` // under an injected fault
	BoundS  float64 `json:"bound_s"`         // the largest that was promised
	Took    Spread  `json:"took_s"`
}

// Series are figures by the minute, the same number of entries in each list.
type Series struct {
	Minutes int `json:"minutes"`
	// Slices is the mean number of slices in each account in the minute. Useful
	// serving is credited when requests end, at most what was ready.
	Slices map[arbiter.Account][]float32 `json:"slices"`
	Models []ModelSeries                 `json:"models"`
	Queued []float32                     `json:"queued"` // foreground jobs waiting, at the end of the minute
	Lent   []float32                     `json:"lent"`   // slices held by jobs, at the end of the minute
}

// ModelSeries is one model's minutes.
type ModelSeries struct {
	Name  string    `json:"model"`
	Need  []float32 `json:"need"`  // the largest requirement within the minute, replicas
	Ready []float32 `json:"ready"` // mean number of ready replicas
	Lent  []float32 `json:"lent"`  // its sleepers' slices held by jobs, at the end of the minute
	// P99 is of the part of its target that a request used (TTFT or TPOT, the
	// larger), of requests that ended in the minute: above 1 it is missed. −1 = none.
	P99      []float32 `json:"p99"`
	Headroom []float32 `json:"headroom"` // 1 − p99; 1 without requests
}

// Spans are what each unit of a GPU did, for a Gantt chart. Bounded: what began
// after the bound was reached is left out, and counted.
type Spans struct {
	FromS   float64 `json:"from_s"`
	ToS     float64 `json:"to_s"`
	List    []Span  `json:"list"`
	LeftOut int     `json:"left_out"`
}

// Span is one slice in one phase.
type Span struct {
	GPU   int           `json:"gpu"`
	Start int           `json:"start"` // first unit within the GPU
	Width int           `json:"width"` // units
	FromS float64       `json:"from_s"`
	ToS   float64       `json:"to_s"`
	Phase arbiter.Phase `json:"phase"`
	Who   string        `json:"who,omitempty"` // model or job
}

// Incident is something that an operator would be told of.
type Incident struct {
	AtS   float64 `json:"at_s"`
	Kind  string  `json:"kind"` // bound_broken, wake_failed, checkpoint_failed, gpu_failed, grace_ended …
	Slice string  `json:"slice,omitempty"`
	Job   string  `json:"job,omitempty"`
	Model string  `json:"model,omitempty"`
	TookS float64 `json:"took_s,omitempty"`
	Bound float64 `json:"bound_s,omitempty"`
	Fault bool    `json:"fault,omitempty"` // an injected one stood behind it
}

// Reclaimed sums the reclaims over their classes.
func (r *Result) Reclaimed() (kept, broken, faulted int) {
	for _, c := range r.Reclaims {
		kept, broken, faulted = kept+c.Kept, broken+c.Broken, faulted+c.Faulted
	}
	return kept, broken, faulted
}

// Cause is misses caused by lending: this run against a static one of the same
// world, whose full share was always ready, but for what the world's own faults
// took from it.
type Cause struct {
	Model    string  `json:"model"` // "" = all
	Requests int     `json:"requests"`
	Gross    int     `json:"gross"` // missed here, good there
	Net      int     `json:"net"`   // less those that go the other way
	GrossPer float64 `json:"gross_per_100k"`
	NetPer   float64 `json:"net_per_100k"`
}

// Caused compares a run with the static run of the same world: a row for each
// model and one, the last, for all.
func Caused(run, static *Result) ([]Cause, error) {
	if run.Scenario != static.Scenario || run.Seed != static.Seed || len(run.Models) != len(static.Models) {
		return nil, fmt.Errorf("sim: %s seed %d is compared with %s seed %d: not the same world", run.Scenario, run.Seed, static.Scenario, static.Seed)
	}
	all := Cause{}
	var rows []Cause
	for i := range run.Models {
		m, s := &run.Models[i], &static.Models[i]
		if m.Name != s.Name || m.Judged != s.Judged || len(m.GoodBits) != len(s.GoodBits) {
			return nil, fmt.Errorf("sim: model %s was judged on arrivals %v here and %v there: not the same world", m.Name, m.Judged, s.Judged)
		}
		c := Cause{Model: m.Name, Requests: m.Judged[1] - m.Judged[0]}
		worse, better := 0, 0
		for w := range m.GoodBits {
			in := judged(m.Judged, w)
			worse += bits.OnesCount64(s.GoodBits[w] &^ m.GoodBits[w] & in)
			better += bits.OnesCount64(m.GoodBits[w] &^ s.GoodBits[w] & in)
		}
		c.Gross, c.Net = worse, worse-better
		all.Requests, all.Gross, all.Net = all.Requests+c.Requests, all.Gross+c.Gross, all.Net+c.Net
		rows = append(rows, c.per())
	}
	return append(rows, all.per()), nil
}

// judged is the mask of word w's bits that lie in [from, to).
func judged(span [2]int, w int) uint64 {
	lo, hi := max(span[0]-64*w, 0), min(span[1]-64*w, 64)
	if lo >= hi {
		return 0
	}
	return ^uint64(0) >> (64 - hi) &^ (1<<lo - 1)
}

func (c Cause) per() Cause {
	if c.Requests > 0 {
		c.GrossPer = 1e5 * float64(c.Gross) / float64(c.Requests)
		c.NetPer = 1e5 * float64(c.Net) / float64(c.Requests)
	}
	return c
}

// seconds rounds to a microsecond, so that JSON stays short.
func seconds(d time.Duration) float64 { return d.Round(time.Microsecond).Seconds() }
