package jobs_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"aloft/jobs"
)

func TestShownPath(t *testing.T) {
	j := jobs.Job{ID: "job_1"}
	for path, want := range map[string]string{
		"/data/checkpoints/job_1/step-3":   "step-3",
		"/data/checkpoints/job_1/a/step-3": "a/step-3",
		"/elsewhere/step-3":                "step-3",
		"/data/checkpoints/job_11/step-3":  "step-3",
	} {
		if got := j.ShownPath(path); got != want {
			t.Errorf("%s is shown as %q, want %q", path, got, want)
		}
	}
}

func TestCheckpointFolderOfATemplate(t *testing.T) {
	for folder, ok := range map[string]bool{"": true, "/mnt/a/{job}": true, "/mnt/{job}/a": false, "mnt/{job}": false, "/mnt/a": false, "/{job}/{job}": false} {
		tpl := shell("s", "true")
		tpl.Checkpoints = folder
		if err := tpl.Validate(); (err == nil) != ok {
			t.Errorf("%q: %v", folder, err)
		}
	}
	tpl := shell("s", "true")
	if tpl.ClearCheckpoints = true; tpl.Validate() == nil {
		t.Error("a folder that is not given is to be cleared")
	}
}

// An operator's checkpoint folder is used, waited for when it is gone, and nothing
// in it is removed, unless he said so.
func TestCheckpointsInAFolderOfTheOperator(t *testing.T) {
	for _, clear := range []bool{false, true} {
		base := filepath.Join(t.TempDir(), "kept")
		if err := os.Mkdir(base, 0o755); err != nil {
			t.Fatal(err)
		}
		tpl := shell("s", `n=$(cat "$ALOFT_RESUME_FROM" 2>/dev/null || echo 0)
[ $n -ge 5 ] && { echo "{\"step\":$n,\"result\":\"$n\"}" >&3; exit 0; }
for i in 1 2 3 4 5; do echo $i >$ALOFT_CHECKPOINT_DIR/c$i; echo "{\"step\":$i,\"checkpoint\":\"c$i\"}" >&3; done; exit 75`)
		tpl.Checkpoints, tpl.ClearCheckpoints = filepath.Join(base, "{job}"), clear
		m, _ := newManager(t, t.TempDir(), jobs.Options{Templates: []jobs.Template{tpl}, JobRetry: jobs.Retry{First: time.Millisecond}})
		j := submit(t, m, "s")
		if err := m.Start(t.Context(), j.ID, lend(1)); err != nil {
			t.Fatal(err)
		}
		until(t, "it to ask to be run again", func() bool {
			var err error
			if j, err = m.Get(t.Context(), j.ID); err != nil {
				t.Fatal(err)
			}
			return j.State == jobs.Queued && len(j.Checkpoints) == 5
		})
		kept := 5
		if clear {
			kept = 3
		}
		dir := filepath.Join(base, j.ID)
		if left, err := os.ReadDir(dir); err != nil || len(left) != kept {
			t.Errorf("%d checkpoints are left (%v), want %d", len(left), err, kept)
		}
		// Gone, all of it, and then its own part alone: it waits, and says for what.
		for _, gone := range []string{base, dir} {
			if err := os.Rename(gone, gone+"-away"); err != nil {
				t.Fatal(err)
			}
			untilState(t, m, j.ID, jobs.Queued)
			if err := m.Start(t.Context(), j.ID, lend(1)); err == nil || !strings.Contains(err.Error(), "checkpoint folder is missing") {
				t.Errorf("%s is gone and it starts: %v", gone, err)
			}
			if !strings.Contains(said(t, m, j.ID), "for its checkpoint folder, which its operator keeps: it is not there") {
				t.Errorf("its events do not say so:\n%s", said(t, m, j.ID))
			}
			if err := os.Rename(gone+"-away", gone); err != nil {
				t.Fatal(err)
			}
		}
		untilState(t, m, j.ID, jobs.Queued)
		if err := m.Start(t.Context(), j.ID, lend(1)); err != nil {
			t.Fatal(err)
		}
		if j = untilState(t, m, j.ID, jobs.Succeeded); j.Progress.Result != "5" {
			t.Errorf("it did not go on from its last checkpoint: %+v", j.Progress)
		}
		if err := m.Delete(t.Context(), j.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(dir); (err != nil) != clear {
			t.Errorf("after its removal, clear %v: %v", clear, err)
		}
	}
}
