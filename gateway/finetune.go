package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"aloft/backends/openai"
	"aloft/jobs"
)

// FineTunes is what the fine-tuning API needs of the job manager beyond Jobs.
// Whose a job is, is checked here.
type FineTunes interface {
	CreateFineTune(ctx context.Context, s jobs.FineTuneSpec) (jobs.Job, error)
	// FineTunes lists fine-tuning jobs, newest first, that have all of metadata.
	FineTunes(ctx context.Context, f jobs.Filter, metadata map[string]string) ([]jobs.Job, error)
	Pause(ctx context.Context, id string) (jobs.Job, error)
	Resume(ctx context.Context, id string) (jobs.Job, error)
	Events(ctx context.Context, id string, after, limit int) ([]jobs.Event, error)
}

const tunesPath = "/v1/fine_tuning/jobs"

func (s *Server) fineTuneRoutes(get func(handler) map[string]handler) []*route {
	if s.deps.FineTunes == nil || s.deps.Jobs == nil {
		return nil
	}
	both := get(s.listTunes)
	both["POST"] = s.createTune
	all := []*route{{path: tunesPath, methods: both}}
	for suffix, do := range map[string]func(context.Context, string) (jobs.Job, error){
		"/cancel": s.deps.Jobs.Cancel, "/pause": s.deps.FineTunes.Pause, "/resume": s.deps.FineTunes.Resume,
	} {
		all = append(all, &route{path: tunesPath + "/", suffix: suffix, methods: map[string]handler{"POST": func(x *exchange) { s.changeTune(x, do) }}})
	}
	return append(all,
		&route{path: tunesPath + "/", suffix: "/events", methods: get(s.tuneEvents)},
		&route{path: tunesPath + "/", suffix: "/checkpoints", methods: get(s.tuneCheckpoints)},
		&route{path: tunesPath + "/", methods: get(s.getTune)})
}

// tuneList is the list of the fine-tuning API.
type tuneList[T any] struct {
	Object string `json:"object"`
	Data   []T    `json:"data"`
	More   bool   `json:"has_more"`
}

// tuneRequest is the body that makes a fine-tuning job.
type tuneRequest struct {
	Model        *string           `json:"model"`
	Training     *string           `json:"training_file"`
	Validation   *string           `json:"validation_file"`
	Suffix       *string           `json:"suffix"`
	Seed         *int64            `json:"seed"`
	Metadata     map[string]string `json:"metadata"`
	Integrations []json.RawMessage `json:"integrations"`
	Hyper        *tuneHyper        `json:"hyperparameters"` // deprecated for those of the method, but sent by many
	Method       *struct {
		Type       string `json:"type"`
		Supervised *struct {
			Hyper *tuneHyper `json:"hyperparameters"`
		} `json:"supervised"`
		DPO           json.RawMessage `json:"dpo"`
		Reinforcement json.RawMessage `json:"reinforcement"`
	} `json:"method"`
}

// tuneHyper holds numbers or "auto".
type tuneHyper struct {
	BatchSize    json.RawMessage `json:"batch_size"`
	LearningRate json.RawMessage `json:"learning_rate_multiplier"`
	Epochs       json.RawMessage `json:"n_epochs"`
}

// spec is what the request asks for.
func (r *tuneRequest) spec() (spec jobs.FineTuneSpec, err error) {
	if err := required("model", r.Model, "training_file", r.Training); err != nil {
		return spec, err
	}
	if len(r.Integrations) > 0 {
		return spec, invalid("integrations", openai.CodeValue, "this server has no integrations; leave them out")
	}
	where, hyper := "hyperparameters", r.Hyper
	if m := r.Method; m != nil {
		if m.Type != "supervised" {
			return spec, invalid("method.type", openai.CodeValue, "%.40q cannot be done here, want supervised", m.Type)
		}
		if m.Supervised != nil && m.Supervised.Hyper != nil {
			if hyper != nil {
				return spec, invalid("hyperparameters", openai.CodeValue, "hyperparameters are given twice; give those of the method alone")
			}
			where, hyper = "method.supervised.hyperparameters", m.Supervised.Hyper
		}
	}
	spec = jobs.FineTuneSpec{Model: *r.Model, Training: *r.Training, Seed: r.Seed, Metadata: r.Metadata}
	if r.Validation != nil {
		spec.Validation = *r.Validation
	}
	if r.Suffix != nil {
		spec.Suffix = *r.Suffix
	}
	if hyper == nil {
		return spec, nil
	}
	for _, h := range []struct {
		name string
		in   json.RawMessage
		out  *string
	}{
		{jobs.ParamBatchSize, hyper.BatchSize, &spec.Asked.BatchSize},
		{jobs.ParamEpochs, hyper.Epochs, &spec.Asked.Epochs},
		{jobs.ParamLearningRate, hyper.LearningRate, &spec.Asked.LearningRate},
	} {
		if *h.out, err = hyperValue(h.in); err != nil {
			return spec, invalid(where+"."+h.name, openai.CodeType, "%s is %.40s, want \"auto\" or a number", h.name, h.in)
		}
	}
	return spec, nil
}

