// Package boltstore keeps jobs and file records in one bbolt file: the embedded
// default of jobs.Store and jobs.FileStore.
//
// A value is a schema byte, a stamp that no other write of the file has, and
// JSON. Indexes in age order carry what a filter needs, so that a page of a long
// list decodes only its own records; unfinished jobs, which the arbiter asks for
// at every look, are decoded once for each time they change.
package boltstore

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"aloft/jobs"
)

// schema is the version of the stored form, of each record and of the file. A
// higher one is refused: it was written by a newer aloft. Schema 1 had no stamp
// and did not say until when a finished job is kept; see prepare.
const schema = 2

// lockWait bounds the wait for the file's lock: another aloft holds it.
const lockWait = 2 * time.Second

var (
	jobsBucket = []byte("jobs")      // id → record
	fileBucket = []byte("files")     // id → record
	fileAge    = []byte("files_age") // created, id → purpose, tenant
	metaBucket = []byte("meta")      // what is true of the whole file: "version", "indexes"
	keyBucket  = []byte("jobs_key")  // tenant, idempotency key → id
	keptBucket = []byte("jobs_kept") // kept until, id → nothing; finished jobs only

	eventBucket = []byte("events")    // id, number → event
	schedBucket = []byte("schedules") // name → standing
)

// Store implements jobs.Store and jobs.FileStore.
type Store struct {
	db   *bbolt.DB
	live decoded

	writes  chan write
	closing chan struct{} // closed by Close
	closed  chan struct{} // closed when commits has ended
	once    sync.Once
}

// Open opens or creates the file at path, and brings an older one up to date.
func Open(path string) (*Store, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockWait, FreelistType: bbolt.FreelistMapType})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("open job store %s: another aloft is using it", path)
	}
	if err != nil {
		return nil, fmt.Errorf("open job store %s: %w", path, err)
	}
	err = prepare(db)
	if err == nil {
		err = jobs.Sync(path, filepath.Dir(path)) // of a new file, its name as well
	}
	if err != nil {
		db.Close()
		return nil, fmt.Errorf("open job store %s: %w", path, err)
	}
	s := &Store{db: db, writes: make(chan write), closing: make(chan struct{}), closed: make(chan struct{})}
	go s.commits()
	return s, nil
}

// Close lets the commit that is on its way end, and closes the file.
func (s *Store) Close() error {
	s.once.Do(func() { close(s.closing) })
	<-s.closed
	return s.db.Close()
}

const stampBytes = 8

// encode returns the stored form of a record, with room for its stamp.
func encode(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode record: %w", err)
	}
	value := make([]byte, 1+stampBytes, 1+stampBytes+len(b))
	value[0] = schema
	return append(value, b...), nil
}

// put stores an encoded record under a new stamp: the bucket's sequence goes on
// only when the transaction is committed.
func put(b *bbolt.Bucket, id string, value []byte) error {
	n, err := b.NextSequence()
	if err != nil {
		return err
	}
	binary.BigEndian.PutUint64(value[1:], n)
	return b.Put([]byte(id), value)
}

// stamp tells one stored value from every other; 0 = it has none.
func stamp(value []byte) uint64 {
	if len(value) < 1+stampBytes || value[0] < 2 {
		return 0
	}
	return binary.BigEndian.Uint64(value[1:])
}

// decode reads a stored record, of an older schema too.
func decode(b []byte, v any) error {
	if len(b) == 0 || b[0] == 0 {
		return errors.New("stored record has no schema")
	}
	if b[0] > schema {
		return fmt.Errorf("stored record has schema %d, this aloft knows %d: use the newer aloft that wrote it", b[0], schema)
	}
	text := b[1:]
	if b[0] > 1 {
		if len(text) < stampBytes {
			return errors.New("stored record is cut short")
		}
		text = text[stampBytes:]
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("decode record: %w", err)
	}
	return nil
}

func get(b *bbolt.Bucket, id string, v any) error {
	value := b.Get([]byte(id))
	if value == nil {
		return jobs.ErrNotFound
	}
	return decode(value, v)
}

// Put implements jobs.Store. Writers that come within a moment share a commit,
// and none returns before it. A conflict is found without failing the others.
func (s *Store) Put(ctx context.Context, j *jobs.Job, events ...jobs.Event) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	stored := *j
	stored.Version++
	value, err := encode(&stored)
	if err != nil {
		return err
	}
	var refused error
	err = s.update(func(tx *bbolt.Tx) error {
		records := tx.Bucket(jobsBucket)
		var old indexed
		if b := records.Get([]byte(j.ID)); b != nil {
			if err := decode(b, &old); err != nil {
				return err
			}
		}
		if refused = admit(tx, old, j); refused != nil {
			return nil
		}
		if err := put(records, j.ID, value); err != nil {
			return err
		}
		return errors.Join(reindex(tx, old, indexedOf(j)), addEvents(tx, j.ID, events))
	})
	if err := cmp.Or(err, refused); err != nil {
		return err
	}
	if j.State.Terminal() {
		s.live.drop(j.ID)
	}
	j.Version++
	return nil
}

// admit tells whether j may take the place of old.
func admit(tx *bbolt.Tx, old indexed, j *jobs.Job) error {
	switch {
	case old.Version != j.Version:
		return jobs.ErrConflict
	case old.Version == 0 && j.Idempotency != "" && tx.Bucket(keyBucket).Get(userKey(j.Tenant, j.Idempotency)) != nil:
		return jobs.ErrKeyTaken
	}
	return nil
}

// Get implements jobs.Store.
func (s *Store) Get(_ context.Context, id string) (jobs.Job, error) {
	var j jobs.Job
	err := s.db.View(func(tx *bbolt.Tx) error { return get(tx.Bucket(jobsBucket), id, &j) })
	return j, err
}

// Delete implements jobs.Store.
func (s *Store) Delete(_ context.Context, id string) error {
	err := s.update(func(tx *bbolt.Tx) error {
		var old indexed
		switch err := get(tx.Bucket(jobsBucket), id, &old); {
		case errors.Is(err, jobs.ErrNotFound):
			return nil
		case err != nil:
			return err
		}
		return errors.Join(tx.Bucket(jobsBucket).Delete([]byte(id)), reindex(tx, old, indexed{}), dropEvents(tx, id))
	})
	s.live.drop(id)
	return err
}
