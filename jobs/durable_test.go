package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"aloft/jobs"
)

// platter is what a power cut leaves of a folder of blobs: what was synced.
type platter struct {
	jobs.FileStore
	t      *testing.T
	folder string

	mu     sync.Mutex
	synced map[string]int64 // bytes by key
	named  map[string]int64 // of the records, by their purpose
	full   bool
}

func (p *platter) sync(key string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.full {
		return fmt.Errorf("sync: %w", fs.ErrPermission)
	}
	if err := jobs.Sync(filepath.Join(p.folder, key), p.folder); err != nil {
		return err
	}
	st, err := os.Stat(filepath.Join(p.folder, key))
	if err == nil {
		p.synced[key] = st.Size()
	}
	return err
}

func (p *platter) PutFile(ctx context.Context, f jobs.File) error {
	p.mu.Lock()
	if n, there := p.synced["files/"+f.ID]; !there || n != f.Bytes {
		p.t.Errorf("the record of %s (%s) says %d bytes; a power cut now leaves %d (%v)", f.ID, f.Purpose, f.Bytes, n, there)
	}
	p.named[f.Purpose] += f.Bytes
	p.mu.Unlock()
	return p.FileStore.PutFile(ctx, f)
}

// A record names only bytes that are safe from a power cut: those of an upload,
// and of both files of a batch. What could not be made safe has no record.
func TestRecordsFollowTheirBytes(t *testing.T) {
	dir := t.TempDir()
	p := &platter{t: t, folder: filepath.Join(dir, "blobs"), synced: map[string]int64{}, named: map[string]int64{}}
	o := jobs.Options{Caller: caller(func(ctx context.Context, r jobs.Row) (jobs.Result, error) {
		if f15Fastest(r) {
			return answer(ctx, r)
		}
		return jobs.Result{Status: 400, Body: []byte(`{"error":{"message":"no"}}`)}, nil
	})}
	o.Files = jobs.SyncedFiles{FileStore: p, Sync: p.sync}
	m, _ := newManager(t, dir, o)
	b, err := createBatch(m, rowsFile(f15Rows), "24h")
	if err != nil {
		t.Fatal(err)
	}
	b = untilBatch(t, m, b.ID, ended)
	good, bad := outputs(t, m, b, f15Rows)
	if len(good) != f15Fast || len(bad) != f15Rows-f15Fast {
		t.Errorf("%d good and %d bad rows", len(good), len(bad))
	}
	if p.named[jobs.PurposeBatch] == 0 || p.named[jobs.PurposeBatchOutput] == 0 || len(p.synced) != 3 {
		t.Errorf("synced %v, recorded %v", p.synced, p.named)
	}
	p.mu.Lock()
	p.full = true
	p.mu.Unlock()
	spec := known(jobs.FileSpec{Name: "in.jsonl", Purpose: jobs.PurposeBatch})
	if f, err := m.CreateFile(t.Context(), spec, strings.NewReader("x")); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("upload that could not be synced: %+v, %v", f, err)
	}
	left, err := os.ReadDir(filepath.Join(p.folder, "files"))
	if list, _ := m.Files(t.Context(), jobs.FileFilter{}); err != nil || len(list) != 3 || len(left) != 3 {
		t.Errorf("afterwards %d records and %d blobs, want the 3 of the batch (%v)", len(list), len(left), err)
	}
}

// Sync goes up to the folder it is told, and no error is passed over.
func TestSync(t *testing.T) {
	top := t.TempDir()
	deep := filepath.Join(top, "a", "b")
	if err := os.MkdirAll(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(deep, "file")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, from := range []string{path, deep, top} {
		if err := jobs.Sync(from, top); err != nil {
			t.Errorf("sync %s: %v", from, err)
		}
	}
	if err := jobs.Sync(filepath.Join(deep, "gone"), top); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("sync of what is not there: %v", err)
	}
	if err := jobs.Sync(path, filepath.Join(top, "elsewhere")); err != nil { // ends at the root
		t.Errorf("sync with a top that is not above it: %v", err)
	}
}
