package main

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
)

const withShells = `
gateway: {insecure: true, drain_grace: 5s, key_file: KEYS}
node: {devices: simulated, simulated: [{family: A100-80GB, layout: [1g.10gb, 1g.10gb, 1g.10gb]}]}
models:
  - {name: reader, engine: synthetic, endpoints: [embeddings], shape: 1g.10gb, replicas: {min: 1, max: 1}, law: {alpha: 10ms, beta: 100us}}
arbiter: {guard: 100ms, plan: 300ms, hold: 300ms, window: 5s, min_samples: 5, fast_horizon: 1s, slow_horizon: 2s}
jobs:
  sessions: {idle: 5m, warn: 6s, per_tenant: 2}
  templates:
    - name: shell
      kind: session
      grace: 2s
      command: ["{program}"]
      params: [{name: program, type: choice, choices: [/bin/sh, /bin/cat], default: /bin/sh}]
`

// seat is a person's terminal with the binary on it.
type seat struct {
	*exec.Cmd
	tty   *os.File
	shown output
	done  chan struct{}
}

func sitDown(t *testing.T, env []string, args ...string) *seat {
	t.Helper()
	bin, err := build()
	if err != nil {
		t.Fatal(err)
	}
	s := &seat{Cmd: exec.Command(bin, args...), done: make(chan struct{})}
	s.Dir = t.TempDir()
	s.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.Dir, "TMPDIR=" + s.Dir}, env...)
	if s.tty, err = pty.StartWithSize(s.Cmd, &pty.Winsize{Rows: 31, Cols: 97}); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() { _, _ = io.Copy(&s.shown, s.tty); close(read) }() // EIO at the end
	go func() { <-read; _ = s.Wait(); close(s.done) }()
	t.Cleanup(func() {
		_ = s.Process.Kill()
		<-s.done
		s.tty.Close()
	})
	return s
}

func (s *seat) types(t *testing.T, text string) {
	t.Helper()
	if _, err := s.tty.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

func (s *seat) sees(t *testing.T, want string) {
	t.Helper()
	if !eventually(patience, func() bool { return strings.Contains(s.shown.String(), want) }) {
		t.Fatalf("%q does not show; there is\n%s", want, s.shown.String())
	}
}

func (s *seat) left(t *testing.T, code int) {
	t.Helper()
	select {
	case <-s.done:
	case <-time.After(patience):
		t.Fatalf("%v does not end\n%s", s.Args, s.shown.String())
	}
	if got := s.ProcessState.ExitCode(); got != code {
		t.Errorf("%v: exit code %d, want %d\n%s", s.Args, got, code, s.shown.String())
	}
}

func TestSessionCommands(t *testing.T) {
	keys := write(t, "keys.yaml", `keys:
  - {id: key_red, sha256: b1f51a511f1da0cd348b8f8598db32e61cb963e5fc69e2b41485bf99590ed75a, tenant: red}
  - {id: key_blue, sha256: 16477688c0e00699c6cfa4497a3612d7e83c532062b64b250fed8908128ed548, tenant: blue}
`)
	s := start(t, t.TempDir(), nil, "--config", write(t, "aloft.yaml", strings.Replace(withShells, "KEYS", keys, 1)))
	red, blue := []string{"ALOFT_URL=" + s.url, "ALOFT_API_KEY=red"}, []string{"ALOFT_URL=" + s.url, "ALOFT_API_KEY=blue"}

	// Echo through the terminal, of the size that the person's has; detach, and
	// come back to the same shell.
	desk := sitDown(t, red, "session", "--template", "shell", "--shape", "1g.10gb", "--name", "desk")
	desk.sees(t, "attached to job_")
	desk.types(t, "a=41; stty size\n")
	desk.sees(t, "31 97")
	desk.types(t, "echo $((a+1)) is the sum\n")
	desk.sees(t, "42 is the sum")
	list := call(t, red, "session", "list")
	if f := strings.Fields(strings.Split(list, "\n")[1]); len(f) != 7 || f[1] != "desk" || f[2] != "running" || f[3] != "1g.10gb" || !strings.HasSuffix(f[5], "s") {
		t.Errorf("session list:\n%s", list)
	}
	id, _, _ := strings.Cut(strings.Split(list, "\n")[1], " ")
	desk.types(t, "\x10\x11")
	desk.left(t, 0)
	desk.sees(t, "detached")

	// It does not exist for another tenant.
	if out := call(t, blue, "session", "list"); strings.Contains(out, id) {
		t.Errorf("another tenant's list:\n%s", out)
	}
	refused(t, aloft(t, blue, "session", "attach", id), "404")
	for _, ask := range []string{"GET output", "POST input", "POST resize", "POST heartbeat"} {
		method, what, _ := strings.Cut(ask, " ")
		req, err := http.NewRequestWithContext(t.Context(), method, s.url+"/aloft/v1/sessions/"+id+"/"+what, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer blue")
		req.Header.Set("Content-Type", "application/octet-stream")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s by another tenant: %d, want 404", ask, resp.StatusCode)
		}
	}

	for _, tt := range []struct {
		kind, body string
		status     int
	}{{"text/plain", "exit\n", 415}, {"application/octet-stream", strings.Repeat("x", 65<<10), 400}} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/aloft/v1/sessions/"+id+"/input", strings.NewReader(tt.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer red")
		req.Header.Set("Content-Type", tt.kind)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != tt.status {
			t.Errorf("%d bytes of %s: %d, want %d", len(tt.body), tt.kind, resp.StatusCode, tt.status)
		}
	}

	again := sitDown(t, red, "session", "attach", "desk")
	again.types(t, "echo $((a+2)) it still is\n")
	again.sees(t, "43 it still is")
	again.types(t, "exit\n")
	again.left(t, 0)
	if out := call(t, red, "jobs", "show", id); !strings.Contains(out, "succeeded") {
		t.Errorf("after exit:\n%s", out)
	}

	// An idle one is warned and reclaimed; whoever looks on is told.
	nap := sitDown(t, red, "session", "--template", "shell", "--idle", "8s")
	nap.sees(t, "this session ends in ") // 6 s, or less where this machine was late
	nap.sees(t, "this session ends: nobody used it for 8s")
	nap.left(t, 4)
	if out := call(t, red, "jobs", "events", "latest"); !strings.Contains(out, "this session ends in") || !strings.Contains(out, "expired: nobody used it for 8s") {
		t.Errorf("events:\n%s", out)
	}
	if out := call(t, red, "session", "list"); strings.Contains(out, "job_") {
		t.Errorf("after all have ended:\n%s", out)
	}

	// Standard input need not be a terminal; its end ends the shell.
	bin, err := build()
	if err != nil {
		t.Fatal(err)
	}
	piped := exec.CommandContext(t.Context(), bin, "session", "--template", "shell")
	piped.Env, piped.Stdin = append(red, "HOME="+t.TempDir()), strings.NewReader("echo $((6*7)) piped\n")
	if out, err := piped.Output(); err != nil || !strings.Contains(string(out), "42 piped") {
		t.Errorf("piped: %v, %s", err, out)
	}

	// Ended by hand.
	call(t, red, "session", "-d", "--template", "shell", "--name", "third", "program=/bin/cat")
	call(t, red, "session", "end", "third")
	if code := aloft(t, red, "jobs", "wait", "third").ended(t, patience); code != 3 {
		t.Errorf("after session end: exit code %d, want 3", code)
	}
	refused(t, aloft(t, red, "session", "--", "/bin/sh"), "templates only")
	refused(t, aloft(t, red, "session", "--template", "shell", "--idle", "1000h"), "idle_seconds")
	s.stop(t)
}
