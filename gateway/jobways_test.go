package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// submitted makes a job and returns its id.
func (e *edge) submitted(t *testing.T, body string, headers ...string) string {
	t.Helper()
	resp, text := e.post(t, "/aloft/v1/jobs", body, headers...)
	if resp.StatusCode != 200 {
		t.Fatalf("submit %s: %d %s", body, resp.StatusCode, text)
	}
	return object(t, text)["id"].(string)
}

// What is asked of a job that waits, step by step.
func TestJobVerbs(t *testing.T) {
	e := withJobs(t, answer(200, "{}"))
	deadline := time.Now().Add(time.Hour).Unix()
	id := e.submitted(t, fmt.Sprintf(`{"template":"train","name":"first","retries":2,"keep_for_seconds":3600,"expected_seconds":60,"deadline":%d}`, deadline))
	for _, tt := range []struct {
		method, verb string
		status       int
		state        any
	}{
		{"POST", "/resume", 409, nil}, {"POST", "/retry", 409, nil}, {"DELETE", "", 409, nil},
		{"POST", "/pause", 200, "paused"}, {"POST", "/pause", 200, "paused"}, {"POST", "/resume", 200, "queued"},
		{"POST", "/cancel", 200, "cancelled"}, {"POST", "/cancel", 200, "cancelled"}, {"POST", "/pause", 400, nil},
		{"POST", "/resume", 400, nil}, {"POST", "/retry", 200, "queued"}, {"POST", "/cancel", 200, "cancelled"},
		{"GET", "", 200, "cancelled"}, {"DELETE", "", 200, nil}, {"GET", "", 404, nil}, {"DELETE", "", 404, nil},
		{"POST", "/retry", 404, nil}, {"GET", "/logs", 404, nil}, {"GET", "/events", 404, nil}, {"GET", "/checkpoints", 404, nil},
		{"GET", "/nothing", 404, nil}, {"PUT", "", 405, nil},
	} {
		resp, text := e.do(t, tt.method, "/aloft/v1/jobs/"+id+tt.verb, "")
		o := object(t, text)
		if resp.StatusCode != tt.status || o["state"] != tt.state {
			t.Errorf("%s %s: %d %s, want %d %v", tt.method, tt.verb, resp.StatusCode, text, tt.status, tt.state)
		}
		if tt.state != nil && (o["name"] != "first" || o["retries"] != 2.0 || o["deadline"] != float64(deadline) || o["expected_seconds"] != 60.0) {
			t.Errorf("%s %s: %s", tt.method, tt.verb, text)
		}
	}
}

