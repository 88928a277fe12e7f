package jobs

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// EventMetrics is the kind of an event whose data are numbers.
const EventMetrics = "metrics"

// metricsEvents is about how many events of metrics a whole run adds: the file
// has every row, and a job keeps only so many events.
const metricsEvents = 50

// maxMetricsRows bounds the file of metrics, over all runs; later rows are dropped.
const maxMetricsRows = 200_000

// maxArtefacts bounds the files that become result files; the others stay in the
// job's output folder.
const maxArtefacts = 16

// metricsColumns are OpenAI's of a result file, and what a program calls each.
var metricsColumns = []string{"train_loss", "train_accuracy", "valid_loss", "valid_mean_token_accuracy"}

const metricsHead = "step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy\n"

// tuneRun is what a run of a fine-tuning job has measured. It belongs to the
// reader of its reports.
type tuneRun struct {
	path string
	said int64 // step of the last event
	rows int
	// tries to publish the results belong to whoever waits for the end.
	tries int
}

func newTuneRun(path string) *tuneRun {
	t := &tuneRun{path: path}
	if text, err := os.ReadFile(path); err == nil {
		t.rows = bytes.Count(text, []byte("\n"))
	}
	return t
}

// measured notes what a report says of a fine-tuning job's course.
func (m *Manager) measured(ctx context.Context, id string, t *tuneRun, rep Report, total int64) {
	values := maps.Clone(rep.Metrics)
	if values == nil {
		values = map[string]float64{}
	}
	if rep.Loss != 0 {
		values["train_loss"] = cmp.Or(values["train_loss"], rep.Loss)
	}
	if len(values) == 0 {
		return
	}
	if t.rows++; t.rows <= maxMetricsRows {
		if err := appendTo(t.path, metricsRow(rep.Step, values)); err != nil {
			m.log.Warn("metrics not kept", "job", id, "error", err)
		}
	}
	if !metricsDue(rep.Step, t.said, total) {
		return
	}
	t.said = rep.Step
	e := Event{Kind: EventMetrics, Message: metricsWords(rep.Step, total, values), Data: map[string]string{
		"step": strconv.FormatInt(rep.Step, 10), "total_steps": strconv.FormatInt(total, 10)}}
	for k, v := range values {
		e.Data[k] = number(v)
	}
	if err := m.AddEvent(ctx, id, e); err != nil {
		m.log.Warn("event not stored", "job", id, "error", err)
	}
}

// metricsDue reports whether a step is worth an event: so many over the whole
// run, and its end.
func metricsDue(step, said, total int64) bool {
	if total <= 0 || step <= said {
		return false
	}
	return step >= total || step*metricsEvents/total > said*metricsEvents/total
}

