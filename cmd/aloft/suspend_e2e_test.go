package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// suspendable is a node with a GPU that is not divided, for jobs of two priorities.
const suspendable = `node: {devices: simulated, simulated: [{family: A100-80GB, layout: [1g.10gb, 1g.10gb, 1g.10gb]}, {family: A100-80GB, layout: [full]}]}
models:
  - {name: reader, engine: synthetic, endpoints: [embeddings], shape: 1g.10gb, replicas: {min: 1, max: 1}}
arbiter: {guard: 100ms, plan: 300ms, hold: 300ms, window: 5s, min_samples: 5, fast_horizon: 1s, slow_horizon: 2s}
jobs:
  suspend: {program: %s, memory: 10000000000, longest: 1h}
  templates:
    - name: train
      kind: train
      shape: full
      suspend: true
      grace: 60s
      command: ["{aloft}", train, --steps, "{steps}", --seed, "5", --pace, 5ms]
      params: [{name: steps, type: int, min: 1, max: 100000}]
      env: {USES_CUDA: "1"}
    - {name: urgent, kind: evaluate, shape: full, priority: 50, command: [sleep, "1"]}
`

// A job that has to give its GPU to a more urgent one stands still meanwhile, and
// goes on with what it had: one run, no checkpoint used. cuda-checkpoint is the
// modelled one of gpu/proc/testdata.
func TestJobIsSuspended(t *testing.T) {
	tool := filepath.Join(t.TempDir(), "cuda-checkpoint")
	text, err := os.ReadFile("../../gpu/proc/testdata/cuda-checkpoint")
	if err == nil {
		err = os.WriteFile(tool, text, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, t.TempDir(), nil, "--config", write(t, "aloft.yaml", fmt.Sprintf(suspendable, tool)))
	submit := func(args ...string) string {
		id, _, _ := strings.Cut(call(t, s.env(), append([]string{"jobs", "submit"}, args...)...), " ")
		return id
	}
	id := submit("train", "steps=100000") // more than it gets to, on any machine
	if !eventually(patience, func() bool { return jobNow(t, s.env(), id).Progress.Done > 20 }) {
		t.Fatalf("it does not get on: %+v\n%s", jobNow(t, s.env(), id), call(t, s.env(), "why", id))
	}
	urgent := submit("urgent")
	events := func() string { return call(t, s.env(), "jobs", "events", id) }
	if !eventually(patience, func() bool { return strings.Contains(events(), "suspended (preemption 1): it goes on when it gets g1") }) {
		t.Fatalf("it was not suspended:\n%s\n%s", events(), call(t, s.env(), "why"))
	}
	if !eventually(patience, func() bool { return jobNow(t, s.env(), urgent).State == "succeeded" }) {
		t.Fatalf("the urgent one: %+v", jobNow(t, s.env(), urgent))
	}
	if !eventually(patience, func() bool { return strings.Contains(events(), "comes back to g1") }) {
		t.Fatalf("it did not come back:\n%s\n%s", events(), call(t, s.env(), "why"))
	}
	back := jobNow(t, s.env(), id).Progress.Done
	if !eventually(patience, func() bool { return jobNow(t, s.env(), id).Progress.Done > back }) {
		t.Fatalf("it does not go on: %+v\n%s", jobNow(t, s.env(), id), events())
	}
	var j gangJob
	if err := s.get("/aloft/v1/jobs/"+id, &j); err != nil || j.Preemptions != 1 || j.Progress.Resumes != 0 || j.Progress.Done <= 20 {
		t.Errorf("%v, %+v\n%s", err, j, events())
	}
	call(t, s.env(), "jobs", "cancel", id)
	s.stop(t)
}
