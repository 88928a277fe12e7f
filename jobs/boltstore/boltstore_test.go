package boltstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"aloft/jobs"
	"aloft/jobs/storesuite"
)

func open(t *testing.T, place string) storesuite.Store {
	t.Helper()
	s, err := Open(filepath.Join(place, "jobs.db"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSuite(t *testing.T) { storesuite.Run(t, open) }

func TestOpenRefuses(t *testing.T) {
	place := t.TempDir()
	s := open(t, place)
	defer s.Close()
	if _, err := Open(filepath.Join(place, "jobs.db")); err == nil || !strings.Contains(err.Error(), "another aloft") {
		t.Errorf("second open: %v", err)
	}
	junk := filepath.Join(place, "junk.db")
	if err := os.WriteFile(junk, []byte(strings.Repeat("no database ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(junk); err == nil || !strings.Contains(err.Error(), junk) {
		t.Errorf("open of junk: %v", err)
	}
}

func TestNewerIsRefused(t *testing.T) {
	place := t.TempDir()
	s := open(t, place).(*Store)
	put := func(bucket, key, value []byte) {
		t.Helper()
		if err := s.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucket).Put(key, value) }); err != nil {
			t.Fatal(err)
		}
	}
	put(jobsBucket, []byte("j"), append([]byte{schema + 1}, "{}"...))
	if _, err := s.Get(t.Context(), "j"); err == nil || !strings.Contains(err.Error(), "schema 3") {
		t.Errorf("get of a newer record: %v", err)
	}
	put(metaBucket, versionKey, []byte("3"))
	s.Close()
	path := filepath.Join(place, "jobs.db")
	for range 2 { // refusing leaves it as it was
		if _, err := Open(path); err == nil || !strings.Contains(err.Error(), "version 3, this aloft knows 2") {
			t.Errorf("open of a newer store: %v", err)
		}
	}
}

// version1 makes a store as version 1 wrote it.
func version1(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "version1.txt"))
	if err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n")[1:] {
			var bucket, key, value string
			if _, err := fmt.Sscanf(line, "%s %q %q", &bucket, &key, &value); err != nil {
				return fmt.Errorf("%s: %w", line, err)
			}
			b, err := tx.CreateBucketIfNotExists([]byte(bucket))
			if err != nil {
				return err
			}
			if err := b.Put([]byte(key), []byte(value)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestVersion1IsMigrated(t *testing.T) {
	place := t.TempDir()
	path := filepath.Join(place, "jobs.db")
	version1(t, path)
	for range 2 { // the second time it is version 2 already
		s := open(t, place).(*Store)
		list, err := s.List(t.Context(), jobs.Filter{})
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, j := range list {
			ids = append(ids, j.ID)
			if kept := !j.KeptUntil.IsZero(); kept != j.State.Terminal() || kept && time.Until(j.KeptUntil) < 6*24*time.Hour {
				t.Errorf("%s, which is %s, is kept until %v", j.ID, j.State, j.KeptUntil)
			}
		}
		if got := fmt.Sprint(ids); got != "[batch_e batch_d job_c job_b job_a]" {
			t.Errorf("jobs %s", got)
		}
		a, err := s.Get(t.Context(), "job_a")
		if err != nil || a.Progress.Checkpoint != "/data/checkpoints/job_a/120" || a.Preemptions != 2 || a.Error == "" || a.State != jobs.Running {
			t.Errorf("running job read as %+v, %v", a, err)
		}
		if f, err := s.File(t.Context(), "file-in"); err != nil || f.Bytes != 77 {
			t.Errorf("file read as %+v, %v", f, err)
		}
		gone, err := s.List(t.Context(), jobs.Filter{Removable: time.Now().Add(8 * 24 * time.Hour)})
		if err != nil || len(gone) != 2 {
			t.Errorf("%d jobs removable in eight days, %v; want the 2 finished ones", len(gone), err)
		}
		err = s.db.View(func(tx *bbolt.Tx) error {
			return tx.Bucket(jobsBucket).ForEach(func(k, v []byte) error {
				if v[0] != schema {
					t.Errorf("record %s has schema %d", k, v[0])
				}
				return nil
			})
		})
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
	}
}

// TestMigrationInChunks has more records than one chunk, none lost or skipped.
func TestMigrationInChunks(t *testing.T) {
	place := t.TempDir()
	s := open(t, place).(*Store)
	const n = 2*migrateChunk + 1
	err := s.db.Update(func(tx *bbolt.Tx) error {
		for i := range n {
			id := fmt.Sprintf("job_%05d", i)
			if err := tx.Bucket(jobsBucket).Put([]byte(id), []byte("\x01"+`{"ID":"`+id+`","State":"failed","Version":1}`)); err != nil {
				return err
			}
		}
		return errors.Join(tx.Bucket(metaBucket).Delete(versionKey), tx.Bucket(metaBucket).Delete(indexKey))
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	s = open(t, place).(*Store)
	defer s.Close()
	if list, err := s.List(t.Context(), jobs.Filter{Removable: time.Now().Add(8 * 24 * time.Hour)}); err != nil || len(list) != n {
		t.Errorf("%d jobs migrated, %v; want %d", len(list), err, n)
	}
}

// A file of schema 1 had no stamps and other indexes.
func TestOlderFileIsIndexedAnew(t *testing.T) {
	place := t.TempDir()
	db, err := bbolt.Open(filepath.Join(place, "jobs.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, name := range []string{"jobs", "jobs_age", "jobs_state", "files", "files_age"} {
			if _, err := tx.CreateBucket([]byte(name)); err != nil {
				return err
			}
		}
		for i, state := range []jobs.State{jobs.Queued, jobs.Failed} {
			j := jobs.Job{ID: fmt.Sprintf("j%d", i), Tenant: "red", Kind: jobs.KindTrain, State: state, Times: jobs.Times{Created: time.Unix(int64(i), 0)}, Version: 3}
			text, err := json.Marshal(j)
			if err != nil {
				return err
			}
			if err := tx.Bucket(jobsBucket).Put([]byte(j.ID), append([]byte{1}, text...)); err != nil {
				return err
			}
			if err := tx.Bucket([]byte("jobs_age")).Put([]byte("what was there"), nil); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second finds it up to date
		s := open(t, place)
		for _, f := range []jobs.Filter{{}, {Tenant: "red"}, {Kind: jobs.KindTrain}} {
			if list, err := s.List(t.Context(), f); err != nil || len(list) != 2 || list[0].ID != "j1" {
				t.Errorf("list %+v: %v, %v", f, list, err)
			}
		}
		list, err := s.List(t.Context(), jobs.Filter{States: []jobs.State{jobs.Queued}})
		if err != nil || len(list) != 1 {
			t.Fatalf("list of queued jobs: %v, %v", list, err)
		}
		before := list[0].Version
		if err := s.Put(t.Context(), &list[0]); err != nil || list[0].Version != before+1 {
			t.Errorf("put of an older record: %v, version %d", err, list[0].Version)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// What was decoded once is not given out after it has changed, and what a caller
// does to a listed job stays with the caller.
func TestListsOfUnfinishedJobsAreFresh(t *testing.T) {
	s := open(t, t.TempDir()).(*Store)
	defer s.Close()
	j := jobs.Job{ID: "j", State: jobs.Queued, Batch: &jobs.Batch{Status: jobs.InProgress}}
	for i := range 3 {
		j.Preemptions, j.Batch.Counts.Completed = i, i
		if err := s.Put(t.Context(), &j); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			list, err := s.List(t.Context(), jobs.Filter{States: []jobs.State{jobs.Queued}})
			if err != nil || len(list) != 1 || list[0].Preemptions != i || list[0].Batch.Counts.Completed != i || list[0].Version != uint64(i+1) {
				t.Fatalf("after %d changes: %+v, %v", i, list, err)
			}
			list[0].Preemptions, list[0].Batch.Counts.Completed = 99, 99
		}
	}
	if len(s.live.jobs) != 1 {
		t.Errorf("%d jobs kept decoded, want 1", len(s.live.jobs))
	}
	j.State = jobs.Failed
	if err := s.Put(t.Context(), &j); err != nil {
		t.Fatal(err)
	}
	if len(s.live.jobs) != 0 {
		t.Errorf("%d jobs kept decoded after their end", len(s.live.jobs))
	}
}

// A write that fails takes no other with it, and writes after the end are told so.
func TestWritesThatShareACommit(t *testing.T) {
	s := open(t, t.TempDir()).(*Store)
	var writers sync.WaitGroup
	for i := range 64 {
		writers.Go(func() {
			if i%8 == 3 {
				bad := errors.New("no")
				if err := s.update(func(tx *bbolt.Tx) error {
					return errors.Join(bad, tx.Bucket(fileBucket).Put([]byte(fmt.Sprint(i)), []byte("half")))
				}); !errors.Is(err, bad) {
					t.Errorf("write %d: %v, want its own error", i, err)
				}
				return
			}
			j := jobs.Job{ID: fmt.Sprint(i), State: jobs.Queued}
			if err := s.Put(t.Context(), &j); err != nil {
				t.Errorf("write %d: %v", i, err)
			}
		})
	}
	writers.Wait()
	if list, err := s.List(t.Context(), jobs.Filter{}); err != nil || len(list) != 56 {
		t.Errorf("%d jobs, %v; want 56", len(list), err)
	}
	if f, err := s.File(t.Context(), "3"); !errors.Is(err, jobs.ErrNotFound) {
		t.Errorf("half a change was kept: %+v, %v", f, err)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if err := s.Put(t.Context(), &jobs.Job{ID: "late"}); !errors.Is(err, errClosed) {
		t.Errorf("put after close: %v, want errClosed", err)
	}
}

// fill stores n jobs of ten tenants in few commits: one in ten is unfinished,
// and one in a thousand a batch.
func fill(tb testing.TB, s *Store, n int) {
	tb.Helper()
	began := time.Unix(1e9, 0)
	for from := 0; from < n; from += 10_000 {
		err := s.db.Update(func(tx *bbolt.Tx) error {
			for i := from; i < min(n, from+10_000); i++ {
				j := jobs.Job{ID: fmt.Sprintf("job_%032d", i), Tenant: fmt.Sprintf("team-%d", i%7), Kind: jobs.KindTrain, State: jobs.Succeeded,
					Template: "train", Params: map[string]string{"steps": "1000", "seed": fmt.Sprint(i)}, Grace: 5 * time.Second,
					Command: []string{"/usr/bin/aloft", "train", "--steps", "1000", "--seed", fmt.Sprint(i)},
					Times:   jobs.Times{Created: began.Add(time.Duration(i) * time.Second)}, Version: 1}
				switch {
				case i%1000 == 3:
					j.Kind, j.Batch = jobs.KindBatch, &jobs.Batch{ID: j.ID, Status: jobs.Completed, Endpoint: "/v1/embeddings"}
				case i%10 == 5:
					j.State = jobs.Queued
				case i%500 == 1:
					j.State = jobs.Failed
				}
				value, err := encode(j)
				if err != nil {
					return err
				}
				now := indexedOf(&j)
				if err := errors.Join(put(tx.Bucket(jobsBucket), j.ID, value), reindex(tx, indexed{}, now)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			tb.Fatal(err)
		}
	}
}

// BenchmarkList is a page of what users and the arbiter ask for, of 100,000 jobs.
func BenchmarkList(b *testing.B) {
	s, err := Open(filepath.Join(b.TempDir(), "jobs.db"))
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	fill(b, s, 100_000)
	waiting := []jobs.State{jobs.Queued, jobs.Starting, jobs.Running, jobs.Preempting}
	for _, c := range []struct {
		name string
		f    jobs.Filter
	}{
		{"all", jobs.Filter{Limit: 100}},
		{"tenant", jobs.Filter{Limit: 100, Tenant: "team-3"}},
		{"tenants-batches", jobs.Filter{Limit: 100, Tenant: "team-3", Kind: jobs.KindBatch}},
		{"tenants-failed", jobs.Filter{Limit: 100, Tenant: "team-3", States: []jobs.State{jobs.Failed}}},
		{"batches", jobs.Filter{Limit: 200, Kind: jobs.KindBatch}},
		{"failed-batches", jobs.Filter{Limit: 100, Kind: jobs.KindBatch, States: []jobs.State{jobs.Failed}}},
		{"failed-sessions", jobs.Filter{Limit: 100, Kind: jobs.KindSession, Tenant: "team-3", States: []jobs.State{jobs.Failed}}},
		{"succeeded-evaluate", jobs.Filter{Limit: 100, Kind: jobs.KindEvaluate, States: []jobs.State{jobs.Succeeded}}},
		{"unfinished-10000", jobs.Filter{States: waiting}},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				if _, err := s.List(b.Context(), c.f); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkPut(b *testing.B) {
	s, err := Open(filepath.Join(b.TempDir(), "jobs.db"))
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	var n atomic.Int64
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			i := n.Add(1)
			j := jobs.Job{ID: fmt.Sprintf("job_%09d", i), Kind: jobs.KindTrain, State: jobs.Queued, Times: jobs.Times{Created: time.Unix(i, 0)}}
			if err := s.Put(b.Context(), &j); err != nil {
				b.Error(err)
			}
		}
	})
}
