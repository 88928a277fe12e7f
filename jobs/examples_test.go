package jobs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"aloft/jobs"
)

// preempted runs an example, preempts it twice, and returns its end.
func preempted(t *testing.T, command ...string) (jobs.Job, *jobs.Manager) {
	t.Helper()
	m, _ := newManager(t, t.TempDir(), jobs.Options{Templates: []jobs.Template{{Name: "e", Kind: jobs.KindTrain, Command: command, Grace: 20 * time.Second, Env: []string{"PYTHONDONTWRITEBYTECODE=1"}}}})
	j := submit(t, m, "e")
	for range 2 {
		heard := j.Progress.Heard
		until(t, "its start", func() bool { return m.Start(t.Context(), j.ID, lend(1)) == nil })
		until(t, "its first line", func() bool { j, _ = m.Get(t.Context(), j.ID); return j.Progress.Heard.After(heard) })
		if err := m.Preempt(t.Context(), j.ID, 0); err != nil {
			t.Fatal(err)
		}
		j, _ = m.Get(t.Context(), j.ID)
		if j.State != jobs.Queued || j.Progress.Checkpoint == "" {
			text, _ := os.ReadFile(m.LogPath(j.ID))
			t.Fatalf("after a preemption: %s (%s), progress %+v\n%s", j.State, j.Error, j.Progress, text)
		}
	}
	if err := m.Start(t.Context(), j.ID, lend(1)); err != nil {
		t.Fatal(err)
	}
	return untilState(t, m, j.ID, jobs.Succeeded), m
}

func example(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "configs", "examples", name))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestShellExample(t *testing.T) {
	j, m := preempted(t, example(t, "count.sh"), "300", "0.005")
	text, err := os.ReadFile(filepath.Join(m.OutputDir(j.ID), "squares"))
	lines := strings.Fields(string(text))
	if err != nil || len(lines) != 300 || lines[299] != "89401" || j.Progress.Result != "counted to 300" || j.Progress.Resumes != 2 {
		t.Errorf("%d lines, %v, progress %+v", len(lines), err, j.Progress)
	}
}

func python(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not here")
	}
	return path
}

// The part of the Python examples that is the protocol, run without a framework.
func TestPythonExample(t *testing.T) {
	j, _ := preempted(t, python(t), example(t, "loop.py"), "400")
	value := 1
	for range 400 {
		value = value * 48271 % 2147483647
	}
	if j.Progress.Result != strconv.Itoa(value) || j.Progress.Done != 400 || j.Progress.Resumes != 2 {
		t.Errorf("progress %+v, want the result %d", j.Progress, value)
	}
}

func TestPythonExamplesParse(t *testing.T) {
	for _, name := range []string{"aloft_job.py", "loop.py", "pytorch_train.py", "huggingface_train.py"} {
		text, err := os.ReadFile(example(t, name))
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), "\n"); n > 60 {
			t.Errorf("%s has %d lines, want a page at most", name, n)
		}
		copied := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(copied, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(python(t), "-m", "py_compile", copied).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
