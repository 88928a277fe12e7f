package boltstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"aloft/jobs"
)

// indexes are the orders in which jobs can be walked: each key is a prefix, the
// moment of creation and the id; each value the facts that a filter asks for. A
// filter walks the narrowest one that it names.
var indexes = []struct {
	bucket []byte
	prefix func(indexed) string
}{
	{[]byte("jobs_age"), func(indexed) string { return "" }},
	{[]byte("jobs_state"), func(i indexed) string { return string(i.State) }},
	{[]byte("jobs_kind"), func(i indexed) string { return string(i.Kind) }},
	{[]byte("jobs_tenant"), func(i indexed) string { return i.Tenant }},
}

const (
	byAge = iota
	byState
	byKind
	byTenant
)

// indexSchema counts up with every change of indexes: a file of another one is
// indexed anew when it is opened.
const indexSchema = 3

var indexKey = []byte("indexes")

// indexed is what the indexes hold of a job; the names are jobs.Job's.
type indexed struct {
	ID      string
	Tenant  string
	Kind    jobs.Kind
	State   jobs.State
	Created time.Time
	Version uint64 // 0 = there is no such job

	Idempotency string
	KeptUntil   time.Time
}

func indexedOf(j *jobs.Job) indexed {
	return indexed{
		ID: j.ID, Tenant: j.Tenant, Kind: j.Kind, State: j.State, Created: j.Created, Version: j.Version + 1,
		Idempotency: j.Idempotency, KeptUntil: j.KeptUntil,
	}
}

func (i indexed) facts() []byte {
	return []byte(string(i.State) + "\x00" + string(i.Kind) + "\x00" + i.Tenant)
}

func (i indexed) same(o indexed) bool {
	return i.ID == o.ID && i.Tenant == o.Tenant && i.Kind == o.Kind && i.State == o.State && i.Created.Equal(o.Created) &&
		i.Idempotency == o.Idempotency && i.KeptUntil.Equal(o.KeptUntil)
}

// reindex moves a job in all indexes; most writes are progress, which moves none.
func reindex(tx *bbolt.Tx, old, now indexed) error {
	if old.same(now) {
		return nil
	}
	for _, x := range indexes {
		b := tx.Bucket(x.bucket)
		if old.Version > 0 {
			if err := b.Delete(ageKey(x.prefix(old), old.Created, old.ID)); err != nil {
				return err
			}
		}
		if now.Version > 0 {
			if err := b.Put(ageKey(x.prefix(now), now.Created, now.ID), now.facts()); err != nil {
				return err
			}
		}
	}
	return rekey(tx, old, now)
}

// rekey moves a job in the two indexes that have other keys.
func rekey(tx *bbolt.Tx, old, now indexed) (err error) {
	keys, kept := tx.Bucket(keyBucket), tx.Bucket(keptBucket)
	if old.Idempotency != "" {
		err = errors.Join(err, keys.Delete(userKey(old.Tenant, old.Idempotency)))
	}
	if !old.KeptUntil.IsZero() {
		err = errors.Join(err, kept.Delete(ageKey("", old.KeptUntil, old.ID)))
	}
	if now.Idempotency != "" {
		err = errors.Join(err, keys.Put(userKey(now.Tenant, now.Idempotency), []byte(now.ID)))
	}
	if !now.KeptUntil.IsZero() {
		err = errors.Join(err, kept.Put(ageKey("", now.KeptUntil, now.ID), nil))
	}
	return err
}

// userKey is where a tenant's idempotency key is kept; no tenant has a zero byte.
func userKey(tenant, key string) []byte { return []byte(tenant + "\x00" + key) }

// upgradeIndexes makes the indexes of a file that has others, from its records.
func upgradeIndexes(tx *bbolt.Tx) error {
	if string(tx.Bucket(metaBucket).Get(indexKey)) == string(rune(indexSchema)) {
		return nil
	}
	names := [][]byte{keyBucket, keptBucket}
	for _, x := range indexes {
		names = append(names, x.bucket)
	}
	for _, name := range names {
		if err := tx.DeleteBucket(name); err != nil && tx.Bucket(name) != nil {
			return err
		}
		if _, err := tx.CreateBucket(name); err != nil {
			return err
		}
	}
	err := tx.Bucket(jobsBucket).ForEach(func(id, value []byte) error {
		var now indexed
		if err := decode(value, &now); err != nil {
			return fmt.Errorf("index job %s: %w", id, err)
		}
		return reindex(tx, indexed{}, now)
	})
	if err != nil {
		return err
	}
	return tx.Bucket(metaBucket).Put(indexKey, []byte(string(rune(indexSchema))))
}

// ageKey sorts by creation, then id. Times before 1970 do not occur.
func ageKey(prefix string, created time.Time, id string) []byte {
	k := append([]byte(prefix), 0)
	k = binary.BigEndian.AppendUint64(k, uint64(created.UnixNano()))
	return append(k, id...)
}

const ageBytes = 8

