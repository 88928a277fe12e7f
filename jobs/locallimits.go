//go:build linux

package jobs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"aloft/gpu/proc"
)

const (
	// watchEvery paces the looks at what a job uses. Between two of them it can go
	// over a limit; the kernel holds what it can more strictly.
	watchEvery = 500 * time.Millisecond
	// maxFiles bounds a look at a job's folders; a job with more is over its limit.
	maxFiles = 200_000
)

// watchLimits ends the run when it exceeds a limit that nobody else holds.
func (r *localRun) watchLimits(ended <-chan struct{}) {
	l := r.launch.Job.Limits
	var tick <-chan time.Time
	if l.Memory > 0 || l.Disk > 0 {
		t := time.NewTicker(watchEvery)
		defer t.Stop()
		tick = t.C
	}
	began := time.Now()
	rest := func(now time.Time) time.Duration { // of the run time, of which a suspension takes nothing
		return l.RunTime - r.launch.Job.Ran - now.Sub(began) + r.wasAway(now)
	}
	late := time.NewTimer(time.Hour)
	defer late.Stop()
	if late.Stop(); l.RunTime > 0 {
		late.Reset(max(0, rest(began)))
	}
	for {
		why, grace := "", time.Duration(0)
		select {
		case <-ended:
			return
		case now := <-late.C:
			if left := rest(now); left > 0 {
				late.Reset(left)
				continue
			}
			why, grace = fmt.Sprintf("run time limit exceeded: it ran for %v", l.RunTime), r.launch.Job.Grace
		case <-tick:
			if why = r.memoryOver(l.Memory); why == "" {
				why = r.diskOver(l.Disk)
			}
		}
		if why == "" {
			continue
		}
		r.mu.Lock()
		r.over, r.asked = why, true
		r.mu.Unlock()
		r.stop(grace)
		<-ended
		return
	}
}

// memoryOver looks at each member that no cgroup holds.
func (r *localRun) memoryOver(most int64) string {
	for rank, p := range r.members {
		if most <= 0 || p.Holds().Memory {
			continue
		}
		if has := p.Memory(); has > most {
			return fmt.Sprintf("memory limit exceeded: rank %d had %s resident of %s", rank, sizeText(has), sizeText(most))
		}
	}
	return ""
}

func (r *localRun) diskOver(most int64) string {
	if most <= 0 {
		return ""
	}
	used, files := usage(r.scratch, r.launch.CheckpointDir, r.launch.OutputDir)
	switch {
	case files > maxFiles:
		return fmt.Sprintf("disk limit exceeded: more than %d files", maxFiles)
	case used > most:
		return fmt.Sprintf("disk limit exceeded: scratch, checkpoints and artefacts take %s of %s", sizeText(used), sizeText(most))
	}
	return ""
}

// exceeded reads a limit that the kernel held from how a member ended.
func (r *localRun) exceeded(e proc.Exit) string {
	l := r.launch.Job.Limits
	switch {
	case e.OOM:
		return fmt.Sprintf("memory limit exceeded: the kernel ended it at %s", sizeText(l.Memory))
	case e.Signal == syscall.SIGXFSZ:
		return fmt.Sprintf("disk limit exceeded: one file was to be larger than %s", sizeText(l.Disk))
	}
	return ""
}

// usage is what files below the folders take up on the disk, and how many they
// are; a look ends soon after maxFiles.
func usage(dirs ...string) (bytes int64, files int) {
	for _, dir := range dirs {
		if dir == "" {
			continue
		}
		_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error { // what cannot be read now is gone, or counted at the next look
			if err != nil {
				return nil
			}
			if files++; files > maxFiles {
				return fs.SkipAll
			}
			info, err := d.Info()
			if err != nil {
				return nil
			}
			if st, ok := info.Sys().(*syscall.Stat_t); ok && info.Mode().IsRegular() {
				bytes += st.Blocks * 512
			}
			return nil
		})
	}
	return bytes, files
}

// own gives a folder and what is in it to the user; links are not followed.
func own(dir string, u *proc.User) error {
	if u == nil || dir == "" {
		return nil
	}
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			err = os.Lchown(path, int(u.UID), int(u.GID))
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
}

// sizeText says bytes the way people do.
func sizeText(n int64) string {
	for _, u := range []struct {
		name string
		is   int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= u.is {
			return fmt.Sprintf("%.1f %s", float64(n)/float64(u.is), u.name)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}
