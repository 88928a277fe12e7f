package jobs

import (
	"context"
	"slices"
	"time"
)

// Store keeps jobs. Every implementation passes jobs/storesuite.
type Store interface {
	// Put stores the job if the stored version is still j.Version (0 = it must
	// not exist yet), and counts j.Version up. When it returns nil the record
	// survives a crash. ErrConflict otherwise.
	Put(ctx context.Context, j *Job) error
	// Get returns the job or ErrNotFound.
	Get(ctx context.Context, id string) (Job, error)
	// List returns the jobs that match, newest first. What their maps, slices and
	// pointers lead to may be shared with other lists: it is not to be changed.
	List(ctx context.Context, f Filter) ([]Job, error)
	// Delete removes a job; removing what is not there is no error.
	Delete(ctx context.Context, id string) error
	Close() error
}

// FileStore keeps the records of files; their bytes are blobs.
type FileStore interface {
	// PutFile stores or replaces the record.
	PutFile(ctx context.Context, f File) error
	// File returns the record or ErrNotFound.
	File(ctx context.Context, id string) (File, error)
	// Files returns the records that match, newest first.
	Files(ctx context.Context, f FileFilter) ([]File, error)
	// DeleteFile removes a record; removing what is not there is no error.
	DeleteFile(ctx context.Context, id string) error
}

// Filter selects jobs; zero fields select all.
type Filter struct {
	States []State
	Kind   Kind
	Tenant string
	After  string // id of the last job of the page before; unknown = ErrNotFound
	Limit  int    // 0 = no limit
}

// Match reports whether a job with these properties is selected. After and
// Limit are the store's to apply.
func (f Filter) Match(s State, k Kind, tenant string) bool {
	return (len(f.States) == 0 || slices.Contains(f.States, s)) &&
		(f.Kind == "" || f.Kind == k) && (f.Tenant == "" || f.Tenant == tenant)
}

// FileFilter selects files; zero fields select all.
type FileFilter struct {
	Purpose, Tenant string
	After           string    // id of the last file of the page before; unknown = ErrNotFound
	Limit           int       // 0 = no limit
	OldestFirst     bool      // OpenAI's order=asc
	Now             time.Time // files that have expired by then are left out; zero = none are
}

// File is the record of an uploaded or produced file.
type File struct {
	ID      string
	Name    string
	Purpose string // PurposeBatch, PurposeBatchOutput, ...
	Tenant  string
	Bytes   int64
	Created time.Time
	Expires time.Time // zero = never
}

// The purposes that mean something to us; others are stored and listed.
const (
	PurposeBatch       = "batch"
	PurposeBatchOutput = "batch_output"
	PurposeFineTune    = "fine-tune"
)
