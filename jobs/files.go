package jobs

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"
)

// FileSpec describes an upload.
type FileSpec struct {
	Name    string
	Purpose string
	Tenant  string
	TTL     time.Duration // expires_after, 0 = kept
}

const (
	maxFileName = 256 // characters
	maxPurpose  = 64
	expireEvery = time.Minute // how often expired files are removed
	expirePage  = 1000        // records read at a time
)

func blobKey(file string) string { return "files/" + file }

// CreateFile streams the bytes into the bucket and stores the record; only then
// it answers. spec is asked once r has ended, so that what describes a file may
// come after it; until then, a file of another purpose may cost space. What fails
// on the way, r or spec included, leaves nothing. Created is when it began.
// *InvalidError for a bad spec or a file over the limit.
func (m *Manager) CreateFile(ctx context.Context, spec func() (FileSpec, error), r io.Reader) (File, error) {
	now := time.Now()
	f := File{ID: newID("file-", now), Created: now}
	limited := &io.LimitedReader{R: r, N: m.opt.MaxFileBytes + 1}
	err := m.storeFile(ctx, &f, limited, m.opt.MaxFileBytes, func() error {
		s, err := spec()
		if err == nil {
			err = f.describe(s)
		}
		return err
	})
	if err != nil {
		return File{}, err
	}
	return f, nil
}

// describe fills a new file in from its specification.
func (f *File) describe(s FileSpec) error {
	switch {
	case s.Name == "" || len(s.Name) > maxFileName:
		return invalid("file", "the file's name must have 1 to %d characters", maxFileName)
	case s.Purpose == "" || len(s.Purpose) > maxPurpose:
		return invalid("purpose", "must have 1 to %d characters", maxPurpose)
	case s.TTL < 0:
		return invalid("expires_after.seconds", "%v is negative", s.TTL)
	}
	f.Name, f.Purpose, f.Tenant = s.Name, s.Purpose, s.Tenant
	if s.TTL > 0 {
		f.Expires = f.Created.Add(s.TTL)
	}
	return nil
}

// storeFile writes blob and record; more than most bytes are refused. complete,
// if there is one, fills the record in once r has ended.
func (m *Manager) storeFile(ctx context.Context, f *File, r io.Reader, most int64, complete func() error) error {
	wctx, abort := context.WithCancel(ctx) // a writer whose context has ended leaves no blob
	defer abort()
	w, err := m.opt.Blobs.NewWriter(wctx, blobKey(f.ID), &blob.WriterOptions{ContentType: "application/octet-stream"})
	if err != nil {
		return fmt.Errorf("file %s: %w", f.ID, err)
	}
	f.Bytes, err = io.Copy(w, r)
	if err == nil && f.Bytes > most {
		err = invalid("file", "more than %d bytes", most)
	}
	if err == nil && complete != nil {
		err = complete()
	}
	if err != nil {
		abort()
		w.Close()
		return fmt.Errorf("file %s: %w", f.ID, err)
	}
	if err := w.Close(); err != nil {
		return fmt.Errorf("file %s: %w", f.ID, err)
	}
	if err := m.opt.Files.PutFile(ctx, *f); err != nil {
		m.dropBlob(f.ID)
		return fmt.Errorf("store file %s: %w", f.ID, err)
	}
	return nil
}

// publish makes a file of a local one; doing it twice replaces it.
func (m *Manager) publish(ctx context.Context, f File, path string) error {
	r, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("publish %s: %w", f.ID, err)
	}
	defer r.Close()
	st, err := r.Stat()
	if err != nil {
		return fmt.Errorf("publish %s: %w", f.ID, err)
	}
	return m.storeFile(ctx, &f, r, st.Size(), nil)
}

// File returns the record; expired files are not found.
func (m *Manager) File(ctx context.Context, id string) (File, error) {
	f, err := m.opt.Files.File(ctx, id)
	if err == nil && f.Expired(time.Now()) {
		err = ErrNotFound
	}
	if err != nil {
		return File{}, fmt.Errorf("file %s: %w", id, err)
	}
	return f, nil
}

// Expired reports whether the file's time is over by now.
func (f File) Expired(now time.Time) bool { return !f.Expires.IsZero() && !now.Before(f.Expires) }

