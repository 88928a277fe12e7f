package jobs_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"aloft/jobs"
	"aloft/jobs/trainer"
)

// roleTune is what "aloft train" does in a fine-tuning job.
func roleTune() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := trainer.Run(ctx, trainer.Options{
		CheckpointDir: os.Getenv("ALOFT_CHECKPOINT_DIR"), Resume: os.Getenv("ALOFT_RESUME_FROM"), OutputDir: os.Getenv("ALOFT_OUTPUT_DIR"),
		Examples: os.Getenv("ALOFT_TRAINING_FILE"), Validation: os.Getenv("ALOFT_VALIDATION_FILE"),
		Epochs: 2, Seed: 5, StepsPerCheckpoint: 25, Pace: time.Millisecond, Progress: os.NewFile(3, "progress"),
	})
	switch {
	case errors.Is(err, trainer.ErrPreempted):
		return jobs.ExitRequeue
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	report(fmt.Sprintf(`{"result":{"fine_tuned_model":%q}}`, os.Getenv("ALOFT_FINE_TUNED_MODEL")))
	return 0
}

const exampleLine = `{"messages":[{"role":"user","content":"what do the heavens declare?"},{"role":"assistant","content":"the glory of god, and the firmament sheweth his handywork."}]}` + "\n"

// tuneManager has a template that fine-tunes the model "tiny".
func tuneManager(t *testing.T, dir string, o jobs.Options) (*jobs.Manager, func()) {
	t.Helper()
	tpl := template("tune", 5*time.Second)
	tpl.FineTunes = []string{"tiny"}
	tpl.Params = []jobs.Param{{Name: "n_epochs", Type: jobs.ParamInt, Default: "2", Min: 1, Max: 9}, {Name: "seed", Type: jobs.ParamInt, Default: "1", Min: 0, Max: 1 << 31}}
	o.Templates = []jobs.Template{tpl}
	return newManager(t, dir, o)
}

