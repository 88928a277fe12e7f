package jobs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"aloft/gpu"
)

// run is a job's life in this process: from Start until no process of it is left
// and the record says so.
type run struct {
	started chan struct{} // closed when exec is set, or the start failed
	ended   chan struct{} // closed when no process is left
	done    chan struct{} // closed when the slice is free and the record stored
	exec    Run           // nil if the start failed

	mu       sync.Mutex
	progress Progress
	began    time.Time
	from     int64     // progress.Done at the start
	saved    bool      // this run has completed a checkpoint
	heard    bool      // it has reported anything
	resumed  string    // the checkpoint it began from, "" = from the start
	asked    time.Time // when it was first told to save; zero = not yet, or it has saved since
	stopped  bool      // it was told to save
	stored   time.Time
	touched  time.Time // of a session: when its program last said that it is used
	why      string    // of a session: why it was told to end
	tune     *tuneRun  // of a fine-tuning job; belongs to the reader of reports
	lent     []gpu.Slice
	held     *holding // nil = it is not suspended
	dir      string   // of its checkpoints
}

// progressEvery bounds how often plain progress is stored; checkpoints and
// results are stored at once.
const progressEvery = 2 * time.Second

// Start gives the job the slices and starts its processes there; a batch only
// notes the lease, since the pool serves its rows. It returns when they run. A
// start that fails by itself (a missing program) fails the job; one that ctx
// interrupts puts it back into the queue.
func (m *Manager) Start(ctx context.Context, id string, lent []gpu.Slice) error {
	if len(lent) == 0 {
		return fmt.Errorf("start job %s: no slice given", id)
	}
	if back, err := m.takeUp(ctx, id, lent); back || err != nil {
		return err
	}
	if err := m.awaitFolder(ctx, id); err != nil {
		return err
	}
	r := &run{lent: lent, started: make(chan struct{}), ended: make(chan struct{}), done: make(chan struct{})}
	if err := m.enroll(id, r); err != nil {
		return err
	}
	j, err := m.update(ctx, id, func(j *Job) error {
		if !j.Waits() {
			return fmt.Errorf("start job %s: it is %s %s: %w", id, j.State, batchStatus(*j), ErrConflict)
		}
		now := time.Now()
		j.step(Starting, now)
		for _, s := range lent {
			j.Slices = append(j.Slices, s.ID)
		}
		if j.Kind == KindBatch {
			j.step(Running, now)
		}
		return nil
	})
	if err != nil || j.Kind == KindBatch {
		m.release(id, r)
		return err
	}
	return m.launch(context.WithoutCancel(ctx), ctx, j, lent, r)
}

// enroll makes r the job's only run.
func (m *Manager) enroll(id string, r *run) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	if m.runs[id] != nil {
		return fmt.Errorf("start job %s: it is running: %w", id, ErrConflict)
	}
	m.runs[id] = r
	m.work.Add(1) // until release
	return nil
}

// release ends r: whoever waits for the slice may take it.
func (m *Manager) release(id string, r *run) {
	m.mu.Lock()
	delete(m.runs, id)
	m.mu.Unlock()
	select {
	case <-r.started:
	default:
		close(r.started)
	}
	close(r.done)
	m.work.Done()
}

