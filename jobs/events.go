package jobs

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// Event is one thing that happened to a job.
type Event struct {
	Seq     int // from 1, counted up by the store
	At      time.Time
	Level   string // LevelInfo, LevelWarn or LevelError
	Kind    string // what sort: "state", "message", "checkpoint", ...
	Message string // for a person
	Data    map[string]string
}

// The levels of events, as OpenAI names them.
const (
	LevelInfo  = "info"
	LevelWarn  = "warn"
	LevelError = "error"
)

// MaxEvents is how many events of a job are kept; older ones go first.
const MaxEvents = 500

// maxMessage bounds what a program can say in one event, in bytes.
const maxMessage = 1 << 10

// cut shortens text to n bytes, at the start of a character.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "")
}

// Events returns what happened to the job after event number after, oldest
// first, at most limit (0 = all that are kept).
func (m *Manager) Events(ctx context.Context, id string, after, limit int) ([]Event, error) {
	if _, err := m.opt.Store.Get(ctx, id); err != nil {
		return nil, fmt.Errorf("job %s: %w", id, err)
	}
	list, err := m.opt.Store.Events(ctx, id, after, limit)
	if err != nil {
		return nil, fmt.Errorf("events of job %s: %w", id, err)
	}
	return list, nil
}

// AddEvent notes something about a job that changes no state of it.
func (m *Manager) AddEvent(ctx context.Context, id string, e Event) error {
	if e.At.IsZero() {
		e.At = time.Now()
	}
	setDefault(&e.Level, LevelInfo)
	e.Message = cut(e.Message, maxMessage)
	if err := m.opt.Store.AddEvent(ctx, id, e); err != nil {
		return fmt.Errorf("event of job %s: %w", id, err)
	}
	return nil
}

// changeEvents says what a stored change means to the job's user.
func changeEvents(old, j Job, now time.Time) []Event {
	var out []Event
	add := func(level, format string, args ...any) {
		out = append(out, Event{
			At: now, Level: level, Kind: "state", Message: fmt.Sprintf(format, args...),
			Data: map[string]string{"from": string(old.State), "to": string(j.State)},
		})
	}
	if old.State != j.State {
		level, words := stateWords(old, j)
		add(level, "%s", words)
	}
	if was, is := batchStatus(old), batchStatus(j); was != is && was != "" && !is.Terminal() {
		add(LevelInfo, "the batch is %s", strings.ReplaceAll(string(is), "_", " "))
	}
	if old.Cancelling.IsZero() && !j.Cancelling.IsZero() && j.State != Cancelled {
		add(LevelInfo, "cancellation was asked for")
	}
	if old.Pausing.IsZero() && !j.Pausing.IsZero() {
		add(LevelInfo, "a pause was asked for: its last checkpoint is kept")
	}
	return out
}

// stateWords says what the step from old to j means.
func stateWords(old, j Job) (level, words string) {
	why := func(words string) string {
		if j.Error == "" {
			return words
		}
		return words + ": " + cut(j.Error, maxMessage)
	}
	switch j.State {
	case Waiting:
		if j.Tried > old.Tried {
			return LevelWarn, "failed, waits for " + cut(j.Why, maxMessage)
		}
		return LevelInfo, "waits: " + cut(j.Why, maxMessage)
	case Queued:
		switch old.State {
		case Starting:
			return LevelWarn, why("was not started, waits for a slice again")
		case Running:
			return LevelInfo, why("stopped by itself or with the server, waits for a slice again")
		case Preempting:
			if s := j.Suspended; s != nil {
				return LevelInfo, fmt.Sprintf("suspended (preemption %d): it goes on when it gets %s again, until %s", j.Preemptions, s.Slice, s.Until.UTC().Format(time.RFC3339))
			}
			return LevelInfo, fmt.Sprintf("gave its slices back (preemption %d), waits for a slice again", j.Preemptions)
		case Failed, Cancelled:
			return LevelInfo, "is tried again because its user asked for it"
		case Paused:
			return LevelInfo, "resumed, waits for a slice"
		}
		return LevelInfo, "waits for a slice"
	case Starting:
		if old.Suspended != nil {
			return LevelInfo, "comes back to " + strings.Join(j.Slices, ", ") + ", where it was suspended"
		}
		return LevelInfo, "starts on " + strings.Join(j.Slices, ", ")
	case Running:
		if p := j.Progress; p.Resumes > old.Progress.Resumes {
			return LevelInfo, fmt.Sprintf("runs, from the checkpoint at %s %d", p.Unit, p.Done)
		}
		return LevelInfo, why("runs")
	case Preempting:
		return LevelInfo, "its slices are wanted back: it was told to save"
	case Paused:
		return LevelInfo, "paused"
	case Succeeded:
		return LevelInfo, "succeeded"
	case Cancelled:
		return LevelInfo, "cancelled"
	case Expired:
		return LevelWarn, why("expired")
	}
	return LevelError, why("failed")
}
