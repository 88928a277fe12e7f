package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"aloft/backends/llama"
	"aloft/jobs/evaluation"
)

// candidate is a GGUF file on an engine of ours that is started for it. The
// engine is a process of its own, since llama.cpp may end its process; it stays
// in our process group, so that a job's end takes it along.
type candidate struct {
	evaluation.Subject
	process *os.Process
	ended   chan struct{}
	dir     string // of a built-in model that was written out; "" = none
}

// engineEnded is why an evaluation cannot go on.
type engineEnded struct{ name, how string }

func (e *engineEnded) Error() string {
	return fmt.Sprintf("the engine of %s ended by itself: %s; its log is above", e.name, e.how)
}

// candidateStart bounds the loading of a model.
const candidateStart = 5 * time.Minute

// start runs the engine and returns when it answers. fail is called when it ends
// before it is stopped.
func (c *evaluateCmd) start(ctx context.Context, gguf string, fail context.CancelCauseFunc) (*candidate, error) {
	e := &candidate{ended: make(chan struct{})}
	path, err := e.find(c.Folder, gguf)
	if err != nil {
		return nil, err
	}
	lib, err := engineLibrary(c.Lib)
	if err == nil {
		_, err = llama.ReadGGUF(path)
	}
	self, bad := os.Executable()
	if err = errors.Join(err, bad); err != nil {
		e.stop()
		return nil, err
	}
	st, err := os.Stat(path)
	if err != nil {
		e.stop()
		return nil, err
	}
	e.Name, e.Model, e.Bytes = strings.TrimSuffix(filepath.Base(path), ".gguf"), "candidate", st.Size()
	cmd := exec.Command(self, "engine", "llama", "--listen", "127.0.0.1:0", "--lib", lib, "--model", path, "--name", e.Model,
		"--context", strconv.Itoa(c.Context), "--slots", strconv.Itoa(max(c.Concurrency, 1)), "--threads", strconv.Itoa(c.Threads))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		e.stop()
		return nil, err
	}
	started, listening := make(chan error), make(chan error, 1)
	go func() { // owns the process; ends a second after it at the latest
		runtime.LockOSThread() // Pdeathsig is of the thread that starts
		err := cmd.Start()
		e.process = cmd.Process
		if started <- err; err != nil {
			close(e.ended)
			return
		}
		listening <- e.listening(out)
		_, _ = io.Copy(io.Discard, out)
		how := cmd.Wait()
		close(e.ended)
		if how == nil {
			how = errors.New("exit status 0")
		}
		select { // the signal that stops a job stops its engine too: then that is why
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
		fail(&engineEnded{e.Name, how.Error()}) // after stop nobody asks for the cause
	}()
	if err = <-started; err == nil {
		select {
		case err = <-listening:
		case <-time.After(candidateStart):
			err = fmt.Errorf("the engine of %s did not come up within %v", e.Name, candidateStart)
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	if err != nil {
		e.stop()
		return nil, err
	}
	return e, nil
}

// find is the file's path; a built-in one is written out.
func (e *candidate) find(folder, gguf string) (path string, err error) {
	name, builtin := strings.CutPrefix(gguf, "builtin:")
	if !builtin {
		return inFolder(folder, gguf)
	}
	if e.dir, err = os.MkdirTemp("", "aloft-evaluate-"); err != nil {
		return "", err
	}
	if path, err = unpackModel(name, e.dir); err != nil {
		e.stop()
	}
	return path, err
}

// listening reads where the engine listens.
func (e *candidate) listening(out io.Reader) error {
	var at struct{ Listening string }
	line, err := bufio.NewReaderSize(out, 4096).ReadSlice('\n')
	if err == nil {
		err = json.Unmarshal(line, &at)
	}
	if err != nil || at.Listening == "" {
		return fmt.Errorf("the engine of %s did not come up; its log is above", e.Name)
	}
	e.URL = "http://" + at.Listening
	return nil
}

// stop ends the engine and waits for its end.
func (e *candidate) stop() {
	if e.process != nil {
		_ = e.process.Kill() // it has nothing to save
		<-e.ended
	}
	if e.dir != "" {
		os.RemoveAll(e.dir)
	}
}
