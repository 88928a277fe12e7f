package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

const spread = `node: {devices: simulated, simulated: [{family: A100-80GB, layout: [1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb]}]}
arbiter: {guard: 100ms, plan: 300ms, hold: 300ms, window: 5s, min_samples: 5, fast_horizon: 1s, slow_horizon: 2s}
models:
  - {name: reader, engine: synthetic, endpoints: [embeddings], shape: 1g.10gb, replicas: {min: 2, max: 2}, law: {alpha: 10ms, beta: 100us}, batch: {max_batch_size: 4}}
jobs:
  templates:
    - {name: tidy, kind: evaluate, command: [sh, -c, "echo tidied {what}"], params: [{name: what, type: text, max: 20}]}
  schedules:
    - {name: often, cron: "@every 1s", template: tidy, params: {what: everything}}
`

// The rows of one batch go to both replicas of its model: each engine has read a
// good part of them.
func TestBatchIsSpread(t *testing.T) {
	s := start(t, t.TempDir(), nil, "--config", write(t, "aloft.yaml", spread))
	read := func() (sum []int) {
		for _, pid := range s.engines("reader") {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
			if err != nil {
				t.Skip("what an engine has read cannot be seen here: ", err)
			}
			n := 0
			if _, err := fmt.Sscanf(string(text), "rchar: %d", &n); err != nil {
				t.Fatalf("%v in %s", err, text)
			}
			sum = append(sum, n)
		}
		return sum
	}
	ready := func() bool {
		var st Status
		return s.get("/aloft/v1/status", &st) == nil && len(st.Slices) == 5 && st.Slices[0].Phase == "ready" && st.Slices[1].Phase == "ready"
	}
	if !eventually(patience, ready) {
		t.Fatal(call(t, s.env(), "why"))
	}
	const n, long = 400, 2000
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"custom_id":"row-%d","method":"POST","url":"/v1/embeddings","body":{"model":"reader","input":"%d %s"}}`+"\n", i, i, strings.Repeat("word ", long/5))
	}
	before := read()
	out := call(t, s.env(), "batch", "submit", write(t, "rows.jsonl", b.String()), "--wait")
	if !strings.Contains(out, "400 of 400 rows done, 0 failed") {
		t.Fatal(out)
	}
	after := read()
	if len(before) != 2 || len(after) != 2 {
		t.Fatalf("engines came or went: %v, %v", before, after)
	}
	for i := range after {
		if got := after[i] - before[i]; got < n*long/8 {
			t.Errorf("engine %d of 2 has read %d bytes of %d", i, got, n*long)
		}
	}
	s.stop(t)
}

// The schedules of a configuration make their jobs, for their tenant, one after
// the other; and go on after a restart.
func TestSchedulesOfTheConfiguration(t *testing.T) {
	data := t.TempDir()
	config := write(t, "aloft.yaml", spread)
	runs := 0
	for range 2 {
		s := start(t, data, nil, "--config", config)
		var list string
		if !eventually(patience, func() bool {
			list = call(t, s.env(), "jobs", "list", "--state", "succeeded")
			return strings.Count(list, "often") >= runs+2
		}) {
			t.Fatalf("after %d runs:\n%s", runs, list)
		}
		runs = strings.Count(list, "often")
		id, _, _ := strings.Cut(list[strings.Index(list, "job_"):], " ")
		if out := call(t, s.env(), "jobs", "logs", id); !strings.Contains(out, "tidied everything") {
			t.Errorf("the log of a run: %q", out)
		}
		s.stop(t)
	}
}
