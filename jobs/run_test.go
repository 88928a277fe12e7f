package jobs_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"aloft/backends"
	"aloft/jobs"
	"aloft/jobs/trainer"
)

func submit(t *testing.T, m *jobs.Manager, tpl string) jobs.Job {
	t.Helper()
	j, err := m.Submit(t.Context(), jobs.Job{Template: tpl})
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// wholeRun is the result of the "train" template without interruption.
func wholeRun(t *testing.T) string { return trained(t, trainSteps) }

// trained is the result of so many steps.
func trained(t *testing.T, steps int) string {
	t.Helper()
	var out bytes.Buffer
	if err := trainer.Run(t.Context(), trainer.Options{Steps: steps, Seed: 11, Progress: &out}); err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(out.String(), `"result":"`)
	sum, _, _ := strings.Cut(rest, `"`)
	return sum
}

// TestPreemptedTrainerEndsTheSame preempts a real process at random moments. One
// that ends before the first of them, since the test itself had to wait, says
// nothing.
func TestPreemptedTrainerEndsTheSame(t *testing.T) {
	m, _ := newManager(t, t.TempDir(), jobs.Options{})
	for range 20 {
		if preemptedEndsTheSame(t, m) {
			return
		}
	}
	t.Fatal("never preempted")
}

func preemptedEndsTheSame(t *testing.T, m *jobs.Manager) bool {
	t.Helper()
	j := submit(t, m, "train")
	preempted := 0
	for range 4 {
		if err := m.Start(t.Context(), j.ID, lend(1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(rand.N(150 * time.Millisecond))
		if err := m.Preempt(t.Context(), j.ID, 0); err != nil {
			t.Fatal(err)
		}
		got, err := m.Get(t.Context(), j.ID)
		if err != nil || len(got.Slices) != 0 {
			t.Fatalf("after preemption it holds %v, %v", got.Slices, err)
		}
		if got.State != jobs.Queued {
			break // it was faster
		}
		preempted++
	}
	if preempted == 0 {
		return false
	}
	if got, _ := m.Get(t.Context(), j.ID); got.State == jobs.Queued {
		if err := m.Start(t.Context(), j.ID, lend(1)); err != nil {
			t.Fatal(err)
		}
	}
	end := untilState(t, m, j.ID, jobs.Succeeded)
	if want := wholeRun(t); end.Progress.Result != want || len(want) != 64 {
		t.Errorf("after %d preemptions the weights are %q, uninterrupted %q", preempted, end.Progress.Result, want)
	}
	if p := end.Progress; p.Done != trainSteps || p.Total != trainSteps || end.Preemptions != preempted || p.Resumes > preempted || p.Rate <= 0 || p.Loss <= 0 {
		t.Errorf("progress %+v after %d preemptions, %d counted", p, preempted, end.Preemptions)
	}
	return true
}

func TestEnds(t *testing.T) {
	m, _ := newManager(t, t.TempDir(), jobs.Options{})
	for tpl, want := range map[string]jobs.State{"0": jobs.Succeeded, "3": jobs.Failed, "75": jobs.Failed} {
		j := submit(t, m, tpl)
		if err := m.Start(t.Context(), j.ID, lend(1)); err != nil {
			t.Fatal(err)
		}
		j = untilState(t, m, j.ID, want)
		if (j.Error == "") != (want == jobs.Succeeded) || len(j.Slices) != 0 || j.Finished.IsZero() {
			t.Errorf("exit %s: %+v", tpl, j)
		}
	}
	j := submit(t, m, "missing")
	if err := m.Start(t.Context(), j.ID, lend(1)); err == nil {
		t.Error("a missing program was started")
	}
	if j = untilState(t, m, j.ID, jobs.Failed); !strings.Contains(j.Error, "/nonexistent/program") {
		t.Errorf("error %q", j.Error)
	}
}

func TestStubbornJobIsKilled(t *testing.T) {
	m, _ := newManager(t, t.TempDir(), jobs.Options{})
	j := submit(t, m, "stubborn")
	if err := m.Start(t.Context(), j.ID, lend(1)); err != nil {
		t.Fatal(err)
	}
	until(t, "its first report", func() bool { j, _ := m.Get(t.Context(), j.ID); return j.Progress.Done == 1 })
	start := time.Now()
	if err := m.Preempt(t.Context(), j.ID, 0); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(start); d < 100*time.Millisecond {
		t.Errorf("preempted after %v, its grace is 100ms", d)
	}
	if got, _ := m.Get(t.Context(), j.ID); got.State != jobs.Queued || got.Preemptions != 1 {
		t.Errorf("%s after %d preemptions", got.State, got.Preemptions)
	}
	if err := m.Start(t.Context(), j.ID, lend(1)); err != nil { // and again, to cancel it
		t.Fatal(err)
	}
	for range 2 {
		if _, err := m.Cancel(t.Context(), j.ID); err != nil {
			t.Fatal(err)
		}
	}
	untilState(t, m, j.ID, jobs.Cancelled)
	if _, err := m.Cancel(t.Context(), j.ID); err != nil {
		t.Errorf("cancel of a cancelled job: %v", err)
	}
	if err := m.Preempt(t.Context(), j.ID, 0); err != nil {
		t.Errorf("preempt of a cancelled job: %v", err)
	}
}

func TestCancelQueued(t *testing.T) {
	m, _ := newManager(t, t.TempDir(), jobs.Options{})
	j := submit(t, m, "train")
	if j, err := m.Cancel(t.Context(), j.ID); err != nil || j.State != jobs.Cancelled {
		t.Fatalf("%s, %v", j.State, err)
	}
	if err := m.Start(t.Context(), j.ID, lend(1)); !errors.Is(err, jobs.ErrConflict) {
		t.Errorf("start of a cancelled job: %v, want ErrConflict", err)
	}
	for _, call := range []func() error{
		func() error { _, err := m.Cancel(t.Context(), "job_none"); return err },
		func() error { _, err := m.Get(t.Context(), "job_none"); return err },
		func() error { return m.Preempt(t.Context(), "job_none", 0) },
		func() error { return m.Start(t.Context(), "job_none", lend(1)) },
		func() error { _, err := m.CancelBatch(t.Context(), j.ID); return err },
	} {
		if err := call(); !errors.Is(err, jobs.ErrNotFound) {
			t.Errorf("%v, want ErrNotFound", err)
		}
	}
}

// TestEnvironment runs a gang of two and looks at what it was given.
func TestEnvironment(t *testing.T) {
	t.Setenv("SECRET_TOKEN", "s3cret")
	m, _ := newManager(t, t.TempDir(), jobs.Options{})
	j := submit(t, m, "show")
	if err := m.Start(t.Context(), j.ID, lend(2)); err != nil {
		t.Fatal(err)
	}
	j = untilState(t, m, j.ID, jobs.Succeeded)
	if j.Progress.Result != "fine" || j.Progress.Done != 5 {
		t.Errorf("progress %+v: junk on the descriptor must not hide a report", j.Progress)
	}
	log, err := os.ReadFile(m.LogPath(j.ID))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"ALOFT_JOB_ID=" + j.ID, "ALOFT_WORLD_SIZE=2", "ALOFT_RANK=0", "ALOFT_RANK=1", "ALOFT_PROGRESS_FD=3",
		"ALOFT_RESUME_FROM=", "CUDA_VISIBLE_DEVICES=MIG-0", "CUDA_VISIBLE_DEVICES=MIG-1", "ALOFT_CHECKPOINT_DIR=",
	} {
		if !strings.Contains(string(log), want+"\n") && !strings.HasSuffix(want, "DIR=") {
			t.Errorf("no %s in\n%s", want, log)
		}
	}
	if strings.Contains(string(log), "s3cret") {
		t.Error("the job inherited a secret")
	}
}

func TestSubmitRefuses(t *testing.T) {
	m, stop := newManager(t, t.TempDir(), jobs.Options{MaxOpen: 2})
	for _, bad := range []jobs.Job{
		{}, {Template: "nobody"}, {Kind: jobs.KindTrain}, {Kind: jobs.KindBatch, Command: []string{"a"}},
		{Template: "train", Params: map[string]string{"x": "1"}}, {Template: "train", MinWidth: 2, MaxWidth: 1},
	} {
		if _, err := m.Submit(t.Context(), bad); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
	a := submit(t, m, "train")
	submit(t, m, "train")
	if _, err := m.Submit(t.Context(), jobs.Job{Template: "train"}); !errors.Is(err, backends.ErrOverloaded) {
		t.Errorf("third of two: %v, want ErrOverloaded", err)
	}
	if _, err := m.Cancel(t.Context(), a.ID); err != nil {
		t.Fatal(err)
	}
	c := submit(t, m, "train") // one has ended
	if list, err := m.List(t.Context(), jobs.Filter{States: []jobs.State{jobs.Queued}, Limit: 1}); err != nil || list[0].ID != c.ID {
		t.Errorf("newest queued: %v, %v", list, err)
	}
	stop()
	if _, err := m.Submit(t.Context(), jobs.Job{Template: "train"}); !errors.Is(err, jobs.ErrClosed) {
		t.Errorf("submit after close: %v, want ErrClosed", err)
	}
}

// TestCloseRequeues: what runs is preempted by Close and goes on in the next life.
func TestCloseRequeues(t *testing.T) {
	dir := t.TempDir()
	m, stop := newManager(t, dir, jobs.Options{})
	j, hard := submit(t, m, "train"), submit(t, m, "stubborn")
	for _, id := range []string{j.ID, hard.ID} {
		if err := m.Start(t.Context(), id, lend(1)); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "a checkpoint", func() bool { j, _ := m.Get(t.Context(), j.ID); return j.Progress.Checkpoint != "" })
	stop()
	changes := make(chan jobs.Job, 16)
	m, _ = newManager(t, dir, jobs.Options{OnChange: func(j jobs.Job) { changes <- j }})
	for _, id := range []string{j.ID, hard.ID} {
		if got, err := m.Get(t.Context(), id); err != nil || got.State != jobs.Queued || got.Preemptions != 1 {
			t.Errorf("after close: %s, %d preemptions, %v", got.State, got.Preemptions, err)
		}
	}
	if err := m.Start(t.Context(), j.ID, lend(1)); err != nil {
		t.Fatal(err)
	}
	if end := untilState(t, m, j.ID, jobs.Succeeded); end.Progress.Result != wholeRun(t) || end.Progress.Resumes != 1 {
		t.Errorf("ended with %+v", end.Progress)
	}
	var seen []jobs.State
	for range 3 {
		seen = append(seen, (<-changes).State)
	}
	if want := []jobs.State{jobs.Starting, jobs.Running, jobs.Succeeded}; !slices.Equal(seen, want) {
		t.Errorf("told of %v, want %v", seen, want)
	}
}

func TestLostCheckpointStartsOver(t *testing.T) {
	m, _ := newManager(t, t.TempDir(), jobs.Options{})
	j := submit(t, m, "train")
	if err := m.Start(t.Context(), j.ID, lend(1)); err != nil {
		t.Fatal(err)
	}
	until(t, "a checkpoint", func() bool { j, _ := m.Get(t.Context(), j.ID); return j.Progress.Checkpoint != "" })
	if err := m.Preempt(t.Context(), j.ID, 0); err != nil {
		t.Fatal(err)
	}
	got, err := m.Get(t.Context(), j.ID)
	if err != nil || got.State != jobs.Queued {
		t.Fatalf("%s, %v", got.State, err)
	}
	if err := os.Remove(got.Progress.Checkpoint); err != nil {
		t.Fatal(err)
	}
	if err := m.Start(t.Context(), j.ID, lend(1)); err != nil {
		t.Fatal(err)
	}
	if got, _ = m.Get(t.Context(), j.ID); !strings.Contains(got.Error, "checkpoint is gone") {
		t.Errorf("nothing says that the checkpoint is gone: %q", got.Error)
	}
	if end := untilState(t, m, j.ID, jobs.Succeeded); end.Progress.Result != wholeRun(t) {
		t.Error("starting over gave other weights")
	}
}

func TestStartIsInterrupted(t *testing.T) {
	m, _ := newManager(t, t.TempDir(), jobs.Options{})
	j := submit(t, m, "train")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Start(ctx, j.ID, lend(1)); err == nil {
		t.Error("start with an ended context")
	}
	if got, _ := m.Get(t.Context(), j.ID); got.State != jobs.Queued {
		t.Errorf("the job is %s, want queued", got.State)
	}
	if err := m.Start(t.Context(), j.ID, nil); err == nil {
		t.Error("start without a slice")
	}
}

// A template bounds its jobs' priority, and can be replaced while others run.
func TestTemplatesAreReplaced(t *testing.T) {
	old := jobs.Template{Name: "old", Kind: jobs.KindTrain, Command: []string{"/bin/true"}, Priority: -5}
	m, _ := newManager(t, t.TempDir(), jobs.Options{Templates: []jobs.Template{old}})
	if j, err := m.Submit(t.Context(), jobs.Job{Template: "old"}); err != nil || j.Priority != -5 {
		t.Errorf("priority %d, %v, want the template's", j.Priority, err)
	}
	for _, bad := range []jobs.Job{
		{Template: "old", Priority: -4}, {Template: "old", Priority: -101}, {Template: "old", Grace: 11 * time.Minute},
		{Kind: jobs.KindTrain, Command: []string{"a"}, Priority: 101},
	} {
		if _, err := m.Submit(t.Context(), bad); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
	fresh := old
	fresh.Name = "new"
	if err := m.SetTemplates([]jobs.Template{fresh, fresh}); err == nil {
		t.Error("a template is there twice, and nobody says so")
	}
	if _, err := m.Submit(t.Context(), jobs.Job{Template: "old"}); err != nil {
		t.Errorf("after a refused replacement: %v", err)
	}
	if err := m.SetTemplates([]jobs.Template{fresh}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"old": false, "new": true} {
		if _, err := m.Submit(t.Context(), jobs.Job{Template: name}); (err == nil) != want {
			t.Errorf("template %s: %v", name, err)
		}
	}
}
