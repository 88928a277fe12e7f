package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"aloft/backends/openai"
	"aloft/jobs"
)

// Jobs is what the jobs API needs of the job manager. Whose a job is, is
// checked here.
type Jobs interface {
	JobRecords
	JobControl
	JobHistory
	JobSessions
}

// JobRecords makes and shows jobs.
type JobRecords interface {
	Submit(ctx context.Context, j jobs.Job) (jobs.Job, error)
	Get(ctx context.Context, id string) (jobs.Job, error)
	List(ctx context.Context, f jobs.Filter) ([]jobs.Job, error)
	Delete(ctx context.Context, id string) error
	// Templates are what may be submitted, by name.
	Templates() []jobs.Template
}

// JobControl changes what becomes of a job.
type JobControl interface {
	Cancel(ctx context.Context, id string) (jobs.Job, error)
	Pause(ctx context.Context, id string) (jobs.Job, error)
	Resume(ctx context.Context, id string) (jobs.Job, error)
	Retry(ctx context.Context, id string) (jobs.Job, error)
}

// JobHistory is what a job left behind it.
type JobHistory interface {
	// Events are those with numbers above after, the oldest first.
	Events(ctx context.Context, id string, after, limit int) ([]jobs.Event, error)
	// LogPath is the file that the job's programs write to; it may not be there.
	LogPath(id string) string
}

// jobRoutes are what is asked of jobs. An admin key sees those of all tenants.
func (s *Server) jobRoutes(get func(handler) map[string]handler) []*route {
	const one = "/aloft/v1/jobs/"
	post := func(h handler) map[string]handler { return map[string]handler{"POST": h} }
	all, job := get(s.listJobs), get(s.getJob)
	all["POST"], job["DELETE"] = s.createJob, s.deleteJob
	return append(s.sessionRoutes(get), []*route{
		{path: "/aloft/v1/jobs", role: either, methods: all},
		{path: one, suffix: "/cancel", role: either, methods: post(s.change(Jobs.Cancel))},
		{path: one, suffix: "/pause", role: either, methods: post(s.change(Jobs.Pause))},
		{path: one, suffix: "/resume", role: either, methods: post(s.change(Jobs.Resume))},
		{path: one, suffix: "/retry", role: either, methods: post(s.change(Jobs.Retry))},
		{path: one, suffix: "/logs", role: either, methods: get(s.jobLogs)},
		{path: one, suffix: "/events", role: either, methods: get(s.jobEvents)},
		{path: one, suffix: "/checkpoints", role: either, methods: get(s.jobCheckpoints)},
		{path: one, role: either, methods: job},
		{path: "/aloft/v1/templates", role: either, methods: get(s.listTemplates)},
	}...)
}

// jobObject is a job as /aloft/v1/jobs shows it; times are Unix seconds.
type jobObject struct {
	ID       string            `json:"id"`
	Object   string            `json:"object"`
	Name     string            `json:"name,omitempty"`
	Tenant   string            `json:"tenant,omitempty"` // for admins
	Kind     jobs.Kind         `json:"kind"`
	State    jobs.State        `json:"state"`
	Why      string            `json:"why,omitempty"` // what a waiting job waits for
	Template string            `json:"template,omitempty"`
	Params   map[string]string `json:"params,omitempty"`
	Command  []string          `json:"command,omitempty"`
	Model    string            `json:"model,omitempty"`
	Error    *string           `json:"error"`
	Slices   []string          `json:"slices,omitempty"`
	Result   json.RawMessage   `json:"result,omitempty"`
	Progress jobProgress       `json:"progress"`
	Session  *sessionObject    `json:"session,omitempty"`
	jobTerms
	jobTimes
}

