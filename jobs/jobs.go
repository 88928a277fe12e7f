// Package jobs keeps work that may wait: what a job is, its states, how it is
// stored, how its process is started and preempted, and the runner of OpenAI
// batch files.
//
// It stores and lists; it does not order the queue, start engines or know who
// lends slices: the arbiter's loop calls Start and Preempt. A batch's rows
// leave through Caller, the same door a client's request takes.
package jobs

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Kind is what sort of work a job is.
type Kind string

// The kinds of jobs.
const (
	KindBatch    Kind = "batch"    // an OpenAI batch file; its rows ride in ready replicas
	KindTrain    Kind = "train"    // checkpoints and resumes
	KindQuantize Kind = "quantize" // short; starts over when preempted, unless it checkpoints
	KindEvaluate Kind = "evaluate"
	KindSession  Kind = "session" // an interactive shell or notebook
)

// State is where a job stands; the steps between states are in the table next.
type State string

// The states of a job.
const (
	Queued     State = "queued"
	Starting   State = "starting"
	Running    State = "running"
	Preempting State = "preempting"
	Succeeded  State = "succeeded"
	Failed     State = "failed"
	Cancelled  State = "cancelled"
	Expired    State = "expired"
)

// next lists the legal steps. A batch ends from queued as well: its rows ride in
// ready replicas while it holds no slice of its own. Starting → queued is a
// start that was interrupted, starting → succeeded one whose step to running
// could not be stored; running → queued is a crash of ours, or asked for (75).
var next = map[State][]State{
	Queued:     {Starting, Succeeded, Failed, Cancelled, Expired},
	Starting:   {Running, Queued, Succeeded, Failed, Cancelled, Expired},
	Running:    {Preempting, Queued, Succeeded, Failed, Cancelled, Expired},
	Preempting: {Queued, Succeeded, Failed, Cancelled, Expired},
}

// Terminal reports whether the state is final.
func (s State) Terminal() bool { return len(next[s]) == 0 }

// Can reports whether a job may step from s to t.
func (s State) Can(t State) bool { return slices.Contains(next[s], t) }

// Waits reports whether the job could use a slice now. A batch can while its
// rows run, not while it is validated or wound up.
func (j Job) Waits() bool {
	return j.State == Queued && j.Cancelling.IsZero() && (j.Batch == nil || j.Batch.Status == InProgress)
}

// Job is one piece of work that may wait. It is stored whole (Go field names are
// the stored names); Version is the store's, for compare and swap.
type Job struct {
	ID       string
	Tenant   string
	Template string            // the operator's template it was made from; "" = free command or batch
	Params   map[string]string // values for the template's parameters
	Kind     Kind
	State    State
	Model    string // batch: whose replicas serve its rows
	Shape    string // smallest MIG profile that will do, "" = any
	MinWidth int    // fewest slices it can use; 0 = 1
	MaxWidth int    // most slices it can use; 0 = MinWidth
	Priority int    // higher goes first; the arbiter decides what it is worth
	Grace    time.Duration
	Command  []string // program and arguments, no shell; filled in from the template
	Times
	Preemptions int
	Progress    Progress
	Error       string   // why it failed, or what it last suffered
	Slices      []string // ids of the slices it holds now
	Batch       *Batch   // kind batch only
	Version     uint64
}

// Times are a job's moments; zero = not yet.
type Times struct {
	Created    time.Time
	Started    time.Time // the first time it had a slice
	Finished   time.Time
	Cancelling time.Time // when cancellation was asked for: the wish survives a crash
}

// Progress is what a run reported last, see Report.
type Progress struct {
	Done, Total  int64
	Unit         string  // "steps", "rows"
	Rate         float64 // units per second, measured
	Loss         float64
	Checkpoint   string // path that the next run resumes from
	CheckpointAt time.Time
	Resumes      int    // runs that began from a checkpoint
	Result       string // what the program called its result, for example the SHA-256 of its weights
}

// The errors of this package; test with errors.Is.
var (
	// ErrNotFound: no such job, file or batch (404).
	ErrNotFound = errors.New("not found")
	// ErrConflict: the record changed since it was read.
	ErrConflict = errors.New("record changed meanwhile")
	// ErrFinished: the job is in a final state and cannot be changed (400).
	ErrFinished = errors.New("already finished")
	// ErrClosed: the manager is closing; what was asked was not done (503).
	ErrClosed = errors.New("job manager is closed")
)

// InvalidError is bad input: which parameter, and why (400).
type InvalidError struct {
	Param  string
	Reason string
}

// Error implements error.
func (e *InvalidError) Error() string { return e.Param + ": " + e.Reason }

func invalid(param, format string, args ...any) error {
	return &InvalidError{Param: param, Reason: fmt.Sprintf(format, args...)}
}

// step moves the job to t; an illegal step is a bug in the caller.
func (j *Job) step(t State, now time.Time) {
	if !j.State.Can(t) {
		panic(fmt.Sprintf("BUG: job %s cannot step from %s to %s", j.ID, j.State, t))
	}
	j.State = t
	switch {
	case t == Starting && j.Started.IsZero():
		j.Started = now
	case t.Terminal():
		j.Finished, j.Slices = now, nil
	case t == Queued:
		j.Slices = nil
	}
}

// newID returns prefix and 32 hex digits, of which the first twelve are the
// time in milliseconds, so that ids sort by age.
func newID(prefix string, now time.Time) string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	ms := uint64(now.UnixMilli())
	binary.BigEndian.PutUint16(b[:2], uint16(ms>>32))
	binary.BigEndian.PutUint32(b[2:6], uint32(ms))
	return prefix + hex.EncodeToString(b[:])
}
