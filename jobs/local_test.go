package jobs_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"aloft/jobs"
	"aloft/jobs/boltstore"
)

// shell is a template of a shell script.
func shell(name, script string) jobs.Template {
	return jobs.Template{Name: name, Kind: jobs.KindTrain, Command: []string{"/bin/sh", "-c", script}, Grace: 2 * time.Second}
}

// runShell runs a script as a job and returns the job when it has the state.
func runShell(t *testing.T, script string, width int, l jobs.Limits, want jobs.State) (jobs.Job, *jobs.Manager, string) {
	t.Helper()
	dir := t.TempDir()
	s := shell("s", script)
	s.MaxWidth = width
	m, _ := newManager(t, dir, jobs.Options{Templates: []jobs.Template{s}})
	j, err := m.Submit(t.Context(), jobs.Job{Template: "s", MinWidth: width, Terms: jobs.Terms{Limits: l}})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Start(t.Context(), j.ID, lend(width)); err != nil {
		t.Fatal(err)
	}
	return untilState(t, m, j.ID, want), m, dir
}

// Each limit ends the job, says which it was and how much of it, and leaves nothing.
func TestLimits(t *testing.T) {
	for _, c := range []struct {
		name, script string
		limits       jobs.Limits
		want         string
	}{
		{"memory", "head -c 60000000 /dev/zero | tail | sleep 60", jobs.Limits{Memory: 20 << 20}, "memory limit exceeded"},
		{"disk", "cd $ALOFT_SCRATCH; for i in 1 2 3 4 5 6; do head -c 300000 /dev/zero >f$i; done; sleep 60", jobs.Limits{Disk: 1 << 20}, "disk limit exceeded: scratch, checkpoints and artefacts take 1."},
		{"artefacts", "for i in 1 2 3 4 5 6; do head -c 300000 /dev/zero >$ALOFT_OUTPUT_DIR/f$i; done; sleep 60", jobs.Limits{Disk: 1 << 20}, "disk limit exceeded"},
		{"one file", "sleep 3; exec dd if=/dev/zero of=$ALOFT_SCRATCH/big bs=65536 count=64 2>/dev/null", jobs.Limits{Disk: 1 << 20}, "disk limit exceeded: one file was to be larger than 1.0 MiB"},
		{"run time", "sleep 60", jobs.Limits{RunTime: 200 * time.Millisecond}, "run time limit exceeded: it ran for 200ms"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			j, _, dir := runShell(t, c.script, 1, c.limits, jobs.Failed)
			if !strings.Contains(j.Error, c.want) {
				t.Errorf("%q, want %q", j.Error, c.want)
			}
			if left, _ := os.ReadDir(filepath.Join(dir, "run", "scratch")); len(left) != 0 {
				t.Errorf("%d scratch folders are left", len(left))
			}
		})
	}
}

