package jobs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
)

// agenda is what the clock has to look after: the unfinished jobs that wait for
// a moment or depend on others. The records are the truth; this is an index of
// them, made at Open and kept with every stored change.
type agenda struct {
	entries map[string]entry
	going   map[string]bool // finished jobs that are being removed: nothing may begin to depend on them
	ended   map[string]bool // jobs that ended since the clock last looked
	wake    chan struct{}   // the clock is to look again
}

// entry is one job of the agenda.
type entry struct {
	deps []string
	at   time.Time // when to look at it; zero = when one that it depends on ends
}

func newAgenda() agenda {
	return agenda{entries: map[string]entry{}, going: map[string]bool{}, ended: map[string]bool{}, wake: make(chan struct{}, 1)}
}

// idle reports whether a job in this state waits for a slice, a time or its user.
func (s State) idle() bool { return s == Waiting || s == Queued || s == Paused }

// entryOf is what the agenda keeps of a job; false = nothing.
func entryOf(j Job, now time.Time) (entry, bool) {
	if j.State.Terminal() {
		return entry{}, false
	}
	e := entry{deps: j.DependsOn}
	soonest := func(t time.Time) {
		if !t.IsZero() && (e.at.IsZero() || t.Before(e.at)) {
			e.at = t
		}
	}
	if j.State.idle() && j.Started.IsZero() {
		soonest(j.Deadline)
	}
	if j.State == Waiting {
		for _, t := range []time.Time{j.NotBefore, j.RetryAt} {
			if t.After(now) { // what is past does not stand in its way
				soonest(t)
			}
		}
	}
	return e, len(e.deps) > 0 || !e.at.IsZero()
}

// settled decides where a job that waits belongs now. states are those of the
// jobs that it depends on; "" = there is no such job any more.
func settled(j Job, states map[string]State, now time.Time) (State, string) {
	if !j.State.idle() {
		return j.State, ""
	}
	if !j.Deadline.IsZero() && j.Started.IsZero() && !now.Before(j.Deadline) {
		return Expired, "it had not started by its deadline, " + j.Deadline.UTC().Format(time.RFC3339)
	}
	open := []string{}
	for _, id := range j.DependsOn {
		switch s := states[id]; {
		case s == "":
			return Failed, fmt.Sprintf("depends on %s, which is not there any more", id)
		case !s.Terminal():
			open = append(open, id)
		case s != Succeeded:
			return Failed, fmt.Sprintf("depends on %s, which has %s", id, endedAs(s))
		}
	}
	switch {
	case j.State != Waiting:
		return j.State, ""
	case len(open) == 1:
		return Waiting, "for job " + open[0]
	case len(open) > 1:
		return Waiting, fmt.Sprintf("for job %s and %d more", open[0], len(open)-1)
	case j.RetryAt.After(now):
		return Waiting, j.Why
	case j.NotBefore.After(now):
		return Waiting, "for " + j.NotBefore.UTC().Format(time.RFC3339)
	}
	return Queued, ""
}

func endedAs(s State) string {
	if s == Cancelled {
		return "been cancelled"
	}
	return string(s)
}

// endless returns the jobs that can never start because each waits for itself,
// directly or through others. deps holds the unfinished jobs.
func endless(deps map[string][]string) []string {
	waits := map[string]int{}       // unfinished jobs that it depends on
	behind := map[string][]string{} // jobs that depend on it
	var free []string
	for id, list := range deps {
		for _, on := range list {
			if _, unfinished := deps[on]; unfinished {
				waits[id]++
				behind[on] = append(behind[on], id)
			}
		}
		if waits[id] == 0 {
			free = append(free, id)
		}
	}
	for len(free) > 0 {
		id := free[len(free)-1]
		free = free[:len(free)-1]
		for _, next := range behind[id] {
			if waits[next]--; waits[next] == 0 {
				free = append(free, next)
			}
		}
	}
	maps.DeleteFunc(waits, func(_ string, n int) bool { return n == 0 })
	return slices.Sorted(maps.Keys(waits))
}

// note keeps the agenda up with a stored job, which was looked at now. A job that
// has come to wait is looked at once more: what it waits for may have come to
// pass before it was entered here.
func (m *Manager) note(j Job, now time.Time, fresh bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, wanted := entryOf(j, now)
	if fresh && j.State == Waiting {
		e.at, wanted = now, true
	}
	if wanted {
		m.agenda.entries[j.ID] = e
	} else {
		delete(m.agenda.entries, j.ID)
	}
	if j.State.Terminal() {
		m.agenda.ended[j.ID] = true
	}
	if j.State.Terminal() || !e.at.IsZero() {
		m.agenda.look()
	}
}

