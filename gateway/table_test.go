package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"aloft/backends"
)

// wire is an error as a client reads it: null and "" differ.
type wire struct {
	Message     string
	Type        string
	Param, Code *string
}

// wireOf reads an error's body, which has exactly the four fields.
func wireOf(t *testing.T, body string) wire {
	t.Helper()
	var all struct{ Error map[string]json.RawMessage }
	var w struct{ Error wire }
	if json.Unmarshal([]byte(body), &all) != nil || json.Unmarshal([]byte(body), &w) != nil || len(all.Error) != 4 || w.Error.Message == "" {
		t.Errorf("body %q, want an error with message, type, param and code", body)
	}
	return w.Error
}

func said(s *string) string {
	if s == nil {
		return "null"
	}
	return *s
}

// The error table of the API, row by row, as it is read from the wire: whole
// and before a stream begins.
func TestErrorRows(t *testing.T) {
	const invalidType = "invalid_request_error"
	chat := func(rest string) string {
		return `{"model":"tiny","messages":[{"role":"user","content":"hi"}]` + rest + `}`
	}
	retry := func(err error, reason string) error {
		return &backends.RetryError{Err: err, After: 2500 * time.Millisecond, Reason: reason}
	}
	long := strings.Repeat("x", 1001)
	tests := []struct {
		name, path, body string
		fault            error // of the engine or its queue
		headers          []string
		status           int
		kind, code       string
		param            string
		reason           string
		comeBack, never  bool // Retry-After, x-should-retry: false
	}{
		{name: "unknown model", body: strings.Replace(chat(""), "tiny", "nope", 1), status: 404, kind: invalidType, code: "model_not_found", param: "model"},
		{name: "not JSON", body: "hi", status: 400, kind: invalidType, code: "null", param: "null"},
		{name: "absent", body: `{"model":"tiny"}`, status: 400, kind: invalidType, code: "missing_required_parameter", param: "messages"},
		{name: "wrong type", body: chat(`,"stream_options":{"include_usage":1}`), status: 400, kind: invalidType, code: "invalid_type", param: "stream_options.include_usage"},
		{name: "wrong type within a list", body: `{"model":"tiny","messages":["x"]}`, status: 400, kind: invalidType, code: "invalid_type", param: "messages[0]"},
		{name: "bad value", path: "/v1/embeddings", body: `{"model":"tiny","input":"x","encoding_format":"hex"}`, status: 400, kind: invalidType, code: "invalid_value", param: "encoding_format"},
		{name: "out of range", body: chat(`,"max_tokens":-1`), status: 400, kind: invalidType, code: "invalid_value", param: "max_tokens"},
		{name: "over the context, chat", body: strings.Replace(chat(""), "hi", long, 1), status: 400, kind: invalidType, code: "context_length_exceeded", param: "messages"},
		{name: "over the context, embeddings", path: "/v1/embeddings", body: `{"model":"tiny","input":"` + long + `"}`, status: 400, kind: invalidType, code: "context_length_exceeded", param: "input"},
		{name: "over the context, completions", path: "/v1/completions", body: `{"model":"tiny","prompt":"` + long + `"}`, status: 400, kind: invalidType, code: "context_length_exceeded", param: "prompt"},
		{name: "over the context, responses", path: "/v1/responses", body: `{"model":"tiny","input":"` + long + `"}`, status: 400, kind: invalidType, code: "context_length_exceeded", param: "input"},
		{name: "over the context, rerank", path: "/v1/rerank", body: `{"model":"tiny","query":"q","documents":["` + long + `"]}`, status: 400, kind: invalidType, code: "context_length_exceeded", param: "documents"},
		{name: "over the context, as the engine counts", fault: backends.ErrTooLong, status: 400, kind: invalidType, code: "context_length_exceeded", param: "messages"},
		{name: "too large", body: strings.Repeat(" ", 10001), status: 413, kind: invalidType, code: "request_too_large", param: "null"},
		{name: "wrong type of content", headers: []string{"Content-Type", "text/plain"}, status: 415, kind: invalidType, code: "unsupported_media_type", param: "null"},
		{name: "wrong encoding", headers: []string{"Content-Encoding", "br"}, status: 415, kind: invalidType, code: "unsupported_media_type", param: "null"},
		{name: "no key", headers: []string{"Authorization", ""}, status: 401, kind: invalidType, code: "invalid_api_key", param: "null"},
		{name: "bad key", headers: []string{"Authorization", "Bearer nope"}, status: 401, kind: invalidType, code: "invalid_api_key", param: "null"},
		{name: "a model of others", headers: []string{"Authorization", "Bearer few"}, status: 403, kind: "permission_error", code: "model_not_allowed", param: "model", reason: "not_allowed"},
		{name: "unknown URL", path: "/v1/nope", status: 404, kind: invalidType, code: "unknown_url", param: "null"},
		{name: "wrong method", path: "/v1/models", status: 405, kind: invalidType, code: "unknown_url", param: "null"},
		{name: "requests a minute", headers: []string{"Authorization", "Bearer rpm"}, status: 429, kind: "requests", code: "rate_limit_exceeded", param: "null", reason: "rate_limit", comeBack: true},
		{name: "tokens a minute", headers: []string{"Authorization", "Bearer tpm"}, status: 429, kind: "tokens", code: "rate_limit_exceeded", param: "null", reason: "rate_limit", comeBack: true},
		{name: "requests at once", headers: []string{"Authorization", "Bearer par"}, status: 429, kind: "requests", code: "rate_limit_exceeded", param: "null", reason: "rate_limit", comeBack: true},
		{name: "budget", headers: []string{"Authorization", "Bearer poor"}, status: 429, kind: "insufficient_quota", code: "insufficient_quota", param: "null", reason: "budget", never: true},
		{name: "queue full", fault: retry(backends.ErrOverloaded, "queue_full"), status: 429, kind: "rate_limit_error", code: "overloaded", param: "null", reason: "queue_full", comeBack: true},
		{name: "queue timeout", fault: retry(backends.ErrOverloaded, "queue_timeout"), status: 429, kind: "rate_limit_error", code: "overloaded", param: "null", reason: "queue_timeout", comeBack: true},
		{name: "no replica", fault: retry(backends.ErrUnavailable, "no_replica"), status: 503, kind: "server_error", code: "service_unavailable", param: "null", reason: "no_replica", comeBack: true},
		{name: "loading too long", fault: retry(backends.ErrUnavailable, "loading"), status: 503, kind: "server_error", code: "service_unavailable", param: "null", reason: "loading", comeBack: true},
		{name: "draining", fault: backends.ErrDraining, status: 503, kind: "server_error", code: "service_unavailable", param: "null", reason: "draining", comeBack: true},
		{name: "connect refused", fault: backends.ErrConnect, status: 502, kind: "server_error", code: "bad_gateway", param: "null", reason: "engine_unreachable"},
		{name: "bad reply", fault: backends.ErrBadReply, status: 502, kind: "server_error", code: "bad_gateway", param: "null", reason: "engine_bad_reply"},
		{name: "silent", fault: backends.ErrSilent, status: 504, kind: "server_error", code: "gateway_timeout", param: "null", reason: "engine_silent"},
		{name: "a bug", fault: errors.New("a bug"), status: 500, kind: "server_error", code: "internal_error", param: "null", reason: "internal", never: true},
	}
	for _, tt := range tests {
		for _, stream := range []bool{false, true} {
			body := tt.body
			if body == "" {
				body = chat("")
			}
			if stream && !strings.HasPrefix(body, "{") {
				continue
			}
			if stream {
				body = strings.Replace(body, "{", `{"stream":true,`, 1)
			}
			t.Run(fmt.Sprintf("%s, stream %v", tt.name, stream), func(t *testing.T) {
				e := start(t, fails(tt.fault), func(o *Options, d *Deps) {
					o.MaxBody = 10000
					m := testModels()[0]
					m.Endpoints = backends.Endpoints()
					r := newRing(t, "k", &Grant{}, "few", &Grant{Models: []string{"other"}}, "rpm", &Grant{}, "tpm", &Grant{}, "poor", &Grant{}, "par", &Grant{})
					r.limits["id-par"].parallel, r.limits["id-par"].running = 1, 1
					t.Cleanup(func() { r.limits["id-par"].running = 0 })
					r.limits["id-rpm"].requests, r.limits["id-rpm"].made = 1, 1
					r.limits["id-tpm"].tokens, r.limits["id-poor"].budget = 10, 10
					d.Catalog, d.Keys = shelf{m}, r
				})
				path := tt.path
				if path == "" {
					path = "/v1/chat/completions"
				}
				resp, text := e.post(t, path, body, append([]string{"Authorization", "Bearer k"}, tt.headers...)...)
				got, h := wireOf(t, text), resp.Header
				if resp.StatusCode != tt.status || got.Type != tt.kind || said(got.Code) != tt.code || said(got.Param) != tt.param {
					t.Errorf("%d %s, want %d %s %s about %s", resp.StatusCode, text, tt.status, tt.kind, tt.code, tt.param)
				}
				if h.Get("Content-Type") != "application/json" || h.Get("X-Request-Id") == "" || h.Get("X-Aloft-Reason") != tt.reason {
					t.Errorf("headers %v, want JSON, a request id and the reason %q", h, tt.reason)
				}
				if (h.Get("Retry-After") != "") != tt.comeBack || (h.Get("Retry-After-Ms") != "") != tt.comeBack || (h.Get("X-Should-Retry") == "false") != tt.never {
					t.Errorf("headers %v, want to come back: %v, never: %v", h, tt.comeBack, tt.never)
				}
			})
		}
	}
}

