package jobs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// maxChecks bounds how many files of examples are read at once.
const maxChecks = 2

// CreateFineTune stores a job of the template that trains the model, and begins
// to read its files; until they are found good it waits for no slice.
// *InvalidError for what can be refused at once. A key that the tenant has used
// answers with what it made, as Submit does.
func (m *Manager) CreateFineTune(ctx context.Context, s FineTuneSpec) (Job, error) {
	if err := s.Validate(); err != nil {
		return Job{}, err
	}
	request := s // in which a seed that was left to us is not there: it differs each time
	request.Idempotency = ""
	terms := Terms{Idempotency: s.Idempotency, Asked: digest(request)}
	if old, err := m.madeWith(ctx, Job{Tenant: s.Tenant, Terms: terms}); old.ID != "" || err != nil {
		return old, err
	}
	t, ok := m.fineTuner(s.Model)
	if !ok {
		return Job{}, invalid("model", "the model %.100q cannot be fine-tuned here: no job template says that it trains it", s.Model)
	}
	for param, id := range map[string]string{"training_file": s.Training, "validation_file": s.Validation} {
		if err := m.ownExamples(ctx, param, id, s.Tenant); err != nil && (id != "" || param == "training_file") {
			return Job{}, err
		}
	}
	params, err := s.params(t, rand.Int64N(maxSeed))
	if err != nil {
		return Job{}, err
	}
	f := &FineTune{Model: s.Model, Training: s.Training, Validation: s.Validation, Asked: s.Asked, Suffix: s.Suffix, Metadata: s.Metadata}
	switch {
	case s.Seed != nil:
		f.Seed = *s.Seed
	case params[ParamSeed] != "":
		f.Seed, _ = strconv.ParseInt(params[ParamSeed], 10, 64) // checked as the parameter's value
	}
	terms.FineTune = f
	return m.submit(ctx, Job{Tenant: s.Tenant, Template: t.Name, Params: params, Terms: terms})
}

// fineTuner is the template that trains a model.
func (m *Manager) fineTuner(model string) (Template, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range m.templates {
		if slices.Contains(t.FineTunes, model) {
			return t, true
		}
	}
	return Template{}, false
}

// ownExamples checks that a file can be one of examples.
func (m *Manager) ownExamples(ctx context.Context, param, id, tenant string) error {
	f, err := m.File(ctx, id)
	switch {
	case errors.Is(err, ErrNotFound) || err == nil && f.Tenant != tenant:
		return invalid(param, "there is no file %.100q", id)
	case err != nil:
		return err
	case f.Purpose != PurposeFineTune:
		return invalid(param, "file %s has purpose %q, want %q", f.ID, f.Purpose, PurposeFineTune)
	}
	return nil
}

// FineTunes lists fine-tuning jobs, newest first, that have all of metadata. It
// looks at tunesScan jobs at most, so that few among many cannot hold the store.
func (m *Manager) FineTunes(ctx context.Context, f Filter, metadata map[string]string) ([]Job, error) {
	want := f.Limit
	f.Kind, f.Limit = KindTrain, tunesPage
	var out []Job
	for range tunesScan / tunesPage {
		list, err := m.List(ctx, f)
		if err != nil {
			return nil, err
		}
		for _, j := range list {
			if j.FineTune != nil && has(j.FineTune.Metadata, metadata) {
				out = append(out, j)
			}
			if len(out) == want {
				return out, nil
			}
		}
		if len(list) < f.Limit {
			return out, nil
		}
		f.After = list[len(list)-1].ID
	}
	return out, nil
}

const (
	tunesPage = 200
	tunesScan = 20_000
)

// learned maps the files that unfinished fine-tuning jobs read to such a job.
func (m *Manager) learned(ctx context.Context) (map[string]string, error) {
	list, err := m.opt.Store.List(ctx, Filter{States: Unfinished(), Kind: KindTrain})
	if err != nil {
		return nil, fmt.Errorf("list fine-tuning jobs: %w", err)
	}
	out := map[string]string{}
	for _, j := range list {
		if j.FineTune != nil {
			out[j.FineTune.Training], out[j.FineTune.Validation] = j.ID, j.ID
		}
	}
	return out, nil
}

func has(all, some map[string]string) bool {
	for k, v := range some {
		if is, ok := all[k]; !ok || is != v {
			return false
		}
	}
	return true
}

// checkExamples reads the files of a new job, or of one that was being checked
// when an earlier life ended.
func (m *Manager) checkExamples(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed { // Open will see it
		return
	}
	m.work.Go(func() {
		select {
		case m.checks <- struct{}{}:
			defer func() { <-m.checks }()
			m.check(m.base, id)
		case <-m.base.Done():
		}
	})
}

// verdictOf is what the reading of a job's files came to.
type verdictOf struct {
	count                int // of training examples
	code, param, message string
	lines                []LineError
}

