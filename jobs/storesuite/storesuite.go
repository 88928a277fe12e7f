// Package storesuite is the test that every jobs.Store and jobs.FileStore
// passes. Only tests import it.
package storesuite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"aloft/jobs"
)

// Store is both stores in one, as implementations are.
type Store interface {
	jobs.Store
	jobs.FileStore
}

// Run runs the suite. open returns the store kept at a place; opening the same
// place again after Close must find what was put there.
func Run(t *testing.T, open func(t *testing.T, place string) Store) {
	for name, test := range map[string]func(*testing.T, Store){
		"versions": versions, "lists": lists, "pages": pages, "deletes": deletes,
		"races": races, "files": files, "cancelled": cancelled,
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, t.TempDir())
			defer s.Close()
			test(t, s)
		})
	}
	t.Run("survives", func(t *testing.T) {
		place := t.TempDir()
		s := open(t, place)
		want := full("job_1", time.Unix(100, 5))
		must(t, s.Put(t.Context(), &want))
		must(t, s.PutFile(t.Context(), jobs.File{ID: "file-1", Name: "a", Created: time.Unix(3, 0)}))
		must(t, s.Close())
		s = open(t, place)
		defer s.Close()
		got, err := s.Get(t.Context(), "job_1")
		must(t, err)
		if !sameJob(got, want) {
			t.Errorf("read back\n%+v\nwant\n%+v", got, want)
		}
		if f, err := s.File(t.Context(), "file-1"); err != nil || f.Name != "a" {
			t.Errorf("file read back as %+v, %v", f, err)
		}
	})
}

func full(id string, created time.Time) jobs.Job {
	return jobs.Job{
		ID: id, Tenant: "t", Kind: jobs.KindBatch, State: jobs.Running, Params: map[string]string{"k": "v"},
		Times: jobs.Times{Created: created.UTC()}, Command: []string{"a", "b c"}, Slices: []string{"g0/s1"},
		Progress: jobs.Progress{Done: 3, Unit: "rows", Rate: 0.5}, Preemptions: 2, Grace: time.Second,
		Batch: &jobs.Batch{ID: id, Status: jobs.InProgress, Log: jobs.RowLog{Output: 9, Done: []byte{0xff, 0}},
			Errors: []jobs.LineError{{Code: "c", Line: 3}}, Counts: jobs.Counts{Total: 9, Completed: 8}},
	}
}

