package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"aloft/backends"
	"aloft/backends/openai"
	"aloft/jobs"
)

// The engine gets the client's bytes except the model; the client the engine's
// (docs/failures.md F13).
func TestRelayIsRaw(t *testing.T) {
	const in = ` { "zzz" : {"big": 9007199254740993, "é":"ü 漢"},  "messages":[ {"role":"user","content":"hi"} ], "unknown":[1, 2.50], "model" : "tiny" } `
	const out = "{\"model\":\"engine-tiny\", \"n\":9007199254740993,\n \"usage\":{\"prompt_tokens\":5,\"completion_tokens\":6,\"total_tokens\":11}}"
	var got *backends.Request
	e := start(t, func(_ context.Context, req *backends.Request) (*backends.Reply, error) {
		got = req
		return whole200(200, out), nil
	})
	resp, body := e.post(t, "/v1/chat/completions", in)
	if body != out || resp.StatusCode != 200 {
		t.Errorf("client got %d %q, want %q", resp.StatusCode, body, out)
	}
	if want := strings.Replace(in, `"tiny"`, `"engine-tiny"`, 1); string(got.Body) != want {
		t.Errorf("engine got\n%s\nwant\n%s", got.Body, want)
	}
	if got.Model != "tiny" || got.Tokens != 2 || got.Stream || got.Class != backends.Interactive {
		t.Errorf("request %+v", got)
	}
	if st := resp.Header.Get("Server-Timing"); st != "queue;dur=3.000, batch;dur=2.000, network;dur=0.000, engine;dur=1.500" {
		t.Errorf("Server-Timing %q", st)
	}
	o := e.ledger.wait(t)
	if o.PromptTokens != 5 || o.CompletionTokens != 6 || o.Status != 200 || o.Timing.Replica != "r1" || o.ID != resp.Header.Get("X-Request-Id") {
		t.Errorf("outcome %+v", o)
	}
}

func TestStreamAsksForUsage(t *testing.T) {
	var got string
	e := start(t, func(ctx context.Context, req *backends.Request) (*backends.Reply, error) {
		got = string(req.Body)
		return plays(io.EOF, frameFinish, frameDone)(ctx, req)
	})
	e.post(t, "/v1/chat/completions", streamBody)
	if !strings.Contains(got, `"include_usage":true`) {
		t.Errorf("engine got %s, want include_usage", got)
	}
}

// A counter learns from what engines count, not from what it guessed itself.
func TestCounterLearnsFromEngines(t *testing.T) {
	text := []byte(strings.Repeat("x", 400))
	for usage, want := range map[string]int{``: 100, `,"usage":{"prompt_tokens":10,"completion_tokens":1}`: 69} { // (0.95·4 + 0.05·400/10) bytes a token
		ratio := &backends.Ratio{}
		e := start(t, func(context.Context, *backends.Request) (*backends.Reply, error) {
			r := whole200(200, `{"choices":[{"message":{"content":"a"}}]`+usage+`}`)
			r.Timing.PromptTokens = 20 // as the batcher repeats our own count, here a bounded one
			return r, nil
		}, func(_ *Options, d *Deps) {
			m := testModels()[0]
			m.Counter = ratio
			d.Catalog = shelf{m}
		})
		resp, body := e.post(t, "/v1/chat/completions", fmt.Sprintf(`{"model":"tiny","messages":[{"role":"user","content":%q}]}`, text))
		if got := ratio.Count(text); resp.StatusCode != 200 || got != want {
			t.Errorf("%q: %d %s, now counted as %d tokens, want %d", usage, resp.StatusCode, body, got, want)
		}
	}
}

