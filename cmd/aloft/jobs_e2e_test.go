package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
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

// jobNow reads what `jobs show --json` says.
func jobNow(t *testing.T, env []string, job string) (j jobObject) {
	t.Helper()
	if err := json.Unmarshal([]byte(call(t, env, "jobs", "show", job, "--json")), &j); err != nil {
		t.Fatal(err)
	}
	return j
}

// Every verb of `aloft jobs` against a running server.
func TestJobCommands(t *testing.T) {
	s := start(t, t.TempDir(), nil, "--config", write(t, "aloft.yaml", worked))
	env := s.env()
	if out := call(t, env, "jobs", "templates"); !strings.Contains(out, "count  train, priority 5\n  to=INT from 1 to 100000, default 3\n") || strings.Contains(out, "sh -c") {
		t.Errorf("jobs templates:\n%s", out)
	}
	// From submission to result, followed all the way.
	out := call(t, env, "jobs", "submit", "count", "to=5", "--name", "first", "--wait", "--live", "plain", "--timeout", "170s")
	if !strings.Contains(out, "succeeded") || !strings.Contains(out, "first 5 of 5 steps") {
		t.Errorf("jobs submit --wait: %s", out)
	}
	if j := jobNow(t, env, "first"); string(j.Result) != `{"counted":5}` || j.Progress.Metrics["loss"] != 0.5 || j.Progress.Message != "at 5" {
		t.Errorf("jobs show: %+v", j)
	}
	if out := call(t, env, "jobs", "show", "latest"); !strings.Contains(out, "to=5\n") || !strings.Contains(out, `{"counted":5}`) {
		t.Errorf("jobs show:\n%s", out)
	}
	const log = "begins at 0\nline 1\nline 2\nline 3\nline 4\nline 5\n"
	if out := call(t, env, "jobs", "logs", "first"); out != log {
		t.Errorf("jobs logs: %q", out)
	}
	if out := call(t, env, "jobs", "logs", "first", "--tail", "2"); out != "line 4\nline 5\n" {
		t.Errorf("jobs logs --tail 2: %q", out)
	}
	events := call(t, env, "jobs", "events", "first", "--follow")
	for _, want := range []string{"submitted", "starts on g0/s", "succeeded"} {
		if !strings.Contains(events, want) {
			t.Errorf("jobs events have no %q:\n%s", want, events)
		}
	}
	// The same once more is the same job; something else is a conflict.
	id, _, _ := strings.Cut(call(t, env, "jobs", "submit", "count", "to=100000", "--idempotency-key", "k1", "--name", "long"), " ")
	if again, _, _ := strings.Cut(call(t, env, "jobs", "submit", "count", "to=100000", "--idempotency-key", "k1", "--name", "long"), " "); again != id {
		t.Errorf("the same submission made %s, want %s", again, id)
	}
	refused(t, aloft(t, env, "jobs", "submit", "count", "to=4", "--idempotency-key", "k1"), "409")

	follower := aloft(t, env, "jobs", "logs", id[:20], "-f")
	if !eventually(patience, func() bool { return jobNow(t, env, id).Progress.Done >= 3 }) {
		t.Fatalf("it does not run: %+v\n%s", jobNow(t, env, id), call(t, env, "why"))
	}
	wait := aloft(t, env, "jobs", "wait", "long", "--timeout", "200ms")
	if code := wait.ended(t, patience); code != 124 || !strings.Contains(wait.err.String(), "it goes on") {
		t.Errorf("jobs wait --timeout: exit code %d, %s", code, wait.err.String())
	}
	call(t, env, "jobs", "pause", "long")
	if !eventually(patience, func() bool { return jobNow(t, env, id).State == "paused" }) {
		t.Fatalf("it is not paused: %+v", jobNow(t, env, id))
	}
	held := jobNow(t, env, id)
	if out := call(t, env, "jobs", "checkpoints", "long"); !strings.Contains(out, fmt.Sprintf("step %d, ", held.Progress.Done)) {
		t.Errorf("jobs checkpoints of %+v: %s", held.Progress, out)
	}
	if out := call(t, env, "jobs", "list", "--state", "paused", "--kind", "train", "--template", "count"); !strings.HasPrefix(out, id) || strings.Count(out, "\n") != 1 {
		t.Errorf("jobs list: %s", out)
	}
	call(t, env, "jobs", "resume", "long")
	if !eventually(patience, func() bool { return jobNow(t, env, id).Progress.Done > held.Progress.Done }) {
		t.Fatalf("it does not go on: %+v", jobNow(t, env, id))
	}
	// One that depends on it waits, and fails with it.
	next, _, _ := strings.Cut(call(t, env, "jobs", "submit", "count", "--after", "long"), " ")
	if j := jobNow(t, env, next); j.State != "waiting" || j.Why == "" || len(j.DependsOn) != 1 || j.DependsOn[0] != id {
		t.Errorf("it depends on a running job and is %+v", j)
	}
	refused(t, aloft(t, env, "jobs", "delete", "long"), "409")
	call(t, env, "jobs", "cancel", "long")
	for job, want := range map[string]int{"long": 3, next: 1} {
		if code := aloft(t, env, "jobs", "wait", job).ended(t, patience); code != want {
			t.Errorf("jobs wait %s: exit code %d, want %d", job, code, want)
		}
	}
	if code := follower.ended(t, patience); code != 0 || !strings.Contains(follower.out.String(), fmt.Sprintf("begins at %d\n", held.Progress.Done)) {
		t.Errorf("logs -f over a pause: exit code %d\n%.300s", code, follower.out.String())
	}
	call(t, env, "jobs", "retry", "long")
	if !eventually(patience, func() bool { return jobNow(t, env, id).State == "running" }) {
		t.Errorf("it is not tried again: %+v", jobNow(t, env, id))
	}
	call(t, env, "jobs", "cancel", "long")
	if code := aloft(t, env, "jobs", "wait", "long").ended(t, patience); code != 3 {
		t.Errorf("jobs wait: exit code %d, want 3", code)
	}
	if out := call(t, env, "jobs", "delete", "long"); out != id+" deleted\n" {
		t.Errorf("jobs delete: %s", out)
	}
	refused(t, aloft(t, env, "jobs", "show", "long"), `there is no job "long"`)
	if _, err := os.Stat(filepath.Join(s.data, "checkpoints", id)); err == nil {
		t.Error("its checkpoints are left")
	}

	fails := aloft(t, env, "jobs", "submit", "fail", "--wait", "--json")
	if code := fails.ended(t, patience); code != 1 || !json.Valid([]byte(fails.out.String())) || !strings.Contains(fails.err.String(), "exit status 7") {
		t.Errorf("a job that fails: exit code %d, %s%s", code, fails.out.String(), fails.err.String())
	}
	badJobCommands(t, env)
	s.stop(t)
}

