package jobs_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"aloft/jobs"
)

// said is everything that a job's events say.
func said(t *testing.T, m *jobs.Manager, id string) string {
	t.Helper()
	list, err := m.Events(t.Context(), id, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, e := range list {
		b.WriteString(e.Message + "\n")
	}
	return b.String()
}

// saver saves three checkpoints, waits to be told to stop, and says from which it
// began; with bad in its folder it cannot read that one.
const saver = `cd $ALOFT_CHECKPOINT_DIR
[ -n "$ALOFT_RESUME_FROM" ] && [ "$(cat bad 2>/dev/null)" = "$ALOFT_RESUME_FROM" ] && exit 9
trap 'exit 75' TERM
n=${ALOFT_RESUME_FROM##*c}
for k in 1 2 3 4; do
  i=$((n + k)); echo "state $i" >c$i; echo "{\"step\":$i,\"total\":9,\"checkpoint\":\"c$i\",\"checkpoint_seconds\":2}" >&3
done
echo "{\"step\":$i,\"result\":\"from ${ALOFT_RESUME_FROM##*/} $$\"}" >&3
sleep 60 & wait`

// stopped starts the job, waits for its last line and preempts it.
func stopped(t *testing.T, m *jobs.Manager, id string) jobs.Job {
	t.Helper()
	old, _ := m.Get(t.Context(), id)
	until(t, "its start", func() bool { return m.Start(t.Context(), id, lend(1)) == nil }) // an earlier run may still be noted
	until(t, "the last line", func() bool {
		j, _ := m.Get(t.Context(), id)
		return j.State != jobs.Starting && j.State != jobs.Running || j.Progress.Result != "" && j.Progress.Result != old.Progress.Result && j.State == jobs.Running
	})
	if err := m.Preempt(t.Context(), id, 0); err != nil {
		t.Fatal(err)
	}
	j, err := m.Get(t.Context(), id)
	if err != nil || j.State != jobs.Queued {
		t.Fatalf("%s (%s), %v", j.State, j.Error, err)
	}
	return j
}

func TestCheckpointsAreKeptAndPassedOver(t *testing.T) {
	dir := t.TempDir()
	m, _ := newManager(t, dir, jobs.Options{Templates: []jobs.Template{shell("s", saver)}})
	j := submit(t, m, "s")
	j = stopped(t, m, j.ID)
	folder := filepath.Join(dir, "checkpoints", j.ID)
	var names []string
	for _, c := range j.Checkpoints {
		names = append(names, filepath.Base(c.Path))
	}
	if got := strings.Join(names, " "); got != "c1 c2 c3 c4" || j.Checkpoints[3].Bytes != 8 || j.Progress.Checkpoint != filepath.Join(folder, "c4") || j.Saving.Seconds() != 2 {
		t.Errorf("checkpoints %s, last %+v, progress %+v, saving takes %v", got, j.Checkpoints[3], j.Progress, j.Saving)
	}
	if _, err := os.Stat(filepath.Join(folder, "c1")); err == nil {
		t.Error("the fourth newest is still there, three are kept")
	}
	from := func(want string, events ...string) {
		t.Helper()
		j = stopped(t, m, j.ID)
		if got, _, _ := strings.Cut(strings.TrimPrefix(j.Progress.Result, "from "), " "); got != want {
			t.Errorf("%q, want %q", j.Progress.Result, want)
		}
		all := said(t, m, j.ID)
		for _, e := range events {
			if !strings.Contains(all, e) {
				t.Errorf("no event says %q in\n%s", e, all)
			}
		}
	}
	from("c4")
	if err := os.WriteFile(filepath.Join(folder, "c8"), []byte("cut"), 0o600); err != nil {
		t.Fatal(err)
	}
	from("c7", "checkpoint is cut off", "goes on from the one at 7")
	if err := os.RemoveAll(folder); err != nil {
		t.Fatal(err)
	}
	from("", "checkpoint is gone", "started over")
	// One that its program cannot read: the one before is tried.
	if err := os.WriteFile(filepath.Join(folder, "bad"), []byte(filepath.Join(folder, "c4")), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := m.Start(t.Context(), j.ID, lend(1)); err != nil {
		t.Fatal(err)
	}
	untilState(t, m, j.ID, jobs.Queued)
	from("c3", "could not go on from", "the one before is tried")
}

// A checkpoint that is not there is not believed, and does not earn another run.
func TestCheckpointThatIsNotThere(t *testing.T) {
	for _, path := range []string{"nowhere", "/nonexistent/c1", "empty"} {
		j, m, _ := runShell(t, `: >$ALOFT_CHECKPOINT_DIR/empty; echo '{"step":1,"checkpoint":"`+path+`"}' >&3; exit 75`, 1, jobs.Limits{}, jobs.Failed)
		if len(j.Checkpoints) != 0 || j.Progress.Checkpoint != "" || !strings.Contains(said(t, m, j.ID), "not believed") {
			t.Errorf("%s: %+v\n%s", path, j.Checkpoints, said(t, m, j.ID))
		}
	}
}
