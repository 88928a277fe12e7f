package loadgen

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"aloft/loadgen/arrivals"
)

// Parts of streams, as servers send them.
const (
	role    = `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
	word    = `data: {"choices":[{"index":0,"delta":{"content":"word "},"finish_reason":null}]}` + "\n\n"
	finish  = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	usage   = `data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":4}}` + "\n\n"
	done    = "data: [DONE]\n\n"
	plain   = `{"choices":[{"index":0,"message":{"content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":4}}`
	vectors = `{"data":[{"index":1,"embedding":[0.5,1]},{"index":0,"embedding":"AAAAAA=="}],"usage":{"prompt_tokens":12}}`
)

// named is an event of the responses API, with members beside its type.
func named(event, members string) string {
	if members != "" {
		members = "," + members
	}
	return "event: response." + event + "\ndata: {\"type\":\"response." + event + "\"" + members + "}\n\n"
}

func steady(rate float64, d time.Duration) []arrivals.Phase {
	return []arrivals.Phase{{Name: "steady", Duration: d, Process: arrivals.Process{Kind: arrivals.Constant, Rate: rate}}}
}

func mustRun(t *testing.T, opt Options) *Report {
	t.Helper()
	report, err := Run(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// write sends parts of a stream, each in a write of its own.
func write(w http.ResponseWriter, parts ...string) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	for _, p := range parts {
		io.WriteString(w, p)
		w.(http.Flusher).Flush()
	}
}

// hijack takes the connection, writes raw and cuts it: with a reset or in order.
func hijack(w http.ResponseWriter, raw string, reset bool) {
	conn, buf, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	buf.WriteString(raw)
	buf.Flush()
	if reset {
		conn.(*net.TCPConn).SetLinger(0)
	}
	conn.Close()
}

// Each kind of fault, from a real server, gets its own class. All run side by
// side in one run.
func TestOutcomes(t *testing.T) {
	const n = 5
	chunked := "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	chunk := func(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }
	type fault struct {
		kind  Kind
		plain bool // not a stream
		serve func(w http.ResponseWriter)
		want  Outcome
	}
	faults := map[string]fault{
		"complete": {Chat, false, func(w http.ResponseWriter) { write(w, role, word, word, finish, usage, done) }, OK},
		"no usage": {Chat, false, func(w http.ResponseWriter) { write(w, role, word, word, finish, done) }, OK},
		"a count of none": {Chat, false, func(w http.ResponseWriter) {
			write(w, role, word, word, finish, strings.Replace(usage, `"completion_tokens":4`, `"completion_tokens":0`, 1), done)
		}, OK},
		"content type in capitals": {Chat, false, func(w http.ResponseWriter) {
			hijack(w, "HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream\r\n\r\n"+role+word+finish+usage+done, false)
		}, OK},
		"all in one write": {Chat, false, func(w http.ResponseWriter) { write(w, ": hello\r\n\r\n"+role+word+finish+usage+done) }, OK},
		"completions stream": {Completions, false, func(w http.ResponseWriter) {
			write(w, strings.Replace(word, `"delta":{"content":"word "}`, `"text":"w"`, 1), finish, done)
		}, OK},
		"responses stream": {Responses, false, func(w http.ResponseWriter) {
			write(w, named("created", ""), named("output_text.delta", `"delta":"w"`), named("completed", `"response":{"usage":{"input_tokens":7,"output_tokens":4}}`))
		}, OK},
		"responses failed": {Responses, false, func(w http.ResponseWriter) {
			write(w, named("created", ""), named("failed", `"response":{"error":{"message":"gone"}}`))
		}, StreamError},
		"responses cut": {Responses, false, func(w http.ResponseWriter) { write(w, named("created", ""), named("output_text.delta", `"delta":"w"`)) }, Truncated},
		"plain chat":    {Chat, true, func(w http.ResponseWriter) { io.WriteString(w, plain) }, OK},
		"embeddings":    {Embeddings, true, func(w http.ResponseWriter) { io.WriteString(w, vectors) }, OK},

		"429":      {Chat, false, func(w http.ResponseWriter) { w.Header().Set("Retry-After", "1"); w.WriteHeader(429) }, Shed},
		"503":      {Embeddings, true, func(w http.ResponseWriter) { w.WriteHeader(503) }, Shed},
		"500":      {Chat, false, func(w http.ResponseWriter) { http.Error(w, `{"error":"no"}`, 500) }, HTTPError},
		"redirect": {Chat, true, func(w http.ResponseWriter) { w.Header().Set("Location", "/"); w.WriteHeader(307) }, HTTPError},

		"error event":       {Chat, false, func(w http.ResponseWriter) { write(w, role, word, `data: {"error":{"message":"gone"}}`+"\n\n", done) }, StreamError},
		"named error event": {Chat, false, func(w http.ResponseWriter) { write(w, role, "event: error\ndata: {}\n\n") }, StreamError},

		"no [DONE]":        {Chat, false, func(w http.ResponseWriter) { write(w, role, word, finish) }, Truncated},
		"no finish_reason": {Chat, false, func(w http.ResponseWriter) { write(w, role, word, done) }, Truncated},
		"one choice unfinished": {Chat, false, func(w http.ResponseWriter) {
			write(w, word, strings.Replace(word, `"index":0`, `"index":1`, 1), finish, done)
		}, Truncated},
		"cut in a stream":        {Chat, false, func(w http.ResponseWriter) { hijack(w, chunked+chunk(role)+chunk(word), false) }, Truncated},
		"reset in a stream":      {Chat, false, func(w http.ResponseWriter) { hijack(w, chunked+chunk(role+word), true) }, Truncated},
		"cut in an answer":       {Embeddings, true, func(w http.ResponseWriter) { hijack(w, "HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{", false) }, Truncated},
		"plain no finish_reason": {Chat, true, func(w http.ResponseWriter) { io.WriteString(w, strings.Replace(plain, `"stop"`, "null", 1)) }, Truncated},

		"reset":  {Chat, false, func(w http.ResponseWriter) { hijack(w, "", true) }, Connect},
		"closed": {Embeddings, true, func(w http.ResponseWriter) { hijack(w, "", false) }, Connect},

		"not HTTP":          {Chat, true, func(w http.ResponseWriter) { hijack(w, "220 mail ready\r\n\r\n", false) }, Protocol},
		"not a stream":      {Chat, false, func(w http.ResponseWriter) { io.WriteString(w, plain) }, Protocol},
		"not JSON":          {Chat, true, func(w http.ResponseWriter) { io.WriteString(w, "<html>") }, Protocol},
		"event not JSON":    {Chat, false, func(w http.ResponseWriter) { write(w, role, "data: {\"choices\"\n\n") }, Protocol},
		"a vector too few":  {Embeddings, true, func(w http.ResponseWriter) { io.WriteString(w, `{"data":[{"index":0,"embedding":[1]}]}`) }, Protocol},
		"the same twice":    {Embeddings, true, func(w http.ResponseWriter) { io.WriteString(w, strings.Replace(vectors, `"index":1`, `"index":0`, 1)) }, Protocol},
		"a vector is empty": {Embeddings, true, func(w http.ResponseWriter) { io.WriteString(w, strings.Replace(vectors, "[0.5,1]", "[]", 1)) }, Protocol},

		"silent": {Chat, false, nil, Timeout},
		"stalls": {Chat, false, nil, Timeout},
	}
	requests := map[string]*atomic.Int64{}
	mux := http.NewServeMux()
	opt := Options{Drain: 30 * time.Second} // enough on a very busy machine; not waited for otherwise
	server := httptest.NewServer(mux)
	defer server.Close()
	for name, f := range faults {
		count := &atomic.Int64{}
		requests[name] = count
		path := "/" + strings.NewReplacer(" ", "-", "[", "", "]", "").Replace(name)
		mux.HandleFunc(path+f.kind.path(), func(w http.ResponseWriter, r *http.Request) {
			count.Add(1)
			io.Copy(io.Discard, r.Body)
			switch {
			case f.serve != nil:
				f.serve(w)
			case name == "stalls":
				write(w, role, word)
				fallthrough
			default:
				<-r.Context().Done()
			}
		})
		wl := Workload{
			Name: name, Kind: f.kind, Model: "m", URL: server.URL + path, Stream: !f.plain,
			Timeout: 30 * time.Second, Phases: steady(25, n*40*msec),
		}
		if f.kind == Embeddings {
			wl.Inputs = 2
		}
		if f.serve == nil {
			wl.Timeout = 300 * msec
		}
		opt.Workloads = append(opt.Workloads, wl)
	}
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody.Close() // nobody listens there now
	opt.Workloads = append(opt.Workloads, Workload{
		Name: "refused", Kind: Chat, Model: "m", URL: "http://" + nobody.Addr().String(), Phases: steady(25, n*40*msec),
	})
	faults["refused"] = fault{want: Connect}

	for _, r := range mustRun(t, opt).Results {
		f := faults[r.Name]
		got := map[Outcome]int{OK: r.OK, Late: r.Late, Shed: r.Shed}
		for k, v := range r.FailedBy {
			got[k] = v
		}
		if r.Offered != n || got[f.want] != n {
			t.Errorf("%s: offered %d, outcomes %v %v, want %d %s", r.Name, r.Offered, got, r.Problems, n, f.want)
		}
		if want := map[bool]float64{true: 1}[f.want == OK]; r.Attainment != want {
			t.Errorf("%s: attainment %v", r.Name, r.Attainment)
		}
		if f.want.Failed() != (r.Failed == n) {
			t.Errorf("%s: %d failed of outcome %s", r.Name, r.Failed, f.want)
		}
		// A request that times out on a loaded machine may not have got there yet.
		if c := requests[r.Name]; c != nil && (c.Load() > n || c.Load() < n && f.want != Timeout) {
			t.Errorf("%s: the server saw %d requests, want %d: the client must not retry", r.Name, c.Load(), n)
		}
		switch r.Name {
		case "complete", "responses stream":
			if want := (Tokens{Prompt: 7 * n, Completion: 4 * n, Good: 4 * n}); r.Tokens != want {
				t.Errorf("complete: tokens %+v, want %+v", r.Tokens, want)
			}
		case "no usage":
			if want := (Tokens{Completion: 2 * n, Good: 2 * n, Estimated: n}); r.Tokens != want {
				t.Errorf("no usage: tokens %+v, want %+v", r.Tokens, want)
			}
		case "a count of none":
			if want := (Tokens{Prompt: 7 * n, Completion: 2 * n, Good: 2 * n, Estimated: n}); r.Tokens != want {
				t.Errorf("a count of none: tokens %+v, want %+v", r.Tokens, want)
			}
		case "429", "503":
			if want := map[string]int{"429": n}[r.Name]; r.RetryAfter != want {
				t.Errorf("%s: %d with Retry-After, want %d", r.Name, r.RetryAfter, want)
			}
		case "500":
			if want := `HTTP 500: {"error":"no"}`; r.Problems[HTTPError] != want {
				t.Errorf("500: problem %q, want %q", r.Problems[HTTPError], want)
			}
		}
	}
}

// The same seed sends the same requests; what is sent is what the options say.
func TestRequestsFollowTheSeed(t *testing.T) {
	var mu sync.Mutex
	var bodies []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		bodies = append(bodies, r.URL.Path+" "+r.Header.Get("Authorization")+" "+r.Header.Get("X-Class")+" "+string(body))
		mu.Unlock()
		if r.URL.Path == Embeddings.path() {
			io.WriteString(w, vectors)
			return
		}
		write(w, word, finish, done)
	}))
	defer server.Close()
	opt := Options{Name: "twice", Seed: 7, Workloads: []Workload{
		{Name: "e", Kind: Embeddings, Content: Content{Inputs: 2, Texts: []string{"one", "two", "three\n"}}, Model: `a "b"`, URL: server.URL, Key: "secret-1", Headers: map[string]string{"x-class": "offline"}, Phases: steady(200, 200*msec)},
		{Name: "c", Kind: Chat, Stream: true, MaxTokens: 9, Model: "c", URL: server.URL, Content: Content{Texts: []string{"say"}}, Phases: []arrivals.Phase{
			{Name: "p", Duration: 200 * msec, Process: arrivals.Process{Kind: arrivals.Poisson, Rate: 100}},
		}},
		{Name: "p", Kind: Completions, Stream: true, Model: "c", URL: server.URL, Content: Content{Texts: []string{"go"}}, Phases: steady(10, 200*msec)},
	}}
	run := func(seed uint64) (string, *Report) {
		bodies = nil
		opt.Seed = seed
		report := mustRun(t, opt)
		slices.Sort(bodies)
		return strings.Join(bodies, "\n"), report
	}
	first, report := run(7)
	second, again := run(7)
	other, differs := run(8)
	if first != second || !slices.Equal(report.Plan, again.Plan) {
		t.Error("the same seed sent other requests")
	}
	if first == other || slices.Equal(report.Plan, differs.Plan) {
		t.Error("another seed sent the same requests")
	}
	for _, want := range []string{
		`/v1/embeddings Bearer secret-1 offline {"model":"a \"b\"","input":["one","three\n"]}`,
		`/v1/chat/completions   {"model":"c","messages":[{"role":"user","content":"say"}],"max_tokens":9,"stream":true,"stream_options":{"include_usage":true}}`,
		`/v1/completions   {"model":"c","prompt":"go","stream":true,"stream_options":{"include_usage":true}}`,
	} {
		if !strings.Contains(first, want) {
			t.Errorf("no request %s in\n%s", want, first)
		}
	}
	checkReport(t, report)
}

