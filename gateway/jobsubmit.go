package gateway

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"aloft/backends/openai"
	"aloft/jobs"
)

// jobWish is the body of a submission.
type jobWish struct {
	Template string                     `json:"template"`
	Params   map[string]json.RawMessage `json:"params"`
	Kind     jobs.Kind                  `json:"kind"`
	Command  []string                   `json:"command"`
	Model    string                     `json:"model"`
	Name     string                     `json:"name"`
	Key      string                     `json:"idempotency_key"`

	Shape     string          `json:"shape"`
	MinWidth  int             `json:"min_width"`
	MaxWidth  int             `json:"max_width"`
	Priority  int             `json:"priority"`
	Grace     float64         `json:"grace_seconds"`
	DependsOn []string        `json:"depends_on"`
	NotBefore json.RawMessage `json:"not_before"` // Unix seconds, or RFC 3339
	Deadline  json.RawMessage `json:"deadline"`
	Expected  float64         `json:"expected_seconds"`
	KeepFor   float64         `json:"keep_for_seconds"`
	Retries   int             `json:"retries"`
	Limits    jobLimits       `json:"limits"`
	Batch     *batchWish      `json:"batch"`
}

// batchWish is what makes a job of kind batch; the fields are those of
// POST /v1/batches.
type batchWish struct {
	Input    string            `json:"input_file_id"`
	Endpoint string            `json:"endpoint"`
	Window   string            `json:"completion_window"`
	Metadata map[string]string `json:"metadata"`
}

// createJob makes a job of a template with values: what may run is the operator's
// choice. A program of the caller's own wants an admin and a setting.
func (s *Server) createJob(x *exchange) {
	var in jobWish
	err := s.decode(x, &in, onlyKnown)
	if err == nil {
		err = in.once(x.c.Request.Header.Peek("Idempotency-Key"))
	}
	var j jobs.Job
	switch {
	case err != nil:
	case in.Kind == jobs.KindBatch || in.Batch != nil:
		j, err = s.batchJob(x, &in)
	case in.Template == "" && len(in.Command) == 0:
		err = invalid("template", openai.CodeMissing, "template is required")
	case in.Template != "" && len(in.Command) > 0:
		err = invalid("command", openai.CodeValue, "a template has its own command")
	case in.Template == "" && !slices.Contains(commandKinds, in.Kind):
		err = invalid("kind", openai.CodeValue, "kind is %.40q, want one of %v", in.Kind, commandKinds)
	default:
		j, err = s.submit(x, &in, nil)
	}
	s.job(x, j, err)
}

// submit hands the wish on, of a session with what it adds.
func (s *Server) submit(x *exchange, in *jobWish, session *jobs.Session) (j jobs.Job, err error) {
	if in.Template == "" {
		err = s.mayCommand(x)
	}
	if err == nil {
		j, err = in.job()
	}
	if err != nil {
		return jobs.Job{}, err
	}
	j.Tenant, j.Session = x.tenant, session
	return s.deps.Jobs.Submit(s.base, j)
}

// commandKinds are the kinds that a command can be.
var commandKinds = []jobs.Kind{jobs.KindTrain, jobs.KindQuantize, jobs.KindEvaluate, jobs.KindSession}

// maxKey and maxJobName bound what users call things, in bytes.
const (
	maxKey     = 256
	maxJobName = 128
)

// onceKey is the request's idempotency key; "" = none.
func onceKey(x *exchange) (string, error) {
	key := x.c.Request.Header.Peek("Idempotency-Key")
	if len(key) > maxKey || !visible(key) {
		return "", errKey
	}
	return string(key), nil
}

var errKey = invalid("idempotency_key", openai.CodeValue, "want at most %d visible ASCII characters without spaces", maxKey)

// once takes the idempotency key from the header, where the body names none.
func (w *jobWish) once(header []byte) error {
	if len(header) > 0 && w.Key != "" && w.Key != string(header) {
		return invalid("idempotency_key", openai.CodeValue, "the body and the header Idempotency-Key name two different keys")
	}
	if len(header) > 0 {
		w.Key = string(header)
	}
	if len(w.Key) > maxKey || !visible([]byte(w.Key)) {
		return errKey
	}
	if len(w.Name) > maxJobName || !visible([]byte(w.Name)) || w.Name == "latest" {
		return invalid("name", openai.CodeValue, "want at most %d visible ASCII characters without spaces, and not \"latest\"", maxJobName)
	}
	return nil
}

