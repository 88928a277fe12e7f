//go:build linux

package proc

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
)

const (
	// markEnv names the variable that tells our descendants from strangers,
	// wherever they moved (other group, other session, other parent).
	markEnv = "ALOFT_PROC"
	// keepEnviron keeps Python's setproctitle, which vLLM uses, from writing its
	// title over the environment, and so over the mark.
	keepEnviron = "SPT_NOENV=1"
)

// identity tells a process and its descendants from every other. A pid alone
// does not: it may be reused.
type identity struct {
	pid   int    // leader and group; 0 = not known
	start uint64 // the leader's start, in clock ticks since boot
	mark  string // value of markEnv
}

// stat is the part of /proc/PID/stat that identity needs.
type stat struct {
	pid, pgrp int
	state     byte
	start     uint64 // clock ticks since boot, field 22 (proc_pid_stat(5))
}

func (s stat) dead() bool { return s.state == 'Z' || s.state == 'X' }

// parseStat reads one line of /proc/PID/stat. The second field, the program's
// name, may hold spaces and parentheses; the last ")" ends it.
func parseStat(line []byte) (stat, error) {
	bad := fmt.Errorf("cannot read process status %.80q", line)
	end := bytes.LastIndexByte(line, ')')
	pid, _, ok := bytes.Cut(line, []byte(" ("))
	if !ok || end < 0 {
		return stat{}, bad
	}
	rest := bytes.Fields(line[end+1:]) // rest[0] is field 3
	if len(rest) < 20 || len(rest[0]) != 1 {
		return stat{}, bad
	}
	s := stat{state: rest[0][0]}
	var err [3]error
	s.pid, err[0] = strconv.Atoi(string(pid))
	s.pgrp, err[1] = strconv.Atoi(string(rest[2]))
	s.start, err[2] = strconv.ParseUint(string(rest[19]), 10, 64)
	if err != [3]error{} {
		return stat{}, bad
	}
	return s, nil
}

func readStat(pid int) (stat, error) {
	line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return stat{}, fmt.Errorf("read process status: %w", err)
	}
	return parseStat(line)
}

// alive reports whether pid is still the process that started at start.
func alive(pid int, start uint64) bool {
	st, err := readStat(pid)
	return err == nil && st.start == start && !st.dead()
}

// living lists the processes that are ours: the leader, its group while the
// leader's number is certainly its own (alive, or ended but unreaped), and
// whoever carries the mark.
func (id identity) living() []stat {
	leader, err := readStat(id.pid)
	known := id.pid > 0 && err == nil && leader.start == id.start
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // what could be read is still worth a look
	var ours []stat
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		st, err := readStat(pid)
		if err != nil || st.dead() {
			continue
		}
		if known && st.pgrp == id.pid || id.marks(pid) {
			ours = append(ours, st)
		}
	}
	return ours
}

func (id identity) marks(pid int) bool {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false // ended, or another user's: not ours in either case
	}
	return bytes.Contains(append([]byte{0}, env...), []byte("\x00"+markEnv+"="+id.mark+"\x00"))
}

// kill kills all that is ours and returns when it is gone, with the number of
// processes met. It looks again until a look finds nothing, because a process
// may fork between the look and the kill.
func (id identity) kill(bound time.Duration) (int, error) {
	end := time.Now().Add(bound)
	met := map[stat]bool{}
	for {
		ours := id.living()
		if len(ours) == 0 {
			return len(met), nil
		}
		if time.Now().After(end) {
			return len(met), fmt.Errorf("%d processes (first pid %d) outlive SIGKILL for %v", len(ours), ours[0].pid, bound)
		}
		for _, st := range ours {
			st.kill()
			met[stat{pid: st.pid, start: st.start}] = true
		}
		time.Sleep(pollEvery)
	}
}

// kill sends SIGKILL to exactly the process that st was read from: os.Process
// holds a pidfd, so a pid reused after the check cannot be hit.
func (s stat) kill() {
	p, err := os.FindProcess(s.pid)
	if err != nil {
		return
	}
	defer p.Release()
	if alive(s.pid, s.start) {
		p.Signal(syscall.SIGKILL)
	}
}
