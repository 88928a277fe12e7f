package main

import (
	"bytes"
	"testing"
	"time"

	"aloft/jobs"
)

// While somebody works in a session, no priority that can be asked for takes its slice.
func TestInUse(t *testing.T) {
	warned := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		state   jobs.State
		session *jobs.Session
		want    bool
	}{
		"used":            {jobs.Running, &jobs.Session{}, true},
		"idle and warned": {jobs.Running, &jobs.Session{Warned: warned}, false},
		"yields":          {jobs.Running, &jobs.Session{Yields: true}, false},
		"waits":           {jobs.Queued, &jobs.Session{}, false},
		"no session":      {jobs.Running, nil, false},
	} {
		j := jobs.Job{State: tt.state}
		j.Session = tt.session
		if got := inUse(j); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

func TestSessionList(t *testing.T) {
	now := time.Unix(2000, 0)
	var out bytes.Buffer
	a := jobObject{ID: "job_a", Name: "desk", State: "running", Slices: []string{"g0/s1"}, Session: &sessionObject{Active: 1940, Ends: 2060, Warned: 1990}}
	a.Shape = "1g.10gb"
	b := jobObject{ID: "job_b", State: "expired", Error: "nobody used it for 20m0s", Session: &sessionObject{Active: 1000}}
	if err := writeSessions(&out, []jobObject{a, b}, now); err != nil {
		t.Fatal(err)
	}
	const want = "" +
		"SESSION  NAME  STATE            SHAPE    SLICE  IDLE FOR  ENDS IN  \n" +
		"job_a    desk  running, warned  1g.10gb  g0/s1  1m0s      1m0s     \n" +
		"job_b    -     expired          -        -      -         -        nobody used it for 20m0s\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}
