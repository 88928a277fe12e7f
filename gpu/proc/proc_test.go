//go:build linux

package proc

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// parentEnv makes the test binary a parent that starts one process and waits
// to be killed; its value is the run folder.
const parentEnv = "PROC_TEST_PARENT"

func TestMain(m *testing.M) {
	if dir := os.Getenv(parentEnv); dir != "" {
		p, err := Start(context.Background(), Spec{
			Name: "leftover", Path: "/bin/sh", Env: BaseEnv(), RunDir: dir,
			// Grandchildren in the group, in another group, deaf to SIGTERM.
			Args: []string{"-c", `trap "" TERM; sleep 600 & setsid sleep 600 & echo; wait`}, Stdout: os.Stdout,
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		p.Wait()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func sh(script string) Spec {
	return Spec{Name: "test", Path: "/bin/sh", Args: []string{"-c", script}, Env: BaseEnv()}
}

func start(t *testing.T, s Spec) *Process {
	t.Helper()
	p, err := Start(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Stop(0) })
	return p
}

// eventually polls a real process's state; there is no clock to advance.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("still not so: %s", what)
}

// line gives a Spec a Stdout whose first line tells that the script got there.
func line(t *testing.T, s *Spec) func() string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s.Stdout = w
	t.Cleanup(func() { r.Close() })
	return func() string {
		w.Close()
		text, err := bufio.NewReader(r).ReadString('\n')
		if err != nil {
			t.Fatalf("read the script's line: %v", err)
		}
		return strings.TrimSpace(text)
	}
}

func TestExit(t *testing.T) {
	for _, c := range []struct {
		script, want string
		code         int
		signal       syscall.Signal
	}{
		{"exit 0", "exit code 0", 0, 0},
		{"exit 3", "exit code 3", 3, 0},
		{"kill -KILL $$", "ended by SIGKILL", -1, syscall.SIGKILL},
	} {
		e := start(t, sh(c.script)).Wait()
		if e.Code != c.code || e.Signal != c.signal || e.Err != nil || e.String() != c.want {
			t.Errorf("%s: got %+v (%v), want %s", c.script, e, e, c.want)
		}
	}
}

func TestEnvironmentIsOnlyWhatIsGiven(t *testing.T) {
	t.Setenv("PROC_TEST_SECRET", "x")
	var out bytes.Buffer
	s := Spec{Name: "env", Path: "/usr/bin/env", Env: []string{"A=1"}, Stdout: &out, Dir: "/"}
	if e := start(t, s).Wait(); !e.OK() {
		t.Fatal(e)
	}
	var names []string
	for l := range strings.Lines(out.String()) {
		k, _, _ := strings.Cut(l, "=")
		names = append(names, k)
	}
	if got := strings.Join(names, " "); got != "A ALOFT_PROC SPT_NOENV" {
		t.Errorf("environment holds %s", got)
	}
	for _, kv := range BaseEnv() {
		if strings.HasPrefix(kv, "PROC_TEST") {
			t.Errorf("BaseEnv gives %s", kv)
		}
	}
}

func TestExtraFileIsDescriptorThree(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s := sh("echo hello >&3")
	s.ExtraFiles = []*os.File{w}
	p := start(t, s)
	w.Close()
	if got, err := bufio.NewReader(r).ReadString('\n'); got != "hello\n" {
		t.Errorf("read %q, %v", got, err)
	}
	p.Wait()
}

func TestRefusals(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("shutting down"))
	for _, c := range []struct {
		name string
		ctx  context.Context
		spec Spec
		want string
	}{
		{"no program", t.Context(), Spec{Name: "x"}, "no program given"},
		{"nice", t.Context(), Spec{Name: "x", Path: "true", Nice: 20}, "nice is 20, want 0 to 19"},
		{"negative nice", t.Context(), Spec{Name: "x", Path: "true", Nice: -1}, "nice is -1"},
		{"folder", t.Context(), Spec{Name: "x", Path: "true", Dir: file + "/no"}, "working folder"},
		{"file as folder", t.Context(), Spec{Name: "x", Path: "true", Dir: file}, "is not a folder"},
		{"program", t.Context(), Spec{Name: "x", Path: "/no/such/program"}, "no such file"},
		{"run folder", t.Context(), Spec{Name: "x", Path: "true", RunDir: file}, "run folder"},
		{"context", ended, Spec{Name: "x", Path: "true"}, "shutting down"},
	} {
		p, err := Start(c.ctx, c.spec)
		if err == nil {
			p.Stop(0)
			t.Errorf("%s: started", c.name)
		} else if !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), `"x"`) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func TestFailedStartLeavesNoPidFile(t *testing.T) {
	dir := t.TempDir()
	if _, err := Start(t.Context(), Spec{Name: "x", Path: "/no/such", RunDir: dir}); err == nil {
		t.Fatal("started")
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("run folder holds %v", left)
	}
}

