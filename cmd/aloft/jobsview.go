package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"aloft/jobs/evaluation"
)

// jobObject is what the client commands read of a job.
type jobObject struct {
	ID, Name, Tenant, Kind, State, Why, Error string
	jobWhat
	Slices      []string
	DependsOn   []string `json:"depends_on"`
	Preemptions int
	Retries     int
	Tried       int
	jobWhen
	Progress jobProgress
	Session  *sessionObject
	Result   json.RawMessage
}

type jobWhat struct {
	Template, Model, Shape string
	Command                []string
	Params                 map[string]string
}

type jobWhen struct {
	Created   float64 `json:"created_at"`
	Started   float64 `json:"started_at"`
	Finished  float64 `json:"finished_at"`
	NotBefore float64 `json:"not_before"`
	Deadline  float64 `json:"deadline"`
	RetryAt   float64 `json:"retry_at"`
	KeptUntil float64 `json:"kept_until"`
}

type jobProgress struct {
	Done, Total  int64
	Unit         string
	Rate         float64 `json:"per_second"`
	CheckpointAt float64 `json:"checkpoint_at"`
	Resumes      int
	Message      string
	Result       string
	Metrics      map[string]float64
}

func (j jobObject) ended() bool {
	switch j.State {
	case "succeeded", "failed", "cancelled", "expired":
		return true
	}
	return false
}

// outcome is nil for a job that succeeded, else an error with an exit code.
func (j jobObject) outcome() error {
	why := ""
	if j.Error != "" {
		why = ": " + j.Error
	}
	switch j.State {
	case "succeeded":
		return nil
	case "cancelled":
		return coded(exitCancelled, fmt.Errorf("job %s was cancelled", j.ID))
	case "expired":
		return coded(exitExpired, fmt.Errorf("job %s expired%s", j.ID, why))
	}
	return coded(exitFailed, fmt.Errorf("job %s failed%s", j.ID, why))
}

// String is the job on a line.
func (j jobObject) String() string {
	s := fmt.Sprintf("%s  %-8s %-10s", j.ID, j.Kind, j.State)
	if j.Name != "" {
		s += " " + j.Name
	}
	if j.Progress.Total > 0 {
		s += " " + j.progress()
	}
	if j.Preemptions > 0 {
		s += fmt.Sprintf(" preempted %d times", j.Preemptions)
	}
	if len(j.Slices) > 0 {
		s += fmt.Sprintf(" on %s", strings.Join(j.Slices, " "))
	}
	if why := cmp.Or(j.Why, j.Error); why != "" {
		s = strings.TrimRight(s, " ") + ": " + why
	}
	return s
}

func (j jobObject) progress() string {
	p := j.Progress
	return fmt.Sprintf("%d of %d %s", p.Done, p.Total, cmp.Or(p.Unit, "steps"))
}

// rest is how long the running job needs at its rate; 0 = nobody knows.
func (j jobObject) rest() time.Duration {
	p := j.Progress
	if j.State != "running" && j.Kind != "batch" || p.Rate <= 0 || p.Total <= p.Done {
		return 0
	}
	return time.Duration(float64(p.Total-p.Done) / p.Rate * float64(time.Second))
}

// reached is the job for a progress bar.
func (j jobObject) reached(now time.Time) reached {
	text := j.State
	if j.Why != "" {
		text += ": " + j.Why
	}
	p := j.Progress
	if p.Total > 0 {
		text += " " + j.progress()
	}
	if left := j.rest(); left > 0 {
		text += fmt.Sprintf(", about %s left (%s)", clock(left), dayTime(now.Add(left), now))
	}
	if p.Message != "" {
		text += ", " + p.Message
	}
	return reached{share: float64(p.Done) / float64(max(1, p.Total)), beside: text, line: j.ID + " " + text}
}

// write shows all that a person may want to know of the job.
func (j jobObject) write(w io.Writer, now time.Time) error {
	fmt.Fprintln(w, j)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(t, "  %s\t%s\n", name, value)
		}
	}
	at := func(sec float64) string {
		if sec == 0 {
			return ""
		}
		return dayTime(time.UnixMilli(int64(sec*1000)), now)
	}
	row("tenant", j.Tenant)
	row("template", j.Template)
	var params []string
	for _, k := range slices.Sorted(maps.Keys(j.Params)) {
		params = append(params, k+"="+j.Params[k])
	}
	row("params", strings.Join(params, " "))
	row("command", strings.Join(strings.Fields(strings.Join(j.Command, " ")), " ")) // a script in it has lines
	row("model", j.Model)
	row("shape", j.Shape)
	row("after", strings.Join(j.DependsOn, " "))
	row("not before", at(j.NotBefore))
	row("deadline", at(j.Deadline))
	row("submitted", at(j.Created))
	row("started", at(j.Started))
	row("ended", at(j.Finished))
	row("kept until", at(j.KeptUntil))
	row("checkpoint", at(j.Progress.CheckpointAt))
	if j.Retries > 0 {
		row("retries", fmt.Sprintf("%d of %d", j.Tried, j.Retries))
	}
	if j.Progress.Resumes > 0 {
		row("resumed", fmt.Sprintf("%d times", j.Progress.Resumes))
	}
	if left := j.rest(); left > 0 {
		row("estimate", fmt.Sprintf("%.3g %s/s, about %s left (%s)", j.Progress.Rate, cmp.Or(j.Progress.Unit, "steps"), clock(left), dayTime(now.Add(left), now)))
	}
	row("says", j.Progress.Message)
	var metrics []string
	for _, k := range slices.Sorted(maps.Keys(j.Progress.Metrics)) {
		metrics = append(metrics, fmt.Sprintf("%s=%.6g", k, j.Progress.Metrics[k]))
	}
	row("metrics", strings.Join(metrics, " "))
	measured, other := evaluation.Decode(j.Result)
	if j.Kind == "evaluate" && other == nil {
		return errors.Join(t.Flush(), printEvaluation(w, measured))
	}
	if len(j.Result) > 0 && string(j.Result) != "null" {
		row("result", string(j.Result))
	} else {
		row("result", j.Progress.Result)
	}
	return t.Flush()
}