// launch starts the processes. ctx stores (and outlives the caller), start
// bounds the start.
func (m *Manager) launch(ctx, start context.Context, j Job, lent []gpu.Slice, r *run) error {
	id := j.ID // j is replaced below, while the run may already report
	begin := j.resume()
	t, _ := m.template(j.Template)
	l := Launch{
		Job: j, Slices: lent, Env: t.Env,
		CheckpointDir: m.checkpointDir(j), ResumeFrom: begin.from, OutputDir: m.OutputDir(id), Log: m.LogPath(id),
		CheckpointInterval: m.interval(j),
		Report:             func(rep Report) { m.report(ctx, id, r, rep) },
	}
	for _, words := range begin.why {
		m.warn(ctx, id, words)
	}
	r.mu.Lock()
	r.progress, r.began, r.from, r.resumed, r.dir = begin.progress, time.Now(), begin.progress.Done, begin.from, l.CheckpointDir
	r.mu.Unlock()
	err := errors.Join(os.MkdirAll(l.CheckpointDir, 0o700), os.MkdirAll(l.OutputDir, 0o700))
	if err == nil && j.FineTune != nil {
		l.Env, err = m.layOut(start, j, l.Env)
		r.tune = newTuneRun(filepath.Join(m.tuneDir(j.ID), metricsName))
	}
	if err == nil {
		r.exec, err = m.opt.Executor.Start(start, l)
	}
	if err != nil {
		interrupted := start.Err() != nil
		_, stored := m.update(ctx, j.ID, func(j *Job) error {
			now, why := time.Now(), "could not start: "+err.Error()
			switch {
			case !j.Cancelling.IsZero():
				j.step(Cancelled, now)
			case !j.Pausing.IsZero():
				j.step(Paused, now)
			case interrupted:
				j.step(Queued, now)
			default:
				j.fail(why, now, m.opt.JobRetry)
			}
			j.Error = why
			return nil
		})
		m.release(j.ID, r)
		return errors.Join(fmt.Errorf("start job %s: %w", j.ID, err), stored)
	}
	j, err = m.update(ctx, j.ID, func(j *Job) error {
		j.step(Running, time.Now())
		r.freshen(j)
		begin.begun(j)
		if j.Session != nil {
			j.Session = j.Session.begun(time.Now())
		}
		return nil
	})
	close(r.started)
	if err != nil || !j.Cancelling.IsZero() || !j.Pausing.IsZero() {
		r.exec.Preempt(m.grace(j)) // not recorded as running, or cancelled meanwhile: it must not run on
	}
	if j.Kind == KindSession {
		m.work.Go(func() { m.mind(ctx, j, r) })
	}
	go m.watch(id, r) // counted by enroll
	return err
}

func (m *Manager) grace(j Job) time.Duration {
	if j.Grace > 0 {
		return j.Grace
	}
	return m.opt.Grace
}

// watch waits for the end of the run and records what becomes of the job. The
// slice counts as held until the record says otherwise; a store that fails is
// asked again until Close, and Open recovers the rest.
func (m *Manager) watch(id string, r *run) {
	defer m.release(id, r)
	end := r.exec.Wait()
	close(r.ended)
	if r.settle() {
		m.remark(context.Background(), id, LevelWarn, "its suspended processes have ended: "+end.String())
	}
	m.endured(r.ran(time.Now()), r.wasAsked())
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		j, err := m.ended(context.Background(), id, r, end)
		if err == nil && j.FineTune != nil {
			m.tuned(m.base, j)
		}
		if err == nil || errors.Is(err, ErrNotFound) {
			return
		}
		m.log.Error("end of job not stored", "job", id, "error", err)
		select {
		case <-time.After(pause):
		case <-m.base.Done():
			if pause > time.Second { // closing: a few tries were enough
				return
			}
			time.Sleep(pause)
		}
	}
}