// checkReport checks the written forms of a report.
func checkReport(t *testing.T, report *Report) {
	text, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "secret") || strings.Contains(string(text), "three") || strings.Contains(string(text), "offline") {
		t.Errorf("the report tells a key, a header or a text: %s", text)
	}
	for _, want := range []string{`"schema":"aloft.load/2"`, `"kind":"poisson","rate":100`, `"duration":"200ms"`, `"p99_ms":`, `"target_ms":0`,
		`"attainment":1`, `"offered":40`, `"key":"hidden"`, `"interrupted":false`, `"send_lag":{"n":40`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in the report: %s", want, text)
		}
	}
	var back Report
	if err := json.Unmarshal(text, &back); err != nil || len(back.Results) != 3 || back.Results[0].OK != 40 {
		t.Errorf("read back %+v: %v", back, err)
	}
	var table bytes.Buffer
	if err := report.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(&table)
	lines.Scan()
	if fields := strings.Fields(lines.Text()); fields[0] != "workload" {
		t.Errorf("table begins with %q", fields)
	}
	lines.Scan()
	if got := strings.Fields(lines.Text())[:7]; !slices.Equal(got, []string{"e", "steady", "40", "40", "0", "0", "0"}) {
		t.Errorf("first row is %q", got)
	}
}
