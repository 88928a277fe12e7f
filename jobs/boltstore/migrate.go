package boltstore

import (
	"bytes"
	"fmt"
	"strconv"
	"time"

	"go.etcd.io/bbolt"

	"aloft/jobs"
)

var versionKey = []byte("version")

// migrateChunk bounds one step's memory: 1,000 records of some KB.
const migrateChunk = 1000

// prepare brings the file to this schema. Each step of a migration can be made
// twice: the version is written last, so that one which was killed begins anew.
func prepare(db *bbolt.DB) error {
	version := 0
	err := db.Update(func(tx *bbolt.Tx) (err error) {
		if version, err = fileVersion(tx); err != nil {
			return err
		}
		for _, b := range [][]byte{jobsBucket, fileBucket, fileAge, eventBucket, schedBucket, metaBucket} {
			if _, err := tx.CreateBucketIfNotExists(b); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if version == 1 {
		if err := toVersion2(db, time.Now()); err != nil {
			return fmt.Errorf("migrate from version 1: %w", err)
		}
	}
	return db.Update(func(tx *bbolt.Tx) error {
		if err := upgradeIndexes(tx); err != nil || version == schema {
			return err
		}
		return tx.Bucket(metaBucket).Put(versionKey, strconv.AppendInt(nil, schema, 10))
	})
}

// fileVersion tells which schema wrote the file, 0 = it is new. Version 1 did
// not say so.
func fileVersion(tx *bbolt.Tx) (int, error) {
	if meta := tx.Bucket(metaBucket); meta != nil {
		if text := meta.Get(versionKey); text != nil {
			v, err := strconv.Atoi(string(text))
			if err != nil || v < 1 {
				return 0, fmt.Errorf("its version is %q, want a number from 1 to %d", text, schema)
			}
			if v > schema {
				return 0, fmt.Errorf("it has version %d, this aloft knows %d: use the newer aloft that wrote it", v, schema)
			}
			return v, nil
		}
	}
	if tx.Bucket(jobsBucket) != nil {
		return 1, nil
	}
	return 0, nil
}

// toVersion2 gives finished jobs the moment until which they are kept, counted
// from now, since nobody had been told that they go; and every record the stamp
// that version 1 cannot read. The indexes are made anew behind it.
func toVersion2(db *bbolt.DB, now time.Time) error {
	for _, name := range [][]byte{jobsBucket, fileBucket} {
		for after, done := []byte{}, false; !done; {
			err := db.Update(func(tx *bbolt.Tx) (err error) {
				after, done, err = convert(tx, name, after, now)
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// convert rewrites the records behind after, a chunk of them.
func convert(tx *bbolt.Tx, bucket, after []byte, now time.Time) (last []byte, done bool, err error) {
	b := tx.Bucket(bucket)
	type record struct{ key, value []byte }
	var list []record // a cursor must not see what it walks over change
	c := b.Cursor()
	for k, v := c.Seek(append(after, 0)); k != nil && len(list) < migrateChunk; k, v = c.Next() {
		list = append(list, record{bytes.Clone(k), bytes.Clone(v)})
	}
	for _, r := range list {
		last = r.key
		if bytes.Equal(bucket, jobsBucket) {
			var j jobs.Job
			if err := decode(r.value, &j); err != nil {
				return nil, false, fmt.Errorf("job %s: %w", r.key, err)
			}
			if j.State.Terminal() && j.KeptUntil.IsZero() {
				j.KeptUntil = now.Add(jobs.DefaultKeepFor)
			}
			r.value, err = encode(&j)
		} else {
			var f jobs.File
			if err := decode(r.value, &f); err != nil {
				return nil, false, fmt.Errorf("file %s: %w", r.key, err)
			}
			r.value, err = encode(&f)
		}
		if err != nil {
			return nil, false, err
		}
		if err := put(b, string(r.key), r.value); err != nil {
			return nil, false, err
		}
	}
	return last, len(list) < migrateChunk, nil
}