// List implements jobs.Store.
func (s *Store) List(ctx context.Context, f jobs.Filter) ([]jobs.Job, error) {
	var out []jobs.Job
	err := s.db.View(func(tx *bbolt.Tx) (err error) {
		records := tx.Bucket(jobsBucket)
		switch {
		case f.Key != "":
			out, err = withKey(tx, f)
			return err
		case !f.Removable.IsZero():
			out, err = removable(tx, f)
			return err
		}
		var after []byte
		if f.After != "" {
			var last indexed
			if err := get(records, f.After, &last); err != nil {
				return fmt.Errorf("list after %s: %w", f.After, err)
			}
			after = ageKey("", last.Created, last.ID)[1:]
		}
		walks := walksOf(tx, f, after)
		for steps := 1; f.Limit == 0 || len(out) < f.Limit; steps++ {
			w := newest(walks)
			if w == nil || steps%1024 == 0 && ctx.Err() != nil {
				break
			}
			if matches(f, w.facts) {
				j, err := s.live.job(records, w.key[ageBytes:])
				if err != nil {
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

// withKey returns the job with an idempotency key.
func withKey(tx *bbolt.Tx, f jobs.Filter) ([]jobs.Job, error) {
	id := tx.Bucket(keyBucket).Get(userKey(f.Tenant, f.Key))
	if id == nil {
		return nil, nil
	}
	var j jobs.Job
	err := get(tx.Bucket(jobsBucket), string(id), &j)
	return []jobs.Job{j}, err
}

// removable returns the jobs that need not be kept any more.
func removable(tx *bbolt.Tx, f jobs.Filter) ([]jobs.Job, error) {
	var out []jobs.Job
	end := ageKey("", f.Removable, "\xff") // behind every id of that moment
	for c, k := tx.Bucket(keptBucket).Cursor(), []byte(nil); f.Limit == 0 || len(out) < f.Limit; {
		if k == nil {
			k, _ = c.First()
		} else {
			k, _ = c.Next()
		}
		if k == nil || bytes.Compare(k, end) > 0 {
			break
		}
		var j jobs.Job
		if err := get(tx.Bucket(jobsBucket), string(k[1+ageBytes:]), &j); err != nil {
			return nil, err
		}
		out = append(out, j)
	}
	return out, nil
}

// walksOf are the walks that together pass every job which matches, by the index
// that is expected to pass the fewest others.
func walksOf(tx *bbolt.Tx, f jobs.Filter, after []byte) (walks []*walk) {
	walk := func(index int, prefix string) {
		walks = append(walks, newWalk(tx.Bucket(indexes[index].bucket), prefix, after, false))
	}
	switch {
	case len(f.States) > 0 && unfinished(f.States): // the few: there is a bound on them
		for _, state := range f.States {
			walk(byState, string(state))
		}
	case f.Tenant != "":
		walk(byTenant, f.Tenant)
	case f.Kind != "":
		walk(byKind, string(f.Kind))
	case len(f.States) > 0:
		for _, state := range f.States {
			walk(byState, string(state))
		}
	default:
		walk(byAge, "")
	}
	return walks
}

func unfinished(states []jobs.State) bool {
	for _, s := range states {
		if s.Terminal() {
			return false
		}
	}
	return true
}

// matches is Filter.Match on an index's facts.
func matches(f jobs.Filter, facts []byte) bool {
	state, rest, ok := bytes.Cut(facts, []byte{0})
	kind, tenant, ok2 := bytes.Cut(rest, []byte{0})
	return ok && ok2 && f.Match(jobs.State(state), jobs.Kind(kind), string(tenant))
}

// decoded keeps unfinished jobs as they were last decoded, by stamp. What it
// gives out is shared: see jobs.Store.List.
type decoded struct {
	mu   sync.Mutex
	jobs map[string]stamped
}

type stamped struct {
	stamp uint64
	job   jobs.Job
}

// maxDecoded bounds the jobs that are kept decoded (a few kilobytes each).
const maxDecoded = 16_384

func (d *decoded) job(records *bbolt.Bucket, id []byte) (jobs.Job, error) {
	value := records.Get(id)
	if value == nil {
		return jobs.Job{}, fmt.Errorf("indexed job %s: %w", id, errNoRecord)
	}
	at := stamp(value)
	d.mu.Lock()
	kept, ok := d.jobs[string(id)]
	d.mu.Unlock()
	if ok && at != 0 && kept.stamp == at {
		return kept.copy(), nil
	}
	var j jobs.Job
	if err := decode(value, &j); err != nil {
		return j, err
	}
	if at != 0 && !j.State.Terminal() {
		s := stamped{at, j}
		d.keep(s)
		return s.copy(), nil
	}
	return j, nil
}

// copy is the job for a caller: its fields are theirs, what they point to is not.
func (s stamped) copy() jobs.Job {
	j := s.job
	if j.Batch != nil {
		b := *j.Batch
		j.Batch = &b
	}
	return j
}

// errNoRecord is a store whose indexes and records do not fit together.
var errNoRecord = errors.New("the store has no record of it")

func (d *decoded) keep(s stamped) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.jobs == nil {
		d.jobs = map[string]stamped{}
	}
	if old, ok := d.jobs[s.job.ID]; ok && old.stamp > s.stamp || !ok && len(d.jobs) >= maxDecoded {
		return // a reader of an older moment, or full
	}
	d.jobs[s.job.ID] = s
}

func (d *decoded) drop(id string) {
	d.mu.Lock()
	delete(d.jobs, id)
	d.mu.Unlock()
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
