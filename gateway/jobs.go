package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"aloft/backends/openai"
	"aloft/jobs"
)

// Jobs is what the jobs API needs of the job manager. Whose a job is, is
// checked here.
type Jobs interface {
	Submit(ctx context.Context, j jobs.Job) (jobs.Job, error)
	Get(ctx context.Context, id string) (jobs.Job, error)
	List(ctx context.Context, f jobs.Filter) ([]jobs.Job, error)
	Cancel(ctx context.Context, id string) (jobs.Job, error)
}

// jobObject is a job as /aloft/v1/jobs shows it; times are Unix seconds.
type jobObject struct {
	ID          string            `json:"id"`
	Object      string            `json:"object"`
	Kind        jobs.Kind         `json:"kind"`
	State       jobs.State        `json:"state"`
	Template    string            `json:"template,omitempty"`
	Params      map[string]string `json:"params,omitempty"`
	Command     []string          `json:"command,omitempty"`
	Model       string            `json:"model,omitempty"`
	Shape       string            `json:"shape,omitempty"`
	MinWidth    int               `json:"min_width,omitempty"`
	MaxWidth    int               `json:"max_width,omitempty"`
	Priority    int               `json:"priority"`
	Grace       float64           `json:"grace_seconds"`
	Preemptions int               `json:"preemptions"`
	Error       *string           `json:"error"`
	Slices      []string          `json:"slices,omitempty"`
	Progress    jobProgress       `json:"progress"`
	jobTimes
}

type jobTimes struct {
	Created    int64  `json:"created_at"`
	Started    *int64 `json:"started_at"`
	Finished   *int64 `json:"finished_at"`
	Cancelling *int64 `json:"cancelling_at"`
}

type jobProgress struct {
	Done         int64   `json:"done"`
	Total        int64   `json:"total"`
	Unit         string  `json:"unit"`
	Rate         float64 `json:"per_second"`
	Loss         float64 `json:"loss,omitempty"`
	CheckpointAt *int64  `json:"checkpoint_at"`
	Resumes      int     `json:"resumes"`
	Result       string  `json:"result,omitempty"`
}

func jobOf(j jobs.Job) jobObject {
	p := j.Progress
	return jobObject{
		ID: j.ID, Object: "job", Kind: j.Kind, State: j.State, Template: j.Template, Params: j.Params, Command: j.Command,
		Model: j.Model, Shape: j.Shape, MinWidth: j.MinWidth, MaxWidth: j.MaxWidth, Priority: j.Priority,
		Grace: j.Grace.Seconds(), Preemptions: j.Preemptions, Error: orNull(j.Error), Slices: j.Slices,
		Progress: jobProgress{p.Done, p.Total, p.Unit, p.Rate, p.Loss, stamp(p.CheckpointAt), p.Resumes, p.Result},
		jobTimes: jobTimes{j.Created.Unix(), stamp(j.Started), stamp(j.Finished), stamp(j.Cancelling)},
	}
}

// createJob takes a template with values: what may run is the operator's choice.
// A batch comes in through /v1/batches.
func (s *Server) createJob(x *exchange) {
	var in struct {
		Template string                     `json:"template"`
		Params   map[string]json.RawMessage `json:"params"`
		Kind     jobs.Kind                  `json:"kind"`
		Command  []string                   `json:"command"`
		Model    string                     `json:"model"`
		Shape    string                     `json:"shape"`
		MinWidth int                        `json:"min_width"`
		MaxWidth int                        `json:"max_width"`
		Priority int                        `json:"priority"`
		Grace    float64                    `json:"grace_seconds"`
	}
	err := s.decode(x, &in, onlyKnown)
	switch {
	case err != nil:
	case in.Template == "" && len(in.Command) == 0:
		err = invalid("template", openai.CodeMissing, "template is required")
	case in.Template == "":
		err = &openai.Error{Status: 403, Type: "permission_error", Code: "commands_not_allowed", Param: "command",
			Message: "this server runs jobs from its templates only"}
	case in.Kind == jobs.KindBatch:
		err = invalid("kind", openai.CodeValue, "a batch is made with POST /v1/batches")
	case !(in.Grace >= 0 && in.Grace <= jobs.MaxGrace.Seconds()): // before it becomes a Duration
		err = invalid("grace_seconds", openai.CodeValue, "%v is not from 0 to %v", in.Grace, jobs.MaxGrace.Seconds())
	}
	var j jobs.Job
	if err == nil {
		j, err = s.deps.Jobs.Submit(s.base, jobs.Job{
			Tenant: x.tenant, Template: in.Template, Params: plain(in.Params), Kind: in.Kind, Command: in.Command,
			Model: in.Model, Shape: in.Shape, MinWidth: in.MinWidth, MaxWidth: in.MaxWidth, Priority: in.Priority,
			Grace: time.Duration(in.Grace * float64(time.Second)),
		})
	}
	s.job(x, j, err)
}

// plain turns JSON values into the text that templates take: "8" and 8 are the same.
func plain(in map[string]json.RawMessage) map[string]string {
	out := make(map[string]string, len(in))
	for k, v := range in {
		text := string(v)
		if strings.HasPrefix(text, `"`) {
			text = string(unquote(v))
		}
		out[k] = text
	}
	return out
}

// job answers with a job, or with err.
func (s *Server) job(x *exchange, j jobs.Job, err error) {
	if err != nil {
		s.fail(x, err)
		return
	}
	s.json(x, jobOf(j))
}

func (s *Server) getJob(x *exchange) {
	j, err := s.ownJob(x)
	s.job(x, j, err)
}

func (s *Server) cancelJob(x *exchange) {
	j, err := s.ownJob(x)
	if err == nil {
		j, err = s.deps.Jobs.Cancel(s.base, j.ID)
	}
	s.job(x, j, err)
}

func (s *Server) ownJob(x *exchange) (jobs.Job, error) {
	j, err := s.deps.Jobs.Get(s.base, x.path)
	if err == nil && j.Tenant != x.tenant {
		err = fmt.Errorf("job %.100s: %w", x.path, jobs.ErrNotFound)
	}
	return j, err
}

var jobStates = []jobs.State{
	jobs.Queued, jobs.Starting, jobs.Running, jobs.Preempting, jobs.Succeeded, jobs.Failed, jobs.Cancelled, jobs.Expired,
}

// listJobs takes limit, after, kind, and state as often as wanted.
func (s *Server) listJobs(x *exchange) {
	q := x.c.QueryArgs()
	limit, err := pageLimit(q.Peek("limit"), 100, 1000)
	f := jobs.Filter{Tenant: x.tenant, Kind: jobs.Kind(q.Peek("kind")), After: string(q.Peek("after")), Limit: limit + 1}
	for _, text := range q.PeekMulti("state") {
		state := jobs.State(text)
		if !slices.Contains(jobStates, state) && err == nil {
			err = invalid("state", openai.CodeValue, "%.40q is not one of %v", text, jobStates)
		}
		f.States = append(f.States, state)
	}
	var list []jobs.Job
	if err == nil {
		list, err = s.deps.Jobs.List(s.base, f)
	}
	if err != nil {
		s.fail(x, err)
		return
	}
	page := newPage[jobObject](len(list) > limit)
	for _, j := range list[:min(limit, len(list))] {
		page.add(j.ID, jobOf(j))
	}
	s.json(x, page)
}
