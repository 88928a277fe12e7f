package jobs_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"aloft/jobs"
)

// madeOnce asks for one thing again and again: under a key it is made once, whoever
// asks at the same moment, whatever has become of it, and after a restart; under
// the same key nothing else is made.
func madeOnce[S any](t *testing.T, same, other, elsewhere S, create func(S) (string, error)) string {
	t.Helper()
	var ids sync.Map
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			id, err := create(same)
			if err != nil {
				t.Errorf("one of many at once: %v", err)
			}
			ids.Store(id, nil)
		})
	}
	all.Wait()
	var first string
	n := 0
	ids.Range(func(id, _ any) bool { n++; first = id.(string); return true })
	if n != 1 {
		t.Fatalf("one request made %d things", n)
	}
	if id, err := create(other); !errors.Is(err, jobs.ErrConflict) || !strings.Contains(fmt.Sprint(err), first) {
		t.Errorf("another request under the key: %s, %v; want a conflict that names %s", id, err, first)
	}
	if id, err := create(elsewhere); err != nil || id == first {
		t.Errorf("another tenant's key: %s, %v; want one of its own", id, err)
	}
	return first
}

func TestBatchMadeOnce(t *testing.T) {
	dir := t.TempDir()
	m, stop := newManager(t, dir, jobs.Options{})
	upload := func(tenant string) string {
		f, err := m.CreateFile(t.Context(), known(jobs.FileSpec{Name: "in", Purpose: jobs.PurposeBatch, Tenant: tenant}), strings.NewReader(rowsFile(3)))
		if err != nil {
			t.Fatal(err)
		}
		return f.ID
	}
	create := func(s jobs.BatchSpec) (string, error) {
		b, err := m.CreateBatch(t.Context(), s)
		return b.ID, err
	}
	same := jobs.BatchSpec{InputFile: upload("red"), Endpoint: "/v1/embeddings", Window: "24h", Tenant: "red", Key: "key-1", Idempotency: "once"}
	other, elsewhere := same, same
	other.Window = "48h"
	elsewhere.Tenant, elsewhere.InputFile = "blue", upload("blue")
	id := madeOnce(t, same, other, elsewhere, create)
	untilBatch(t, m, id, ended)
	if err := m.DeleteFile(t.Context(), same.InputFile); err != nil {
		t.Fatal(err)
	}
	stop()
	m, _ = newManager(t, dir, jobs.Options{})
	same.Key = "key-2" // another API key of the tenant's
	b, err := m.CreateBatch(t.Context(), same)
	if err != nil || b.ID != id || b.Status != jobs.Completed {
		t.Errorf("asked again in another life: %s %s, %v; want %s as it ended", b.ID, b.Status, err, id)
	}
	if _, err := m.Submit(t.Context(), jobs.Job{Tenant: "red", Template: "0", Terms: jobs.Terms{Idempotency: "once"}}); !errors.Is(err, jobs.ErrConflict) {
		t.Errorf("a job under a batch's key: %v, want a conflict", err)
	}
	same.Idempotency = strings.Repeat("x", 257)
	if e, ok := errors.AsType[*jobs.InvalidError](second(m.CreateBatch(t.Context(), same))); !ok || e.Param != "idempotency_key" {
		t.Errorf("a key of 257 bytes: %v", e)
	}
}

func second[T any](_ T, err error) error { return err }

// A seed that the server chooses does not make it another request.
func TestFineTuneMadeOnce(t *testing.T) {
	m, _ := tuneManager(t, t.TempDir(), jobs.Options{})
	upload := func(tenant string) string {
		f, err := m.CreateFile(t.Context(), known(jobs.FileSpec{Name: "x.jsonl", Purpose: jobs.PurposeFineTune, Tenant: tenant}), strings.NewReader(strings.Repeat(exampleLine, 12)))
		if err != nil {
			t.Fatal(err)
		}
		return f.ID
	}
	same := jobs.FineTuneSpec{Model: "tiny", Training: upload("red"), Tenant: "red", Metadata: map[string]string{"team": "a"}, Idempotency: "once"}
	other, elsewhere := same, same
	other.Suffix = "mine"
	elsewhere.Tenant, elsewhere.Training = "blue", upload("blue")
	id := madeOnce(t, same, other, elsewhere, func(s jobs.FineTuneSpec) (string, error) {
		j, err := m.CreateFineTune(t.Context(), s)
		return j.ID, err
	})
	until(t, "its files to be read", func() bool {
		j, err := m.Get(t.Context(), id)
		return err == nil && j.Waits()
	})
	events, err := m.Events(t.Context(), id, 0, 0)
	read := 0
	for _, e := range events {
		if strings.HasPrefix(e.Message, "files validated") {
			read++
		}
	}
	if err != nil || read != 1 {
		t.Errorf("its files were read %d times, %v; want once", read, err)
	}
}
