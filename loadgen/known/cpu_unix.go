//go:build unix

package known

import (
	"syscall"
	"time"
)

// processCPU is the time that this process has spent on CPUs, user and system.
func processCPU() time.Duration {
	var use syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &use) != nil {
		return 0
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
