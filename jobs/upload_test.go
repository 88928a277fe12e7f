package jobs_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"gocloud.dev/blob"
	"gocloud.dev/blob/driver"
	"gocloud.dev/gcerrors"

	"aloft/jobs"
)

// quota is a bucket of files where more than 1000 bytes are over the quota.
type quota struct {
	driver.Bucket
	dir string
}

func (q quota) NewTypedWriter(ctx context.Context, key, _ string, _ *driver.WriterOptions) (driver.Writer, error) {
	f, err := os.Create(filepath.Join(q.dir, filepath.Base(key)))
	return &quotaWriter{ctx: ctx, f: f, left: 1000}, err
}
func (quota) ListPaged(context.Context, *driver.ListOptions) (*driver.ListPage, error) {
	return &driver.ListPage{}, nil
}
func (quota) ErrorCode(error) gcerrors.ErrorCode { return gcerrors.Unknown }
func (quota) Close() error                       { return nil }

type quotaWriter struct {
	ctx  context.Context
	f    *os.File
	left int
}

func (w *quotaWriter) Write(p []byte) (int, error) {
	if w.left -= len(p); w.left < 0 {
		return 0, &os.PathError{Op: "write", Path: w.f.Name(), Err: syscall.EDQUOT}
	}
	return w.f.Write(p)
}

// Close keeps the file unless the context has ended, as every driver does.
func (w *quotaWriter) Close() error {
	w.f.Close()
	if w.ctx.Err() != nil {
		os.Remove(w.f.Name())
	}
	return w.ctx.Err()
}

// What fails before a file is whole leaves neither a record nor bytes.
func TestFailedUploadLeavesNothing(t *testing.T) {
	broke, unknown := errors.New("the client left"), errors.New("no purpose")
	spec := known(jobs.FileSpec{Name: "a", Purpose: "batch"})
	half := func() io.Reader { return io.MultiReader(strings.NewReader(strings.Repeat("x", 500)), failing{broke}) }
	for name, tt := range map[string]struct {
		spec    func() (jobs.FileSpec, error)
		r       io.Reader
		limited bool
		want    error
	}{
		"broken":     {spec, half(), false, broke},
		"no spec":    {func() (jobs.FileSpec, error) { return jobs.FileSpec{}, unknown }, strings.NewReader("x"), false, unknown},
		"bad spec":   {known(jobs.FileSpec{Name: "a"}), strings.NewReader("x"), false, nil},
		"too large":  {spec, strings.NewReader(strings.Repeat("x", 2001)), false, nil},
		"over quota": {spec, strings.NewReader(strings.Repeat("x", 2000)), true, syscall.EDQUOT},
	} {
		dir := t.TempDir()
		o := jobs.Options{MaxFileBytes: 2000}
		if tt.limited {
			o.Blobs = blob.NewBucket(quota{dir: filepath.Join(dir, "blobs")})
			defer o.Blobs.Close()
		}
		m, stop := newManager(t, dir, o)
		_, err := m.CreateFile(t.Context(), tt.spec, tt.r)
		if bad, ok := errors.AsType[*jobs.InvalidError](err); tt.want != nil && !errors.Is(err, tt.want) || tt.want == nil && !ok {
			t.Errorf("%s: %v (%v), want %v", name, err, bad, tt.want)
		}
		if list, err := m.Files(t.Context(), jobs.FileFilter{}); len(list) != 0 || err != nil {
			t.Errorf("%s: records %v, %v", name, list, err)
		}
		stop()
		if left := regular(t, filepath.Join(dir, "blobs")); len(left) != 0 {
			t.Errorf("%s left %v", name, left)
		}
	}
}

// The specification is asked once all bytes are there, and not before.
func TestSpecComesAfterTheFile(t *testing.T) {
	m, _ := newManager(t, t.TempDir(), jobs.Options{})
	r := strings.NewReader("some rows")
	f, err := m.CreateFile(t.Context(), func() (jobs.FileSpec, error) {
		if r.Len() > 0 {
			return jobs.FileSpec{}, errors.New("asked too early")
		}
		return jobs.FileSpec{Name: "a", Purpose: "batch", Tenant: "t"}, nil
	}, r)
	if err != nil || f.Bytes != 9 || f.Name != "a" || f.Purpose != "batch" || f.Tenant != "t" {
		t.Errorf("%+v, %v", f, err)
	}
}

// What an upload left that a kill cut off goes when the server starts again;
// files that are whole stay.
func TestKilledUploadIsRemoved(t *testing.T) {
	dir := t.TempDir()
	m, stop := newManager(t, dir, jobs.Options{})
	f, err := m.CreateFile(t.Context(), known(jobs.FileSpec{Name: "a.tmp", Purpose: "batch"}), strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	stop()
	blobs := filepath.Join(dir, "blobs")
	if err := os.WriteFile(filepath.Join(blobs, "files", "file-1.18a.tmp"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	newManager(t, dir, jobs.Options{})
	until(t, "the rest to go", func() bool { return len(regular(t, blobs)) == 1 })
	if left := regular(t, blobs); left[0] != f.ID {
		t.Errorf("left: %v, want %s", left, f.ID)
	}
}

type failing struct{ error }

func (f failing) Read([]byte) (int, error) { return 0, f.error }

// regular are the names of the files below dir.
func regular(t *testing.T, dir string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			names = append(names, d.Name())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
