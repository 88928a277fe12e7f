package jobs_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"aloft/gpu"
	"aloft/gpu/proc"
	"aloft/jobs"
)

// suspension is a manager whose jobs can be suspended by the modelled tool.
type suspension struct {
	*testing.T
	m    *jobs.Manager
	dir  string // of the tool
	data string
	set  *jobs.Suspending
	stop func()
}

// roleCount is a program that uses CUDA, so to speak: it counts until there is a
// file "done", and saves what it has counted when told to.
func roleCount() int {
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM)
	text, _ := os.ReadFile(os.Getenv("ALOFT_RESUME_FROM"))
	began, _ := strconv.Atoi(string(text))
	out := os.NewFile(3, "progress")
	fmt.Println("pid", os.Getpid())
	for n := began + 1; ; n++ {
		fmt.Fprintf(out, "{\"step\":%d}\n", n)
		select {
		case <-told:
			if os.WriteFile("saved", []byte(strconv.Itoa(n)), 0o644) != nil {
				return 1
			}
			fmt.Fprintf(out, "{\"step\":%d,\"checkpoint\":\"saved\"}\n", n)
			return jobs.ExitRequeue
		case <-time.After(10 * time.Millisecond):
		}
		if _, err := os.Stat("done"); err == nil {
			fmt.Fprintf(out, "{\"step\":%d,\"result\":\"from %d\"}\n", n, began)
			return 0
		}
	}
}

func newSuspension(t *testing.T, template jobs.Template) *suspension {
	t.Helper()
	x := &suspension{T: t, dir: t.TempDir(), data: t.TempDir()}
	text, err := os.ReadFile("../gpu/proc/testdata/cuda-checkpoint")
	if err != nil {
		t.Fatal(err)
	}
	x.put("cuda-checkpoint", string(text))
	x.set = &jobs.Suspending{Tool: proc.Checkpointer{Program: filepath.Join(x.dir, "cuda-checkpoint")}, Memory: 1 << 30, Longest: time.Hour,
		Used: func(context.Context, gpu.Slice) (int64, error) { return 64 << 20, nil }}
	template.Env = append(template.Env, "USES_CUDA=1")
	x.m, x.stop = newManager(t, x.data, jobs.Options{Templates: []jobs.Template{template},
		Executor: jobs.Local{RunDir: filepath.Join(x.data, "run"), Suspend: x.set}})
	return x
}

func (x *suspension) put(name, text string) {
	x.Helper()
	if err := os.WriteFile(filepath.Join(x.dir, name), []byte(text), 0o755); err != nil {
		x.Fatal(err)
	}
}

// whole is a GPU that is not divided.
func whole(n int) []gpu.Slice {
	return []gpu.Slice{{ID: fmt.Sprintf("g%d", n), UUID: fmt.Sprintf("GPU-%d", n), GPU: n, Shape: gpu.Shape{Profile: "full", Bytes: 80 << 30}}}
}

// run submits a job of the template and starts it on the first GPU.
func (x *suspension) run() jobs.Job {
	x.Helper()
	j := submit(x.T, x.m, "s")
	if err := x.m.Start(x.Context(), j.ID, whole(0)); err != nil {
		x.Fatal(err)
	}
	until(x.T, "it has reported", func() bool { return x.get(j.ID).Progress.Done > 0 })
	return x.get(j.ID)
}

func (x *suspension) get(id string) jobs.Job {
	x.Helper()
	j, err := x.m.Get(x.Context(), id)
	if err != nil {
		x.Fatal(err)
	}
	return j
}

func (x *suspension) preempt(id string) jobs.Job {
	x.Helper()
	if err := x.m.Preempt(x.Context(), id, 0); err != nil {
		x.Fatal(err)
	}
	return x.get(id)
}

// events are what the job's user is told, one a line.
func (x *suspension) events(id string) string {
	x.Helper()
	list, err := x.m.Events(x.Context(), id, 0, 0)
	if err != nil {
		x.Fatal(err)
	}
	var b strings.Builder
	for _, e := range list {
		b.WriteString(e.Message + "\n")
	}
	return b.String()
}

func (x *suspension) told(id, want string) {
	x.Helper()
	until(x.T, "event "+want, func() bool { return strings.Contains(x.events(id), want) })
}

// pid is the program's, of its newest run.
func (x *suspension) pid(id string) (pid int) {
	x.Helper()
	until(x.T, "its pid", func() bool {
		text, _ := os.ReadFile(x.m.LogPath(id))
		i := strings.LastIndex(string(text), "pid ")
		if i < 0 {
			return false
		}
		_, err := fmt.Sscan(string(text[i+4:]), &pid)
		return err == nil
	})
	return pid
}