// OpenAI's service_tier moves a request down to standard, never up, and reaches the
// engine as it came.
func TestServiceTier(t *testing.T) {
	var got *backends.Request
	e := start(t, func(_ context.Context, req *backends.Request) (*backends.Reply, error) {
		got = req
		return whole200(200, `{"object":"list","data":[]}`), nil
	})
	for _, tt := range []struct {
		tier, priority string
		want           backends.Class
		status         int
	}{
		{`"auto"`, "", backends.Interactive, 200},
		{`"default"`, "", backends.Interactive, 200},
		{`"scale"`, "", backends.Interactive, 200},
		{`null`, "", backends.Interactive, 200},
		{`"flex"`, "", backends.Standard, 200},
		{`"flex"`, "interactive", backends.Standard, 200},
		{`"flex"`, "offline", backends.Offline, 200},
		{`"priority"`, "", backends.Interactive, 200},
		{`"priority"`, "standard", backends.Standard, 200},
		{`"fast"`, "", 0, 400},
		{`7`, "", 0, 400},
	} {
		for path, body := range map[string]string{
			"/v1/embeddings":       `{"model":"tiny","input":"a","service_tier":` + tt.tier + `}`,
			"/v1/chat/completions": `{"model":"tiny","messages":[{"role":"user","content":"a"}],"service_tier":` + tt.tier + `}`,
		} {
			got = nil
			resp, text := e.post(t, path, body, "X-Aloft-Priority", tt.priority)
			if resp.StatusCode != tt.status || (got != nil) != (tt.status == 200) {
				t.Errorf("%s %s: %d %s", path, tt.tier, resp.StatusCode, text)
			} else if got != nil && (got.Class != tt.want || !strings.Contains(string(got.Body), `"service_tier":`+tt.tier)) {
				t.Errorf("%s %s %s: %s, body %s, want %s", path, tt.tier, tt.priority, got.Class, got.Body, tt.want)
			} else if got == nil && !strings.Contains(text, `"param":"service_tier"`) {
				t.Errorf("%s %s: %s", path, tt.tier, text)
			}
		}
	}
}

func TestEmbeddingsRequest(t *testing.T) {
	var got *backends.Request
	e := start(t, func(_ context.Context, req *backends.Request) (*backends.Reply, error) {
		got = req
		r := whole200(200, `{"object":"list","data":[]}`)
		r.Timing.PromptTokens = 4
		return r, nil
	})
	e.post(t, "/v1/embeddings", `{"model":"tiny","input":["a\u00e9b","",  "xyz"]}`)
	e.post(t, "/v1/embeddings", `{"model":"tiny","input":["a\u00e9b",  "xyz"]}`, "X-Aloft-Priority", "offline", "X-Aloft-Deadline-Ms", "1500")
	if got == nil || len(got.Inputs) != 2 || string(got.Inputs[0]) != `"a\u00e9b"` || !slices.Equal(got.InputTokens, []int{4, 3}) || got.Tokens != 7 {
		t.Fatalf("request %+v, want two rows of 4 and 3 tokens", got)
	}
	if got.Base64 {
		t.Error("base64 was not asked for")
	}
	if got.Class != backends.Offline || got.Deadline.Sub(got.Arrival) != 1500*time.Millisecond || got.MergeKey == "" {
		t.Errorf("request %+v, want offline, 1.5s, and a merge key", got)
	}
	if e.post(t, "/v1/embeddings", `{"model":"tiny","input":"a","encoding_format":"base64"}`); !got.Base64 {
		t.Error("base64 was asked for and forgotten")
	}
	e.ledger.wait(t) // the refused one
	if o := e.ledger.wait(t); o.PromptTokens != 4 {
		t.Errorf("metered %d tokens, want the 4 of the reply's timing", o.PromptTokens)
	}
}

