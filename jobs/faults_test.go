package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"aloft/jobs"
)

// F15's batch: 25 rows, of which the first 5 answer at once.
const (
	f15Rows = 25
	f15Fast = 5
)

func f15Fastest(r jobs.Row) bool { return f15Number(r) < f15Fast }

func f15Number(r jobs.Row) int {
	n, err := strconv.Atoi(strings.TrimPrefix(gjson.GetBytes(r.Body, "input").Str, "text "))
	if err != nil {
		panic(err)
	}
	return n
}

// watchF15 follows a batch to its end. On the way it is in none but OpenAI's
// eight states, and never counts more rows than there are.
func watchF15(t *testing.T, m *jobs.Manager, id string) jobs.Batch {
	t.Helper()
	legal := []jobs.BatchStatus{jobs.Validating, jobs.BatchFailed, jobs.InProgress, jobs.Finalizing, jobs.Completed, jobs.BatchExpired, jobs.Cancelling, jobs.BatchCancelled}
	return untilBatch(t, m, id, func(b jobs.Batch) bool {
		if !slices.Contains(legal, b.Status) {
			t.Fatalf("batch is %q, which no client knows", b.Status)
		}
		return ended(b)
	})
}

// F15, llm-d-batch-gateway 199 (a panic left a batch in progress for ever): five
// fast rows and twenty slow ones; workers panic: once (the row is
// tried again) and always (the row fails, alone).
func TestF15PanicInAWorker(t *testing.T) {
	var once sync.Map
	m, _ := newManager(t, t.TempDir(), jobs.Options{Caller: caller(func(ctx context.Context, r jobs.Row) (jobs.Result, error) {
		n := f15Number(r)
		if !f15Fastest(r) {
			time.Sleep(10 * time.Millisecond)
		}
		if _, seen := once.LoadOrStore(n, nil); n == 2 || n == 20 || n%5 == 1 && !seen {
			panic(fmt.Sprintf("a bug in row %d", n))
		}
		return answer(ctx, r)
	})})
	b, err := createBatch(m, rowsFile(f15Rows), "24h")
	if err != nil {
		t.Fatal(err)
	}
	b = watchF15(t, m, b.ID)
	good, bad := outputs(t, m, b, f15Rows)
	if b.Status != jobs.Completed || len(good) != f15Rows-2 || bad["row-2"].Error == nil || bad["row-20"].Error == nil {
		t.Errorf("ended %s with %d good rows, bad ones %+v", b.Status, len(good), bad)
	}
}

// F15, llm-d-batch-gateway 221 (rows cut off were in no file), 504 (rows in the
// wrong file, and twice), litellm 36034 (the files were not the owner's to read):
// cancelled mid-way by two at once, and again when it is over. The fast rows
// stay done, the slow ones are told so, and every row is in one file.
func TestF15CancelMidwayAndTwice(t *testing.T) {
	var begun, cut atomic.Int32
	m, _ := newManager(t, t.TempDir(), jobs.Options{Caller: caller(func(ctx context.Context, r jobs.Row) (jobs.Result, error) {
		if f15Fastest(r) {
			return answer(ctx, r)
		}
		begun.Add(1)
		select {
		case <-ctx.Done():
			cut.Add(1)
			return jobs.Result{}, context.Cause(ctx)
		case <-time.After(time.Minute):
			return answer(ctx, r)
		}
	})})
	b, err := createBatch(m, rowsFile(f15Rows), "24h")
	if err != nil {
		t.Fatal(err)
	}
	untilBatch(t, m, b.ID, func(b jobs.Batch) bool { return b.Counts.Completed == f15Fast && begun.Load() > 0 })
	if err := m.DeleteFile(t.Context(), b.InputFile); err == nil {
		t.Error("the input of a running batch was deleted")
	}
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			got, err := m.CancelBatch(t.Context(), b.ID)
			if err != nil && !errors.Is(err, jobs.ErrFinished) || err == nil && got.Status != jobs.Cancelling {
				t.Errorf("cancel: %s, %v", got.Status, err)
			}
		})
	}
	both.Wait()
	b = watchF15(t, m, b.ID)
	good, bad := outputs(t, m, b, f15Rows)
	if b.Status != jobs.BatchCancelled || len(good) != f15Fast || len(bad) != f15Rows-f15Fast || cut.Load() == 0 || b.Stamps.Cancelled.IsZero() {
		t.Errorf("ended %s with %d good and %d bad rows, %d calls cut off", b.Status, len(good), len(bad), cut.Load())
	}
	for id, l := range bad {
		if l.Error == nil || l.Error.Code != "batch_cancelled" {
			t.Errorf("row %s: %+v", id, l)
		}
	}
	untilState(t, m, b.ID, jobs.Cancelled)
	if _, err := m.CancelBatch(t.Context(), b.ID); !errors.Is(err, jobs.ErrFinished) {
		t.Errorf("cancel of a cancelled batch: %v, want ErrFinished", err)
	}
	if after, err := m.Batch(t.Context(), b.ID); err != nil || after.Counts != b.Counts || after.Status != b.Status || after.OutputFile != b.OutputFile {
		t.Errorf("cancelling it once more made %+v of %+v (%v)", after, b, err)
	}
}

