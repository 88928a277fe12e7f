package gateway

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"mime/multipart"
	"slices"
	"strings"
	"testing"
	"time"

	"aloft/backends"

	"github.com/klauspost/compress/zstd"
)

// every is a catalog whose one model serves everything, and has an adapter.
func every(o *Options, d *Deps) {
	m := Model{Name: "tiny", EngineModel: "engine-tiny", Endpoints: backends.Endpoints(), Context: 1000, Usable: true, BySession: true, ByPrefix: true}
	lora := m
	lora.EngineModel, lora.Adapter = "fr", "fr"
	d.Catalog = aliased{shelf{m, lora}, map[string]Model{"tiny:fr": lora, "nick": m}}
}

// An adapter is a model of its own in lists, and no second model where the name
// may be left out.
func TestAdapterIsListed(t *testing.T) {
	e := start(t, answer(200, `{"results":[]}`), every)
	if _, body := e.get(t, "/v1/models"); !strings.Contains(body, `"id":"tiny:fr"`) || strings.Count(body, `"parent":"tiny"`) != 1 {
		t.Errorf("listed: %s", body)
	}
	if resp, body := e.get(t, "/v1/models/tiny:fr"); resp.StatusCode != 200 || !strings.Contains(body, `"id":"tiny:fr"`) {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	if resp, body := e.post(t, "/v1/moderations", `{"input":"x"}`); resp.StatusCode != 200 {
		t.Errorf("without a name: %d %s", resp.StatusCode, body)
	}
}

type aliased struct {
	shelf
	more map[string]Model
}

func (a aliased) Lookup(name string) (Model, bool) {
	if m, ok := a.more[name]; ok {
		return m, true
	}
	return a.shelf.Lookup(name)
}

var bodies = map[backends.Endpoint]string{
	backends.Chat: chatBody, backends.Completions: `{"model":"tiny","prompt":"x"}`, backends.Embeddings: embedBody,
	backends.Responses: `{"model":"tiny","input":"x"}`, backends.Messages: `{"model":"tiny","max_tokens":5,"messages":[{"role":"user","content":"x"}]}`,
	backends.Rerank: `{"model":"tiny","query":"q","documents":["a"]}`, backends.Score: `{"model":"tiny","text_1":"a","text_2":"b"}`,
	backends.Classify: `{"model":"tiny","input":"x"}`, backends.Moderations: `{"model":"tiny","input":"x"}`,
	backends.Speech: `{"model":"tiny","input":"x","voice":"v"}`, backends.Images: `{"model":"tiny","prompt":"x"}`,
	backends.Tokenize: `{"model":"tiny","prompt":"x"}`, backends.Detokenize: `{"model":"tiny","tokens":[1]}`,
}

// Every path goes to its engine's path, byte for byte but for the model.
func TestEveryPath(t *testing.T) {
	var got *backends.Request
	e := start(t, func(_ context.Context, req *backends.Request) (*backends.Reply, error) {
		got = req
		r := whole200(200, "\x00\xff answer")
		r.ContentType = "audio/mpeg"
		r.Header = backends.Header{{Name: "Openai-Processing-Ms", Value: "7"}}
		return r, nil
	}, every)
	for _, endpoint := range backends.Endpoints() {
		for _, path := range endpoint.Paths() {
			body, kind := bodies[endpoint], "application/json"
			if endpoint.Form() {
				var b bytes.Buffer
				w := multipart.NewWriter(&b)
				w.WriteField("model", "tiny")
				f, _ := w.CreateFormFile("file", "a.wav")
				f.Write([]byte{0, 1, 255, '\r', '\n'})
				w.Close()
				body, kind = b.String(), w.FormDataContentType()
			}
			got = nil
			resp, answer := e.do(t, "POST", path, body, "Content-Type", kind, "Anthropic-Version", "2023-06-01", "Cookie", "secret")
			if resp.StatusCode != 200 || answer != "\x00\xff answer" || resp.Header.Get("Content-Type") != "audio/mpeg" || resp.Header.Get("Openai-Processing-Ms") != "7" {
				t.Errorf("%s: %d %v %q", path, resp.StatusCode, resp.Header, answer)
				continue
			}
			want := strings.Replace(body, "tiny", "engine-tiny", 1)
			if string(got.Body) != want || got.Path != endpoint.EnginePath(path) || endpoint.Form() != (got.ContentType == kind) {
				t.Errorf("%s: the engine got %s %q %q", path, got.Path, got.ContentType, got.Body)
			}
			if len(got.Header) != 1 || got.Header[0].Name != "Anthropic-Version" {
				t.Errorf("%s: the engine got headers %v", path, got.Header)
			}
			if o := e.ledger.wait(t); o.Status != 200 || o.Bytes != 9 || o.Path != path || o.Endpoint != endpoint {
				t.Errorf("%s: outcome %+v", path, o)
			}
		}
	}
}

func TestPlacement(t *testing.T) {
	var got *backends.Request
	e := start(t, func(_ context.Context, req *backends.Request) (*backends.Reply, error) {
		got = req
		return whole200(200, "{}"), nil
	}, every)
	ask := func(body string, headers ...string) backends.Placement {
		t.Helper()
		if resp, text := e.post(t, "/v1/chat/completions", body, headers...); resp.StatusCode != 200 {
			t.Fatalf("%d %s", resp.StatusCode, text)
		}
		return got.Place
	}
	if p := ask(strings.Replace(chatBody, "tiny", "tiny:fr", 1)); p.Adapter != "fr" || !strings.Contains(string(got.Body), `"model":"fr"`) || got.Model != "tiny" {
		t.Errorf("adapter: %+v %s", p, got.Body)
	}
	if ask(strings.Replace(chatBody, "tiny", "nick", 1)); got.Model != "tiny" || !strings.Contains(string(got.Body), `"engine-tiny"`) {
		t.Errorf("alias: %s %s", got.Model, got.Body)
	}
	none, one, two := ask(chatBody).Session, ask(chatBody, "X-Session-Id", "1").Session, ask(chatBody, "X-Session-Id", "2").Session
	key := ask(strings.Replace(chatBody, "{", `{"prompt_cache_key":"1",`, 1)).Session
	if none != 0 || one == 0 || one == two || key != one {
		t.Errorf("sessions %x %x %x %x", none, one, two, key)
	}
	if p := ask(strings.Replace(chatBody, "hi", strings.Repeat("hi ", 200), 1)).Prefix; len(p) != 2 {
		t.Errorf("%d prefix hashes, want 2 of 600 bytes", len(p))
	}
	if resp, _ := e.post(t, "/v1/moderations", `{"input":"x"}`); resp.StatusCode != 200 || !strings.Contains(string(got.Body), `"engine-tiny"`) {
		t.Errorf("no model named: %d %s, want the only one", resp.StatusCode, got.Body)
	}
}

// Each dialect ends a stream in its own way, and is told of a broken one in its own words.
func TestDialects(t *testing.T) {
	const (
		delta   = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"x\"}\n\n"
		done    = "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":{\"input_tokens\":3,\"output_tokens\":4}}}\n\n"
		failed  = "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"error\":{\"message\":\"m\"}}}\n\n"
		begin   = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":3,\"output_tokens\":1}}}\n\n"
		text    = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"x\"}}\n\n"
		stopped = "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":4}}\n\n"
		stop    = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
		audio   = "data: {\"type\":\"speech.audio.delta\",\"audio\":\"eA==\"}\n\n"
	)
	tests := []struct {
		name, path, body string
		script           script
		want             []string
		last             string // beginning of the event that is ours
		clean            bool
		status, tokens   int
	}{
		{"responses", "/v1/responses", bodies[backends.Responses], plays(io.EOF, delta, done), []string{delta, done}, "", true, 200, 7},
		{"responses, failed", "/v1/responses", bodies[backends.Responses], plays(io.EOF, delta, failed), []string{delta, failed}, "", true, 502, 0},
		{"responses, broken", "/v1/responses", bodies[backends.Responses], plays(io.EOF, delta), []string{delta}, "event: error\ndata: {\"type\":\"error\",\"code\":\"bad_gateway\"", false, 502, 0},
		{"messages", "/v1/messages", bodies[backends.Messages], plays(io.EOF, begin, text, stopped, stop), []string{begin, text, stopped, stop}, "", true, 200, 7},
		{"messages, broken", "/v1/messages", bodies[backends.Messages], plays(io.EOF, begin, text, stopped), []string{begin, text, stopped}, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\"", false, 502, 0},
		{"images", "/v1/images/generations", bodies[backends.Images], plays(io.EOF, audio), []string{audio}, "", true, 200, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := start(t, tt.script, every)
			_, got, clean := chunks(t, e.raw(t, tt.path, strings.Replace(tt.body, "{", `{"stream":true,`, 1)))
			if tt.last != "" && len(got) > 0 {
				if last := got[len(got)-1]; !strings.HasPrefix(last, tt.last) {
					t.Errorf("the last event is %q, want %q", last, tt.last)
				}
				got = got[:len(got)-1]
			}
			if !slices.Equal(got, tt.want) || clean != tt.clean {
				t.Errorf("chunks %q, clean %v; want %q, %v", got, clean, tt.want, tt.clean)
			}
			if o := e.ledger.wait(t); o.Status != tt.status || tt.tokens > 0 && o.PromptTokens+o.CompletionTokens != tt.tokens {
				t.Errorf("outcome %+v, want status %d, %d tokens", o, tt.status, tt.tokens)
			}
		})
	}
	e := start(t, fails(backends.ErrOverloaded), every)
	if resp, body := e.post(t, "/v1/messages", bodies[backends.Messages]); resp.StatusCode != 429 || !strings.HasPrefix(body, `{"type":"error","error":{"type":"rate_limit_error"`) {
		t.Errorf("Anthropic's shape: %d %s", resp.StatusCode, body)
	}
}

