package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// With jobs.users a job runs as a user of the range, who gets at his own folders
// and not at the store.
func TestJobsRunAsUsers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root may start programs as another user")
	}
	outer, err := os.MkdirTemp("", "aloft-users-") // that of t.TempDir lets nobody through
	if err == nil {
		t.Cleanup(func() { os.RemoveAll(outer) })
		err = os.Chmod(outer, 0o711)
	}
	if err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(outer, "data")
	conf := strings.Replace(worked, "jobs:\n", "jobs:\n  users: {first: 70000, last: 79999}\n", 1) +
		`    - {name: who, kind: evaluate, command: [sh, -c, 'id -u; echo x >"$ALOFT_CHECKPOINT_DIR/a" && echo x >"$ALOFT_OUTPUT_DIR/b" && echo wrote; cat {data}/store.db && echo read; ls {data} && echo listed; exit 0']}` + "\n"
	s := start(t, data, nil, "--config", write(t, "aloft.yaml", conf))
	call(t, s.env(), "jobs", "submit", "who", "--wait", "--timeout", "80s")
	log := call(t, s.env(), "jobs", "logs", "latest")
	first, rest, _ := strings.Cut(log, "\n")
	if uid, err := strconv.Atoi(first); err != nil || uid < 70000 || uid > 79999 || !strings.Contains(rest, "wrote") || strings.Contains(rest, "read\n") || strings.Contains(rest, "listed") {
		t.Errorf("its log:\n%s", log)
	}
	s.stop(t)
}
