package jobs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A checkpoint is believed when it is there, and gone on from when it still is as
// large as it was. Whether it can be read only its program knows: one from which a
// run ends before it has reported anything is not tried again.

// choice is what a run goes on from, and what was passed over for it.
type choice struct {
	from     string // "" = from the start
	progress Progress
	passed   []Checkpoint
	why      []string
}

// resume chooses the newest checkpoint that is whole.
func (j Job) resume() (c choice) {
	list := slices.Clone(j.Checkpoints)
	if c := j.Progress.Checkpoint; c != "" && !slices.ContainsFunc(list, func(k Checkpoint) bool { return k.Path == c }) {
		list = append(list, Checkpoint{Path: c, Step: j.Progress.Done, At: j.Progress.CheckpointAt})
	}
	c.progress = j.Progress
	for _, k := range slices.Backward(list) {
		err := whole(k)
		if err == nil {
			c.from = k.Path
			if c.progress.Resumes++; len(c.passed) > 0 {
				c.progress.Done, c.progress.Checkpoint, c.progress.CheckpointAt = k.Step, k.Path, k.At
				c.why = append(c.why, fmt.Sprintf("goes on from the one at %d", k.Step))
			}
			return c
		}
		if c.passed = append(c.passed, k); len(c.why) < 3 {
			c.why = append(c.why, err.Error())
		}
	}
	if len(list) > 0 {
		c.progress = Progress{Resumes: c.progress.Resumes, Total: c.progress.Total}
		c.why = append(c.why, "started over")
	}
	return c
}

// begun notes in the record what the run goes on from.
func (c choice) begun(j *Job) {
	j.Error = strings.Join(c.why, "; ")
	j.Checkpoints = slices.DeleteFunc(slices.Clone(j.Checkpoints), func(k Checkpoint) bool {
		return slices.ContainsFunc(c.passed, func(o Checkpoint) bool { return o.Path == k.Path && o.At.Equal(k.At) })
	})
}

// whole says what is wrong with a checkpoint, if anything.
func whole(c Checkpoint) error {
	n, _, err := sizeOf(c.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("checkpoint is gone: %s", filepath.Base(c.Path))
	case err != nil:
		if p, ok := errors.AsType[*fs.PathError](err); ok { // where it lies is not its user's to know
			err = p.Err
		}
		return fmt.Errorf("checkpoint cannot be read: %w", err)
	case n == 0:
		return fmt.Errorf("checkpoint is empty: %s", filepath.Base(c.Path))
	case n < c.Bytes:
		return fmt.Errorf("checkpoint is cut off: %s has %d bytes of %d", filepath.Base(c.Path), n, c.Bytes)
	}
	return nil
}

// sizeOf is what the files of a checkpoint hold, a file's or a folder's, and when
// they last changed.
func sizeOf(path string) (n int64, changed time.Time, err error) {
	err = filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode().IsRegular() {
			n += info.Size()
		}
		changed = latest(changed, info.ModTime())
		return nil
	})
	return n, changed, err
}

// distrust takes a checkpoint off that a run could not go on from.
func (j *Job) distrust(path, why string) string {
	j.Checkpoints = slices.DeleteFunc(slices.Clone(j.Checkpoints), func(c Checkpoint) bool { return c.Path == path })
	if j.Progress.Checkpoint == path {
		j.Progress.Checkpoint, j.Progress.CheckpointAt = "", time.Time{}
	}
	return fmt.Sprintf("could not go on from %s (%s): the one before is tried", filepath.Base(path), why)
}

// doubtful is the checkpoint that a run began from if it has not reported
// anything since; "" = none.
func (r *run) doubtful() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.heard {
		return ""
	}
	return r.resumed
}