type jobTerms struct {
	Shape       string     `json:"shape,omitempty"`
	MinWidth    int        `json:"min_width,omitempty"`
	MaxWidth    int        `json:"max_width,omitempty"`
	Priority    int        `json:"priority"`
	Grace       float64    `json:"grace_seconds"`
	DependsOn   []string   `json:"depends_on,omitempty"`
	NotBefore   *int64     `json:"not_before,omitempty"`
	Deadline    *int64     `json:"deadline,omitempty"`
	Expected    float64    `json:"expected_seconds,omitempty"`
	KeepFor     float64    `json:"keep_for_seconds,omitempty"`
	Retries     int        `json:"retries"`
	Tried       int        `json:"tried"`
	Preemptions int        `json:"preemptions"`
	Key         string     `json:"idempotency_key,omitempty"`
	Schedule    string     `json:"schedule,omitempty"`
	Limits      *jobLimits `json:"limits,omitempty"`
}

// jobLimits are what a job may use; 0 = no limit of its own.
type jobLimits struct {
	CPUs    float64 `json:"cpus"`
	Memory  int64   `json:"memory"` // bytes, as the two below
	Disk    int64   `json:"disk"`
	Log     int64   `json:"log"`
	RunTime float64 `json:"run_seconds"`
}

type jobTimes struct {
	Created    int64  `json:"created_at"`
	Started    *int64 `json:"started_at"`
	Finished   *int64 `json:"finished_at"`
	Cancelling *int64 `json:"cancelling_at"`
	RetryAt    *int64 `json:"retry_at,omitempty"`
	KeptUntil  *int64 `json:"kept_until,omitempty"`
	// Ran is how long its ended runs took, without the time in the queue.
	Ran float64 `json:"ran_seconds,omitempty"`
}

type jobProgress struct {
	Done         int64              `json:"done"`
	Total        int64              `json:"total"`
	Unit         string             `json:"unit"`
	Rate         float64            `json:"per_second"`
	Loss         float64            `json:"loss,omitempty"`
	CheckpointAt *int64             `json:"checkpoint_at"`
	Resumes      int                `json:"resumes"`
	Result       string             `json:"result,omitempty"`
	Message      string             `json:"message,omitempty"`
	Metrics      map[string]float64 `json:"metrics,omitempty"`
}

// jobOf shows a job to whoever asks.
func (x *exchange) jobOf(j jobs.Job) jobObject {
	p := j.Progress
	o := jobObject{
		ID: j.ID, Object: "job", Name: j.Name, Kind: j.Kind, State: j.State, Why: j.Why, Template: j.Template, Params: j.Params,
		Command: j.Command, Model: j.Model, Error: orNull(j.Error), Slices: j.Slices, Result: j.Result,
		Progress: jobProgress{p.Done, p.Total, p.Unit, p.Rate, p.Loss, stamp(p.CheckpointAt), p.Resumes, p.Result, p.Message, p.Metrics},
		jobTerms: jobTerms{Shape: j.Shape, MinWidth: j.MinWidth, MaxWidth: j.MaxWidth, Priority: j.Priority, Grace: j.Grace.Seconds(),
			DependsOn: j.DependsOn, NotBefore: stamp(j.NotBefore), Deadline: stamp(j.Deadline), Expected: j.Expected.Seconds(),
			KeepFor: j.KeepFor.Seconds(), Retries: j.Retries, Tried: j.Tried, Preemptions: j.Preemptions, Key: j.Idempotency, Schedule: j.Schedule},
		jobTimes: jobTimes{j.Created.Unix(), stamp(j.Started), stamp(j.Finished), stamp(j.Cancelling), stamp(j.RetryAt), stamp(j.KeptUntil), j.Ran.Seconds()},
	}
	if l := j.Limits; l != (jobs.Limits{}) {
		o.Limits = &jobLimits{l.CPUs, l.Memory, l.Disk, l.Log, l.RunTime.Seconds()}
	}
	o.Session = sessionOf(j)
	if string(o.Result) == "null" {
		o.Result = nil
	}
	if x.admin() {
		o.Tenant = j.Tenant
	}
	return o
}

// admin reports whether all tenants' jobs are the caller's business: with an
// admin key, or where no keys are configured.
func (x *exchange) admin() bool { return x.grant == nil || x.grant.Admin }

