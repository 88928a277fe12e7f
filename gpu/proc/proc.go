//go:build linux

// Package proc runs one OS process confined to one slice, and lets nothing of
// it outlive its owner.
//
// Each process leads its own group and every signal goes to that group. When
// the leader ends, whatever it started is killed, and Done is closed only when
// all of it is gone, so that a slice is empty before it is used again. When our
// own process dies without a word (kill -9), the kernel kills the leader
// (Pdeathsig) and the next start's Reap finds the rest.
//
// Linux only: the proofs that a pid is still ours rest on /proc.
package proc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// killBound is how long a process may need to vanish after SIGKILL: the
	// driver tears a large CUDA context down in seconds.
	killBound = 10 * time.Second
	// drainBound is how long output may still arrive after the exit. Only a
	// descendant that hid from us can hold the pipe open.
	drainBound = 2 * time.Second
	// pollEvery paces the looks at /proc once something must be gone, and
	// graceEvery while it may still work: a look reads every process there is.
	pollEvery  = 5 * time.Millisecond
	graceEvery = 25 * time.Millisecond
)

// Spec says what to run. Nothing is inherited from our own process but what
// stands here.
type Spec struct {
	Name string   // for logs and the pid file, for example "replica chat-1"
	Path string   // the program; looked up in PATH when it has no slash
	Args []string // without the program's name; no shell reads them
	// Env is the whole environment; BaseEnv gives the few variables that most
	// programs need. Start adds its mark (see Reap).
	Env []string
	Dir string // working folder; "" = ours
	// Nice is 0..19, the CPU's stand-in for a slice's share; where a cgroup v2 CPU
	// weight can be set, it is set to match (cgroup.go). The process has it
	// before its first instruction, and so has all that it starts. It never
	// becomes less than our own.
	Nice           int
	Stdout, Stderr io.Writer // nil = discarded; the caller bounds them
	ExtraFiles     []*os.File
	RunDir         string // where pid files live; "" = none, and Reap cannot help
	Limits         Limits
	User           *User // nil = ours
	// Terminal is the program's end of a pseudo-terminal: its input, output and
	// controlling terminal, in place of Stdout and Stderr. nil = none.
	Terminal *os.File
}

// Validate says what is wrong with s, in one line.
func (s Spec) Validate() error {
	if s.Path == "" {
		return fmt.Errorf("start %q: no program given", s.Name)
	}
	if s.Nice < 0 || s.Nice > maxNice {
		return fmt.Errorf("start %q: nice is %d, want 0 to %d", s.Name, s.Nice, maxNice)
	}
	if err := s.Limits.validate(); err != nil {
		return fmt.Errorf("start %q: %w", s.Name, err)
	}
	if s.Dir == "" {
		return nil
	}
	if st, err := os.Stat(s.Dir); err != nil {
		return fmt.Errorf("start %q: working folder: %w", s.Name, err)
	} else if !st.IsDir() {
		return fmt.Errorf("start %q: working folder %s is not a folder", s.Name, s.Dir)
	}
	return nil
}

// BaseEnv returns PATH, HOME, TMPDIR, LANG and LD_LIBRARY_PATH as we have them.
func BaseEnv() []string {
	var env []string
	for _, k := range []string{"PATH", "HOME", "TMPDIR", "LANG", "LD_LIBRARY_PATH"} {
		if v, ok := os.LookupEnv(k); ok {
			env = append(env, k+"="+v)
		}
	}
	return env
}

// Exit is how a process ended.
type Exit struct {
	Code   int            // exit code; -1 when a signal ended it
	Signal syscall.Signal // 0 unless a signal ended it
	Err    error          // we could not tell, or could not end it
	OOM    bool           // the kernel killed it, or something of it, for its memory limit
}

// OK reports a normal end with code 0.
func (e Exit) OK() bool { return e.Code == 0 && e.Err == nil }

func (e Exit) String() string {
	switch {
	case e.Err != nil:
		return e.Err.Error()
	case e.Signal != 0:
		return "ended by " + unix.SignalName(e.Signal)
	}
	return fmt.Sprintf("exit code %d", e.Code)
}

// Process is one started process and all that it started. Its methods may be
// called from several goroutines.
type Process struct {
	name  string
	id    identity
	cmd   *exec.Cmd
	file  string // pid file; "" = none
	group string // its cgroup's folder; "" = none
	holds Holds
	done  chan struct{}
	exit  Exit // set before done is closed

	mu         sync.Mutex
	gone       bool      // the leader's pid may be reused from now on
	graceUntil time.Time // until then the group may outlive its leader
}

