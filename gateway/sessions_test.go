package gateway

import (
	"strings"
	"testing"
)

// What is asked of sessions, and which parameter is said to be wrong. Nothing
// starts here: that they run is tested with the real server.
func TestSessions(t *testing.T) {
	e := withJobs(t, answer(200, "{}"), func(o *Options, _ *Deps) { o.FreeCommands = true })
	for _, tt := range []struct {
		body, param string
		status      int
	}{
		{`{}`, "template", 400},
		{`{"template":"train","command":["sh"]}`, "template", 400},
		{`{"template":"train"}`, "kind", 400}, // is of another kind
		{`{"kind":"train","command":["sh"]}`, "kind", 400},
		{`{"command":["sh"],"idle_seconds":-1}`, "idle_seconds", 400},
		{`{"command":["sh"],"idle_seconds":1e300}`, "idle_seconds", 400},
		{`{"command":["sh"],"idle_seconds":86400}`, "idle_seconds", 400},
		{`{"command":["sh"],"longest_seconds":86400}`, "longest_seconds", 400},
		{`{"command":["sh"],"max_width":2}`, "max_width", 400},
		{`{"command":["sh"],"idle":5}`, "idle", 400},
	} {
		resp, text := e.post(t, sessionsPath, tt.body)
		fault, _ := object(t, text)["error"].(map[string]any)
		if resp.StatusCode != tt.status || fault == nil || fault["param"] != tt.param {
			t.Errorf("%s: %d %s, want %d for %s", tt.body, resp.StatusCode, text, tt.status, tt.param)
		}
	}
	resp, text := e.post(t, sessionsPath, `{"command":["sh"],"idle_seconds":90,"name":"desk"}`)
	j := object(t, text)
	s, _ := j["session"].(map[string]any)
	if resp.StatusCode != 200 || j["kind"] != "session" || s["idle_seconds"] != 90.0 || s["longest_seconds"] != 43200.0 || s["ends_at"] != nil {
		t.Fatalf("submit: %d %s", resp.StatusCode, text)
	}
	id := j["id"].(string)
	e.post(t, "/aloft/v1/jobs", `{"template":"train"}`)
	_, text = e.get(t, sessionsPath)
	if list, _ := object(t, text)["data"].([]any); len(list) != 1 || !strings.Contains(text, id) {
		t.Errorf("list: %s", text)
	}

	const raw = "application/octet-stream"
	for _, tt := range []struct {
		method, what, kind, body string
		status                   int
	}{
		{"GET", "/output", "", "", 409}, // it waits for a slice
		{"POST", "/input", raw, "ls\n", 409},
		{"POST", "/resize", "application/json", `{"rows":24,"cols":80}`, 409},
		{"POST", "/heartbeat", "", "", 409},
		{"GET", "/input", "", "", 405},
	} {
		if resp, text := e.do(t, tt.method, sessionsPath+"/"+id+tt.what, tt.body, "Content-Type", tt.kind); resp.StatusCode != tt.status || object(t, text)["error"] == nil {
			t.Errorf("%s %s: %d %s, want %d", tt.method, tt.what, resp.StatusCode, text, tt.status)
		}
	}
	e.post(t, "/aloft/v1/jobs/"+id+"/cancel", "")
	if resp, text := e.do(t, "POST", sessionsPath+"/"+id+"/input", "ls\n", "Content-Type", raw); resp.StatusCode != 400 {
		t.Errorf("input to one that has ended: %d %s, want 400", resp.StatusCode, text)
	}
}
