package boltstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"

	"aloft/jobs"
)

// PutFile implements jobs.FileStore.
func (s *Store) PutFile(ctx context.Context, f jobs.File) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	value, err := encode(f)
	if err != nil {
		return err
	}
	return s.update(func(tx *bbolt.Tx) error {
		if err := dropFile(tx, f.ID); err != nil {
			return err
		}
		return errors.Join(
			put(tx.Bucket(fileBucket), f.ID, value),
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
	return s.update(func(tx *bbolt.Tx) error { return dropFile(tx, id) })
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
