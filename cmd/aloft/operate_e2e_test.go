package main

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// operated is a node of four slices, one of which no model may hold: what
// operators say decides what of them is lent.
const operated = `node:
  devices: simulated
  simulated:
    - family: A100-80GB
      layout: [1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb]
models:
  - name: tiny
    engine: synthetic
    endpoints: [embeddings]
    shape: 1g.10gb
    replicas: {min: 1, max: 3}
    static: 3
    law: {alpha: 5ms, beta: 10us}
arbiter:
  mode: observe
  guard: 100ms
  plan: 500ms
  hold: 500ms
  after_reclaim: 1s
  window: 5s
  min_samples: 5
  fast_horizon: 1s
  slow_horizon: 2s
  rise_quantile: 0.5
  spare: 0
  budget: {detect: 200ms, kill: 1s, back: 3s}
jobs:
  templates:
    - name: train
      kind: train
      command: ["{aloft}", train, --steps, "{steps}", --pace, 10ms]
      params: [{name: steps, type: int, default: "100", min: 1, max: 100000}]
      shape: 1g.10gb
      grace: 1s
`

// observed asks the server what it did, as operators do.
func (s *instance) observed(t *testing.T) (st Status, r Report) {
	t.Helper()
	if err := s.get("/aloft/v1/status", &st); err != nil {
		t.Fatal(err)
	}
	if err := s.get("/aloft/v1/report", &r); err != nil {
		t.Fatal(err)
	}
	return st, r
}

// decided counts decisions as the report does.
func (r *Report) decided(action string, observed bool) (n int) {
	for _, d := range r.Moves {
		if d.Action == action && d.Observed == observed {
			n += d.Count
		}
	}
	return n
}

// TestObserveSurvivesAndLends: mode observe lends nothing while a job waits, and says
// what it would have lent; that outlives a restart. A reload with a mistake changes
// nothing, one to mode lend lends.
func TestObserveSurvivesAndLends(t *testing.T) {
	file, data := write(t, "aloft.yaml", operated), t.TempDir()
	s := start(t, data, nil, "--config", file)
	job := submitTraining(t, s)
	if !eventually(patience, func() bool {
		_, r := s.observed(t)
		return r.decided("lend", true) > 0 && r.Lending.MissedS > 0
	}) {
		t.Fatalf("nothing would be lent:\n%s%s", call(t, s.env(), "report"), call(t, s.env(), "why"))
	}
	_, r := s.observed(t)
	missed := r.Lending.MissedS
	idle := func() {
		t.Helper()
		st, r := s.observed(t)
		if len(st.Jobs) != 1 || st.Jobs[0].State != "queued" || st.Arbiter.Lent != 0 || r.Lending.Loans != 0 || r.decided("lend", false) != 0 {
			t.Errorf("mode %s: jobs %+v, %d lent, lending %+v", st.Mode, st.Jobs, st.Arbiter.Lent, r.Lending)
		}
	}
	idle()
	wants := func(text string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%q is not in:\n%s", w, text)
			}
		}
	}
	why := call(t, s.env(), "why", job, "--since", "5m")
	wants(why, " to "+job, "(observe mode: not done)")
	if !eventually(patience, func() bool { return strings.Contains(call(t, s.env(), "why", job), " waits in place 1 of the queue") }) {
		t.Errorf("why of a job that waits says nothing of the queue:\n%s", call(t, s.env(), "why", job))
	}
	wants(call(t, s.env(), "report"), "mode observe", "mode lend could have lent about")

	for _, bad := range []struct{ old, new, want string }{
		{"mode: observe", "mode: brave", `arbiter: mode is "brave", want lend, static or observe`},
		{"mode: observe", "mode: lend\n  risk: bold", `arbiter: risk is "bold", want normal or strict`},
		{"mode: observe", "mode: lend\n  windows: [{cron: '61 * * * *', for: 1h}]", "line 16: arbiter.windows[0].cron"},
		{"mode: observe", "mode: lend\n  windows: [{cron: '@daily', for: 1h, models: [huge]}]", `line 16: arbiter.windows[0].models[0]: there is no model "huge"`},
		{"replicas: {min", "pin: [slice-3]\n    replicas: {min", `line 11: models[0].pin[0]: "slice-3" is no slice`},
		{"plan: 500ms", "plan: 1s", "arbiter.plan: changed: this needs a restart"},
	} {
		before := len(s.err.String())
		s.rewrite(t, file, strings.Replace(operated, bad.old, bad.new, 1), `msg="configuration not reloaded"`)
		// A quote in a log line is escaped.
		wants(strings.ReplaceAll(s.err.String()[before:], `\"`, `"`), bad.want, "aloft.yaml")
		idle()
	}

	// What was decided outlives a restart; the job waits on.
	s.stop(t)
	s = start(t, data, nil, "--config", write(t, "same.yaml", operated))
	wants(call(t, s.env(), "why", job, "--since", "10m"), strings.SplitAfter(why, "\n")[0])
	if _, r := s.observed(t); r.Lending.MissedS < missed || r.decided("lend", true) == 0 {
		t.Errorf("after a restart %g slice-s could have been lent, %g before, and %+v was decided", r.Lending.MissedS, missed, r.Moves)
	}
	idle()
	s.stop(t)
}

