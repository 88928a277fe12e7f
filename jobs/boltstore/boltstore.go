// Package boltstore keeps jobs and file records in one bbolt file: the embedded
// default of jobs.Store and jobs.FileStore.
//
// Values are a schema byte and JSON. Two indexes in age order, one over all
// jobs and one per state, carry what a filter needs, so that a page of a long
// list decodes only its own records.
package boltstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"aloft/jobs"
)

// schema is the version of the stored form. A higher one is refused: it was
// written by a newer aloft.
const schema = 1

// lockWait bounds the wait for the file's lock: another aloft holds it.
const lockWait = 2 * time.Second

// gather is how long a write waits for others to share its fsync (which costs
// several times as much).
const gather = time.Millisecond

var (
	jobsBucket  = []byte("jobs")       // id → record
	ageBucket   = []byte("jobs_age")   // created, id → state, kind, tenant
	stateBucket = []byte("jobs_state") // state, created, id → kind, tenant
	fileBucket  = []byte("files")      // id → record
	fileAge     = []byte("files_age")  // created, id → purpose, tenant
)

// Store implements jobs.Store and jobs.FileStore.
type Store struct{ db *bbolt.DB }

// Open opens or creates the file at path.
func Open(path string) (*Store, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockWait, FreelistType: bbolt.FreelistMapType})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("open job store %s: another aloft is using it", path)
	}
	if err != nil {
		return nil, fmt.Errorf("open job store %s: %w", path, err)
	}
	db.MaxBatchDelay = gather
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, b := range [][]byte{jobsBucket, ageBucket, stateBucket, fileBucket, fileAge} {
			if _, err := tx.CreateBucketIfNotExists(b); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		db.Close()
		return nil, fmt.Errorf("open job store %s: %w", path, err)
	}
	return &Store{db: db}, nil
}

// Close closes the file.
func (s *Store) Close() error { return s.db.Close() }

// encode returns the stored form of a record.
func encode(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode record: %w", err)
	}
	return append([]byte{schema}, b...), nil
}

// decode reads a stored record. Older schemas are migrated here, on reading.
func decode(b []byte, v any) error {
	if len(b) == 0 || b[0] == 0 {
		return errors.New("stored record has no schema")
	}
	if b[0] > schema {
		return fmt.Errorf("stored record has schema %d, this aloft knows %d", b[0], schema)
	}
	if err := json.Unmarshal(b[1:], v); err != nil {
		return fmt.Errorf("decode record: %w", err)
	}
	return nil
}

// ageKey sorts by creation, then id. Times before 1970 do not occur.
func ageKey(prefix string, created time.Time, id string) []byte {
	k := append([]byte(prefix), 0)
	k = binary.BigEndian.AppendUint64(k, uint64(created.UnixNano()))
	return append(k, id...)
}

const ageBytes = 8

// Put implements jobs.Store.
func (s *Store) Put(ctx context.Context, j *jobs.Job) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	stored := *j
	stored.Version++
	value, err := encode(&stored)
	if err != nil {
		return err
	}
	err = s.db.Batch(func(tx *bbolt.Tx) error {
		records, byAge, byState := tx.Bucket(jobsBucket), tx.Bucket(ageBucket), tx.Bucket(stateBucket)
		var old jobs.Job
		if b := records.Get([]byte(j.ID)); b != nil {
			if err := decode(b, &old); err != nil {
				return err
			}
		}
		if old.Version != j.Version {
			return jobs.ErrConflict
		}
		if old.Version > 0 {
			if err := byAge.Delete(ageKey("", old.Created, old.ID)); err != nil {
				return err
			}
			if err := byState.Delete(ageKey(string(old.State), old.Created, old.ID)); err != nil {
				return err
			}
		}
		if err := records.Put([]byte(j.ID), value); err != nil {
			return err
		}
		facts := []byte(string(j.State) + "\x00" + string(j.Kind) + "\x00" + j.Tenant)
		if err := byAge.Put(ageKey("", j.Created, j.ID), facts); err != nil {
			return err
		}
		return byState.Put(ageKey(string(j.State), j.Created, j.ID), facts)
	})
	if err == nil {
		j.Version++
	}
	return err
}

// Get implements jobs.Store.
func (s *Store) Get(_ context.Context, id string) (jobs.Job, error) {
	var j jobs.Job
	err := s.db.View(func(tx *bbolt.Tx) error { return get(tx.Bucket(jobsBucket), id, &j) })
	return j, err
}

func get(b *bbolt.Bucket, id string, v any) error {
	value := b.Get([]byte(id))
	if value == nil {
		return jobs.ErrNotFound
	}
	return decode(value, v)
}

// Delete implements jobs.Store.
func (s *Store) Delete(_ context.Context, id string) error {
	return s.db.Update(func(tx *bbolt.Tx) error {
		var j jobs.Job
		switch err := get(tx.Bucket(jobsBucket), id, &j); {
		case errors.Is(err, jobs.ErrNotFound):
			return nil
		case err != nil:
			return err
		}
		return errors.Join(
			tx.Bucket(jobsBucket).Delete([]byte(id)),
			tx.Bucket(ageBucket).Delete(ageKey("", j.Created, id)),
			tx.Bucket(stateBucket).Delete(ageKey(string(j.State), j.Created, id)))
	})
}

