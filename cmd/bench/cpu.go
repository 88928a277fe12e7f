package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// cpu is the CPU time in seconds that the parts of a benchmark have used. Other
// work on the machine stretches every clock but hardly this one.
type cpu struct{ engine, server, clients float64 }

// cpuOf reads what a server, its engines and this process have used so far.
func cpuOf(server *child) cpu {
	var c cpu
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		pid, parent, used := readStat(file)
		switch {
		case pid == server.PID():
			c.server = used
		case parent == server.PID():
			c.engine += used
		case pid == os.Getpid():
			c.clients = used
		}
	}
	return c
}

// tick is the unit of times in /proc: USER_HZ is 100 wherever Go runs on Linux.
const tick = 0.01 // seconds

// readStat returns zeros for a process that is gone.
func readStat(file string) (pid, parent int, used float64) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, 0, 0
	}
	// The name, field 2, may hold anything; the last ")" ends it.
	f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:])) // f[0] is field 3
	if len(f) < 13 {
		return 0, 0, 0
	}
	pid, _ = strconv.Atoi(filepath.Base(filepath.Dir(file)))
	parent, _ = strconv.Atoi(f[1])
	user, _ := strconv.ParseFloat(f[11], 64)
	system, _ := strconv.ParseFloat(f[12], 64)
	return pid, parent, tick * (user + system)
}

// cost is CPU time against what was done with it.
type cost struct {
	cpu
	done int
}

func (c *cost) add(from, to cpu, done int) {
	c.engine += to.engine - from.engine
	c.server += to.server - from.server
	c.clients += to.clients - from.clients
	c.done += done
}

// String is the cost of one, in ms.
func (c *cost) String() string {
	each := func(v float64) float64 { return 1000 * v / float64(max(1, c.done)) }
	return fmt.Sprintf("%.2f + %.2f + %.2f", each(c.engine), each(c.server), each(c.clients))
}

// machineCPU is what everything on this machine has computed so far, and own
// what we and our ended children have, in seconds.
func machineCPU() (all, own float64) {
	for i, v := range strings.Fields(field("/proc/stat", "cpu ")) {
		// user nice system idle iowait irq softirq steal; guests are in user.
		if n, err := strconv.ParseFloat(v, 64); err == nil && i < 8 && i != 3 && i != 4 {
			all += tick * n
		}
	}
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var use syscall.Rusage
		if syscall.Getrusage(who, &use) == nil {
			own += float64(use.Utime.Nano()+use.Stime.Nano()) / 1e9
		}
	}
	return all, own
}
