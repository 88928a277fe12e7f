package jobs

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// The bounds of what a job may ask for.
const (
	maxDepends = 32
	maxRetries = 10
	maxKeepFor = 366 * 24 * time.Hour
	maxAhead   = 366 * 24 * time.Hour // of a start or deadline
	maxCPUs    = 4096
	maxNameLen = 256 // bytes, of names and idempotency keys
)

// Submit stores a job and only then answers. Template fills in what j leaves
// out and bounds the rest; without one j.Command is run as it is: whether the
// user may do so is the caller's question. Batches come in through CreateBatch.
//
// A key that the tenant has used answers with the job that it made, whatever has
// become of it; ErrConflict if that was asked for in other words.
func (m *Manager) Submit(ctx context.Context, j Job) (Job, error) {
	request := j
	request.Idempotency = ""
	j.Asked = digest(request)
	if old, err := m.madeWith(ctx, j); old.ID != "" || err != nil {
		return old, err
	}
	return m.submit(ctx, j)
}

// submit makes the job of a request that j.Asked tells from others.
func (m *Manager) submit(ctx context.Context, j Job) (Job, error) {
	now := time.Now()
	if err := m.fill(&j); err != nil {
		return Job{}, err
	}
	if err := j.validate(now); err != nil {
		return Job{}, err
	}
	if j.Kind == KindSession {
		m.entering.Lock()
		defer m.entering.Unlock()
	}
	if err := m.fillSession(ctx, &j); err != nil {
		return Job{}, err
	}
	prefix := "job_"
	if j.FineTune != nil {
		prefix = tunePrefix
	}
	j = Job{ // what remains is ours to set
		ID: newID(prefix, now), State: Queued, Times: Times{Created: now},
		Tenant: j.Tenant, Template: j.Template, Params: j.Params, Kind: j.Kind, Model: j.Model,
		Shape: j.Shape, MinWidth: j.MinWidth, MaxWidth: j.MaxWidth, Priority: j.Priority,
		Grace: j.Grace, Command: j.Command, Terms: j.Terms,
	}
	j.SavesIn = strings.Replace(j.SavesIn, jobMark, j.ID, 1)
	added, err := m.enter(ctx, j, now)
	if errors.Is(err, ErrKeyTaken) { // by a request at the same moment
		return m.madeWith(ctx, j)
	}
	return added, err
}

