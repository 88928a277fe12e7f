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

	expirations [8]byte
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

// wait returns after d > 0, sooner when early has a value, which it takes, and with
// an error when the context ends.
func (t *fineTimer) wait(d time.Duration, early <-chan struct{}) error {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}
	if err := unix.TimerfdSettime(t.fd, 0, &spec, nil); err != nil {
		return fmt.Errorf("loadgen: set timerfd: %w", err)
	}
	select {
	case <-early: // put there before the timer was set, so that nudge's setting is lost
		return nil
	default:
	}
	_, err := t.file.Read(t.expirations[:])
	select {
	case <-early:
	default:
	}
	return err
}

// nudge has wait return, after early has its value.
func (t *fineTimer) nudge() {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(1)}
	_ = unix.TimerfdSettime(t.fd, 0, &spec, nil) // if it fails so does wait's, which sees to it
}

func (t *fineTimer) close() {
	t.stop()
	t.file.Close()
}