// A text that no context holds counts as a full one while tokens are guessed;
// one that is surely too long is refused here.
func TestOverlongTextIsNoDemand(t *testing.T) {
	var got *backends.Request
	e := start(t, func(_ context.Context, req *backends.Request) (*backends.Reply, error) {
		got = req
		return whole200(200, `{"object":"list","data":[]}`), nil
	}, func(_ *Options, d *Deps) {
		d.Catalog = shelf{{Name: "tiny", Endpoints: everything, Context: 1000, Usable: true, Counter: &backends.Ratio{}}}
	})
	long := strings.Repeat("x", 1<<20)
	e.post(t, "/v1/embeddings", `{"model":"tiny","input":["`+long+`","abcd"]}`)
	if got == nil || !slices.Equal(got.InputTokens, []int{1000, 1}) || got.Tokens != 1001 {
		t.Errorf("embeddings: request %v, want rows of 1000 and 1 tokens", got != nil)
	}
	got = nil
	e.post(t, "/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"`+long+`"},{"role":"user","content":"`+long+`"}]}`)
	if got == nil || got.Tokens != 1000 {
		t.Errorf("chat: request %v, want 1000 tokens", got != nil)
	}
}

// Every fault of the table, as a client sees it, as the API reference lists them.
func TestErrorTable(t *testing.T) {
	retry := func(err error, reason string) error {
		return fmt.Errorf("model tiny: %w", &backends.RetryError{Err: err, After: 2500 * time.Millisecond, Reason: reason})
	}
	tests := []struct {
		err                          error
		status                       int
		kind, code, reason           string
		after, afterMS, dontComeBack string
	}{
		{backends.ErrOverloaded, 429, "rate_limit_error", "overloaded", "queue_full", "1", "1000", ""},
		{retry(backends.ErrOverloaded, "queue_full"), 429, "rate_limit_error", "overloaded", "queue_full", "3", "2500", ""},
		{retry(backends.ErrOverloaded, "queue_timeout"), 429, "rate_limit_error", "overloaded", "queue_timeout", "3", "2500", ""},
		{backends.ErrDeadline, 429, "rate_limit_error", "queue_timeout", "queue_timeout", "1", "1000", ""},
		{retry(backends.ErrUnavailable, "loading"), 503, "server_error", "service_unavailable", "loading", "3", "2500", ""},
		{backends.ErrUnavailable, 503, "server_error", "service_unavailable", "no_replica", "1", "1000", ""},
		{backends.ErrDraining, 503, "server_error", "service_unavailable", "draining", "1", "1000", ""},
		{fmt.Errorf("dial: %w", backends.ErrConnect), 502, "server_error", "bad_gateway", "engine_unreachable", "", "", ""},
		{backends.ErrBadReply, 502, "server_error", "bad_gateway", "engine_bad_reply", "", "", ""},
		{backends.ErrSilent, 504, "server_error", "gateway_timeout", "engine_silent", "", "", ""},
		{context.DeadlineExceeded, 504, "server_error", "gateway_timeout", "request_timeout", "", "", "false"},
		{backends.ErrUnknownModel, 404, "invalid_request_error", "model_not_found", "", "", "", ""},
		{backends.ErrTooLong, 400, "invalid_request_error", "context_length_exceeded", "", "", "", ""},
		{&openai.Error{Status: 400, Message: "m", Type: "invalid_request_error", Code: "c"}, 400, "invalid_request_error", "c", "", "", "", ""},
		{errors.New("secret path /etc/x"), 500, "server_error", "internal_error", "internal", "", "", "false"},
	}
	for _, tt := range tests {
		t.Run(tt.err.Error(), func(t *testing.T) {
			e := start(t, fails(tt.err))
			resp, body := e.post(t, "/v1/embeddings", embedBody)
			var got struct {
				Error map[string]any
			}
			if err := json.Unmarshal([]byte(body), &got); err != nil || len(got.Error) != 4 {
				t.Fatalf("body %s (%v), want message, type, param and code", body, err)
			}
			if resp.StatusCode != tt.status || got.Error["type"] != tt.kind || got.Error["code"] != tt.code {
				t.Errorf("answer %d %s, want %d %s %s", resp.StatusCode, body, tt.status, tt.kind, tt.code)
			}
			if strings.Contains(body, "secret") || got.Error["message"] == "" {
				t.Errorf("message %q", got.Error["message"])
			}
			for k, want := range map[string]string{
				"X-Aloft-Reason": tt.reason, "Retry-After": tt.after, "Retry-After-Ms": tt.afterMS,
				"X-Should-Retry": tt.dontComeBack, "Content-Type": "application/json",
			} {
				if resp.Header.Get(k) != want {
					t.Errorf("%s is %q, want %q", k, resp.Header.Get(k), want)
				}
			}
			if r := resp.Header.Get("X-Aloft-Reason"); r != "" && !slices.Contains(reasons, r) {
				t.Errorf("reason %q is not in the list", r)
			}
			if o := e.ledger.wait(t); o.Status != tt.status {
				t.Errorf("observed %d, want %d", o.Status, tt.status)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	e := start(t, answer(200, "{}"), func(o *Options, _ *Deps) { o.MaxBody = 10000 })
	long := fmt.Sprintf(`{"model":"tiny","input":"%s"}`, strings.Repeat("x", 1001))
	tests := []struct {
		name, method, path, body string
		headers                  []string
		status                   int
		code, param              string
	}{
		{"not JSON", "POST", "/v1/chat/completions", "hi", nil, 400, "", ""},
		{"no body", "POST", "/v1/chat/completions", "", nil, 400, "", ""},
		{"no messages", "POST", "/v1/chat/completions", `{"model":"tiny"}`, nil, 400, "missing_required_parameter", "messages"},
		{"no model", "POST", "/v1/embeddings", `{"input":"x"}`, nil, 400, "missing_required_parameter", "model"},
		{"unknown model", "POST", "/v1/embeddings", `{"model":"nope","input":"x"}`, nil, 404, "model_not_found", "model"},
		{"model without chat", "POST", "/v1/chat/completions", `{"model":"only-embeds","messages":[{"role":"user","content":"x"}]}`, nil, 400, "unsupported_endpoint", "model"},
		{"over the context", "POST", "/v1/embeddings", long, nil, 400, "context_length_exceeded", "input"},
		{"one byte too large", "POST", "/v1/embeddings", strings.Repeat(" ", 10001), nil, 413, "request_too_large", ""},
		{"much too large", "POST", "/v1/embeddings", strings.Repeat(" ", 3<<20), nil, 413, "request_too_large", ""},
		{"not gzip", "POST", "/v1/embeddings", "x", []string{"Content-Encoding", "gzip"}, 400, "", ""},
		{"brotli", "POST", "/v1/embeddings", "x", []string{"Content-Encoding", "br"}, 415, "unsupported_media_type", ""},
		{"a form", "POST", "/v1/embeddings", "x", []string{"Content-Type", "application/x-www-form-urlencoded"}, 415, "unsupported_media_type", ""},
		{"unknown class", "POST", "/v1/embeddings", embedBody, []string{"X-Aloft-Priority", "royal"}, 400, "invalid_value", "x-aloft-priority"},
		{"bad deadline", "POST", "/v1/embeddings", embedBody, []string{"X-Aloft-Deadline-Ms", "-1"}, 400, "invalid_value", "x-aloft-deadline-ms"},
		{"unknown path", "GET", "/v1/nope", "", nil, 404, "unknown_url", ""},
		{"root", "GET", "/", "", nil, 404, "unknown_url", ""},
		{"wrong method", "GET", "/v1/embeddings", "", nil, 405, "unknown_url", ""},
		{"wrong method on a prefix", "DELETE", "/v1/models/tiny", "", nil, 405, "unknown_url", ""},
		{"no such model", "GET", "/v1/models/nope", "", nil, 404, "model_not_found", "model"},
		{"no decisions source", "GET", "/aloft/v1/decisions", "", nil, 404, "unknown_url", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			resp, body := e.do(t, tt.method, tt.path, tt.body, tt.headers...)
			var got struct {
				Error struct{ Message, Type, Param, Code string }
			}
			if err := json.Unmarshal([]byte(body), &got); err != nil {
				t.Fatalf("body %q: %v", body, err)
			}
			if resp.StatusCode != tt.status || got.Error.Code != tt.code || got.Error.Param != tt.param || got.Error.Type != "invalid_request_error" {
				t.Errorf("answer %d %s, want %d code %q param %q", resp.StatusCode, body, tt.status, tt.code, tt.param)
			}
			if resp.Header.Get("X-Request-Id") == "" {
				t.Error("no request id")
			}
		})
	}
	if resp, _ := e.get(t, "/v1/embeddings"); resp.Header.Get("Allow") != "POST" {
		t.Errorf("Allow is %q, want POST", resp.Header.Get("Allow"))
	}
}

// What is no HTTP, or too much of it, is answered in JSON too.
func TestUnreadableRequests(t *testing.T) {
	e := start(t, answer(200, "{}"), func(o *Options, _ *Deps) {
		o.HeaderTimeout, o.BodyTimeout = quickly, quickly
		o.MaxBody = 1000
	})
	tests := []struct {
		name, send string
		status     int
	}{
		{"no HTTP", "\x16\x03\x01 hello\r\n\r\n", 400},
		{"huge header", "GET / HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 1<<17) + "\r\n\r\n", 431},
		{"body never comes", "POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{", 408},
		{"chunked and too large", "POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" + strings.Repeat(" ", 2000) + "\r\n0\r\n\r\n", 413},
		{"bad chunk", "POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := net.Dial("tcp", e.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(patience))
			go io.WriteString(c, tt.send)
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != tt.status || !strings.HasPrefix(string(body), `{"error":{"message":`) {
				t.Errorf("answer %d %s, want %d in the error shape", resp.StatusCode, body, tt.status)
			}
		})
	}
}

// curl asks before it sends a large body.
func TestExpectContinue(t *testing.T) {
	e := start(t, answer(200, `{"fine":true}`))
	c, err := net.Dial("tcp", e.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(c, "POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", len(embedBody))
	r := bufio.NewReader(c)
	if line, _ := r.ReadString('\n'); !strings.HasPrefix(line, "HTTP/1.1 100 ") {
		t.Fatalf("got %q, want 100", line)
	}
	r.ReadString('\n')
	io.WriteString(c, embedBody)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != 200 || string(body) != `{"fine":true}` {
		t.Errorf("answer %d %s", resp.StatusCode, body)
	}
}

func TestModels(t *testing.T) {
	e := start(t, answer(200, "{}"))
	const slashed = `{"id":"org/name:q8","object":"model","created":1700000000,"owned_by":"aloft","endpoints":["chat","completions","embeddings"]}`
	for _, path := range []string{"/v1/models/org/name:q8", "/v1/models/org%2Fname%3Aq8", "/v1/models/org%2fname:q8?x=1"} {
		if resp, body := e.get(t, path); resp.StatusCode != 200 || body != slashed {
			t.Errorf("GET %s: %d %s, want %s", path, resp.StatusCode, body, slashed)
		}
	}
	resp, body := e.get(t, "/v1/models")
	var list struct {
		Object string
		Data   []map[string]any
	}
	if err := json.Unmarshal([]byte(body), &list); err != nil || list.Object != "list" || len(list.Data) != 3 {
		t.Fatalf("list %d %s", resp.StatusCode, body)
	}
	if m := list.Data[0]; m["id"] != "tiny" || m["state"] != "ready" || m["shape"] != "1g.10gb" || m["context_length"] != 1000.0 {
		t.Errorf("first model %v", m)
	}
	if resp, _ := e.do(t, "HEAD", "/v1/models", ""); resp.StatusCode != 200 {
		t.Errorf("HEAD: %d", resp.StatusCode)
	}
}

func TestRequestID(t *testing.T) {
	e := start(t, answer(200, "{}"))
	made := regexp.MustCompile(`^req_[0-9a-f]{24}$`)
	for given, echoed := range map[string]bool{
		"": false, "abc-1": true, strings.Repeat("x", 128): true, strings.Repeat("x", 129): false, "a b": false, "é": false,
	} {
		resp, _ := e.post(t, "/v1/embeddings", embedBody, "X-Request-Id", given)
		got := resp.Header.Get("X-Request-Id")
		if o := e.ledger.wait(t); o.ID != got {
			t.Errorf("observed id %q, sent %q", o.ID, got)
		}
		if echoed && got != given || !echoed && !made.MatchString(got) {
			t.Errorf("given %q: id %q", given, got)
		}
	}
}

func TestKeys(t *testing.T) {
	var got *backends.Request
	e := start(t, func(_ context.Context, req *backends.Request) (*backends.Reply, error) {
		got = req
		return whole200(200, "{}"), nil
	}, func(_ *Options, d *Deps) {
		d.Keys = newRing(t, "k1", &Grant{Tenant: "red"}, "k2", &Grant{Tenant: "blue", Class: backends.Standard})
	})
	for _, tt := range []struct {
		auth, wish string
		status     int
		tenant     string
		class      backends.Class
	}{
		{"", "", 401, "", 0},
		{"Bearer nope", "", 401, "", 0},
		{"Basic k1", "", 401, "", 0},
		{"Bearer k1", "", 200, "red", backends.Interactive},
		{"Bearer k1", "offline", 200, "red", backends.Offline},
		{"Bearer k2", "interactive", 200, "blue", backends.Standard}, // nobody steps up
	} {
		resp, body := e.post(t, "/v1/embeddings", embedBody, "Authorization", tt.auth, "X-Aloft-Priority", tt.wish)
		if resp.StatusCode != tt.status {
			t.Errorf("%q: %d %s, want %d", tt.auth, resp.StatusCode, body, tt.status)
		}
		if tt.status == 401 {
			if !strings.Contains(body, `"invalid_api_key"`) || resp.Header.Get("WWW-Authenticate") == "" {
				t.Errorf("%q: %s", tt.auth, body)
			}
			continue
		}
		if got.Tenant != tt.tenant || got.Class != tt.class {
			t.Errorf("%q: tenant %q class %v, want %q %v", tt.auth, got.Tenant, got.Class, tt.tenant, tt.class)
		}
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if resp, _ := e.get(t, path); resp.StatusCode != 200 {
			t.Errorf("%s without a key: %d", path, resp.StatusCode)
		}
	}
}

func TestEngineErrorsKeepTheirStatus(t *testing.T) {
	own := `{"error":{"message":"too hot","type":"BadRequestError","param":null,"code":400,"extra":1}}`
	for _, tt := range []struct {
		status int
		body   string
		want   string
		code   int
	}{
		{400, own, own, 400},
		{422, `{"detail":"no"}`, `{"error":{"message":"no","type":"invalid_request_error","param":null,"code":null}}`, 422},
		{400, `{"object":"error","message":"old vLLM"}`, `{"error":{"message":"old vLLM","type":"invalid_request_error","param":null,"code":null}}`, 400},
		{500, `Internal Server Error`, `{"error":{"message":"the engine failed","type":"server_error","param":null,"code":null}}`, 500},
		{401, own, `{"error":{"message":"the engine's answer was damaged","type":"server_error","param":null,"code":"bad_gateway"}}`, 502},
		{302, ``, `{"error":{"message":"the engine's answer was damaged","type":"server_error","param":null,"code":"bad_gateway"}}`, 502},
	} {
		e := start(t, answer(tt.status, tt.body))
		resp, body := e.post(t, "/v1/chat/completions", chatBody)
		if resp.StatusCode != tt.code || body != tt.want {
			t.Errorf("engine's %d %s: got %d %s, want %d %s", tt.status, tt.body, resp.StatusCode, body, tt.code, tt.want)
		}
	}
}

func TestTimeouts(t *testing.T) {
	ended := make(chan error, 1)
	e := start(t, holds(ended), func(o *Options, _ *Deps) { o.RequestTimeout = 150 * time.Millisecond })
	for _, header := range []string{"", "20"} {
		resp, body := e.post(t, "/v1/embeddings", embedBody, "X-Aloft-Deadline-Ms", header)
		if resp.StatusCode != 504 || !strings.Contains(body, `"gateway_timeout"`) {
			t.Errorf("deadline %q: %d %s, want 504", header, resp.StatusCode, body)
		}
		if cause := <-ended; !errors.Is(cause, context.DeadlineExceeded) {
			t.Errorf("cause %v", cause)
		}
	}
}

func TestPanicIsAnswered(t *testing.T) {
	e := start(t, func(context.Context, *backends.Request) (*backends.Reply, error) { panic("boom") })
	for _, body := range []string{chatBody, streamBody} {
		resp, body := e.post(t, "/v1/chat/completions", body)
		if resp.StatusCode != 500 || strings.Contains(body, "boom") {
			t.Errorf("answer %d %s, want a plain 500", resp.StatusCode, body)
		}
		if o := e.ledger.wait(t); o.Status != 500 {
			t.Errorf("observed %d, want 500", o.Status)
		}
	}
	if n := len(e.watch.conns); n != 0 {
		t.Errorf("%d connections still watched", n)
	}
}

func TestReady(t *testing.T) {
	usable := true
	models := testModels()[:1]
	e := start(t, answer(200, "{}"), func(_ *Options, d *Deps) { d.Catalog = models })
	for range 2 {
		models[0].Usable = usable
		resp, _ := e.get(t, "/readyz")
		if want := map[bool]int{true: 200, false: 503}[usable]; resp.StatusCode != want {
			t.Errorf("usable %v: %d, want %d", usable, resp.StatusCode, want)
		}
		usable = false
	}
}

// A drain says so, lets a stream finish, and refuses new work (F14, Drain).
func TestDrain(t *testing.T) {
	feeds := make(chan *feed, 2)
	play := func(ctx context.Context, _ *backends.Request) (*backends.Reply, error) {
		f := newFeed(ctx)
		f.parts <- frameHel
		feeds <- f
		return sse(f), nil
	}
	t.Run("a stream finishes", func(t *testing.T) {
		e := start(t, play, func(o *Options, _ *Deps) { o.DrainGrace = patience })
		c := e.raw(t, "/v1/chat/completions", streamBody)
		f := <-feeds
		e.stop()
		until(t, "the drain", e.draining.Load)
		for path, want := range map[string]int{"/readyz": 503, "/healthz": 200} {
			resp, _ := e.get(t, path)
			if resp.StatusCode != want || !resp.Close {
				t.Errorf("%s while draining: %d, close %v; want %d and a closed connection", path, resp.StatusCode, resp.Close, want)
			}
		}
		resp, body := e.post(t, "/v1/embeddings", embedBody)
		if resp.StatusCode != 503 || resp.Header.Get("X-Aloft-Reason") != "draining" || resp.Header.Get("Retry-After") == "" {
			t.Errorf("new work while draining: %d %s", resp.StatusCode, body)
		}
		f.parts <- frameFinish
		f.parts <- frameDone
		f.end(io.EOF)
		_, got, clean := chunks(t, c)
		if !slices.Equal(got, []string{frameHel, frameFinish, frameDone}) || !clean {
			t.Errorf("stream %q clean %v, want it whole", got, clean)
		}
	})
	t.Run("a stream that outlasts the grace is told", func(t *testing.T) {
		e := start(t, play, func(o *Options, _ *Deps) { o.DrainGrace = 100 * time.Millisecond })
		came := make(chan struct{})
		c := &spotter{Conn: e.raw(t, "/v1/chat/completions", streamBody), came: came, texts: []string{frameHel}}
		<-feeds
		go func() {
			<-came
			e.stop()
		}()
		_, got, clean := chunks(t, c)
		if len(got) != 2 || !strings.Contains(got[1], "the server is shutting down") || clean {
			t.Errorf("stream %q clean %v, want an error event", got, clean)
		}
		if o := e.ledger.wait(t); o.Status != 503 {
			t.Errorf("observed %d, want 503", o.Status)
		}
	})
}

// patience bounds every wait for what must come: whoever waits that long waits
// in vain, on a machine that has other work to do too.
const patience = time.Minute

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// untilBatch reads a batch until it has a status, and returns it as it was sent.
func (e *edge) untilBatch(t *testing.T, id, status string) (text string) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if _, text = e.get(t, "/v1/batches/"+id); object(t, text)["status"] == status {
			return text
		}
		if time.Now().After(end) {
			t.Fatalf("not %s: %s", status, text)
		}
	}
}

type fixedStatus struct{}

func (fixedStatus) Status() any { return map[string]int{"slices": 7} }

func (fixedStatus) Report(since time.Time) any { return since.Unix() }

type decisionLog struct{ got Filter }

func (d *decisionLog) Decisions(f Filter) ([]Decision, error) {
	if f.After == "bad" {
		return nil, errors.New("no such id")
	}
	d.got = f
	return []Decision{{"dec_2", map[string]string{"reason": "lend"}}, {"dec_1", map[string]string{"reason": "hold"}}}, nil
}

func TestAdminViews(t *testing.T) {
	log := &decisionLog{}
	e := start(t, answer(200, "{}"), func(_ *Options, d *Deps) {
		d.Status, d.Decisions, d.Reporter = fixedStatus{}, log, fixedStatus{}
		d.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "aloft_up 1\n") })
	})
	for path, want := range map[string]string{
		"/aloft/v1/status": `{"slices":7}`,
		"/aloft/v1/decisions?since=1700000000.5&limit=3&about=tiny&until=2023-11-15T00:00:00Z&action=lend&after=dec_9": `{"object":"list","data":[{"reason":"lend"},{"reason":"hold"}],"first_id":"dec_2","last_id":"dec_1","has_more":false}`,
		"/aloft/v1/report?since=1700000000": `1700000000`,
		"/metrics":                          "aloft_up 1\n",
		"/healthz":                          `{"status":"ok"}`,
	} {
		if resp, body := e.get(t, path); resp.StatusCode != 200 || body != want {
			t.Errorf("%s: %d %s, want %s", path, resp.StatusCode, body, want)
		}
	}
	if want := (Filter{Since: time.UnixMicro(1700000000500000), Until: time.Date(2023, 11, 15, 0, 0, 0, 0, time.UTC), About: "tiny", Action: "lend", After: "dec_9", Limit: 4}); log.got != want {
		t.Errorf("filter %+v, want %+v", log.got, want)
	}
	if _, body := e.get(t, "/aloft/v1/decisions?limit=1"); !strings.Contains(body, `"last_id":"dec_2","has_more":true`) {
		t.Errorf("a page of one: %s", body)
	}
	for _, q := range []string{"limit=0", "limit=x", "limit=1001", "since=yesterday", "until=tomorrow", "after=bad"} {
		if resp, _ := e.get(t, "/aloft/v1/decisions?"+q); resp.StatusCode != 400 {
			t.Errorf("%s: %d, want 400", q, resp.StatusCode)
		}
	}
}

