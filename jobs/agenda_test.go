package jobs

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestSettled(t *testing.T) {
	now := time.Unix(1000, 0)
	later, before := now.Add(time.Minute), now.Add(-time.Minute)
	depends := func(s State, ids ...string) Job { return Job{State: s, Terms: Terms{DependsOn: ids}} }
	for _, c := range []struct {
		name   string
		job    Job
		states map[string]State
		want   State
		why    string
	}{
		{"nothing in its way", Job{State: Waiting}, nil, Queued, ""},
		{"queued stays", Job{State: Queued}, nil, Queued, ""},
		{"paused stays", Job{State: Paused, Terms: Terms{NotBefore: before}}, nil, Paused, ""},
		{"running is not looked at", Job{State: Running, Terms: Terms{Deadline: before}}, nil, Running, ""},
		{"too early", Job{State: Waiting, Terms: Terms{NotBefore: later}}, nil, Waiting, "for 1970-01-01T00:17:40Z"},
		{"at its moment", Job{State: Waiting, Terms: Terms{NotBefore: now}}, nil, Queued, ""},
		{"before its retry", Job{State: Waiting, Times: Times{RetryAt: later}, Course: Course{Why: "retry 1 of 2"}}, nil, Waiting, "retry 1 of 2"},
		{"at its retry", Job{State: Waiting, Times: Times{RetryAt: now}}, nil, Queued, ""},
		{"one open", depends(Waiting, "a", "b"), map[string]State{"a": Succeeded, "b": Running}, Waiting, "for job b"},
		{"a retry is no end", depends(Waiting, "a"), map[string]State{"a": Waiting}, Waiting, "for job a"},
		{"two open", depends(Waiting, "a", "b"), map[string]State{"a": Paused, "b": Queued}, Waiting, "for job a and 1 more"},
		{"all succeeded", depends(Waiting, "a", "b"), map[string]State{"a": Succeeded, "b": Succeeded}, Queued, ""},
		{"one failed", depends(Waiting, "a", "b"), map[string]State{"a": Running, "b": Failed}, Failed, "depends on b, which has failed"},
		{"one cancelled", depends(Waiting, "a"), map[string]State{"a": Cancelled}, Failed, "depends on a, which has been cancelled"},
		{"one expired", depends(Waiting, "a"), map[string]State{"a": Expired}, Failed, "depends on a, which has expired"},
		{"one gone", depends(Waiting, "a"), map[string]State{}, Failed, "depends on a, which is not there any more"},
		{"failed while paused", depends(Paused, "a"), map[string]State{"a": Failed}, Failed, "depends on a, which has failed"},
		{"never started", Job{State: Queued, Terms: Terms{Deadline: now}}, nil, Expired, "it had not started by its deadline, 1970-01-01T00:16:40Z"},
		{"paused over its deadline", Job{State: Paused, Terms: Terms{Deadline: before}}, nil, Expired, "it had not started by its deadline, 1970-01-01T00:15:40Z"},
		{"begun before its deadline", Job{State: Queued, Terms: Terms{Deadline: before}, Times: Times{Started: before}}, nil, Queued, ""},
		{"in time", Job{State: Queued, Terms: Terms{Deadline: later}}, nil, Queued, ""},
	} {
		if to, why := settled(c.job, c.states, now); to != c.want || why != c.why {
			t.Errorf("%s: %s %q, want %s %q", c.name, to, why, c.want, c.why)
		}
		to, _ := settled(c.job, c.states, now)
		if to != c.job.State && !c.job.State.Can(to) {
			t.Errorf("%s: from %s to %s is no legal step", c.name, c.job.State, to)
		}
	}
}