// What a submission is refused for, and which parameter is said to be wrong.
func TestBadSubmissions(t *testing.T) {
	e := withJobs(t, answer(200, "{}"), func(o *Options, _ *Deps) { o.FreeCommands = true })
	long := strings.Repeat("x", 300)
	for _, tt := range []struct {
		body, param string
		status      int
	}{
		{`{}`, "template", 400},
		{`{"template":"nope"}`, "template", 400},
		{`{"template":"train","params":{"steps":"many"}}`, "params.steps", 400},
		{`{"template":"train","params":{"steps":0}}`, "params.steps", 400},
		{`{"template":"train","params":{"steps":101}}`, "params.steps", 400},
		{`{"template":"train","params":{"stepz":5}}`, "params.stepz", 400},
		{`{"template":"train","params":{"steps":{"a":1}}}`, "params.steps", 400},
		{`{"template":"train","stepz":5}`, "stepz", 400},
		{`{"template":"train","limits":{"gpus":5}}`, "gpus", 400},
		{`{"template":"train","limits":{"cpus":-1}}`, "limits.cpus", 400},
		{`{"template":"train","limits":{"run_seconds":-1}}`, "limits.run_seconds", 400},
		{`{"template":"train","priority":6}`, "priority", 400},
		{`{"template":"train","priority":"high"}`, "priority", 400},
		{`{"template":"train","depends_on":["job_none"]}`, "depends_on", 400},
		{`{"template":"train","deadline":1}`, "deadline", 400},
		{`{"template":"train","retries":-1}`, "retries", 400},
		{`{"template":"train","not_before":"soon"}`, "not_before", 400},
		{`{"template":"train","deadline":-5}`, "deadline", 400},
		{`{"template":"train","keep_for_seconds":-1}`, "keep_for_seconds", 400},
		{`{"template":"train","keep_for_seconds":1e300}`, "keep_for_seconds", 400},
		{`{"template":"train","expected_seconds":-1}`, "expected_seconds", 400},
		{`{"template":"train","name":"two words"}`, "name", 400},
		{`{"template":"train","name":"latest"}`, "name", 400},
		{`{"template":"train","name":"` + long + `"}`, "name", 400},
		{`{"template":"train","idempotency_key":"` + long + `"}`, "idempotency_key", 400},
		{`{"template":"train","command":["/bin/true"]}`, "command", 400},
		{`{"command":["/bin/true"]}`, "kind", 400},
		{`{"command":["/bin/true"],"kind":"knit"}`, "kind", 400},
		{`{"kind":"batch"}`, "batch", 400},
		{`{"kind":"batch","batch":{"input_file_id":"x"}}`, "batch.endpoint", 400},
		{`{"kind":"batch","batch":{"input_file_id":"x","endpoint":"/v1/embeddings","completion_window":"24h"}}`, "input_file_id", 400},
		{`{"kind":"batch","name":"n","batch":{"input_file_id":"x","endpoint":"/v1/embeddings","completion_window":"24h"}}`, "batch", 400},
		{`{"kind":"train","batch":{"input_file_id":"x"}}`, "kind", 400},
	} {
		resp, text := e.post(t, "/aloft/v1/jobs", tt.body)
		fault, _ := object(t, text)["error"].(map[string]any)
		if resp.StatusCode != tt.status || fault["param"] != tt.param {
			t.Errorf("%s: %d %s, want %d about %s", tt.body, resp.StatusCode, text, tt.status, tt.param)
		}
	}
	for _, q := range []string{"limit=0", "limit=1001", "state=happy"} {
		if resp, text := e.get(t, "/aloft/v1/jobs?"+q); resp.StatusCode != 400 {
			t.Errorf("list with %s: %d %s", q, resp.StatusCode, text)
		}
	}
	if _, text := e.get(t, "/aloft/v1/jobs"); object(t, text)["first_id"] != nil {
		t.Errorf("a refused submission left %s", text)
	}
}

// The same request under the same key is the same job; another one is a conflict.
func TestIdempotentSubmission(t *testing.T) {
	e := withJobs(t, answer(200, "{}"), func(_ *Options, d *Deps) {
		d.Keys = newRing(t, "k1", &Grant{Tenant: "red"}, "k2", &Grant{Tenant: "blue"})
	})
	red, blue := []string{"Authorization", "Bearer k1"}, []string{"Authorization", "Bearer k2"}
	const body = `{"template":"train","params":{"steps":20}}`
	first := e.submitted(t, body, append(red, "Idempotency-Key", "night-1")...)
	for name, again := range map[string]string{
		"by the header": e.submitted(t, body, append(red, "Idempotency-Key", "night-1")...),
		"by the body":   e.submitted(t, `{"template":"train","params":{"steps":"20"},"idempotency_key":"night-1"}`, red...),
	} {
		if again != first {
			t.Errorf("%s: %s, want %s", name, again, first)
		}
	}
	if other := e.submitted(t, body, append(blue, "Idempotency-Key", "night-1")...); other == first {
		t.Error("another tenant got the job of its key")
	}
	if other := e.submitted(t, body, red...); other == first {
		t.Error("a submission without a key got the job of one")
	}
	for _, tt := range []struct {
		body, key string
		status    int
	}{
		{`{"template":"train","params":{"steps":21}}`, "night-1", 409},
		{`{"template":"train","params":{"steps":20},"name":"x"}`, "night-1", 409},
		{`{"template":"train","params":{"steps":20},"idempotency_key":"another"}`, "night-1", 400},
	} {
		if resp, text := e.post(t, "/aloft/v1/jobs", tt.body, append(red, "Idempotency-Key", tt.key)...); resp.StatusCode != tt.status {
			t.Errorf("%s: %d %s, want %d", tt.body, resp.StatusCode, text, tt.status)
		}
	}
	if _, text := e.get(t, "/aloft/v1/jobs", red...); len(object(t, text)["data"].([]any)) != 2 {
		t.Errorf("red has %s", text)
	}
}

