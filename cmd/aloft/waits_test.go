package main

import (
	"testing"
	"time"

	"aloft/arbiter"
	"aloft/jobs"
)

// TestWaitNews: a job is told at once, then of another cause a minute later at the
// soonest, and of another place alone every ten minutes.
func TestWaitNews(t *testing.T) {
	now := time.Date(2027, 1, 31, 12, 0, 0, 0, time.UTC)
	w := arbiter.Wait{Job: "j", Place: 3, Cause: arbiter.ByCapacity, StartBy: now.Add(5 * time.Minute)}
	was := toldWait{wait: w, at: now}
	moved, other := w, w
	moved.Place, other.Cause = 2, arbiter.ByShape
	for _, c := range []struct {
		name  string
		was   toldWait
		wait  arbiter.Wait
		after time.Duration
		want  bool
	}{
		{"never told", toldWait{}, w, 0, true},
		{"the same", was, w, 4 * time.Minute, false},
		{"late meanwhile", was, w, 6 * time.Minute, true},
		{"another place", was, moved, 4 * time.Minute, false},
		{"another cause, too soon", was, other, 59 * time.Second, false},
		{"another cause", was, other, time.Minute, true},
	} {
		if got := c.was.news(c.wait, now.Add(c.after)); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	moved.StartBy = time.Time{}
	was.wait.StartBy = time.Time{}
	if !was.news(moved, now.Add(10*time.Minute)) {
		t.Error("another place is not told after ten minutes")
	}
	if e := waitEvent(w, now.Add(6*time.Minute)); e.Level != jobs.LevelWarn || e.Kind != "waits" || e.Data["place"] != "3" || e.Data["cause"] != "capacity" {
		t.Errorf("%+v", e)
	}
}

// TestWaiting: the longest wait, who is late, and the bound on starving.
func TestWaiting(t *testing.T) {
	now := time.Date(2027, 1, 31, 12, 0, 0, 0, time.UTC)
	waits := []arbiter.Wait{{Since: now.Add(-time.Hour), First: now.Add(-time.Minute)}, {Since: now, First: now.Add(2 * time.Hour), StartBy: now.Add(-time.Second)}}
	if w := waitingOf(waits, true, now); w.Jobs != 2 || w.Longest != 3600 || w.Late != 1 || w.Bound == nil || *w.Bound != 7200 {
		t.Errorf("%+v", w)
	}
	if w := waitingOf(nil, false, now); w.Jobs != 0 || w.Bound != nil {
		t.Errorf("%+v", w)
	}
}

// TestRestOf: what is left of the expected time, less what is done, on all its slices.
func TestRestOf(t *testing.T) {
	for _, c := range []struct {
		expected    time.Duration
		done, total int64
		width       int
		want        time.Duration
	}{
		{0, 5, 10, 1, 0},
		{time.Hour, 0, 10, 1, time.Hour},
		{time.Hour, 5, 10, 1, 30 * time.Minute},
		{time.Hour, 5, 10, 2, 15 * time.Minute},
		{time.Hour, 10, 10, 1, time.Minute},
	} {
		j := jobs.Job{Progress: jobs.Progress{Done: c.done, Total: c.total}}
		j.Expected = c.expected
		if got := restOf(j, c.width); got != c.want {
			t.Errorf("%v, %d of %d on %d: %v, want %v", c.expected, c.done, c.total, c.width, got, c.want)
		}
	}
}
