//go:build linux

package jobs

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxReport = 64 << 10 // bytes of one progress line; longer ones are dropped
	// reportsLate is how long progress may still arrive after the end: only a
	// descendant that escaped its group could hold the pipe open.
	reportsLate = 2 * time.Second
)

// reports are the two ways in for a program's progress lines: the descriptor that
// it inherits, and a named pipe for whoever would rather append to a file.
type reports struct {
	read, write *os.File
	pipe        *os.File
	pipeEnd     *os.File // keeps the pipe open while nobody writes to it
}

func openReports(path string) (r reports, err error) {
	if r.read, r.write, err = os.Pipe(); err != nil {
		return r, fmt.Errorf("progress pipe: %w", err)
	}
	err = unix.Mkfifo(path, 0o600)
	if err == nil {
		r.pipe, err = os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	}
	if err == nil {
		r.pipeEnd, err = os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0)
	}
	if err != nil {
		r.write.Close()
		r.close()
		return r, fmt.Errorf("progress pipe: %w", err)
	}
	return r, nil
}

func (r reports) close() { // what was not opened is nil, and closing that does nothing
	r.read.Close()
	r.pipe.Close()
	r.pipeEnd.Close()
}

// serve hands on what comes in on either way, one line at a time, until the
// program has ended and nothing is left to read.
func (r reports) serve(ended <-chan struct{}, report func(Report)) {
	defer r.close()
	var one sync.Mutex
	in := func(rep Report) {
		one.Lock()
		defer one.Unlock()
		report(rep)
	}
	var both sync.WaitGroup
	both.Go(func() { readReports(r.read, in) })
	both.Go(func() { readReports(r.pipe, in) })
	<-ended
	late := time.Now().Add(reportsLate)
	r.read.SetReadDeadline(late) // pipes have deadlines
	r.pipe.SetReadDeadline(late)
	r.pipeEnd.Close()
	both.Wait()
}

// readReports hands each line that is a report to report; others are dropped,
// since a library may write to any descriptor it finds.
func readReports(r io.Reader, report func(Report)) {
	in := bufio.NewReaderSize(r, maxReport)
	for {
		line, err := in.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			for errors.Is(err, bufio.ErrBufferFull) { // the rest of a line that is too long
				_, err = in.ReadSlice('\n')
			}
			line = nil
		}
		var rep Report
		if len(bytes.TrimSpace(line)) > 0 && json.Unmarshal(line, &rep) == nil && rep.Step >= 0 {
			report(rep)
		}
		if err != nil {
			return
		}
	}
}
