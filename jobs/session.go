package jobs

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// Sessions bounds interactive jobs. Zero durations and numbers take the default named.
type Sessions struct {
	Idle      time.Duration // of a session that says nothing; 20 min
	MostIdle  time.Duration // the longest that may be asked for; 4 h
	Warn      time.Duration // warned so long before it ends; 2 min, at most half of what it warns of
	Life      time.Duration // the longest that a session runs, however busy; 12 h
	PerTenant int           // unfinished sessions of a tenant, more are refused; 4
}

// Validate checks that no bound is negative, and that what nobody asks for may be.
func (s Sessions) Validate() error {
	switch {
	case s.Idle < 0 || s.MostIdle < 0 || s.Warn < 0 || s.Life < 0 || s.PerTenant < 0:
		return fmt.Errorf("a bound of sessions is negative: %+v", s)
	case s.MostIdle > 0 && s.withDefaults().Idle > s.MostIdle:
		return fmt.Errorf("sessions that say nothing are idle for %v, at most %v may be asked for", s.withDefaults().Idle, s.MostIdle)
	}
	return nil
}

func (s Sessions) withDefaults() Sessions {
	setDefault(&s.Idle, 20*time.Minute)
	setDefault(&s.MostIdle, max(4*time.Hour, s.Idle))
	setDefault(&s.Warn, 2*time.Minute)
	setDefault(&s.Life, 12*time.Hour)
	setDefault(&s.PerTenant, 4)
	return s
}

// Session is what an interactive job adds.
type Session struct {
	Idle   time.Duration // reclaimed after so long without activity; 0 = the server's default
	Life   time.Duration // the longest that it runs, however busy; 0 = the server's bound
	Active time.Time     // when somebody last used it
	Warned time.Time     // when it was told that it will be reclaimed; zero = it is not idle
	Ends   time.Time     // when it ends if nobody uses it; zero = it does not run
	Yields bool          // other jobs may take its slice also while it is used
}

// SessionTerms are what a template of kind session says; zero = Options.Sessions.
type SessionTerms struct {
	Idle   time.Duration // of its sessions that say nothing
	Life   time.Duration // the longest that they run
	Yields bool          // other jobs may take their slices also while they are used
}

// fillSession completes and bounds what a session asks for.
func (m *Manager) fillSession(ctx context.Context, j *Job) error {
	if j.Kind != KindSession {
		if j.Session != nil {
			return invalid("kind", "idle_seconds and longest_seconds are for sessions, this is %s", j.Kind)
		}
		return nil
	}
	o := m.opt.Sessions
	s, t := Session{}, SessionTerms{}
	if j.Session != nil {
		s = Session{Idle: j.Session.Idle, Life: j.Session.Life}
	}
	if j.Template != "" {
		found, _ := m.template(j.Template)
		t = found.Session
	}
	setDefault(&s.Idle, cmp.Or(t.Idle, o.Idle))
	setDefault(&s.Life, cmp.Or(t.Life, o.Life))
	o.MostIdle, o.Life = max(o.MostIdle, t.Idle), cmp.Or(t.Life, o.Life)
	s.Yields = t.Yields
	switch {
	case s.Idle < 0 || s.Idle > o.MostIdle:
		return invalid("idle_seconds", "%v is not from 0 to %v", s.Idle.Seconds(), o.MostIdle.Seconds())
	case s.Life < 0 || s.Life > o.Life:
		return invalid("longest_seconds", "%v is not from 0 to %v", s.Life.Seconds(), o.Life.Seconds())
	case j.MaxWidth > 1:
		return invalid("max_width", "a session has one slice, %d are asked for", j.MaxWidth)
	case j.Retries > 0:
		return invalid("retries", "a session is not run again by itself")
	}
	j.Session = &s
	open, err := m.opt.Store.List(ctx, Filter{Tenant: j.Tenant, Kind: KindSession, States: Unfinished(), Limit: o.PerTenant})
	if err != nil {
		return fmt.Errorf("count sessions: %w", err)
	}
	if len(open) >= o.PerTenant {
		return fmt.Errorf("%d sessions are open, at most %d: end one first: %w", len(open), o.PerTenant, ErrConflict)
	}
	return nil
}

// due is what is to be done about a session now.
type due int

const (
	active  due = iota // nothing
	warn               // tell it that it ends
	reclaim            // end it
)

// use is since when a session runs, and when it was last used.
type use struct{ began, last time.Time }

// idleness decides about a session that is warned so long before its end. ends is
// when it is reclaimed if nobody uses it, look when to decide again.
func idleness(s Session, u use, now time.Time, lead time.Duration) (v due, ends, look time.Time) {
	idle, life := latest(u.last, u.began).Add(s.Idle), u.began.Add(s.Life)
	ends, lead = idle, min(lead, s.Idle/2)
	if life.Before(idle) {
		ends, lead = life, min(lead, s.Life/2)
	}
	warned := ends.Add(-lead)
	switch {
	case !now.Before(ends):
		return reclaim, ends, time.Time{}
	case !now.Before(warned):
		return warn, ends, ends
	}
	return active, ends, warned
}

// sessionWords says why a session ends at ends.
func sessionWords(s Session, began, ends time.Time) string {
	if !ends.Before(began.Add(s.Life)) {
		return fmt.Sprintf("it has run for %v, the longest it may", s.Life)
	}
	return fmt.Sprintf("nobody used it for %v", s.Idle)
}

// lookAgain bounds the time between two looks at a session: somebody may have
// used it after a warning, and the record should then say so.
const lookAgain = time.Second