// Start runs s; ctx bounds the start only. The caller must see the process to
// its end, by Wait, Done or Stop.
func Start(ctx context.Context, s Spec) (*Process, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	mark := newMark()
	cmd := exec.Command(s.Path, s.Args...)
	cmd.Env = append(append([]string(nil), s.Env...), markEnv+"="+mark, keepEnviron)
	cmd.Dir, cmd.ExtraFiles = s.Dir, s.ExtraFiles
	cmd.Stdout, cmd.Stderr = s.Stdout, s.Stderr
	cmd.WaitDelay = drainBound
	// A group, not a session: with autogroup scheduling each session is its own
	// CPU share and nice means nothing between them.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if s.Terminal != nil {
		// A terminal is controlled by a session, which is a group as well.
		cmd.Stdin, cmd.Stdout, cmd.Stderr = s.Terminal, s.Terminal, s.Terminal
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Pdeathsig: syscall.SIGKILL}
	}
	s.User.as(cmd)
	group, started := weigh(weightRoot(), mark, s.Nice, cmd)
	defer started()
	p := &Process{name: s.Name, id: identity{mark: mark}, cmd: cmd, group: group, done: make(chan struct{})}
	if group != "" {
		p.holds = s.Limits.bound(group)
	}
	cores := s.Limits.cores()
	if p.holds.CPUs {
		cores = 0
	}

	// The file comes first, with the mark alone: were we killed right after the
	// start, Reap would still know what to look for.
	if err := p.record(s.RunDir); err != nil {
		p.leaveGroup()
		return nil, fmt.Errorf("start %q: %w", s.Name, err)
	}
	if err := spawn(ctx, s.Nice, cores, cmd); err != nil {
		p.forget()
		p.leaveGroup()
		return nil, fmt.Errorf("start %q: %w", s.Name, err)
	}
	p.id.pid = cmd.Process.Pid
	if s.Terminal != nil {
		// The session is a CPU share of its own where the kernel groups so; the
		// share has a nice level, too. Elsewhere there is no such file.
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", p.id.pid), []byte(strconv.Itoa(s.Nice)), 0)
	}
	st, err := readStat(p.id.pid)
	if err == nil {
		p.id.start = st.start
		err = errors.Join(p.record(s.RunDir), s.Limits.confine(p.id.pid))
	}
	go p.watch()
	if err != nil {
		p.Stop(0)
		return nil, fmt.Errorf("start %q: %w", s.Name, err)
	}
	return p, nil
}

// PID is the leader's process id, and the group's.
func (p *Process) PID() int { return p.id.pid }

// Done is closed when the process and all that it started are gone.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait blocks until Done and says how the leader ended.
func (p *Process) Wait() Exit {
	<-p.done
	return p.exit
}

// Signal sends sig to the group. After the end it returns os.ErrProcessDone.
func (p *Process) Signal(sig os.Signal) error {
	s, ok := sig.(syscall.Signal)
	if !ok {
		return fmt.Errorf("signal %q: %v is not a signal of this system", p.name, sig)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone {
		return os.ErrProcessDone
	}
	if err := syscall.Kill(-p.id.pid, s); err != nil {
		return fmt.Errorf("send %s to %q: %w", unix.SignalName(s), p.name, err)
	}
	return nil
}

// Pause stops the group where it stands; Resume lets it go on.
func (p *Process) Pause() error { return p.Signal(syscall.SIGSTOP) }

// Resume undoes Pause.
func (p *Process) Resume() error { return p.Signal(syscall.SIGCONT) }

// Stop asks the group to end (SIGTERM), gives it grace, then kills it. Within
// the grace a child may outlive the leader: it may be the one that writes the
// checkpoint. Stop returns after grace, killBound and drainBound at the latest.
func (p *Process) Stop(grace time.Duration) Exit {
	if grace > 0 {
		p.mu.Lock()
		p.graceUntil = time.Now().Add(grace)
		p.mu.Unlock()
		p.Signal(syscall.SIGTERM) // the only failure left is that it ended already
		p.Signal(syscall.SIGCONT) // a paused process must wake to obey
		if p.within(grace) {
			return p.exit
		}
	}
	p.mu.Lock()
	p.graceUntil = time.Time{}
	p.mu.Unlock()
	p.Signal(syscall.SIGKILL)
	if p.within(killBound + drainBound) {
		return p.exit
	}
	return Exit{Code: -1, Err: fmt.Errorf("%q (pid %d) outlives SIGKILL for %v", p.name, p.id.pid, killBound)}
}

func (p *Process) within(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-p.done:
		return true
	case <-t.C:
		return false
	}
}

// watch sees the process to its end. The leader is not reaped before its group
// is dead: until then its pid belongs to nobody else, so no signal can go astray.
func (p *Process) watch() {
	awaitExit(p.id.pid)
	for p.inGrace() && len(p.id.living()) > 0 {
		time.Sleep(graceEvery)
	}
	_, killErr := p.id.kill(killBound)
	p.mu.Lock()
	p.gone = true
	p.mu.Unlock()
	err := p.cmd.Wait()
	p.exit = exitOf(p.cmd.ProcessState, err)
	p.exit.OOM = p.holds.Memory && outOfMemory(p.group)
	if killErr == nil {
		p.forget()
	} else {
		p.exit.Err = errors.Join(p.exit.Err, fmt.Errorf("%q: %w", p.name, killErr))
	}
	p.leaveGroup()
	close(p.done)
}

// leaveGroup removes the cgroup, which is empty once every process is gone.
func (p *Process) leaveGroup() {
	if p.group != "" {
		os.Remove(p.group)
	}
}

func (p *Process) inGrace() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Now().Before(p.graceUntil)
}

func exitOf(st *os.ProcessState, err error) Exit {
	if st == nil {
		return Exit{Code: -1, Err: err}
	}
	e := Exit{Code: st.ExitCode()}
	if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		e.Signal = ws.Signal()
	}
	if _, isStatus := errors.AsType[*exec.ExitError](err); err != nil && !isStatus {
		e.Err = err
	}
	return e
}

// awaitExit blocks until pid, a child of ours, has ended, and leaves it unreaped.
func awaitExit(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return
		}
	}
}
