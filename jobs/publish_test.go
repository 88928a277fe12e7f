package jobs_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"aloft/jobs"
	"aloft/jobs/boltstore"
)

// killer is a store whose process dies at one point of a batch's end.
type killer struct {
	*boltstore.Store
	point string
}

func (k *killer) at(point string) {
	if k.point == point {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

func (k *killer) PutFile(ctx context.Context, f jobs.File) error {
	name := map[bool]string{true: "output", false: "errors"}[strings.HasSuffix(f.Name, "_output.jsonl")]
	if f.Purpose != jobs.PurposeBatchOutput {
		return k.Store.PutFile(ctx, f)
	}
	k.at("before the record of " + name)
	defer k.at("after the record of " + name)
	return k.Store.PutFile(ctx, f)
}

func (k *killer) Put(ctx context.Context, j *jobs.Job, events ...jobs.Event) error {
	if j.State.Terminal() {
		k.at("before the end is stored")
		defer k.at("after the end is stored")
	}
	err := k.Store.Put(ctx, j, events...)
	if k.point == midCopy && err == nil && j.Batch.Status == jobs.Finalizing {
		// No file grows beyond it: the store is smaller, the output larger. Either
		// that ends the process there and then, or the copy is tried again and again.
		most := uint64(1 << 20)
		err = syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: most, Max: most})
	}
	return err
}

const midCopy = "while the output is copied"

const publishRows = 400

// rolePublish runs a batch to the point at which it is killed.
func rolePublish() {
	dir, point := os.Args[1], os.Args[2]
	k := &killer{point: point}
	m, _, err := openManager(dir, jobs.Options{Store: k, Caller: caller(publishAnswer)})
	if err == nil {
		_, err = createBatch(m, rowsFile(publishRows), "24h")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for point == midCopy {
		half, _ := filepath.Glob(filepath.Join(dir, "blobs", "files", "*out.*.tmp"))
		for _, name := range half {
			if st, err := os.Stat(name); err == nil && st.Size() > 0 {
				k.at(point)
			}
		}
		time.Sleep(100 * time.Microsecond)
	}
	select {}
}

func publishAnswer(ctx context.Context, r jobs.Row) (jobs.Result, error) {
	if f15Number(r)%10 == 0 {
		return jobs.Result{Status: 400, Body: []byte(`{"error":{"message":"no"}}`)}, nil
	}
	return jobs.Result{Status: 200, Body: fmt.Appendf(nil, `{"text":%q}`, strings.Repeat("x", 20_000))}, nil
}

// The two files of a batch are there once and whole, wherever between the first
// byte of the one and the record that names both its process was killed: no half
// of one, no second one, nothing else in the bucket.
func TestKill9WhilePublishing(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, point := range []string{
		midCopy, "before the record of output", "after the record of output", "before the record of errors",
		"after the record of errors", "before the end is stored", "after the end is stored",
	} {
		t.Run(point, func(t *testing.T) {
			dir := t.TempDir()
			ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
			defer stop()
			cmd := exec.CommandContext(ctx, self, dir, point)
			cmd.Env = append(os.Environ(), roleEnv+"=publish")
			said, err := cmd.CombinedOutput()
			half, _ := filepath.Glob(filepath.Join(dir, "blobs", "files", "*.tmp"))
			if died := cmd.ProcessState != nil && (!cmd.ProcessState.Exited() || bytes.Contains(said, []byte("SIGXFSZ"))); !died || ctx.Err() != nil || len(half) > 0 != (point == midCopy) {
				t.Fatalf("the server was to be killed, half a copy is %v: %v: %.1000s", half, err, said)
			}
			before, ok := committed(t, dir)
			if !ok || before.Status.Terminal() != (point == "after the end is stored") {
				t.Fatalf("at the kill: %s %+v", before.Status, before.Counts)
			}
			m, _ := newManager(t, dir, jobs.Options{Caller: caller(func(ctx context.Context, r jobs.Row) (jobs.Result, error) {
				t.Errorf("row %s is called again", r.ID)
				return publishAnswer(ctx, r)
			})})
			b := untilBatch(t, m, before.ID, ended)
			if good, bad := outputs(t, m, b, publishRows); b.Status != jobs.Completed || len(bad) != publishRows/10 {
				t.Errorf("ended %s with %d good and %d bad rows", b.Status, len(good), len(bad))
			}
			list, err := m.Files(t.Context(), jobs.FileFilter{Purpose: jobs.PurposeBatchOutput})
			if err != nil || len(list) != 2 {
				t.Errorf("%d files of results, %v; want 2", len(list), err)
			}
			for _, f := range list {
				r, err := m.OpenFile(t.Context(), f.ID)
				if err != nil {
					t.Fatal(err)
				}
				text, err := io.ReadAll(r)
				r.Close()
				if err != nil || int64(len(text)) != f.Bytes || !bytes.HasSuffix(text, []byte("\n")) || f.ID != b.OutputFile && f.ID != b.ErrorFile {
					t.Errorf("%s has %d bytes, %v; its record says %d, the batch names %s and %s", f.ID, len(text), err, f.Bytes, b.OutputFile, b.ErrorFile)
				}
			}
			if there, err := os.ReadDir(filepath.Join(dir, "blobs", "files")); err != nil || len(there) != 3 {
				t.Errorf("in the bucket: %v, %v; want the input and two files of results", there, err)
			}
			until(t, "its local output to be gone", func() bool {
				left, err := os.ReadDir(filepath.Join(dir, "batches"))
				return err == nil && len(left) == 0
			})
		})
	}
}