func TestStopIsGentleFirst(t *testing.T) {
	s := sh(`trap "exit 7" TERM; echo; while :; do sleep 0.01; done`)
	ready := line(t, &s)
	p := start(t, s)
	ready()
	if e := p.Stop(time.Minute); e.Code != 7 {
		t.Errorf("got %v, want exit code 7", e)
	}
	if err := p.Signal(syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal after the end: %v", err)
	}
	if e := p.Stop(time.Second); e.Code != 7 {
		t.Errorf("second stop: %v", e)
	}
}

func TestStopKillsWhoIgnoresTerm(t *testing.T) {
	s := sh(`trap "" TERM; echo; while :; do sleep 600; done`)
	ready := line(t, &s)
	p := start(t, s)
	ready()
	begin := time.Now()
	e := p.Stop(100 * time.Millisecond)
	if took := time.Since(begin); e.Signal != syscall.SIGKILL || took < 100*time.Millisecond {
		t.Errorf("got %v after %v, want SIGKILL after 100ms", e, took)
	}
}

func TestGraceIsTheWholeGroups(t *testing.T) {
	out := filepath.Join(t.TempDir(), "checkpoint")
	// The leader dies at once; its child needs a while to save.
	s := sh(`(trap "sleep 0.2; echo saved > $OUT; exit" TERM; echo; while :; do sleep 0.01; done) & wait`)
	s.Env = append(s.Env, "OUT="+out)
	ready := line(t, &s)
	p := start(t, s)
	ready()
	if e := p.Stop(time.Minute); e.Signal != syscall.SIGTERM {
		t.Errorf("leader: %v, want SIGTERM", e)
	}
	if b, err := os.ReadFile(out); string(b) != "saved\n" {
		t.Errorf("checkpoint holds %q, %v", b, err)
	}
}

func TestGrandchildrenDieWithTheLeader(t *testing.T) {
	s := sh(`trap "" TERM HUP; sleep 600 & setsid sleep 600 & echo; exit 0`)
	ready := line(t, &s)
	p := start(t, s)
	ready()
	if e := p.Wait(); !e.OK() {
		t.Error(e)
	}
	if left := p.id.living(); len(left) != 0 {
		t.Errorf("alive after Done: %+v", left)
	}
}

func TestPauseResume(t *testing.T) {
	// Not a shell loop: paused inside vfork, a shell shows D and not T.
	p := start(t, sh("exec sleep 600"))
	state := func() byte { st, _ := readStat(p.PID()); return st.state }
	if err := p.Pause(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "paused", func() bool { return state() == 'T' })
	if err := p.Resume(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "resumed", func() bool { return state() == 'S' })
	if err := p.Pause(); err != nil {
		t.Fatal(err)
	}
	if e := p.Stop(time.Minute); e.Signal != syscall.SIGTERM {
		t.Errorf("a paused process did not obey SIGTERM: %v", e)
	}
}

func TestNiceHoldsFromTheFirstInstruction(t *testing.T) {
	nice := func(level int) int {
		var out bytes.Buffer
		s := Spec{Name: "nice", Path: "/bin/sh", Args: []string{"-c", "nice"}, Env: BaseEnv(), Nice: level, Stdout: &out}
		if e := start(t, s).Wait(); !e.OK() {
			t.Fatal(e)
		}
		n, err := strconv.Atoi(strings.TrimSpace(out.String()))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	own := nice(0)
	for _, level := range []int{15, 3, 19, 10, 0} {
		if got, want := nice(level), max(level, own); got != want {
			t.Errorf("asked for nice %d, child has %d, want %d", level, got, want)
		}
	}
	raw, err := syscall.Getpriority(syscall.PRIO_PROCESS, os.Getpid())
	if err != nil || 20-raw != own {
		t.Errorf("our main thread went to nice %d (%v), was %d", 20-raw, err, own)
	}
}

func TestManyWaitersAndStops(t *testing.T) {
	p := start(t, sh("exec sleep 600"))
	got := make(chan Exit, 20)
	for range 10 {
		go func() { got <- p.Wait() }()
		go func() { got <- p.Stop(10 * time.Second) }()
	}
	for range 20 {
		if e := <-got; e.Signal != syscall.SIGTERM {
			t.Errorf("got %v, want SIGTERM", e)
		}
	}
	select {
	case <-p.Done():
	default:
		t.Error("Done is open")
	}
}

// TestParentKilled: kill -9 of the owner. The kernel kills the leader, Reap
// finds the grandchildren, and nothing else is touched.
func TestParentKilled(t *testing.T) {
	dir := t.TempDir()
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), parentEnv+"="+dir)
	parent.Stderr = os.Stderr
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("parent: %v", err)
	}
	r := onlyRecord(t, dir)
	id := identity{pid: r.PID, start: r.Start, mark: r.Mark}
	eventually(t, "leader and two grandchildren run", func() bool { return len(id.living()) == 3 })

	if n, err := Reap(dir, nil); n != 0 || err != nil {
		t.Fatalf("with its owner alive Reap killed %d, %v", n, err)
	}
	parent.Process.Kill()
	parent.Wait()
	eventually(t, "leader killed by the kernel", func() bool { return !alive(r.PID, r.Start) })
	n, err := Reap(dir, nil)
	if n != 2 || err != nil {
		t.Errorf("Reap killed %d, %v; want the 2 grandchildren", n, err)
	}
	if left := id.living(); len(left) != 0 {
		t.Errorf("alive: %+v", left)
	}
	if n, err := Reap(dir, nil); n != 0 || err != nil {
		t.Errorf("second Reap: %d, %v", n, err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("run folder holds %v", left)
	}
}