// Batches and fine-tuning jobs know a request that is sent again, too: by the
// header that OpenAI's SDKs have for it.
func TestIdempotentBatchesAndFineTunes(t *testing.T) {
	e := withJobs(t, answer(200, "{}"), func(_ *Options, d *Deps) {
		d.Keys = newRing(t, "k1", &Grant{Tenant: "red"}, "k2", &Grant{Tenant: "blue"})
	})
	file := func(key, purpose, text string) string {
		body, kind := form(t, "purpose", purpose, "file", text)
		_, reply := e.do(t, "POST", "/v1/files", body, "Content-Type", kind, "Authorization", "Bearer "+key)
		return object(t, reply)["id"].(string)
	}
	line := `{"custom_id":"a","method":"POST","url":"/v1/embeddings","body":{"model":"tiny","input":"x"}}`
	example := strings.Repeat(`{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]}`+"\n", 10)
	batch := func(key string) string {
		return fmt.Sprintf(`"input_file_id":%q,"endpoint":"/v1/embeddings","completion_window":"24h"`, file(key, "batch", line))
	}
	tune := func(key string) string {
		return fmt.Sprintf(`"model":"tiny","training_file":%q`, file(key, "fine-tune", example))
	}
	for _, c := range []struct{ path, red, blue, more string }{
		{"/v1/batches", "{" + batch("k1") + "%s}", "{" + batch("k2") + "}", `,"metadata":{"a":"b"}`},
		{tunesPath, "{" + tune("k1") + "%s}", "{" + tune("k2") + "}", `,"suffix":"mine"`},
		{"/aloft/v1/jobs", `{"kind":"batch","batch":{` + batch("k1") + "}%s}", `{"kind":"batch","batch":{` + batch("k2") + "}}", `,"priority":-3`},
	} {
		key := "retry-of-" + strings.ReplaceAll(c.path, "/", "-")
		ask := func(by, key, body string) (int, map[string]any) {
			resp, text := e.post(t, c.path, body, "Authorization", "Bearer "+by, "Idempotency-Key", key)
			return resp.StatusCode, object(t, text)
		}
		status, first := ask("k1", key, fmt.Sprintf(c.red, ""))
		if status != 200 || first["id"] == nil {
			t.Fatalf("%s: %d %v", c.path, status, first)
		}
		if status, again := ask("k1", key, fmt.Sprintf(c.red, "")); status != 200 || again["id"] != first["id"] {
			t.Errorf("%s again: %d %v, want %v", c.path, status, again, first["id"])
		}
		if status, other := ask("k1", key, fmt.Sprintf(c.red, c.more)); status != 409 {
			t.Errorf("%s, another request: %d %v, want 409", c.path, status, other)
		}
		if status, other := ask("k2", key, c.blue); status != 200 || other["id"] == first["id"] {
			t.Errorf("%s by another tenant: %d %v, want one of its own", c.path, status, other)
		}
		if status, reply := ask("k1", "with a space", fmt.Sprintf(c.red, "")); status != 400 || reply["error"].(map[string]any)["param"] != "idempotency_key" {
			t.Errorf("%s under a bad key: %d %v", c.path, status, reply)
		}
	}
}

