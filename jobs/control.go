package jobs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"aloft/backends"
)

// Pause holds a job back until Resume. One that runs is told to save first, as
// when it is preempted; Pause returns when the wish is stored. A batch cannot be
// paused: its window goes on.
func (m *Manager) Pause(ctx context.Context, id string) (Job, error) {
	j, err := m.update(ctx, id, func(j *Job) error {
		switch now := time.Now(); {
		case j.Kind == KindBatch:
			return invalid("id", "job %s is a batch, which cannot be paused", id)
		case j.State.Terminal():
			return fmt.Errorf("pause job %s: it has %s: %w", id, j.State, ErrFinished)
		case !j.Cancelling.IsZero():
			return fmt.Errorf("pause job %s: it is being cancelled: %w", id, ErrFinished)
		case j.State == Paused || !j.Pausing.IsZero():
			return errUnchanged
		case j.State.holds():
			j.Pausing = now
		default:
			j.step(Paused, now)
		}
		return nil
	})
	if err != nil {
		return Job{}, err
	}
	m.endRun(ctx, j)
	return j, nil
}

// endRun tells the job's run, if there is one, that it is not wanted any more.
func (m *Manager) endRun(ctx context.Context, j Job) {
	m.mu.Lock()
	r := m.runs[j.ID]
	m.mu.Unlock()
	if r == nil || m.drop(j, r) || !j.State.holds() {
		return
	}
	select {
	case <-r.started:
		if r.exec != nil {
			r.ask(time.Now())
			r.exec.Preempt(m.grace(j))
		}
	case <-ctx.Done(): // the start is slow; it will see the wish, or Open will
	}
}

// Resume lets a paused job go on, from its last checkpoint if it has one.
// ErrConflict if it is not paused.
func (m *Manager) Resume(ctx context.Context, id string) (Job, error) {
	return m.update(ctx, id, func(j *Job) error {
		switch now := time.Now(); {
		case j.State == Paused:
			return m.requeue(ctx, j, now)
		case !j.Pausing.IsZero() && !j.State.Terminal(): // it still saves; then it is queued
			j.Pausing = time.Time{}
		case j.State.Terminal():
			return fmt.Errorf("resume job %s: it has %s: %w", id, j.State, ErrFinished)
		default:
			return fmt.Errorf("resume job %s: it is %s, not paused: %w", id, j.State, ErrConflict)
		}
		return nil
	})
}

// Retry queues a failed or cancelled job again: the same job, from its last
// checkpoint, with all its retries before it.
func (m *Manager) Retry(ctx context.Context, id string) (Job, error) {
	if err := m.claim(id); err != nil {
		return Job{}, err
	}
	defer m.unclaim(id)
	if err := m.reserve(); err != nil {
		return Job{}, err
	}
	j, err := m.update(ctx, id, func(j *Job) error {
		switch {
		case j.Kind == KindBatch:
			return invalid("id", "job %s is a batch: make a new one of its error file's rows", id)
		case j.Kind == KindSession:
			return invalid("id", "job %s is a session, which cannot go on: open a new one", id)
		case j.State != Failed && j.State != Cancelled:
			return fmt.Errorf("retry job %s: it is %s, not failed or cancelled: %w", id, j.State, ErrConflict)
		}
		j.Tried, j.Ran, j.Error, j.Result = 0, 0, "", nil
		j.Finished, j.Cancelling, j.KeptUntil = time.Time{}, time.Time{}, time.Time{}
		return m.requeue(ctx, j, time.Now())
	})
	if err != nil {
		m.unreserve()
		return Job{}, err
	}
	return j, nil
}

// requeue moves a job that its user lets go on to where it belongs: the queue,
// or among the waiting.
func (m *Manager) requeue(ctx context.Context, j *Job, now time.Time) error {
	probe := *j
	probe.State = Waiting
	to, why, err := m.standing(ctx, probe, now)
	switch {
	case err != nil:
		return err
	case to == Failed || to == Expired:
		return fmt.Errorf("job %s cannot go on: %s: %w", j.ID, why, ErrConflict)
	}
	j.step(to, now)
	j.Why = why
	return nil
}

// reserve takes one of the places for unfinished jobs.
func (m *Manager) reserve() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return ErrClosed
	case m.open >= m.opt.MaxOpen:
		return fmt.Errorf("%d unfinished jobs: %w", m.opt.MaxOpen, backends.ErrOverloaded)
	}
	m.open++
	return nil
}

func (m *Manager) unreserve() {
	m.mu.Lock()
	m.open--
	m.mu.Unlock()
}

// made are the ids of the files that a job has made.
func (j Job) made() (files []string) {
	switch {
	case j.Batch != nil:
		files = []string{j.Batch.OutputFile, j.Batch.ErrorFile}
	case j.FineTune != nil:
		files = slices.Clone(j.FineTune.Results)
	}
	return slices.DeleteFunc(files, func(id string) bool { return id == "" })
}

// claim makes the caller the only one who removes the finished job or gives it
// another try; unclaim must follow.
func (m *Manager) claim(id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.agenda.going[id] {
		return fmt.Errorf("job %s is being deleted or tried again: %w", id, ErrConflict)
	}
	m.agenda.going[id] = true
	return nil
}

func (m *Manager) unclaim(id string) {
	m.mu.Lock()
	delete(m.agenda.going, id)
	m.mu.Unlock()
}

// Delete removes a finished job with its events, log, checkpoints, artefacts and
// files: the record last, so that a removal that is interrupted can be made
// again. ErrConflict while it is unfinished or an unfinished one depends on it.
func (m *Manager) Delete(ctx context.Context, id string) error {
	if err := m.claim(id); err != nil {
		return err
	}
	defer m.unclaim(id)
	j, err := m.opt.Store.Get(ctx, id)
	if err != nil {
		return fmt.Errorf("job %s: %w", id, err)
	}
	m.mu.Lock()
	needed, r := m.agenda.depended(id), m.runs[id]
	m.mu.Unlock()
	switch {
	case !j.State.Terminal():
		return fmt.Errorf("delete job %s: it is %s, cancel it first: %w", id, j.State, ErrConflict)
	case needed:
		return fmt.Errorf("delete job %s: an unfinished job depends on it: %w", id, ErrConflict)
	case r != nil: // its end is stored, its last file is being closed
		select {
		case <-r.done:
		case <-ctx.Done():
			return fmt.Errorf("delete job %s: %w", id, context.Cause(ctx))
		}
	}
	for _, file := range j.made() {
		if err := m.DeleteFile(ctx, file); err != nil && !errors.Is(err, ErrNotFound) {
			return fmt.Errorf("delete job %s: %w", j.ID, err)
		}
	}
	ours := []string{m.tuneDir(j.ID), m.OutputDir(j.ID), m.LogPath(j.ID), m.LogPath(j.ID) + LogOlder, m.LogPath(j.ID) + logTurn}
	if j.clears() {
		ours = append(ours, m.checkpointDir(j))
	}
	for _, path := range ours {
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("delete job %s: %w", j.ID, err)
		}
	}
	if err := m.opt.Store.Delete(ctx, j.ID); err != nil {
		return fmt.Errorf("delete job %s: %w", j.ID, err)
	}
	m.log.Info("job removed", "job", j.ID, "kind", j.Kind)
	return nil
}
