package jobs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// However often a log was turned over, by however many lives, it is known how
// much was written before what is kept of it.
func TestLogStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	var all strings.Builder
	check := func(when string) {
		t.Helper()
		kept := ""
		for _, name := range []string{path + LogOlder, path} {
			text, err := os.ReadFile(name)
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			kept += string(text)
		}
		current, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if want := int64(all.Len() - len(current)); LogStart(path) != want || !strings.HasSuffix(all.String(), kept) {
			t.Fatalf("%s: %d bytes before the log, want %d of %d", when, LogStart(path), want, all.Len())
		}
	}
	for life := range 4 {
		c, err := openLog(path, 100)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 7 * (life + 1) {
			line := fmt.Sprintf("life %d, line %d%s\n", life, i, strings.Repeat(".", i))
			all.WriteString(line)
			if _, err := c.Write([]byte(line)); err != nil {
				t.Fatal(err)
			}
			check(line)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// Killed with the note written and nothing moved.
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	note := fmt.Appendln(nil, inodeOf(st), all.Len()-int(st.Size()))
	if err := os.WriteFile(path+logTurn, note, 0o600); err != nil {
		t.Fatal(err)
	}
	check("in the middle of a turn")
}