func onlyRecord(t *testing.T, dir string) record {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"+fileSuffix))
	if err != nil || len(files) != 1 {
		t.Fatalf("run folder holds %v, %v", files, err)
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	r, err := parseRecord(b)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestReapSparesStrangers gives Reap pid files that name a live process, which
// it may kill in the last case alone.
func TestReapSparesStrangers(t *testing.T) {
	stranger := exec.Command("sleep", "600")
	stranger.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	defer stranger.Wait()
	defer stranger.Process.Kill()
	st, err := readStat(stranger.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	self, err := readStat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	boot, err := bootID()
	if err != nil {
		t.Fatal(err)
	}
	ours := record{Name: "n", PID: st.pid, Start: st.start, Mark: newMark(), Parent: self.pid, ParentStart: self.start - 1, Boot: boot}
	for _, c := range []struct {
		name   string
		change func(*record)
		kept   bool // the file
		killed int
	}{
		{"pid reused", func(r *record) { r.Start-- }, false, 0},
		{"another boot", func(r *record) { r.Boot = "other" }, false, 0},
		{"owner lives", func(r *record) { r.ParentStart = self.start }, true, 0},
		{"process not yet known", func(r *record) { r.PID, r.Start = 0, 0 }, false, 0},
		{"init", func(r *record) { r.PID = 1 }, false, 0},
		{"no mark", func(r *record) { r.Mark = "" }, false, 0},
		{"certainly ours", func(*record) {}, false, 1},
	} {
		r := ours
		c.change(&r)
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(t.TempDir(), "a[b]*") // a name that a pattern could misread
		file := filepath.Join(dir, filePrefix+"x"+fileSuffix)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if n, err := Reap(dir, nil); n != c.killed || err != nil {
			t.Errorf("%s: killed %d, %v; want %d", c.name, n, err, c.killed)
		}
		if _, err := os.Stat(file); (err == nil) != c.kept {
			t.Errorf("%s: file kept: %v, want %v", c.name, err == nil, c.kept)
		}
		if alive(st.pid, st.start) != (c.killed == 0) {
			t.Fatalf("%s: stranger alive: %v", c.name, c.killed != 0)
		}
	}
}

func TestReapOfNoFolder(t *testing.T) {
	if n, err := Reap(filepath.Join(t.TempDir(), "none"), nil); n != 0 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
}

func TestNothingRemainsAfterStop(t *testing.T) {
	s := sh("exec sleep 600")
	s.RunDir = filepath.Join(t.TempDir(), "new", "run")
	p := start(t, s)
	if r := onlyRecord(t, s.RunDir); r.PID != p.PID() || r.Start == 0 || r.Name != "test" {
		t.Errorf("pid file says %+v", r)
	}
	p.Stop(10 * time.Second)
	if left, _ := os.ReadDir(s.RunDir); len(left) != 0 {
		t.Errorf("run folder holds %v", left)
	}
}

func TestParseStat(t *testing.T) {
	tail := " S 1 42 42 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 987 0 0"
	for _, c := range []struct {
		line string
		want stat
		ok   bool
	}{
		{"42 (sleep)" + tail, stat{42, 42, 'S', 987}, true},
		{"42 (a) R 1 (b)" + tail, stat{42, 42, 'S', 987}, true},
		{"42 (x\ny )" + tail, stat{42, 42, 'S', 987}, true},
		{"", stat{}, false},
		{"42 (sleep) S 1", stat{}, false},
		{"x (sleep)" + tail, stat{}, false},
	} {
		got, err := parseStat([]byte(c.line))
		if got != c.want || (err == nil) != c.ok {
			t.Errorf("%q: %+v, %v", c.line, got, err)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("42 (sleep) S 1 42 42 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 987 0 0"))
	f.Add([]byte(")( ("))
	f.Fuzz(func(t *testing.T, line []byte) {
		if s, err := parseStat(line); err != nil && s != (stat{}) {
			t.Errorf("half a result with an error: %+v", s)
		}
	})
}

func FuzzParseRecord(f *testing.F) {
	f.Add([]byte(`{"name":"a","pid":5,"start_ticks":7,"mark":"abcdefghijklmnopqrstuvwxyz","boot_id":"b"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parseRecord(b)
		if err == nil && (r.PID < 0 || r.PID == 1 || len(r.Mark) < 16) {
			t.Errorf("accepted %+v", r)
		}
	})
}
