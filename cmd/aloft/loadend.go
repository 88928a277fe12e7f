package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"aloft/loadgen"
)

// The exit codes of `aloft load`, which scripts can tell apart (docs/load.md).
// Where several apply, the one that makes the others meaningless is given: a run
// that does not count says nothing of demands.
const (
	exitError   exitCode = 1 // bad input, or what was asked for could not be done
	exitNoCount exitCode = 2 // the run does not count: the generator failed, not the server
	exitNotHeld exitCode = 3 // what was demanded, or is known to be right, was not so; or there was nothing to compare
)

// ending is an error and the exit code that it has.
type ending struct {
	error
	code exitCode
}

// Unwrap returns the error itself.
func (e ending) Unwrap() error { return e.error }

// coded gives an error, if there is one, a code.
func coded(code exitCode, err error) error {
	if err == nil {
		return nil
	}
	return ending{err, code}
}

// codeOf is the exit code of an error: of several joined ones the first that has one.
func codeOf(err error) exitCode {
	var e ending
	if errors.As(err, &e) {
		return e.code
	}
	return exitError
}

// counted is an error when the run does not count; told says that the table has
// told why.
func counted(r *loadgen.Report, told bool) error {
	err := r.Verdict()
	if err != nil && told {
		err = fmt.Errorf("the run does not count, as said above\n  what helps: %s", loadgen.WhatHelps)
	}
	return coded(exitNoCount, err)
}

// untilHangUp also ends when the terminal is closed, so that a load is kept as
// far as it came; under nohup it goes on.
func untilHangUp(ctx context.Context) (context.Context, context.CancelFunc) {
	if signal.Ignored(syscall.SIGHUP) {
		return ctx, func() {}
	}
	return signal.NotifyContext(ctx, syscall.SIGHUP)
}

// openLines opens the file that a run writes its requests to while it goes on.
// It is locked until it is closed, so that two runs do not write over each other.
func openLines(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.Mode().IsRegular() {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			err = fmt.Errorf("--lines: another run is writing to %s", path)
		} else {
			err = f.Truncate(0)
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