// Even who is turned away at the door gets an id to ask about.
func TestRefusedConnectionHasAnID(t *testing.T) {
	e := start(t, answer(200, "{}"), func(o *Options, _ *Deps) { o.Conns.All = 1 })
	if status, _, err := exchangeRaw(e.dial(t), healthText); status != 200 {
		t.Fatalf("the first: %d, %v", status, err)
	}
	ids := map[string]bool{}
	for range 2 {
		resp, err := http.ReadResponse(bufio.NewReader(e.dial(t)), nil) // http.Get may have it before it has asked
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if w := wireOf(t, string(body)); resp.StatusCode != 503 || said(w.Code) != "too_many_connections" || resp.Header.Get("Retry-After") != "1" {
			t.Errorf("%d %s %v", resp.StatusCode, body, resp.Header)
		}
		ids[resp.Header.Get("X-Request-Id")] = true
	}
	if len(ids) != 2 || ids[""] {
		t.Errorf("ids %v, want two", ids)
	}
}

// A stream of several choices is whole when each of them has ended.
func TestStreamOfSeveralChoices(t *testing.T) {
	frame := func(index int, delta, finish string) string {
		return fmt.Sprintf("data: {\"choices\":[{\"index\":%d,\"delta\":%s,\"finish_reason\":%s}]}\n\n", index, delta, finish)
	}
	a, b := frame(0, `{"content":"a"}`, "null"), frame(1, `{"content":"b"}`, "null")
	stopA, stopB := frame(0, "{}", `"stop"`), frame(1, "{}", `"length"`)
	after := frame(0, "{}", "null") // as Azure's filters send it
	for _, tt := range []struct {
		name   string
		frames []string
		whole  bool
	}{
		{"each ends", []string{a, b, stopA, b, stopB, frameDone}, true},
		{"more after an end", []string{a, b, stopA, after, stopB, after, frameDone}, true},
		{"one is cut off", []string{a, b, stopA, b, frameDone}, false},
		{"one is cut off, without a mark", []string{a, b, stopB}, false},
	} {
		e := start(t, plays(io.EOF, tt.frames...))
		_, got, clean := chunks(t, e.raw(t, "/v1/chat/completions", strings.Replace(streamBody, "{", `{"n":2,`, 1)))
		last := got[len(got)-1]
		if clean != tt.whole || (last == frameDone) != tt.whole || !tt.whole && !strings.HasPrefix(last, `data: {"error":`) {
			t.Errorf("%s: %q, clean %v", tt.name, got, clean)
		}
		if o := e.ledger.wait(t); (o.Status == 200) != tt.whole {
			t.Errorf("%s: observed %d", tt.name, o.Status)
		}
	}
}

