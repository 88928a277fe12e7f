//go:build linux

package jobs

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"aloft/gpu"
	"aloft/gpu/proc"
)

// Local runs jobs as processes of this machine, one per slice, through gpu/proc.
type Local struct {
	RunDir  string // pid files, so that a later life finds what this one left
	Nice    int    // 0 = 10: jobs run below serving
	MaxLog  int64  // bytes of a job's log before it is turned over once; 0 = 16 MiB
	Slog    *slog.Logger
	Confine func(gpu.Slice) []string // environment that confines to a slice; nil = CUDA_VISIBLE_DEVICES
}

// progressFD is the descriptor on which a program reports, one JSON object a line.
const progressFD = 3

const (
	defaultNice = 10
	defaultLog  = 16 << 20
	maxReport   = 64 << 10 // bytes of one progress line; longer ones are dropped
	// reportsLate is how long progress may still arrive after the end: only a
	// descendant that escaped its group could hold the pipe open.
	reportsLate = 2 * time.Second
)

// Reap implements Executor.
func (l Local) Reap(context.Context) error {
	if l.RunDir == "" {
		return nil
	}
	_, err := proc.Reap(l.RunDir, l.Slog)
	return err
}

// Start implements Executor: one process per slice with rank and world size in
// its environment. All start or none.
func (l Local) Start(ctx context.Context, launch Launch) (Run, error) {
	setDefault(&l.Nice, defaultNice)
	setDefault(&l.MaxLog, defaultLog)
	out, err := openLog(launch.Log, l.MaxLog)
	if err != nil {
		return nil, err
	}
	r := &localRun{out: out, ended: make(chan struct{})}
	for rank := range launch.Slices {
		if err := l.member(ctx, launch, rank, r); err != nil {
			r.stop(0)
			r.reports.Wait()
			out.Close()
			return nil, err
		}
	}
	go r.join()
	return r, nil
}

func (l Local) member(ctx context.Context, launch Launch, rank int, r *localRun) error {
	read, write, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("progress pipe: %w", err)
	}
	defer write.Close()
	j := launch.Job
	p, err := proc.Start(ctx, proc.Spec{
		Name: fmt.Sprintf("job %s rank %d", j.ID, rank), Path: j.Command[0], Args: j.Command[1:],
		Env: l.env(launch, rank), Dir: launch.CheckpointDir, Nice: l.Nice,
		Stdout: r.out, Stderr: r.out, ExtraFiles: []*os.File{write}, RunDir: l.RunDir,
	})
	if err != nil {
		read.Close()
		return err
	}
	r.members = append(r.members, p)
	report := launch.Report
	if rank > 0 || report == nil { // one member speaks for all
		report = func(Report) {}
	}
	r.reports.Go(func() {
		defer read.Close()
		readReports(read, report)
	})
	go func() {
		<-p.Done()
		read.SetReadDeadline(time.Now().Add(reportsLate)) // a pipe has deadlines
	}()
	return nil
}

// env is all that the program gets: nothing of ours that could be a secret.
func (l Local) env(launch Launch, rank int) []string {
	s := launch.Slices[rank]
	confine := []string{"CUDA_VISIBLE_DEVICES=" + s.UUID}
	if l.Confine != nil {
		confine = l.Confine(s)
	}
	env := append(proc.BaseEnv(), launch.Env...)
	env = append(env, confine...)
	return append(env,
		"ALOFT_JOB_ID="+launch.Job.ID,
		"ALOFT_CHECKPOINT_DIR="+launch.CheckpointDir,
		"ALOFT_RESUME_FROM="+launch.ResumeFrom,
		"ALOFT_RANK="+strconv.Itoa(rank),
		"ALOFT_WORLD_SIZE="+strconv.Itoa(len(launch.Slices)),
		"ALOFT_PROGRESS_FD="+strconv.Itoa(progressFD),
	)
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

// localRun is the processes of one job.
type localRun struct {
	members []*proc.Process
	reports sync.WaitGroup
	out     *cappedLog
	ended   chan struct{}
	exit    Exit

	mu     sync.Mutex
	asked  bool // to preempt
	forced bool
}

// Wait implements Run.
func (r *localRun) Wait() Exit {
	<-r.ended
	return r.exit
}

// Preempt implements Run.
func (r *localRun) Preempt(grace time.Duration) {
	r.mu.Lock()
	r.asked = true
	r.mu.Unlock()
	go func() {
		end := time.Now().Add(grace)
		r.stop(grace)
		if !time.Now().Before(end) {
			r.mu.Lock()
			r.forced = true
			r.mu.Unlock()
		}
	}()
}

func (r *localRun) stop(grace time.Duration) {
	var all sync.WaitGroup
	for _, p := range r.members {
		all.Go(func() { p.Stop(grace) })
	}
	all.Wait()
}

// join waits for every member and folds their ends into one: the first that did
// not succeed speaks for the job, and takes the others with it.
func (r *localRun) join() {
	ends := make(chan proc.Exit)
	for _, p := range r.members {
		go func() { ends <- p.Wait() }()
	}
	failed := false
	for range r.members {
		e := <-ends
		if e.OK() || failed {
			continue
		}
		failed = true
		r.exit.Code = e.Code
		switch {
		case e.Signal != 0:
			r.exit.Signal = e.Signal.String()
		case e.Err != nil:
			r.exit.Code, r.exit.Signal = -1, e.Err.Error()
		}
		r.mu.Lock()
		asked := r.asked
		r.mu.Unlock()
		if !asked {
			for _, p := range r.members {
				p.Signal(syscall.SIGKILL) // an ended one answers with an error, as it should
			}
		}
	}
	r.reports.Wait()
	r.out.Close()
	r.mu.Lock()
	r.exit.Forced = r.forced
	r.mu.Unlock()
	close(r.ended)
}

// cappedLog is a log file that is turned over once: at most twice its limit on
// disk, with the newest lines kept.
type cappedLog struct {
	path string
	most int64

	mu   sync.Mutex
	f    *os.File
	size int64
}

func openLog(path string, most int64) (*cappedLog, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("job log: %w", err)
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("job log: %w", err)
	}
	return &cappedLog{path: path, most: most, f: f, size: st.Size()}, nil
}

// Write never fails: a full disk must cost log lines, not the job.
func (c *cappedLog) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.size+int64(len(b)) > c.most && c.size > 0 {
		if os.Rename(c.path, c.path+".1") == nil {
			if f, err := os.OpenFile(c.path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600); err == nil {
				c.f.Close()
				c.f, c.size = f, 0
			}
		}
	}
	n, _ := c.f.Write(b)
	c.size += int64(n)
	return len(b), nil
}

// Close closes the file.
func (c *cappedLog) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.f.Close()
}
