package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"aloft/backends"
	"aloft/gateway"
	"aloft/loadgen/arrivals"
)

func newTestRecorder(t *testing.T, dir string) *recorder {
	t.Helper()
	r, err := newRecorder(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.close(t.Context()) })
	return r
}

func outcomeAt(at time.Time) *gateway.Outcome {
	return &gateway.Outcome{Arrival: at, Endpoint: backends.Chat, Model: "m", Tenant: "red", Class: backends.Standard, PromptTokens: 7, CompletionTokens: 3}
}

// recorded reads what a recording has on disk.
func recorded(t *testing.T, dir string, r gateway.Recording) []arrivals.Record {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, filepath.Base(r.File)))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := arrivals.Read(f, 0)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

func TestRecorder(t *testing.T) {
	dir := t.TempDir()
	r := newTestRecorder(t, dir)
	r.observe(outcomeAt(time.Now())) // off: nowhere to be found
	on, err := r.Record(true)
	if err != nil || !on.On {
		t.Fatalf("%+v, %v", on, err)
	}
	r.observe(outcomeAt(on.Since.Add(2 * time.Second)))
	r.observe(outcomeAt(on.Since.Add(-time.Second))) // came before the recording began
	if again, err := r.Record(true); err != nil || again.File != on.File {
		t.Errorf("switched on twice: %+v, %v; want the file %s", again, err, on.File)
	}
	off, err := r.Record(false)
	if err != nil || off.On || off.Rows != 2 || off.Lost != 0 || off.File != on.File {
		t.Fatalf("off: %+v, %v", off, err)
	}
	want := arrivals.Record{Endpoint: "chat", Model: "m", Tenant: "red", Class: "standard", InputTokens: 7, OutputTokens: 3}
	rows := recorded(t, dir, off)
	if len(rows) != 2 || rows[0] != want || rows[1].Offset != 2*time.Second {
		t.Errorf("recorded %+v", rows)
	}
	if off, err = r.Record(false); err != nil || off.Rows != 2 {
		t.Errorf("off twice: %+v, %v", off, err)
	}
}

// A restart goes on recording, into a file of its own, until it is switched off.
func TestRecorderGoesOnAfterARestart(t *testing.T) {
	dir := t.TempDir()
	first := newTestRecorder(t, dir)
	on, err := first.Record(true)
	if err != nil {
		t.Fatal(err)
	}
	first.observe(outcomeAt(on.Since))
	if err := first.close(t.Context()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Millisecond) // names have milliseconds
	second := newTestRecorder(t, dir)
	now := second.Recording()
	if !now.On || now.File == on.File {
		t.Fatalf("after the restart %+v, want on and another file than %s", now, on.File)
	}
	if rows := recorded(t, dir, on); len(rows) != 1 {
		t.Errorf("the first file has %d rows, want 1", len(rows))
	}
	if _, err := second.Record(false); err != nil {
		t.Fatal(err)
	}
	if third := newTestRecorder(t, dir); third.Recording().On {
		t.Error("on again though it was switched off")
	}
}

// A recording ends at its largest size, says so, and can be begun anew.
func TestRecorderIsBounded(t *testing.T) {
	dir := t.TempDir()
	r := newTestRecorder(t, dir)
	r.most = 3
	if _, err := r.Record(true); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		r.observe(outcomeAt(time.Now()))
	}
	if !eventually(patience, func() bool { s := r.Recording(); return s.Full && s.Lost == 2 }) {
		t.Fatalf("%+v, want full with 3 rows and 2 lost", r.Recording())
	}
	full := r.Recording()
	time.Sleep(2 * time.Millisecond)
	anew, err := r.Record(true)
	if err != nil || !anew.On || anew.File == full.File || anew.Rows != 0 {
		t.Errorf("anew: %+v, %v", anew, err)
	}
	if rows := recorded(t, dir, full); len(rows) != 3 {
		t.Errorf("%d rows on disk, want 3", len(rows))
	}
}

// A disk that takes no more ends the recording, not the server.
func TestRecorderWithoutAFolder(t *testing.T) {
	r := newTestRecorder(t, filepath.Join(t.TempDir(), "none"))
	if _, err := r.Record(true); err == nil || !strings.Contains(err.Error(), "start recording") {
		t.Errorf("error %v", err)
	}
	r.observe(outcomeAt(time.Now()))
}

// The command switches a running server, and what came is on disk.
func TestRecord(t *testing.T) {
	s := start(t, t.TempDir(), nil, "--config", write(t, "aloft.yaml", tiny))
	env := []string{"ALOFT_URL=" + s.url}
	if out := call(t, env, "record"); out != "not recording\n" {
		t.Errorf("at first: %q", out)
	}
	if out := call(t, env, "record", "on"); !strings.HasPrefix(out, "recording; recordings/") {
		t.Errorf("on: %q", out)
	}
	if _, err := s.embed("tiny", "some text"); err != nil {
		t.Fatal(err)
	}
	if out := call(t, env, "record", "off"); !strings.HasPrefix(out, "not recording; recordings/") || !strings.Contains(out, ": 1 requests") {
		t.Errorf("off: %q", out)
	}
	files, err := filepath.Glob(filepath.Join(s.data, "recordings", "*.jsonl"))
	if err != nil || len(files) != 1 {
		t.Fatalf("files %v, %v", files, err)
	}
	text, err := os.ReadFile(files[0])
	if err != nil || !strings.Contains(string(text), `"model":"tiny"`) || strings.Contains(string(text), "some text") {
		t.Errorf("recorded %s, %v", text, err)
	}
	var e string
	if err := s.ask("POST", "/aloft/v1/recording", map[string]any{"no": 1}, &e); err == nil || !strings.Contains(err.Error(), "400") {
		t.Errorf("a body without on: %v", err)
	}
	s.stop(t)
}