// A stream may be longer than any whole reply, and one of Responses that its
// own limit ended is whole.
func TestLongAndIncompleteStreams(t *testing.T) {
	var frames []string
	for range 200 {
		frames = append(frames, frameHel)
	}
	e := start(t, plays(io.EOF, append(frames, frameFinish, frameDone)...), func(o *Options, _ *Deps) { o.MaxReply = 1000 })
	if _, got, clean := chunks(t, e.raw(t, "/v1/chat/completions", streamBody)); len(got) != 202 || !clean {
		t.Errorf("%d chunks, clean %v, want 202", len(got), clean)
	}
	incomplete := "event: response.incomplete\ndata: {\"type\":\"response.incomplete\",\"response\":{\"usage\":{\"input_tokens\":3,\"output_tokens\":4}}}\n\n"
	e = start(t, plays(io.EOF, incomplete), every)
	_, got, clean := chunks(t, e.raw(t, "/v1/responses", `{"model":"tiny","stream":true,"input":"x"}`))
	if len(got) != 1 || got[0] != incomplete || !clean {
		t.Errorf("%q, clean %v", got, clean)
	}
	if o := e.ledger.wait(t); o.Status != 200 || o.CompletionTokens != 4 {
		t.Errorf("observed %d, %d tokens", o.Status, o.CompletionTokens)
	}
}

