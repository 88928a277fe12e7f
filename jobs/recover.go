package jobs

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
)

// recoverAtOnce is how many records are put right at the same time: a store that
// gathers its writes needs one commit for as many, and ten thousand jobs take a
// second instead of minutes.
const recoverAtOnce = 256

// recoverJobs puts every job that an earlier life left unfinished where it belongs.
func (m *Manager) recoverJobs(ctx context.Context, left []Job) error {
	at, ctx := errgroup.WithContext(ctx)
	at.SetLimit(recoverAtOnce)
	for _, j := range left {
		if !j.State.holds() && j.Suspended == nil {
			continue
		}
		at.Go(func() error {
			if _, err := m.update(ctx, j.ID, recoverJob); err != nil {
				return fmt.Errorf("jobs: recover %s: %w", j.ID, err)
			}
			return nil
		})
	}
	return at.Wait()
}

// recoverJob puts a job whose process is gone where it belongs.
func recoverJob(j *Job) error {
	switch now := time.Now(); {
	case j.Suspended != nil:
		j.Suspended, j.Error = nil, "the server ended while it was suspended"
	case !j.State.holds():
		return errUnchanged
	case !j.Cancelling.IsZero() && j.Kind != KindBatch:
		j.step(Cancelled, now)
	case !j.Pausing.IsZero():
		j.step(Paused, now)
	case j.Kind == KindSession: // whoever used it has lost it already
		j.step(Expired, now)
		j.Error = "the server ended while it ran"
	default:
		j.step(Queued, now)
	}
	return nil
}