// A job that runs again has used up what its earlier runs took of its run time.
func TestRunTimeIsOfAllRuns(t *testing.T) {
	dir, o := t.TempDir(), jobs.Options{Templates: []jobs.Template{shell("s", "trap 'exit 75' TERM; sleep 60 & wait")}}
	m, stop := newManager(t, dir, o)
	j, err := m.Submit(t.Context(), jobs.Job{Template: "s", Terms: jobs.Terms{Limits: jobs.Limits{RunTime: time.Hour}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Start(t.Context(), j.ID, lend(1)); err != nil {
		t.Fatal(err)
	}
	if err := m.Preempt(t.Context(), j.ID, 0); err != nil {
		t.Fatal(err)
	}
	if j = untilState(t, m, j.ID, jobs.Queued); j.Ran <= 0 {
		t.Errorf("after a run it has run for %v", j.Ran)
	}
	stop()
	store, err := boltstore.Open(filepath.Join(dir, "jobs.db"))
	if err != nil {
		t.Fatal(err)
	}
	left, err := store.Get(t.Context(), j.ID)
	if err == nil {
		left.Ran = time.Hour - 100*time.Millisecond // as if the run had been so long
		err = store.Put(t.Context(), &left)
	}
	if err := errors.Join(err, store.Close()); err != nil {
		t.Fatal(err)
	}
	m, _ = newManager(t, dir, o)
	if err := m.Start(t.Context(), j.ID, lend(1)); err != nil {
		t.Fatal(err)
	}
	if j = untilState(t, m, j.ID, jobs.Failed); j.Error != "run time limit exceeded: it ran for 1h0m0s" {
		t.Errorf("failed with %q", j.Error)
	}
}

// The log keeps the newest lines within its limit.
func TestLogIsBounded(t *testing.T) {
	j, m, _ := runShell(t, "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done", 1, jobs.Limits{Log: 4000}, jobs.Succeeded)
	sum := int64(0)
	for _, path := range []string{m.LogPath(j.ID), m.LogPath(j.ID) + ".1"} {
		if st, err := os.Stat(path); err == nil { // all at once fits into one
			sum += st.Size()
		}
	}
	text, _ := os.ReadFile(m.LogPath(j.ID))
	if sum > 4000 || !strings.HasSuffix(string(text), "line 1999\n") {
		t.Errorf("%d bytes are kept, ending %q", sum, text[max(0, len(text)-30):])
	}
}

// A program may report by appending to a file; its artefacts stay, its scratch
// folder does not, even if it tried to keep us out.
func TestFolders(t *testing.T) {
	j, m, dir := runShell(t, `echo '{"step":3,"total":4,"result":"fine"}' >>"$ALOFT_PROGRESS_FILE"
echo kept >$ALOFT_OUTPUT_DIR/artefact; mkdir -p $HOME/deep/er; echo x >$TMPDIR/deep/er/f; chmod 0 $ALOFT_SCRATCH/deep`, 1, jobs.Limits{}, jobs.Succeeded)
	if j.Progress.Done != 3 || j.Progress.Result != "fine" {
		t.Errorf("progress %+v, want what was appended to the file", j.Progress)
	}
	if text, err := os.ReadFile(filepath.Join(m.OutputDir(j.ID), "artefact")); string(text) != "kept\n" {
		t.Errorf("artefact %q, %v", text, err)
	}
	if left, _ := os.ReadDir(filepath.Join(dir, "run", "scratch")); len(left) != 0 {
		t.Errorf("%d scratch folders are left", len(left))
	}
}

// One member's death ends all, and the job; what the others did does not count.
func TestGangDiesTogether(t *testing.T) {
	j, _, _ := runShell(t, `[ $ALOFT_RANK = 1 ] && [ -n "$ALOFT_RENDEZVOUS" ] && exit 3; sleep 3600`, 3, jobs.Limits{}, jobs.Failed)
	if j.Error != "exit status 3" || len(j.Slices) != 0 {
		t.Errorf("%q on %v", j.Error, j.Slices)
	}
}

// A job that fails says why in its program's last words, without what a terminal
// acts on; the lines of an earlier run are not this one's.
func TestFailureSaysWhy(t *testing.T) {
	for _, c := range []struct{ script, want string }{
		{`echo reading; printf '\033[31mno such model\033[0m\r\n\n' >&2; exit 4`, "exit status 4: [31mno such model[0m"},
		{`echo last words; kill -SEGV $$`, "ended by signal segmentation fault: last words"},
		{`yes | head -c 1000 | tr -d '\n'; exit 1`, "exit status 1: " + strings.Repeat("y", 300)},
		{`if [ -e ran ]; then exit 5; fi; touch ran; echo of the first run; exit 6`, "exit status 6: of the first run"},
	} {
		j, m, _ := runShell(t, c.script, 1, jobs.Limits{}, jobs.Failed)
		if j.Error != c.want {
			t.Errorf("%s\n%q, want %q", c.script, j.Error, c.want)
		}
		if strings.Contains(c.script, "-e ran") {
			if _, err := m.Retry(t.Context(), j.ID); err != nil {
				t.Fatal(err)
			}
			if err := m.Start(t.Context(), j.ID, lend(1)); err != nil {
				t.Fatal(err)
			}
			if j = untilState(t, m, j.ID, jobs.Failed); j.Error != "exit status 5" {
				t.Errorf("the second run failed with %q", j.Error)
			}
		}
	}
}

// Preempting a gang takes all of it.
func TestGangGivesWay(t *testing.T) {
	m, _ := newManager(t, t.TempDir(), jobs.Options{})
	j := submit(t, m, "train")
	if err := m.Start(t.Context(), j.ID, lend(3)); err != nil {
		t.Fatal(err)
	}
	if err := m.Preempt(t.Context(), j.ID, 0); err != nil {
		t.Fatal(err)
	}
	if got, _ := m.Get(t.Context(), j.ID); got.State != jobs.Queued && got.State != jobs.Succeeded {
		t.Errorf("%s: %s", got.State, got.Error)
	}
}

// A job runs as its own user, who can use its folders and no other's.
func TestUsers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root may start programs as another user")
	}
	dir, err := os.MkdirTemp("", "aloft-users-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for _, sub := range []string{"", "out", "out/a", "out/b", "cp", "run"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o711); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, sub), 0o711); err != nil {
			t.Fatal(err)
		}
	}
	l := jobs.Local{RunDir: filepath.Join(dir, "run"), Users: jobs.Users{First: 70000, Last: 79999}}
	if notes, err := l.Check(t.Context()); err != nil {
		t.Fatal(err, notes)
	}
	run := func(id, script string) (jobs.Exit, string) {
		out := filepath.Join(dir, "out", id)
		log := filepath.Join(dir, id+".log")
		r, err := l.Start(t.Context(), jobs.Launch{Job: jobs.Job{ID: id, Command: []string{"/bin/sh", "-c", script}}, Slices: lend(1),
			CheckpointDir: filepath.Join(dir, "cp"), OutputDir: out, Log: log})
		if err != nil {
			t.Fatal(err)
		}
		e := r.Wait()
		text, _ := os.ReadFile(log)
		return e, string(text)
	}
	e, a := run("a", "id -u; umask 077; echo mine >$ALOFT_OUTPUT_DIR/f; echo ok >$ALOFT_SCRATCH/f")
	if e != (jobs.Exit{}) || len(a) != 6 || a < "70000" || a > "79999" {
		t.Errorf("%v: %s", e, a)
	}
	e, b := run("b", "id -u; cat "+filepath.Join(dir, "out", "a", "f"))
	if e.Code == 0 || strings.HasPrefix(b, a) || !strings.Contains(b, "ermission denied") {
		t.Errorf("%v: %s; want another user who may not read the first job's file", e, b)
	}
	if _, err := (jobs.Local{RunDir: filepath.Join(dir, "run"), Users: jobs.Users{First: 5, Last: 4}}).Check(t.Context()); err == nil {
		t.Error("users 5 to 4 were accepted")
	}
}
