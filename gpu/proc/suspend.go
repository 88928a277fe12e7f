//go:build linux

package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Checkpointer moves what a process has on its GPU into host memory and back, by
// NVIDIA's cuda-checkpoint: CUDA calls are locked, work under way is finished, the
// device's memory is copied out and the device let go of. The process lives on
// and keeps all else that it has.
//
// What the tool cannot do, as of driver 580: MIG instances (NVIDIA/cuda-checkpoint
// #42), memory shared between processes before 610, another GPU than the one that
// was left. An attempt that fails can ruin the process, so whoever asks must have
// another way.
type Checkpointer struct {
	Program string // of cuda-checkpoint; looked up in PATH when it has no slash
	RunDir  string // as Spec.RunDir, for the tool's own process
	devices string // what device files begin with; "" = those of the NVIDIA driver
}

const (
	// leastDriver has a lock with a time limit, and separate steps.
	leastDriver = 570
	// maxSaid bounds what is read of what the tool says, in bytes.
	maxSaid = 4 << 10
	// toolBound is for questions, which the driver answers at once.
	toolBound = 10 * time.Second
)

// The states of a process to the driver.
const (
	cudaRunning      = "running"
	cudaLocked       = "locked"
	cudaCheckpointed = "checkpointed"
)

var versionSaid = regexp.MustCompile(`(?i)version\s+(\d+)((?:\.\d+)*)`)

// Probe says which version of the tool is there, or why it cannot be used.
func (c Checkpointer) Probe(ctx context.Context) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, toolBound)
	defer cancel()
	said, err := c.run(ctx, "--help")
	if err != nil {
		return "", err
	}
	if version, err = enough(c.Program, said); err != nil {
		return "", err
	}
	if text, err := os.ReadFile("/sys/module/nvidia/version"); err == nil { // not there: a driver that is part of the kernel, or none
		if _, err := enough("the NVIDIA driver", "version "+string(text)); err != nil {
			return "", err
		}
	}
	return version, nil
}

// enough reads a version that is new enough.
func enough(what, said string) (string, error) {
	m := versionSaid.FindStringSubmatch(said)
	if m == nil {
		return "", fmt.Errorf("%s says no version: %.80q", what, said)
	}
	if major, err := strconv.Atoi(m[1]); err != nil || major < leastDriver {
		return "", fmt.Errorf("%s is of version %s, want %d or newer", what, m[1]+m[2], leastDriver)
	}
	return m[1] + m[2], nil
}

// Suspended are processes that have left their device.
type Suspended struct {
	tool  Checkpointer
	of    *Process
	procs []stat // those that use CUDA
}

// Suspend takes p and all that it started off their device, and stops them. All
// of them or none: when one cannot leave, those that have are brought back, for
// which as much time is taken as ctx leaves for the way out. After an error they
// are not stopped, but one that could not be brought back hangs in its next CUDA
// call; the error says so.
func (c Checkpointer) Suspend(ctx context.Context, p *Process) (*Suspended, error) {
	back := toolBound
	if end, ok := ctx.Deadline(); ok {
		back = time.Until(end)
	}
	s := &Suspended{tool: c, of: p}
	if err := s.find(ctx); err != nil {
		return nil, err
	}
	err := s.leave(ctx)
	if err == nil {
		err = p.Pause()
	}
	if err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), back)
		defer cancel()
		return nil, errors.Join(err, s.undo(undo))
	}
	return s, nil
}

// find lists the processes that use CUDA: those of which the driver knows a state.
func (s *Suspended) find(ctx context.Context) error {
	for _, st := range s.of.id.living() {
		state, err := s.tool.state(ctx, st)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("ask for the state of process %d: %w", st.pid, context.Cause(ctx))
		case err != nil && s.tool.device(st.pid) == "":
			continue // it does not use CUDA
		case err != nil:
			return err
		case state != cudaRunning:
			return fmt.Errorf("process %d is %s to the driver, want running", st.pid, state)
		}
		s.procs = append(s.procs, st)
	}
	if len(s.procs) == 0 {
		return errors.New("none of its processes uses CUDA")
	}
	return nil
}

