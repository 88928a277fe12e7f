package main

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"testing"

	"gocloud.dev/blob"
	_ "gocloud.dev/blob/memblob"

	"aloft/jobs"
)

// fileSink is a FileStore that counts what it was given.
type fileSink struct {
	jobs.FileStore
	n int
}

func (r *fileSink) PutFile(context.Context, jobs.File) error { r.n++; return nil }

// A bucket that is a folder is found, as gocloud.dev finds it: a blob that is in it
// can be recorded, one that is not cannot. Other buckets are not looked into.
func TestBlobsInFoldersAreSynced(t *testing.T) {
	t.Chdir(t.TempDir())
	abs := filepath.ToSlash(t.TempDir())
	for _, tt := range []struct {
		url    string
		folder bool
	}{
		{"file://" + abs + "?metadata=skip&no_tmp_dir=true", true},
		{"file://" + abs + "/a%20b/?create_dir=1&no_tmp_dir=true", true},
		{"file://localhost" + abs + "?no_tmp_dir=true&prefix=of/us/", true},
		{"file://./blobs?create_dir=1&no_tmp_dir=true", true},
		{"mem://", false},
	} {
		bucket, err := blob.OpenBucket(t.Context(), tt.url)
		if err != nil {
			t.Fatal(err)
		}
		defer bucket.Close()
		if err := bucket.WriteAll(t.Context(), "files/file-there", []byte("x"), nil); err != nil {
			t.Fatal(err)
		}
		r := &fileSink{}
		files := durable(r, tt.url)
		if err := files.PutFile(t.Context(), jobs.File{ID: "file-there"}); err != nil || r.n != 1 {
			t.Errorf("%s: a blob that is there: %v, recorded %d times", tt.url, err, r.n)
		}
		err = files.PutFile(t.Context(), jobs.File{ID: "file-gone"})
		if errors.Is(err, fs.ErrNotExist) != tt.folder || (r.n == 1) != tt.folder {
			t.Errorf("%s: a blob that is not there: %v, recorded %d times", tt.url, err, r.n)
		}
	}
}