// look asks the clock to look again.
func (a *agenda) look() {
	select {
	case a.wake <- struct{}{}:
	default: // it has been asked already
	}
}

// due takes the ids that are to be looked at now, and tells when the next are.
func (a *agenda) due(now time.Time) (ids []string, next time.Time) {
	for id, e := range a.entries {
		touched := slices.ContainsFunc(e.deps, func(on string) bool { return a.ended[on] })
		switch {
		case touched || !e.at.IsZero() && !e.at.After(now):
			ids = append(ids, id)
		case !e.at.IsZero() && (next.IsZero() || e.at.Before(next)):
			next = e.at
		}
	}
	clear(a.ended)
	slices.Sort(ids) // oldest first
	return ids, next
}

// depended reports whether an unfinished job depends on id.
func (a *agenda) depended(id string) bool {
	for _, e := range a.entries {
		if slices.Contains(e.deps, id) {
			return true
		}
	}
	return false
}

// standing loads what j depends on and decides where it belongs.
func (m *Manager) standing(ctx context.Context, j Job, now time.Time) (State, string, error) {
	states := make(map[string]State, len(j.DependsOn))
	for _, id := range j.DependsOn {
		on, err := m.opt.Store.Get(ctx, id)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return "", "", fmt.Errorf("job %s depends on %s: %w", j.ID, id, err)
		}
		states[id] = on.State
	}
	to, why := settled(j, states, now)
	return to, why, nil
}

// settle moves a job of the agenda to where it belongs now.
func (m *Manager) settle(ctx context.Context, id string) error {
	var now time.Time
	j, err := m.update(ctx, id, func(j *Job) error {
		now = time.Now()
		to, why, err := m.standing(ctx, *j, now)
		switch {
		case err != nil:
			return err
		case to == j.State && (to != Waiting || why == j.Why):
			return errUnchanged
		case to == Waiting:
			j.Why = why
			return nil
		}
		j.step(to, now)
		if to == Failed || to == Expired {
			j.Error = why
		}
		return nil
	})
	if err == nil {
		m.note(j, now, false) // what was due is not due again
	}
	return err
}

// settleAgain is the pause before what could not be settled is tried again.
const settleAgain = 5 * time.Second

// settleDue settles what is due, and tells when the next is; zero = nothing is.
func (m *Manager) settleDue(ctx context.Context) time.Time {
	m.mu.Lock()
	ids, next := m.agenda.due(time.Now())
	m.mu.Unlock()
	for _, id := range ids {
		err := m.settle(ctx, id)
		if err == nil || ctx.Err() != nil {
			continue
		}
		m.mu.Lock()
		if e, ok := m.agenda.entries[id]; ok && !errors.Is(err, ErrNotFound) {
			e.at = time.Now().Add(settleAgain)
			m.agenda.entries[id] = e
			next = e.at // at the latest; what comes sooner is found then
		} else {
			delete(m.agenda.entries, id)
		}
		m.mu.Unlock()
		m.log.Warn("waiting job not looked at", "job", id, "error", err)
	}
	if len(ids) > 0 { // they may have given others something to do, or wait for a later moment
		m.mu.Lock()
		m.agenda.look()
		m.mu.Unlock()
	}
	return next
}

// openAgenda enters what an earlier life left, all of it due at once: anything
// may have passed meanwhile. What can never start ends here.
func (m *Manager) openAgenda(ctx context.Context, left []Job) error {
	now, deps := time.Now(), map[string][]string{}
	m.mu.Lock()
	for _, j := range left {
		deps[j.ID] = j.DependsOn
		if e, wanted := entryOf(j, now); wanted || j.State == Waiting {
			e.at = now
			m.agenda.entries[j.ID] = e
		}
	}
	m.mu.Unlock()
	for _, id := range endless(deps) {
		_, err := m.update(ctx, id, func(j *Job) error {
			if !j.State.idle() {
				return errUnchanged
			}
			j.step(Failed, now)
			j.Error = "depends on itself through " + fmt.Sprint(j.DependsOn)
			return nil
		})
		if err != nil {
			return fmt.Errorf("jobs: end a circle: %w", err)
		}
	}
	return nil
}
