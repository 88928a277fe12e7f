package keys

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"aloft/gateway"
	"aloft/jobs"
)

// MaxOverlap bounds how long a rotated secret stays valid.
const MaxOverlap = 30 * 24 * time.Hour

// lockWait bounds how long a change waits for that of another process.
const lockWait = 5 * time.Second

// prefix lets people and secret scanners see what a string is.
const prefix = "sk-aloft-"

// newSecret makes a secret of 256 random bits and its hash. One SHA-256 is
// enough: slow hashes protect what people choose and others can guess; this
// nobody can, and the hash is taken for every request.
func newSecret() (secret, hash string) {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	secret = prefix + base64.RawURLEncoding.EncodeToString(b[:])
	sum := sha256.Sum256([]byte(secret))
	return secret, hex.EncodeToString(sum[:])
}

func newID() string {
	var b [8]byte
	_, _ = rand.Read(b[:])
	return "key_" + hex.EncodeToString(b[:])
}

// List implements gateway.KeyAdmin: in the file's order.
func (s *Store) List() []gateway.KeyInfo {
	r := s.now.Load()
	out := make([]gateway.KeyInfo, 0, len(r.ordered))
	for _, k := range r.ordered {
		out = append(out, k.info(time.Now()))
	}
	return out
}

func (k *key) info(now time.Time) gateway.KeyInfo {
	i := k.entry.info()
	k.account.Lock()
	if k.account.turn(now); k.account.month > 0 {
		i.Used = k.account.used
	}
	k.account.Unlock()
	return i
}

func (e Entry) info() gateway.KeyInfo {
	return gateway.KeyInfo{ID: e.ID, KeySpec: e.KeySpec, Created: e.Created, Rotated: e.Rotated, Hint: e.Hint}
}

// Make implements gateway.KeyAdmin. It makes the key file if there is none,
// which is the moment from which keys are wanted.
func (s *Store) Make(spec gateway.KeySpec) (gateway.KeyInfo, string, error) {
	now := time.Now()
	secret, hash := newSecret()
	e := Entry{ID: newID(), SHA256: hash, Created: now, Hint: hint(secret), KeySpec: spec}
	e.tidy()
	if bad := checkSpec(e.KeySpec); bad != nil {
		return gateway.KeyInfo{}, "", bad
	}
	if past(e.Expires, now) {
		return gateway.KeyInfo{}, "", &jobs.InvalidError{Param: "expires_at", Reason: "is in the past"}
	}
	err := s.change(func(list []Entry) ([]Entry, error) {
		if len(list) >= maxKeys {
			return nil, &jobs.InvalidError{Param: "keys", Reason: fmt.Sprintf("there are %d already, the most there may be", len(list))}
		}
		return append(list, e), nil
	})
	if err != nil {
		return gateway.KeyInfo{}, "", err
	}
	return e.info(), secret, nil
}

// Rotate implements gateway.KeyAdmin. A secret from an earlier rotation that is
// still valid ends.
func (s *Store) Rotate(id string, overlap time.Duration) (gateway.KeyInfo, string, error) {
	if overlap < 0 || overlap > MaxOverlap {
		return gateway.KeyInfo{}, "", &jobs.InvalidError{Param: "overlap_seconds",
			Reason: fmt.Sprintf("%v is not from 0 to %v", overlap, MaxOverlap)}
	}
	now := time.Now()
	secret, hash := newSecret()
	var done Entry
	err := s.change(func(list []Entry) ([]Entry, error) {
		i, err := index(list, id)
		if err != nil {
			return nil, err
		}
		e := &list[i]
		e.Previous = nil
		if overlap > 0 {
			e.Previous = &Previous{e.SHA256, now.Add(overlap)}
		}
		e.SHA256, e.Hint, e.Rotated = hash, hint(secret), now
		e.tidy()
		done = *e
		return list, nil
	})
	if err != nil {
		return gateway.KeyInfo{}, "", err
	}
	if k := s.now.Load().byID[id]; k != nil {
		return k.info(now), secret, nil
	}
	return done.info(), secret, nil
}

// Revoke implements gateway.KeyAdmin.
func (s *Store) Revoke(id string) error {
	return s.change(func(list []Entry) ([]Entry, error) {
		i, err := index(list, id)
		if err != nil {
			return nil, err
		}
		return slices.Delete(list, i, i+1), nil
	})
}

func index(list []Entry, id string) (int, error) {
	if i := slices.IndexFunc(list, func(e Entry) bool { return e.ID == id }); i >= 0 {
		return i, nil
	}
	return 0, fmt.Errorf("key %.100q: %w", id, jobs.ErrNotFound)
}

// unusable is why the key file cannot be changed as it stands: a conflict with
// what is stored, for who asks to mend.
type unusable struct{ error }

func (u unusable) Error() string        { return "nothing was changed: " + u.error.Error() }
func (u unusable) Is(target error) bool { return target == jobs.ErrConflict }
func (u unusable) Unwrap() error        { return u.error }

// change reads the key file, changes it and writes it, while no other process
// does, and takes it at once. It never starts from less than the file that is in
// force: with that gone, or damaged, keys would be lost.
func (s *Store) change(f func([]Entry) ([]Entry, error)) error {
	unlock, err := lock(s.path + ".lock")
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.Reload(); err != nil {
		return unusable{err}
	}
	var list []Entry
	for _, k := range s.now.Load().ordered {
		list = append(list, k.entry)
	}
	list, err = f(list)
	if err != nil {
		return err
	}
	b, err := format(list)
	if err == nil {
		err = WriteFile(s.path, b)
	}
	if err != nil {
		return fmt.Errorf("write key file: %w", err)
	}
	return s.Reload()
}

// lock waits for its turn to change the key file.
func lock(path string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("folder of the key file: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock of the key file: %w", err)
	}
	for end := time.Now().Add(lockWait); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || time.Now().After(end) {
			f.Close()
			return nil, fmt.Errorf("lock the key file (%s): %w", path, err)
		}
	}
}

// hint is enough to tell keys apart, and 24 of 256 bits.
func hint(secret string) string { return secret[len(secret)-4:] }
