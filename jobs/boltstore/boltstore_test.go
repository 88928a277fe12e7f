package boltstore

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
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
	var n atomic.Int64
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			i := n.Add(1)
			j := jobs.Job{ID: fmt.Sprintf("job_%09d", i), Kind: jobs.KindTrain, State: jobs.Queued, Times: jobs.Times{Created: time.Unix(i, 0)}}
			if err := s.Put(b.Context(), &j); err != nil {
				b.Error(err)
			}
		}
	})
}