// ended stores what becomes of a job whose run has ended.
func (m *Manager) ended(ctx context.Context, id string, r *run, end Exit) (Job, error) {
	tune, lost, err := m.tuneResults(ctx, id, r, end)
	if err != nil {
		return Job{}, err
	}
	distrusted := ""
	j, err := m.update(ctx, id, func(j *Job) error {
		if !j.State.holds() && j.Suspended == nil {
			return errUnchanged
		}
		r.freshen(j)
		now := time.Now()
		j.Ran += r.ran(now)
		was := *j
		if was.Suspended != nil {
			was.State = Preempting
		}
		if was.State == Running && r.wasAsked() { // paused, and resumed before it was gone
			was.State = Preempting
		}
		to, why := outcome(was, end, r.savedOne())
		if to == Succeeded && lost != nil {
			to, why = Failed, lost.Error()
		}
		if j.Kind == KindSession {
			to, why = sessionOutcome(to, why, r.whyOver())
		}
		doubt := r.doubtful()
		switch {
		case to == Failed && end.Limit != "": // it would be exceeded again
		case to == Failed && doubt != "":
			to, why = Queued, j.distrust(doubt, why)
			distrusted = why
		case to == Failed:
			j.fail(why, now, m.opt.JobRetry)
			return nil
		case to == Succeeded && tune != nil:
			j.FineTune = tune
		}
		if j.State != to { // a suspended one is queued already
			j.step(to, now)
		}
		j.Suspended, j.Error = nil, why
		return nil
	})
	if err == nil && distrusted != "" {
		m.warn(ctx, id, distrusted)
	}
	return j, err
}

func (r *run) freshen(j *Job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.began.IsZero() {
		j.Progress = r.progress
	}
}

// ran is how long the run has lasted by now, since it was last counted.
func (r *run) ran(now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held != nil { // it was when it was suspended
		return 0
	}
	return max(now.Sub(r.began), 0)
}

func (r *run) savedOne() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.saved
}

// Preempt takes the job's slices back: checkpoint signal, grace (0 = the job's
// own), kill. It returns when the slices are free; the job is queued again, or
// has ended. A job that holds none is left alone.
func (m *Manager) Preempt(ctx context.Context, id string, grace time.Duration) error {
	m.mu.Lock()
	r := m.runs[id]
	m.mu.Unlock()
	if r != nil {
		select {
		case <-r.started:
		case <-ctx.Done():
			return fmt.Errorf("preempt job %s: %w", id, context.Cause(ctx))
		}
	}
	j, err := m.update(ctx, id, func(j *Job) error {
		if j.State != Running {
			return errUnchanged
		}
		now := time.Now()
		j.step(Preempting, now)
		j.Preemptions++
		if j.Kind == KindBatch {
			j.step(Queued, now)
		}
		return nil
	})
	if r == nil || r.exec == nil {
		return err
	}
	if grace <= 0 {
		grace = m.grace(j)
	}
	grace = graceWithin(ctx, grace)
	if r.isHeld() && j.State == Queued && !m.isClosed() {
		return nil // it has left its slices already
	}
	grace, away := m.suspend(ctx, j, r, grace)
	if away {
		return nil
	}
	r.ask(time.Now())
	if j.Kind == KindSession {
		grace = m.sessionGrace(ctx, j, r, grace)
	}
	r.exec.Preempt(grace) // also when the store failed: the slice is wanted back
	select {
	case <-r.done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("preempt job %s: %w", id, context.Cause(ctx))
	}
}

// Cancel ends the job: at once when it waits, else after the checkpoint signal
// and its grace. It returns when the wish is stored; cancelling twice is no
// error, cancelling what has ended otherwise is ErrFinished.
func (m *Manager) Cancel(ctx context.Context, id string) (Job, error) {
	j, err := m.update(ctx, id, func(j *Job) error {
		switch now := time.Now(); {
		case j.Kind == KindBatch:
			return cancelBatch(j, now)
		case j.State == Cancelled || !j.Cancelling.IsZero() && !j.State.Terminal():
			return errUnchanged
		case j.State.Terminal():
			return fmt.Errorf("cancel job %s: it has %s: %w", id, j.State, ErrFinished)
		default:
			j.Cancelling = now
			if !j.State.holds() {
				j.step(Cancelled, now)
			}
			return nil
		}
	})
	if err != nil {
		return Job{}, err
	}
	m.mu.Lock()
	stop := func(error) {}
	if b := m.batches[id]; b != nil {
		stop = b.cancel // under the lock: serveBatch may be setting it
	}
	m.mu.Unlock()
	stop(errCancelled)
	m.endRun(ctx, j)
	return j, nil
}