// digest tells one request from another. The key is not to be part of it.
func digest(request any) string {
	text, err := json.Marshal(request)
	if err != nil {
		panic("BUG: a request that cannot be stored: " + err.Error())
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// madeWith returns the tenant's job with j's key; none if there is none.
// ErrConflict if that was asked for in other words.
func (m *Manager) madeWith(ctx context.Context, j Job) (Job, error) {
	if j.Idempotency == "" {
		return Job{}, nil
	}
	list, err := m.opt.Store.List(ctx, Filter{Tenant: j.Tenant, Key: j.Idempotency})
	if err != nil || len(list) == 0 {
		return Job{}, err
	}
	if list[0].Asked != j.Asked {
		return Job{}, fmt.Errorf("idempotency key %q made %s, which was asked for otherwise: %w", j.Idempotency, list[0].ID, ErrConflict)
	}
	m.freshen(&list[0])
	return list[0], nil
}

// fill takes from the template and the options what j leaves out.
func (m *Manager) fill(j *Job) error {
	if j.Template != "" {
		t, ok := m.template(j.Template)
		if !ok {
			return invalid("template", "there is no template %q", j.Template)
		}
		cmd, err := t.fill(j.Params, map[string]string{"aloft": m.opt.Self, "data": m.opt.DataDir})
		if err != nil {
			return err
		}
		j.Kind, j.Command = t.Kind, cmd
		if err := t.terms(j, time.Now()); err != nil {
			return err
		}
	}
	setDefault(&j.Grace, m.opt.Grace)
	setDefault(&j.MinWidth, 1)
	setDefault(&j.MaxWidth, j.MinWidth)
	return nil
}

// validate checks a job whose template has been filled in.
func (j Job) validate(now time.Time) error {
	l := j.Limits
	switch {
	case j.Kind == KindBatch || j.Kind == "":
		return invalid("kind", "%q cannot be submitted as a job", j.Kind)
	case len(j.Command) == 0:
		return invalid("command", "neither a template nor a command is given")
	case j.MinWidth < 1 || j.MaxWidth < j.MinWidth:
		return invalid("width", "from %d to %d is no range", j.MinWidth, j.MaxWidth)
	case j.Priority < -maxPriority || j.Priority > maxPriority:
		return invalid("priority", "%d is not from %d to %d", j.Priority, -maxPriority, maxPriority)
	case j.Grace < 0 || j.Grace > MaxGrace:
		return invalid("grace_seconds", "%v is not from 0 to %v", j.Grace.Seconds(), MaxGrace.Seconds())
	case len(j.Name) > maxNameLen:
		return invalid("name", "has %d bytes, at most %d", len(j.Name), maxNameLen)
	case j.Retries < 0 || j.Retries > maxRetries:
		return invalid("retries", "%d is not from 0 to %d", j.Retries, maxRetries)
	case j.KeepFor < 0 || j.KeepFor > maxKeepFor:
		return invalid("keep_for_seconds", "%v is not from 0 to %v", j.KeepFor.Seconds(), maxKeepFor.Seconds())
	case j.Expected < 0 || j.Expected > maxAhead:
		return invalid("expected_seconds", "%v is not from 0 to %v", j.Expected.Seconds(), maxAhead.Seconds())
	case j.NotBefore.After(now.Add(maxAhead)):
		return invalid("not_before", "is more than %v ahead", maxAhead)
	case !j.Deadline.IsZero() && !j.Deadline.After(now):
		return invalid("deadline", "%v has passed", j.Deadline.UTC().Format(time.RFC3339))
	case j.Deadline.After(now.Add(maxAhead)):
		return invalid("deadline", "is more than %v ahead", maxAhead)
	case !j.Deadline.IsZero() && !j.NotBefore.Before(j.Deadline):
		return invalid("not_before", "is not before the deadline")
	case !(l.CPUs >= 0 && l.CPUs <= maxCPUs):
		return invalid("limits.cpus", "%v is not from 0 to %v", l.CPUs, maxCPUs)
	case l.Memory < 0 || l.Disk < 0 || l.Log < 0 || l.RunTime < 0:
		return invalid("limits", "one is negative")
	}
	return cmp.Or(validKey(j.Idempotency), j.validDepends())
}

func validKey(key string) error {
	if len(key) > maxNameLen {
		return invalid("idempotency_key", "has %d bytes, at most %d", len(key), maxNameLen)
	}
	return nil
}

func (j Job) validDepends() error {
	if len(j.DependsOn) > maxDepends {
		return invalid("depends_on", "%d jobs, at most %d", len(j.DependsOn), maxDepends)
	}
	for i, id := range j.DependsOn {
		if id == "" || slices.Contains(j.DependsOn[:i], id) {
			return invalid("depends_on", "%q is empty or there twice", id)
		}
	}
	return nil
}

// enter stores a new job in the state that it belongs in. What it depends on is
// held from before it is looked up until the record says so: nothing that a job
// depends on is removed. New jobs can only depend on older ones, so no circle
// comes to be.
func (m *Manager) enter(ctx context.Context, j Job, now time.Time) (Job, error) {
	hold := entry{deps: j.DependsOn}
	m.mu.Lock()
	for _, id := range j.DependsOn {
		if m.agenda.going[id] {
			m.mu.Unlock()
			return Job{}, invalid("depends_on", "there is no job %q", id)
		}
	}
	m.agenda.entries[j.ID] = hold
	m.mu.Unlock()
	added, err := m.place(ctx, j, now)
	if err != nil {
		m.mu.Lock()
		delete(m.agenda.entries, j.ID)
		m.mu.Unlock()
	}
	return added, err
}

func (m *Manager) place(ctx context.Context, j Job, now time.Time) (Job, error) {
	for _, id := range j.DependsOn {
		on, err := m.opt.Store.Get(ctx, id)
		switch {
		case errors.Is(err, ErrNotFound) || err == nil && on.Tenant != j.Tenant:
			return Job{}, invalid("depends_on", "there is no job %q", id)
		case err != nil:
			return Job{}, fmt.Errorf("job that is depended on: %w", err)
		}
	}
	j.State = Waiting
	to, why, err := m.standing(ctx, j, now)
	switch {
	case err != nil:
		return Job{}, err
	case to == Failed:
		return Job{}, invalid("depends_on", "%s", why)
	}
	j.State, j.Why = to, why
	return m.add(ctx, j)
}