// f15Done is how many rows are committed when the server is killed: 40 %.
const f15Done = f15Rows * 40 / 100

// roleF15 serves F15's batch and kills itself when exactly f15Done rows are
// committed: the rest hang.
func roleF15() {
	check := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	var begun atomic.Int32
	m, _, err := openManager(os.Args[1], jobs.Options{Caller: caller(func(ctx context.Context, r jobs.Row) (jobs.Result, error) {
		if begun.Add(1) > f15Done {
			<-ctx.Done()
			return jobs.Result{}, context.Cause(ctx)
		}
		return answer(ctx, r)
	})})
	check(err)
	b, err := createBatch(m, rowsFile(f15Rows), "24h")
	check(err)
	for b.Counts.Completed < f15Done {
		time.Sleep(time.Millisecond)
		b, err = m.Batch(context.Background(), b.ID)
		check(err)
	}
	check(syscall.Kill(os.Getpid(), syscall.SIGKILL))
	select {}
}

// F15, llm-d-batch-gateway 645 (a batch stayed in progress without its server):
// kill -9 at 40 %, restart. What was committed is not called again, what
// was under way is, and every row comes out once.
func TestF15Kill9At40Percent(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, dir)
	cmd.Env = append(os.Environ(), roleEnv+"=f15")
	said, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil || cmd.ProcessState.Exited() {
		t.Fatalf("the server was to be killed: %v: %s", err, said)
	}
	before, ok := committed(t, dir)
	if !ok || before.Counts != (jobs.Counts{Total: f15Rows, Completed: f15Done}) {
		t.Fatalf("at the kill: %+v", before.Counts)
	}
	var calls sync.Map
	var number atomic.Int32
	m, _ := newManager(t, dir, jobs.Options{Caller: caller(func(ctx context.Context, r jobs.Row) (jobs.Result, error) {
		number.Add(1)
		if _, twice := calls.LoadOrStore(r.ID, nil); twice {
			t.Errorf("row %s was called twice in one life", r.ID)
		}
		return answer(ctx, r)
	})})
	b := watchF15(t, m, before.ID)
	good, bad := outputs(t, m, b, f15Rows)
	if b.Status != jobs.Completed || len(good) != f15Rows || len(bad) != 0 {
		t.Errorf("ended %s with %d good, %d bad rows", b.Status, len(good), len(bad))
	}
	if n := int(number.Load()); n != f15Rows-f15Done {
		t.Errorf("%d rows called after the restart, want %d: those not committed", n, f15Rows-f15Done)
	}
}

