package jobs

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"aloft/gpu"
)

// ExitRequeue is the exit code by which a program says "checkpointed, run me
// again" (sysexits' EX_TEMPFAIL); 0 means done.
const ExitRequeue = 75

// Executor starts a job's processes on the slices that were lent to it.
type Executor interface {
	// Start returns when the processes run. ctx bounds the start, not the run.
	Start(ctx context.Context, l Launch) (Run, error)
	// Reap ends what an earlier life of this program left running.
	Reap(ctx context.Context) error
}

// Run is a started job.
type Run interface {
	// Wait blocks until no process of the run is left, and says how it ended.
	Wait() Exit
	// Preempt sends the checkpoint signal and kills after grace. It returns at
	// once; Wait tells the end. A second call may only shorten the grace.
	Preempt(grace time.Duration)
}

// Launch is what an Executor needs to start a job.
type Launch struct {
	Job           Job
	Slices        []gpu.Slice
	Env           []string // the template's, "KEY=value"
	CheckpointDir string
	ResumeFrom    string // checkpoint to go on from, "" = from the start
	OutputDir     string // artefacts, kept as long as the job
	Log           string // path of the log file
	// CheckpointInterval is how often to save is worth while; see CheckpointInterval.
	CheckpointInterval time.Duration
	// Report is called for each line the program reports, from one goroutine.
	Report func(Report)
}

// Report is one line that a program writes on its progress descriptor. What a
// line leaves out stays as it was.
type Report struct {
	Step            int64              `json:"step"`
	Total           int64              `json:"total"`
	Loss            float64            `json:"loss"`
	Unit            string             `json:"unit"`       // "" = steps
	Checkpoint      string             `json:"checkpoint"` // a checkpoint that is complete on disk
	CheckpointBytes int64              `json:"checkpoint_bytes"`
	Saving          float64            `json:"checkpoint_seconds"` // that saving it took
	Result          json.RawMessage    `json:"result"`             // any JSON: shown with the job
	Message         string             `json:"message"`            // for a person; becomes an event
	Metrics         map[string]float64 `json:"metrics"`            // the last of each name is kept
	Heartbeat       bool               `json:"heartbeat"`
}

// Exit says how a run ended.
type Exit struct {
	Code   int // exit code; -1 = ended by a signal
	Signal string
	Forced bool   // killed because the grace was over
	Limit  string // the limit that it exceeded, in words; "" = none
	Said   string // the last line of a program that failed; "" = nothing
}

// String says it in words.
func (e Exit) String() string {
	words := fmt.Sprintf("exit status %d", e.Code)
	if e.Signal != "" {
		words = "ended by signal " + e.Signal
	}
	if e.Said != "" { // most often the reason, which is else to be looked for in the log
		words += ": " + e.Said
	}
	return words
}

// outcome decides what becomes of a job whose run has ended. saved tells whether
// this run completed a checkpoint.
//
// While preempting every end but success means "run again": a program that does
// not know the signal dies of it, and one that fails while saving gets another
// try from its last checkpoint. An unasked requeue is granted only to a run that
// saved something: otherwise such a program would be started for ever.
func outcome(j Job, e Exit, saved bool) (State, string) {
	again := Queued
	if !j.Pausing.IsZero() {
		again = Paused
	}
	switch {
	case e.Code == 0 && e.Signal == "":
		return Succeeded, ""
	case !j.Cancelling.IsZero():
		return Cancelled, ""
	case e.Limit != "":
		return Failed, e.Limit
	case j.State == Preempting || j.State == Starting || again == Paused: // starting: ended because that was not stored
		return again, ""
	case e.Code == ExitRequeue && saved:
		return again, ""
	case e.Code == ExitRequeue:
		return Failed, "asked to be run again without having saved a checkpoint"
	}
	return Failed, e.String()
}

// maxMetrics bounds the names that a program can measure under.
const maxMetrics = 32

// advance folds a report into the progress. began is when the run started, at
// which step from.
func (p Progress) advance(r Report, from int64, began, now time.Time) Progress {
	p.Heard = now
	p.Unit = cmp.Or(r.Unit, p.Unit, "steps")
	p.Done = cmp.Or(r.Step, p.Done)
	p.Total = cmp.Or(max(r.Total, 0), p.Total)
	p.Loss = cmp.Or(r.Loss, p.Loss)
	p.Message = cmp.Or(cut(r.Message, maxMessage), p.Message)
	if r.Checkpoint != "" {
		p.Checkpoint, p.CheckpointAt = r.Checkpoint, now
	}
	if text := ""; json.Unmarshal(r.Result, &text) == nil && text != "" {
		p.Result = text
	}
	if len(r.Metrics) > 0 {
		p.Metrics = maps.Clone(p.Metrics) // whoever has read the old progress keeps it
		if p.Metrics == nil {
			p.Metrics = map[string]float64{}
		}
		for name, v := range r.Metrics {
			if _, known := p.Metrics[name]; known || len(p.Metrics) < maxMetrics {
				p.Metrics[name] = v
			}
		}
	}
	if d := now.Sub(began).Seconds(); d > 0 && r.Step > from {
		p.Rate = float64(r.Step-from) / d
	}
	return p
}