// The list of models is the same whenever it is asked for, and asks no engine.
func TestModelRows(t *testing.T) {
	e := start(t, func(context.Context, *backends.Request) (*backends.Reply, error) {
		t.Error("a list asked an engine")
		return nil, backends.ErrUnavailable
	})
	_, first := e.get(t, "/v1/models")
	if _, second := e.get(t, "/v1/models"); first != second || !strings.Contains(first, `"created":1700000000`) {
		t.Errorf("%s\nthen\n%s", first, second)
	}
	for _, id := range []string{"nope", "org/nope", "org%2Fnope", "tiny/"} {
		resp, body := e.get(t, "/v1/models/"+id)
		if w := wireOf(t, body); resp.StatusCode != 404 || said(w.Code) != "model_not_found" || said(w.Param) != "model" {
			t.Errorf("%s: %d %s", id, resp.StatusCode, body)
		}
	}
}

// finished runs a batch to its end and returns it.
func (e *edge) finished(t *testing.T, rows string) (b map[string]any) {
	t.Helper()
	_, f := e.upload(t, "purpose", "batch", "file", rows)
	resp, text := e.post(t, "/v1/batches", fmt.Sprintf(`{"input_file_id":"%s","endpoint":"/v1/embeddings","completion_window":"24h"}`, f["id"]))
	if b = object(t, text); resp.StatusCode != 200 || b["status"] != "validating" {
		t.Fatalf("create: %d %s", resp.StatusCode, text)
	}
	last := 0.0
	until(t, "the end of the batch", func() bool {
		_, text := e.get(t, "/v1/batches/"+b["id"].(string))
		b = object(t, text)
		n := b["request_counts"].(map[string]any)
		done := n["completed"].(float64) + n["failed"].(float64)
		if done < last || done > n["total"].(float64) {
			t.Errorf("counts %v after %v were done", n, last)
		}
		last = done
		return b["completed_at"] != nil || b["failed_at"] != nil
	})
	return b
}

