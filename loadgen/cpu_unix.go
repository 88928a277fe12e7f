//go:build unix

package loadgen

import (
	"syscall"
	"time"
)

// ProcessCPU is the time that this process has spent on CPUs, user and system.
func ProcessCPU() time.Duration {
	var use syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &use) != nil {
		return 0
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