// Files returns the records that match.
func (m *Manager) Files(ctx context.Context, f FileFilter) ([]File, error) {
	list, err := m.opt.Files.Files(ctx, f)
	if err != nil {
		return nil, fmt.Errorf("list files: %w", err)
	}
	return list, nil
}

// OpenFile returns the bytes of a file; the caller closes them.
func (m *Manager) OpenFile(ctx context.Context, id string) (io.ReadCloser, error) {
	if _, err := m.File(ctx, id); err != nil {
		return nil, err
	}
	return m.openBlob(ctx, id)
}

func (m *Manager) openBlob(ctx context.Context, id string) (io.ReadCloser, error) {
	r, err := m.opt.Blobs.NewReader(ctx, blobKey(id), nil)
	if gcerrors.Code(err) == gcerrors.NotFound {
		return nil, fmt.Errorf("content of file %s: %w", id, ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("content of file %s: %w", id, err)
	}
	return r, nil
}

// DeleteFile removes a file. *InvalidError while an unfinished batch or
// fine-tuning job reads it.
func (m *Manager) DeleteFile(ctx context.Context, id string) error {
	for _, batch := range m.readers(id) {
		// One that has ended may be listed for a moment more, but reads nothing.
		if b, err := m.Batch(ctx, batch); err != nil || !b.Status.Terminal() {
			return invalid("file_id", "batch %s reads it; cancel the batch first", batch)
		}
	}
	learned, err := m.learned(ctx)
	if err != nil {
		return err
	}
	if job := learned[id]; job != "" {
		return invalid("file_id", "fine-tuning job %s learns from it; cancel the job first", job)
	}
	if _, err := m.File(ctx, id); err != nil {
		return err
	}
	if err := m.opt.Files.DeleteFile(ctx, id); err != nil {
		return fmt.Errorf("delete file %s: %w", id, err)
	}
	m.dropBlob(id)
	return nil
}

// dropBlob removes bytes that no record names; what stays costs space only.
func (m *Manager) dropBlob(id string) {
	err := m.opt.Blobs.Delete(context.Background(), blobKey(id))
	if err != nil && gcerrors.Code(err) != gcerrors.NotFound {
		m.log.Warn("blob not removed", "file", id, "error", err)
	}
}

// dropUnfinished removes what files that were being written when an earlier
// process was killed left in a bucket that is a folder: names of ours have no
// dot. Nothing may be written meanwhile. What stays costs space only.
func (m *Manager) dropUnfinished(ctx context.Context) {
	for list := m.opt.Blobs.List(&blob.ListOptions{Prefix: blobKey("")}); ; {
		o, err := list.Next(ctx)
		if err == io.EOF {
			return
		}
		if err == nil && strings.HasSuffix(o.Key, ".tmp") {
			err = m.opt.Blobs.Delete(ctx, o.Key)
		}
		if err != nil {
			m.log.Warn("unfinished files not removed", "error", err)
			return
		}
	}
}

// expireFiles removes files whose time is over, until Close.
func (m *Manager) expireFiles() {
	tick := time.NewTicker(expireEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := m.removeExpired(time.Now()); err != nil && m.base.Err() == nil {
				m.log.Warn("expired files not removed", "error", err)
			}
		case <-m.base.Done():
			return
		}
	}
}

func (m *Manager) removeExpired(now time.Time) error {
	var gone []string
	learned, err := m.learned(m.base)
	if err != nil {
		return err
	}
	for f := (FileFilter{Limit: expirePage}); ; {
		list, err := m.opt.Files.Files(m.base, f)
		if err != nil {
			return err
		}
		for _, file := range list {
			if file.Expired(now) && len(m.readers(file.ID)) == 0 && learned[file.ID] == "" {
				gone = append(gone, file.ID)
			}
		}
		if len(list) < f.Limit {
			break
		}
		f.After = list[len(list)-1].ID
	}
	for _, id := range gone {
		if err := m.opt.Files.DeleteFile(m.base, id); err != nil {
			return err
		}
		m.dropBlob(id)
	}
	return nil
}

// readers are the batches that are made from a file.
func (m *Manager) readers(file string) (ids []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, b := range m.batches {
		if b.input == file {
			ids = append(ids, id)
		}
	}
	return ids
}
