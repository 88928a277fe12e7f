package arbiter

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestWaits: the order is by priority, one more for each hour without a slice; of
// equals the tenant with least of its weight; of one tenant who must start now. The
// bound is (highest − own + 1) hours after a job began to wait.
func TestWaits(t *testing.T) {
	ago := func(d time.Duration, j Job) Job { j.Created = noon.Add(-d); return j }
	with := func(j Job, f func(*Job)) Job { f(&j); return j }
	of := func(tenant string, priority int, j Job) Job { j.Tenant, j.Priority = tenant, priority; return j }
	full := []Slice{lentTo("r", on("s0", g1, JobRuns, ""))}
	running := with(holding(job("r", "train")), func(j *Job) { j.Tenant, j.Priority = "a", 2 })
	for _, c := range []struct {
		name   string
		age    time.Duration
		jobs   []Job
		shares []Share
		slices []Slice
		want   string // job, cause, hours from noon until it is first of all to come
	}{
		{name: "by priority", jobs: []Job{of("a", 0, ago(50*time.Hour, job("low", "train"))), of("a", 1, job("high", "train"))},
			want: "high capacity -; low capacity -"},
		// low waits 2 h: level 0 + 2 = 2, above 1. Bounds: highest is 2 (r): 2 − 0 + 1 = 3 h from 10:00, 2 − 1 + 1 = 2 h from noon.
		{name: "by age", age: time.Hour, jobs: []Job{of("a", 1, ago(0, job("high", "train"))), of("a", 0, ago(2*time.Hour, job("low", "train")))},
			want: "low capacity 1; high capacity 2"},
		// 59 min are no step yet; equal levels would be by response ratio.
		{name: "not yet", age: time.Hour, jobs: []Job{of("a", 1, ago(0, job("high", "train"))), of("a", 0, ago(59*time.Minute, job("low", "train")))},
			want: "high capacity 2; low capacity 2.01667"},
		// a has 1/7 borrowed; b nothing. With weight 1 each b goes first, however long a's waits.
		{name: "by share", jobs: []Job{of("a", 0, ago(time.Hour, job("a1", "train"))), of("b", 0, job("b1", "train"))}, want: "b1 capacity -; a1 capacity -"},
		{name: "by weighted share of two that borrow", shares: []Share{{Tenant: "a", Weight: 4}, {Tenant: "b", Weight: 1}},
			// a: (1/7)/4 = 0.036; b: (1/7)/1 = 0.143
			jobs: []Job{of("b", 0, holding(job("r2", "train"))), of("b", 0, job("b1", "train")), of("a", 0, job("a1", "train"))}, want: "a1 capacity -; b1 capacity -"},
		// must start by 12:00 + 60 − 55 = 12:05, within ten minutes of now; the other has waited longer.
		{name: "by deadline", jobs: []Job{of("b", 0, ago(time.Hour, job("old", "train"))),
			of("b", 0, with(ago(0, job("due", "train")), func(j *Job) { j.Deadline, j.Rest = noon.Add(time.Hour), 55*time.Minute }))},
			want: "due capacity - by 12:05; old capacity -"},
		// 12:00 + 60 − 30 = 12:30: there is time.
		{name: "a deadline that is far", jobs: []Job{of("b", 0, ago(time.Hour, job("old", "train"))),
			of("b", 0, with(ago(0, job("due", "train")), func(j *Job) { j.Deadline, j.Rest = noon.Add(time.Hour), 30*time.Minute }))},
			want: "old capacity -; due capacity - by 12:30"},
		// a train runs an hour if nobody knows better: it had to start at noon.
		{name: "an unknown rest is the usual one", jobs: []Job{of("b", 0, with(job("due", "train"), func(j *Job) { j.Deadline = noon.Add(time.Hour) }))},
			want: "due capacity - by 12:00"},
		// back is queued again for a minute, and came an hour ago: (60 + 60)/60 = 2 against (30 + 60)/60.
		{name: "who was stopped keeps its age", jobs: []Job{of("b", 0, ago(30*time.Minute, job("new", "train"))),
			of("b", 0, with(ago(time.Hour, job("back", "train")), func(j *Job) { j.Queued = noon.Add(-time.Minute) }))},
			want: "back capacity -; new capacity -"},
		{name: "kept", slices: []Slice{full[0], on("s1", g1, Free, "")}, jobs: []Job{job("x", "train")}, want: "x policy -"},
		{name: "in another shape", slices: []Slice{full[0], on("s1", g1, Free, ""), on("s2", g1, Free, "")},
			jobs: []Job{with(job("x", "train"), func(j *Job) { j.Needs = g2 })}, want: "x shape -"},
		{name: "quota", shares: []Share{{Tenant: "a", Weight: 1, BorrowLimit: 1.0 / 7}}, jobs: []Job{of("a", 0, job("x", "train"))}, want: "x capacity quota -"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := testPolicy()
			p.AgeEvery, p.Tenants = c.age, c.shares
			s := Snapshot{Now: noon, Slices: c.slices, Jobs: append([]Job{running}, c.jobs...)}
			if s.Slices == nil {
				s.Slices = full
			}
			var got []string
			for i, w := range p.Waits(s) {
				if w.Place != i+1 {
					t.Errorf("place %d of %s, want %d", w.Place, w.Job, i+1)
				}
				text := fmt.Sprintf("%s %s", w.Job, w.Cause)
				if w.Quota {
					text += " quota"
				}
				if w.First.IsZero() {
					text += " -"
				} else {
					text += fmt.Sprintf(" %.6g", w.First.Sub(noon).Hours())
				}
				if !w.StartBy.IsZero() {
					text += w.StartBy.Format(" by 15:04")
				}
				got = append(got, text)
			}
			if text := strings.Join(got, "; "); text != c.want {
				t.Errorf("got  %s\nwant %s", text, c.want)
			}
		})
	}
}