func TestEntryOf(t *testing.T) {
	now := time.Unix(1000, 0)
	later, latest, before := now.Add(time.Minute), now.Add(time.Hour), now.Add(-time.Minute)
	for _, c := range []struct {
		name string
		job  Job
		at   time.Time
		kept bool
	}{
		{"queued", Job{State: Queued}, time.Time{}, false},
		{"queued with a deadline", Job{State: Queued, Terms: Terms{Deadline: later}}, later, true},
		{"begun with a deadline", Job{State: Queued, Terms: Terms{Deadline: later}, Times: Times{Started: before}}, time.Time{}, false},
		{"running with a deadline", Job{State: Running, Terms: Terms{Deadline: later}}, time.Time{}, false},
		{"waiting for a moment", Job{State: Waiting, Terms: Terms{NotBefore: later, Deadline: latest}}, later, true},
		{"waiting past a moment", Job{State: Waiting, Terms: Terms{NotBefore: before, Deadline: latest}}, latest, true},
		{"waiting for a retry", Job{State: Waiting, Times: Times{RetryAt: later}}, later, true},
		{"running, depending", Job{State: Running, Terms: Terms{DependsOn: []string{"a"}}}, time.Time{}, true},
		{"failed, depending", Job{State: Failed, Terms: Terms{DependsOn: []string{"a"}, Deadline: later}}, time.Time{}, false},
	} {
		if e, kept := entryOf(c.job, now); !e.at.Equal(c.at) || kept != c.kept {
			t.Errorf("%s: at %v, kept %v; want %v, %v", c.name, e.at, kept, c.at, c.kept)
		}
	}
}

func TestEndless(t *testing.T) {
	for _, c := range []struct {
		deps map[string][]string
		want string
	}{
		{nil, "[]"},
		{map[string][]string{"a": nil, "b": {"a"}, "c": {"a", "b"}, "d": {"finished"}}, "[]"},
		{map[string][]string{"a": {"a"}}, "[a]"},
		{map[string][]string{"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": nil}, "[a b c]"},
		{map[string][]string{"a": {"b"}, "b": {"a"}, "c": {"b", "d"}, "d": nil}, "[a b c]"}, // c waits for them
		{map[string][]string{"a": {"b", "b"}, "b": nil}, "[]"},
	} {
		if got := fmt.Sprint(endless(c.deps)); got != c.want {
			t.Errorf("%v: %s, want %s", c.deps, got, c.want)
		}
	}
}

func TestAgendaDue(t *testing.T) {
	now := time.Unix(1000, 0)
	a := newAgenda()
	a.entries["late"] = entry{at: now.Add(time.Hour)}
	a.entries["soon"] = entry{at: now.Add(time.Minute), deps: []string{"x"}}
	a.entries["now"] = entry{at: now}
	a.entries["child"] = entry{deps: []string{"x", "y"}}
	a.ended["y"] = true
	ids, next := a.due(now)
	if fmt.Sprint(ids) != "[child now]" || !next.Equal(now.Add(time.Minute)) {
		t.Errorf("due %v, next %v; want child and now, then in a minute", ids, next)
	}
	delete(a.entries, "now")
	if ids, _ := a.due(now); len(ids) != 0 {
		t.Errorf("due again: %v", ids)
	}
	if !a.depended("x") || a.depended("z") {
		t.Error("x is depended on, z is not")
	}
}

func TestDoubledAndFail(t *testing.T) {
	r := Retry{First: time.Second, Most: 5 * time.Second}
	for n, want := range []time.Duration{1, 2, 4, 5, 5} {
		if got := doubled(r, n); got != want*time.Second {
			t.Errorf("pause after %d retries: %v, want %v", n, got, want*time.Second)
		}
	}
	now := time.Unix(1000, 0)
	j := Job{State: Running, Terms: Terms{Retries: 2}, Slices: []string{"s"}}
	for tried, wait := range []time.Duration{time.Second, 2 * time.Second} {
		j.State = Running
		j.fail("exit status 3", now, r)
		if j.State != Waiting || j.Tried != tried+1 || !j.RetryAt.Equal(now.Add(wait)) || j.Slices != nil || !strings.Contains(j.Why, "exit status 3") {
			t.Fatalf("after failure %d: %+v", tried+1, j)
		}
	}
	j.State = Running
	if j.fail("exit status 3", now, r); j.State != Failed || j.Error != "exit status 3" || !j.RetryAt.IsZero() || !j.Finished.Equal(now) {
		t.Errorf("after the last failure: %+v", j)
	}
}
