package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"aloft/arbiter"
)

// TestMemories: what one server knows of its models the next one does; torn files
// are put aside, and those of models that are long gone removed.
func TestMemories(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	var logged bytes.Buffer
	open := func() *memories {
		t.Helper()
		m, err := openMemories(dir, now, slog.New(slog.NewTextHandler(&logged, nil)))
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	want := map[string]arbiter.Memory{
		"org/chat": {Past: arbiter.Past{Level: []float32{0.5, 2.25, 0}, Work: []float32{0.25, 1, 0}}, Risk: arbiter.Strict, Trial: arbiter.Trial{
			Law: arbiter.Law{Quantile: 1.5, Power: 0.25, Floor: 1, Hold: 5 * time.Minute, Fast: 2, Slow: 3}, Lent: 1.5, Late: 1e-5, Moves: 2}},
		"..": {Past: arbiter.Past{Level: []float32{1}, Work: []float32{1}}},
	}
	if err := open().save(want); err != nil {
		t.Fatal(err)
	}
	if err := open().save(map[string]arbiter.Memory{"new": {}}); err != nil { // nothing is known yet
		t.Fatal(err)
	}
	if got := open().past; !reflect.DeepEqual(got, want) || logged.Len() > 0 {
		t.Fatalf("read %+v\nwant %+v\n%s", got, want, logged.Bytes())
	}

	chat := filepath.Join(dir, "org%2Fchat.past")
	text, err := os.ReadFile(chat)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(chat, text[:len(text)-1], 0o600); err != nil {
		t.Fatal(err)
	}
	if got := open().past; len(got) != 1 || !strings.Contains(logged.String(), "damaged") {
		t.Errorf("read %+v of a torn file, and said %q", got, logged.String())
	}
	if _, err := os.Stat(chat + ".damaged"); err != nil {
		t.Error(err)
	}
	now = now.AddDate(0, 0, memoryDays+1)
	if got := open().past; len(got) != 0 {
		t.Errorf("after %d days %+v is still there", memoryDays+1, got)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.past")); len(left) != 0 {
		t.Errorf("%q is left", left)
	}
}