func TestPackedBodies(t *testing.T) {
	var got string
	e := start(t, func(_ context.Context, req *backends.Request) (*backends.Reply, error) {
		got = string(req.Body)
		return whole200(200, "{}"), nil
	}, func(o *Options, _ *Deps) { o.MaxBody = 1 << 16 })
	pack := map[string]func(string) string{
		"gzip": func(s string) string {
			var b bytes.Buffer
			w := gzip.NewWriter(&b)
			io.WriteString(w, s)
			w.Close()
			return b.String()
		},
		"zstd": func(s string) string {
			w, _ := zstd.NewWriter(nil)
			return string(w.EncodeAll([]byte(s), nil))
		},
	}
	for name, f := range pack {
		resp, body := e.post(t, "/v1/embeddings", f(embedBody), "Content-Encoding", strings.ToUpper(name))
		if resp.StatusCode != 200 || got != strings.Replace(embedBody, "tiny", "engine-tiny", 1) {
			t.Errorf("%s: %d %s, the engine got %s", name, resp.StatusCode, body, got)
		}
		if resp, body := e.post(t, "/v1/embeddings", f(strings.Repeat(" ", 1<<22)), "Content-Encoding", name); resp.StatusCode != 413 {
			t.Errorf("%s bomb: %d %s, want 413", name, resp.StatusCode, body)
		}
		if resp, body := e.post(t, "/v1/embeddings", f(embedBody)[:20], "Content-Encoding", name); resp.StatusCode != 400 {
			t.Errorf("%s cut: %d %s, want 400", name, resp.StatusCode, body)
		}
	}
}