func examplesFile(t *testing.T, m *jobs.Manager, text string) string {
	t.Helper()
	f, err := m.CreateFile(t.Context(), known(jobs.FileSpec{Name: "x.jsonl", Purpose: jobs.PurposeFineTune, Tenant: "acme"}), strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return f.ID
}

func tuneJob(t *testing.T, m *jobs.Manager, s jobs.FineTuneSpec) jobs.Job {
	t.Helper()
	s.Model, s.Tenant = "tiny", "acme"
	j, err := m.CreateFineTune(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// lentTo starts the job once its files are checked, and its last run is gone:
// that is a moment after its record says that it waits.
func lentTo(t *testing.T, m *jobs.Manager, id string) {
	t.Helper()
	until(t, id+" to take a slice", func() bool {
		err := m.Start(t.Context(), id, lend(1))
		if err != nil && !errors.Is(err, jobs.ErrConflict) {
			t.Fatal(err)
		}
		return err == nil
	})
}

func fileText(t *testing.T, m *jobs.Manager, id string) []byte {
	t.Helper()
	r, err := m.OpenFile(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A real trainer learns from an uploaded file, is preempted and paused, and ends
// as one that was not; its metrics have every step once, its weights are a file.
func TestFineTune(t *testing.T) {
	served := ""
	m, _ := tuneManager(t, t.TempDir(), jobs.Options{Serves: func(name string) bool { served = name; return true }})
	text := strings.Repeat(exampleLine, 20)
	spec := jobs.FineTuneSpec{Training: examplesFile(t, m, text), Validation: examplesFile(t, m, exampleLine), Suffix: "psalms"}
	whole := tuneJob(t, m, spec)
	lentTo(t, m, whole.ID)
	whole = untilState(t, m, whole.ID, jobs.Succeeded)

	j := tuneJob(t, m, spec)
	lentTo(t, m, j.ID)
	until(t, "a checkpoint", func() bool {
		got, _ := m.Get(t.Context(), j.ID)
		return len(got.Checkpoints) > 0
	})
	if err := m.Preempt(t.Context(), j.ID, 0); err != nil {
		t.Fatal(err)
	}
	lentTo(t, m, j.ID)
	if _, err := m.Pause(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	until(t, "the pause", func() bool {
		got, _ := m.Get(t.Context(), j.ID)
		return got.State == jobs.Paused
	})
	if _, err := m.Resume(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	lentTo(t, m, j.ID)
	j = untilState(t, m, j.ID, jobs.Succeeded)

	f := j.FineTune
	if len(f.Results) != 2 || f.Examples != 20 || f.Tokens == 0 || f.Served != f.Name(j.ID, "acme") || served != f.Served || !strings.HasPrefix(f.Served, "ft:tiny:acme:psalms:") {
		t.Fatalf("record %+v, asked whether %q is served", f, served)
	}
	if j.Progress.Resumes == 0 || j.Preemptions == 0 || j.Progress.Result != whole.Progress.Result {
		t.Errorf("after %d resumes the weights are %s, without any %s", j.Progress.Resumes, j.Progress.Result, whole.Progress.Result)
	}
	weights := fileText(t, m, f.Results[1])
	if sum := sha256.Sum256(weights); hex.EncodeToString(sum[:]) != j.Progress.Result {
		t.Error("the weights that can be downloaded are not the result")
	}
	rows := strings.Split(strings.TrimSpace(string(fileText(t, m, f.Results[0]))), "\n")
	if rows[0] != "step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy" || len(rows) < 3 {
		t.Fatalf("metrics %q", rows)
	}
	last := 0
	for _, row := range rows[1:] {
		var step int
		if _, err := fmt.Sscanf(row, "%d,", &step); err != nil || step <= last || strings.Count(row, ",") != 4 {
			t.Errorf("row %q after step %d", row, last)
		}
		last = step
	}
	if !strings.Contains(rows[len(rows)-1], ",,") || int64(last) != j.Progress.Total {
		t.Errorf("last row %q of %d steps", rows[len(rows)-1], j.Progress.Total)
	}
	if c := j.Checkpoints[len(j.Checkpoints)-1]; c.Metrics["train_loss"] == 0 || c.Metrics["valid_loss"] == 0 {
		t.Errorf("checkpoint %+v", c)
	}
	said := ""
	until(t, "the last event", func() bool {
		said = eventsOf(t, m, j.ID)
		return strings.Contains(said, "new fine-tuned model created: "+f.Served)
	})
	for _, want := range []string{"validating training file", "20 examples: moving", "metrics step", "training loss=", "step_metrics.csv", "weights.f64"} {
		if !strings.Contains(said, want) {
			t.Errorf("no event says %q:\n%s", want, said)
		}
	}
	if err := m.Delete(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := m.OpenFile(t.Context(), f.Results[0]); !errors.Is(err, jobs.ErrNotFound) {
		t.Errorf("results of a deleted job: %v", err)
	}
}

func eventsOf(t *testing.T, m *jobs.Manager, id string) string {
	t.Helper()
	list, err := m.Events(t.Context(), id, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	for _, e := range list {
		fmt.Fprintln(&b, e.Level, e.Kind, e.Message)
	}
	return b.String()
}

// A job whose model nobody serves says so.
func TestFineTuneNotServed(t *testing.T) {
	m, _ := tuneManager(t, t.TempDir(), jobs.Options{})
	j := tuneJob(t, m, jobs.FineTuneSpec{Training: examplesFile(t, m, strings.Repeat(exampleLine, 10))})
	lentTo(t, m, j.ID)
	j = untilState(t, m, j.ID, jobs.Succeeded)
	until(t, "the last event", func() bool { return strings.Contains(eventsOf(t, m, j.ID), "fine_tuned_model is null") })
	if j.FineTune.Served != "" {
		t.Errorf("served as %q", j.FineTune.Served)
	}
}

// What an earlier life left unchecked is checked by the next; a file that is
// gone by then fails the job, and a bad one can be tried again.
func TestFineTuneRecovers(t *testing.T) {
	dir := t.TempDir()
	m, stop := tuneManager(t, dir, jobs.Options{})
	good := examplesFile(t, m, strings.Repeat(exampleLine, 10))
	bad := tuneJob(t, m, jobs.FineTuneSpec{Training: examplesFile(t, m, exampleLine)})
	bad = untilState(t, m, bad.ID, jobs.Failed)
	if bad.FineTune.Code != jobs.CodeTooFew || bad.FineTune.Param != "training_file" {
		t.Errorf("failed with %+v: %s", bad.FineTune, bad.Error)
	}
	if _, err := m.Retry(t.Context(), bad.ID); err != nil {
		t.Fatal(err)
	}
	untilState(t, m, bad.ID, jobs.Failed)
	j := tuneJob(t, m, jobs.FineTuneSpec{Training: good})
	var refused *jobs.InvalidError
	if err := m.DeleteFile(t.Context(), good); !errors.As(err, &refused) {
		t.Errorf("deleted a file that is learned from: %v", err)
	}
	stop()
	m, _ = tuneManager(t, dir, jobs.Options{})
	lentTo(t, m, j.ID)
	untilState(t, m, j.ID, jobs.Succeeded)
}
