package jobs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"aloft/gpu"
)

// A job whose template allows it is suspended when its slice is wanted back: its
// processes leave the device with all they have and stand still, and go on when
// the job is given the same slice again. It is the first rung of the ladder, with
// a third of the grace; whatever stands in its way, the job is told to save as
// always, with what is left.
//
// To everybody else a suspended job is a queued one, and its record is that of
// one: when this process dies its processes die with it, and the job is where it
// would have been without them, at its last checkpoint. So what is kept while it
// stands still is time, never safety.

// suspender is a Run that can leave its device and come back.
type suspender interface {
	// Suspend returns when the processes have left the device, and how long they
	// may stay so. After an error they hold it still.
	Suspend(ctx context.Context) (time.Duration, error)
	// Resume returns when they go on, on the same device. After an error they are
	// of no use.
	Resume(ctx context.Context) error
}

// Suspension says of a queued job that its processes stand still, and where they
// can go on.
type Suspension struct {
	Slice     string
	At, Until time.Time // after Until they are ended
}

// holding is a run that is suspended; guarded by the run's lock.
type holding struct {
	slices []gpu.Slice
	over   bool          // somebody has decided what becomes of it
	end    chan struct{} // closed then
}

// held reports whether the run is suspended, or on its way back.
func (r *run) isHeld() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.held != nil
}

// settle makes the caller the one who decides what becomes of a suspended run;
// false = somebody else is, or it is not suspended.
func (r *run) settle() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held == nil || r.held.over {
		return false
	}
	r.held.over = true
	close(r.held.end)
	return true
}

var (
	errEnding = errors.New("the job is to end")
	// errNoSuspending is of an executor that suspends no jobs at all.
	errNoSuspending = errors.New("no job is suspended here")
)

// suspend tries to take the run off its slice and keep it. If it cannot, left is
// what remains of the grace.
func (m *Manager) suspend(ctx context.Context, j Job, r *run, grace time.Duration) (left time.Duration, ok bool) {
	t, _ := m.template(j.Template)
	s, can := r.exec.(suspender)
	if !t.Suspend || !can || j.State != Preempting || !j.Cancelling.IsZero() || !j.Pausing.IsZero() || m.isClosed() {
		return grace, false
	}
	began := time.Now()
	within, cancel := context.WithTimeout(ctx, grace/3)
	longest, err := s.Suspend(within)
	cancel()
	if err == nil {
		err = m.hold(ctx, j.ID, r, longest)
	}
	if err == nil {
		return 0, true
	}
	if errors.Is(err, errNoSuspending) { // that is no news
		return grace, false
	}
	m.remark(ctx, j.ID, LevelWarn, "not suspended, told to save instead: "+err.Error())
	return max(grace-time.Since(began), time.Millisecond), false
}

// hold stores that the run is suspended, and sees to it that it is not for ever.
func (m *Manager) hold(ctx context.Context, id string, r *run, longest time.Duration) error {
	now := time.Now()
	ran := r.ran(now)
	h := &holding{end: make(chan struct{})}
	r.mu.Lock()
	h.slices, r.held = r.lent, h // before it is stored: it may be given its slice at once
	r.mu.Unlock()
	j, err := m.update(ctx, id, func(j *Job) error {
		if j.State != Preempting || !j.Cancelling.IsZero() || !j.Pausing.IsZero() {
			return errEnding
		}
		r.freshen(j)
		j.Ran += ran
		j.Suspended = &Suspension{Slice: h.slices[0].ID, At: now, Until: now.Add(longest)}
		j.step(Queued, now)
		return nil
	})
	if err != nil {
		r.settle()
		r.mu.Lock()
		r.held = nil
		r.mu.Unlock()
		return err
	}
	m.endured(ran, false)
	m.work.Go(func() {
		late := time.NewTimer(longest)
		defer late.Stop()
		select {
		case <-late.C:
			if m.drop(j, r) {
				m.remark(context.WithoutCancel(ctx), id, LevelWarn, fmt.Sprintf("suspended for %v without its slice: ended", longest))
			}
		case <-h.end:
		case <-r.ended:
		}
	})
	return nil
}

// drop ends a suspended run: told to save, its grace, kill. Most programs cannot
// save without their device; those that can do.
func (m *Manager) drop(j Job, r *run) bool {
	if !r.settle() {
		return false
	}
	r.mu.Lock()
	r.asked = time.Time{}
	r.mu.Unlock()
	r.ask(time.Now())
	r.exec.Preempt(m.grace(j))
	return true
}

// takeUp gives a suspended job its slice back, and reports whether it goes on. On
// other slices it cannot: its processes are ended, and it starts from its last
// checkpoint, as it does when they fail to come back.
func (m *Manager) takeUp(ctx context.Context, id string, lent []gpu.Slice) (bool, error) {
	m.mu.Lock()
	r := m.runs[id]
	m.mu.Unlock()
	if r == nil || !r.isHeld() {
		return false, nil
	}
	j, err := m.Get(ctx, id)
	if err != nil {
		return false, err
	}
	switch {
	case !slices.Equal(lent, r.lent):
		if m.drop(j, r) {
			m.remark(ctx, id, LevelInfo, fmt.Sprintf("given %s, and not the slice on which it was suspended: goes on from its last checkpoint", lent[0].ID))
		}
	case r.settle():
		back, err := m.comeBack(ctx, id, r)
		if back || err != nil {
			return back, err
		}
	}
	select {
	case <-r.done:
		return false, nil
	case <-ctx.Done():
		return false, fmt.Errorf("start job %s: end what was suspended: %w", id, context.Cause(ctx))
	}
}

// comeBack lets a run go on that the caller has settled.
func (m *Manager) comeBack(ctx context.Context, id string, r *run) (bool, error) {
	store := context.WithoutCancel(ctx)
	j, err := m.update(store, id, func(j *Job) error {
		if !j.Waits() || j.Suspended == nil {
			return fmt.Errorf("start job %s: it is %s: %w", id, j.State, ErrConflict)
		}
		j.step(Starting, time.Now())
		j.Slices = []string{r.lent[0].ID}
		return nil
	})
	if err != nil {
		r.exec.Preempt(m.grace(j))
		return false, err
	}
	if err := r.exec.(suspender).Resume(ctx); err != nil {
		m.remark(store, id, LevelWarn, "not resumed, goes on from its last checkpoint: "+err.Error())
		r.exec.Preempt(0)
		return false, nil
	}
	r.mu.Lock()
	r.held, r.began, r.from, r.stopped, r.asked = nil, time.Now(), r.progress.Done, false, time.Time{}
	r.mu.Unlock()
	j, err = m.update(store, id, func(j *Job) error {
		j.step(Running, time.Now())
		r.freshen(j)
		return nil
	})
	if err != nil || !j.Cancelling.IsZero() || !j.Pausing.IsZero() { // as after any start
		r.exec.Preempt(m.grace(j))
	}
	return true, err
}

func (m *Manager) remark(ctx context.Context, id, level, words string) {
	if err := m.AddEvent(ctx, id, Event{Level: level, Kind: "suspend", Message: words}); err != nil {
		m.log.Warn("event not stored", "job", id, "error", err)
	}
}

func (m *Manager) isClosed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.closed
}