// job answers with a job, or with err.
func (s *Server) job(x *exchange, j jobs.Job, err error) {
	if err != nil {
		s.fail(x, err)
		return
	}
	s.json(x, x.jobOf(j))
}

func (s *Server) getJob(x *exchange) {
	j, err := s.ownJob(x)
	s.job(x, j, err)
}

// change makes a handler of what changes a job.
func (s *Server) change(do func(Jobs, context.Context, string) (jobs.Job, error)) handler {
	return func(x *exchange) {
		j, err := s.ownJob(x)
		if err == nil {
			j, err = do(s.deps.Jobs, s.base, j.ID)
		}
		s.job(x, j, err)
	}
}

func (s *Server) deleteJob(x *exchange) {
	j, err := s.ownJob(x)
	if err == nil {
		err = s.deps.Jobs.Delete(s.base, j.ID)
	}
	if err != nil {
		s.fail(x, err)
		return
	}
	s.json(x, map[string]any{"id": j.ID, "object": "job", "deleted": true})
}

// ownJob finds the caller's job; another tenant's does not exist.
func (s *Server) ownJob(x *exchange) (jobs.Job, error) {
	j, err := s.deps.Jobs.Get(s.base, x.path)
	if err == nil && !x.admin() && j.Tenant != x.tenant {
		err = fmt.Errorf("job %.100s: %w", x.path, jobs.ErrNotFound)
	}
	return j, err
}

// jobStates are those that a list can be asked for.
var jobStates = append(jobs.Unfinished(), jobs.Succeeded, jobs.Failed, jobs.Cancelled, jobs.Expired)

const (
	maxJobs     = 1000   // of one page
	scannedMost = 10_000 // jobs looked at for one page
)

// jobsWanted is what a list is asked for.
type jobsWanted struct {
	jobs.Filter
	limit          int
	name, template string
}

func (w jobsWanted) match(j jobs.Job) bool {
	return (w.name == "" || w.name == j.Name) && (w.template == "" || w.template == j.Template)
}

// wanted reads limit, after, kind, name, template, for admins tenant, and state
// as often as wanted.
func (s *Server) wanted(x *exchange) (w jobsWanted, err error) {
	q := x.c.QueryArgs()
	if w.limit, err = pageLimit(q.Peek("limit"), 100, maxJobs); err != nil {
		return w, err
	}
	w.name, w.template = string(q.Peek("name")), string(q.Peek("template"))
	w.Filter = jobs.Filter{Tenant: x.tenant, Kind: jobs.Kind(q.Peek("kind")), After: string(q.Peek("after"))}
	if x.route.path == sessionsPath {
		w.Kind = jobs.KindSession
	}
	if x.admin() {
		w.Tenant = string(q.Peek("tenant"))
	}
	for _, text := range q.PeekMulti("state") {
		state := jobs.State(text)
		if !slices.Contains(jobStates, state) {
			return w, invalid("state", openai.CodeValue, "%.40q is not one of %v", text, jobStates)
		}
		w.States = append(w.States, state)
	}
	return w, nil
}

// listJobs answers with a page, the newest first. Of a name or template it looks
// at so many jobs at most: the page then ends early, and the next goes on there.
func (s *Server) listJobs(x *exchange) {
	w, err := s.wanted(x)
	page := newPage[jobObject](false)
	for looked := 0; err == nil; {
		w.Limit = maxJobs
		if w.name == "" && w.template == "" {
			w.Limit = w.limit + 1
		}
		var list []jobs.Job
		if list, err = s.deps.Jobs.List(s.base, w.Filter); err != nil {
			break
		}
		for _, j := range list {
			if len(page.Data) == w.limit {
				page.More = true
				break
			}
			if w.match(j) {
				page.add(j.ID, x.jobOf(j))
			}
			w.After = j.ID
		}
		looked += len(list)
		if page.More || len(list) < w.Limit {
			break
		}
		if looked >= scannedMost {
			page.More, page.Last = true, &w.After
			break
		}
	}
	if err != nil {
		s.fail(x, err)
		return
	}
	s.json(x, page)
}
