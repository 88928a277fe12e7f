package jobs_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"aloft/gpu"
	"aloft/jobs"
	"aloft/jobs/boltstore"
)

const killRows = 4000

// roleServe is a server in small: one batch and one training job, made at the
// first start and carried to their ends by however many lives it takes.
func roleServe() {
	dir := os.Args[1]
	check := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	calls, err := os.OpenFile(filepath.Join(dir, "calls.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	check(err)
	m, stop, err := openManager(dir, jobs.Options{Caller: caller(func(ctx context.Context, r jobs.Row) (jobs.Result, error) {
		fmt.Fprintf(calls, "%s\n", r.ID)
		time.Sleep(rand.N(3 * time.Millisecond))
		return answer(ctx, r)
	})})
	check(err)
	ctx := context.Background()
	if list, err := m.List(ctx, jobs.Filter{Kind: jobs.KindBatch}); err == nil && len(list) == 0 {
		_, err = createBatch(m, rowsFile(killRows), "24h")
		check(err)
	}
	if list, err := m.List(ctx, jobs.Filter{Kind: jobs.KindTrain}); err == nil && len(list) == 0 {
		_, err = m.Submit(ctx, jobs.Job{Template: "train"})
		check(err)
	}
	for open := 1; open > 0; time.Sleep(5 * time.Millisecond) {
		list, err := m.List(ctx, jobs.Filter{})
		check(err)
		open = 0
		for _, j := range list {
			if !j.State.Terminal() {
				open++
			}
			if j.Kind == jobs.KindTrain && j.State == jobs.Queued {
				check(m.Start(ctx, j.ID, []gpu.Slice{{ID: "g0/s0"}}))
			}
		}
	}
	check(stop())
}

// TestKill9 kills the server at random moments. No row is lost or doubled, no
// committed row is called again, and the training ends as if nothing had been.
func TestKill9(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 2))
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	batch, lives := "", 0
	for deadline := time.Now().Add(60 * time.Second); ; lives++ {
		if time.Now().After(deadline) {
			t.Fatalf("not done after %d lives (seed %d)", lives, seed)
		}
		cmd := exec.Command(self, dir)
		cmd.Env = append(os.Environ(), roleEnv+"=serve")
		var said strings.Builder
		cmd.Stderr = &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if lives < 8 { // then let it end
			time.AfterFunc(50*time.Millisecond+time.Duration(r.Int64N(int64(450*time.Millisecond))), func() { cmd.Process.Kill() })
		}
		err := cmd.Wait()
		if err == nil {
			break
		}
		if cmd.ProcessState.Exited() {
			t.Fatalf("life %d: %v: %s (seed %d)", lives, err, said.String(), seed)
		}
		if b, ok := committed(t, dir); ok {
			batch = b.ID
			mark(t, dir, b)
		}
	}
	if batch == "" || lives < 2 {
		t.Fatalf("only %d lives: the machine is too fast or too slow for this test", lives)
	}
	again := 0
	done := map[string]bool{}
	seen := map[string]int{}
	log, err := os.ReadFile(filepath.Join(dir, "calls.log"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(log)) {
		line = strings.TrimSuffix(line, "\n")
		if id, ok := strings.CutPrefix(line, "done "); ok {
			done[id] = true
			continue
		}
		if done[line] {
			t.Errorf("row %s was called after it was committed (seed %d)", line, seed)
		}
		if seen[line]++; seen[line] == 2 {
			again++
		}
	}
	m, _ := newManager(t, dir, jobs.Options{})
	b, err := m.Batch(t.Context(), batch)
	if err != nil {
		t.Fatal(err)
	}
	good, bad := outputs(t, m, b, killRows)
	if b.Status != jobs.Completed || len(good) != killRows || len(bad) != 0 || b.Usage.Total != 2*killRows {
		t.Errorf("%s with %d good, %d bad rows, usage %+v (seed %d)", b.Status, len(good), len(bad), b.Usage, seed)
	}
	list, err := m.List(t.Context(), jobs.Filter{Kind: jobs.KindTrain})
	if err != nil || len(list) != 1 {
		t.Fatalf("training jobs: %v, %v", list, err)
	}
	if j := list[0]; j.State != jobs.Succeeded || j.Progress.Result != wholeRun(t) {
		t.Errorf("training %s (%s) with %+v (seed %d)", j.State, j.Error, j.Progress, seed)
	}
	t.Logf("%d lives, %d committed rows seen between them, %d rows called again, training resumed %d times",
		lives+1, len(done), again, list[0].Progress.Resumes)
}

// committed reads the batch as a dead server left it.
func committed(t *testing.T, dir string) (jobs.Batch, bool) {
	t.Helper()
	s, err := boltstore.Open(filepath.Join(dir, "jobs.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	list, err := s.List(t.Context(), jobs.Filter{Kind: jobs.KindBatch})
	if err != nil || len(list) == 0 {
		return jobs.Batch{}, false
	}
	return *list[0].Batch, true
}

// mark notes in the call log which rows are committed by now.
func mark(t *testing.T, dir string, b jobs.Batch) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, "calls.log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all strings.Builder
	for i := range killRows {
		if i/8 < len(b.Log.Done) && b.Log.Done[i/8]&(1<<(i%8)) != 0 {
			fmt.Fprintf(&all, "done batch_req_%s_%05d\n", strings.TrimPrefix(b.ID, "batch_"), i)
		}
	}
	if _, err := f.WriteString(all.String()); err != nil {
		t.Fatal(err)
	}
}
