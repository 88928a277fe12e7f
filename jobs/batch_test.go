package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"aloft/backends"
	"aloft/jobs"
)

func TestBatch(t *testing.T) {
	const rows = 1500
	var calls, busy, most atomic.Int64
	m, _ := newManager(t, t.TempDir(), jobs.Options{
		BatchConcurrency: func(model string) int {
			if model != "m" {
				t.Errorf("asked about model %q", model)
			}
			return 5
		},
		Caller: caller(func(ctx context.Context, r jobs.Row) (jobs.Result, error) {
			for now := busy.Add(1); now > most.Load(); {
				most.Store(now)
			}
			defer busy.Add(-1)
			n := calls.Add(1)
			if r.Endpoint != backends.Embeddings || gjson.GetBytes(r.Body, "model").Str != "m" {
				t.Errorf("row %+v", r)
			}
			switch input := gjson.GetBytes(r.Body, "input").Str; {
			case input == "text 7":
				return jobs.Result{Status: 400, Body: []byte(`{"error":{"message":"no"}}`)}, nil
			case input == "text 8":
				return jobs.Result{}, fmt.Errorf("always: %w", backends.ErrConnect)
			case input == "text 9":
				panic("a bug")
			case n%10 == 0:
				return jobs.Result{}, &backends.RetryError{Err: backends.ErrOverloaded, Reason: "queue_full"}
			case n%11 == 0:
				return jobs.Result{Status: 503}, nil
			}
			return answer(ctx, r)
		}),
	})
	b, err := createBatch(m, rowsFile(rows), "24h")
	if err != nil {
		t.Fatal(err)
	}
	if b.Status != jobs.Validating || b.Stamps.Expires.Sub(b.Created) != 24*time.Hour {
		t.Errorf("created as %+v", b)
	}
	b = untilBatch(t, m, b.ID, ended)
	good, bad := outputs(t, m, b, rows)
	if b.Status != jobs.Completed || len(good) != rows-3 || b.Model != "m" {
		t.Errorf("ended %s with %d good rows of model %q", b.Status, len(good), b.Model)
	}
	if l := bad["row-7"]; l.Response == nil || l.Response.StatusCode != 400 || l.Error != nil {
		t.Errorf("refused row: %+v", l)
	}
	for _, id := range []string{"row-8", "row-9"} {
		if l := bad[id]; l.Response != nil || l.Error == nil || l.Error.Code != "row_failed" {
			t.Errorf("failed row %s: %+v", id, l)
		}
	}
	if most.Load() > 5 {
		t.Errorf("%d rows at a time, want at most 5", most.Load())
	}
	if want := int64(2 * (rows - 3)); b.Usage.Prompt != want || b.Usage.Total != want {
		t.Errorf("usage %+v, want %d", b.Usage, want)
	}
	if s := b.Stamps; s.InProgress.IsZero() || s.Finalizing.Before(s.InProgress) || s.Completed.Before(s.Finalizing) {
		t.Errorf("stamps %+v", s)
	}
	j := untilState(t, m, b.ID, jobs.Succeeded)
	if j.Progress.Done != rows || j.Progress.Rate <= 0 || j.Finished.IsZero() {
		t.Errorf("job's progress %+v", j.Progress)
	}
	if _, err := m.CancelBatch(t.Context(), b.ID); !errors.Is(err, jobs.ErrFinished) {
		t.Errorf("cancel of a completed batch: %v, want ErrFinished", err)
	}
	if list, err := m.Batches(t.Context(), jobs.Filter{}); err != nil || len(list) != 1 || list[0].ID != b.ID {
		t.Errorf("batches: %v, %v", list, err)
	}
}