// The rules of batches that a client can see, row by row.
func TestBatchRows(t *testing.T) {
	e := withJobs(t, func(_ context.Context, req *backends.Request) (*backends.Reply, error) {
		if strings.Contains(string(req.Body), "bad") {
			return nil, backends.ErrBadReply
		}
		return whole200(200, `{"object":"list","data":[],"usage":{"prompt_tokens":2,"total_tokens":2}}`), nil
	})
	row := func(id, input string) string {
		return fmt.Sprintf(`{"custom_id":"%s","method":"POST","url":"/v1/embeddings","body":{"model":"tiny","input":"%s"}}`+"\n", id, input)
	}
	t.Run("a file is there for what there is to say", func(t *testing.T) {
		good, bad := e.finished(t, row("a", "good")+row("b", "good")), e.finished(t, row("a", "bad")+row("b", "bad"))
		if good["status"] != "completed" || good["output_file_id"] == nil || good["error_file_id"] != nil {
			t.Errorf("all good: %v", good)
		}
		if bad["status"] != "completed" || bad["output_file_id"] != nil || bad["error_file_id"] == nil { // a failed row fails no batch
			t.Errorf("all bad: %v", bad)
		}
		if left := good["expires_at"].(float64) - good["created_at"].(float64); left != 24*3600 {
			t.Errorf("expires %v s after it was made, want 24h", left)
		}
		for _, b := range []map[string]any{good, bad} {
			id, _ := b["output_file_id"].(string)
			if id == "" {
				id = b["error_file_id"].(string)
			}
			_, text := e.get(t, "/v1/files/"+id)
			if f := object(t, text); f["purpose"] != "batch_output" || f["object"] != "file" {
				t.Errorf("result %s", text)
			}
			_, lines := e.get(t, "/v1/files/"+id+"/content")
			for line := range strings.Lines(lines) {
				l := object(t, line)
				r := l["response"].(map[string]any)
				status := r["status_code"]
				if !strings.HasPrefix(l["id"].(string), "batch_req_") || l["error"] != nil || len(l) != 4 || r["request_id"] == "" || status != 200.0 && status != 502.0 {
					t.Errorf("row %s", line)
				}
				if fault, _ := r["body"].(map[string]any)["error"].(map[string]any); (fault != nil) != (status == 502.0) || fault != nil && len(fault) != 4 {
					t.Errorf("body of %s", line)
				}
			}
		}
	})
	t.Run("what is refused at once", func(t *testing.T) {
		_, f := e.upload(t, "purpose", "batch", "file", row("a", "x"))
		_, other := e.upload(t, "purpose", "assistants", "file", row("a", "x"))
		wish := func(file any, more string) string {
			return fmt.Sprintf(`{"input_file_id":%q,"endpoint":"/v1/embeddings","completion_window":"24h"%s}`, file, more)
		}
		expires := func(anchor string, seconds int) string {
			return wish(f["id"], fmt.Sprintf(`,"output_expires_after":{"anchor":%q,"seconds":%d}`, anchor, seconds))
		}
		pairs := func(n int) string {
			m := map[string]string{}
			for i := range n {
				m[fmt.Sprint("k", i)] = "v"
			}
			b, _ := json.Marshal(m)
			return wish(f["id"], `,"metadata":`+string(b))
		}
		for _, tt := range []struct {
			body, param string // "" = it is accepted
		}{
			{wish("file-nope", ""), "input_file_id"},
			{wish(other["id"], ""), "input_file_id"},
			{strings.Replace(wish(f["id"], ""), "embeddings", "images/generations", 1), "endpoint"},
			{strings.Replace(wish(f["id"], ""), "24h", "1y", 1), "completion_window"},
			{expires("created_at", 3600), ""}, {expires("created_at", 2592000), ""},
			{expires("created_at", 3599), "output_expires_after.seconds"}, {expires("created_at", 2592001), "output_expires_after.seconds"},
			{expires("last_active_at", 3600), "output_expires_after.anchor"},
			{pairs(16), ""}, {pairs(17), "metadata"},
		} {
			resp, text := e.post(t, "/v1/batches", tt.body)
			if tt.param == "" {
				if resp.StatusCode != 200 {
					t.Errorf("%s: %d %s", tt.body, resp.StatusCode, text)
				}
				continue
			}
			if w := wireOf(t, text); resp.StatusCode != 400 || said(w.Param) != tt.param || w.Type != "invalid_request_error" {
				t.Errorf("%s: %d %s, want 400 about %s", tt.body, resp.StatusCode, text, tt.param)
			}
		}
	})
	t.Run("what is not there", func(t *testing.T) {
		for _, call := range [][2]string{{"GET", "/v1/batches/batch_0"}, {"POST", "/v1/batches/batch_0/cancel"}, {"GET", "/v1/files/file-0"}, {"GET", "/v1/files/file-0/content"}, {"DELETE", "/v1/files/file-0"}} {
			if resp, text := e.do(t, call[0], call[1], ""); resp.StatusCode != 404 || wireOf(t, text).Type != "invalid_request_error" {
				t.Errorf("%v: %d %s", call, resp.StatusCode, text)
			}
		}
		if resp, text := e.get(t, "/v1/files?order=up"); resp.StatusCode != 400 || said(wireOf(t, text).Param) != "order" {
			t.Errorf("order=up: %d %s", resp.StatusCode, text)
		}
	})
}

// A running batch is cancelling at once, and once more is no error.
func TestCancelOfARunningBatch(t *testing.T) {
	e := withJobs(t, holds(make(chan error, 10)))
	_, f := e.upload(t, "purpose", "batch", "file", `{"custom_id":"r","method":"POST","url":"/v1/embeddings","body":{"model":"tiny","input":"x"}}`+"\n")
	_, text := e.post(t, "/v1/batches", fmt.Sprintf(`{"input_file_id":"%s","endpoint":"/v1/embeddings","completion_window":"24h"}`, f["id"]))
	id := object(t, text)["id"].(string)
	e.untilBatch(t, id, "in_progress")
	if resp, text := e.do(t, "DELETE", "/v1/files/"+f["id"].(string), ""); resp.StatusCode != 400 {
		t.Errorf("the input goes from under it: %d %s", resp.StatusCode, text)
	}
	resp, text := e.post(t, "/v1/batches/"+id+"/cancel", "")
	if b := object(t, text); resp.StatusCode != 200 || b["status"] != "cancelling" || b["cancelling_at"] == nil {
		t.Errorf("cancel: %d %s", resp.StatusCode, text)
	}
	text = e.untilBatch(t, id, "cancelled")
	b := object(t, text)
	if b["cancelled_at"] == nil || b["output_file_id"] != nil || b["error_file_id"] == nil {
		t.Errorf("cancelled: %s", text)
	}
	if _, lines := e.get(t, "/v1/files/"+b["error_file_id"].(string)+"/content"); !strings.Contains(lines, `"response":null,"error":{"code":"batch_cancelled"`) {
		t.Errorf("its row: %s", lines)
	}
	if resp, text := e.post(t, "/v1/batches/"+id+"/cancel", ""); resp.StatusCode != 400 {
		t.Errorf("cancel of a cancelled batch: %d %s, want 400", resp.StatusCode, text)
	}
}

