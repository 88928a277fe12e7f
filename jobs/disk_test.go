//go:build linux

package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"aloft/jobs"
)

// faulty is a store whose writes fail while it is told to.
type faulty struct {
	jobs.Store
	fails  atomic.Bool
	failed atomic.Int32
	noNote atomic.Bool // where a schedule stands is not stored
}

var errStore = errors.New("the store is out of order")

func (f *faulty) Put(ctx context.Context, j *jobs.Job, events ...jobs.Event) error {
	if f.fails.Load() {
		f.failed.Add(1)
		return errStore
	}
	return f.Store.Put(ctx, j, events...)
}

func (f *faulty) PutSchedule(ctx context.Context, st jobs.ScheduleState) error {
	if f.noNote.Load() {
		return errStore
	}
	return f.Store.PutSchedule(ctx, st)
}

// says waits until a batch's job tells what it suffers, while it stays open.
func says(t *testing.T, m *jobs.Manager, id, what string) {
	t.Helper()
	var j jobs.Job
	until(t, "the batch to say: "+what, func() bool {
		var err error
		if j, err = m.Get(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if j.State.Terminal() {
			t.Fatalf("the batch is over: %s %s %+v", j.State, j.Error, j.Batch.Counts)
		}
		return strings.Contains(j.Error, what)
	})
	list, err := m.List(t.Context(), jobs.Filter{})
	if err != nil || !slices.ContainsFunc(list, func(l jobs.Job) bool { return l.ID == id && strings.Contains(l.Error, what) }) {
		t.Errorf("the list does not say it: %v", err)
	}
}

// replies makes a caller whose answers have so many bytes.
func replies(bytes int) jobs.Caller {
	body := []byte(`{"data":"` + strings.Repeat("x", bytes) + `"}`)
	return caller(func(context.Context, jobs.Row) (jobs.Result, error) {
		time.Sleep(time.Millisecond)
		return jobs.Result{Status: 200, Body: body}, nil
	})
}

// finishes waits for a batch's end and looks at its rows.
func finishes(t *testing.T, m *jobs.Manager, id string, rows int) {
	t.Helper()
	b := untilBatch(t, m, id, ended)
	if good, _ := outputs(t, m, b, rows); b.Status != jobs.Completed || len(good) != rows {
		t.Errorf("ended %s with %d rows: %+v", b.Status, len(good), b.Errors)
	}
	if j, err := m.Get(t.Context(), id); err != nil || j.State != jobs.Succeeded || j.Error != "" {
		t.Errorf("the job is %s, %q (%v)", j.State, j.Error, err)
	}
}

// A disk that is full under everything: store, rows, blobs. Batches wait and say
// why, a submit is refused, and when there is room again all goes on; nothing
// that was answered is lost.
func TestDiskFull(t *testing.T) {
	const rows = 300 // of 20 kB: 6 MB of output, and once more as a file
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Skipf("a small file system cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	m, stop := newManager(t, dir, jobs.Options{Caller: replies(20_000)})
	kept := submit(t, m, "0")
	b, err := createBatch(m, rowsFile(rows), "24h")
	if err != nil {
		t.Fatal(err)
	}
	says(t, m, b.ID, "no space left on device")
	var refused error
	for i := 0; refused == nil; i++ { // the store has some room within its file
		if i > 20_000 {
			t.Fatal("submits never fail")
		}
		_, refused = m.Submit(t.Context(), jobs.Job{Template: "0", Params: map[string]string{}, Terms: jobs.Terms{Name: strings.Repeat("n", 100)}})
	}
	if !strings.Contains(refused.Error(), "no space left") && !strings.Contains(refused.Error(), "unfinished jobs") {
		t.Errorf("a submit was refused with %v", refused)
	}
	before := untilBatch(t, m, b.ID, func(jobs.Batch) bool { return true })
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, "size=256m"); err != nil {
		t.Fatal(err)
	}
	finishes(t, m, b.ID, rows)
	if j, err := m.Get(t.Context(), kept.ID); err != nil || j.State != jobs.Queued {
		t.Errorf("the job from before is %s (%v)", j.State, err)
	}
	events, err := m.Events(t.Context(), b.ID, 0, 0)
	if err != nil || !strings.Contains(fmt.Sprint(events), "goes on") {
		t.Errorf("no event says that it goes on: %v, %v", events, err)
	}
	if before.Counts.Completed == rows {
		t.Error("the disk was never full for the rows")
	}
	stop() // before the unmount
}

// A store that fails for a while: the batch says so and loses no row, a trainer's
// end is stored once it can be, and a submit that was refused left nothing.
func TestStoreError(t *testing.T) {
	store := &faulty{}
	var release atomic.Bool
	m, _ := newManager(t, t.TempDir(), jobs.Options{Store: store, Caller: caller(func(ctx context.Context, r jobs.Row) (jobs.Result, error) {
		for !release.Load() && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		return answer(ctx, r)
	})})
	const rows = 200
	b, err := createBatch(m, rowsFile(rows), "24h")
	if err != nil {
		t.Fatal(err)
	}
	j := submit(t, m, "train")
	if err := m.Start(t.Context(), j.ID, lend(1)); err != nil {
		t.Fatal(err)
	}
	untilBatch(t, m, b.ID, func(b jobs.Batch) bool { return b.Status == jobs.InProgress })
	store.fails.Store(true)
	release.Store(true)
	says(t, m, b.ID, errStore.Error())
	if _, err := m.Submit(t.Context(), jobs.Job{Template: "0"}); !errors.Is(err, errStore) {
		t.Errorf("submit: %v, want the store's error", err)
	}
	if list, err := m.List(t.Context(), jobs.Filter{}); err != nil || len(list) != 2 {
		t.Errorf("%d jobs (%v), want the two from before", len(list), err)
	}
	until(t, "more writes to fail", func() bool { return store.failed.Load() > 5 })
	store.fails.Store(false)
	finishes(t, m, b.ID, rows)
	if got := untilState(t, m, j.ID, jobs.Succeeded); got.Progress.Result != wholeRun(t) {
		t.Errorf("the training ended with %+v", got.Progress)
	}
}

// A template that is broken or gone: what was submitted keeps the command that it
// was filled in with, what comes is refused by name, and a program that is not
// there fails its job with a sentence.
func TestTemplateBroken(t *testing.T) {
	m, _ := newManager(t, t.TempDir(), jobs.Options{})
	j := submit(t, m, "train")
	if err := m.SetTemplates([]jobs.Template{{Name: "train", Kind: jobs.KindTrain, Command: []string{"/nonexistent/{steps}"}}}); err == nil || !strings.Contains(err.Error(), "{steps}") {
		t.Errorf("a template with an unknown parameter: %v", err)
	}
	if err := m.SetTemplates([]jobs.Template{template("train", 0, "1"), {Name: "gone", Kind: jobs.KindTrain, Command: []string{"/nonexistent/program"}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Submit(t.Context(), jobs.Job{Template: "show"}); err == nil || !strings.Contains(err.Error(), `no template "show"`) {
		t.Errorf("submit by a template that is gone: %v", err)
	}
	gone := submit(t, m, "gone")
	if err := m.Start(t.Context(), gone.ID, lend(1)); err == nil {
		t.Error("a program that does not exist was started")
	}
	if got := untilState(t, m, gone.ID, jobs.Failed); !strings.Contains(got.Error, "/nonexistent/program") {
		t.Errorf("failed with %q", got.Error)
	}
	if err := m.Start(t.Context(), j.ID, lend(1)); err != nil {
		t.Fatal(err)
	}
	if got := untilState(t, m, j.ID, jobs.Succeeded); got.Progress.Result != wholeRun(t) {
		t.Errorf("the training of the old template ended with %+v", got.Progress)
	}
}