// Each tenant has its own jobs; an admin has all of them, and sees whose they are.
func TestJobsOfTenants(t *testing.T) {
	e := withJobs(t, answer(200, "{}"), func(_ *Options, d *Deps) {
		d.Keys = newRing(t, "k1", &Grant{Tenant: "red"}, "k2", &Grant{Tenant: "blue"}, "boss", &Grant{Tenant: "ops", Admin: true})
	})
	red, blue, boss := []string{"Authorization", "Bearer k1"}, []string{"Authorization", "Bearer k2"}, []string{"Authorization", "Bearer boss"}
	id := e.submitted(t, `{"template":"train","name":"mine"}`, red...)
	path := "/aloft/v1/jobs/" + id
	for _, call := range []string{"GET ", "GET /logs", "GET /events", "GET /checkpoints", "POST /cancel", "POST /pause", "POST /resume", "POST /retry", "DELETE "} {
		method, verb, _ := strings.Cut(call, " ")
		if resp, text := e.do(t, method, path+verb, "", blue...); resp.StatusCode != 404 {
			t.Errorf("%s by another tenant: %d %s, want 404", call, resp.StatusCode, text)
		}
	}
	if resp, text := e.post(t, "/aloft/v1/jobs", fmt.Sprintf(`{"template":"train","depends_on":["%s"]}`, id), blue...); resp.StatusCode != 400 {
		t.Errorf("a job that depends on another tenant's: %d %s", resp.StatusCode, text)
	}
	for _, q := range []string{"", "?tenant=red", "?name=mine"} {
		if _, text := e.get(t, "/aloft/v1/jobs"+q, blue...); object(t, text)["first_id"] != nil {
			t.Errorf("list%s shows another's: %s", q, text)
		}
	}
	if _, text := e.get(t, path, red...); object(t, text)["tenant"] != nil || object(t, text)["state"] != "queued" {
		t.Errorf("its owner sees %s", text)
	}
	if _, text := e.get(t, path, boss...); object(t, text)["tenant"] != "red" {
		t.Errorf("an admin sees %s", text)
	}
	own := e.submitted(t, `{"template":"train"}`, boss...)
	for q, want := range map[string]int{"": 2, "?tenant=red": 1, "?tenant=ops": 1, "?tenant=green": 0} {
		if _, text := e.get(t, "/aloft/v1/jobs"+q, boss...); len(object(t, text)["data"].([]any)) != want {
			t.Errorf("an admin's list%s: %s", q, text)
		}
	}
	if resp, _ := e.get(t, "/aloft/v1/jobs/"+own, red...); resp.StatusCode != 404 {
		t.Errorf("an admin's job for a user: %d", resp.StatusCode)
	}
	if resp, text := e.post(t, path+"/cancel", "", boss...); resp.StatusCode != 200 || object(t, text)["state"] != "cancelled" {
		t.Errorf("cancel by an admin: %d %s", resp.StatusCode, text)
	}
	if resp, _ := e.get(t, "/aloft/v1/jobs"); resp.StatusCode != 401 {
		t.Errorf("without a key: %d", resp.StatusCode)
	}
	if resp, _ := e.get(t, "/v1/models", boss...); resp.StatusCode != 403 {
		t.Errorf("an admin key for a model: %d", resp.StatusCode)
	}
}

// A program of one's own: an admin's, where it is allowed, and never from a page.
func TestFreeCommands(t *testing.T) {
	const body = `{"command":["/bin/true","-x"],"kind":"evaluate"}`
	ring := func(_ *Options, d *Deps) {
		d.Keys = newRing(t, "user", &Grant{Tenant: "red"}, "boss", &Grant{Tenant: "ops", Admin: true})
	}
	allow := func(o *Options, _ *Deps) { o.FreeCommands = true }
	for _, tt := range []struct {
		name    string
		change  []func(*Options, *Deps)
		headers []string
		status  int
	}{
		{"no keys, not allowed", nil, nil, 403},
		{"no keys, allowed", []func(*Options, *Deps){allow}, nil, 200},
		{"no keys, allowed, from a page", []func(*Options, *Deps){allow}, []string{"Origin", "http://127.0.0.1"}, 403},
		{"no keys, allowed, of no type", []func(*Options, *Deps){allow}, []string{"Content-Type", ""}, 403},
		{"user", []func(*Options, *Deps){allow, ring}, []string{"Authorization", "Bearer user"}, 403},
		{"admin", []func(*Options, *Deps){allow, ring}, []string{"Authorization", "Bearer boss"}, 200},
		{"admin, not allowed", []func(*Options, *Deps){ring}, []string{"Authorization", "Bearer boss"}, 403},
	} {
		e := withJobs(t, answer(200, "{}"), tt.change...)
		resp, text := e.post(t, "/aloft/v1/jobs", body, tt.headers...)
		if resp.StatusCode != tt.status {
			t.Errorf("%s: %d %s, want %d", tt.name, resp.StatusCode, text, tt.status)
		}
		if tt.status == 200 && fmt.Sprint(object(t, text)["command"]) != "[/bin/true -x]" {
			t.Errorf("%s: %s", tt.name, text)
		}
	}
}

func TestTemplatesAreShown(t *testing.T) {
	e := withJobs(t, answer(200, "{}"))
	_, text := e.get(t, "/aloft/v1/templates")
	list := object(t, text)["data"].([]any)
	i := slices.IndexFunc(list, func(o any) bool { return o.(map[string]any)["name"] == "train" })
	if i < 0 || strings.Contains(text, "/bin/true") {
		t.Fatalf("templates: %s", text)
	}
	o := list[i].(map[string]any)
	p := o["params"].([]any)[0].(map[string]any)
	if o["name"] != "train" || o["kind"] != "train" || o["priority"] != 5.0 || o["max_width"] != 1.0 ||
		p["name"] != "steps" || p["type"] != "int" || p["default"] != "10" || p["min"] != 1.0 || p["max"] != 100.0 || p["required"] != false {
		t.Errorf("templates: %s", text)
	}
}

