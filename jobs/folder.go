package jobs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// missing says whether an operator's checkpoint folder is not there. What it stands
// in is never made: on an unmounted disk the job would begin anew, and hide what
// it has. A job's own part of it is made by its first run, and gone if it has
// saved there and it is not.
func (j Job) missing() error {
	if j.SavesIn == "" {
		return nil
	}
	dir := filepath.Dir(j.SavesIn)
	if len(j.Checkpoints) > 0 || j.Progress.Checkpoint != "" {
		dir = j.SavesIn
	}
	switch st, err := os.Stat(dir); {
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("it is not there")
	case err != nil:
		return errors.Unwrap(err) // without the path
	case !st.IsDir():
		return errors.New("it is no folder")
	}
	return nil
}

var errNoFolder = errors.New("checkpoint folder is missing")

// awaitFolder puts a job whose checkpoint folder is gone among the waiting. It keeps
// what it has: record, progress and tries.
func (m *Manager) awaitFolder(ctx context.Context, id string) error {
	j, err := m.Get(ctx, id)
	if err != nil || j.missing() == nil {
		return err
	}
	why := j.missing()
	_, err = m.update(ctx, id, func(j *Job) error {
		if !j.Waits() {
			return errUnchanged
		}
		now := time.Now()
		j.step(Waiting, now)
		j.RetryAt = now.Add(6 * m.opt.JobRetry.First) // a minute: mounts come back in minutes
		j.Why = fmt.Sprintf("for its checkpoint folder, which its operator keeps: %v", why)
		return nil
	})
	m.log.Warn("checkpoint folder is missing", "job", id, "folder", j.SavesIn, "error", why)
	return errors.Join(fmt.Errorf("start job %s: %w", id, errNoFolder), err)
}

// ShownPath is a checkpoint's path as the job's user is told it: within the job's
// folder. Where that lies on the server is the operator's business.
func (j Job) ShownPath(path string) string {
	if _, within, ok := strings.Cut(path, "/"+filepath.Base(j.ID)+"/"); ok {
		return within
	}
	return filepath.Base(path)
}
