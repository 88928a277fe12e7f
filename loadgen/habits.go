package loadgen

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// classes are what x-aloft-priority may say.
var classes = []string{"interactive", "standard", "offline"}

// maxTenants bounds the tenants of a workload: each has histograms of its own.
const maxTenants = 256

// validateClients checks who sends the requests, and how they behave.
func (w Workload) validateClients() error {
	if len(w.Tenants) > maxTenants {
		return fmt.Errorf("tenants has %d entries, want at most %d", len(w.Tenants), maxTenants)
	}
	seen := map[string]bool{}
	for i, t := range w.Tenants {
		if t.Name == "" {
			return fmt.Errorf("tenants: number %d has no name", i+1)
		}
		if seen[t.Name] {
			return fmt.Errorf("tenants: two are called %q", t.Name)
		}
		seen[t.Name] = true
		if err := t.validate(w); err != nil {
			return fmt.Errorf("tenant %q: %w", t.Name, err)
		}
	}
	if w.Clients != 0 && (w.Sessions != nil || w.Retry != nil || w.Tenants != nil) {
		// What follows an answer is the loop's own next request there, of no
		// tenant that a plan says.
		return errors.New("sessions, retry and tenants do not go with clients")
	}
	if err := w.Sessions.validate(w); err != nil {
		return err
	}
	if err := w.Abandon.validate(w); err != nil {
		return err
	}
	return w.Retry.validate()
}

func (t Tenant) validate(w Workload) error {
	switch {
	case !(t.Share > 0 && t.Share <= 1e6):
		return fmt.Errorf("share is %v, want more than 0", t.Share)
	case t.Class != "" && !slices.Contains(classes, t.Class):
		return fmt.Errorf("class is %q, want one of %q", t.Class, classes)
	case t.Deadline != 0 && (t.Deadline < time.Millisecond || t.Deadline > maxTimeout):
		return fmt.Errorf("deadline is %v, want 1ms to %v", t.Deadline, maxTimeout)
	case t.Goal != nil:
		w.Goal = *t.Goal
		return w.validateGoal()
	}
	return nil
}

func (s *Sessions) validate(w Workload) error {
	if s == nil {
		return nil
	}
	if err := s.Turns.Validate(); err != nil {
		return fmt.Errorf("sessions.turns: %w", err)
	}
	switch {
	case w.Kind != Chat && w.Kind != Responses:
		return fmt.Errorf("sessions belong to %s and %s, not to %s", Chat, Responses, w.Kind)
	case w.Requests != "":
		return errors.New("sessions do not go with requests: whole bodies have no next turn")
	case s.Think < 0 || s.Think > maxTimeout:
		return fmt.Errorf("sessions.think is %v, want 0 to %v", s.Think, maxTimeout)
	case s.Most < 0 || s.Most > maxTimeout:
		return fmt.Errorf("sessions.most_think is %v, want 0 to %v", s.Most, maxTimeout)
	case s.Most != 0 && s.Most < s.Think:
		return fmt.Errorf("sessions.most_think is %v, below their mean of %v", s.Most, s.Think)
	}
	return nil
}

func (a *Abandon) validate(w Workload) error {
	switch {
	case a == nil:
		return nil
	case !(a.Share > 0 && a.Share <= 1):
		return fmt.Errorf("abandon.share is %v, want more than 0 and at most 1", a.Share)
	case a.After < 0 || a.After > maxTimeout:
		return fmt.Errorf("abandon.after is %v, want 0 to %v", a.After, maxTimeout)
	case a.After > 0:
		return nil
	}
	for tenant := range max(1, len(w.Tenants)) {
		if w.goal(tenant).Target == 0 {
			return errors.New("abandon.after is missing: without it clients leave at the target, and not all have one")
		}
	}
	return nil
}

func (r *Retry) validate() error {
	switch {
	case r == nil:
		return nil
	case r.Most < 1 || r.Most > maxRetries:
		return fmt.Errorf("retry.most is %d, want 1 to %d", r.Most, maxRetries)
	case r.Base != 0 && (r.Base < time.Millisecond || r.Base > maxPause):
		return fmt.Errorf("retry.base is %v, want 1ms to %v, or 0 for %v", r.Base, maxPause, defaultBase)
	case !(r.Jitter >= 0 && r.Jitter <= 1):
		return fmt.Errorf("retry.jitter is %v, want 0 to 1", r.Jitter)
	}
	return nil
}

// validateGoal checks what a good request may take.
func (w Workload) validateGoal() error {
	for _, v := range []struct {
		key string
		d   time.Duration
	}{{"target", w.Target}, {"ttft_target", w.TTFTTarget}, {"tpot_target", w.TPOTTarget}, {"smooth_target", w.Smooth},
		{"ttfb_target", w.TTFBTarget}, {"role_target", w.RoleTarget}, {"visible_target", w.VisibleTarget},
		{"itl_target", w.ITLTarget}, {"gap_target", w.GapTarget}} {
		if v.d < 0 || v.d > maxTimeout {
			return fmt.Errorf("%s is %v, want 0 to %v", v.key, v.d, maxTimeout)
		}
	}
	if w.Target > cmp.Or(w.Timeout, defaultTimeout) {
		return fmt.Errorf("target %v is above timeout %v: no request could ever be late", w.Target, cmp.Or(w.Timeout, defaultTimeout))
	}
	ofStreams := w.Goal
	ofStreams.Target, ofStreams.TTFBTarget = 0, 0
	if ofStreams != (Goal{}) && !w.Stream {
		return errors.New("ttft_target, tpot_target, smooth_target, role_target, visible_target, itl_target and gap_target need stream: true")
	}
	return nil
}
