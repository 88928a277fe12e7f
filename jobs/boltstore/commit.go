package boltstore

import (
	"errors"
	"time"

	"go.etcd.io/bbolt"
)

// maxGather bounds the writes that share a commit.
const maxGather = 1024

// gather is how long a commit waits for as many writes as the one before it had:
// who was answered together asks again together. A lone writer waits for nobody.
// It is a fraction of what an fsync takes on most disks.
const gather = time.Millisecond

// errClosed is what a write is told that comes after Close.
var errClosed = errors.New("job store is closed")

// write is a change that is answered when it is durable, or refused.
type write struct {
	change func(*bbolt.Tx) error // may be called more than once
	done   chan error
}

// update makes a change durable. Changes that come while a commit is on its way
// share the next one. (bbolt's own Batch gathers by time only: what comes during
// an fsync of 20 ms makes twenty more fsyncs.)
func (s *Store) update(change func(*bbolt.Tx) error) error {
	w := write{change, make(chan error, 1)}
	select {
	case s.writes <- w:
		return <-w.done
	case <-s.closing:
		return errClosed
	}
}

// commits owns all writing, until Close.
func (s *Store) commits() {
	defer close(s.closed)
	batch := make([]write, 0, maxGather)
	for {
		last := len(batch)
		select {
		case w := <-s.writes:
			batch = append(batch[:0], w)
		case <-s.closing:
			return
		}
		batch = s.gather(batch, last)
		s.commit(batch)
		clear(batch) // keeps no records
	}
}

// gather adds what is there, and what comes in a moment while it is fewer than last.
func (s *Store) gather(batch []write, last int) []write {
	var late <-chan time.Time
	for len(batch) < maxGather {
		select {
		case w := <-s.writes:
			batch = append(batch, w)
			continue
		default:
		}
		if len(batch) >= last {
			return batch
		}
		if late == nil {
			late = time.After(gather)
		}
		select {
		case w := <-s.writes:
			batch = append(batch, w)
		case <-late:
			return batch
		}
	}
	return batch
}

// commit answers every write. One that fails takes back its own change only: the
// others are made again without it.
func (s *Store) commit(batch []write) {
	for len(batch) > 0 {
		failed := -1
		err := s.db.Update(func(tx *bbolt.Tx) error {
			for i, w := range batch {
				if err := w.change(tx); err != nil {
					failed = i
					return err
				}
			}
			return nil
		})
		if failed < 0 {
			for _, w := range batch {
				w.done <- err
			}
			return
		}
		batch[failed].done <- err
		batch[failed] = batch[len(batch)-1]
		batch = batch[:len(batch)-1]
	}
}