// List implements jobs.Store. A filter by states walks the index of each and
// merges; the states that are asked for are the few unfinished ones.
func (s *Store) List(ctx context.Context, f jobs.Filter) ([]jobs.Job, error) {
	var out []jobs.Job
	err := s.db.View(func(tx *bbolt.Tx) error {
		records := tx.Bucket(jobsBucket)
		var after []byte
		if f.After != "" {
			var j jobs.Job
			if err := get(records, f.After, &j); err != nil {
				return fmt.Errorf("list after %s: %w", f.After, err)
			}
			after = ageKey("", j.Created, j.ID)[1:]
		}
		match := func(facts []byte) bool {
			part := bytes.SplitN(facts, []byte{0}, 3)
			return len(part) == 3 && f.Match(jobs.State(part[0]), jobs.Kind(part[1]), string(part[2]))
		}
		walks := []*walk{newWalk(tx.Bucket(ageBucket), "", after, false)}
		if len(f.States) > 0 {
			walks = walks[:0]
			for _, state := range f.States {
				walks = append(walks, newWalk(tx.Bucket(stateBucket), string(state), after, false))
			}
		}
		for f.Limit == 0 || len(out) < f.Limit {
			w := newest(walks)
			if w == nil || ctx.Err() != nil {
				break
			}
			if match(w.facts) {
				var j jobs.Job
				if err := get(records, string(w.key[ageBytes:]), &j); err != nil {
					return err
				}
				out = append(out, j)
			}
			w.step()
		}
		return ctx.Err()
	})
	return out, err
}

// walk goes through one index from the newest entry (or the oldest).
type walk struct {
	cursor *bbolt.Cursor
	prefix []byte
	up     bool
	key    []byte // created, id; nil at the end
	facts  []byte
}

// newWalk stands on the first entry behind after (created, id; nil = the start).
func newWalk(b *bbolt.Bucket, prefix string, after []byte, up bool) *walk {
	w := &walk{cursor: b.Cursor(), prefix: append([]byte(prefix), 0), up: up}
	switch {
	case up && after == nil:
		w.take(w.cursor.Seek(w.prefix))
	case up:
		at := append(bytes.Clone(w.prefix), after...)
		if k, v := w.cursor.Seek(at); bytes.Equal(k, at) {
			w.step()
		} else {
			w.take(k, v)
		}
	default:
		if after == nil {
			after = bytes.Repeat([]byte{0xff}, ageBytes+1) // behind every time
		}
		if k, _ := w.cursor.Seek(append(bytes.Clone(w.prefix), after...)); k == nil {
			w.take(w.cursor.Last())
		} else {
			w.step()
		}
	}
	return w
}

func (w *walk) step() {
	if w.up {
		w.take(w.cursor.Next())
	} else {
		w.take(w.cursor.Prev())
	}
}

func (w *walk) take(k, v []byte) {
	w.key, w.facts = nil, nil
	if bytes.HasPrefix(k, w.prefix) {
		w.key, w.facts = k[len(w.prefix):], v
	}
}

// newest returns the walk whose entry is the newest, nil if all have ended.
func newest(walks []*walk) *walk {
	var best *walk
	for _, w := range walks {
		if w.key != nil && (best == nil || bytes.Compare(w.key, best.key) > 0) {
			best = w
		}
	}
	return best
}

// PutFile implements jobs.FileStore.
func (s *Store) PutFile(ctx context.Context, f jobs.File) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	value, err := encode(f)
	if err != nil {
		return err
	}
	return s.db.Batch(func(tx *bbolt.Tx) error {
		if err := dropFile(tx, f.ID); err != nil {
			return err
		}
		return errors.Join(
			tx.Bucket(fileBucket).Put([]byte(f.ID), value),
			tx.Bucket(fileAge).Put(ageKey("", f.Created, f.ID), []byte(f.Purpose+"\x00"+f.Tenant)))
	})
}

// File implements jobs.FileStore.
func (s *Store) File(_ context.Context, id string) (jobs.File, error) {
	var f jobs.File
	err := s.db.View(func(tx *bbolt.Tx) error { return get(tx.Bucket(fileBucket), id, &f) })
	return f, err
}

// DeleteFile implements jobs.FileStore.
func (s *Store) DeleteFile(_ context.Context, id string) error {
	return s.db.Update(func(tx *bbolt.Tx) error { return dropFile(tx, id) })
}

func dropFile(tx *bbolt.Tx, id string) error {
	var f jobs.File
	switch err := get(tx.Bucket(fileBucket), id, &f); {
	case errors.Is(err, jobs.ErrNotFound):
		return nil
	case err != nil:
		return err
	}
	return errors.Join(
		tx.Bucket(fileBucket).Delete([]byte(id)),
		tx.Bucket(fileAge).Delete(ageKey("", f.Created, id)))
}

// Files implements jobs.FileStore.
func (s *Store) Files(ctx context.Context, f jobs.FileFilter) ([]jobs.File, error) {
	var out []jobs.File
	err := s.db.View(func(tx *bbolt.Tx) error {
		records := tx.Bucket(fileBucket)
		var after []byte
		if f.After != "" {
			var last jobs.File
			if err := get(records, f.After, &last); err != nil {
				return fmt.Errorf("list after %s: %w", f.After, err)
			}
			after = ageKey("", last.Created, last.ID)[1:]
		}
		w := newWalk(tx.Bucket(fileAge), "", after, f.OldestFirst)
		for ; w.key != nil && (f.Limit == 0 || len(out) < f.Limit) && ctx.Err() == nil; w.step() {
			purpose, tenant, _ := bytes.Cut(w.facts, []byte{0})
			if f.Purpose != "" && f.Purpose != string(purpose) || f.Tenant != "" && f.Tenant != string(tenant) {
				continue
			}
			var file jobs.File
			if err := get(records, string(w.key[ageBytes:]), &file); err != nil {
				return err
			}
			if !file.Expired(f.Now) {
				out = append(out, file)
			}
		}
		return ctx.Err()
	})
	return out, err
}
