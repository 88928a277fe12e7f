package jobs

import (
	"context"
	"time"
)

// sweepEvery is how often what need not be kept is removed.
const sweepEvery = time.Minute

// clock looks after what comes with time: waiting jobs, schedules, the end of
// what is kept. It runs until Close.
func (m *Manager) clock() {
	ctx := m.base
	sweep := time.Now()
	for ctx.Err() == nil {
		next := m.settleDue(ctx)
		now := time.Now()
		if !now.Before(sweep) {
			if err := m.Sweep(ctx, now); err != nil && ctx.Err() == nil {
				m.log.Warn("old jobs not removed", "error", err)
			}
			sweep = time.Now().Add(sweepEvery)
		}
		if next.IsZero() || sweep.Before(next) {
			next = sweep
		}
		if at := m.tick(ctx, now); !at.IsZero() && at.Before(next) {
			next = at
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-timer.C:
		case <-m.agenda.wake:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// sweepMost bounds the jobs that one sweep removes: each is some files and a
// commit, and 500 a minute are more than what comes in for long.
const sweepMost = 500

// Sweep removes finished jobs whose time to be kept has passed by now, those
// first that have been due longest: record, events, log, checkpoints, artefacts
// and batch output. A job that an unfinished one depends on stays.
func (m *Manager) Sweep(ctx context.Context, now time.Time) error {
	list, err := m.opt.Store.List(ctx, Filter{Removable: now, Limit: sweepMost})
	if err != nil {
		return err
	}
	var failed error
	for _, j := range list {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := m.Delete(ctx, j.ID); err != nil {
			failed = err
			// Not at the head of every sweep: a batch's output may be read, a job
			// be depended on, for longer than others need to be kept.
			_, err := m.update(ctx, j.ID, func(j *Job) error {
				if !j.State.Terminal() {
					return errUnchanged
				}
				j.KeptUntil = now.Add(sweepLater)
				return nil
			})
			if err != nil {
				return err
			}
		}
	}
	return failed
}

// sweepLater is the pause before a job that could not be removed is tried again.
const sweepLater = time.Hour
