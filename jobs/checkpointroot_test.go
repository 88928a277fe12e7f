package jobs_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"aloft/jobs"
)

// A template's checkpoint folder that is not there, as one of a file system that
// is not mounted, is waited for: no try is lost, and no checkpoint.
func TestCheckpointFolderOfATemplate(t *testing.T) {
	root := filepath.Join(t.TempDir(), "mounted")
	saves := template("train", 5*time.Second, "1000000") // more than it gets to
	saves.Checkpoints = root
	m, _ := newManager(t, t.TempDir(), jobs.Options{
		Templates: []jobs.Template{saves}, JobRetry: jobs.Retry{First: time.Millisecond, Most: 20 * time.Millisecond},
	})
	j := submit(t, m, "train")
	folder := filepath.Join(root, j.ID)
	gone := func() {
		t.Helper()
		if err := m.Start(t.Context(), j.ID, lend(1)); err == nil || !strings.Contains(err.Error(), root+": checkpoint folder is not there") {
			t.Fatalf("started with %v", err)
		}
		got, err := m.Get(t.Context(), j.ID)
		if err != nil || got.State != jobs.Waiting && got.State != jobs.Queued || got.Tried != 0 || !strings.Contains(got.Error, root) {
			t.Fatalf("%s, tried %d, %q, %v", got.State, got.Tried, got.Error, err)
		}
		if _, err := os.Stat(root); !os.IsNotExist(err) {
			t.Fatalf("the folder was made: %v", err)
		}
		untilState(t, m, j.ID, jobs.Queued)
	}
	gone()
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	start(t, m, j.ID)
	saved := func() (n int) {
		got, err := m.Get(t.Context(), j.ID)
		if err != nil {
			t.Fatal(err)
		}
		return len(got.Checkpoints)
	}
	until(t, "a checkpoint", func() bool { return saved() > 0 })
	if err := m.Preempt(t.Context(), j.ID, 0); err != nil {
		t.Fatal(err)
	}
	had := saved()
	got, _ := m.Get(t.Context(), j.ID)
	if last := got.Checkpoints[had-1].Path; filepath.Dir(last) != folder {
		t.Errorf("saved as %s, want it in %s", last, folder)
	}
	away := root + "-away"
	if err := os.Rename(root, away); err != nil {
		t.Fatal(err)
	}
	gone()
	if n := saved(); n != had {
		t.Errorf("%d checkpoints are known, were %d", n, had)
	}
	if err := os.Rename(away, root); err != nil {
		t.Fatal(err)
	}
	start(t, m, j.ID)
	until(t, "going on from the checkpoint", func() bool {
		got, _ := m.Get(t.Context(), j.ID)
		return got.Progress.Resumes == 1
	})
	if _, err := m.Cancel(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	untilState(t, m, j.ID, jobs.Cancelled)
	if err := m.Delete(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(folder); !os.IsNotExist(err) {
		t.Errorf("its folder is there after it was deleted: %v", err)
	}
}
