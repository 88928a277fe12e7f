package boltstore

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"aloft/jobs"
	"aloft/jobs/storesuite"
)

func open(t *testing.T, place string) storesuite.Store {
	t.Helper()
	s, err := Open(filepath.Join(place, "jobs.db"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSuite(t *testing.T) { storesuite.Run(t, open) }

func TestOpenRefuses(t *testing.T) {
	place := t.TempDir()
	s := open(t, place)
	defer s.Close()
	if _, err := Open(filepath.Join(place, "jobs.db")); err == nil || !strings.Contains(err.Error(), "another aloft") {
		t.Errorf("second open: %v", err)
	}
	junk := filepath.Join(place, "junk.db")
	if err := os.WriteFile(junk, []byte(strings.Repeat("no database ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(junk); err == nil || !strings.Contains(err.Error(), junk) {
		t.Errorf("open of junk: %v", err)
	}
}

func TestNewerSchemaIsRefused(t *testing.T) {
	s := open(t, t.TempDir()).(*Store)
	defer s.Close()
	err := s.db.Update(func(tx *bbolt.Tx) error {
		return tx.Bucket(jobsBucket).Put([]byte("j"), append([]byte{schema + 1}, "{}"...))
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), "j"); err == nil || !strings.Contains(err.Error(), "schema 2") {
		t.Errorf("get of a newer record: %v", err)
	}
}

func BenchmarkPut(b *testing.B) {
	s, err := Open(filepath.Join(b.TempDir(), "jobs.db"))
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	for i := 0; b.Loop(); i++ {
		now := time.Unix(int64(i), 0)
		j := jobs.Job{ID: "job_" + now.Format(time.RFC3339), Kind: jobs.KindTrain, State: jobs.Queued, Times: jobs.Times{Created: now}}
		if err := s.Put(b.Context(), &j); err != nil {
			b.Fatal(err)
		}
	}
}
