package serve

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"aloft/backends"
	"aloft/backends/openai"
)

// words is a small real engine: it answers with the words it is told to say and
// embeds a text as its length. It blocks while a test wants it to.
type words struct {
	info   Info
	say    []string
	block  chan struct{} // when set, a token needs a receive from it
	ended  chan error    // gets the context's error of every call that was cut
	got    chan *GenerateRequest
	awake  chan string
	failAt int // token number before which Generate fails; 0 = never
}

func newWords(say ...string) *words {
	return &words{
		info: Info{Model: "org/m", Kind: "test", Context: 10, Dim: 2, Slots: 1, Created: 7}, say: say,
		ended: make(chan error, 100), got: make(chan *GenerateRequest, 100), awake: make(chan string, 10),
	}
}

func (e *words) Info() Info { return e.info }

func (e *words) wait(ctx context.Context) error {
	if e.block == nil {
		return nil
	}
	select {
	case <-e.block:
		return nil
	case <-ctx.Done():
		e.ended <- ctx.Err()
		return ctx.Err()
	}
}

func (e *words) Embed(ctx context.Context, req *EmbedRequest) (*EmbedResult, error) {
	if err := e.wait(ctx); err != nil {
		return nil, err
	}
	res := &EmbedResult{}
	for _, in := range req.Inputs {
		n := len(in.Text) + len(in.Tokens)
		if n > e.info.Context {
			return nil, fmt.Errorf("%d tokens of %d: %w", n, e.info.Context, backends.ErrTooLong)
		}
		if in.Text == "nan" {
			n = math.MinInt
		}
		v := float32(n)
		if n == math.MinInt {
			v = float32(math.NaN())
		}
		res.Vectors = append(res.Vectors, []float32{v, float32(req.Dimensions)})
		res.PromptTokens += n
	}
	return res, nil
}

func (e *words) Generate(ctx context.Context, req *GenerateRequest, emit func(Piece) error) (Finish, error) {
	e.got <- req
	for i, w := range e.say {
		if err := e.wait(ctx); err != nil {
			return Finish{}, err
		}
		if e.failAt == i+1 {
			return Finish{}, errors.New("the model broke")
		}
		if err := emit(Piece{Text: w, Logprob: -0.5, Top: []TopLogprob{{w, -0.5}, {"x", math.Inf(-1)}}}); err != nil {
			return Finish{}, err
		}
	}
	return Finish{Reason: "stop", PromptTokens: 3, CompletionTokens: len(e.say)}, nil
}

func (e *words) Sleep(context.Context) error { e.awake <- "sleep"; return nil }
func (e *words) Wake(context.Context) error  { e.awake <- "wake"; return nil }

// start serves e on a real socket until the test ends.
func start(t *testing.T, e Engine, o Options) string {
	t.Helper()
	s, err := New(e, o, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, ln) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return "http://" + ln.Addr().String()
}

func post(t *testing.T, url, body string) (int, string, http.Header) {
	t.Helper()
	res, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b), res.Header
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(b)
}

func TestEmbeddings(t *testing.T) {
	url := start(t, newWords(), Options{}) + "/v1/embeddings"
	status, body, h := post(t, url, `{"model":"org/m","input":["a","bcd"],"dimensions":4}`)
	want := `{"object":"list","data":[{"object":"embedding","index":0,"embedding":[1,4]},{"object":"embedding","index":1,"embedding":[3,4]}],` +
		`"model":"org/m","usage":{"prompt_tokens":4,"total_tokens":4}}`
	if status != 200 || body != want || h.Get("X-Request-Id") == "" || h.Get("Content-Type") != "application/json" {
		t.Errorf("%d %s %v", status, body, h)
	}
	if _, body, _ = post(t, url, `{"model":"org/m","input":[[5,6],[7]]}`); !strings.Contains(body, `[2,0]`) || !strings.Contains(body, `[1,0]`) {
		t.Errorf("token ids: %s", body)
	}
	if _, body, _ = post(t, url, `{"model":"org/m","input":"a","encoding_format":"base64"}`); !strings.Contains(body, `"embedding":"AACAPwAAAAA="`) {
		t.Errorf("base64: %s", body)
	}
}

