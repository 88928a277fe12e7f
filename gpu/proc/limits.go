//go:build linux

package proc

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// Limits bound what a process and all that it starts may use; 0 = no bound.
type Limits struct {
	// CPUs are cores. Where no cgroup can hold the group to them it is kept to as
	// many whole cores.
	CPUs float64
	// Memory is in bytes, without swap. Only a cgroup can hold a group to it: see
	// Process.Holds; otherwise the owner asks Process.Memory.
	Memory int64
	// FileSize is the greatest size of one file that it writes, in bytes.
	FileSize int64
}

func (l Limits) validate() error {
	if !(l.CPUs >= 0) || l.CPUs > 1e4 || l.Memory < 0 || l.FileSize < 0 {
		return fmt.Errorf("limits %+v, want none negative and at most 10,000 CPUs", l)
	}
	return nil
}

// User is who a process runs as: one that may not become another again.
type User struct{ UID, GID uint32 }

// Holds says which limits the kernel keeps; the others are the owner's to watch.
type Holds struct{ CPUs, Memory bool }

// Permitted probes, once, what this machine lets us bound with cgroups.
func Permitted() Holds {
	root := weightRoot()
	if root == "" {
		return Holds{}
	}
	return Holds{CPUs: true, Memory: handsDown(root, "memory")}
}

// handsDown reports whether groups in dir have the controller.
func handsDown(dir, controller string) bool {
	down, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
	return err == nil && strings.Contains(" "+strings.TrimSpace(string(down))+" ", " "+controller+" ")
}

// cpuPeriod is that of cpu.max, in microseconds: the kernel's usual one.
const cpuPeriod = 100_000

// bound writes the limits of a group; what cannot be written is not held.
func (l Limits) bound(dir string) (h Holds) {
	write := func(file, value string) bool {
		return os.WriteFile(filepath.Join(dir, file), []byte(value+"\n"), 0o644) == nil
	}
	if l.CPUs > 0 {
		h.CPUs = write("cpu.max", fmt.Sprintf("%d %d", max(1000, int(l.CPUs*cpuPeriod)), cpuPeriod))
	}
	if l.Memory > 0 {
		if _, err := os.Stat(filepath.Join(dir, "memory.max")); err == nil { // not to be made where a controller is not
			h.Memory = write("memory.max", strconv.FormatInt(l.Memory, 10))
			write("memory.swap.max", "0")  // absent without swap accounting
			write("memory.oom.group", "1") // one that lost a helper would hang
		}
	}
	return h
}

// outOfMemory reports whether the kernel killed something of the group for its
// memory limit.
func outOfMemory(dir string) bool {
	text, _ := os.ReadFile(filepath.Join(dir, "memory.events")) // no file, no kill
	for line := range strings.Lines(string(text)) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok && n != "0" {
			return true
		}
	}
	return false
}

// Holds says which of its limits the kernel keeps the process to.
func (p *Process) Holds() Holds { return p.holds }

// Memory is what the process and all that it started have resident now, in bytes.
// Pages that they share count for each.
func (p *Process) Memory() (sum int64) {
	for _, st := range p.id.living() {
		text, err := os.ReadFile("/proc/" + strconv.Itoa(st.pid) + "/statm")
		if err != nil {
			continue // it has ended
		}
		if f := bytes.Fields(text); len(f) > 1 {
			pages, _ := strconv.ParseInt(string(f[1]), 10, 64)
			sum += pages * int64(os.Getpagesize())
		}
	}
	return sum
}

// turn spreads those that are kept to some cores over all of them.
var turn atomic.Uint32

// onCores runs start with the thread kept to n of the cores it may use: what it
// forks is born that way.
func onCores(n int, start func() error) error {
	const thisThread = 0
	var all, some unix.CPUSet
	if err := unix.SchedGetaffinity(thisThread, &all); err != nil {
		return fmt.Errorf("read CPU affinity: %w", err)
	}
	if n >= all.Count() {
		return start()
	}
	var cores []int
	for c := 0; len(cores) < all.Count(); c++ {
		if all.IsSet(c) {
			cores = append(cores, c)
		}
	}
	first := int(turn.Add(uint32(n))-uint32(n)) % len(cores)
	for i := range n {
		some.Set(cores[(first+i)%len(cores)])
	}
	if err := unix.SchedSetaffinity(thisThread, &some); err != nil {
		return fmt.Errorf("set CPU affinity: %w", err)
	}
	err := start()
	_ = unix.SchedSetaffinity(thisThread, &all) // it had these before; whoever started runs
	return err
}

// cores is how many whole ones stand in for the limit; 0 = no limit.
func (l Limits) cores() int { return int(math.Ceil(l.CPUs)) }

// confine sets what belongs to the started process itself: no core dumps, which
// would fill a disk, and the size of a file. A process that has ended needs none.
func (l Limits) confine(pid int) error {
	set := func(what int, most uint64) error {
		err := unix.Prlimit(pid, what, &unix.Rlimit{Cur: most, Max: most}, nil)
		if errors.Is(err, syscall.ESRCH) {
			return nil
		}
		return err
	}
	if l == (Limits{}) {
		return nil
	}
	err := set(unix.RLIMIT_CORE, 0)
	if l.FileSize > 0 {
		err = errors.Join(err, set(unix.RLIMIT_FSIZE, uint64(l.FileSize)))
	}
	if err != nil {
		return fmt.Errorf("set resource limits: %w", err)
	}
	return nil
}

// as makes cmd run as the user, with no other groups.
func (u *User) as(cmd *exec.Cmd) {
	if u != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: u.UID, Gid: u.GID}
	}
}