// leave locks all before any is copied out: they may wait for each other.
func (s *Suspended) leave(ctx context.Context) error {
	for _, st := range s.procs {
		args := []string{"lock"}
		if end, ok := ctx.Deadline(); ok {
			args = append(args, "--timeout", strconv.FormatInt(max(1, time.Until(end).Milliseconds()), 10))
		}
		if err := s.tool.act(ctx, st, args...); err != nil {
			return err
		}
	}
	for _, st := range s.procs {
		if err := s.tool.act(ctx, st, "checkpoint"); err != nil {
			return err
		}
	}
	for _, st := range s.of.id.living() { // also one that came meanwhile
		if d := s.tool.device(st.pid); d != "" {
			return fmt.Errorf("process %d still has %s open", st.pid, d)
		}
	}
	return nil
}

// undo brings back whatever has gone, as far as it has.
func (s *Suspended) undo(ctx context.Context) error {
	var errs []error
	for _, st := range s.procs {
		if !alive(st.pid, st.start) {
			continue
		}
		state, err := s.tool.state(ctx, st)
		if err == nil && state == cudaCheckpointed {
			if err = s.tool.act(ctx, st, "restore"); err == nil {
				state = cudaLocked
			}
		}
		if err == nil && state == cudaLocked {
			err = s.tool.act(ctx, st, "unlock")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("not brought back: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Resume lets the processes go on where they stopped, on the same device. After
// an error they are of no use.
func (s *Suspended) Resume(ctx context.Context) error {
	if err := s.of.Resume(); err != nil { // the driver works inside the process
		return err
	}
	for _, action := range []string{"restore", "unlock"} {
		for _, st := range s.procs {
			if err := s.tool.act(ctx, st, action); err != nil {
				return err
			}
		}
	}
	return nil
}

// state asks for a process's state.
func (c Checkpointer) state(ctx context.Context, st stat) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, toolBound)
	defer cancel()
	said, err := c.run(ctx, "--get-state", "--pid", strconv.Itoa(st.pid))
	return strings.ToLower(strings.TrimSpace(said)), err
}

// act has one step done. A pid is reused at the earliest after its process is
// gone, which is looked for just before.
func (c Checkpointer) act(ctx context.Context, st stat, action ...string) error {
	if !alive(st.pid, st.start) {
		return fmt.Errorf("%s process %d: %w", action[0], st.pid, os.ErrProcessDone)
	}
	_, err := c.run(ctx, append([]string{"--action", action[0], "--pid", strconv.Itoa(st.pid)}, action[1:]...)...)
	return err
}

// run runs the tool and returns what it says.
func (c Checkpointer) run(ctx context.Context, args ...string) (string, error) {
	out := &said{}
	fail := func(why string) error {
		words := fmt.Sprintf("%s %s: %s", c.Program, strings.Join(args, " "), why)
		if text := out.line(); text != "" {
			words += ": " + text
		}
		return errors.New(words)
	}
	p, err := Start(ctx, Spec{Name: "cuda-checkpoint", Path: c.Program, Args: args, Env: BaseEnv(), Stdout: out, Stderr: out, RunDir: c.RunDir})
	if err != nil {
		return "", err
	}
	select {
	case <-p.Done():
	case <-ctx.Done():
		p.Stop(0)
		return "", fail("not done in time")
	}
	if e := p.Wait(); !e.OK() {
		return "", fail(e.String())
	}
	return out.text(), nil
}

// device is a device file that the process has open; "" = none.
func (c Checkpointer) device(pid int) string {
	prefix := c.devices
	if prefix == "" {
		prefix = "/dev/nvidia"
	}
	dir := "/proc/" + strconv.Itoa(pid) + "/fd"
	open, _ := os.ReadDir(dir) // ended, or not ours to see: then the tool cannot act on it either
	for _, fd := range open {
		if to, err := os.Readlink(dir + "/" + fd.Name()); err == nil && strings.HasPrefix(to, prefix) {
			return to
		}
	}
	return ""
}

// said keeps the beginning of what a program says.
type said struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buf.Write(b[:min(len(b), maxSaid-s.buf.Len())])
	return len(b), nil
}

func (s *said) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

// line is the first line that says something.
func (s *said) line() string {
	for l := range strings.Lines(s.text()) {
		if l = strings.TrimSpace(l); l != "" {
			return l[:min(len(l), 200)]
		}
	}
	return ""
}