// mayCommand says whether the caller may run a program of his own. Without keys
// nothing but loopback keeps a page in the operator's browser away: it must not
// be able to run programs here by a request that a page can send unasked.
func (s *Server) mayCommand(x *exchange) error {
	refuse := func(format string, args ...any) error {
		return &openai.Error{Status: 403, Type: "permission_error", Code: "commands_not_allowed", Param: "command", Message: fmt.Sprintf(format, args...)}
	}
	h := &x.c.Request.Header
	switch {
	case !s.opt.FreeCommands:
		return refuse("this server runs jobs from its templates only (jobs.free_commands)")
	case !x.admin():
		return refuse("a command of one's own needs an admin key; see /aloft/v1/templates for what may be submitted")
	case x.grant == nil && (len(h.Peek("Origin")) > 0 || !isJSON(h.ContentType())):
		return refuse("a web page cannot run commands: send it as application/json from a program")
	}
	return nil
}

// job is the wish as the manager takes it, once its numbers have become durations.
func (w *jobWish) job() (jobs.Job, error) {
	j := jobs.Job{
		Template: w.Template, Params: plain(w.Params), Kind: w.Kind, Command: w.Command, Model: w.Model,
		Shape: w.Shape, MinWidth: w.MinWidth, MaxWidth: w.MaxWidth, Priority: w.Priority,
	}
	j.Name, j.Idempotency, j.DependsOn, j.Retries = w.Name, w.Key, w.DependsOn, w.Retries
	j.Limits = jobs.Limits{CPUs: w.Limits.CPUs, Memory: w.Limits.Memory, Disk: w.Limits.Disk, Log: w.Limits.Log}
	for _, d := range []struct {
		name    string
		seconds float64
		most    time.Duration
		into    *time.Duration
	}{
		{"grace_seconds", w.Grace, jobs.MaxGrace, &j.Grace},
		{"expected_seconds", w.Expected, longest, &j.Expected},
		{"keep_for_seconds", w.KeepFor, longest, &j.KeepFor},
		{"limits.run_seconds", w.Limits.RunTime, longest, &j.Limits.RunTime},
	} {
		if !(d.seconds >= 0 && d.seconds <= d.most.Seconds()) { // before it becomes a Duration
			return j, invalid(d.name, openai.CodeValue, "%v is not from 0 to %v", d.seconds, d.most.Seconds())
		}
		*d.into = time.Duration(d.seconds * float64(time.Second))
	}
	for _, n := range []struct {
		name string
		v    float64
	}{{"cpus", w.Limits.CPUs}, {"memory", float64(w.Limits.Memory)}, {"disk", float64(w.Limits.Disk)}, {"log", float64(w.Limits.Log)}} {
		if !(n.v >= 0) {
			return j, invalid("limits."+n.name, openai.CodeValue, "%v is negative", n.v)
		}
	}
	for name, t := range map[string]struct {
		text json.RawMessage
		into *time.Time
	}{"not_before": {w.NotBefore, &j.NotBefore}, "deadline": {w.Deadline, &j.Deadline}} {
		if len(t.text) == 0 || string(t.text) == "null" {
			continue
		}
		at, err := parseTime(text(t.text))
		if err != nil {
			return j, invalid(name, openai.CodeValue, "%.40s is neither Unix seconds nor RFC 3339", t.text)
		}
		*t.into = at
	}
	return j, nil
}

// longest bounds the durations that a user gives: ten years.
const longest = 10 * 365 * 24 * time.Hour

// text is a JSON value as templates take it: "8" and 8 are the same.
func text(v json.RawMessage) string {
	if t := string(v); !strings.HasPrefix(t, `"`) {
		return t
	}
	return string(unquote(v))
}

// plain turns JSON values into text.
func plain(in map[string]json.RawMessage) map[string]string {
	out := make(map[string]string, len(in))
	for k, v := range in {
		out[k] = text(v)
	}
	return out
}

