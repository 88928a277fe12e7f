package jobs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// SyncedFiles is a FileStore whose records outlive a power cut together with their
// bytes, where the bucket leaves these to the system: a folder does.
type SyncedFiles struct {
	FileStore
	Sync func(blob string) error // makes a blob, by its key, safe from a power cut
}

// PutFile implements FileStore: bytes and name of the blob come first.
func (s SyncedFiles) PutFile(ctx context.Context, f File) error {
	if err := s.Sync(blobKey(f.ID)); err != nil {
		return err
	}
	return s.FileStore.PutFile(ctx, f)
}

// Sync makes a file's bytes, or the names in a folder, safe from a power cut, and
// likewise the names in each folder above it up to top: whoever wrote the file may
// just have made them.
func Sync(path, top string) error {
	for {
		if err := syncOne(path); err != nil {
			return fmt.Errorf("sync: %w", err)
		}
		if path == top || path == filepath.Dir(path) {
			return nil
		}
		path = filepath.Dir(path)
	}
}

func syncOne(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if err = f.Sync(); st.IsDir() && errors.Is(err, syscall.EINVAL) {
		return nil // a file system that keeps names safe by itself, or cannot
	}
	return err
}