// Lists by name and template are complete across pages.
func TestJobListsByName(t *testing.T) {
	e := withJobs(t, answer(200, "{}"))
	var want []string
	for i := range 9 {
		name := fmt.Sprintf("n%d", i%3)
		id := e.submitted(t, fmt.Sprintf(`{"template":"train","name":"%s"}`, name))
		if name == "n1" {
			want = append([]string{id}, want...)
		}
	}
	var got []string
	for after := ""; ; {
		_, text := e.get(t, "/aloft/v1/jobs?name=n1&limit=2&after="+after)
		page := object(t, text)
		for _, j := range page["data"].([]any) {
			got = append(got, j.(map[string]any)["id"].(string))
		}
		if page["has_more"] != true || len(got) > 9 {
			break
		}
		after = page["last_id"].(string)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", got, want)
	}
	if _, text := e.get(t, "/aloft/v1/jobs?template=other"); object(t, text)["first_id"] != nil {
		t.Errorf("of another template: %s", text)
	}
	if resp, text := e.get(t, "/aloft/v1/jobs?after=job_none"); resp.StatusCode != 404 {
		t.Errorf("after an unknown job: %d %s", resp.StatusCode, text)
	}
}

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err == nil {
		_, err = f.WriteString(text)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestJobLogs(t *testing.T) {
	e := withJobs(t, answer(200, "{}"))
	id := e.submitted(t, `{"template":"train"}`)
	path := "/aloft/v1/jobs/" + id + "/logs"
	if resp, text := e.get(t, path); resp.StatusCode != 200 || text != "" || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/plain") {
		t.Errorf("no log yet: %d %q %s", resp.StatusCode, text, resp.Header.Get("Content-Type"))
	}
	log := e.deps.Jobs.LogPath(id)
	older := "1\n2\n3\n"
	wide := strings.Repeat("w", 70_000) + "\n" // wider than a block
	appendTo(t, log+".1", older)
	appendTo(t, log, wide+"4\n5\nrest")
	for q, want := range map[string]string{
		"": older + wide + "4\n5\nrest", "?tail=1": "rest", "?tail=2": "5\nrest", "?tail=3": "4\n5\nrest",
		"?tail=4": wide + "4\n5\nrest", "?tail=5": "3\n" + wide + "4\n5\nrest", "?tail=7": older + wide + "4\n5\nrest", "?tail=100": older + wide + "4\n5\nrest",
	} {
		if _, text := e.get(t, path+q); text != want {
			t.Errorf("logs%s: %d bytes %.40q, want %d", q, len(text), text, len(want))
		}
	}
	whole := older + wide + "4\n5\nrest"
	for q, from := range map[string]int{
		"": 0, "offset=0": 0, "offset=4": 4, "offset=6": 6, fmt.Sprint("offset=", len(whole)-4): len(whole) - 4, "offset=99999999": len(whole),
		"tail=1": len(whole) - 4, "tail=5": 4, "tail=7": 0,
	} {
		resp, text := e.get(t, path+"?"+q)
		if at := resp.Header.Get("X-Aloft-Log-Offset"); text != whole[from:] || at != fmt.Sprint(from) {
			t.Errorf("logs?%s: %d bytes from %s on, want %d from %d", q, len(text), at, len(whole)-from, from)
		}
	}
	for _, q := range []string{"tail=0", "tail=x", "tail=100001", "follow=perhaps", "offset=x", "offset=-1", "offset=1&tail=1"} {
		if resp, text := e.get(t, path+"?"+q); resp.StatusCode != 400 {
			t.Errorf("logs?%s: %d %s", q, resp.StatusCode, text)
		}
	}
}

