//go:build linux

package jobs

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"aloft/gpu"
	"aloft/gpu/proc"
)

// Local runs jobs as processes of this machine, one per slice, through gpu/proc.
type Local struct {
	RunDir  string // pid files, so that a later life finds what this one left
	Scratch string // private folders of runs are made below it; "" = below RunDir, or where the system has them
	Nice    int    // 0 = 10: jobs run below serving
	MaxLog  int64  // bytes of log kept of a job that sets no limit; 0 = 32 MiB
	Slog    *slog.Logger
	Confine func(gpu.Slice) []string // environment that confines to a slice; nil = CUDA_VISIBLE_DEVICES
	Users   Users                    // whom jobs run as; zero = us
	Suspend *Suspending              // nil = no job is suspended
}

// Users is a range of numeric users. A job always runs as the same one, so that
// its checkpoints stay its own.
type Users struct{ First, Last uint32 }

// of chooses a job's user; nil = us.
func (u Users) of(job string) *proc.User {
	if u.First == 0 {
		return nil
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(job)) // a hash never fails
	id := u.First + h.Sum32()%(u.Last-u.First+1)
	return &proc.User{UID: id, GID: id}
}

// progressFD is the descriptor on which a program reports, one JSON object a line.
const progressFD = 3

const (
	defaultNice = 10
	defaultLog  = 32 << 20
)

func (l Local) scratchRoot() string {
	if l.Scratch == "" && l.RunDir != "" {
		return filepath.Join(l.RunDir, "scratch")
	}
	return l.Scratch
}

// Reap implements Executor. What dead runs left in their folders goes as well.
func (l Local) Reap(context.Context) error {
	if l.RunDir == "" {
		return nil
	}
	_, err := proc.Reap(l.RunDir, l.Slog)
	if root := l.scratchRoot(); root != "" {
		old, _ := os.ReadDir(root) // none yet is as good as none left
		for _, e := range old {
			l.removeScratch(filepath.Join(root, e.Name()))
		}
	}
	return err
}

// Start implements Executor: one process per slice with rank and world size in
// its environment. All start or none.
func (l Local) Start(ctx context.Context, launch Launch) (Run, error) {
	setDefault(&l.Nice, defaultNice)
	setDefault(&l.MaxLog, defaultLog)
	setDefault(&launch.Job.Limits.Log, l.MaxLog)
	out, err := openLog(launch.Log, launch.Job.Limits.Log/2)
	if err != nil {
		return nil, err
	}
	r := &localRun{out: out, ended: make(chan struct{}), launch: launch, user: l.Users.of(launch.Job.ID), suspending: l.Suspend}
	if err := l.startAll(ctx, r); err != nil {
		r.stop(0)
		r.reports.Wait()
		l.removeScratch(r.scratch)
		out.Close()
		return nil, err
	}
	go func() {
		r.join()
		l.removeScratch(r.scratch)
		close(r.ended)
	}()
	return r, nil
}

func (l Local) startAll(ctx context.Context, r *localRun) (err error) {
	if root := l.scratchRoot(); root != "" {
		if err := os.MkdirAll(root, 0o711); err != nil {
			return fmt.Errorf("scratch folder: %w", err)
		}
	}
	if r.scratch, err = os.MkdirTemp(l.scratchRoot(), filepath.Base(r.launch.Job.ID)+"-"); err != nil {
		return fmt.Errorf("scratch folder: %w", err)
	}
	for _, dir := range []string{r.scratch, r.launch.CheckpointDir, r.launch.OutputDir} {
		if err := own(dir, r.user); err != nil {
			return fmt.Errorf("give the folder to the job's user: %w", err)
		}
	}
	meet := ""
	if len(r.launch.Slices) > 1 {
		if meet, err = freeAddress(); err != nil {
			return err
		}
	}
	for rank := range r.launch.Slices {
		if err := l.member(ctx, r, rank, meet); err != nil {
			return err
		}
	}
	return nil
}

// freeAddress is one of this machine at which rank 0 can listen. Somebody else
// could take it before; then the gang fails to meet and its job says so.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("address for the members to meet: %w", err)
	}
	return l.Addr().String(), l.Close()
}

