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
	"encoding/json"
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
	Waiting    State = "waiting" // for another job, a time, or the pause before a retry: Why says which
	Queued     State = "queued"  // for a slice
	Starting   State = "starting"
	Running    State = "running"
	Preempting State = "preempting"
	Paused     State = "paused" // by its user, until resumed
	Succeeded  State = "succeeded"
	Failed     State = "failed"
	Cancelled  State = "cancelled"
	Expired    State = "expired"
)

// next lists the legal steps. A batch ends from queued as well: its rows ride in
// ready replicas while it holds no slice of its own. Starting → queued is a
// start that was interrupted, starting → succeeded one whose step to running
// could not be stored; running → queued is a crash of ours, or asked for (75);
// starting and running → waiting is the pause before a retry. A failed or
// cancelled job goes on only because its user asked for a retry.
var next = map[State][]State{
	Waiting:    {Queued, Paused, Failed, Cancelled, Expired},
	Queued:     {Starting, Waiting, Paused, Succeeded, Failed, Cancelled, Expired},
	Starting:   {Running, Queued, Waiting, Paused, Succeeded, Failed, Cancelled, Expired},
	Running:    {Preempting, Queued, Waiting, Paused, Succeeded, Failed, Cancelled, Expired},
	Preempting: {Queued, Paused, Succeeded, Failed, Cancelled, Expired},
	Paused:     {Queued, Waiting, Failed, Cancelled, Expired},
	Failed:     {Queued, Waiting},
	Cancelled:  {Queued, Waiting},
}

// Unfinished lists the states that are not final.
func Unfinished() []State {
	return []State{Waiting, Queued, Starting, Running, Preempting, Paused}
}

// Terminal reports whether the state is final: it stays unless a user asks for a
// retry.
func (s State) Terminal() bool { return !slices.Contains(Unfinished(), s) }

// Can reports whether a job may step from s to t.
func (s State) Can(t State) bool { return slices.Contains(next[s], t) }

// holds reports whether a job in this state may have slices or processes.
func (s State) holds() bool { return s == Starting || s == Running || s == Preempting }

// Waits reports whether the job could use a slice now. A batch can while its
// rows run, not while it is validated or wound up.
func (j Job) Waits() bool {
	return j.State == Queued && j.Cancelling.IsZero() && (j.Batch == nil || j.Batch.Status == InProgress) &&
		(j.FineTune == nil || j.FineTune.Checked)
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
	Terms
	Times
	Course
	Progress Progress
	Slices   []string // ids of the slices it holds now
	Batch    *Batch   // kind batch only
	Version  uint64
}

// Terms are what a job was asked for under, beyond what it runs.
type Terms struct {
	Name        string
	Idempotency string        // the user's key: asked for twice, made once
	Asked       string        // digest of the request, to know it again
	DependsOn   []string      // ids of jobs that must have succeeded before it is queued
	NotBefore   time.Time     // it is not queued earlier; zero = at once
	Deadline    time.Time     // it expires if it has not started by then; zero = none
	Expected    time.Duration // how long it is thought to run on one slice; 0 = unknown
	Retries     int           // how often it is run again after a failure
	KeepFor     time.Duration // how long it is kept after its end; 0 = Options.KeepFor
	Limits      Limits
	SavesIn     string    `json:",omitempty"` // folder of its checkpoints, the operator's; "" = in the data folder
	ClearSaves  bool      `json:",omitempty"` // what is old is removed from it
	Schedule    string    // name of the schedule that made it; "" = a user
	FineTune    *FineTune // made through /v1/fine_tuning/jobs
	Session     *Session  // kind session only
}

// Limits bound what a job may use; 0 = no limit of its own.
type Limits struct {
	CPUs    float64       // cores
	Memory  int64         // bytes of resident memory
	Disk    int64         // bytes of scratch, checkpoints and artefacts together
	Log     int64         // bytes of log kept
	RunTime time.Duration // of all its runs together
}

// Times are a job's moments; zero = not yet.
type Times struct {
	Created    time.Time
	Started    time.Time // the first time it had a slice
	Finished   time.Time
	Cancelling time.Time // when cancellation was asked for: the wish survives a crash
	Pausing    time.Time // when a pause was asked for of a job that held slices; likewise
	RetryAt    time.Time // end of the pause before a retry
	KeptUntil  time.Time // when it may be removed; zero = not yet finished
}

// Course is how a job has fared so far.
type Course struct {
	Why         string // what a waiting job waits for
	Error       string // why it failed, or what it last suffered
	Preemptions int
	Tried       int           // retries begun since it was submitted or retried by hand
	Ran         time.Duration // of its ended runs, since the same moment
	Saving      time.Duration // what a checkpoint takes, smoothed; 0 = not measured
	Checkpoints []Checkpoint  // the last 32, oldest first
	Result      json.RawMessage
	Suspended   *Suspension `json:",omitempty"` // of a queued job whose processes stand still
}

// Checkpoint is one that a run completed.
type Checkpoint struct {
	Path  string
	Step  int64
	At    time.Time
	Bytes int64 // on disk when it was reported
	// Metrics are those that were reported with it.
	Metrics map[string]float64
}

const maxCheckpoints = 32 // kept in the record; of the files the newest Options.KeepCheckpoints

// Progress is what a run reported last, see Report.
type Progress struct {
	Done, Total  int64
	Unit         string  // "steps", "rows"
	Rate         float64 // units per second, measured
	Loss         float64
	Checkpoint   string // path that the next run resumes from
	CheckpointAt time.Time
	Resumes      int    // runs that began from a checkpoint
	Result       string // the program's result, if it is text: for example the SHA-256 of its weights
	Message      string // the last it said
	Metrics      map[string]float64
	Heard        time.Time // when it last reported anything
}

// The errors of this package; test with errors.Is.
var (
	// ErrNotFound: no such job, file or batch (404).
	ErrNotFound = errors.New("not found")
	// ErrConflict: the record changed since it was read.
	ErrConflict = errors.New("record changed meanwhile")
	// ErrFinished: the job is in a final state and cannot be changed (400).
	ErrFinished = errors.New("already finished")
	// ErrKeyTaken: another job of the tenant has this idempotency key.
	ErrKeyTaken = errors.New("idempotency key is taken")
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
	if t != Waiting {
		j.Why = ""
	}
	if t != Queued {
		j.Suspended = nil
	}
	switch {
	case t == Starting && j.Started.IsZero():
		j.Started = now
	case t.Terminal():
		j.Finished, j.Slices = now, nil
		j.Pausing, j.RetryAt = time.Time{}, time.Time{}
	case t == Paused:
		j.Slices, j.Pausing = nil, time.Time{}
	case t == Queued || t == Waiting:
		j.Slices = nil
	}
}

// fail ends the job for the reason, or lets it wait for its next try.
func (j *Job) fail(why string, now time.Time, r Retry) {
	j.Error = why
	if j.Tried >= j.Retries || !j.State.Can(Waiting) {
		j.step(Failed, now)
		return
	}
	wait := doubled(r, j.Tried)
	j.Tried++
	j.step(Waiting, now)
	j.RetryAt = now.Add(wait)
	j.Why = fmt.Sprintf("retry %d of %d after: %s", j.Tried, j.Retries, why)
}

// doubled is the pause before the retry that follows n others.
func doubled(r Retry, n int) time.Duration {
	d := r.First
	for ; n > 0 && d < r.Most; n-- {
		d *= 2
	}
	return min(d, r.Most)
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