func TestCall(t *testing.T) {
	var _ jobs.Caller = (*Server)(nil)
	var got *backends.Request
	e := start(t, func(_ context.Context, req *backends.Request) (*backends.Reply, error) {
		got = req
		return whole200(200, `{"usage":{"prompt_tokens":3,"total_tokens":3}}`), nil
	})
	row := func(endpoint backends.Endpoint, body string) jobs.Row {
		return jobs.Row{ID: "row-1", Tenant: "red", Endpoint: endpoint, Body: []byte(body)}
	}
	r, err := e.Call(t.Context(), row(backends.Embeddings, embedBody))
	if err != nil || r.Status != 200 || r.Tokens != 3 || r.RequestID != "row-1" {
		t.Errorf("result %+v, %v", r, err)
	}
	if got.Class != backends.Offline || got.Tenant != "red" || got.ID != "row-1" {
		t.Errorf("request %+v", got)
	}
	for name, bad := range map[string]jobs.Row{
		"a stream": row(backends.Chat, streamBody), "no JSON": row(backends.Chat, "{"),
	} {
		if r, err := e.Call(t.Context(), bad); err != nil || r.Status != 400 || !strings.HasPrefix(string(r.Body), `{"error":`) {
			t.Errorf("%s: %+v, %v; want a 400 in the error shape", name, r, err)
		}
	}
	full := start(t, fails(&backends.RetryError{Err: backends.ErrOverloaded, After: 2 * time.Second, Reason: "queue_full"}))
	var retry *backends.RetryError
	if _, err := full.Call(t.Context(), row(backends.Embeddings, embedBody)); !errors.As(err, &retry) || retry.After != 2*time.Second {
		t.Errorf("full queue: %v, want to come back in 2s", err)
	}
	broken := start(t, fails(backends.ErrBadReply))
	if r, err := broken.Call(t.Context(), row(backends.Embeddings, embedBody)); err != nil || r.Status != 502 {
		t.Errorf("broken engine: %+v, %v; want a 502", r, err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(backends.ErrDraining)
	held := start(t, holds(make(chan error, 1)))
	if _, err := held.Call(ctx, row(backends.Embeddings, embedBody)); !errors.Is(err, backends.ErrDraining) {
		t.Errorf("ended context: %v, want its cause", err)
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{
		{MaxBody: -1}, {RequestTimeout: -1}, {Telemetry: TelemetryOptions{AccessLog: 1.1}}, {Telemetry: TelemetryOptions{Sample: -1}},
	} {
		if o.Validate() == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
	if _, err := New(Options{}, Deps{}, nil); err == nil {
		t.Error("a gateway without models is accepted")
	}
}
