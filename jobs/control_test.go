package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"aloft/jobs"
	"aloft/jobs/boltstore"
)

// with submits a job of a template under terms.
func with(t *testing.T, m *jobs.Manager, tpl string, terms jobs.Terms) jobs.Job {
	t.Helper()
	j, err := m.Submit(t.Context(), jobs.Job{Tenant: "t", Template: tpl, Terms: terms})
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func start(t *testing.T, m *jobs.Manager, id string) {
	t.Helper()
	if err := m.Start(t.Context(), id, lend(1)); err != nil {
		t.Fatal(err)
	}
}

// untilEnd waits for a final state, whichever it is.
func untilEnd(t *testing.T, m *jobs.Manager, id string) (j jobs.Job) {
	t.Helper()
	until(t, "the end of "+id, func() bool {
		var err error
		if j, err = m.Get(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		return j.State.Terminal()
	})
	return j
}

func TestDependencies(t *testing.T) {
	m, _ := newManager(t, t.TempDir(), jobs.Options{})
	first := with(t, m, "0", jobs.Terms{})
	second := with(t, m, "0", jobs.Terms{DependsOn: []string{first.ID}})
	third := with(t, m, "0", jobs.Terms{DependsOn: []string{first.ID, second.ID}})
	if second.State != jobs.Waiting || second.Why != "for job "+first.ID || second.Waits() {
		t.Fatalf("second is %s (%s)", second.State, second.Why)
	}
	if err := m.Start(t.Context(), second.ID, lend(1)); !errors.Is(err, jobs.ErrConflict) {
		t.Errorf("start of a waiting job: %v, want ErrConflict", err)
	}
	if err := m.Delete(t.Context(), first.ID); !errors.Is(err, jobs.ErrConflict) {
		t.Errorf("delete of a queued job: %v, want ErrConflict", err)
	}
	for _, id := range []string{first.ID, second.ID, third.ID} {
		untilState(t, m, id, jobs.Queued)
		if id == second.ID {
			if err := m.Delete(t.Context(), first.ID); !errors.Is(err, jobs.ErrConflict) {
				t.Errorf("delete of a job that others depend on: %v, want ErrConflict", err)
			}
		}
		start(t, m, id)
		untilState(t, m, id, jobs.Succeeded)
	}
	until(t, "the job that no unfinished one depends on to go", func() bool {
		err := m.Delete(t.Context(), first.ID)
		if err != nil && !errors.Is(err, jobs.ErrConflict) { // the last one's end is still being noted
			t.Fatal(err)
		}
		return err == nil
	})
}

func TestFailureOfADependencyPropagates(t *testing.T) {
	m, _ := newManager(t, t.TempDir(), jobs.Options{})
	a := with(t, m, "3", jobs.Terms{})
	b := with(t, m, "0", jobs.Terms{DependsOn: []string{a.ID}})
	c := with(t, m, "0", jobs.Terms{DependsOn: []string{b.ID}})
	d := with(t, m, "0", jobs.Terms{DependsOn: []string{b.ID}})
	if _, err := m.Pause(t.Context(), d.ID); err != nil {
		t.Fatal(err)
	}
	start(t, m, a.ID)
	for id, on := range map[string]string{b.ID: a.ID, c.ID: b.ID, d.ID: b.ID} {
		if j := untilEnd(t, m, id); j.State != jobs.Failed || j.Error != "depends on "+on+", which has failed" {
			t.Errorf("%s: %s, %q", id, j.State, j.Error)
		}
	}
	if _, err := m.Retry(t.Context(), b.ID); !errors.Is(err, jobs.ErrConflict) {
		t.Errorf("retry of what still cannot run: %v, want ErrConflict", err)
	}
	var bad *jobs.InvalidError
	if _, err := m.Submit(t.Context(), jobs.Job{Tenant: "t", Template: "0", Terms: jobs.Terms{DependsOn: []string{b.ID}}}); !errors.As(err, &bad) || bad.Param != "depends_on" {
		t.Errorf("job that depends on a failed one: %v", err)
	}
	if a, err := m.Retry(t.Context(), a.ID); err != nil || a.State != jobs.Queued || a.Error != "" || !a.Finished.IsZero() {
		t.Fatalf("retry: %+v, %v", a, err)
	}
	if b, err := m.Retry(t.Context(), b.ID); err != nil || b.State != jobs.Waiting {
		t.Errorf("retry of one whose dependency is tried again: %s, %v; want waiting", b.State, err)
	}
}

func TestIdempotency(t *testing.T) {
	m, _ := newManager(t, t.TempDir(), jobs.Options{})
	ask := func(tenant, key string, priority int) (jobs.Job, error) {
		return m.Submit(t.Context(), jobs.Job{Tenant: tenant, Template: "0", Priority: priority, Terms: jobs.Terms{Idempotency: key}})
	}
	ids := make([]string, 16)
	var all sync.WaitGroup
	for i := range ids { // all at the same moment
		all.Go(func() {
			j, err := ask("t", "k", 0)
			if err != nil {
				t.Error(err)
			}
			ids[i] = j.ID
		})
	}
	all.Wait()
	for _, id := range ids {
		if id != ids[0] || id == "" {
			t.Fatalf("one key made %v", ids)
		}
	}
	if _, err := ask("t", "k", -1); !errors.Is(err, jobs.ErrConflict) {
		t.Errorf("the key with another request: %v, want ErrConflict", err)
	}
	if j, err := ask("u", "k", 0); err != nil || j.ID == ids[0] {
		t.Errorf("another tenant's key: %s, %v", j.ID, err)
	}
	start(t, m, ids[0])
	untilState(t, m, ids[0], jobs.Succeeded)
	if j, err := ask("t", "k", 0); err != nil || j.ID != ids[0] || j.State != jobs.Succeeded {
		t.Errorf("the key after the job's end: %+v, %v", j, err)
	}
	if list, err := m.List(t.Context(), jobs.Filter{Tenant: "t"}); err != nil || len(list) != 1 {
		t.Errorf("%d jobs, %v; want 1", len(list), err)
	}
}

func TestRetries(t *testing.T) {
	m, _ := newManager(t, t.TempDir(), jobs.Options{JobRetry: jobs.Retry{First: time.Millisecond, Most: 2 * time.Millisecond}})
	for _, tpl := range []string{"3", "missing"} {
		j := with(t, m, tpl, jobs.Terms{Retries: 2})
		for range 3 {
			untilState(t, m, j.ID, jobs.Queued)
			if err := m.Start(t.Context(), j.ID, lend(1)); (err != nil) != (tpl == "missing") {
				t.Fatalf("start: %v", err)
			}
			until(t, "the end of the run", func() bool {
				now, err := m.Get(t.Context(), j.ID)
				return err == nil && (now.State == jobs.Waiting || now.State == jobs.Queued || now.State.Terminal())
			})
		}
		if j := untilEnd(t, m, j.ID); j.State != jobs.Failed || j.Tried != 2 || j.Error == "" {
			t.Errorf("%s: %s after %d retries: %s", tpl, j.State, j.Tried, j.Error)
		}
		list, err := m.Events(t.Context(), j.ID, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		var words []string
		for i, e := range list {
			words = append(words, e.Message)
			if e.Seq != i+1 || e.At.IsZero() || e.Level == "" {
				t.Errorf("event %+v", e)
			}
		}
		text := strings.Join(words, "\n")
		for _, want := range []string{"submitted, waits for a slice", "retry 1 of 2", "retry 2 of 2", "starts on g0/s0", "failed: "} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no event says %q:\n%s", tpl, want, text)
			}
		}
		if last, err := m.Events(t.Context(), j.ID, len(list)-1, 0); err != nil || len(last) != 1 || last[0].Level != jobs.LevelError {
			t.Errorf("last event %+v, %v", last, err)
		}
	}
}

// A job that is resumed before its pause has ended its run waits again, also if
// its program did not know the signal yet and died of it.
func TestResumeBeforeThePauseEnds(t *testing.T) {
	m, _ := newManager(t, t.TempDir(), jobs.Options{})
	j := submit(t, m, "train")
	start(t, m, j.ID)
	if _, err := m.Pause(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	if r, err := m.Resume(t.Context(), j.ID); err != nil {
		t.Fatalf("resume: %s, %v", r.State, err)
	}
	untilState(t, m, j.ID, jobs.Queued)
}

func TestPauseAndResume(t *testing.T) {
	dir := t.TempDir()
	m, stop := newManager(t, dir, jobs.Options{})
	j := submit(t, m, "train")
	if p, err := m.Pause(t.Context(), j.ID); err != nil || p.State != jobs.Paused {
		t.Fatalf("pause of a queued job: %s, %v", p.State, err)
	}
	if _, err := m.Pause(t.Context(), j.ID); err != nil {
		t.Errorf("pause twice: %v", err)
	}
	if err := m.Start(t.Context(), j.ID, lend(1)); !errors.Is(err, jobs.ErrConflict) {
		t.Errorf("start of a paused job: %v, want ErrConflict", err)
	}
	if r, err := m.Resume(t.Context(), j.ID); err != nil || r.State != jobs.Queued {
		t.Fatalf("resume: %s, %v", r.State, err)
	}
	if _, err := m.Resume(t.Context(), j.ID); !errors.Is(err, jobs.ErrConflict) {
		t.Errorf("resume of a queued job: %v, want ErrConflict", err)
	}
	start(t, m, j.ID)
	until(t, "some steps", func() bool {
		now, err := m.Get(t.Context(), j.ID)
		return err == nil && now.Progress.Done > 30
	})
	if p, err := m.Pause(t.Context(), j.ID); err != nil || p.Pausing.IsZero() && p.State != jobs.Paused {
		t.Fatalf("pause of a running job: %+v, %v", p, err)
	}
	p := untilState(t, m, j.ID, jobs.Paused)
	if p.Progress.Checkpoint == "" || p.Slices != nil || !p.Pausing.IsZero() || p.Ran <= 0 {
		t.Fatalf("paused with %+v", p)
	}
	stop() // a pause survives a restart
	m, _ = newManager(t, dir, jobs.Options{})
	untilState(t, m, j.ID, jobs.Paused)
	if _, err := m.Resume(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	start(t, m, j.ID)
	if got := untilState(t, m, j.ID, jobs.Succeeded); got.Progress.Result != wholeRun(t) || got.Progress.Resumes == 0 {
		t.Errorf("result %s after %d resumes, want that of a whole run", got.Progress.Result, got.Progress.Resumes)
	}
	for name, do := range map[string]func(context.Context, string) (jobs.Job, error){"pause": m.Pause, "resume": m.Resume, "cancel": m.Cancel} {
		if _, err := do(t.Context(), j.ID); !errors.Is(err, jobs.ErrFinished) {
			t.Errorf("%s after the end: %v, want ErrFinished", name, err)
		}
		if _, err := do(t.Context(), "job_nobody"); !errors.Is(err, jobs.ErrNotFound) {
			t.Errorf("%s of nobody: %v, want ErrNotFound", name, err)
		}
	}
}

func TestTimesOfAJob(t *testing.T) {
	m, _ := newManager(t, t.TempDir(), jobs.Options{})
	const ahead = 3 * time.Second // a submit may take a while
	soon := with(t, m, "0", jobs.Terms{NotBefore: time.Now().Add(ahead)})
	late := with(t, m, "0", jobs.Terms{Deadline: time.Now().Add(ahead)})
	if soon.State != jobs.Waiting || !strings.HasPrefix(soon.Why, "for 2") {
		t.Errorf("early job is %s (%s)", soon.State, soon.Why)
	}
	untilState(t, m, soon.ID, jobs.Queued)
	if j := untilEnd(t, m, late.ID); j.State != jobs.Expired || !strings.Contains(j.Error, "deadline") {
		t.Errorf("job that nobody started: %s, %q", j.State, j.Error)
	}
	if j, err := m.Cancel(t.Context(), with(t, m, "0", jobs.Terms{NotBefore: time.Now().Add(time.Hour)}).ID); err != nil || j.State != jobs.Cancelled {
		t.Errorf("cancel of a waiting job: %s, %v", j.State, err)
	}
}

func TestTermsAreBounded(t *testing.T) {
	train := template("train", time.Second)
	train.KeepFor, train.Limits = time.Hour, jobs.Limits{CPUs: 2, Memory: 100, RunTime: time.Hour}
	train.MinWidth, train.MaxWidth = 1, 2
	m, _ := newManager(t, t.TempDir(), jobs.Options{Templates: []jobs.Template{train}})
	other, err := m.Submit(t.Context(), jobs.Job{Tenant: "other", Template: "train"})
	if err != nil {
		t.Fatal(err)
	}
	many := make([]string, 33)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	for param, j := range map[string]jobs.Job{
		"depends_on":         {Terms: jobs.Terms{DependsOn: many}},
		"depends_on ":        {Terms: jobs.Terms{DependsOn: []string{"job_nobody"}}},
		"depends_on  ":       {Terms: jobs.Terms{DependsOn: []string{other.ID}}},
		"depends_on   ":      {Terms: jobs.Terms{DependsOn: []string{other.ID, other.ID}}},
		"retries":            {Terms: jobs.Terms{Retries: 11}},
		"keep_for_seconds":   {Terms: jobs.Terms{KeepFor: 2 * time.Hour}},
		"deadline":           {Terms: jobs.Terms{Deadline: time.Now().Add(-time.Second)}},
		"deadline ":          {Terms: jobs.Terms{Deadline: time.Now().AddDate(2, 0, 0)}},
		"not_before":         {Terms: jobs.Terms{NotBefore: time.Now().Add(2 * time.Hour), Deadline: time.Now().Add(time.Hour)}},
		"not_before ":        {Terms: jobs.Terms{NotBefore: time.Now().AddDate(2, 0, 0)}},
		"grace_seconds":      {Grace: 2 * time.Second},
		"priority":           {Priority: 1},
		"width":              {MaxWidth: 3},
		"limits.cpus":        {Terms: jobs.Terms{Limits: jobs.Limits{CPUs: 3}}},
		"limits.memory":      {Terms: jobs.Terms{Limits: jobs.Limits{Memory: 101}}},
		"limits":             {Terms: jobs.Terms{Limits: jobs.Limits{Disk: -1}}},
		"limits.run_seconds": {Terms: jobs.Terms{Limits: jobs.Limits{RunTime: 2 * time.Hour}}},
		"name":               {Terms: jobs.Terms{Name: strings.Repeat("n", 257)}},
		"idempotency_key":    {Terms: jobs.Terms{Idempotency: strings.Repeat("n", 257)}},
	} {
		j.Tenant, j.Template = "t", "train"
		var bad *jobs.InvalidError
		if _, err := m.Submit(t.Context(), j); !errors.As(err, &bad) || bad.Param != strings.TrimSpace(param) {
			t.Errorf("%+v: %v, want one about %s", j, err, param)
		}
	}
	j, err := m.Submit(t.Context(), jobs.Job{Tenant: "t", Template: "train", Terms: jobs.Terms{Limits: jobs.Limits{CPUs: 1}}})
	if err != nil || j.Limits != (jobs.Limits{CPUs: 1, Memory: 100, RunTime: time.Hour}) || j.KeepFor != time.Hour || j.MaxWidth != 2 {
		t.Errorf("filled in as %+v, %v", j, err)
	}
	// A template that says nothing of its width is for one slice.
	narrow, _ := newManager(t, t.TempDir(), jobs.Options{Templates: []jobs.Template{template("train", time.Second)}})
	for _, j := range []jobs.Job{{MinWidth: 2}, {MaxWidth: 2}} {
		j.Template = "train"
		var bad *jobs.InvalidError
		if _, err := narrow.Submit(t.Context(), j); !errors.As(err, &bad) || bad.Param != "width" {
			t.Errorf("%d to %d slices: %v, want the width refused", j.MinWidth, j.MaxWidth, err)
		}
	}
}

func TestSweep(t *testing.T) {
	dir := t.TempDir()
	m, stop := newManager(t, dir, jobs.Options{})
	old, young := with(t, m, "show", jobs.Terms{KeepFor: time.Minute}), with(t, m, "0", jobs.Terms{})
	base := with(t, m, "0", jobs.Terms{KeepFor: time.Minute})
	user := with(t, m, "0", jobs.Terms{DependsOn: []string{base.ID}})
	for _, id := range []string{old.ID, young.ID, base.ID} {
		start(t, m, id)
		untilState(t, m, id, jobs.Succeeded)
	}
	untilState(t, m, user.ID, jobs.Queued)
	if err := os.MkdirAll(m.OutputDir(old.ID), 0o700); err != nil {
		t.Fatal(err)
	}
	places := func(id string) (left []string) {
		for _, p := range []string{"checkpoints/" + id, "outputs/" + id, "logs/" + id + ".log"} {
			if _, err := os.Stat(filepath.Join(dir, p)); err == nil {
				left = append(left, p)
			}
		}
		return left
	}
	if got := places(old.ID); len(got) != 3 {
		t.Fatalf("kept while it is young: %v, want three places", got)
	}
	sweep := func(ahead time.Duration) {
		t.Helper()
		if err := m.Sweep(t.Context(), time.Now().Add(ahead)); err != nil && !errors.Is(err, jobs.ErrConflict) {
			t.Fatal(err)
		}
	}
	sweep(50 * time.Second)
	if _, err := m.Get(t.Context(), old.ID); err != nil {
		t.Errorf("swept before its time: %v", err)
	}
	sweep(2 * time.Minute)
	if _, err := m.Get(t.Context(), old.ID); !errors.Is(err, jobs.ErrNotFound) || len(places(old.ID)) > 0 {
		t.Errorf("after its time: %v, left %v", err, places(old.ID))
	}
	if list, err := m.Events(t.Context(), old.ID, 0, 0); !errors.Is(err, jobs.ErrNotFound) {
		t.Errorf("events after its time: %v, %v", list, err)
	}
	for _, id := range []string{young.ID, base.ID, user.ID} {
		if _, err := m.Get(t.Context(), id); err != nil {
			t.Errorf("%s: %v; it is young, depended on or unfinished", id, err)
		}
	}
	if _, err := m.Cancel(t.Context(), user.ID); err != nil {
		t.Fatal(err)
	}
	sweep(8 * 24 * time.Hour)
	if list, err := m.List(t.Context(), jobs.Filter{}); err != nil || len(list) != 0 {
		t.Errorf("%d jobs are left, %v", len(list), err)
	}
	stop()
}

// A store can come to hold what this program would not make: a circle, a job
// that depends on nothing known, one that was due while nobody was there.
func TestOpenPutsWaitingJobsRight(t *testing.T) {
	dir := t.TempDir()
	store, err := boltstore.Open(filepath.Join(dir, "jobs.db"))
	if err != nil {
		t.Fatal(err)
	}
	past := time.Now().Add(-time.Hour)
	for _, j := range []jobs.Job{
		{ID: "job_a", State: jobs.Waiting, Terms: jobs.Terms{DependsOn: []string{"job_b"}}},
		{ID: "job_b", State: jobs.Waiting, Terms: jobs.Terms{DependsOn: []string{"job_a"}}},
		{ID: "job_c", State: jobs.Waiting, Terms: jobs.Terms{DependsOn: []string{"job_gone"}}},
		{ID: "job_d", State: jobs.Waiting, Terms: jobs.Terms{NotBefore: past}},
		{ID: "job_e", State: jobs.Queued, Terms: jobs.Terms{Deadline: past}},
		{ID: "job_f", State: jobs.Waiting, Times: jobs.Times{RetryAt: past}},
		{ID: "job_g", State: jobs.Running, Times: jobs.Times{Pausing: past, Started: past}},
	} {
		j.Kind, j.Command, j.Created = jobs.KindTrain, []string{"x"}, past
		if err := store.Put(t.Context(), &j); err != nil {
			t.Fatal(err)
		}
	}
	store.Close()
	m, _ := newManager(t, dir, jobs.Options{})
	for id, want := range map[string]struct {
		state jobs.State
		why   string
	}{
		"job_a": {jobs.Failed, "depends on itself"}, "job_b": {jobs.Failed, "depends on itself"},
		"job_c": {jobs.Failed, "not there any more"}, "job_d": {jobs.Queued, ""}, "job_e": {jobs.Expired, "deadline"},
		"job_f": {jobs.Queued, ""}, "job_g": {jobs.Paused, ""},
	} {
		if j := untilState(t, m, id, want.state); !strings.Contains(j.Error, want.why) {
			t.Errorf("%s: %q, want something about %q", id, j.Error, want.why)
		}
	}
}

// often is a schedule of a template, due every step.
func often(name, tpl string, step time.Duration, overlap bool) jobs.Schedule {
	return jobs.Schedule{
		Name: name, Spec: step.String(), Template: tpl, Tenant: "t", Overlap: overlap,
		Next: func(after time.Time) time.Time { return after.Truncate(step).Add(step) },
	}
}

func TestSchedules(t *testing.T) {
	t.Run("stopped", func(t *testing.T) { schedules(t, false) })
	t.Run("killed between a job and its note", func(t *testing.T) { schedules(t, true) })
}

func schedules(t *testing.T, killed bool) {
	dir := t.TempDir()
	step := 50 * time.Millisecond
	store := &faulty{}
	o := jobs.Options{Store: store, Schedules: []jobs.Schedule{often("single", "0", step, false), often("many", "0", step, true)}}
	m, stop := newManager(t, dir, o)
	of := func(name string) (list []jobs.Job) {
		all, err := m.List(t.Context(), jobs.Filter{Tenant: "t"})
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range all {
			if j.Schedule == name {
				list = append(list, j)
			}
		}
		return list
	}
	until(t, "three overlapping runs", func() bool { return len(of("many")) >= 3 })
	first := of("single")
	if len(first) != 1 || first[0].Name != "single" || first[0].Template != "0" {
		t.Fatalf("%d unfinished jobs of a schedule that allows one: %+v", len(first), first)
	}
	until(t, "the note of a run left out", func() bool {
		list, err := m.Events(t.Context(), first[0].ID, 0, 0)
		return err == nil && len(list) > 1 && list[1].Kind == "schedule"
	})
	start(t, m, first[0].ID)
	until(t, "the next run", func() bool { return len(of("single")) == 2 })
	if bad := m.SetSchedules([]jobs.Schedule{often("x", "nothing", step, true)}); bad == nil {
		t.Error("a schedule of no template was taken")
	}
	if runs := len(of("many")); killed {
		store.noNote.Store(true)
		until(t, "a job that is not noted", func() bool { return len(of("many")) > runs })
	}
	stop()
	store.noNote.Store(false)
	before := len(stored(t, dir))
	time.Sleep(4 * step) // runs are missed: that is what is tested
	o.Schedules = []jobs.Schedule{often("many", "0", step, true)}
	end := time.Now()
	o.Schedules[0].Next = func(after time.Time) time.Time { // not due again
		if next := after.Truncate(step).Add(step); next.Before(end) {
			return next
		}
		return time.Time{}
	}
	m, _ = newManager(t, dir, o)
	until(t, "the run that makes up for the missed", func() bool { return len(of("many"))+len(of("single")) == before+1 })
}

// stored lists the jobs of a store that nobody has open.
func stored(t *testing.T, dir string) []jobs.Job {
	t.Helper()
	store, err := boltstore.Open(filepath.Join(dir, "jobs.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	list, err := store.List(t.Context(), jobs.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	return list
}
