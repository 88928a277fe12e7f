package boltstore

import (
	"bytes"
	"context"
	"encoding/binary"

	"go.etcd.io/bbolt"

	"aloft/jobs"
)

const seqBytes = 8

// eventKey sorts by job, then number.
func eventKey(id string, seq int) []byte {
	return binary.BigEndian.AppendUint64(append([]byte(id), 0), uint64(seq))
}

func seqOf(key []byte) int { return int(binary.BigEndian.Uint64(key[len(key)-seqBytes:])) }

// addEvents numbers the events and keeps the newest of the job's.
func addEvents(tx *bbolt.Tx, id string, list []jobs.Event) error {
	if len(list) == 0 {
		return nil
	}
	b := tx.Bucket(eventBucket)
	first, last := span(b, id)
	for _, e := range list {
		last++
		e.Seq = last
		value, err := encode(e)
		if err != nil {
			return err
		}
		if err := b.Put(eventKey(id, last), value); err != nil {
			return err
		}
	}
	for first = max(first, 1); last-first >= jobs.MaxEvents; first++ {
		if err := b.Delete(eventKey(id, first)); err != nil {
			return err
		}
	}
	return nil
}

// span returns the numbers of the job's first and last event, 0 if it has none.
func span(b *bbolt.Bucket, id string) (first, last int) {
	c := b.Cursor()
	prefix := append([]byte(id), 0)
	k, _ := c.Seek(prefix)
	if !bytes.HasPrefix(k, prefix) {
		return 0, 0
	}
	first = seqOf(k)
	if k, _ = c.Seek(append([]byte(id), 1)); k == nil {
		k, _ = c.Last()
	} else {
		k, _ = c.Prev()
	}
	return first, seqOf(k)
}

func dropEvents(tx *bbolt.Tx, id string) error {
	b := tx.Bucket(eventBucket)
	for first, last := span(b, id); first > 0 && first <= last; first++ {
		if err := b.Delete(eventKey(id, first)); err != nil {
			return err
		}
	}
	return nil
}

// AddEvent implements jobs.EventStore.
func (s *Store) AddEvent(ctx context.Context, id string, e jobs.Event) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	return s.update(func(tx *bbolt.Tx) error {
		if tx.Bucket(jobsBucket).Get([]byte(id)) == nil {
			return jobs.ErrNotFound
		}
		return addEvents(tx, id, []jobs.Event{e})
	})
}

// Events implements jobs.EventStore.
func (s *Store) Events(_ context.Context, id string, after, limit int) ([]jobs.Event, error) {
	var out []jobs.Event
	err := s.db.View(func(tx *bbolt.Tx) error {
		prefix := append([]byte(id), 0)
		c := tx.Bucket(eventBucket).Cursor()
		for k, v := c.Seek(eventKey(id, max(after, 0)+1)); bytes.HasPrefix(k, prefix) && (limit == 0 || len(out) < limit); k, v = c.Next() {
			var e jobs.Event
			if err := decode(v, &e); err != nil {
				return err
			}
			out = append(out, e)
		}
		return nil
	})
	return out, err
}

// PutSchedule implements jobs.ScheduleStore.
func (s *Store) PutSchedule(ctx context.Context, st jobs.ScheduleState) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	value, err := encode(st)
	if err != nil {
		return err
	}
	return s.update(func(tx *bbolt.Tx) error { return tx.Bucket(schedBucket).Put([]byte(st.Name), value) })
}

// Schedules implements jobs.ScheduleStore.
func (s *Store) Schedules(context.Context) ([]jobs.ScheduleState, error) {
	var out []jobs.ScheduleState
	err := s.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(schedBucket).ForEach(func(_, v []byte) error {
			var st jobs.ScheduleState
			err := decode(v, &st)
			out = append(out, st)
			return err
		})
	})
	return out, err
}

// DeleteSchedule implements jobs.ScheduleStore.
func (s *Store) DeleteSchedule(_ context.Context, name string) error {
	return s.update(func(tx *bbolt.Tx) error { return tx.Bucket(schedBucket).Delete([]byte(name)) })
}