// A followed log goes on over rotations, also two at once, and ends with the job.
func TestFollowedLog(t *testing.T) {
	e := withJobs(t, answer(200, "{}"))
	id := e.submitted(t, `{"template":"train"}`)
	log := e.deps.Jobs.LogPath(id)
	resp, err := http.Get(e.url + "/aloft/v1/jobs/" + id + "/logs?follow=true&tail=1")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	expect := func(want string) {
		t.Helper()
		got, err := lines.ReadString('\n')
		if err != nil || got != want+"\n" {
			t.Fatalf("%q, %v; want %q", got, err, want)
		}
	}
	rotate := func() {
		if err := os.Rename(log, log+".1"); err != nil {
			t.Fatal(err)
		}
	}
	appendTo(t, log, "one\n")
	expect("one")
	appendTo(t, log, "two\n")
	rotate()
	appendTo(t, log, "three\n")
	expect("two")
	expect("three")
	rotate()
	appendTo(t, log, "four\n")
	rotate() // before anybody looked
	appendTo(t, log, "five\n")
	expect("four")
	expect("five")
	if err := os.Truncate(log, 0); err != nil {
		t.Fatal(err)
	}
	appendTo(t, log, "6\n")
	expect("6")
	appendTo(t, log, "the last\n")
	e.post(t, "/aloft/v1/jobs/"+id+"/cancel", "")
	expect("the last")
	if rest, err := io.ReadAll(lines); err != nil || len(rest) > 0 {
		t.Errorf("after the end: %q, %v", rest, err)
	}
	until(t, "the last follower to leave", func() bool { return e.followers.Load() == 0 })
}

// Events come once each, in order, and a client that comes back gets the rest.
func TestFollowedEvents(t *testing.T) {
	e := withJobs(t, answer(200, "{}"))
	id := e.submitted(t, `{"template":"train"}`)
	path := "/aloft/v1/jobs/" + id + "/events"
	e.post(t, "/aloft/v1/jobs/"+id+"/pause", "")
	e.post(t, "/aloft/v1/jobs/"+id+"/resume", "")
	_, text := e.get(t, path+"?limit=2")
	page := object(t, text)
	list := page["data"].([]any)
	first := list[0].(map[string]any)
	if len(list) != 2 || page["has_more"] != true || first["seq"] != 1.0 || first["object"] != "job.event" || first["level"] != "info" ||
		first["type"] != "state" || first["created_at"].(float64) < 1.7e9 || !strings.Contains(first["message"].(string), "submitted") {
		t.Fatalf("events: %s", text)
	}
	if _, text := e.get(t, path+"?after=2"); object(t, text)["first_id"] != "3" {
		t.Errorf("events after 2: %s", text)
	}
	for _, q := range []string{"after=x", "after=-1", "limit=501"} {
		if resp, text := e.get(t, path+"?"+q); resp.StatusCode != 400 {
			t.Errorf("events?%s: %d %s", q, resp.StatusCode, text)
		}
	}
	req, _ := http.NewRequest("GET", e.url+path+"?follow=true", nil)
	req.Header.Set("Last-Event-ID", "2")
	resp, err := http.DefaultClient.Do(req)
	if err != nil || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("follow: %v, %v", resp, err)
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	var ids []string
	read := func() bool {
		line, err := lines.ReadString('\n')
		if id, ok := strings.CutPrefix(line, "id: "); ok {
			ids = append(ids, strings.TrimSpace(id))
		}
		return err == nil && line != "data: [DONE]\n"
	}
	for len(ids) == 0 && read() {
	}
	e.post(t, "/aloft/v1/jobs/"+id+"/cancel", "")
	for read() {
	}
	if strings.Join(ids, " ") != "3 4" {
		t.Errorf("events %v, want 3 and 4, each once", ids)
	}
	rest, err := io.ReadAll(lines)
	if err != nil || strings.TrimSpace(string(rest)) != "" {
		t.Errorf("after the end: %q, %v", rest, err)
	}
}

// Who follows and leaves is noticed; there is a bound; a drain does not wait.
func TestFollowersLeave(t *testing.T) {
	e := withJobs(t, answer(200, "{}"), func(o *Options, _ *Deps) { o.DrainGrace = time.Minute })
	id := e.submitted(t, `{"template":"train"}`)
	path := e.url + "/aloft/v1/jobs/" + id + "/logs?follow=true"
	ctx, leave := context.WithCancel(t.Context())
	for range 3 {
		req, _ := http.NewRequestWithContext(ctx, "GET", path, nil)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
	}
	if n := e.followers.Load(); n != 3 {
		t.Errorf("%d follow, want 3", n)
	}
	leave()
	until(t, "the last follower to leave", func() bool { return e.followers.Load() == 0 })

	e.followers.Store(followersMost)
	resp, text := e.get(t, "/aloft/v1/jobs/"+id+"/events?follow=true")
	if resp.StatusCode != 429 || resp.Header.Get("Retry-After") == "" {
		t.Errorf("one too many: %d %s", resp.StatusCode, text)
	}
	e.followers.Store(0)

	resp, err := http.Get(path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	e.stop() // the test's end waits for the server, five seconds at most
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("a log that broke off with the server looks whole")
	}
}