func (x *suspension) finish(id string) jobs.Job {
	x.Helper()
	dir := filepath.Join(x.data, "checkpoints", id)
	if err := os.WriteFile(filepath.Join(dir, "done"), nil, 0o644); err != nil {
		x.Fatal(err)
	}
	return untilState(x.T, x.m, id, jobs.Succeeded)
}

func standsStill(pid int) bool {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(text), ") ")
	return strings.HasPrefix(rest, "T")
}

// counter is a template of it.
func counter() jobs.Template {
	t := template("count", time.Minute)
	t.Name, t.Suspend = "s", true
	return t
}

// A job that gets its slice back goes on where it stood: the same process, and
// nothing that it had not saved is lost.
func TestSuspendedJobGoesOn(t *testing.T) {
	x := newSuspension(t, counter())
	j := x.run()
	pid := x.pid(j.ID)
	for range 2 {
		j = x.preempt(j.ID)
		if j.State != jobs.Queued || j.Suspended == nil || j.Suspended.Slice != "g0" || len(j.Slices) != 0 {
			t.Fatalf("%s, suspended %+v, holds %v\n%s", j.State, j.Suspended, j.Slices, x.events(j.ID))
		}
		until(t, "its process to stand still", func() bool { return standsStill(pid) })
		if again := x.preempt(j.ID); again.Suspended == nil {
			t.Error("a suspended job has no slice to give back, and lost its place")
		}
		if err := x.m.Start(t.Context(), j.ID, whole(0)); err != nil {
			t.Fatal(err)
		}
		if j = x.get(j.ID); j.State != jobs.Running || j.Suspended != nil || len(j.Slices) != 1 {
			t.Fatalf("%s, suspended %+v, holds %v", j.State, j.Suspended, j.Slices)
		}
		until(t, "its process to go on", func() bool { return !standsStill(pid) })
	}
	end := x.finish(j.ID)
	if end.Progress.Result != "from 0" || x.pid(j.ID) != pid || end.Preemptions != 2 || end.Progress.Resumes != 0 || len(end.Checkpoints) != 0 {
		t.Errorf("result %q, %d preemptions, %d checkpoints: want one run that saved nothing", end.Progress.Result, end.Preemptions, len(end.Checkpoints))
	}
	for _, want := range []string{"suspended (preemption 1): it goes on when it gets g0 again", "comes back to g0"} {
		if !strings.Contains(x.events(j.ID), want) {
			t.Errorf("no %q in\n%s", want, x.events(j.ID))
		}
	}
}

// Whatever stands in the way of a suspension: the job is told to save, as without
// one, and its user is told why.
func TestNotSuspended(t *testing.T) {
	for name, c := range map[string]struct {
		on   []gpu.Slice
		with func(*suspension)
		want string
	}{
		"the driver cannot": {with: func(x *suspension) { x.put("fail-checkpoint", "operation not supported") }, want: "operation not supported"},
		"it hangs":          {with: func(x *suspension) { x.put("hang-lock", "") }, want: "not done in time"},
		"a MIG instance":    {on: lend(1), want: "a MIG instance, off which the driver cannot suspend"},
		"a gang":            {on: append(whole(0), whole(1)...), want: "it runs on 2 slices"},
		"memory":            {with: func(x *suspension) { x.set.Memory = 64 << 20 }, want: "suspended jobs have 0 bytes of at most 64.0 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			template := counter()
			if name == "it hangs" {
				template.Grace = 6 * time.Second // a third of it is waited out
			}
			template.MaxWidth = max(1, len(c.on))
			x := newSuspension(t, template)
			if c.with != nil {
				c.with(x)
			}
			if c.on == nil {
				c.on = whole(0)
			}
			j, err := x.m.Submit(t.Context(), jobs.Job{Template: "s", MinWidth: len(c.on)})
			if err != nil {
				t.Fatal(err)
			}
			if err := x.m.Start(t.Context(), j.ID, c.on); err != nil {
				t.Fatal(err)
			}
			until(t, "it has reported", func() bool { return x.get(j.ID).Progress.Done > 0 })
			j = x.preempt(j.ID)
			if j.State != jobs.Queued || j.Suspended != nil || len(j.Checkpoints) != 1 {
				t.Errorf("%s, suspended %+v, %d checkpoints: want one that has saved", j.State, j.Suspended, len(j.Checkpoints))
			}
			if !strings.Contains(x.events(j.ID), "not suspended, told to save instead: ") || !strings.Contains(x.events(j.ID), c.want) {
				t.Errorf("no %q in\n%s", c.want, x.events(j.ID))
			}
		})
	}
}

