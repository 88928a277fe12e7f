package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"aloft/loadgen"
)

// embeds answers every request with one vector, after a while.
func embeds(t *testing.T, after time.Duration) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(after) // the server's time, which is what is measured
		_, _ = w.Write([]byte(`{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.5]}],"model":"m","usage":{"prompt_tokens":1,"total_tokens":1}}`))
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// Each way in which a load ends has its exit code.
func TestLoadExitCodes(t *testing.T) {
	quick, slow := embeds(t, 0), embeds(t, 50*time.Millisecond)
	dir := t.TempDir()
	before, after := filepath.Join(dir, "before.json"), filepath.Join(dir, "after.json")
	// One at a time, twice as many as can be: the generator falls behind its plan.
	behind := write(t, "behind.yaml", fmt.Sprintf(`{name: behind, seed: 1, workloads: [{name: other, kind: embeddings, url: %q, model: m, max_in_flight: 1,
  phases: [{name: p, duration: 1s, process: {kind: constant, rate: 40}}]}]}`, slow))
	for _, c := range []struct {
		args []string
		code exitCode
		says string // on standard error
	}{
		{[]string{"--url", quick, "--rate", "4", "--for", "1s", "--target", "60s", "--json", before}, 0, ""},
		{[]string{"--rate", "-1"}, exitError, "rate"},
		{[]string{behind, "--json", after}, exitNoCount, "does not count"},
		{[]string{behind, "--assert", "attainment>=2%", "--json", "-"}, exitNoCount, "send lag p99"},
		{[]string{"--url", quick, "--rate", "4", "--for", "1s", "--target", "60s", "--assert", "attainment<50%"}, exitNotHeld, "expected attainment<50%"},
		{[]string{"--url", "http://127.0.0.1:1", "--rate", "4", "--for", "1s"}, exitNotHeld, "requests failed"},
		{[]string{"compare", before, before}, 0, ""},
		{[]string{"compare", before, after}, exitNotHeld, "NOTHING WAS COMPARED"},
		{[]string{"compare", before, "nowhere.json"}, exitError, "nowhere.json"},
	} {
		run := aloft(t, nil, append([]string{"load"}, c.args...)...)
		code, text := run.ended(t, patience), run.err.String()
		busy := code == int(exitNoCount) && c.code != exitNoCount && strings.Contains(text, "does not count") // this machine did other work
		if code != int(c.code) && !busy || !strings.Contains(text, c.says) && !busy {
			t.Errorf("%q: exit code %d, want %d with %q\n%s%s", c.args, code, c.code, c.says, run.out.String(), text)
		}
	}
}

// A terminal that closes ends a run with its results; what it writes meanwhile
// no other run writes over.
func TestLoadHangUp(t *testing.T) {
	url, dir := embeds(t, 0), t.TempDir()
	lines, report := filepath.Join(dir, "lines.jsonl"), filepath.Join(dir, "run.json")
	run := aloft(t, nil, "load", "--url", url, "--rate", "20", "--for", "10m", "--lines", lines, "--json", report)
	if !eventually(patience, func() bool { text, _ := os.ReadFile(lines); return len(text) > 0 }) {
		t.Fatalf("nothing is sent: %s", run.err.String())
	}
	second := aloft(t, nil, "load", "--url", url, "--rate", "20", "--for", "1s", "--lines", lines)
	refused(t, second, "another run is writing to "+lines)
	_ = run.Process.Signal(syscall.SIGHUP)
	if code := run.ended(t, patience); code != 0 && code != int(exitNoCount) { // a machine that does other work
		t.Errorf("exit code %d: %s", code, run.err.String())
	}
	if out := run.out.String(); !strings.Contains(out, "INTERRUPTED after") {
		t.Errorf("no word of the end in\n%s", out)
	}
	search := aloft(t, nil, "load", "search", "--url", url, "--rate", "10", "--window", "5m")
	if !eventually(patience, func() bool { return strings.Contains(search.err.String(), "run 1, 10/s for 300 s begins") }) {
		t.Fatalf("no word of the first run: %s", search.err.String())
	}
	_ = search.Process.Signal(syscall.SIGINT)
	if code := search.ended(t, patience); code != int(exitNotHeld) || !strings.Contains(search.err.String(), "no rate is known to keep the promise: ended from outside") || search.out.String() != "" {
		t.Errorf("a search that was ended at once: exit code %d, %s%s", code, search.out.String(), search.err.String())
	}
	f, err := os.Open(report)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := loadgen.ReadReport(f)
	if err != nil || !r.Interrupted || r.Results[0].OK == 0 || r.Lines == 0 {
		t.Errorf("report %+v, %v", r, err)
	}
}