func TestTrace(t *testing.T) {
	var got backends.Header
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, tt := range []struct {
		given  string
		sample float64
		want   string // beginning of the engine's traceparent; "" = none
		end    string
	}{
		{parent, 0, "00-0af7651916cd43dd8448eb211c80319c-", "-01"},
		{parent[:53] + "00", 1, "00-0af7651916cd43dd8448eb211c80319c-", "-00"},
		{strings.ToUpper(parent), 0, "", ""},
		{"", 0, "", ""},
		{"", 1, "00-", "-01"},
		{"", 1e-18, "00-", "-00"},
	} {
		e := start(t, func(_ context.Context, req *backends.Request) (*backends.Reply, error) {
			got = req.Header
			return whole200(200, "{}"), nil
		}, func(o *Options, _ *Deps) { o.Telemetry.Sample = tt.sample })
		e.post(t, "/v1/embeddings", embedBody, "Traceparent", tt.given, "Tracestate", "a=b")
		o := e.ledger.wait(t)
		if tt.want == "" {
			if len(got) != 0 || o.Trace != (Trace{}) {
				t.Errorf("%q: headers %v, trace %+v; want none", tt.given, got, o.Trace)
			}
			continue
		}
		v := got[0].Value
		if !strings.HasPrefix(v, tt.want) || !strings.HasSuffix(v, tt.end) || v != fmt.Sprintf("00-%x-%x%s", o.Trace.ID, o.Trace.Span, tt.end) {
			t.Errorf("%q, share %v: the engine got %s, observed %+v", tt.given, tt.sample, v, o.Trace)
		}
		if tt.given != "" && (fmt.Sprintf("%x", o.Trace.Parent) != "b7ad6b7169203331" || o.Trace.State != "a=b" || v == tt.given) {
			t.Errorf("%q: observed %+v", tt.given, o.Trace)
		}
	}
}

func FuzzTraceparent(f *testing.F) {
	f.Add([]byte("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
	f.Add([]byte("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more"))
	f.Fuzz(func(t *testing.T, in []byte) {
		var tr Trace
		if tr.parse(in) && !strings.HasPrefix(string(in[3:]), fmt.Sprintf("%x-%x-", tr.ID, tr.Parent)) {
			t.Errorf("%q is read as %+v", in, tr)
		}
	})
}

func TestAnnouncedWait(t *testing.T) {
	for _, tt := range []struct {
		h    backends.Header
		want time.Duration
	}{
		{nil, 0},
		{backends.Header{{Name: "Retry-After", Value: "7"}}, 7 * time.Second},
		{backends.Header{{Name: "Retry-After", Value: "2"}, {Name: "Retry-After-Ms", Value: "1500"}}, 1500 * time.Millisecond},
		{backends.Header{{Name: "Retry-After", Value: "99999999999999"}}, time.Hour},
		{backends.Header{{Name: "Retry-After", Value: "-1"}}, 0},
		{backends.Header{{Name: "Retry-After", Value: "Mon, 30 Nov 2026 08:00:00 GMT"}}, 0},
	} {
		if got := announced(tt.h); got != tt.want {
			t.Errorf("%v: %v, want %v", tt.h, got, tt.want)
		}
	}
}

// Media types are the same in capitals (RFC 9110, section 8.3.1).
func TestMediaTypes(t *testing.T) {
	for kind, want := range map[string][2]bool{
		"multipart/form-data; boundary=b": {true, false}, "Multipart/Form-Data;boundary=b": {true, false}, "multipart/form-datax": {false, false},
		"Application/JSON ; charset=utf-8": {false, true}, "application/problem+json": {false, true}, "text/plain": {false, false},
	} {
		if got := [2]bool{isForm([]byte(kind)), isJSON([]byte(kind))}; got != want {
			t.Errorf("%q: form, JSON %v, want %v", kind, got, want)
		}
	}
}