// A template that does not say so has its jobs told to save, without a word.
func TestSuspendIsOffByDefault(t *testing.T) {
	template := counter()
	template.Suspend = false
	x := newSuspension(t, template)
	j := x.run()
	if j = x.preempt(j.ID); j.Suspended != nil || len(j.Checkpoints) != 1 || strings.Contains(x.events(j.ID), "suspend") {
		t.Errorf("suspended %+v, %d checkpoints\n%s", j.Suspended, len(j.Checkpoints), x.events(j.ID))
	}
	if _, err := os.Stat(filepath.Join(x.dir, "actions")); err == nil {
		t.Error("the tool was used")
	}
}

// What ends a suspension other than the way back: each time the processes go, and
// the job is where it would be without them.
func TestSuspensionEnds(t *testing.T) {
	for name, c := range map[string]struct {
		longest time.Duration
		do      func(*suspension, jobs.Job, int) error
		want    jobs.State
		event   string
	}{
		"too long": {longest: time.Millisecond, want: jobs.Queued, event: "suspended for 1ms without its slice: ended"},
		"killed": {want: jobs.Queued, event: "its suspended processes have ended",
			do: func(_ *suspension, _ jobs.Job, pid int) error { return syscall.Kill(pid, syscall.SIGKILL) }},
		"cancelled": {want: jobs.Cancelled, event: "cancelled",
			do: func(x *suspension, j jobs.Job, _ int) error { _, err := x.m.Cancel(x.Context(), j.ID); return err }},
		"paused": {want: jobs.Paused, event: "paused",
			do: func(x *suspension, j jobs.Job, _ int) error { _, err := x.m.Pause(x.Context(), j.ID); return err }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newSuspension(t, counter())
			if c.longest > 0 {
				x.set.Longest = c.longest
			}
			j := x.run()
			pid := x.pid(j.ID)
			x.preempt(j.ID)
			if c.do != nil {
				if err := c.do(x, j, pid); err != nil {
					t.Fatal(err)
				}
			}
			until(t, "its process to go", func() bool { return syscall.Kill(pid, 0) != nil })
			until(t, "its record", func() bool { return x.get(j.ID).Suspended == nil })
			x.told(j.ID, c.event)
			if j = x.get(j.ID); j.State != c.want {
				t.Errorf("%s, want %s", j.State, c.want)
			}
			if name == "paused" {
				if _, err := x.m.Resume(t.Context(), j.ID); err != nil {
					t.Fatal(err)
				}
			}
			if c.want == jobs.Cancelled {
				return
			}
			until(t, "its memory to be given back", func() bool { // and so it can be suspended again
				x.set.Longest = time.Hour
				if err := x.m.Start(t.Context(), j.ID, whole(0)); err != nil {
					return false
				}
				return true
			})
			if end := x.finish(j.ID); name != "killed" && end.Progress.Result == "from 0" {
				t.Errorf("result %q: it was to save what it could", end.Progress.Result)
			}
		})
	}
}

// On another slice, and when it cannot come back, it starts from its checkpoint.
func TestSuspendedJobStartsAnew(t *testing.T) {
	for name, c := range map[string]struct {
		on    int
		with  func(*suspension)
		event string
	}{
		"another slice":     {on: 1, event: "given g1, and not the slice on which it was suspended"},
		"it cannot restore": {with: func(x *suspension) { x.put("fail-restore", "invalid device") }, event: "invalid device"},
		"it cannot unlock":  {with: func(x *suspension) { x.put("fail-unlock", "no way") }, event: "no way"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newSuspension(t, counter())
			j := x.run()
			pid := x.pid(j.ID)
			x.preempt(j.ID)
			if c.with != nil {
				c.with(x)
			}
			if err := x.m.Start(t.Context(), j.ID, whole(c.on)); err != nil {
				t.Fatal(err)
			}
			if j = x.get(j.ID); j.State != jobs.Running || j.Slices[0] != fmt.Sprintf("g%d", c.on) || syscall.Kill(pid, 0) == nil {
				t.Errorf("%s on %v, first process is there: %v", j.State, j.Slices, syscall.Kill(pid, 0) == nil)
			}
			x.told(j.ID, c.event)
			if x.finish(j.ID); x.pid(j.ID) == pid {
				t.Error("it is the same process")
			}
		})
	}
}

// Of a server that closes, and of one that died, nothing stands still afterwards.
func TestSuspensionOverARestart(t *testing.T) {
	x := newSuspension(t, counter())
	j := x.run()
	pid := x.pid(j.ID)
	if j = x.preempt(j.ID); j.Suspended == nil {
		t.Fatal(x.events(j.ID))
	}
	x.stop()
	if syscall.Kill(pid, 0) == nil {
		t.Error("its process is there after the manager has closed")
	}
	m, _ := newManager(t, x.data, jobs.Options{Templates: []jobs.Template{counter()}})
	if j, err := m.Get(t.Context(), j.ID); err != nil || j.State != jobs.Queued || j.Suspended != nil {
		t.Errorf("%s, suspended %+v, %v", j.State, j.Suspended, err)
	}
}
