package jobs

import (
	"context"
	"slices"
	"time"
)

// Store keeps jobs and what belongs to them. Every implementation passes
// jobs/storesuite.
type Store interface {
	RecordStore
	EventStore
	ScheduleStore
	Close() error
}

// RecordStore keeps the records of jobs.
type RecordStore interface {
	// Put stores the job if the stored version is still j.Version (0 = it must
	// not exist yet), adds the events to it, and counts j.Version up. When it
	// returns nil all of that survives a crash. ErrConflict if the version is
	// another, ErrKeyTaken if a new job's idempotency key is its tenant's already.
	Put(ctx context.Context, j *Job, events ...Event) error
	// Get returns the job or ErrNotFound.
	Get(ctx context.Context, id string) (Job, error)
	// List returns the jobs that match, newest first. What their maps, slices and
	// pointers lead to may be shared with other lists: it is not to be changed.
	List(ctx context.Context, f Filter) ([]Job, error)
	// Delete removes a job and its events; removing what is not there is no error.
	Delete(ctx context.Context, id string) error
}

// EventStore keeps what happened to each job: the newest MaxEvents of it.
type EventStore interface {
	// AddEvent numbers the event and keeps it with the job; ErrNotFound if there
	// is no such job.
	AddEvent(ctx context.Context, job string, e Event) error
	// Events returns the job's events with numbers above after, oldest first;
	// limit 0 = all. A job without any has none, known or not.
	Events(ctx context.Context, job string, after, limit int) ([]Event, error)
}

// ScheduleStore remembers where each schedule stands.
type ScheduleStore interface {
	// PutSchedule stores or replaces the standing of one schedule.
	PutSchedule(ctx context.Context, s ScheduleState) error
	// Schedules returns all, by name.
	Schedules(ctx context.Context) ([]ScheduleState, error)
	// DeleteSchedule forgets one; forgetting what is not there is no error.
	DeleteSchedule(ctx context.Context, name string) error
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
	// Key selects the tenant's job with this idempotency key; the other fields
	// but Tenant do not count then.
	Key string
	// Removable selects the jobs whose time to be kept has passed by then, those
	// first for which it passed first; only Limit counts besides. Zero = all jobs.
	Removable time.Time
}

// Match reports whether a job with these properties is selected. The rest is the
// store's to apply.
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