func TestErrors(t *testing.T) {
	e := newWords("x")
	e.failAt = 1
	base := start(t, e, Options{MaxBody: 2000})
	for _, tc := range []struct {
		path, body  string
		status      int
		param, code string
	}{
		{"/v1/embeddings", `{"model":"no","input":"a"}`, 404, "model", "model_not_found"},
		{"/v1/embeddings", `{"model":"org/m","input":"01234567890"}`, 400, "input", "context_length_exceeded"},
		{"/v1/embeddings", `{"model":"org/m","input":"nan"}`, 500, "", "internal_error"},
		{"/v1/embeddings", `{"model":"org/m","input":[4294967296]}`, 400, "input", "invalid_type"},
		{"/v1/embeddings", `x`, 400, "", ""},
		{"/v1/embeddings", `{"model":"` + strings.Repeat("x", 3000) + `"}`, 413, "", "request_too_large"},
		{"/v1/chat/completions", `{"model":"org/m","messages":[{"role":"user","content":"a"}]}`, 500, "", "internal_error"},
		{"/v1/chat/completions", `{"model":"org/m","stream":true,"messages":[{"role":"user","content":"a"}]}`, 500, "", "internal_error"},
		{"/v1/chat/completions", `{"model":"org/m","messages":[{"content":"a"}]}`, 400, "messages", "missing_required_parameter"},
		{"/v1/chat/completions", `{"model":"org/m","messages":[{"role":"user","content":1}]}`, 400, "messages", "invalid_type"},
		{"/v1/chat/completions", `{"model":"org/m","messages":[{"role":1}]}`, 400, "messages", "invalid_type"},
		{"/v1/chat/completions", `{"model":"org/m","messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, 400, "messages", "unsupported_parameter"},
		{"/v1/chat/completions", `{"model":"org/m","messages":[{}],"n":2}`, 400, "n", "unsupported_parameter"},
		{"/v1/chat/completions", `{"model":"org/m","messages":[{}],"tools":[{}]}`, 400, "tools", "unsupported_parameter"},
		{"/v1/chat/completions", `{"model":"org/m","messages":[{}],"response_format":{"type":"json_object"}}`, 400, "response_format", "unsupported_parameter"},
		{"/v1/chat/completions", `{"model":"org/m","messages":[{"role":"u"}],"temperature":3}`, 400, "temperature", "invalid_value"},
		{"/v1/chat/completions", `{"model":"org/m","messages":[{"role":"u"}],"temperature":"hot"}`, 400, "temperature", "invalid_type"},
		{"/v1/chat/completions", `{"model":"org/m","messages":[{"role":"u"}],"top_p":-0.1}`, 400, "top_p", "invalid_value"},
		{"/v1/chat/completions", `{"model":"org/m","messages":[{"role":"u"}],"stop":["a",""]}`, 400, "stop", "invalid_type"},
		{"/v1/chat/completions", `{"model":"org/m","messages":[{"role":"u"}],"stop":["a","b","c","d","e"]}`, 400, "stop", "invalid_value"},
		{"/v1/chat/completions", `{"model":"org/m","messages":[{"role":"u"}],"top_logprobs":2}`, 400, "top_logprobs", "invalid_value"},
		{"/v1/chat/completions", `{"model":"org/m","messages":[{"role":"u"}],"logprobs":2}`, 400, "logprobs", "invalid_type"},
		{"/v1/chat/completions", `{"model":"org/m","messages":[{"role":"u"}],"logprobs":true,"top_logprobs":21}`, 400, "top_logprobs", "invalid_value"},
		{"/v1/chat/completions", `{"model":"org/m","messages":[{"role":"u"}],"seed":1.5}`, 400, "seed", "invalid_type"},
		{"/v1/completions", `{"model":"org/m","prompt":["a","b"]}`, 400, "prompt", "unsupported_parameter"},
		{"/v1/completions", `{"model":"org/m","prompt":"a","max_tokens":0}`, 400, "max_tokens", "invalid_value"},
		{"/v1/completions", `{"model":"org/m","prompt":"a","logprobs":6}`, 400, "logprobs", "invalid_value"},
		{"/v1/completions", `{"model":"org/m","prompt":"a","echo":true}`, 400, "echo", "unsupported_parameter"},
		{"/v1/nothing", `{}`, 404, "", "unknown_url"},
	} {
		status, body, h := post(t, base+tc.path, tc.body)
		var got struct {
			Error struct{ Message, Type, Param, Code *string }
		}
		if err := json.Unmarshal([]byte(body), &got); err != nil || got.Error.Message == nil || got.Error.Type == nil {
			t.Errorf("%.70s: %s", tc.body, body)
			continue
		}
		param, code := deref(got.Error.Param), deref(got.Error.Code)
		if status != tc.status || param != tc.param || code != tc.code || h.Get("Content-Type") != "application/json" {
			t.Errorf("%.70s: %d %s", tc.body, status, body)
		}
	}
	if status, _ := get(t, base+"/v1/embeddings"); status != 405 {
		t.Errorf("GET of a POST route: %d", status)
	}
	req, _ := http.NewRequest("POST", base+"/v1/embeddings", strings.NewReader("x"))
	req.Header.Set("Content-Encoding", "gzip")
	res, err := http.DefaultClient.Do(req)
	if err != nil || res.StatusCode != 415 {
		t.Errorf("compressed body: %v %v", res, err)
	}
	res.Body.Close()
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func TestDecode(t *testing.T) {
	seed := int64(9)
	for body, want := range map[string]GenerateRequest{
		`{"model":"m","messages":[{"role":"developer","content":"a"},{"role":"user","content":[{"type":"text","text":"b"},{"type":"text","text":"c"}]},{"role":"assistant","content":null}]}`: {
			Chat: true, Messages: []Message{{"system", "a"}, {"user", "bc"}, {"assistant", ""}}, Temperature: -1, TopP: -1, Logprobs: -1},
		`{"model":"m","messages":[{"role":"user","content":"a"}],"temperature":0,"top_p":1,"seed":9,"stop":"x","max_tokens":5,"logprobs":true,"top_logprobs":2,"unknown":{"a":1},"n":1,"tools":[],"response_format":{"type":"text"}}`: {
			Chat: true, Messages: []Message{{"user", "a"}}, TopP: 1, Seed: &seed, Stop: []string{"x"}, MaxTokens: 5, Logprobs: 2},
		`{"model":"m","prompt":"a","logprobs":3,"stop":["a","b"]}`: {Prompt: "a", Temperature: -1, TopP: -1, Logprobs: 3, Stop: []string{"a", "b"}},
		"{\"model\":\"m\",\"prompt\":\"a\xff\",\"PROMPT\":[],\"stop\":\"\xff\",\"Temperature\":9}": {
			Prompt: "a\ufffd", Temperature: -1, TopP: -1, Logprobs: -1, Stop: []string{"\ufffd"}},
		`{"model":"m","prompt":["a"]}`:                   {Prompt: "a", Temperature: -1, TopP: -1, Logprobs: -1},
		`{"model":"m","prompt":[1,2]}`:                   {PromptIDs: []int{1, 2}, Temperature: -1, TopP: -1, Logprobs: -1},
		`{"model":"m","prompt":[[1,2]],"logprobs":null}`: {PromptIDs: []int{1, 2}, Temperature: -1, TopP: -1, Logprobs: -1},
	} {
		e := backends.Completions
		if want.Chat {
			e = backends.Chat
		}
		scan, err := openai.ScanRequest(e, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		got, err := decodeGenerate(e, []byte(body), scan)
		if err != nil || !reflect.DeepEqual(*got, want) {
			t.Errorf("%s\ngot  %+v, %v\nwant %+v", body, got, err, want)
		}
	}
}

// events reads a stream's payloads.
func events(t *testing.T, r io.Reader) (out []string) {
	t.Helper()
	for ev := openai.NewEvents(r, 1<<20); ; {
		b, err := ev.Next()
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, string(openai.Data(b)))
	}
}

func TestStream(t *testing.T) {
	plane := "\U0001F6E9"
	url := start(t, newWords("Hel", plane[:1], plane[1:3], plane[3:]+"lo", "\xe2\x82"), Options{})
	_, body, h := post(t, url+"/v1/chat/completions",
		`{"model":"org/m","messages":[{"role":"user","content":"a"}],"stream":true,"stream_options":{"include_usage":true}}`)
	if h.Get("Content-Type") != "text/event-stream" || h.Get("X-Accel-Buffering") != "no" {
		t.Errorf("headers %v", h)
	}
	got := events(t, strings.NewReader(body))
	id := got[0][:strings.Index(got[0], `,"model"`)]
	tail := `,"finish_reason":null}],"usage":null}`
	open := id + `,"model":"org/m","choices":[{"index":0,`
	want := []string{
		open + `"delta":{"role":"assistant","content":""},"logprobs":null` + tail,
		open + `"delta":{"content":"Hel"},"logprobs":null` + tail,
		open + `"delta":{"content":"` + plane + `lo"},"logprobs":null` + tail,
		open + `"delta":{"content":"` + "\ufffd\ufffd" + `"},"logprobs":null` + tail,
		open + `"delta":{},"logprobs":null,"finish_reason":"stop"}],"usage":null}`,
		id + `,"model":"org/m","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5,"total_tokens":8}}`,
		"[DONE]",
	}
	if !strings.HasPrefix(id, `{"id":"chatcmpl-`) || !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, frame := range got[:6] {
		if !json.Valid([]byte(frame)) {
			t.Errorf("no JSON: %s", frame)
		}
	}
}

