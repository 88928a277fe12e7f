package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// The commands against a server with a certificate of its own, by the names that
// people see: shortened ids, and names of nothing.
func TestCommandsOverTLS(t *testing.T) {
	dir, data := t.TempDir(), t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	pair(t, 1, cert, key)
	conf := write(t, "aloft.yaml", tiny+fmt.Sprintf("gateway: {tls: {cert: %s, key: %s}}\n", cert, key)+
		"jobs: {templates: [{name: nap, kind: train, command: [sleep, '1000'], shape: 1g.10gb}]}\n")
	s := &instance{command: aloft(t, nil, "serve", "--listen", "127.0.0.1:0", "--data", data, "--config", conf), data: data}
	known := []string{"ALOFT_DATA=" + data, "ALOFT_CA=" + cert}
	if !eventually(patience, func() bool {
		c := aloft(t, known, "jobs", "list")
		return c.ended(t, patience) == 0
	}) {
		t.Fatalf("no answer with the CA by its variable\n%s", s.err.String())
	}
	call(t, nil, "jobs", "list", "--data", data, "--ca", cert)
	for _, tt := range []struct {
		ca   []string
		want string
	}{
		{nil, "shows a certificate that is not trusted (name its CA with --ca or ALOFT_CA)"},
		{[]string{"--ca", "/nowhere.pem"}, "read --ca: open /nowhere.pem"},
		{[]string{"--ca", conf}, "--ca " + conf + ": there is no PEM certificate in it"},
	} {
		refused(t, aloft(t, nil, append([]string{"jobs", "list", "--data", data}, tt.ca...)...), tt.want)
	}

	id, _, _ := strings.Cut(strings.TrimSpace(call(t, known, "jobs", "submit", "nap")), " ")
	brief := short(id)
	if brief == id || !strings.HasPrefix(brief, "job-") {
		t.Fatalf("%s is short for %s", brief, id)
	}
	if out := call(t, known, "jobs", "show", brief); !strings.HasPrefix(out, id+" ") {
		t.Errorf("jobs show %s: %s", brief, out)
	}
	if out := call(t, known, "why", brief); out == "" {
		t.Errorf("why %s says nothing", brief)
	}
	if out := call(t, known, "jobs", "cancel", brief); !strings.HasPrefix(out, id+" ") {
		t.Errorf("jobs cancel %s: %s", brief, out)
	}
	if out := call(t, known, "why", "tiny"); out == "" {
		t.Error("why tiny says nothing")
	}
	for _, tt := range []struct {
		args []string
		want []string
	}{
		{[]string{"why", "nobody"}, []string{`there is no model, slice or job "nobody"`}},
		{[]string{"why", "g9/s9"}, []string{`there is no model, slice or job "g9/s9"`}},
		{[]string{"why", "job-none"}, []string{`there is no model, slice or job "job-none"`}},
		{[]string{"jobs", "show", "job-none"}, []string{`there is no job "job-none"`}},
		{[]string{"jobs", "cancel", "nobody"}, []string{`there is no job "nobody"`}},
		{[]string{"jobs", "show", "job_00000000000000000000000000000000"}, []string{"404", "job_0000"}},
		{[]string{"batch", "status", "batch-none"}, []string{`there is no batch "batch-none"`}},
		{[]string{"batch", "results", "latest"}, []string{`there is no batch "latest"`}},
		{[]string{"batch", "wait", "batch-none"}, []string{`there is no batch "batch-none"`}},
		{[]string{"jobs", "submit", "nobody"}, []string{"nobody"}},
	} {
		refused(t, aloft(t, known, tt.args...), tt.want...)
	}

	// A bad file is refused before anything of it is sent; of many lines at fault
	// a few are shown.
	bad := write(t, "bad.jsonl", strings.Repeat("no row\n", 12))
	c := aloft(t, known, "batch", "submit", bad, "--wait")
	if code := c.ended(t, patience); code != 1 || !strings.Contains(c.err.String(), "nothing was sent") ||
		!strings.Contains(c.err.String(), bad+":10: This line is not valid JSON. (invalid_json_line)\n  and 2 more") {
		t.Errorf("batch submit of a bad file: exit code %d, %s", code, c.err.String())
	}
	if out := call(t, known, "batch", "list"); out != "" {
		t.Errorf("batches after a file that was refused: %s", out)
	}
	_ = s.Process.Signal(syscall.SIGTERM)
	s.stopped(t)
}

// A short id that stands for two is told apart, not guessed.
func TestShortIDOfTwo(t *testing.T) {
	ids := map[string]string{
		"/aloft/v1/jobs": `{"data":[{"id":"job_aaaa1234"},{"id":"job_bbbb1234"},{"id":"job_cccc5678"}]}`,
		"/v1/batches":    `{"data":[{"id":"batch_aaaa1234"}]}`,
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, ids[r.URL.Path]) }))
	defer api.Close()
	c := remote{URL: api.URL}.client()
	for given, want := range map[string]string{
		"job-5678": "job_cccc5678", "batch-1234": "batch_aaaa1234", "job-9999": "job-9999",
		"job_aaaa1234": "job_aaaa1234", "job_bb": "job_bbbb1234", "job_dd": "job_dd", "g0/s1": "g0/s1", "aloft-lm": "aloft-lm", "my-job": "my-job", "": "",
	} {
		if got, err := c.full(context.Background(), given); got != want || err != nil {
			t.Errorf("%q: %q, %v; want %q", given, got, err, want)
		}
	}
	for _, two := range []string{"job-1234", "job_"} { // the beginning is the time: jobs of one minute share it
		if _, err := c.full(context.Background(), two); err == nil || !strings.Contains(err.Error(), "job_aaaa1234, job_bbbb1234") {
			t.Errorf("%s of two: %v", two, err)
		}
	}
}