// mind warns and reclaims an idle session, until its run is over or told to stop.
func (m *Manager) mind(ctx context.Context, j Job, r *run) {
	s, warned := *j.Session, false
	r.mu.Lock()
	began := r.began
	r.mu.Unlock()
	for {
		last := r.used()
		v, ends, look := idleness(s, use{began, last}, time.Now(), m.opt.Sessions.Warn)
		why := sessionWords(s, began, ends)
		switch {
		case v == reclaim:
			m.reclaimSession(ctx, j, r, why)
			return
		case v == warn && !warned:
			left := time.Until(ends).Round(time.Second)
			m.tell(ctx, j.ID, r, fmt.Sprintf("this session ends in %v: %s", left, why))
		}
		if (v == warn) != warned {
			warned = v == warn
			at := time.Time{}
			if warned {
				at = time.Now()
			}
			_, err := m.update(ctx, j.ID, func(j *Job) error {
				own := *j.Session
				own.Active, own.Warned = last, at
				j.Session = &own
				return nil
			})
			if err != nil {
				m.log.Warn("warning of session not stored", "job", j.ID, "error", err)
			}
		}
		wait := time.Until(look)
		if warned {
			wait = min(wait, lookAgain)
		}
		timer := time.NewTimer(max(wait, time.Millisecond))
		select {
		case <-timer.C:
		case <-r.ended:
			timer.Stop()
			return
		}
	}
}

// tell writes words into the session's terminal and its events.
func (m *Manager) tell(ctx context.Context, id string, r *run, words string) {
	if t := r.terminal(); t != nil {
		t.Notice(words)
	}
	if err := m.AddEvent(ctx, id, Event{Level: LevelWarn, Kind: "session", Message: words}); err != nil {
		m.log.Warn("event of session not stored", "job", id, "error", err)
	}
}

// reclaimSession ends the session for the reason.
func (m *Manager) reclaimSession(ctx context.Context, j Job, r *run, why string) {
	r.over(why)
	m.tell(ctx, j.ID, r, "this session ends: "+why)
	r.exec.Preempt(m.grace(j))
}

// sessionGrace gives a session whose slice serving wants back three quarters of
// its grace to be used as before, and returns what is left.
func (m *Manager) sessionGrace(ctx context.Context, j Job, r *run, grace time.Duration) time.Duration {
	const why = "its slice was wanted back"
	if m.base.Err() != nil {
		r.over("the server was stopped")
		m.tell(ctx, j.ID, r, "this session ends: the server stops")
		return grace
	}
	r.over(why)
	left := grace * 3 / 4
	m.tell(ctx, j.ID, r, fmt.Sprintf("this session ends in %v: %s; save what you need", left.Round(time.Second), why))
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.ended:
	case <-m.base.Done():
	case <-ctx.Done():
	}
	return grace - left
}

// over notes why the session ends; the first reason counts.
func (r *run) over(why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.why = cmp.Or(r.why, why)
}

func (r *run) whyOver() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.why
}

// used is when the session was last used.
func (r *run) used() time.Time {
	r.mu.Lock()
	last := r.touched
	r.mu.Unlock()
	if t := r.terminal(); t != nil {
		last = latest(last, t.Active())
	}
	return last
}

// terminal is the run's, if it has one.
func (r *run) terminal() *Terminal {
	select {
	case <-r.started:
	default:
		return nil
	}
	if t, ok := r.exec.(interface{ Terminal() *Terminal }); ok {
		return t.Terminal()
	}
	return nil
}

// sessionOutcome is outcome for a session that was told to end: that it is over
// is no failure, and it is not run again.
func sessionOutcome(to State, why, over string) (State, string) {
	if over == "" || slices.Contains([]State{Cancelled, Paused}, to) {
		return to, why
	}
	return Expired, over
}

// begun notes that the session has a new run.
func (s *Session) begun(now time.Time) *Session {
	own := *s
	own.Active, own.Warned = now, time.Time{}
	return &own
}

// freshenSession shows the session as it is now.
func (m *Manager) freshenSession(j *Job, r *run) {
	if j.Session == nil || j.State != Running {
		return
	}
	own := *j.Session
	own.Active = latest(own.Active, r.used())
	r.mu.Lock()
	began := r.began
	r.mu.Unlock()
	_, own.Ends, _ = idleness(own, use{began, own.Active}, time.Now(), m.opt.Sessions.Warn)
	own.Active = latest(own.Active, began)
	j.Session = &own
}

// Terminal returns the terminal of a running session. ErrConflict if it does not
// run now, ErrFinished if it has ended.
func (m *Manager) Terminal(ctx context.Context, id string) (*Terminal, error) {
	m.mu.Lock()
	r := m.runs[id]
	m.mu.Unlock()
	j, err := m.Get(ctx, id)
	switch {
	case err != nil:
		return nil, err
	case j.Kind != KindSession:
		return nil, invalid("id", "%s is no session", id)
	case j.State.Terminal(): // its run may not be forgotten yet
		return nil, fmt.Errorf("session %s has %s: %w", id, j.State, ErrFinished)
	}
	if r != nil {
		if t := r.terminal(); t != nil {
			return t, nil
		}
	}
	return nil, fmt.Errorf("session %s is %s: %w", id, j.State, ErrConflict)
}

// Heartbeat notes that somebody uses the session.
func (m *Manager) Heartbeat(ctx context.Context, id string) error {
	t, err := m.Terminal(ctx, id)
	if err == nil {
		t.touch()
	}
	return err
}
