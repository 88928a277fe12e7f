package main

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// lockFile holds a lock until unlock is called or the process ends.
func lockFile(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		pid, _ := os.ReadFile(path)
		f.Close()
		return nil, fmt.Errorf("data folder is in use by another aloft (pid %s): %s", strings.TrimSpace(string(pid)), path)
	}
	_ = f.Truncate(0)
	_, _ = fmt.Fprintln(f, os.Getpid())
	return func() { f.Close() }, nil
}