// "dimensions" is honoured or the answer is none: a vector of another length
// would spoil an index in silence (research F10).
func TestDimensionsAreNeverIgnored(t *testing.T) {
	e := start(t, answer(200, `{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.1,0.2]}],"model":"e","usage":{"prompt_tokens":3,"total_tokens":3}}`))
	for dimensions, status := range map[string]int{"2": 200, "null": 200, "1": 502, "3": 502} {
		resp, body := e.post(t, "/v1/embeddings", `{"model":"tiny","input":"hello","dimensions":`+dimensions+`}`)
		if resp.StatusCode != status {
			t.Errorf("%s asked for: %d %s, want %d", dimensions, resp.StatusCode, body, status)
		}
		if reason := resp.Header.Get("X-Aloft-Reason"); status == 502 && (reason != reasonBadReply || !strings.Contains(body, "did not honour 'dimensions'") || resp.Header.Get("X-Should-Retry") != "false") {
			t.Errorf("%s asked for: reason %q, %s", dimensions, reason, body)
		}
	}
}

// An answer whose vectors were measured below (the cache does) is not split again.
func TestDimensionsAreLookedAtOnce(t *testing.T) {
	const unsplittable = `{"data":"not looked at"}`
	for found, status := range map[int]int{0: 502, 1: 502, 2: 200} {
		e := start(t, func(context.Context, *backends.Request) (*backends.Reply, error) {
			r := whole200(200, unsplittable)
			r.Dimensions = found
			return r, nil
		})
		resp, body := e.post(t, "/v1/embeddings", `{"model":"tiny","input":"hello","dimensions":2}`)
		if resp.StatusCode != status {
			t.Errorf("2 asked for, %d found: %d %s, want %d", found, resp.StatusCode, body, status)
		}
	}
}

// What an engine does not count is counted here: no answer is free.
func TestUsageThatIsNotReported(t *testing.T) {
	keys := newRing(t, "u", &Grant{Tenant: "red"})
	keys.limits["id-u"].tokens = 1 << 20
	for _, tt := range []struct {
		path, body, reply  string
		prompt, completion int // as perByte counts
	}{
		{"/v1/chat/completions", chatBody, `{"choices":[{"message":{"content":"hello\n"},"finish_reason":"stop"}]}`, 2, 6},
		{"/v1/chat/completions", chatBody, `{"choices":[{"message":{"content":"hello"}}],"usage":{"prompt_tokens":9,"completion_tokens":0,"total_tokens":9}}`, 9, 0},
		{"/v1/chat/completions", chatBody, `{"choices":[{"message":{"content":"hello"}}],"usage":{"prompt_tokens":9,"total_tokens":9}}`, 9, 5},
		{"/v1/chat/completions", chatBody, `{"choices":[{"message":{"content":"hello"}}],"usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10}}`, 9, 1},
		{"/v1/completions", `{"model":"tiny","prompt":"hi"}`, `{"choices":[{"text":"a"},{"text":"bc"}]}`, 2, 3},
		{"/v1/embeddings", embedBody, `{"data":[]}`, 3, 0},
	} {
		e := start(t, answer(200, tt.reply), func(_ *Options, d *Deps) { d.Keys = keys })
		keys.limits["id-u"].settled = nil
		e.post(t, tt.path, tt.body, "Authorization", "Bearer u")
		o := e.ledger.wait(t)
		if o.Status != 200 || o.PromptTokens != tt.prompt || o.CompletionTokens != tt.completion {
			t.Errorf("%s: %d with %d+%d tokens, want 200 with %d+%d", tt.reply, o.Status, o.PromptTokens, o.CompletionTokens, tt.prompt, tt.completion)
		}
		if got := keys.limits["id-u"].settled; !slices.Equal(got, []int{tt.prompt + tt.completion}) {
			t.Errorf("%s: settled %v, want %d", tt.reply, got, tt.prompt+tt.completion)
		}
	}
}
