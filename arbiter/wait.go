package arbiter

import (
	"fmt"
	"strings"
	"time"
)

// Wait is why one job waits, and how long it may have to.
type Wait struct {
	Job     string
	Place   int // in the queue, from 1: who is given a slice first, if it fits
	Since   time.Time
	Cause   Cause     // see Causes
	Quota   bool      // its tenant may borrow no more
	StartBy time.Time // the latest start that meets its deadline; zero = it has none
	// First is when it goes ahead of every job that is submitted from then on,
	// whatever its priority among those that are there now; zero = never, without
	// ageing.
	First time.Time
}

// Late reports whether the job can no longer meet its deadline.
func (w *Wait) Late(now time.Time) bool { return !w.StartBy.IsZero() && now.After(w.StartBy) }

// waitsSince is when the job began to wait.
func (j *Job) waitsSince() time.Time {
	if j.Queued.IsZero() {
		return j.Created
	}
	return j.Queued
}

// rest is how long the job is thought to run: as it was told, or as its kind does.
func (j *Job) rest() time.Duration {
	if j.Rest > 0 {
		return j.Rest
	}
	return max(usual[j.Kind], time.Minute)
}

// latestStart is when a job must have its slices to meet its deadline; zero = it has none.
func (j *Job) latestStart() time.Time {
	if j.Deadline.IsZero() {
		return time.Time{}
	}
	return j.Deadline.Add(-j.rest())
}

// steps is by how many priorities a job that has nothing stands higher for its
// waiting. It changes the order of the queue and nobody is stopped for it: a job
// that runs was first once too.
func (p Policy) steps(now time.Time, j *Job) int {
	if p.AgeEvery <= 0 || j.Have > 0 {
		return 0
	}
	return int(max(0, now.Sub(j.waitsSince())) / p.AgeEvery)
}

// Waits are the jobs that have no slice yet, in the order of the queue, as the
// snapshot stands.
//
// A job of priority p goes ahead of all that come later once its steps have brought
// it above the highest priority h there is: after (h − p + 1) × AgeEvery of waiting.
// That is the bound on starving: what is ahead of it then came before, and grows no
// more.
func (p Policy) Waits(s Snapshot) []Wait {
	highest := 0
	for i := range s.Jobs {
		if j := &s.Jobs[i]; i == 0 || j.Priority > highest {
			highest = j.Priority
		}
	}
	var out []Wait
	q := p.newQueue(&s)
	for x := q.next(); x.tenant != nil; x = q.next() {
		j := x.job
		if j.Have > 0 {
			continue // it runs; more would only speed it up
		}
		want := max(1, j.MinWidth)
		w := Wait{Job: j.ID, Place: len(out) + 1, Since: j.waitsSince(), Cause: s.cause(j, want),
			Quota: !x.tenant.fits(partsOf(j.Needs, want)), StartBy: j.latestStart()}
		if p.AgeEvery > 0 {
			w.First = w.Since.Add(time.Duration(highest-j.Priority+1) * p.AgeEvery)
		}
		out = append(out, w)
	}
	return out
}

// cause is what so many slices for a job lack.
func (s *Snapshot) cause(j *Job, want int) Cause {
	idle, fit := 0, 0
	for i := range s.Slices {
		x := &s.Slices[i]
		if x.Moving || x.Lent() || x.Phase != Free && x.Phase != Asleep {
			continue
		}
		idle += units(x.Shape)
		if fits(x.Shape, j.Needs) {
			fit++
		}
	}
	switch {
	case fit >= want:
		return ByPolicy
	case idle >= want*units(j.Needs):
		return ByShape
	}
	return ByCapacity
}

// Says is the wait as a sentence for the job's owner.
func (w Wait) Says(now time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "waits in place %d of the queue: ", w.Place)
	switch {
	case w.Quota:
		b.WriteString("its tenant may borrow no more")
	case w.Cause == ByCapacity:
		b.WriteString("less is idle than it needs")
	case w.Cause == ByShape:
		b.WriteString("enough is idle, but not in its shape")
	default:
		b.WriteString("what it needs is idle, and kept for serving, another claim or a hold")
	}
	switch {
	case w.Late(now):
		fmt.Fprintf(&b, "; its deadline cannot be met any more: it had to start by %s", w.StartBy.UTC().Format(time.RFC3339))
	case !w.StartBy.IsZero():
		fmt.Fprintf(&b, "; it must start by %s to meet its deadline", w.StartBy.UTC().Format(time.RFC3339))
	}
	if !w.First.IsZero() {
		fmt.Fprintf(&b, "; no job that is submitted after %s goes ahead of it", w.First.UTC().Format(time.RFC3339))
	}
	return b.String()
}