// check reads until the files can be read, or until that has failed too often.
func (m *Manager) check(ctx context.Context, id string) {
	j, err := m.opt.Store.Get(ctx, id)
	if err != nil || j.FineTune == nil || j.FineTune.Checked {
		return
	}
	m.say(ctx, id, LevelInfo, "validating training file: "+j.FineTune.Training)
	var v verdictOf
	for try := 0; ; try++ {
		if v, err = m.readFiles(ctx, *j.FineTune); err == nil {
			break
		}
		if try == m.opt.Retry.Attempts {
			v = verdictOf{code: CodeServer, message: fmt.Sprintf("the files could not be read: %v", err)}
			break
		}
		select {
		case <-time.After(doubled(m.opt.Retry, try)):
		case <-ctx.Done():
			return
		}
	}
	for _, l := range v.lines {
		m.say(ctx, id, LevelError, v.param+": "+l.String())
	}
	if v.code == "" {
		m.say(ctx, id, LevelInfo, fmt.Sprintf("files validated, %d examples: moving job to the queue", v.count))
	}
	j, err = m.update(ctx, id, func(j *Job) error {
		f := *j.FineTune
		switch {
		case j.State.Terminal() || f.Checked:
			return errUnchanged
		case v.code == "":
			f.Checked, f.Examples, f.Code, f.Param = true, v.count, "", ""
		default:
			f.Code, f.Param = v.code, v.param
			j.Error = v.message
			j.step(Failed, time.Now())
		}
		j.FineTune = &f
		return nil
	})
	switch {
	case err != nil && ctx.Err() == nil:
		m.log.Error("fine-tuning job not checked", "job", id, "error", err)
	case err == nil && j.FineTune.Checked:
		m.opt.OnChange(j) // it can use a slice now
	}
}

// readFiles reads a job's files. A file that is gone is as bad as one that is wrong.
func (m *Manager) readFiles(ctx context.Context, f FineTune) (v verdictOf, err error) {
	for _, file := range []struct {
		param, id string
		least     int
	}{{"training_file", f.Training, minExamples}, {"validation_file", f.Validation, 1}} {
		if file.id == "" {
			continue
		}
		r, err := m.openBlob(ctx, file.id)
		if errors.Is(err, ErrNotFound) {
			return verdictOf{code: "invalid_" + file.param, param: file.param, message: fmt.Sprintf("file %s is gone", file.id)}, nil
		}
		if err != nil {
			return v, err
		}
		e, err := readExamples(ctx, r)
		r.Close()
		if err != nil {
			return v, err
		}
		if code, message := e.fault(file.param, file.least); code != "" {
			return verdictOf{code: code, param: file.param, message: message, lines: e.Errors}, nil
		}
		if file.param == "training_file" {
			v.count = e.Count
		}
	}
	return v, nil
}

// say adds an event for the job's user; one that cannot be stored is only logged.
func (m *Manager) say(ctx context.Context, id, level, message string) {
	err := m.AddEvent(ctx, id, Event{Level: level, Kind: "message", Message: message})
	if err != nil && ctx.Err() == nil {
		m.log.Warn("event not stored", "job", id, "error", err)
	}
}

// tuneDir holds the files of a fine-tuning job between its runs and for them.
func (m *Manager) tuneDir(id string) string {
	return filepath.Join(m.opt.DataDir, "finetune", filepath.Base(id))
}

// layOut copies a job's files to where its program can read them and returns
// its environment with their places.
func (m *Manager) layOut(ctx context.Context, j Job, env []string) ([]string, error) {
	dir := m.tuneDir(j.ID)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("lay out files: %w", err)
	}
	env = append(slices.Clone(env), "ALOFT_FINE_TUNED_MODEL="+j.FineTune.Name(j.ID, j.Tenant))
	for _, file := range []struct{ key, id, name string }{
		{"ALOFT_TRAINING_FILE", j.FineTune.Training, trainingName},
		{"ALOFT_VALIDATION_FILE", j.FineTune.Validation, validationName},
	} {
		if file.id == "" {
			continue
		}
		path := filepath.Join(dir, file.name)
		if err := m.copyOut(ctx, file.id, path); err != nil {
			return nil, fmt.Errorf("lay out %s: %w", file.id, err)
		}
		env = append(env, file.key+"="+path)
	}
	return env, nil
}

const (
	trainingName   = "training.jsonl"
	validationName = "validation.jsonl"
	metricsName    = "metrics.csv"
)

// copyOut copies a file's bytes to path, which is whole or not there.
func (m *Manager) copyOut(ctx context.Context, id, path string) error {
	r, err := m.openBlob(ctx, id)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.OpenFile(path+".tmp", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	if err = errors.Join(err, w.Close()); err != nil {
		os.Remove(path + ".tmp")
		return err
	}
	return os.Rename(path+".tmp", path)
}
