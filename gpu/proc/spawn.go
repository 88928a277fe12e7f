//go:build linux

package proc

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

const maxNice = 19

// spawners are the threads that start processes, one per nice level, made when
// first needed and kept for ever.
//
// Kept, because Pdeathsig fires when the *thread* that forked ends, and Go ends
// threads as it likes; a thread locked to a goroutine that never returns ends
// with us. One per level, because a child inherits the nice level of its
// thread: it is right from the first instruction and needs no wrapper; and
// because without privilege a thread can not go back to a lower level.
// Go never clones a locked thread, so the level does not spread to others.
var spawners [maxNice + 1]struct {
	once sync.Once
	do   chan func()
}

func spawner(nice int) chan<- func() {
	s := &spawners[nice]
	s.once.Do(func() {
		s.do = make(chan func())
		go serveSpawns(s.do)
	})
	return s.do
}

func serveSpawns(do <-chan func()) {
	runtime.LockOSThread()
	if syscall.Gettid() == os.Getpid() {
		// The main thread's level is what ps shows for all of us: hold it until
		// another thread has taken the work.
		taken := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(taken)
			for f := range do {
				f()
			}
		}()
		<-taken
		runtime.UnlockOSThread()
		return
	}
	for f := range do {
		f()
	}
}

// spawn starts cmd at the nice level, on that many cores (0 = all). When ctx ends first, a start that is
// under way (say, a program on a file system that hangs) is undone behind us.
func spawn(ctx context.Context, nice, cores int, cmd *exec.Cmd) error {
	result := make(chan error, 1)
	start := func() {
		err := raiseNice(nice)
		switch {
		case err != nil:
		case cores > 0:
			err = onCores(cores, cmd.Start)
		default:
			err = cmd.Start()
		}
		result <- err
	}
	select {
	case spawner(nice) <- start:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		go func() {
			if <-result == nil {
				syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
				cmd.Wait()
			}
		}()
		return context.Cause(ctx)
	}
}

// raiseNice brings the calling thread to at least the level.
func raiseNice(nice int) error {
	const thisThread = 0
	raw, err := syscall.Getpriority(syscall.PRIO_PROCESS, thisThread)
	if err != nil {
		return fmt.Errorf("read nice level: %w", err)
	}
	if 20-raw >= nice { // the kernel answers 20 - nice
		return nil
	}
	if err := syscall.Setpriority(syscall.PRIO_PROCESS, thisThread, nice); err != nil {
		return fmt.Errorf("set nice level %d: %w", nice, err)
	}
	return nil
}