// report takes one line of the running program. Storing here, in the reader of
// its descriptor, lets a program that reports too fast wait for the disk.
func (m *Manager) report(ctx context.Context, id string, r *run, rep Report) {
	now := time.Now()
	if rep.Checkpoint != "" {
		m.verify(ctx, id, r.dir, &rep)
	}
	r.mu.Lock()
	r.heard = true
	if rep.Heartbeat {
		r.touched = now
	}
	r.progress = r.progress.advance(rep, r.from, r.began, now)
	saving := time.Duration(min(max(rep.Saving, 0), 1e6) * float64(time.Second))
	if rep.Checkpoint != "" {
		r.saved = true
		if saving == 0 && !r.asked.IsZero() {
			saving = now.Sub(r.asked)
		}
		r.asked = time.Time{}
	}
	done, total := r.progress.Done, r.progress.Total
	store := rep.Checkpoint != "" || rep.Result != nil || now.Sub(r.stored) > progressEvery
	if store {
		r.stored = now
	}
	r.mu.Unlock()
	if rep.Message != "" {
		if err := m.AddEvent(ctx, id, Event{At: now, Kind: "message", Message: rep.Message}); err != nil {
			m.log.Warn("message not stored", "job", id, "error", err)
		}
	}
	if r.tune != nil {
		m.measured(ctx, id, r.tune, rep, total)
	}
	if !store {
		return
	}
	j, err := m.update(ctx, id, func(j *Job) error {
		r.freshen(j)
		if rep.Result != nil {
			j.Result = rep.Result
		}
		if rep.Checkpoint != "" {
			j.addCheckpoint(Checkpoint{Path: rep.Checkpoint, Step: done, At: now, Bytes: rep.CheckpointBytes, Metrics: rep.Metrics})
			if saving > 0 {
				j.Saving = smooth(j.Saving, saving)
			}
		}
		return nil
	})
	if err != nil {
		m.log.Warn("progress not stored", "job", id, "error", err)
	} else if rep.Checkpoint != "" {
		m.thinOut(j)
	}
}

// verify looks for a reported checkpoint on the disk: one that is not there is not
// believed. Its path may be relative to the job's folder.
func (m *Manager) verify(ctx context.Context, id, dir string, rep *Report) {
	path := rep.Checkpoint
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	path = filepath.Clean(path)
	if err := whole(Checkpoint{Path: path}); err != nil {
		m.warn(ctx, id, "reported, but not believed: "+err.Error())
		rep.Checkpoint = ""
		return
	}
	rep.Checkpoint = path
	rep.CheckpointBytes, _, _ = sizeOf(path) // it was there a moment ago; 0 is never too few
}

// addCheckpoint keeps the newest; one written again takes its old place's file.
func (j *Job) addCheckpoint(c Checkpoint) {
	list := slices.DeleteFunc(slices.Clone(j.Checkpoints), func(old Checkpoint) bool { return old.Path == c.Path })
	list = append(list, c)
	j.Checkpoints = list[max(0, len(list)-maxCheckpoints):]
}

// thinOut removes the files of checkpoints that are too old to be gone on from,
// only inside the job's own folder.
func (m *Manager) thinOut(j Job) {
	if !j.clears() {
		return
	}
	keep := j.Checkpoints[max(0, len(j.Checkpoints)-m.opt.KeepCheckpoints):]
	dir := m.checkpointDir(j) + string(filepath.Separator)
	for _, c := range j.Checkpoints[:len(j.Checkpoints)-len(keep)] {
		within := slices.ContainsFunc(keep, func(k Checkpoint) bool {
			return strings.HasPrefix(k.Path, c.Path+string(filepath.Separator))
		})
		_, changed, err := sizeOf(c.Path)
		if !strings.HasPrefix(c.Path, dir) || within || err != nil || changed.After(c.At) { // written anew meanwhile: the report of it is on its way
			continue
		}
		if err := os.RemoveAll(c.Path); err != nil {
			m.log.Warn("old checkpoint not removed", "job", j.ID, "error", err)
		}
	}
}

func (m *Manager) warn(ctx context.Context, id, words string) {
	if err := m.AddEvent(ctx, id, Event{Level: LevelWarn, Kind: "checkpoint", Message: words}); err != nil {
		m.log.Warn("event not stored", "job", id, "error", err)
	}
}

// ask notes that the run was told to save.
func (r *run) ask(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asked.IsZero() {
		r.asked = now
	}
	r.stopped = true
}

func (r *run) wasAsked() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stopped
}

// endured counts an ended run.
func (m *Manager) endured(ran time.Duration, preempted bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ran += ran
	if preempted {
		m.stops++
	}
}

// interval is how often the job is advised to save: by what saving takes it, and
// how often it is preempted, of which all the jobs of this server say something
// before it has been.
func (m *Manager) interval(j Job) time.Duration {
	m.mu.Lock()
	usual := meanTime(firstMTBP, m.ran, m.stops)
	m.mu.Unlock()
	cost := j.Saving
	setDefault(&cost, firstCost)
	return advice(cost, meanTime(usual, j.Ran, j.Preemptions))
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