// hyperValue is a number as text, "" for auto.
func hyperValue(in json.RawMessage) (string, error) {
	switch text := string(in); text {
	case "", "null", `"auto"`:
		return "", nil
	default:
		_, err := strconv.ParseFloat(text, 64)
		return text, err
	}
}

func (s *Server) createTune(x *exchange) {
	var in tuneRequest
	err := s.decode(x, &in, onlyKnown)
	var spec jobs.FineTuneSpec
	if err == nil {
		spec, err = in.spec()
	}
	if err == nil {
		spec.Idempotency, err = onceKey(x)
	}
	var j jobs.Job
	if err == nil {
		m, ok := s.deps.Catalog.Lookup(spec.Model)
		switch {
		case ok && !mayUse(x.grant, &m, spec.Model):
			err = notAllowed(spec.Model)
		case ok && m.Adapter == "":
			spec.Model = m.Name
		}
		spec.Tenant = x.tenant
	}
	if err == nil {
		j, err = s.deps.FineTunes.CreateFineTune(s.base, spec)
	}
	var bad *jobs.InvalidError
	if errors.As(err, &bad) && bad.Param == "model" {
		err = invalid("model", "model_not_available", "%s", bad.Reason)
	}
	s.tune(x, j, err)
}

// tune answers with a fine-tuning job, or with err.
func (s *Server) tune(x *exchange, j jobs.Job, err error) {
	if err != nil {
		s.fail(x, err)
		return
	}
	s.json(x, tuneOf(j))
}

// ownTune finds the caller's fine-tuning job; others, and other jobs, are not found.
func (s *Server) ownTune(x *exchange) (jobs.Job, error) {
	j, err := s.deps.Jobs.Get(s.base, x.path)
	if err == nil && (j.Tenant != x.tenant || j.FineTune == nil) {
		err = jobs.ErrNotFound
	}
	if errors.Is(err, jobs.ErrNotFound) {
		err = fmt.Errorf("fine-tuning job %.100s: %w", x.path, jobs.ErrNotFound)
	}
	return j, err
}

func (s *Server) getTune(x *exchange) {
	j, err := s.ownTune(x)
	s.tune(x, j, err)
}

func (s *Server) changeTune(x *exchange, do func(context.Context, string) (jobs.Job, error)) {
	j, err := s.ownTune(x)
	if err == nil {
		j, err = do(s.base, j.ID)
	}
	s.tune(x, j, err)
}

// listTunes takes limit, after, and metadata[KEY]=VALUE as often as wanted.
func (s *Server) listTunes(x *exchange) {
	q := x.c.QueryArgs()
	limit, err := pageLimit(q.Peek("limit"), 20, 100)
	metadata := map[string]string{}
	for key, value := range q.All() {
		if name, ok := bytes.CutPrefix(key, []byte("metadata[")); ok {
			metadata[string(bytes.TrimSuffix(name, []byte("]")))] = string(value)
		}
	}
	var list []jobs.Job
	if err == nil {
		list, err = s.deps.FineTunes.FineTunes(s.base, jobs.Filter{Tenant: x.tenant, After: string(q.Peek("after")), Limit: limit + 1}, metadata)
	}
	if err != nil {
		s.fail(x, err)
		return
	}
	page := tuneList[tuneObject]{Object: "list", Data: []tuneObject{}, More: len(list) > limit}
	for _, j := range list[:min(limit, len(list))] {
		page.Data = append(page.Data, tuneOf(j))
	}
	s.json(x, page)
}

// tuneEvents lists what happened, newest first.
func (s *Server) tuneEvents(x *exchange) {
	q := x.c.QueryArgs()
	limit, err := pageLimit(q.Peek("limit"), 20, jobs.MaxEvents)
	var j jobs.Job
	if err == nil {
		j, err = s.ownTune(x)
	}
	before := 0
	if after := string(q.Peek("after")); err == nil && after != "" {
		number, ok := strings.CutPrefix(after, eventPrefix(j.ID))
		if before, err = strconv.Atoi(number); err != nil || !ok || before < 1 {
			err = invalid("after", openai.CodeValue, "%.100q is no event of this job", after)
		}
	}
	var list []jobs.Event
	if err == nil {
		list, err = s.deps.FineTunes.Events(s.base, j.ID, 0, 0)
	}
	if err != nil {
		s.fail(x, err)
		return
	}
	s.json(x, eventPage(j.ID, list, before, limit))
}

func (s *Server) tuneCheckpoints(x *exchange) {
	q := x.c.QueryArgs()
	limit, err := pageLimit(q.Peek("limit"), 10, 100)
	var j jobs.Job
	if err == nil {
		j, err = s.ownTune(x)
	}
	var page *page[tuneCheckpoint]
	if err == nil {
		page, err = checkpointPage(j, string(q.Peek("after")), limit)
	}
	if err != nil {
		s.fail(x, err)
		return
	}
	s.json(x, page)
}