// A reload sets mode, risk and windows: a window that names nothing stops all
// lending while it is open, and mode static takes back what is no surplus.
func TestOperate(t *testing.T) {
	file := write(t, "aloft.yaml", operated)
	s := start(t, t.TempDir(), nil, "--config", file)
	reload := func(to string) {
		t.Helper()
		s.rewrite(t, file, strings.Replace(operated, "mode: observe", to, 1), `msg="configuration reloaded"`)
	}
	reload("mode: lend\n  risk: strict\n  windows: [{name: freeze, cron: '* * * * *', for: 1h}]")
	a, b := submitTraining(t, s), submitTraining(t, s)
	if st, _ := s.observed(t); st.Mode != "lend" || st.Arbiter.Risk != "strict" || fmt.Sprint(st.Arbiter.Windows) != "[freeze]" || !st.Models[0].Frozen {
		t.Errorf("mode %s, %+v", st.Mode, st.Arbiter)
	}
	if !eventually(patience, func() bool { _, r := s.observed(t); return r.decided("hold", false) > 0 }) {
		t.Errorf("no hold is said:\n%s", call(t, s.env(), "why"))
	}
	time.Sleep(2 * time.Second) // four plans
	if st, r := s.observed(t); st.Arbiter.Lent != 0 || r.Lending.Loans != 0 {
		t.Errorf("lent during a window: %+v\n%s", r.Lending, call(t, s.env(), "why"))
	}
	for _, rest := range []time.Duration{time.Hour, 0} { // open when it is first seen, then over
		until := time.Now().Add(rest).UTC().Format(time.RFC3339)
		reload("mode: lend\n  windows: [{name: short, from: '2026-01-01 00:00', until: '" + until + "'}]")
		if !eventually(patience, func() bool { return strings.Contains(s.err.String(), "open=[short] before=[freeze]") }) {
			t.Fatalf("the log does not say that another window is open:\n%s", s.err.String())
		}
	}
	if !eventually(patience, func() bool { st, _ := s.observed(t); return st.Arbiter.Lent == 2 && len(st.Arbiter.Windows) == 0 }) {
		t.Fatalf("two slices are not lent after the window:\n%s", call(t, s.env(), "why"))
	}
	for _, said := range []string{"open=[freeze] before=[]", "open=[short] before=[freeze]", "open=[] before=[short]"} {
		if !eventually(patience, func() bool { return strings.Contains(s.err.String(), said) }) {
			t.Errorf("the log does not say %s:\n%s", said, s.err.String())
		}
	}
	for _, job := range []string{a, b} {
		var out string // the slice is lent when that is decided; the job runs a moment later
		if !eventually(patience, func() bool { out = call(t, s.env(), "why", job); return strings.Contains(out, " now runs "+job) }) {
			t.Errorf("why of a job that has a slice:\n%s", out)
		}
	}
	reload("mode: static")
	if !eventually(patience, func() bool {
		st, r := s.observed(t)
		return st.Arbiter.Lent == 1 && r.Mode == "static" && r.Reclaims.Kept+r.Reclaims.Broken == 1
	}) {
		t.Errorf("mode static leaves more than free slices to jobs:\n%s", call(t, s.env(), "why"))
	}
	s.stop(t)
}

// submitTraining submits a job that takes a quarter of an hour.
func submitTraining(t *testing.T, s *instance) string {
	t.Helper()
	id, _, _ := strings.Cut(call(t, s.env(), "jobs", "submit", "train", "steps=100000"), " ")
	return id
}
