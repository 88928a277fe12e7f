// Package storesuite is the test that every jobs.Store and jobs.FileStore
// passes. Only tests import it.
package storesuite

import (
	"context"
	"errors"
	"fmt"
	"reflect"
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
		"crowd": crowd, "keys": keys, "removable": removable, "events": events, "schedules": schedules,
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
		if !reflect.DeepEqual(got, want) {
			t.Errorf("read back\n%+v\nwant\n%+v", got, want)
		}
		if f, err := s.File(t.Context(), "file-1"); err != nil || f.Name != "a" {
			t.Errorf("file read back as %+v, %v", f, err)
		}
	})
}

func full(id string, created time.Time) jobs.Job {
	at := created.UTC()
	return jobs.Job{
		ID: id, Tenant: "t", Kind: jobs.KindBatch, State: jobs.Running, Params: map[string]string{"k": "v"},
		Times: jobs.Times{Created: at, Pausing: at, RetryAt: at, KeptUntil: at}, Command: []string{"a", "b c"}, Slices: []string{"g0/s1"},
		Progress: jobs.Progress{Done: 3, Unit: "rows", Rate: 0.5, Metrics: map[string]float64{"accuracy": 0.25}, Heard: at}, Grace: time.Second,
		Terms: jobs.Terms{
			Name: "n", Idempotency: "key", DependsOn: []string{"job_0"}, NotBefore: at, Deadline: at, Expected: time.Hour, Retries: 3,
			KeepFor: time.Minute, Limits: jobs.Limits{CPUs: 1.5, Memory: 1, Disk: 2, Log: 3, RunTime: 4}, Schedule: "nightly",
			FineTune: &jobs.FineTune{Model: "m", Seed: 7}, Session: &jobs.Session{Idle: 5, Warned: at},
		},
		Course: jobs.Course{
			Why: "w", Error: "e", Preemptions: 2, Tried: 1, Ran: time.Hour, Result: []byte(`{"loss":0.5}`),
			Checkpoints: []jobs.Checkpoint{{Path: "/c/1", Step: 1, At: at, Bytes: 9}},
		},
		Batch: &jobs.Batch{ID: id, Status: jobs.InProgress, Log: jobs.RowLog{Output: 9, Done: []byte{0xff, 0}},
			Errors: []jobs.LineError{{Code: "c", Line: 3}}, Counts: jobs.Counts{Total: 9, Completed: 8}},
	}
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

// crowd has many writers at once: what is answered is there for everybody, in the
// record, the lists and the events; of those that fight for one key one wins, and
// who is refused takes nobody along.
func crowd(t *testing.T, s Store) {
	ctx := t.Context()
	const writers = 64
	var won sync.Map
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			j := jobs.Job{ID: fmt.Sprintf("own%02d", i), Tenant: "t", State: jobs.Queued}
			if err := s.Put(ctx, &j, jobs.Event{Message: "made"}); err != nil {
				t.Error(err)
				return
			}
			got, err := s.Get(ctx, j.ID)
			events, eerr := s.Events(ctx, j.ID, 0, 0)
			if err != nil || eerr != nil || got.Version != 1 || len(events) != 1 {
				t.Errorf("after its put: version %d, %d events, %v, %v", got.Version, len(events), err, eerr)
			}
			fight := jobs.Job{ID: fmt.Sprintf("key%02d", i), Tenant: "u", State: jobs.Queued, Terms: jobs.Terms{Idempotency: "one"}}
			switch err := s.Put(ctx, &fight, jobs.Event{Message: "made"}); {
			case err == nil:
				won.Store(fight.ID, true)
			case !errors.Is(err, jobs.ErrKeyTaken):
				t.Errorf("second job of a key: %v, want ErrKeyTaken", err)
			}
		})
	}
	all.Wait()
	list, err := s.List(ctx, jobs.Filter{Tenant: "t"})
	must(t, err)
	keyed, err := s.List(ctx, jobs.Filter{Tenant: "u"})
	must(t, err)
	if len(list) != writers || len(keyed) != 1 {
		t.Fatalf("%d jobs and %d of one key, want %d and 1", len(list), len(keyed), writers)
	}
	if _, ok := won.Load(keyed[0].ID); !ok {
		t.Errorf("%s is stored and was refused", keyed[0].ID)
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

// keys: a tenant's idempotency key belongs to one job, until that is deleted.
func keys(t *testing.T, s Store) {
	ctx := t.Context()
	put := func(id, tenant, key string) error {
		j := jobs.Job{ID: id, Tenant: tenant, State: jobs.Queued, Terms: jobs.Terms{Idempotency: key}}
		return s.Put(ctx, &j)
	}
	must(t, put("a", "t", "k"))
	must(t, put("b", "u", "k")) // another tenant's key is another key
	must(t, put("c", "t", ""))
	must(t, put("d", "t", "")) // no key is no key twice
	if err := put("e", "t", "k"); !errors.Is(err, jobs.ErrKeyTaken) {
		t.Errorf("second job of a key: %v, want ErrKeyTaken", err)
	}
	if _, err := s.Get(ctx, "e"); !errors.Is(err, jobs.ErrNotFound) {
		t.Errorf("get of the refused job: %v, want ErrNotFound", err)
	}
	find := func(tenant, key string) string {
		list, err := s.List(ctx, jobs.Filter{Tenant: tenant, Key: key})
		must(t, err)
		ids := []string{}
		for _, j := range list {
			ids = append(ids, j.ID)
		}
		return fmt.Sprint(ids)
	}
	j, err := s.Get(ctx, "a")
	must(t, err)
	j.State = jobs.Failed
	must(t, s.Put(ctx, &j)) // its own key does not stand in its way
	if got := find("t", "k") + find("u", "k") + find("v", "k") + find("t", "other"); got != "[a][b][][]" {
		t.Errorf("found by key: %s, want [a][b][][]", got)
	}
	must(t, s.Delete(ctx, "a"))
	if got := find("t", "k"); got != "[]" {
		t.Errorf("found by the key of a deleted job: %s", got)
	}
	must(t, put("f", "t", "k"))
}

// removable: those first whose time passed first; what is not finished never.
func removable(t *testing.T, s Store) {
	ctx := t.Context()
	for id, until := range map[string]int64{"a": 300, "b": 100, "c": 200, "d": 0} {
		j := jobs.Job{ID: id, State: jobs.Failed}
		if until > 0 {
			j.KeptUntil = time.Unix(until, 0)
		}
		must(t, s.Put(ctx, &j))
	}
	b, err := s.Get(ctx, "b")
	must(t, err)
	b.KeptUntil = time.Unix(250, 0) // kept longer after all
	must(t, s.Put(ctx, &b))
	for _, c := range []struct {
		at    int64
		limit int
		want  string
	}{{199, 0, "[]"}, {200, 0, "[c]"}, {299, 0, "[c b]"}, {1000, 0, "[c b a]"}, {1000, 2, "[c b]"}} {
		list, err := s.List(ctx, jobs.Filter{Removable: time.Unix(c.at, 0), Limit: c.limit})
		must(t, err)
		ids := []string{}
		for _, j := range list {
			ids = append(ids, j.ID)
		}
		if got := fmt.Sprint(ids); got != c.want {
			t.Errorf("removable at %d, limit %d: %s, want %s", c.at, c.limit, got, c.want)
		}
	}
}

func events(t *testing.T, s Store) {
	ctx := t.Context()
	if err := s.AddEvent(ctx, "a", jobs.Event{}); !errors.Is(err, jobs.ErrNotFound) {
		t.Errorf("event of no job: %v, want ErrNotFound", err)
	}
	a, ab := jobs.Job{ID: "a"}, jobs.Job{ID: "ab"} // one id begins like the other
	must(t, s.Put(ctx, &a, jobs.Event{Message: "one", Level: jobs.LevelInfo, Kind: "state", At: time.Unix(9, 0).UTC(), Data: map[string]string{"to": "queued"}}))
	must(t, s.Put(ctx, &ab, jobs.Event{Message: "other"}))
	must(t, s.Put(ctx, &a, jobs.Event{Message: "two"}, jobs.Event{Message: "three"}))
	must(t, s.AddEvent(ctx, "a", jobs.Event{Message: "four", Seq: 99})) // the number is the store's
	stale := jobs.Job{ID: "a", Version: 1}
	if err := s.Put(ctx, &stale, jobs.Event{Message: "never"}); !errors.Is(err, jobs.ErrConflict) {
		t.Fatalf("stale put: %v, want ErrConflict", err)
	}
	show := func(id string, after, limit int) string {
		list, err := s.Events(ctx, id, after, limit)
		must(t, err)
		text := ""
		for _, e := range list {
			text += fmt.Sprintf("%d%s ", e.Seq, e.Message)
		}
		return text
	}
	for _, c := range []struct {
		id           string
		after, limit int
		want         string
	}{
		{"a", 0, 0, "1one 2two 3three 4four "}, {"a", 2, 0, "3three 4four "}, {"a", 1, 2, "2two 3three "},
		{"a", 4, 0, ""}, {"ab", 0, 0, "1other "}, {"b", 0, 0, ""},
	} {
		if got := show(c.id, c.after, c.limit); got != c.want {
			t.Errorf("events of %s after %d, limit %d: %q, want %q", c.id, c.after, c.limit, got, c.want)
		}
	}
	first, err := s.Events(ctx, "a", 0, 1)
	must(t, err)
	want := jobs.Event{Seq: 1, Message: "one", Level: jobs.LevelInfo, Kind: "state", At: time.Unix(9, 0).UTC(), Data: map[string]string{"to": "queued"}}
	if !reflect.DeepEqual(first[0], want) {
		t.Errorf("event read back as %+v, want %+v", first[0], want)
	}
	many := make([]jobs.Event, jobs.MaxEvents)
	must(t, s.Put(ctx, &a, many...))
	if list, _ := s.Events(ctx, "a", 0, 0); len(list) != jobs.MaxEvents || list[0].Seq != 5 {
		t.Errorf("%d events from %d on, want the newest %d from 5 on", len(list), list[0].Seq, jobs.MaxEvents)
	}
	must(t, s.Delete(ctx, "a"))
	if got := show("a", 0, 0) + show("ab", 0, 0); got != "1other " {
		t.Errorf("events after the job's end: %q, want the other job's", got)
	}
}

func schedules(t *testing.T, s Store) {
	ctx := t.Context()
	at := time.Unix(60, 0).UTC()
	must(t, s.PutSchedule(ctx, jobs.ScheduleState{Name: "b", Next: at}))
	must(t, s.PutSchedule(ctx, jobs.ScheduleState{Name: "a"}))
	must(t, s.PutSchedule(ctx, jobs.ScheduleState{Name: "a", Spec: "@daily", Next: at, Last: "job_1"}))
	list, err := s.Schedules(ctx)
	must(t, err)
	if want := []jobs.ScheduleState{{Name: "a", Spec: "@daily", Next: at, Last: "job_1"}, {Name: "b", Next: at}}; !slices.Equal(list, want) {
		t.Errorf("schedules %+v, want %+v", list, want)
	}
	must(t, s.DeleteSchedule(ctx, "a"))
	must(t, s.DeleteSchedule(ctx, "a"))
	if list, _ := s.Schedules(ctx); len(list) != 1 {
		t.Errorf("%d schedules after one was forgotten, want 1", len(list))
	}
}
