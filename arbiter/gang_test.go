package arbiter

import (
	"testing"
)

// pair is a gang of small slices.
func pair(id string, least, most int) Job {
	j := job(id, "train")
	j.MinWidth, j.MaxWidth, j.Whole = least, most, true
	return j
}

// members are the slices of the only loan of a plan.
func members(t *testing.T, p Plan) []string {
	t.Helper()
	var all []string
	for _, m := range p.Moves {
		if m.Action != Lend || all != nil {
			t.Fatalf("%q, want one loan", said(p.Moves))
		}
		all = append([]string{m.Slice}, m.Gang...)
	}
	return all
}

// TestFlexibleWidth: a job of flexible width begins with what there is at once,
// and asks for no more while it runs.
func TestFlexibleWidth(t *testing.T) {
	idle := []Slice{on("s0", g1, Free, ""), on("s1", g1, Free, ""), on("s2", g1, Free, "")}
	for _, c := range []struct {
		name        string
		least, most int
		slices      []Slice
		cap         int

		want []string
	}{
		{name: "all that it can use", least: 1, most: 2, slices: idle, want: []string{"s0", "s1"}},
		{name: "all that there is", least: 2, most: 9, slices: idle, want: []string{"s0", "s1", "s2"}},
		{name: "no more than the cap", least: 1, most: 3, slices: idle, cap: 2, want: []string{"s0", "s1"}},
		{name: "less than it needs", least: 4, most: 9, slices: idle},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := Snapshot{Now: noon, Plan: true, Cap: c.cap, Slices: c.slices, Jobs: []Job{pair("p", c.least, c.most)}}
			if c.cap == 0 {
				s.Cap = noCap
			}
			equal(t, "it is given", members(t, testPolicy().Decide(s)), c.want)
		})
	}
	grown := pair("p", 1, 3)
	grown.Have = 1
	s := Snapshot{Now: noon, Plan: true, Cap: noCap, Jobs: []Job{grown},
		Slices: append([]Slice{lentTo("p", on("s9", g1, JobRuns, ""))}, idle...)}
	if m := testPolicy().Decide(s).Moves; len(m) != 0 {
		t.Errorf("%q to a job that runs, want nothing", said(m))
	}
}

// TestGangOfReplicas: ready replicas that are not needed go to a gang together,
// those that are needed never.
func TestGangOfReplicas(t *testing.T) {
	for _, c := range []struct {
		name  string
		level float64
		least int
		want  []string
	}{
		{"not needed", 0, 1, []string{"s0", "s1"}},
		{"needed", 0, 3, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			ready := []Slice{on("s0", g1, Ready, "m"), on("s1", g1, Ready, "m"), on("s2", g1, Ready, "m"), on("s3", g1, Ready, "m")}
			p := testPolicy()
			p.Spare = 0
			s := Snapshot{Now: noon, Plan: true, Cap: noCap, Slices: ready, Models: []Model{chat("m", c.level, c.least, 4)}, Jobs: []Job{pair("p", 2, 2)}}
			plan := p.Decide(s)
			equal(t, "the gang is given", members(t, plan), c.want)
			for _, m := range plan.Moves {
				if m.Reason != Surplus || m.Bound <= 0 {
					t.Errorf("%+v, want a bound and the reason surplus", m)
				}
			}
		})
	}
}

// TestGangStopsNobodyElse: a gang that finds too few slices does not keep a
// single job of its priority from the one there is.
func TestGangStopsNobodyElse(t *testing.T) {
	s := Snapshot{Now: noon, Plan: true, Cap: noCap, Slices: []Slice{on("s0", g1, Free, "")}, Jobs: []Job{pair("p", 2, 2), job("single", "train")}}
	if m := testPolicy().Decide(s).Moves; len(m) != 1 || m[0].Job != "single" {
		t.Errorf("%q, want the single job to have it", said(m))
	}
}