func (l Local) member(ctx context.Context, r *localRun, rank int, meet string) error {
	j := r.launch.Job
	dir := filepath.Join(r.scratch, strconv.Itoa(rank))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("scratch folder: %w", err)
	}
	lines, err := openReports(filepath.Join(dir, "progress"))
	if err != nil {
		return err
	}
	defer lines.write.Close()
	if err := own(dir, r.user); err != nil {
		lines.close()
		return fmt.Errorf("give the folder to the job's user: %w", err)
	}
	var slave *os.File // the program's end of its terminal
	if j.Kind == KindSession {
		if r.term, slave, err = newTerminal(); err == nil {
			defer slave.Close()
			err = own(slave.Name(), r.user)
		}
		if err != nil {
			lines.close()
			r.term.close()
			return err
		}
	}
	p, err := proc.Start(ctx, proc.Spec{
		Name: fmt.Sprintf("job %s rank %d", j.ID, rank), Path: j.Command[0], Args: j.Command[1:],
		Env: l.env(r, rank, dir, meet), Dir: r.launch.CheckpointDir, Nice: l.Nice,
		Stdout: r.out, Stderr: r.out, ExtraFiles: []*os.File{lines.write}, RunDir: l.RunDir,
		Limits: proc.Limits{CPUs: j.Limits.CPUs, Memory: j.Limits.Memory, FileSize: j.Limits.Disk}, User: r.user, Terminal: slave,
	})
	if err != nil {
		lines.close()
		r.term.close()
		return err
	}
	r.members = append(r.members, p)
	if t := r.term; t != nil {
		r.reports.Go(func() { t.pump(p.Done(), func(b []byte) { _, _ = r.out.Write(b) }) })
	}
	report := r.launch.Report
	if rank > 0 || report == nil { // one member speaks for all
		report = func(Report) {}
	}
	r.reports.Go(func() { lines.serve(p.Done(), report) })
	return nil
}

// env is all that the program gets: nothing of ours that could be a secret. Its
// home is its own, so that it finds none there either.
func (l Local) env(r *localRun, rank int, scratch, meet string) []string {
	s, launch := r.launch.Slices[rank], r.launch
	confine := []string{"CUDA_VISIBLE_DEVICES=" + s.UUID}
	if l.Confine != nil {
		confine = l.Confine(s)
	}
	var env []string
	for _, kv := range proc.BaseEnv() {
		if !strings.HasPrefix(kv, "HOME=") && !strings.HasPrefix(kv, "TMPDIR=") {
			env = append(env, kv)
		}
	}
	env = append(env, "HOME="+scratch, "TMPDIR="+scratch)
	if r.term != nil {
		env = append(env, "TERM=xterm-256color") // what nearly every terminal understands
	}
	env = append(env, launch.Env...)
	env = append(env, confine...)
	env = append(env,
		"ALOFT_JOB_ID="+launch.Job.ID,
		"ALOFT_CHECKPOINT_DIR="+launch.CheckpointDir,
		"ALOFT_RESUME_FROM="+launch.ResumeFrom,
		"ALOFT_OUTPUT_DIR="+launch.OutputDir,
		"ALOFT_SCRATCH="+scratch,
		"ALOFT_RANK="+strconv.Itoa(rank),
		"ALOFT_WORLD_SIZE="+strconv.Itoa(len(launch.Slices)),
		"ALOFT_PROGRESS_FD="+strconv.Itoa(progressFD),
		"ALOFT_PROGRESS_FILE="+filepath.Join(scratch, "progress"),
	)
	if meet != "" {
		env = append(env, "ALOFT_RENDEZVOUS="+meet)
	}
	if d := launch.CheckpointInterval; d > 0 {
		env = append(env, "ALOFT_CHECKPOINT_INTERVAL="+strconv.FormatFloat(d.Seconds(), 'f', 1, 64))
	}
	return env
}