// TestNobodyStarves: jobs of a higher priority come for ever, one slice; a low one
// has it within the bound that was told when it came.
func TestNobodyStarves(t *testing.T) {
	p := testPolicy()
	p.AgeEvery = time.Hour
	low := job("low", "train")
	low.Created = noon
	first := time.Time{}
	for step := range 40 { // a slice comes free each quarter of an hour
		now := noon.Add(time.Duration(step) * 15 * time.Minute)
		high := job(fmt.Sprintf("high%d", step), "train")
		high.Created, high.Priority = now, 2
		s := Snapshot{Now: now, Plan: true, Cap: noCap, Slices: []Slice{on("s0", g1, Free, "")}, Jobs: []Job{low, high}}
		for _, w := range p.Waits(s) {
			if w.Job == "low" && first.IsZero() {
				first = w.First
			}
		}
		moves := p.Decide(s).Moves
		if len(moves) != 1 {
			t.Fatalf("%v: %d moves", now, len(moves))
		}
		if moves[0].Job == "low" {
			if want := noon.Add(3 * time.Hour); now.After(first) || !first.Equal(want) {
				t.Errorf("it has a slice at %v, was told %v, want %v", now, first, want)
			}
			return
		}
	}
	t.Error("it starves")
}

func TestWaitSays(t *testing.T) {
	w := Wait{Job: "j", Place: 2, Cause: ByShape, StartBy: noon.Add(time.Hour), First: noon.Add(2 * time.Hour)}
	for now, want := range map[time.Time]string{
		noon:                    "waits in place 2 of the queue: enough is idle, but not in its shape; it must start by " + w.StartBy.UTC().Format(time.RFC3339) + " to meet its deadline; no job that is submitted after " + w.First.UTC().Format(time.RFC3339) + " goes ahead of it",
		noon.Add(2 * time.Hour): "waits in place 2 of the queue: enough is idle, but not in its shape; its deadline cannot be met any more: it had to start by " + w.StartBy.UTC().Format(time.RFC3339) + "; no job that is submitted after " + w.First.UTC().Format(time.RFC3339) + " goes ahead of it",
	} {
		if got := w.Says(now); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}
