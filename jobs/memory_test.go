package jobs_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"aloft/jobs"
)

const (
	memoryRows    = 50_000 // the most that a batch may have
	memoryAllowed = 64     // MiB
)

// raced is set under the race detector, by race_test.go.
var raced bool

// memoryReport is what roleRows says at its end.
type memoryReport struct {
	Batch string
	Anon  int // kB, the most that was held at the end of a row
	Peak  int // kB resident, program text and mapped pages of the store included
}

// status is a field of this process's memory, in kB; 0 where there is no /proc.
func status(field string) (kB int) {
	text, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			fmt.Sscan(rest, &kB)
		}
	}
	return kB
}

// roleRows runs the largest batch in a process of its own, with replies as long
// as a small encoder's, and says what that took.
func roleRows() {
	check := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	reply := []byte(`{"object":"list","data":[{"object":"embedding","index":0,"embedding":"` + strings.Repeat("A", 2048) + `"}],"usage":{"prompt_tokens":2,"total_tokens":2}}`)
	m, stop, err := openManager(os.Args[1], jobs.Options{
		BatchConcurrency: func(string) int { return 64 },
		Caller: caller(func(context.Context, jobs.Row) (jobs.Result, error) {
			return jobs.Result{Status: 200, RequestID: "req", Body: append([]byte(nil), reply...)}, nil
		}),
	})
	check(err)
	ctx := context.Background()
	f, err := m.CreateFile(ctx, known(jobs.FileSpec{Name: "in", Purpose: jobs.PurposeBatch}), &endless{rows: memoryRows, size: 40})
	check(err)
	b, err := m.CreateBatch(ctx, jobs.BatchSpec{InputFile: f.ID, Endpoint: "/v1/embeddings", Window: "24h"})
	check(err)
	r := memoryReport{Batch: b.ID}
	for ; !b.Status.Terminal(); time.Sleep(5 * time.Millisecond) {
		r.Anon = max(r.Anon, status("RssAnon"))
		b, err = m.Batch(ctx, b.ID)
		check(err)
	}
	r.Peak = status("VmHWM")
	check(stop())
	check(json.NewEncoder(os.Stdout).Encode(r))
}

// 50,000 rows in, 110 MB out: the whole process, measured by the kernel, stays
// within 64 MiB, and every row is there once.
func TestLargestBatchInSoMuchMemory(t *testing.T) {
	if status("RssAnon") == 0 {
		t.Skip("this system has no /proc/self/status to measure memory with")
	}
	if raced {
		t.Skip("the race detector's own memory is several times the program's")
	}
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, dir)
	cmd.Env = append(os.Environ(), roleEnv+"=rows")
	cmd.Stderr = os.Stderr
	said, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var r memoryReport
	if err := json.Unmarshal(said, &r); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	t.Logf("%d kB resident at most, of which %d kB anonymous", r.Peak, r.Anon)
	if r.Anon == 0 || r.Peak > memoryAllowed<<10 {
		t.Errorf("%d kB resident, %d kB of it anonymous; want at most %d MiB", r.Peak, r.Anon, memoryAllowed)
	}
	m, _ := newManager(t, dir, jobs.Options{})
	b, err := m.Batch(t.Context(), r.Batch)
	if err != nil {
		t.Fatal(err)
	}
	if good, _ := outputs(t, m, b, memoryRows); b.Status != jobs.Completed || len(good) != memoryRows {
		t.Errorf("ended %s with %d rows", b.Status, len(good))
	}
}