func TestWholeAnswers(t *testing.T) {
	url := start(t, newWords("Hel", "lo"), Options{})
	for _, tc := range []struct{ path, body, want string }{
		{"/v1/chat/completions", `{"model":"org/m","messages":[{"role":"user","content":"a"}]}`,
			`"model":"org/m","choices":[{"index":0,"message":{"role":"assistant","content":"Hello","refusal":null},"logprobs":null,"finish_reason":"stop"}],` +
				`"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}`},
		{"/v1/completions", `{"model":"org/m","prompt":"a","logprobs":2}`,
			`"choices":[{"index":0,"text":"Hello","logprobs":{"tokens":["Hel","lo"],"token_logprobs":[-0.5,-0.5],` +
				`"top_logprobs":[{"Hel":-0.5,"x":-9999},{"lo":-0.5,"x":-9999}],"text_offset":[0,3]},"finish_reason":"stop"}],`},
		{"/v1/chat/completions", `{"model":"org/m","messages":[{"role":"user","content":"a"}],"logprobs":true,"top_logprobs":1}`,
			`"logprobs":{"content":[{"token":"Hel","logprob":-0.5,"bytes":[72,101,108],"top_logprobs":[{"token":"Hel","logprob":-0.5,"bytes":[72,101,108]},`},
		{"/v1/completions", `{"model":"org/m","prompt":"a","stream":true}`,
			`"choices":[{"index":0,"text":"lo","logprobs":null,"finish_reason":null}]}` + "\n\n"},
	} {
		status, body, _ := post(t, url+tc.path, tc.body)
		if status != 200 || !strings.Contains(body, tc.want) {
			t.Errorf("%s\ngot  %d %s\nwant …%s", tc.body, status, body, tc.want)
		}
	}
}