// batchJob makes a batch, which is a job like others once it is there.
func (s *Server) batchJob(x *exchange, in *jobWish) (jobs.Job, error) {
	b := in.Batch
	rest := *in
	rest.Kind, rest.Batch, rest.Priority, rest.Key = "", nil, 0, ""
	switch extra, err := json.Marshal(rest); {
	case s.deps.Batches == nil || b == nil:
		return jobs.Job{}, invalid("batch", openai.CodeMissing, "a job of kind batch has an object batch with input_file_id, endpoint and completion_window")
	case in.Kind != jobs.KindBatch:
		return jobs.Job{}, invalid("kind", openai.CodeValue, "batch is for a job of kind batch, not %.40q", in.Kind)
	case err != nil:
		return jobs.Job{}, err
	case string(extra) != emptyWish:
		return jobs.Job{}, invalid("batch", openai.CodeValue, "a job of kind batch takes priority, idempotency_key and batch, and nothing else")
	case x.grant != nil && x.grant.Admin:
		return jobs.Job{}, errAdminKey // its rows would run on a key that may use no model
	}
	if err := required("batch.input_file_id", &b.Input, "batch.endpoint", &b.Endpoint, "batch.completion_window", &b.Window); err != nil {
		return jobs.Job{}, err
	}
	spec := jobs.BatchSpec{InputFile: b.Input, Endpoint: b.Endpoint, Window: b.Window, Metadata: b.Metadata, Tenant: x.tenant, Priority: min(in.Priority, 0), Idempotency: in.Key}
	if x.grant != nil {
		spec.Key = x.grant.ID
	}
	made, err := s.deps.Batches.CreateBatch(s.base, spec)
	if err != nil {
		return jobs.Job{}, err
	}
	return s.deps.Jobs.Get(s.base, made.ID)
}

// emptyWish is a body that asks for nothing.
var emptyWish = func() string { b, _ := json.Marshal(jobWish{}); return string(b) }()

// templateObject is a template as /aloft/v1/templates shows it: what a user may
// fill in, not what is run.
type templateObject struct {
	Name     string        `json:"name"`
	Object   string        `json:"object"`
	Kind     jobs.Kind     `json:"kind"`
	Params   []paramObject `json:"params"`
	Shape    string        `json:"shape,omitempty"`
	MinWidth int           `json:"min_width"`
	MaxWidth int           `json:"max_width"`
	Priority int           `json:"priority"` // the most that may be asked for
	Grace    float64       `json:"grace_seconds"`
}

type paramObject struct {
	Name     string         `json:"name"`
	Type     jobs.ParamType `json:"type"`
	Default  string         `json:"default,omitempty"`
	Required bool           `json:"required"`
	Min      *float64       `json:"min,omitempty"`
	Max      *float64       `json:"max,omitempty"` // of a text its bytes
	Choices  []string       `json:"choices,omitempty"`
}

func templateOf(t jobs.Template) templateObject {
	o := templateObject{Name: t.Name, Object: "template", Kind: t.Kind, Params: []paramObject{}, Shape: t.Shape,
		MinWidth: max(1, t.MinWidth), MaxWidth: max(1, t.MinWidth, t.MaxWidth), Priority: t.Priority, Grace: t.Grace.Seconds()}
	for _, p := range t.Params {
		v := paramObject{Name: p.Name, Type: p.Type, Default: p.Default, Required: p.Default == "", Choices: slices.Clone(p.Choices)}
		if p.Type != jobs.ParamChoice {
			v.Min, v.Max = finite(p.Min), finite(p.Max)
		}
		o.Params = append(o.Params, v)
	}
	return o
}

// finite is a bound that JSON can write.
func finite(v float64) *float64 {
	if math.IsInf(v, 0) || math.IsNaN(v) {
		return nil
	}
	return &v
}

// listTemplates shows all in one page: their number is the operator's.
func (s *Server) listTemplates(x *exchange) {
	page := newPage[templateObject](false)
	for _, t := range s.deps.Jobs.Templates() {
		page.add(t.Name, templateOf(t))
	}
	s.json(x, page)
}