func sameJob(a, b jobs.Job) bool {
	return a.ID == b.ID && a.State == b.State && a.Created.Equal(b.Created) && a.Version == b.Version &&
		slices.Equal(a.Command, b.Command) && slices.Equal(a.Slices, b.Slices) && a.Params["k"] == b.Params["k"] &&
		a.Progress == b.Progress && a.Grace == b.Grace && a.Batch.Counts == b.Batch.Counts &&
		slices.Equal(a.Batch.Log.Done, b.Batch.Log.Done) && a.Batch.Errors[0] == b.Batch.Errors[0]
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func versions(t *testing.T, s Store) {
	ctx := t.Context()
	if _, err := s.Get(ctx, "job_x"); !errors.Is(err, jobs.ErrNotFound) {
		t.Fatalf("get of nothing: %v, want ErrNotFound", err)
	}
	stale := jobs.Job{ID: "job_x", Version: 4}
	if err := s.Put(ctx, &stale); !errors.Is(err, jobs.ErrConflict) || stale.Version != 4 {
		t.Fatalf("put of version 4 over nothing: %v, version %d; want ErrConflict, 4", err, stale.Version)
	}
	j := jobs.Job{ID: "job_x", State: jobs.Queued}
	must(t, s.Put(ctx, &j))
	if j.Version != 1 {
		t.Fatalf("version %d after the first put, want 1", j.Version)
	}
	again := jobs.Job{ID: "job_x"}
	if err := s.Put(ctx, &again); !errors.Is(err, jobs.ErrConflict) {
		t.Fatalf("second creation: %v, want ErrConflict", err)
	}
	other, err := s.Get(ctx, "job_x")
	must(t, err)
	j.State = jobs.Starting
	must(t, s.Put(ctx, &j))
	other.State = jobs.Cancelled
	if err := s.Put(ctx, &other); !errors.Is(err, jobs.ErrConflict) {
		t.Fatalf("lost update: %v, want ErrConflict", err)
	}
	if got, _ := s.Get(ctx, "job_x"); got.State != jobs.Starting || got.Version != 2 {
		t.Fatalf("stored %s version %d, want starting 2", got.State, got.Version)
	}
}

func lists(t *testing.T, s Store) {
	ctx := t.Context()
	put := func(id string, at int64, k jobs.Kind, st jobs.State, tenant string) {
		j := jobs.Job{ID: id, Kind: k, State: st, Tenant: tenant, Times: jobs.Times{Created: time.Unix(at, 0)}}
		must(t, s.Put(ctx, &j))
	}
	put("c", 30, jobs.KindBatch, jobs.Queued, "t1")
	put("a", 10, jobs.KindTrain, jobs.Queued, "t1")
	put("d", 40, jobs.KindTrain, jobs.Failed, "t2")
	put("b", 20, jobs.KindTrain, jobs.Running, "t2")
	put("b2", 20, jobs.KindTrain, jobs.Queued, "t1") // the same moment
	moved, err := s.Get(ctx, "a")
	must(t, err)
	moved.State = jobs.Starting
	must(t, s.Put(ctx, &moved)) // must leave the old state's index
	for _, c := range []struct {
		f    jobs.Filter
		want string
	}{
		{jobs.Filter{}, "[d c b2 b a]"},
		{jobs.Filter{Limit: 2}, "[d c]"},
		{jobs.Filter{States: []jobs.State{jobs.Queued}}, "[c b2]"},
		{jobs.Filter{States: []jobs.State{jobs.Running, jobs.Starting, jobs.Queued}}, "[c b2 b a]"},
		{jobs.Filter{States: []jobs.State{jobs.Running, jobs.Queued}, After: "b2"}, "[b]"},
		{jobs.Filter{States: []jobs.State{jobs.Queued}, After: "b"}, "[]"}, // a mark in another state
		{jobs.Filter{Kind: jobs.KindTrain}, "[d b2 b a]"},
		{jobs.Filter{Tenant: "t1", Kind: jobs.KindTrain}, "[b2 a]"},
		{jobs.Filter{Tenant: "t3"}, "[]"},
		{jobs.Filter{After: "c", Limit: 2}, "[b2 b]"},
		{jobs.Filter{After: "a"}, "[]"},
		{jobs.Filter{Kind: jobs.KindTrain, Tenant: "t2", After: "c"}, "[b]"},
	} {
		list, err := s.List(ctx, c.f)
		must(t, err)
		ids := []string{}
		for _, j := range list {
			ids = append(ids, j.ID)
		}
		if got := fmt.Sprint(ids); got != c.want {
			t.Errorf("list %+v: %s, want %s", c.f, got, c.want)
		}
	}
	if _, err := s.List(ctx, jobs.Filter{After: "nobody"}); !errors.Is(err, jobs.ErrNotFound) {
		t.Errorf("list after an unknown id: %v, want ErrNotFound", err)
	}
}

func pages(t *testing.T, s Store) {
	ctx, n := t.Context(), 57
	for i := range n {
		j := jobs.Job{ID: fmt.Sprintf("j%03d", i), State: jobs.Queued, Times: jobs.Times{Created: time.Unix(int64(i/3), 0)}}
		must(t, s.Put(ctx, &j))
	}
	var ids []string
	f := jobs.Filter{Limit: 10, States: []jobs.State{jobs.Queued}}
	for {
		list, err := s.List(ctx, f)
		must(t, err)
		for _, j := range list {
			ids = append(ids, j.ID)
		}
		if len(list) < f.Limit {
			break
		}
		f.After = list[len(list)-1].ID
	}
	slices.Reverse(ids)
	if len(ids) != n || !slices.IsSorted(ids) || len(slices.Compact(ids)) != n {
		t.Errorf("%d ids over all pages, want %d once each, newest first: %v", len(ids), n, ids)
	}
}

func deletes(t *testing.T, s Store) {
	ctx := t.Context()
	j := jobs.Job{ID: "j", State: jobs.Failed}
	must(t, s.Put(ctx, &j))
	must(t, s.Delete(ctx, "j"))
	must(t, s.Delete(ctx, "j"))
	if _, err := s.Get(ctx, "j"); !errors.Is(err, jobs.ErrNotFound) {
		t.Errorf("get of a deleted job: %v", err)
	}
	for _, f := range []jobs.Filter{{}, {States: []jobs.State{jobs.Failed}}} {
		if list, err := s.List(ctx, f); err != nil || len(list) != 0 {
			t.Errorf("list %+v after delete: %v, %v", f, list, err)
		}
	}
	again := jobs.Job{ID: "j"}
	must(t, s.Put(ctx, &again))
}

// races has writers add to one record by compare and swap: none is lost.
func races(t *testing.T, s Store) {
	ctx := t.Context()
	j := jobs.Job{ID: "j", State: jobs.Queued}
	must(t, s.Put(ctx, &j))
	const writers, each = 4, 10
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			for done := 0; done < each; {
				j, err := s.Get(ctx, "j")
				if err != nil {
					t.Error(err)
					return
				}
				j.Preemptions++
				switch err := s.Put(ctx, &j); {
				case err == nil:
					done++
				case !errors.Is(err, jobs.ErrConflict):
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	got, err := s.Get(ctx, "j")
	must(t, err)
	if got.Preemptions != writers*each || got.Version != writers*each+1 {
		t.Errorf("%d additions in version %d, want %d in %d", got.Preemptions, got.Version, writers*each, writers*each+1)
	}
}

func files(t *testing.T, s Store) {
	ctx := t.Context()
	for i, p := range []string{"batch", "batch_output", "batch"} {
		must(t, s.PutFile(ctx, jobs.File{ID: fmt.Sprintf("f%d", i), Purpose: p, Tenant: "t", Created: time.Unix(int64(10*i), 0)}))
	}
	must(t, s.PutFile(ctx, jobs.File{ID: "f1", Name: "new", Purpose: "batch_output", Tenant: "u", Created: time.Unix(5, 0), Expires: time.Unix(100, 0)}))
	for _, c := range []struct {
		f    jobs.FileFilter
		want string
	}{
		{jobs.FileFilter{}, "[f2 f1 f0]"},
		{jobs.FileFilter{OldestFirst: true}, "[f0 f1 f2]"},
		{jobs.FileFilter{OldestFirst: true, After: "f0", Limit: 1}, "[f1]"},
		{jobs.FileFilter{After: "f2", Limit: 1}, "[f1]"},
		{jobs.FileFilter{Purpose: "batch"}, "[f2 f0]"},
		{jobs.FileFilter{Tenant: "u"}, "[f1]"},
		{jobs.FileFilter{Limit: 2, Now: time.Unix(99, 0)}, "[f2 f1]"},
		{jobs.FileFilter{Limit: 2, Now: time.Unix(100, 0)}, "[f2 f0]"},
	} {
		list, err := s.Files(ctx, c.f)
		must(t, err)
		ids := []string{}
		for _, f := range list {
			ids = append(ids, f.ID)
		}
		if got := fmt.Sprint(ids); got != c.want {
			t.Errorf("files %+v: %s, want %s", c.f, got, c.want)
		}
	}
	if f, err := s.File(ctx, "f1"); err != nil || f.Name != "new" {
		t.Errorf("replaced file: %+v, %v", f, err)
	}
	must(t, s.DeleteFile(ctx, "f1"))
	must(t, s.DeleteFile(ctx, "f1"))
	if _, err := s.File(ctx, "f1"); !errors.Is(err, jobs.ErrNotFound) {
		t.Errorf("deleted file: %v, want ErrNotFound", err)
	}
	if list, _ := s.Files(ctx, jobs.FileFilter{}); len(list) != 2 {
		t.Errorf("%d files after delete, want 2", len(list))
	}
}

// cancelled: a call whose context has ended stores nothing.
func cancelled(t *testing.T, s Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	j := jobs.Job{ID: "j"}
	if err := s.Put(ctx, &j); err == nil || j.Version != 0 {
		t.Errorf("put with an ended context: %v, version %d", err, j.Version)
	}
	if err := s.PutFile(ctx, jobs.File{ID: "f"}); err == nil {
		t.Error("file put with an ended context")
	}
	if _, err := s.Get(t.Context(), "j"); !errors.Is(err, jobs.ErrNotFound) {
		t.Errorf("get after it: %v, want ErrNotFound", err)
	}
}
