package keys

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// flushEvery bounds how much use a crash can forget.
const flushEvery = 10 * time.Second

// usage is the usage file: what each key used in one month.
type usage struct {
	Month  string           `json:"month"` // as 2026-11, UTC
	Tokens map[string]int64 `json:"tokens"`
}

func (m month) String() string { return fmt.Sprintf("%04d-%02d", int(m)/12, int(m)%12+1) }

// restore takes what was used this month before the start.
func (s *Store) restore(now time.Time) error {
	if s.usage == "" {
		return nil
	}
	b, err := os.ReadFile(s.usage)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var u usage
	if err == nil {
		err = json.Unmarshal(b, &u)
	}
	if err != nil {
		return fmt.Errorf("read the keys' usage %s (delete it to count from 0): %w", s.usage, err)
	}
	if u.Month != monthOf(now).String() {
		return nil
	}
	for id, n := range u.Tokens {
		if n > 0 && len(s.accounts) < 2*maxKeys {
			s.accounts[id] = &guarded{account: account{month: monthOf(now), used: min(n, maxLimit)}}
		}
	}
	return nil
}

// Run writes the month's usage every ten seconds until ctx ends, and once more
// then. Let it outlive the requests. The last write's error is returned, those
// before are logged.
func (s *Store) Run(ctx context.Context) error {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := s.flush(time.Now()); err != nil {
				s.log.Error("usage of keys not written", "error", err)
			}
		case <-ctx.Done():
			return s.flush(time.Now())
		}
	}
}

// flush writes the usage file if something was used.
func (s *Store) flush(now time.Time) error {
	if s.usage == "" {
		return nil
	}
	m := monthOf(now)
	u := usage{m.String(), map[string]int64{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, a := range s.accounts {
		a.Lock()
		if a.month == m && a.used > 0 {
			u.Tokens[id] = a.used
		}
		a.Unlock()
	}
	b, err := json.Marshal(u)
	if err != nil || bytes.Equal(b, s.flushed) || s.flushed == nil && len(u.Tokens) == 0 {
		return err
	}
	if err := WriteFile(s.usage, b); err != nil {
		return fmt.Errorf("write the keys' usage: %w", err)
	}
	s.flushed = b
	return nil
}
