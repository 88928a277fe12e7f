//go:build linux

package proc

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// standIn is the modelled cuda-checkpoint of testdata in a folder of its own.
func standIn(t *testing.T) (tool Checkpointer, dir string) {
	t.Helper()
	dir = t.TempDir()
	text, err := os.ReadFile("testdata/cuda-checkpoint")
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "cuda-checkpoint"), text, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return Checkpointer{Program: filepath.Join(dir, "cuda-checkpoint"), RunDir: filepath.Join(dir, "run"), devices: filepath.Join(dir, "device")}, dir
}

func put(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// asked is what the tool was asked to do with the pids, in order.
func asked(t *testing.T, dir string, pids [2]int) string {
	t.Helper()
	text, _ := os.ReadFile(filepath.Join(dir, "actions"))
	var out []string
	for l := range strings.Lines(string(text)) {
		var action string
		var pid int
		if _, err := fmt.Sscan(l, &action, &pid); err != nil {
			t.Fatal(err)
		}
		if pid == pids[0] || pid == pids[1] {
			out = append(out, action)
		}
	}
	return strings.Join(out, " ")
}

// All processes of a group leave, in lock-step, and stand still until they are back.
func TestSuspendAndResume(t *testing.T) {
	tool, dir := standIn(t)
	s := sh(`sleep 600 & echo $$ $!; env -u USES_CUDA sleep 600 & wait`)
	s.Env = append(s.Env, "USES_CUDA=1")
	next := line(t, &s)
	p := start(t, s)
	var pids [2]int
	fmt.Sscan(next(), &pids[0], &pids[1])
	held, err := tool.Suspend(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if got := asked(t, dir, pids); got != "lock lock checkpoint checkpoint" {
		t.Errorf("asked for %q, want all locked before any is copied", got)
	}
	for _, pid := range pids {
		eventually(t, "it is stopped", func() bool { st, err := readStat(pid); return err == nil && st.state == 'T' })
	}
	if err := held.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := asked(t, dir, pids); got != "lock lock checkpoint checkpoint restore restore unlock unlock" {
		t.Errorf("asked for %q", got)
	}
	for _, pid := range pids {
		eventually(t, "it goes on", func() bool { st, err := readStat(pid); return err == nil && st.state != 'T' })
	}
}

// One that cannot leave stays, and so does everything with it.
func TestSuspendFails(t *testing.T) {
	for name, c := range map[string]struct {
		file, text, want string
		state            string // of the program in the end
	}{
		"lock":       {file: "fail-lock", text: "busy with a graph", want: "busy with a graph", state: cudaRunning},
		"checkpoint": {file: "fail-checkpoint", text: "out of memory", want: "out of memory", state: cudaRunning},
		"hangs":      {file: "hang-checkpoint", want: "not done in time", state: cudaRunning},
		"stuck":      {file: "fail-unlock", text: "no", want: "not brought back", state: cudaLocked},
	} {
		t.Run(name, func(t *testing.T) {
			tool, dir := standIn(t)
			s := sh(`echo $$; exec sleep 600`)
			s.Env = append(s.Env, "USES_CUDA=1")
			next := line(t, &s)
			p := start(t, s)
			next()
			put(t, dir, c.file, c.text)
			if name == "stuck" {
				put(t, dir, "fail-checkpoint", "out of memory")
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if name == "hangs" { // it is given up once it does
				go func() {
					for ctx.Err() == nil {
						if text, _ := os.ReadFile(filepath.Join(dir, "actions")); strings.Contains(string(text), "checkpoint") {
							cancel()
						}
						time.Sleep(time.Millisecond)
					}
				}()
			}
			_, err := tool.Suspend(ctx, p)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%v, want %q", err, c.want)
			}
			st, err := readStat(p.PID())
			if err != nil || st.state == 'T' {
				t.Errorf("state %c, %v: want it to go on", st.state, err)
			}
			if got, err := tool.state(t.Context(), st); err != nil || got != c.state {
				t.Errorf("it is %q to the driver (%v), want %q", got, err, c.state)
			}
		})
	}
}

func TestNothingToSuspend(t *testing.T) {
	tool, _ := standIn(t)
	p := start(t, sh("exec sleep 600"))
	if _, err := tool.Suspend(t.Context(), p); err == nil || !strings.Contains(err.Error(), "none of its processes uses CUDA") {
		t.Error(err)
	}
}

// A process that keeps its device open has not left, whatever the tool says.
func TestSuspendLooksAtDevices(t *testing.T) {
	tool, dir := standIn(t)
	put(t, dir, "device0", "")
	s := sh(`exec 5<` + filepath.Join(dir, "device0") + `; echo open; exec sleep 600`)
	s.Env = append(s.Env, "USES_CUDA=1")
	next := line(t, &s)
	p := start(t, s)
	next()
	if _, err := tool.Suspend(t.Context(), p); err == nil || !strings.Contains(err.Error(), "device0 open") {
		t.Error(err)
	}
	// One that has it open without a state is a fault of the tool, no program without CUDA.
	put(t, dir, "fail-get-state", "no such device")
	if _, err := tool.Suspend(t.Context(), p); err == nil || !strings.Contains(err.Error(), "no such device") {
		t.Error(err)
	}
}

func TestProbe(t *testing.T) {
	tool, dir := standIn(t)
	if v, err := tool.Probe(t.Context()); err != nil || v != "580.65.06" {
		t.Errorf("%q, %v", v, err)
	}
	put(t, dir, "version", "550.54")
	if _, err := tool.Probe(t.Context()); err == nil || !strings.Contains(err.Error(), "is of version 550.54, want 570 or newer") {
		t.Error(err)
	}
	if _, err := (Checkpointer{Program: filepath.Join(dir, "none")}).Probe(t.Context()); err == nil {
		t.Error("a program that is not there was found")
	}
	if _, err := enough("it", "nothing to see"); err == nil || !strings.Contains(err.Error(), "says no version") {
		t.Error(err)
	}
}