// As soon as a batch is seen to have ended its input may go: here in the moment
// in which its end is stored, and it is still listed as a reader.
func TestInputOfAnEndedBatch(t *testing.T) {
	var m *jobs.Manager
	deleted := make(chan error, 1)
	m, _ = newManager(t, t.TempDir(), jobs.Options{Caller: caller(answer), OnChange: func(j jobs.Job) {
		if j.Batch.Status.Terminal() {
			deleted <- m.DeleteFile(context.Background(), j.Batch.InputFile)
		}
	}})
	if _, err := createBatch(m, rowsFile(1), "24h"); err != nil {
		t.Fatal(err)
	}
	if err := <-deleted; err != nil {
		t.Error(err)
	}
}

// OpenAI's 200 MB hold for a batch, whatever files may have.
func TestBatchTooLarge(t *testing.T) {
	m, _ := newManager(t, t.TempDir(), jobs.Options{MaxFileBytes: 1 << 30})
	f, err := m.CreateFile(t.Context(), known(jobs.FileSpec{Name: "in", Purpose: jobs.PurposeBatch}), io.LimitReader(zeros{}, 200<<20+1))
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.CreateBatch(t.Context(), jobs.BatchSpec{InputFile: f.ID, Endpoint: "/v1/embeddings", Window: "24h"})
	if e, ok := errors.AsType[*jobs.InvalidError](err); !ok || e.Param != "input_file_id" {
		t.Errorf("a byte too many: %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestBatchBadFile(t *testing.T) {
	m, _ := newManager(t, t.TempDir(), jobs.Options{})
	b, err := createBatch(m, rowsFile(3)+"{oops\n"+rowsFile(1), "24h")
	if err != nil {
		t.Fatal(err)
	}
	b = untilBatch(t, m, b.ID, ended)
	if b.Status != jobs.BatchFailed || len(b.Errors) != 2 || b.Errors[0].Line != 4 || b.Errors[1].Line != 5 || b.Stamps.Failed.IsZero() {
		t.Errorf("ended %s with %+v", b.Status, b.Errors)
	}
	untilState(t, m, b.ID, jobs.Failed)
}

func TestBatchRefusedAtOnce(t *testing.T) {
	ctx := t.Context()
	m, _ := newManager(t, t.TempDir(), jobs.Options{MaxFileBytes: 1000})
	other, err := m.CreateFile(ctx, known(jobs.FileSpec{Name: "a", Purpose: "assistants"}), strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := m.CreateFile(ctx, known(jobs.FileSpec{Name: "a", Purpose: "batch", Tenant: "t"}), strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"", "file-none", other.ID, foreign.ID} {
		_, err := m.CreateBatch(ctx, jobs.BatchSpec{InputFile: id, Endpoint: "/v1/embeddings", Window: "24h"})
		if e, ok := errors.AsType[*jobs.InvalidError](err); !ok || e.Param != "input_file_id" {
			t.Errorf("file %q: %v", id, err)
		}
	}
	_, err = m.CreateFile(ctx, known(jobs.FileSpec{Name: "a", Purpose: "batch"}), strings.NewReader(strings.Repeat("x", 1001)))
	if _, ok := errors.AsType[*jobs.InvalidError](err); !ok {
		t.Errorf("file over the limit: %v", err)
	}
	if list, _ := m.Files(ctx, jobs.FileFilter{}); len(list) != 2 {
		t.Errorf("%d files, want 2", len(list))
	}
}

func TestBatchExpires(t *testing.T) {
	m, _ := newManager(t, t.TempDir(), jobs.Options{Caller: caller(func(ctx context.Context, r jobs.Row) (jobs.Result, error) {
		if !strings.HasSuffix(r.ID, "_00002") {
			return jobs.Result{Status: 429}, nil // no capacity, for ever
		}
		return answer(ctx, r)
	})})
	b, err := createBatch(m, rowsFile(30), "4s") // in which one row is answered
	if err != nil {
		t.Fatal(err)
	}
	b = untilBatch(t, m, b.ID, ended)
	good, bad := outputs(t, m, b, 30)
	if b.Status != jobs.BatchExpired || len(good) != 1 || bad["row-9"].Error.Code != "batch_expired" {
		t.Errorf("ended %s with %d good rows, row-9 %+v", b.Status, len(good), bad["row-9"])
	}
	if late := b.Stamps.Expired.Sub(b.Stamps.Expires); late < 0 || late > time.Minute {
		t.Errorf("expired %v after its window", late)
	}
	untilState(t, m, b.ID, jobs.Expired)
}

// TestBatchLease: a lease is noted and dropped, and the rows flow regardless.
func TestBatchLease(t *testing.T) {
	release := make(chan struct{})
	m, _ := newManager(t, t.TempDir(), jobs.Options{Caller: caller(func(ctx context.Context, r jobs.Row) (jobs.Result, error) {
		select {
		case <-release:
			return answer(ctx, r)
		case <-ctx.Done():
			return jobs.Result{}, context.Cause(ctx)
		}
	})})
	b, err := createBatch(m, rowsFile(20), "24h")
	if err != nil {
		t.Fatal(err)
	}
	untilBatch(t, m, b.ID, func(b jobs.Batch) bool { return b.Status == jobs.InProgress })
	for range 2 {
		if err := m.Start(t.Context(), b.ID, lend(1)); err != nil {
			t.Fatal(err)
		}
		if j := untilState(t, m, b.ID, jobs.Running); len(j.Slices) != 1 || j.Slices[0] != "g0/s0" {
			t.Errorf("slices %v", j.Slices)
		}
		if err := m.Start(t.Context(), b.ID, lend(1)); !errors.Is(err, jobs.ErrConflict) {
			t.Errorf("second start: %v, want ErrConflict", err)
		}
		if err := m.Preempt(t.Context(), b.ID, 0); err != nil {
			t.Fatal(err)
		}
		if j := untilState(t, m, b.ID, jobs.Queued); len(j.Slices) != 0 {
			t.Errorf("slices %v after preemption", j.Slices)
		}
	}
	close(release)
	b = untilBatch(t, m, b.ID, ended)
	outputs(t, m, b, 20)
	if j, _ := m.Get(t.Context(), b.ID); j.Preemptions != 2 || j.State != jobs.Succeeded {
		t.Errorf("job %s after %d preemptions", j.State, j.Preemptions)
	}
}

// TestBatchSurvivesClose closes mid-way and goes on in another manager.
func TestBatchSurvivesClose(t *testing.T) {
	dir := t.TempDir()
	slow := caller(func(ctx context.Context, r jobs.Row) (jobs.Result, error) {
		time.Sleep(time.Millisecond)
		return answer(ctx, r)
	})
	m, stop := newManager(t, dir, jobs.Options{Caller: slow})
	b, err := createBatch(m, rowsFile(600), "24h")
	if err != nil {
		t.Fatal(err)
	}
	before := untilBatch(t, m, b.ID, func(b jobs.Batch) bool { return b.Counts.Completed > 0 })
	stop()
	if _, err := m.CreateBatch(t.Context(), jobs.BatchSpec{InputFile: b.InputFile, Endpoint: "/v1/embeddings", Window: "24h"}); err == nil {
		t.Error("a closed manager took a batch")
	}
	var calls atomic.Int64
	m, _ = newManager(t, dir, jobs.Options{Caller: caller(func(ctx context.Context, r jobs.Row) (jobs.Result, error) {
		calls.Add(1)
		return answer(ctx, r)
	})})
	b = untilBatch(t, m, b.ID, ended)
	outputs(t, m, b, 600)
	if n := int(calls.Load()); n > 600-before.Counts.Completed {
		t.Errorf("%d rows ran again although %d were committed", n, before.Counts.Completed)
	}
	until(t, "the local output to be removed", func() bool {
		left, err := os.ReadDir(filepath.Join(dir, "batches"))
		return err == nil && len(left) == 0
	})
}

func TestBatchInputLost(t *testing.T) {
	dir := t.TempDir()
	m, stop := newManager(t, dir, jobs.Options{BatchConcurrency: func(string) int { return 0 }})
	b, err := createBatch(m, rowsFile(5), "24h")
	if err != nil {
		t.Fatal(err)
	}
	untilBatch(t, m, b.ID, func(b jobs.Batch) bool { return b.Status == jobs.InProgress })
	stop()
	if err := os.RemoveAll(filepath.Join(dir, "blobs")); err != nil {
		t.Fatal(err)
	}
	m, _ = newManager(t, dir, jobs.Options{})
	b = untilBatch(t, m, b.ID, ended)
	if b.Status != jobs.BatchFailed || len(b.Errors) != 1 || b.Errors[0].Code != "input_lost" {
		t.Errorf("ended %s with %+v", b.Status, b.Errors)
	}
}

func TestFiles(t *testing.T) {
	ctx := t.Context()
	m, _ := newManager(t, t.TempDir(), jobs.Options{})
	f, err := m.CreateFile(ctx, known(jobs.FileSpec{Name: "../a b.jsonl", Purpose: "batch", Tenant: "t", TTL: 30 * time.Millisecond}), strings.NewReader("hello"))
	if err != nil || f.Bytes != 5 || !strings.HasPrefix(f.ID, "file-") {
		t.Fatalf("created %+v, %v", f, err)
	}
	until(t, "the file to expire", func() bool {
		_, err := m.File(ctx, f.ID)
		return errors.Is(err, jobs.ErrNotFound)
	})
	if _, err := m.OpenFile(ctx, f.ID); !errors.Is(err, jobs.ErrNotFound) {
		t.Errorf("content of an expired file: %v", err)
	}
	f, err = m.CreateFile(ctx, known(jobs.FileSpec{Name: "b", Purpose: "batch"}), strings.NewReader("hello"))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.DeleteFile(ctx, f.ID); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{f.ID, "file-none", "../../etc/passwd"} {
		if err := m.DeleteFile(ctx, id); !errors.Is(err, jobs.ErrNotFound) {
			t.Errorf("delete of %s: %v, want ErrNotFound", id, err)
		}
	}
	for _, bad := range []jobs.FileSpec{{}, {Name: "a"}, {Purpose: "batch"}, {Name: "a", Purpose: "batch", TTL: -1}} {
		if _, err := m.CreateFile(ctx, known(bad), strings.NewReader("")); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
}

// BenchmarkBatch runs the largest batch there is against a caller that answers
// at once: what is measured is ours.
func BenchmarkBatch(b *testing.B) {
	const rows = 50_000
	reply := []byte(`{"object":"list","data":[{"object":"embedding","index":0,"embedding":"` + strings.Repeat("A", 2048) + `"}],"usage":{"prompt_tokens":2,"total_tokens":2}}`)
	m, stop, err := openManager(b.TempDir(), jobs.Options{
		BatchConcurrency: func(string) int { return 64 },
		Caller: caller(func(context.Context, jobs.Row) (jobs.Result, error) {
			return jobs.Result{Status: 200, RequestID: "req", Body: reply}, nil
		}),
	})
	if err != nil {
		b.Fatal(err)
	}
	defer stop()
	file := rowsFile(rows)
	runtime.GC()
	var before, now runtime.MemStats
	runtime.ReadMemStats(&before)
	most := uint64(0)
	for b.Loop() {
		made, err := createBatch(m, file, "24h")
		if err != nil {
			b.Fatal(err)
		}
		for {
			got, err := m.Batch(b.Context(), made.ID)
			if err != nil {
				b.Fatal(err)
			}
			if got.Status.Terminal() {
				break
			}
			runtime.ReadMemStats(&now)
			most = max(most, now.HeapInuse-min(before.HeapInuse, now.HeapInuse))
			time.Sleep(10 * time.Millisecond)
		}
	}
	b.ReportMetric(float64(rows*b.N)/b.Elapsed().Seconds(), "rows/s")
	b.ReportMetric(float64(most)/1e6, "MB-heap-most")
}

// Rows run on the key that made the batch, and responses are an endpoint of
// batches like the others.
func TestBatchOfResponses(t *testing.T) {
	m, _ := newManager(t, t.TempDir(), jobs.Options{Caller: caller(func(_ context.Context, r jobs.Row) (jobs.Result, error) {
		if r.Endpoint != backends.Responses || r.Key != "key-7" || r.Tenant != "red" {
			t.Errorf("row %+v", r)
		}
		return jobs.Result{Status: 200, Body: []byte(`{"usage":{"input_tokens":3,"output_tokens":4,"total_tokens":7}}`)}, nil
	})})
	f, err := m.CreateFile(t.Context(), known(jobs.FileSpec{Name: "in", Purpose: jobs.PurposeBatch, Tenant: "red"}),
		strings.NewReader(strings.ReplaceAll(rowsFile(3), "/v1/embeddings", "/v1/responses")))
	if err != nil {
		t.Fatal(err)
	}
	b, err := m.CreateBatch(t.Context(), jobs.BatchSpec{InputFile: f.ID, Endpoint: "/v1/responses", Window: "24h", Tenant: "red", Key: "key-7"})
	if err != nil {
		t.Fatal(err)
	}
	b = untilBatch(t, m, b.ID, ended)
	if b.Status != jobs.Completed || b.Usage != (jobs.Usage{Prompt: 9, Completion: 12, Total: 21}) {
		t.Errorf("ended %s with usage %+v and %+v", b.Status, b.Usage, b.Errors)
	}
}

// endless is an upload of so many rows that nobody holds whole.
type endless struct {
	row, rows, size int
	rest            []byte
}

func (e *endless) Read(p []byte) (int, error) {
	if len(e.rest) == 0 {
		if e.row == e.rows {
			return 0, io.EOF
		}
		e.rest = fmt.Appendf(e.rest[:0], `{"custom_id":"row-%d","method":"POST","url":"/v1/embeddings","body":{"model":"m","input":"%s"}}`+"\n",
			e.row, strings.Repeat("x", e.size))
		e.row++
	}
	n := copy(p, e.rest)
	e.rest = e.rest[n:]
	return n, nil
}

// A batch of 100 MB in and 100 MB out passes through a few megabytes of memory.
func TestLargeBatchStaysOnDisk(t *testing.T) {
	const rows, size, allowed = 1000, 100 << 10, 40 << 20
	heap := func() uint64 {
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	runtime.GC()
	before := heap()
	var most atomic.Uint64
	m, _ := newManager(t, t.TempDir(), jobs.Options{Caller: caller(func(_ context.Context, r jobs.Row) (jobs.Result, error) {
		if strings.HasSuffix(r.ID, "50") {
			runtime.GC() // what is left is held
			for now := heap(); ; {
				if old := most.Load(); now <= old || most.CompareAndSwap(old, now) {
					break
				}
			}
		}
		return jobs.Result{Status: 200, Body: r.Body}, nil
	})})
	f, err := m.CreateFile(t.Context(), known(jobs.FileSpec{Name: "in", Purpose: jobs.PurposeBatch}), &endless{rows: rows, size: size})
	if err != nil {
		t.Fatal(err)
	}
	b, err := m.CreateBatch(t.Context(), jobs.BatchSpec{InputFile: f.ID, Endpoint: "/v1/embeddings", Window: "24h"})
	if err != nil {
		t.Fatal(err)
	}
	if b = untilBatch(t, m, b.ID, ended); b.Status != jobs.Completed || b.Counts.Completed != rows {
		t.Fatalf("ended %s with %+v and %+v", b.Status, b.Counts, b.Errors)
	}
	if grown := int64(most.Load()) - int64(before); most.Load() == 0 || grown > allowed {
		t.Errorf("the heap grew by %d MiB at %d MB of rows, want at most %d", grown>>20, rows*size/1_000_000, allowed>>20)
	}
}
