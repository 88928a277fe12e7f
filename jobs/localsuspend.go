//go:build linux

package jobs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"aloft/gpu"
	"aloft/gpu/proc"
)

// Suspending lets Local suspend jobs. What they had on their devices lies in this
// machine's memory meanwhile, so that is what bounds them.
type Suspending struct {
	Tool    proc.Checkpointer
	Memory  int64         // bytes that all suspended jobs together may have resident
	Longest time.Duration // that one stays so
	// Used is what is in use of a slice's memory now; nil = all of it is.
	Used func(context.Context, gpu.Slice) (int64, error)

	mu  sync.Mutex
	has int64 // resident of those that are suspended
}

// Validate says which bound is missing.
func (s *Suspending) Validate() error {
	switch {
	case s.Tool.Program == "":
		return errors.New("no program given")
	case s.Memory <= 0:
		return fmt.Errorf("memory is %d bytes, want more than 0", s.Memory)
	case s.Longest <= 0:
		return fmt.Errorf("longest is %v, want more than 0", s.Longest)
	}
	return nil
}

// wish is a run that is to be suspended.
type wish struct {
	slices   []gpu.Slice
	device   int64 // bytes that it has on the device, at most
	resident int64 // that it has in this machine's memory already
	limit    int64 // of the job's memory; 0 = none
}

// refusal says why a run is not even tried to suspend; free is what the machine
// has of memory, has and most are what suspended jobs have and may have.
func (w wish) refusal(free, has, most int64) error {
	switch {
	case len(w.slices) != 1:
		return fmt.Errorf("it runs on %d slices, and programs that share device memory or talk between devices cannot be suspended", len(w.slices))
	case w.slices[0].Shape.Profile != gpu.Full:
		return fmt.Errorf("%s is a MIG instance, off which the driver cannot suspend", w.slices[0].ID)
	case w.limit > 0 && w.resident+w.device > w.limit:
		return fmt.Errorf("its memory limit of %s would not hold what it has, %s, and the device's %s", sizeText(w.limit), sizeText(w.resident), sizeText(w.device))
	case has+w.resident+w.device > most:
		return fmt.Errorf("suspended jobs have %s of at most %s, it would add %s", sizeText(has), sizeText(most), sizeText(w.resident+w.device))
	case w.device > free:
		return fmt.Errorf("this machine has %s of memory available, the device's are %s", sizeText(free), sizeText(w.device))
	}
	return nil
}

// Suspend implements suspender.
func (r *localRun) Suspend(ctx context.Context) (time.Duration, error) {
	s := r.suspending
	if s == nil {
		return 0, errNoSuspending
	}
	w := wish{slices: r.launch.Slices, limit: r.launch.Job.Limits.Memory}
	for _, p := range r.members {
		w.resident += p.Memory()
	}
	w.device = w.slices[0].Shape.Bytes
	if s.Used != nil {
		used, err := s.Used(ctx, w.slices[0])
		if err != nil {
			return 0, fmt.Errorf("read what it has on the device: %w", err)
		}
		w.device = used
	}
	free, err := available()
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	if err = w.refusal(free, s.has, s.Memory); err == nil {
		s.has += w.resident + w.device
	}
	s.mu.Unlock()
	if err != nil {
		return 0, err
	}
	away, err := s.Tool.Suspend(ctx, r.members[0])
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		s.give(w.resident + w.device)
		return 0, err
	}
	r.away, r.charge, r.awaySince = away, w.resident+w.device, time.Now()
	return s.Longest, nil
}

// Resume implements suspender.
func (r *localRun) Resume(ctx context.Context) error {
	r.mu.Lock()
	away := r.away
	r.mu.Unlock()
	if away == nil {
		return errors.New("it is not suspended")
	}
	err := away.Resume(ctx)
	if err == nil {
		r.returned(time.Now())
	}
	return err
}

// returned ends what a suspension has: the memory counted for it, and the time.
func (r *localRun) returned(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.away == nil {
		return
	}
	r.suspending.give(r.charge)
	r.awayFor += now.Sub(r.awaySince)
	r.away, r.charge = nil, 0
}

// wasAway is how long the run has stood still so far.
func (r *localRun) wasAway(now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.away != nil {
		return r.awayFor + now.Sub(r.awaySince)
	}
	return r.awayFor
}

func (s *Suspending) give(bytes int64) {
	s.mu.Lock()
	s.has -= bytes
	s.mu.Unlock()
}

// available is how much memory this machine could give away, in bytes.
func available() (int64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("read how much memory is available: %w", err)
	}
	_, rest, _ := bytes.Cut(text, []byte("MemAvailable:"))
	f := bytes.Fields(rest)
	if len(f) == 0 {
		return 0, errors.New("read how much memory is available: /proc/meminfo does not say")
	}
	kib, err := strconv.ParseInt(string(f[0]), 10, 64)
	return kib << 10, err
}