// An engine that breaks after the first event cannot change the status: the
// stream ends with an error frame and without [DONE].
func TestStreamThatBreaks(t *testing.T) {
	e := newWords("a", "b", "c")
	e.failAt = 3
	_, body, _ := post(t, start(t, e, Options{})+"/v1/chat/completions", `{"model":"org/m","stream":true,"messages":[{"role":"user","content":"a"}]}`)
	got := events(t, strings.NewReader(body))
	if last := got[len(got)-1]; len(got) != 4 || !strings.HasPrefix(last, `{"error":{"message":"the model broke"`) {
		t.Errorf("%q", got)
	}
}

// Events arrive one by one, not when the answer is done.
func TestEventsAreFlushed(t *testing.T) {
	e := newWords("a", "b")
	e.block = make(chan struct{})
	url := start(t, e, Options{})
	go func() { e.block <- struct{}{} }()
	res, err := http.Post(url+"/v1/completions", "", strings.NewReader(`{"model":"org/m","prompt":"a","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	line, err := bufio.NewReader(res.Body).ReadString('\n') // the engine now waits for the second token
	if err != nil || !strings.Contains(line, `"text":"a"`) {
		t.Errorf("%q, %v", line, err)
	}
}

func TestClientLeaves(t *testing.T) {
	for name, body := range map[string]string{
		"plain": `{"model":"org/m","prompt":"a"}`, "stream": `{"model":"org/m","prompt":"a","stream":true}`, "embeddings": ``,
	} {
		t.Run(name, func(t *testing.T) {
			e := newWords("a", "b")
			e.block = make(chan struct{})
			url := start(t, e, Options{})
			path := "/v1/completions"
			if body == "" {
				path, body = "/v1/embeddings", `{"model":"org/m","input":"a"}`
			}
			ctx, leave := context.WithCancel(context.Background())
			req, _ := http.NewRequestWithContext(ctx, "POST", url+path, strings.NewReader(body))
			gone := make(chan error, 1)
			go func() {
				res, err := http.DefaultClient.Do(req)
				if err == nil {
					res.Body.Close()
				}
				gone <- err
			}()
			for { // until the engine has the call
				if _, m := get(t, url+"/metrics"); strings.Contains(m, `aloft_engine_running{model="org/m"} 1`) {
					break
				}
			}
			leave()
			<-gone
			select {
			case <-e.ended:
			case <-time.After(time.Minute):
				t.Fatal("the engine still works after its client left")
			}
		})
	}
}

func TestQueueIsBounded(t *testing.T) {
	e := newWords("a")
	e.block = make(chan struct{})
	url := start(t, e, Options{MaxQueue: 2})
	status := make(chan int, 10)
	for range 3 { // one runs, two wait
		go func() {
			s, _, _ := post(t, url+"/v1/completions", `{"model":"org/m","prompt":"a"}`)
			status <- s
		}()
	}
	for {
		if _, m := get(t, url+"/metrics"); strings.Contains(m, `aloft_engine_waiting{model="org/m"} 2`) {
			break
		}
	}
	s, body, h := post(t, url+"/v1/completions", `{"model":"org/m","prompt":"a"}`)
	if s != 429 || h.Get("Retry-After") != "1" || h.Get("X-Aloft-Reason") != "queue_full" || !strings.Contains(body, `"type":"rate_limit_error"`) {
		t.Errorf("fourth call: %d %s %v", s, body, h)
	}
	for range 3 {
		e.block <- struct{}{}
		if s := <-status; s != 200 {
			t.Errorf("admitted call: %d", s)
		}
	}
	if _, m := get(t, url+"/metrics"); !strings.Contains(m, `aloft_engine_refused_total{model="org/m"} 1`) ||
		!strings.Contains(m, `aloft_engine_generation_tokens_total{model="org/m"} 3`) {
		t.Errorf("metrics:\n%s", m)
	}
}

func TestSleepWaitsAndRefuses(t *testing.T) {
	e := newWords("a")
	e.block = make(chan struct{})
	url := start(t, e, Options{})
	first, slept := make(chan int, 1), make(chan int, 1)
	go func() {
		s, _, _ := post(t, url+"/v1/completions", `{"model":"org/m","prompt":"a"}`)
		first <- s
	}()
	<-e.got
	go func() {
		s, _, _ := post(t, url+"/sleep?level=1", "")
		slept <- s
	}()
	for {
		if _, b := get(t, url+"/is_sleeping"); b == `{"is_sleeping":true}` {
			break
		}
	}
	if s, b, h := post(t, url+"/v1/completions", `{"model":"org/m","prompt":"a"}`); s != 503 || h.Get("Retry-After") == "" {
		t.Errorf("call while going to sleep: %d %s", s, b)
	}
	select {
	case what := <-e.awake:
		t.Fatalf("engine told to %s while it works", what)
	default:
	}
	e.block <- struct{}{}
	if a, b := <-first, <-slept; a != 200 || b != 200 || <-e.awake != "sleep" {
		t.Errorf("running call %d, sleep %d", a, b)
	}
	if s, _ := get(t, url+"/health"); s != 200 {
		t.Errorf("health asleep: %d", s)
	}
	if s, _, _ := post(t, url+"/wake_up", ""); s != 200 || <-e.awake != "wake" {
		t.Errorf("wake: %d", s)
	}
	e.block = nil
	if s, _, _ := post(t, url+"/v1/completions", `{"model":"org/m","prompt":"a"}`); s != 200 {
		t.Errorf("awake again: %d", s)
	}
	if s, _, _ := post(t, url+"/sleep?level=2", ""); s != 400 {
		t.Errorf("level 2: %d", s)
	}
}

func TestModels(t *testing.T) {
	url := start(t, newWords(), Options{})
	_, list := get(t, url+"/v1/models")
	status, one := get(t, url+"/v1/models/org/m")
	if status != 200 || list != `{"data":[`+one+`],"object":"list"}` || !strings.Contains(one, `"id":"org/m"`) || !strings.Contains(one, `"created":7`) {
		t.Errorf("%s\n%d %s", list, status, one)
	}
	if status, _ = get(t, url+"/v1/models/org%2Fm"); status != 200 {
		t.Errorf("%%2F: %d", status)
	}
	if status, _ = get(t, url+"/v1/models/x"); status != 404 {
		t.Errorf("unknown: %d", status)
	}
}

// A shutdown lets a running stream finish; one that outlives the grace is cut
// with an error frame.
func TestShutdown(t *testing.T) {
	for _, finishes := range []bool{true, false} {
		e := newWords("a", "b")
		e.block = make(chan struct{})
		s, err := New(e, Options{ShutdownGrace: map[bool]time.Duration{true: time.Minute, false: time.Millisecond}[finishes]}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- s.Serve(ctx, ln) }()
		go func() { e.block <- struct{}{} }()
		res, err := http.Post("http://"+ln.Addr().String()+"/v1/completions", "", strings.NewReader(`{"model":"org/m","prompt":"a","stream":true}`))
		if err != nil {
			t.Fatal(err)
		}
		stop()
		if finishes {
			e.block <- struct{}{}
		}
		body, _ := io.ReadAll(res.Body) // cut off on purpose in one case
		res.Body.Close()
		if strings.Contains(string(body), "[DONE]") != finishes {
			t.Errorf("finishes=%v: %s", finishes, body)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestAnnounce(t *testing.T) {
	var b bytes.Buffer
	if err := Announce(&b, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4711}); err != nil || b.String() != `{"listening":"127.0.0.1:4711"}`+"\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
}

func TestCutRune(t *testing.T) {
	for in, want := range map[string][2]string{
		"": {"", ""}, "a": {"a", ""}, "aé": {"aé", ""}, "a\xc3": {"a", "\xc3"}, "\xf0\x9f\x9b": {"", "\xf0\x9f\x9b"},
		"\xa9": {"\xa9", ""}, "a\xff": {"a\xff", ""}, "\x80\x80\x80\x80": {"\x80\x80\x80\x80", ""},
	} {
		if whole, rest := cutRune(in); whole != want[0] || rest != want[1] {
			t.Errorf("%q: %q %q", in, whole, rest)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(true, []byte(`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a"}]}],"stop":["a"],"logprobs":true,"top_logprobs":2}`))
	f.Add(false, []byte(`{"model":"m","prompt":[[1,2]],"temperature":0.5,"top_p":1,"seed":-1,"logprobs":5,"max_tokens":3}`))
	f.Add(false, []byte(`{"model":"m","prompt":"a","PROMPT":[],"n":1,"tools":[],"logit_bias":{},"response_format":{"type":"text"}}`))
	f.Fuzz(func(t *testing.T, chat bool, body []byte) {
		e := backends.Completions
		if chat {
			e = backends.Chat
		}
		scan, err := openai.ScanRequest(e, body)
		if err != nil {
			return
		}
		req, err := decodeGenerate(e, body, scan)
		var wire *openai.Error
		switch {
		case err != nil:
			if !errors.As(err, &wire) || wire.Status != 400 {
				t.Fatalf("%q: %v", body, err)
			}
		case req.Temperature > 2 || req.TopP > 1 || len(req.Stop) > 4 || req.Logprobs < -1 || req.Logprobs > 20 || req.MaxTokens < 0,
			chat && len(req.Messages) == 0, !utf8.ValidString(req.Prompt):
			t.Fatalf("%q: %+v", body, req)
		}
	})
}
