package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// gangJob is what a test reads of a job.
type gangJob struct {
	State, Error string
	Slices       []string
	Preemptions  int
	Progress     struct {
		Done    int64
		Result  string
		Resumes int
	}
}

// A gang of two of the trainer, on the simulated node, is preempted in its middle. It
// ends with the weights of one process that nobody stopped, and so does a job of
// flexible width.
func TestGangsLive(t *testing.T) {
	conf, err := filepath.Abs("../../configs/examples/templates.yaml")
	if err != nil {
		t.Fatal(err)
	}
	data := t.TempDir()
	s := start(t, data, nil, "--config", conf)
	run := func(template, steps string, during func(id string)) gangJob {
		t.Helper()
		id, _, _ := strings.Cut(strings.TrimSpace(call(t, s.env(), "jobs", "submit", template, "steps="+steps, "seed=5", "pace_ms=5")), " ")
		var j gangJob
		look := func() bool {
			if err := s.get("/aloft/v1/jobs/"+id, &j); err != nil {
				t.Fatal(err)
			}
			return true
		}
		if during != nil {
			if !eventually(patience, func() bool { return look() && j.Progress.Done > 20 }) {
				t.Fatalf("%s does not get on: %+v\n%s", template, j, call(t, s.env(), "why", id))
			}
			if len(j.Slices) < 2 {
				t.Errorf("%s has %v, want two slices at least", template, j.Slices)
			}
			during(id)
		}
		if !eventually(patience, func() bool { return look() && j.State == "succeeded" }) {
			log, _ := os.ReadFile(filepath.Join(data, "logs", id+".log"))
			t.Fatalf("%s: %+v\n%s\n%s", template, j, call(t, s.env(), "why", id), log)
		}
		return j
	}
	alone := run("train", "300", nil)
	again := func(string) { // the server's end preempts all; the next one goes on
		s.stop(t)
		s = start(t, data, nil, "--config", conf)
	}
	for _, template := range []string{"train-gang", "train-wide"} {
		j := run(template, "300", again)
		if j.Progress.Result != alone.Progress.Result || len(j.Progress.Result) != 64 || j.Progress.Resumes != 1 || j.Preemptions != 1 {
			t.Errorf("%s: %+v, want the weights %s", template, j, alone.Progress.Result)
		}
	}
	// The death of a member is the death of all.
	id, _, _ := strings.Cut(strings.TrimSpace(call(t, s.env(), "jobs", "submit", "train-gang", "steps=100000", "pace_ms=5")), " ")
	var members []int
	if !eventually(patience, func() bool { members = processes("ALOFT_JOB_ID=" + id); return len(members) == 2 }) {
		t.Fatalf("%d members run, want 2", len(members))
	}
	if p, err := os.FindProcess(members[1]); err != nil || p.Kill() != nil {
		t.Fatal("a member could not be killed")
	}
	if !eventually(patience, func() bool { return len(processes("ALOFT_JOB_ID="+id)) == 0 }) {
		t.Error("a member outlives another")
	}
	var j gangJob
	if !eventually(patience, func() bool { return s.get("/aloft/v1/jobs/"+id, &j) == nil && j.State == "failed" }) || !strings.Contains(j.Error, "killed") {
		t.Errorf("%+v, want it failed by the signal", j)
	}
	s.stop(t)
}