// badJobCommands are refused with a word that helps.
func badJobCommands(t *testing.T, env []string) {
	t.Helper()
	for _, tt := range []struct {
		args string
		want []string
	}{
		{"submit nope", []string{`no template "nope"`}},
		{"submit count to=0", []string{"params.to", "within 1 and 100000"}},
		{"submit count too=5", []string{"params.too", "no such parameter"}},
		{"submit count five", []string{`"five": want NAME=VALUE`}},
		{"submit count to=1 to=2", []string{"to is given twice"}},
		{"submit count --priority 6", []string{"priority", "template's 5"}},
		{"submit count --width many", []string{"--width many"}},
		{"submit count --not-before soon", []string{"--not-before", `"soon"`}},
		{"submit count --after nobody", []string{"--after", `there is no job "nobody"`}},
		{"submit count --idempotency-key two words", []string{"unexpected argument words"}},
		{"submit --kind train -- sh -c exit", []string{"403", "templates only"}},
		{"list --state happy", []string{"state", "happy"}},
		{"list --limit 0", []string{"limit"}},
		{"logs latest --tail 0x", []string{"--tail"}},
		{"show nobody", []string{`there is no job "nobody"`}},
		{"show job_", []string{"job_ can be each of"}},
		{"resume latest", []string{"already finished"}},
		{"retry first", []string{"409", "not failed or cancelled"}},
		{"pause first", []string{"already finished"}},
	} {
		refused(t, aloft(t, env, append([]string{"jobs"}, strings.Fields(tt.args)...)...), tt.want...)
	}
}

// Every verb of `aloft batch` against a running server.
func TestBatchCommands(t *testing.T) {
	s := start(t, t.TempDir(), nil, "--config", write(t, "aloft.yaml", worked))
	env := s.env()
	const n = 60
	file := rows(t, "reader", n)
	wait := aloft(t, env, "batch", "submit", file, "--wait", "--live", "plain", "--metadata", "for=test", "--timeout", "170s")
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

// A tenant's jobs do not exist for another's key; an admin key sees whose they are.
func TestJobCommandsOfTenants(t *testing.T) {
	data, conf := t.TempDir(), write(t, "aloft.yaml", strings.Replace(worked, "jobs:\n", "jobs:\n  free_commands: true\n", 1))
	key := func(args ...string) []string {
		secret := strings.TrimSpace(call(t, nil, append([]string{"keys", "make", "--data", data}, args...)...))
		return []string{"ALOFT_DATA=" + data, "ALOFT_API_KEY=" + secret[strings.LastIndexAny(secret, " \n")+1:]}
	}
	red, blue, boss := key("--tenant", "red"), key("--tenant", "blue"), key("--tenant", "ops", "--admin")
	s := start(t, data, nil, "--config", conf)
	id, _, _ := strings.Cut(call(t, red, "jobs", "submit", "count", "to=100000", "--name", "mine"), " ")
	for _, verb := range []string{"show", "logs", "events", "checkpoints", "wait", "cancel", "pause", "resume", "retry", "delete"} {
		refused(t, aloft(t, blue, "jobs", verb, "mine"), `there is no job "mine"`)
		refused(t, aloft(t, blue, "jobs", verb, id), "404")
	}
	if out := call(t, blue, "jobs", "list"); out != "" {
		t.Errorf("another tenant's list: %s", out)
	}
	refused(t, aloft(t, blue, "jobs", "submit", "--kind", "train", "--", "sh", "-c", "echo free"), "403", "admin key")
	if out := call(t, boss, "jobs", "list", "--tenant", "red"); !strings.HasPrefix(out, "red ") || !strings.Contains(out, id) {
		t.Errorf("an admin's list: %s", out)
	}
	call(t, boss, "jobs", "cancel", "mine")
	if code := aloft(t, red, "jobs", "wait", "mine").ended(t, patience); code != 3 {
		t.Errorf("cancelled by an admin: exit code %d, want 3", code)
	}
	call(t, boss, "jobs", "submit", "--kind", "train", "--name", "free", "--wait", "--timeout", "170s", "--", "sh", "-c", "echo free --of charge")
	if out := call(t, boss, "jobs", "logs", "free"); out != "free --of charge\n" {
		t.Errorf("what an admin's own program wrote: %q", out)
	}
	_ = s.Process.Signal(syscall.SIGTERM)
	s.stopped(t)
}
