package jobs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"
)

// Schedule makes jobs of a template again and again.
type Schedule struct {
	Name     string
	Spec     string // the line that Next was made of: when it changes, the next run is computed anew
	Template string
	Params   map[string]string
	Tenant   string
	Overlap  bool                            // a run may begin while the one before is unfinished
	Next     func(after time.Time) time.Time // the first moment after; zero = never again
}

// ScheduleState is where a schedule stands, kept so that a restart neither
// repeats nor forgets a run.
type ScheduleState struct {
	Name string
	Spec string    // the Spec that Next was computed of
	Next time.Time // the next run; in the past = it was missed; zero = never again
	Last string    // id of the newest job it made, "" = none
}

// maxSchedules bounds what the clock looks at.
const maxSchedules = 1000

// validSchedules checks schedules against the templates that they name.
func validSchedules(list []Schedule, templates map[string]Template) error {
	if len(list) > maxSchedules {
		return fmt.Errorf("%d schedules, at most %d", len(list), maxSchedules)
	}
	names := map[string]bool{}
	for _, s := range list {
		t, known := templates[s.Template]
		switch {
		case s.Name == "" || len(s.Name) > maxNameLen/2:
			return fmt.Errorf("schedule %q: want a name of at most %d bytes", s.Name, maxNameLen/2)
		case names[s.Name]:
			return fmt.Errorf("schedule %q is there twice", s.Name)
		case s.Next == nil:
			return fmt.Errorf("schedule %q has no times", s.Name)
		case !known:
			return fmt.Errorf("schedule %q: there is no template %q", s.Name, s.Template)
		}
		if _, err := t.fill(s.Params, nil); err != nil {
			return fmt.Errorf("schedule %q: %w", s.Name, err)
		}
		names[s.Name] = true
	}
	return nil
}

// CheckSchedules says whether a manager with the templates takes the schedules.
func CheckSchedules(list []Schedule, templates []Template) error {
	return validSchedules(list, byName(templates))
}

// SetSchedules replaces the schedules. One that is known by name and Spec goes
// on where it stands; after an error nothing has changed.
func (m *Manager) SetSchedules(list []Schedule) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := validSchedules(list, m.templates); err != nil {
		return err
	}
	m.schedules = list
	m.agenda.look()
	return nil
}

// decide tells whether a schedule that stands at st makes a job now, and where
// it stands then. However many runs were missed, one makes up for them.
func (s Schedule) decide(st ScheduleState, now time.Time) (run bool, after ScheduleState) {
	if st.Spec != s.Spec || st.Name != s.Name { // new, or for other times
		return false, ScheduleState{Name: s.Name, Spec: s.Spec, Next: s.Next(now), Last: st.Last}
	}
	if st.Next.IsZero() || now.Before(st.Next) {
		return false, st
	}
	after = st
	after.Next = s.Next(now)
	return true, after
}

// tick makes the jobs of schedules that are due, and tells when the next is; zero
// = none is. Standings are read when the first schedule is looked at; those of
// schedules that are gone are forgotten.
func (m *Manager) tick(ctx context.Context, now time.Time) (next time.Time) {
	m.mu.Lock()
	list := m.schedules
	m.mu.Unlock()
	if len(list) == 0 && m.standings == nil {
		return next
	}
	again := now.Add(sweepEvery) // when the store fails
	if m.standings == nil {
		stored, err := m.opt.Store.Schedules(ctx)
		if err != nil {
			m.log.Warn("schedules not read", "error", err)
			return again
		}
		m.standings = map[string]ScheduleState{}
		for _, st := range stored {
			m.standings[st.Name] = st
		}
	}
	gone := maps.Clone(m.standings)
	for _, s := range list {
		delete(gone, s.Name)
		at, err := m.tickOne(ctx, s, now)
		if err != nil && ctx.Err() == nil {
			m.log.Warn("schedule not run", "schedule", s.Name, "error", err)
			at = again
		}
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	for name := range gone {
		if err := m.opt.Store.DeleteSchedule(ctx, name); err == nil {
			delete(m.standings, name)
		}
	}
	return next
}

// tickOne moves one schedule on, and returns its next moment. The job is made
// before the standing is stored: its key makes it the same job if that fails.
func (m *Manager) tickOne(ctx context.Context, s Schedule, now time.Time) (time.Time, error) {
	was := m.standings[s.Name]
	run, st := s.decide(was, now)
	if run && !s.Overlap && was.Last != "" {
		last, err := m.opt.Store.Get(ctx, was.Last)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return time.Time{}, err
		}
		if err == nil && !last.State.Terminal() {
			run = false
			words := fmt.Sprintf("its schedule's run of %s was left out: this one is unfinished", was.Next.UTC().Format(time.RFC3339))
			if err := m.AddEvent(ctx, last.ID, Event{Level: LevelWarn, Kind: "schedule", Message: words}); err != nil {
				return time.Time{}, err
			}
		}
	}
	if run {
		j, err := m.Submit(ctx, Job{Tenant: s.Tenant, Template: s.Template, Params: s.Params, Terms: Terms{
			Name: s.Name, Schedule: s.Name, Idempotency: fmt.Sprintf("schedule %s %d", s.Name, was.Next.UnixMilli()), // with spaces: no user's key has any
		}})
		var bad *InvalidError
		switch {
		case err == nil:
			st.Last = j.ID
			if j.Times.Created.Before(now) { // made before the server stopped: runs missed since are due yet
				st.Next = s.Next(was.Next)
			}
		case errors.As(err, &bad) || errors.Is(err, ErrConflict): // it would be the same in a minute
			m.log.Error("schedule cannot make its job", "schedule", s.Name, "error", err)
		default:
			return time.Time{}, err
		}
	}
	if st != was {
		if err := m.opt.Store.PutSchedule(ctx, st); err != nil {
			return time.Time{}, err
		}
		m.standings[s.Name] = st
	}
	return st.Next, nil
}
