//go:build linux

package proc

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A group's files say the limits; what cannot be written is not held.
func TestBound(t *testing.T) {
	for _, c := range []struct {
		name   string
		limits Limits
		memory bool // the controller is there
		holds  Holds
		files  map[string]string
	}{
		{"both", Limits{CPUs: 1.5, Memory: 1 << 30}, true, Holds{true, true},
			map[string]string{"cpu.max": "150000 100000\n", "memory.max": "1073741824\n", "memory.oom.group": "1\n"}},
		{"no memory controller", Limits{CPUs: 0.001, Memory: 1 << 30}, false, Holds{CPUs: true}, map[string]string{"cpu.max": "1000 100000\n", "memory.max": ""}},
		{"no limits", Limits{}, true, Holds{}, map[string]string{"cpu.max": "", "memory.max": "max\n"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if c.memory {
				if err := os.WriteFile(filepath.Join(dir, "memory.max"), []byte("max\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if got := c.limits.bound(dir); got != c.holds {
				t.Errorf("holds %+v, want %+v", got, c.holds)
			}
			for file, want := range c.files {
				if got, _ := os.ReadFile(filepath.Join(dir, file)); string(got) != want {
					t.Errorf("%s says %q, want %q", file, got, want)
				}
			}
		})
	}
}

func TestOutOfMemory(t *testing.T) {
	for text, want := range map[string]bool{"low 0\noom 1\noom_kill 2\n": true, "oom 3\noom_kill 0\n": false, "": false} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "memory.events"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := outOfMemory(dir); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
	if outOfMemory(t.TempDir()) {
		t.Error("a kill without a file that says so")
	}
}

// Without a cgroup a process is kept to whole cores from its first instruction.
func TestCores(t *testing.T) {
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	if all.Count() < 2 {
		t.Skip("this machine gives us one core: nothing to keep a process from")
	}
	for limit, want := range map[float64]string{0.5: "1\n", 1: "1\n"} {
		var out bytes.Buffer
		p, err := Start(t.Context(), Spec{Name: "cores", Path: "nproc", Env: BaseEnv(), Stdout: &out, Limits: Limits{CPUs: limit}})
		if err != nil {
			t.Fatal(err)
		}
		if e := p.Wait(); !e.OK() || !p.Holds().CPUs && out.String() != want {
			t.Errorf("limit %g: %v cores, %v; want %s", limit, out.String(), e, want)
		}
	}
	var out bytes.Buffer // and the next one has them all again
	p, err := Start(t.Context(), Spec{Name: "cores", Path: "nproc", Env: BaseEnv(), Stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	if p.Wait(); strings.TrimSpace(out.String()) == "1" {
		t.Errorf("%s cores without a limit, of %d", out.String(), all.Count())
	}
}

func TestFileSize(t *testing.T) {
	dir := t.TempDir()
	p, err := Start(t.Context(), Spec{Name: "big", Path: "sh", Args: []string{"-c", "while [ ! -e go ]; do sleep 0.01; done; exec dd if=/dev/zero of=big bs=1024 count=64"}, Env: BaseEnv(), Dir: dir, Limits: Limits{FileSize: 10 << 10}})
	if err == nil { // the limit is set on what has begun
		err = os.WriteFile(filepath.Join(dir, "go"), nil, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	e := p.Wait()
	st, err := os.Stat(filepath.Join(dir, "big"))
	if err != nil || st.Size() != 10<<10 || e.OK() {
		t.Errorf("%v and %+v, %v; want it ended at 10 KiB", e, st, err)
	}
}

func TestMemoryIsSummed(t *testing.T) {
	p, err := Start(t.Context(), Spec{Name: "hog", Path: "sh", Args: []string{"-c", "head -c 30000000 /dev/zero | tail | sleep 600 & wait"}, Env: BaseEnv()})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop(0)
	most := int64(0)
	for end := time.Now().Add(time.Minute); most < 20_000_000 && time.Now().Before(end); time.Sleep(time.Millisecond) {
		most = max(most, p.Memory())
	}
	if most < 20_000_000 {
		t.Errorf("at most %d bytes were seen of a child that holds 30 MB", most)
	}
}

func TestUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root may start programs as another user")
	}
	var out bytes.Buffer
	p, err := Start(t.Context(), Spec{Name: "who", Path: "/bin/sh", Args: []string{"-c", "id -u; id -g; id -G; grep NoNewPrivs /proc/self/status"}, Env: BaseEnv(), Stdout: &out, Dir: "/", User: &User{70001, 70002}})
	if err != nil {
		t.Fatal(err)
	}
	if e := p.Wait(); !e.OK() || !strings.HasPrefix(out.String(), "70001\n70002\n70002\n") {
		t.Errorf("%v: %s", e, out.String())
	}
	// It is still ours to stop, with all that it started.
	p, err = Start(t.Context(), Spec{Name: "tree", Path: "/bin/sh", Args: []string{"-c", "setsid sleep 60 & sleep 60"}, Env: BaseEnv(), Dir: "/", User: &User{70001, 70002}})
	if err != nil {
		t.Fatal(err)
	}
	if e := p.Stop(0); e.Signal != syscall.SIGKILL {
		t.Errorf("stopped: %v", e)
	}
	if left := p.id.living(); len(left) != 0 {
		t.Errorf("%d processes are left", len(left))
	}
}

func TestBadLimits(t *testing.T) {
	for _, l := range []Limits{{CPUs: -1}, {CPUs: 1e9}, {Memory: -1}, {FileSize: -1}} {
		if err := (Spec{Path: "true", Limits: l}).Validate(); err == nil {
			t.Errorf("%+v was accepted", l)
		}
	}
}
