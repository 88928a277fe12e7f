package jobs_test

import (
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"aloft/jobs"
	"aloft/jobs/boltstore"
)

const leftJobs = 10_000 // as many as may be unfinished by default

// leave stores what a server that died left behind: most jobs queued, one in ten
// running, some being preempted or cancelled, over a thousand that had ended.
func leave(tb testing.TB, dir string) {
	tb.Helper()
	s, err := boltstore.Open(filepath.Join(dir, "jobs.db"))
	if err != nil {
		tb.Fatal(err)
	}
	defer s.Close()
	var writers sync.WaitGroup
	const at = 500
	for w := range at {
		writers.Go(func() {
			for i := w; i < leftJobs+1000; i += at {
				j := jobs.Job{ID: fmt.Sprintf("job_%032d", i), Kind: jobs.KindTrain, State: jobs.Queued, Command: []string{"true"},
					Times: jobs.Times{Created: time.Unix(int64(i), 0)}, Slices: []string{"g0/s0"}}
				switch {
				case i >= leftJobs:
					j.State = jobs.Succeeded
				case i%10 == 1:
					j.State = jobs.Running
				case i%100 == 2:
					j.State = jobs.Preempting
				case i%100 == 3:
					j.State, j.Cancelling = jobs.Running, time.Unix(1, 0)
				}
				if err := s.Put(tb.Context(), &j); err != nil {
					tb.Error(err)
					return
				}
			}
		})
	}
	writers.Wait()
}

// After a crash every job is where it belongs: queued again, cancelled as was
// asked, or as it had ended.
func TestRecoverTenThousand(t *testing.T) {
	dir := t.TempDir()
	leave(t, dir)
	began := time.Now()
	m, _ := newManager(t, dir, jobs.Options{})
	t.Logf("%d unfinished jobs recovered in %v", leftJobs, time.Since(began)) // the mark is bench-jobs'
	for state, want := range map[jobs.State]int{jobs.Queued: leftJobs - leftJobs/100, jobs.Cancelled: leftJobs / 100, jobs.Succeeded: 1000, jobs.Running: 0, jobs.Preempting: 0} {
		list, err := m.List(t.Context(), jobs.Filter{States: []jobs.State{state}})
		if err != nil || len(list) != want {
			t.Errorf("%d jobs %s, want %d (%v)", len(list), state, want, err)
		}
		for _, j := range list {
			if j.State == jobs.Queued && j.Version > 1 && len(j.Slices) > 0 {
				t.Fatalf("%s is queued and holds %v", j.ID, j.Slices)
			}
		}
	}
	if _, err := m.Submit(t.Context(), jobs.Job{Template: "0"}); err != nil {
		t.Errorf("submit after it: %v", err) // the cancelled ones made room
	}
}
