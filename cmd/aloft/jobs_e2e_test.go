package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// worked are templates that do something visible: they say how far they are, save
// when they are told to, and go on from there.
const worked = `log: {level: debug}
node: {devices: simulated, simulated: [{family: A100-80GB, layout: [1g.10gb, 1g.10gb, 1g.10gb]}]}
models:
  - {name: reader, engine: synthetic, endpoints: [embeddings], shape: 1g.10gb, replicas: {min: 1, max: 1}, law: {alpha: 10ms, beta: 100us}, batch: {max_batch_size: 4}}
arbiter: {guard: 100ms, plan: 300ms, hold: 300ms, window: 5s, min_samples: 5, fast_horizon: 1s, slow_horizon: 2s}
gateway: {drain_grace: 5s}
jobs:
  templates:
    - name: count
      kind: train
      priority: 5
      grace: 5s
      command:
        - sh
        - -c
        - |
          i=0
          [ -z "$ALOFT_RESUME_FROM" ] || i=$(cat "$ALOFT_RESUME_FROM")
          echo "begins at $i"
          save() { echo $i > "$ALOFT_CHECKPOINT_DIR/at"; echo '{"step":'$i',"total":'$1',"checkpoint":"'$ALOFT_CHECKPOINT_DIR/at'","checkpoint_bytes":4}' >&"$ALOFT_PROGRESS_FD"; }
          trap 'save $1; exit 75' TERM
          while [ $i -lt $1 ]; do i=$((i+1)); echo "line $i"; echo '{"step":'$i',"total":'$1',"message":"at '$i'","metrics":{"loss":0.5}}' >&"$ALOFT_PROGRESS_FD"; sleep 0.05; done
          echo '{"step":'$i',"total":'$1',"result":{"counted":'$i'}}' >&"$ALOFT_PROGRESS_FD"
        - count
        - "{to}"
      params: [{name: to, type: int, default: "3", min: 1, max: 100000}]
    - {name: fail, kind: evaluate, command: [sh, -c, "echo broken; exit 7"]}
`

// Every verb of `aloft batch` against a running server.
func TestBatchCommands(t *testing.T) {
	s := start(t, t.TempDir(), nil, "--config", write(t, "aloft.yaml", worked))
	env := s.env()
	const n = 60
	file := rows(t, "reader", n)
	wait := aloft(t, env, "batch", "submit", file, "--wait", "--live", "plain", "--metadata", "for=test", "--timeout", "80s")
	if code := wait.ended(t, patience); code != 0 || !strings.Contains(wait.out.String(), fmt.Sprintf("completed   %d of %d rows done, 0 failed", n, n)) || strings.Contains(wait.err.String(), "\x1b") {
		t.Errorf("batch submit --wait: exit code %d, %s%s", code, wait.out.String(), wait.err.String())
	}
	if out := call(t, env, "batch", "status", "latest"); !strings.HasPrefix(out, "batch_") {
		t.Errorf("batch status: %s", out)
	}
	checkRows(t, call(t, env, "batch", "results", "latest"), n)
	refused(t, aloft(t, env, "batch", "results", "latest", "--errors"), "has no error file")

	// A row that fails is in the other file; a batch is a job, too.
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	mixed := write(t, "mixed.jsonl", string(text)+`{"custom_id":"bad","method":"POST","url":"/v1/embeddings","body":{"model":"reader","input":""}}`+"\n")
	id, _, _ := strings.Cut(call(t, env, "batch", "submit", mixed, "--endpoint", "embeddings"), " ")
	if code := aloft(t, env, "jobs", "wait", short(id)).ended(t, patience); code != 0 {
		t.Errorf("jobs wait of a batch: exit code %d", code)
	}
	to := filepath.Join(t.TempDir(), "out.jsonl")
	call(t, env, "batch", "results", id, "-o", to)
	if got, err := os.ReadFile(to); err != nil {
		t.Error(err)
	} else {
		checkRows(t, string(got), n)
	}
	if out := call(t, env, "batch", "results", id, "--errors"); strings.Count(out, "\n") != 1 || !strings.Contains(out, `"custom_id":"bad"`) {
		t.Errorf("batch results --errors: %s", out)
	}

	long, _, _ := strings.Cut(call(t, env, "batch", "submit", rows(t, "reader", 20_000)), " ")
	if !eventually(patience, func() bool {
		return regexp.MustCompile(`rows/s, about [0-9:]+ left \([0-9:]+\)`).MatchString(call(t, env, "batch", "status", long))
	}) {
		t.Errorf("no forecast: %s", call(t, env, "batch", "status", long))
	}
	if code := aloft(t, env, "batch", "wait", long, "--timeout", "300ms", "--live", "none").ended(t, patience); code != 124 {
		t.Errorf("batch wait --timeout: exit code %d, want 124", code)
	}
	call(t, env, "batch", "cancel", long)
	if code := aloft(t, env, "batch", "wait", long).ended(t, patience); code != 3 {
		t.Errorf("batch wait of a cancelled one: exit code %d, want 3", code)
	}
	if out := call(t, env, "batch", "list"); strings.Count(out, "\n") != 3 {
		t.Errorf("batch list:\n%s", out)
	}
	wrong := aloft(t, env, "batch", "submit", mixed, "--endpoint", "chat")
	if code := wrong.ended(t, patience); code != 1 || !strings.Contains(wrong.err.String(), "mixed.jsonl:1: url must be the batch's endpoint") {
		t.Errorf("a file for another endpoint: exit code %d, %s", code, wrong.err.String())
	}
	for want, args := range map[string][]string{
		"--endpoint images":           {"batch", "submit", mixed, "--endpoint", "images"},
		`completion_window`:           {"batch", "submit", mixed, "--window", "soon"},
		`there is no batch "nothing"`: {"batch", "cancel", "nothing"},
		"already":                     {"batch", "cancel", id},
	} {
		refused(t, aloft(t, env, args...), want)
	}
	s.stop(t)
}