// removeScratch removes a run's folder. A program may have left folders that even
// their owner cannot list: they are opened first.
func (l Local) removeScratch(dir string) {
	if dir == "" || os.RemoveAll(dir) == nil {
		return
	}
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, _ error) error {
		if d != nil && d.IsDir() {
			return os.Chmod(path, 0o700)
		}
		return nil
	})
	if err := os.RemoveAll(dir); err != nil && l.Slog != nil {
		l.Slog.Warn("scratch folder not removed", "error", err)
	}
}

// localRun is the processes of one job.
type localRun struct {
	launch  Launch
	user    *proc.User // nil = us
	scratch string     // the folder of this run
	members []*proc.Process
	reports sync.WaitGroup
	out     *cappedLog
	term    *Terminal // of a session; nil = none
	ended   chan struct{}
	exit    Exit

	suspending *Suspending // nil = it cannot be suspended

	mu        sync.Mutex
	asked     bool // to preempt
	forced    bool
	over      string          // the limit that was exceeded, in words
	away      *proc.Suspended // nil = it is not suspended
	awaySince time.Time
	awayFor   time.Duration // of the times before
	charge    int64         // bytes counted for it while it is suspended
}

// Terminal is a session's, nil of other jobs.
func (r *localRun) Terminal() *Terminal { return r.term }

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
		all.Go(func() {
			if r.term != nil && grace > 0 { // a shell ends by this, and heeds no SIGTERM
				_ = p.Signal(syscall.SIGHUP)
			}
			p.Stop(grace)
		})
	}
	all.Wait()
}

// join waits for every member and folds their ends into one: the first that did
// not succeed speaks for the job, and takes the others with it.
func (r *localRun) join() {
	over := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { r.watchLimits(over) })
	ends := make(chan proc.Exit)
	for _, p := range r.members {
		go func() { ends <- p.Wait() }()
	}
	failed := false
	for range r.members {
		e := <-ends
		r.mu.Lock()
		asked := r.asked
		if why := r.exceeded(e); why != "" && r.over == "" {
			r.over = why
		}
		r.mu.Unlock()
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
		if !asked {
			for _, p := range r.members {
				go p.Stop(0) // Wait sees the end
			}
		}
	}
	close(over)
	watching.Wait()
	r.returned(time.Now())
	r.reports.Wait()
	r.out.Close()
	r.mu.Lock()
	r.exit.Forced, r.exit.Limit = r.forced, r.over
	r.mu.Unlock()
	if failed && r.term == nil { // a session's last line is what somebody typed
		r.exit.Said = r.out.lastLine()
	}
}

// Check tries what Local was told to do and says what this machine does not
// permit: an error where jobs could not run at all.
func (l Local) Check(ctx context.Context) (notes []string, err error) {
	held := proc.Permitted()
	if !held.CPUs {
		notes = append(notes, "no cgroup v2 with a CPU controller is handed down: jobs are kept to whole cores")
	}
	if !held.Memory {
		notes = append(notes, "no cgroup v2 with a memory controller is handed down: the memory of jobs is watched, twice a second")
	}
	if l.Users == (Users{}) {
		return append(notes, "jobs run as our own user"), nil
	}
	if l.Users.First < 1 || l.Users.Last < l.Users.First {
		return notes, fmt.Errorf("users %d to %d are no range", l.Users.First, l.Users.Last)
	}
	root := l.scratchRoot()
	if root == "" {
		root = os.TempDir()
	}
	if err := os.MkdirAll(root, 0o711); err != nil {
		return notes, fmt.Errorf("scratch folder: %w", err)
	}
	p, err := proc.Start(ctx, proc.Spec{Name: "probe of users", Path: "/bin/sh", Args: []string{"-c", "cd ."}, Env: proc.BaseEnv(),
		Dir: root, User: &proc.User{UID: l.Users.First, GID: l.Users.First}})
	if err == nil {
		if e := p.Wait(); !e.OK() {
			err = errors.New(e.String())
		}
	}
	if err != nil {
		return notes, fmt.Errorf("no program can be run as user %d in %s: %w", l.Users.First, root, err)
	}
	return notes, nil
}
