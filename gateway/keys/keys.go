// Package keys knows the API keys: a file of hashes that people and programs may
// edit while the server runs, the limits of each key, and what it used this month.
package keys

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"aloft/gateway"
)

// key is an entry ready for use. It is shared and never changed.
type key struct {
	grant   gateway.Grant
	limits  limits
	entry   Entry
	account *guarded
}

// guarded is an account with its lock: one a key, so that keys do not wait for
// each other.
type guarded struct {
	sync.Mutex
	account
}

// door is one secret that opens a key.
type door struct {
	*key
	until time.Time // zero = as long as the key
}

// ring is one state of the key file, swapped whole.
type ring struct {
	text    []byte // of the file
	there   bool   // the file exists
	doors   map[[sha256.Size]byte]door
	byID    map[string]*key
	ordered []*key
}

// Store implements gateway.Keys and gateway.KeyAdmin.
//
// As long as there is no key file everybody may come in: Find and ByID return a
// nil grant and true, for any secret, none included. From the first file on keys
// are wanted.
type Store struct {
	path, usage string
	log         *slog.Logger
	now         atomic.Pointer[ring]

	mu       sync.Mutex // of what reloads, and of accounts
	accounts map[string]*guarded
	flushed  []byte // the usage file as last written
}

// Open reads the key file and the month's usage; either may be missing. usage ""
// keeps none.
func Open(path, usage string, log *slog.Logger) (*Store, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Store{path: path, usage: usage, log: log, accounts: map[string]*guarded{}}
	s.now.Store(&ring{})
	if err := s.restore(time.Now()); err != nil {
		return nil, err
	}
	return s, s.load(true)
}

// Enabled reports whether requests need a key.
func (s *Store) Enabled() bool { return s.now.Load().there }

// Reload reads the key file again and takes it in one step. A file with a
// mistake, and one that is gone after it had been there, change nothing and are
// an error that says where. Limits go on where they stood.
func (s *Store) Reload() error { return s.load(false) }

func (s *Store) load(always bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.now.Load()
	text, err := os.ReadFile(s.path)
	gone := errors.Is(err, fs.ErrNotExist)
	switch {
	case gone && old.there:
		return fmt.Errorf("key file %s is gone: its keys stay valid until it is back", s.path)
	case err != nil && !gone:
		return fmt.Errorf("read key file: %w", err)
	case !always && old.there == !gone && bytes.Equal(text, old.text):
		return nil
	}
	list, err := parse(text)
	if err != nil {
		return fmt.Errorf("key file %s: %w", s.path, err)
	}
	r := s.ring(list)
	r.text, r.there = text, !gone
	s.now.Store(r)
	s.forget(r)
	if r.there {
		s.log.Info("keys loaded", "keys", len(r.ordered), "file", s.path)
	}
	return nil
}

// ring joins keys with their accounts. s.mu is held.
func (s *Store) ring(list []Entry) *ring {
	r := &ring{doors: map[[sha256.Size]byte]door{}, byID: map[string]*key{}}
	for _, e := range list {
		acc := s.accounts[e.ID]
		if acc == nil {
			acc = &guarded{}
			s.accounts[e.ID] = acc
		}
		k := &key{entry: e, account: acc, limits: limits{e.RPM, e.TPM, e.Parallel, e.Budget},
			grant: gateway.Grant{ID: e.ID, Tenant: e.Tenant, Class: classes[e.Class], Models: e.Models, Admin: e.Admin, Overflow: e.Overflow}}
		r.byID[e.ID] = k
		r.ordered = append(r.ordered, k)
		r.doors[hashOf(e.SHA256)] = door{key: k}
		if e.Previous != nil {
			r.doors[hashOf(e.Previous.SHA256)] = door{k, e.Previous.Until}
		}
	}
	return r
}

// forget drops accounts of keys that are gone once there are many: until then a
// key that was taken out by mistake comes back with what it had used. s.mu is held.
func (s *Store) forget(r *ring) {
	if len(s.accounts) <= len(r.ordered)+maxKeys {
		return
	}
	for id := range s.accounts {
		if r.byID[id] == nil {
			delete(s.accounts, id)
		}
	}
}

// Find implements gateway.Keys.
//
// Secrets are found by their SHA-256 in a map. How long that takes may tell how
// much of a stored hash equals the guess's, but a hash is no secret worth
// anything: to use it one would have to find its preimage among 2^256 random
// secrets. And a map costs the same with one key as with ten thousand, which a
// comparison with each does not.
func (s *Store) Find(secret []byte, now time.Time) (*gateway.Grant, bool) {
	r := s.now.Load()
	if !r.there {
		return nil, true
	}
	d, ok := r.doors[sha256.Sum256(secret)]
	if !ok || past(d.entry.Expires, now) || past(d.until, now) {
		return nil, false
	}
	return &d.grant, true
}

// past reports whether an end, if there is one, has come by now.
func past(end, now time.Time) bool { return !end.IsZero() && !now.Before(end) }

// ByID implements gateway.Keys.
func (s *Store) ByID(id string, now time.Time) (*gateway.Grant, bool) {
	r := s.now.Load()
	if !r.there {
		return nil, true
	}
	k := r.byID[id]
	if k == nil || past(k.entry.Expires, now) {
		return nil, false
	}
	return &k.grant, true
}

// of finds the key of a grant as it stands now; nil: keys are not wanted, or this
// one has been revoked since.
func (s *Store) of(g *gateway.Grant) *key {
	if g == nil {
		return nil
	}
	return s.now.Load().byID[g.ID]
}

// Reserve implements gateway.Keys.
func (s *Store) Reserve(g *gateway.Grant, now time.Time, r gateway.Reserving) (gateway.Quota, error) {
	k := s.of(g)
	if k == nil {
		return gateway.Quota{}, nil
	}
	k.account.Lock()
	quota, refused := k.account.reserve(k.limits, now, r)
	k.account.Unlock()
	if refused != nil {
		return quota, refused
	}
	return quota, nil
}

// Settle implements gateway.Keys.
func (s *Store) Settle(g *gateway.Grant, now time.Time, r gateway.Reserving, tokens int) {
	if k := s.of(g); k != nil {
		k.account.Lock()
		k.account.settle(k.limits, now, r, tokens)
		k.account.Unlock()
	}
}
