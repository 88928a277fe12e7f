package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"aloft/arbiter"
	"aloft/jobs"
)

const (
	waitsEvery = 10 * time.Second // looks at who waits
	waitsAgain = 10 * time.Minute // a job is told again, if only its place has changed
	waitsMost  = 100              // jobs that are told at one look: those at the head
)

// toldWait is what a waiting job was told last.
type toldWait struct {
	wait arbiter.Wait
	late bool
	at   time.Time
}

// news reports whether a wait says something else than a job was told last, or the
// same of another place long after.
func (t toldWait) news(w arbiter.Wait, now time.Time) bool {
	changed := t.wait.Cause != w.Cause || t.wait.Quota != w.Quota || t.late != w.Late(now)
	return t.at.IsZero() || changed && now.Sub(t.at) >= time.Minute || t.wait.Place != w.Place && now.Sub(t.at) >= waitsAgain
}

// tellWaits notes with the jobs at the head of the queue why they wait, until ctx
// ends. What one was told is forgotten when it waits no more.
func (s *server) tellWaits(ctx context.Context) {
	tick := time.NewTicker(waitsEvery)
	defer tick.Stop()
	known := map[string]toldWait{}
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		v := s.arbiter.View()
		now, next := v.Snapshot.Now, map[string]toldWait{}
		waits := v.Policy.Waits(v.Snapshot)
		for _, w := range waits[:min(len(waits), waitsMost)] {
			t := known[w.Job]
			if t.news(w, now) {
				t = toldWait{w, w.Late(now), now}
				e := waitEvent(w, now)
				if err := s.jobs.AddEvent(ctx, w.Job, e); err != nil && !errors.Is(err, jobs.ErrNotFound) && ctx.Err() == nil {
					s.log.Warn("why a job waits is not noted", "job", w.Job, "error", err)
				}
			}
			next[w.Job] = t
		}
		known = next
	}
}

func waitEvent(w arbiter.Wait, now time.Time) jobs.Event {
	e := jobs.Event{At: now, Level: jobs.LevelInfo, Kind: "waits", Message: w.Says(now),
		Data: map[string]string{"place": fmt.Sprint(w.Place), "cause": string(w.Cause)}}
	if w.Quota {
		e.Data["cause"] = "quota"
	}
	if w.Late(now) {
		e.Level = jobs.LevelWarn
	}
	return e
}
