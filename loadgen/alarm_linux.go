package loadgen

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// fineTimer is a timerfd: the runtime waits for it as for a socket, so it holds
// no thread, and the kernel wakes it with the precision of its own timers.
type fineTimer struct {
	fd   int
	file *os.File
	stop func() bool
}

func newFineTimer(ctx context.Context) (*fineTimer, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("loadgen: create timerfd: %w", err)
	}
	t := &fineTimer{fd: fd, file: os.NewFile(uintptr(fd), "timerfd")}
	t.stop = context.AfterFunc(ctx, func() { _ = t.file.SetReadDeadline(time.Unix(1, 0)) })
	return t, nil
}

// wait returns after d > 0, or with an error when the context ends.
func (t *fineTimer) wait(d time.Duration) error {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}
	if err := unix.TimerfdSettime(t.fd, 0, &spec, nil); err != nil {
		return fmt.Errorf("loadgen: set timerfd: %w", err)
	}
	var expirations [8]byte
	_, err := t.file.Read(expirations[:])
	return err
}

func (t *fineTimer) close() {
	t.stop()
	t.file.Close()
}
