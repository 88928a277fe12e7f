package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"aloft/arbiter"
)

// TestJournal: what was written is read by the next server, over a turn of the
// file and a kill in the middle of a line; not more than the tail.
func TestJournal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.jsonl")
	open := func() *journal {
		t.Helper()
		j, err := openJournal(path)
		if err != nil {
			t.Fatal(err)
		}
		return j
	}
	write := func(j *journal, gen uint64) {
		t.Helper()
		b, err := json.Marshal(arbiter.Record{Time: time.Unix(int64(gen), 0), Gen: gen, Move: arbiter.Move{Action: arbiter.Start, Slice: "g0/s0"}})
		if err == nil {
			_, err = j.Write(append(b, '\n'))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	gens := func(j *journal) string {
		var out []uint64
		for _, r := range j.past {
			out = append(out, r.Gen)
		}
		return fmt.Sprint(out)
	}
	j := open()
	if got := gens(j); got != "[]" {
		t.Errorf("a new one has %s", got)
	}
	write(j, 1)
	if err := j.turnOver(); err != nil {
		t.Fatal(err)
	}
	write(j, 2)
	if _, err := j.file.WriteString(`{"time":"2026-01-01T0`); err != nil {
		t.Fatal(err)
	}
	j.Close()
	j = open()
	if got := gens(j); got != "[1 2]" {
		t.Errorf("read %s, want 1 and 2", got)
	}
	write(j, 3)
	j.Close()
	j = open()
	if got := gens(j); got != "[1 2 3]" {
		t.Errorf("read %s, want 1, 2 and what came after the torn line", got)
	}
	j.Close()

	if err := os.WriteFile(path, []byte(strings.Repeat("x", 3*maxTail)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	j = open()
	write(j, 4)
	j.Close()
	if tail, err := readTail(path, maxTail); err != nil || len(tail) != maxTail {
		t.Errorf("a tail of %d bytes, want %d (%v)", len(tail), maxTail, err)
	}
	j = open()
	defer j.Close()
	if got := gens(j); got != "[4]" {
		t.Errorf("read %s, want the end alone", got)
	}
}