func metricsWords(step, total int64, values map[string]float64) string {
	words := fmt.Sprintf("step %d/%d", step, total)
	for _, v := range []struct{ key, words string }{{"train_loss", "training loss"}, {"valid_loss", "validation loss"}} {
		if n, ok := values[v.key]; ok {
			words += fmt.Sprintf(", %s=%.4f", v.words, n)
		}
	}
	return words
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// metricsRow is a line of the file; what was not measured is empty.
func metricsRow(step int64, values map[string]float64) string {
	row := strconv.FormatInt(step, 10)
	for _, c := range metricsColumns {
		row += ","
		if v, ok := values[c]; ok {
			row += number(v)
		}
	}
	return row + "\n"
}

func appendTo(path, text string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// compileMetrics makes the result file of the rows of all runs: one a step, in
// order. A run that goes on from a checkpoint repeats steps; a row that a kill
// cut off is left out.
func compileMetrics(rows []byte) []byte {
	last := map[int64][]byte{}
	for in := bufio.NewScanner(bytes.NewReader(rows)); in.Scan(); {
		step, rest, _ := bytes.Cut(in.Bytes(), []byte(","))
		n, err := strconv.ParseInt(string(step), 10, 64)
		if err == nil && bytes.Count(rest, []byte(",")) == len(metricsColumns)-1 {
			last[n] = bytes.Clone(in.Bytes())
		}
	}
	out := []byte(metricsHead)
	for _, step := range slices.Sorted(maps.Keys(last)) {
		out = append(append(out, last[step]...), '\n')
	}
	return out
}

// resultTries bounds how often results are published: what waits for them holds a slice.
const resultTries = 3

// tuneResults publishes what a run of a fine-tuning job leaves that ended well,
// before the record says so. It is nil for other runs. err: try again; lost: do
// not, the results stay in the job's output folder.
func (m *Manager) tuneResults(ctx context.Context, id string, r *run, end Exit) (f *FineTune, lost, err error) {
	if r.tune == nil || end.Code != 0 || end.Signal != "" {
		return nil, nil, nil
	}
	j, err := m.Get(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	made, err := m.publishTune(ctx, j)
	if err == nil {
		return &made, nil, nil
	}
	if r.tune.tries++; r.tune.tries < resultTries {
		return nil, nil, err
	}
	return nil, fmt.Errorf("the results could not be kept, and stay in the output folder: %w", err), nil
}

// publishTune makes files of what a fine-tuning job that has succeeded leaves.
// Doing it twice replaces them: their ids follow from the job's.
func (m *Manager) publishTune(ctx context.Context, j Job) (FineTune, error) {
	f := *j.FineTune
	f.Results = nil
	if err := os.MkdirAll(m.tuneDir(j.ID), 0o755); err != nil {
		return f, fmt.Errorf("metrics: %w", err)
	}
	rows, err := os.ReadFile(filepath.Join(m.tuneDir(j.ID), metricsName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return f, fmt.Errorf("metrics: %w", err)
	}
	compiled := filepath.Join(m.tuneDir(j.ID), "step_metrics.csv")
	if err := os.WriteFile(compiled, compileMetrics(rows), 0o600); err != nil {
		return f, fmt.Errorf("metrics: %w", err)
	}
	paths := []string{compiled}
	left, err := os.ReadDir(m.OutputDir(j.ID))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return f, fmt.Errorf("artefacts: %w", err)
	}
	for _, e := range left {
		info, err := e.Info()
		switch {
		case err != nil || !info.Mode().IsRegular():
		case info.Size() > m.opt.MaxFileBytes || len(paths) > maxArtefacts: // the slice is held until all are copied
			m.say(ctx, j.ID, LevelWarn, fmt.Sprintf("%.100q (%d bytes) is no result file: it stays in the job's output folder", e.Name(), info.Size()))
		default:
			paths = append(paths, filepath.Join(m.OutputDir(j.ID), e.Name()))
		}
	}
	now := time.Now()
	for i, path := range paths {
		st, err := os.Stat(path)
		if err != nil {
			return f, fmt.Errorf("artefacts: %w", err)
		}
		file := File{ID: fmt.Sprintf("file-%sr%02d", strings.TrimPrefix(j.ID, tunePrefix), i), Name: filepath.Base(path),
			Purpose: PurposeFineTuneResults, Tenant: j.Tenant, Created: now, Bytes: st.Size()}
		if err := m.publish(ctx, file, path); err != nil {
			return f, err
		}
		f.Results = append(f.Results, file.ID)
	}
	f.Tokens = int64(j.Progress.Metrics["trained_tokens"])
	var said struct {
		Model string `json:"fine_tuned_model"`
	}
	if json.Unmarshal(j.Result, &said) == nil && said.Model != "" && m.opt.Serves(said.Model) {
		f.Served = said.Model
	}
	return f, nil
}

// tunePrefix begins the ids of fine-tuning jobs.
const tunePrefix = "ftjob-"

// tuned ends a run of a fine-tuning job: what lay there for it goes, and its user
// hears where the results are.
func (m *Manager) tuned(ctx context.Context, j Job) {
	if j.State != Succeeded { // the rows of metrics are for its next run
		os.Remove(filepath.Join(m.tuneDir(j.ID), trainingName))
		os.Remove(filepath.Join(m.tuneDir(j.ID), validationName))
		return
	}
	os.RemoveAll(m.tuneDir(j.ID))
	f := j.FineTune
	for _, id := range f.Results {
		if file, err := m.opt.Files.File(ctx, id); err == nil {
			m.say(ctx, j.ID, LevelInfo, fmt.Sprintf("result %s (%d bytes): %s", file.Name, file.Bytes, id))
		}
	}
	switch {
	case f.Served != "":
		m.say(ctx, j.ID, LevelInfo, "new fine-tuned model created: "+f.Served)
	case len(f.Results) > 1:
		m.say(ctx, j.ID, LevelWarn, "fine_tuned_model is null: the training program named no model that this server's configuration serves; its results can be downloaded as files")
	default:
		m.say(ctx, j.ID, LevelWarn, "fine_tuned_model is null: the training program left no result file and named no model that this server's configuration serves")
	}
}