// F15's files, from the upload to the end: a bad one fails with its line and
// leaves no row, no output and no call; an odd but good one runs. Seen elsewhere
// as llm-d-batch-gateway 147 (custom_id), 150 and 152 (purpose), 153 (stream),
// BerriAI/litellm 37527 (method, no JSONL).
func TestF15Files(t *testing.T) {
	row := func(i int) string { return strings.SplitAfter(rowsFile(i+1), "\n")[i] }
	good := rowsFile(3)
	for _, c := range []struct {
		name, file string
		rows       int    // that run, of a good file
		line       int    // of the first error
		code       string // "" = a good file
	}{
		{"no custom_id", good + strings.Replace(row(3), `"custom_id":"row-3",`, "", 1), 0, 4, "missing_required_parameter"},
		{"custom_id twice", good + row(1) + row(3), 0, 4, "duplicate_custom_id"},
		{"custom_id empty", row(0) + strings.Replace(row(1), `"row-1"`, `""`, 1), 0, 2, "invalid_custom_id"},
		{"custom_id no string", row(0) + strings.Replace(row(1), `"row-1"`, `1`, 1), 0, 2, "invalid_custom_id"},
		{"no method", row(0) + strings.Replace(row(1), `"method":"POST",`, "", 1), 0, 2, "invalid_method"},
		{"another method", row(0) + strings.Replace(row(1), "POST", "GET", 1), 0, 2, "invalid_method"},
		{"no body", row(0) + `{"custom_id":"b","method":"POST","url":"/v1/embeddings"}` + "\n", 0, 2, "missing_required_parameter"},
		{"no JSONL", "notes, and nothing else\n", 0, 1, "invalid_json_line"},
		{"one array", `[` + strings.TrimSuffix(row(0), "\n") + "]\n", 0, 1, "invalid_json_line"},
		{"another model", row(0) + strings.Replace(row(1), `"m"`, `"n"`, 1), 0, 2, "mismatched_model"},
		{"stream", row(0) + strings.Replace(row(1), `"input"`, `"stream":true,"input"`, 1), 0, 2, "invalid_value"},
		{"another url", row(0) + strings.Replace(row(1), "embeddings", "completions", 1), 0, 2, "mismatched_url"},
		{"blank line", row(0) + "\n" + row(1), 0, 2, "invalid_json_line"},
		{"20 MB line", row(0) + strings.Replace(row(1), "text 1", strings.Repeat("x", 20_000_000), 1) + row(2), 0, 2, "line_too_long"},
		{"empty", "", 0, 0, "empty_file"},
		{"CRLF", strings.ReplaceAll(good, "\n", "\r\n"), 3, 0, ""},
		{"BOM", "\xef\xbb\xbf" + good, 3, 0, ""},
		{"no newline at the end", strings.TrimSuffix(good, "\n"), 3, 0, ""},
		{"all of them, and blank lines behind", "\xef\xbb\xbf" + strings.ReplaceAll(good, "\n", "\r\n") + "\r\n \n" + "\n", 3, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var calls atomic.Int32
			m, _ := newManager(t, t.TempDir(), jobs.Options{Caller: caller(func(ctx context.Context, r jobs.Row) (jobs.Result, error) {
				calls.Add(1)
				return answer(ctx, r)
			})})
			b, err := createBatch(m, c.file, "24h")
			if err != nil {
				t.Fatal(err)
			}
			b = watchF15(t, m, b.ID)
			if c.code == "" {
				if lines, _ := outputs(t, m, b, c.rows); b.Status != jobs.Completed || len(lines) != c.rows {
					t.Errorf("ended %s with %d good rows: %+v", b.Status, len(lines), b.Errors)
				}
				return
			}
			if b.Status != jobs.BatchFailed || len(b.Errors) != 1 || b.Errors[0].Line != c.line || b.Errors[0].Code != c.code {
				t.Errorf("ended %s with %+v, want failed, %s in line %d", b.Status, b.Errors, c.code, c.line)
			}
			if b.Counts.Completed+b.Counts.Failed != 0 || b.OutputFile != "" || b.ErrorFile != "" || calls.Load() != 0 {
				t.Errorf("counts %+v, files %q and %q, %d calls; want none", b.Counts, b.OutputFile, b.ErrorFile, calls.Load())
			}
		})
	}
	t.Run("another purpose", func(t *testing.T) {
		m, _ := newManager(t, t.TempDir(), jobs.Options{})
		f, err := m.CreateFile(t.Context(), known(jobs.FileSpec{Name: "in.jsonl", Purpose: "fine-tune"}), strings.NewReader(good))
		if err != nil {
			t.Fatal(err)
		}
		_, err = m.CreateBatch(t.Context(), jobs.BatchSpec{InputFile: f.ID, Endpoint: "/v1/embeddings", Window: "24h"})
		if e, ok := errors.AsType[*jobs.InvalidError](err); !ok || e.Param != "input_file_id" {
			t.Errorf("%v, want input_file_id refused", err)
		}
	})
}
