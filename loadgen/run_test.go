package loadgen

import (
	"bufio"
	"bytes"
	"context"
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
	vectors = `{"data":[{"index":1,"embedding":[0.5,1]},{"index":0,"embedding":"AAAA"}],"usage":{"prompt_tokens":12}}`
)

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
	const n = 10
	chunked := "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
	chunk := func(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }
	type fault struct {
		kind  Kind
		plain bool // not a stream
		serve func(w http.ResponseWriter)
		want  Outcome
	}
	faults := map[string]fault{
		"complete":         {Chat, false, func(w http.ResponseWriter) { write(w, role, word, word, finish, usage, done) }, OK},
		"no usage":         {Chat, false, func(w http.ResponseWriter) { write(w, role, word, word, finish, done) }, OK},
		"all in one write": {Chat, false, func(w http.ResponseWriter) { write(w, ": hello\r\n\r\n"+role+word+finish+usage+done) }, OK},
		"completions stream": {Completions, false, func(w http.ResponseWriter) {
			write(w, strings.Replace(word, `"delta":{"content":"word "}`, `"text":"w"`, 1), finish, done)
		}, OK},
		"plain chat": {Chat, true, func(w http.ResponseWriter) { io.WriteString(w, plain) }, OK},
		"embeddings": {Embeddings, true, func(w http.ResponseWriter) { io.WriteString(w, vectors) }, OK},

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
	var opt Options
	server := httptest.NewUnstartedServer(mux)
	// What the server says of connections that the test breaks is not of interest.
	server.Config.ErrorLog = nil
	server.Start()
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
			Timeout: 5 * time.Second, Phases: steady(100, n*10*msec),
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
		Name: "refused", Kind: Chat, Model: "m", URL: "http://" + nobody.Addr().String(), Phases: steady(100, n*10*msec),
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
		case "complete":
			if want := (Tokens{Prompt: 7 * n, Completion: 4 * n}); r.Tokens != want {
				t.Errorf("complete: tokens %+v, want %+v", r.Tokens, want)
			}
		case "no usage":
			if want := (Tokens{Completion: 2 * n, Estimated: n}); r.Tokens != want {
				t.Errorf("no usage: tokens %+v, want %+v", r.Tokens, want)
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

// A server with a known delay, and a stream with a known first token, measured
// to the millisecond below and with room for a loaded machine above.
func TestKnownTimes(t *testing.T) {
	const room = 25 // ms
	mux := http.NewServeMux()
	mux.HandleFunc(Embeddings.path(), func(w http.ResponseWriter, r *http.Request) {
		d := 40 * msec
		if r.Header.Get("X-Slow") != "" {
			d = 120 * msec
		}
		time.Sleep(d)
		io.WriteString(w, vectors)
	})
	mux.HandleFunc(Chat.path(), func(w http.ResponseWriter, r *http.Request) {
		write(w, role) // at once: it must not count as the first token
		time.Sleep(60 * msec)
		write(w, word)
		time.Sleep(30 * msec)
		write(w, word, finish, usage) // 4 tokens in 2 chunks: 10 ms a token
		time.Sleep(20 * msec)
		write(w, done)
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	var last Snapshot
	calls := 0
	report := mustRun(t, Options{
		Workloads: []Workload{
			{Name: "fast", Kind: Embeddings, Inputs: 2, Model: "e", URL: server.URL, Phases: steady(50, 500*msec), Target: 100 * msec},
			{Name: "slow", Kind: Embeddings, Inputs: 2, Model: "e", URL: server.URL + "/v1/", Headers: map[string]string{"X-Slow": "1"}, Phases: steady(50, 500*msec), Target: 100 * msec},
			{Name: "chat", Kind: Chat, Stream: true, Model: "c", URL: server.URL + "/", Phases: steady(50, 500*msec)},
		},
		SampleEvery: 100 * msec,
		OnSample:    func(s Snapshot) { last = s; calls++ },
	})
	byName := map[string]Result{}
	for _, r := range report.Results {
		byName[r.Name] = r
	}
	within := func(what string, got, want float64) {
		t.Helper()
		if got < want-0.1 || got > want+room {
			t.Errorf("%s is %.2f ms, want %.0f to %.0f", what, got, want, want+room)
		}
	}
	fast, slow, chat := byName["fast"], byName["slow"], byName["chat"]
	within("fast p50", fast.P50, 40)
	within("fast p50 from send", fast.FromSend.P50, 40)
	within("slow p50", slow.P50, 120)
	within("TTFT p50", chat.TTFT.P50, 60)
	within("chat p50", chat.P50, 110)
	if got := chat.TPOT.P50; got < 9 || got > 10+room/3 {
		t.Errorf("TPOT p50 is %.2f ms, want about 10", got)
	}
	if slow.OK != 0 || slow.Late != 25 || slow.Attainment != 0 {
		t.Errorf("slow: %+v, want all 25 late", slow.Tally)
	}
	if chat.OK != 25 || chat.Attainment != 1 || chat.Achieved < 40 || chat.Achieved > 50 || chat.Planned != 50 {
		t.Errorf("chat: %+v %+v, want 25 ok at nearly 50/s", chat.Tally, chat.Rates)
	}
	if fast.Tokens.Prompt != 25*12 {
		t.Errorf("fast: %d prompt tokens, want %d", fast.Tokens.Prompt, 25*12)
	}
	if calls < 3 || len(last.Results) != 3 || last.Results[0].Offered != 25 || last.InFlight != 0 {
		t.Errorf("%d snapshots, the last %+v, want several and a complete last one", calls, last)
	}
}

// A server that stops for 300 ms must show it. With one slot the generator can
// send nothing meanwhile, so that measured from the send only one request was
// slow, as a closed loop would report it; from the intended start some thirty were.
func TestStallShowsFromIntendedStart(t *testing.T) {
	var once sync.Once
	var served atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if served.Add(1) == 30 {
			once.Do(func() { time.Sleep(300 * msec) })
		}
		io.WriteString(w, plain)
	}))
	defer server.Close()
	report := mustRun(t, Options{Workloads: []Workload{{
		Name: "w", Kind: Chat, Model: "m", URL: server.URL, Phases: steady(100, time.Second), MaxInFlight: 1, Target: 100 * msec,
	}}})
	r := report.Results[0]
	if r.Offered != 100 || r.OK+r.Late != 100 {
		t.Fatalf("%+v %v, want 100 answered", r.Tally, r.Problems)
	}
	if r.P95 < 200 || r.P99 < 270 || r.Late < 15 {
		t.Errorf("p95 %.1f and p99 %.1f ms, %d late: the stall of 300 ms is hidden", r.P95, r.P99, r.Late)
	}
	if r.FromSend.P95 > 150 {
		t.Errorf("p95 from send is %.1f ms: the test does not show the difference", r.FromSend.P95)
	}
	if r.Waited < 15 || len(report.Warnings) == 0 {
		t.Errorf("%d waited for a slot, warnings %q: the wait must be told", r.Waited, report.Warnings)
	}
}

// Without a slot requests time out in the generator, and the run ends by its
// drain deadline although the server never answers.
func TestRunIsBounded(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	defer server.Close()
	began := time.Now()
	w := Workload{Kind: Chat, Model: "m", URL: server.URL, Phases: steady(50, 200*msec), MaxInFlight: 2, Timeout: 10 * time.Second}
	target, short := w, w
	w.Name, target.Name, short.Name = "none", "target", "short"
	target.Target, short.Timeout = 50*msec, 100*msec
	report := mustRun(t, Options{Drain: 200 * msec, Workloads: []Workload{w, target, short}})
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("the run took %v, want about 0.4 s", took)
	}
	for i, want := range []Tally{
		{Offered: 10, Failed: 10, Unfinished: 10}, // no target: timed out
		{Offered: 10, Late: 10, Unfinished: 10},   // over its target already
		{Offered: 10, Failed: 10},                 // its own timeout came first
	} {
		got := report.Results[i].Tally
		got.Waited = 0
		if got != want {
			t.Errorf("%s: %+v, want %+v", report.Results[i].Name, got, want)
		}
		if r := report.Results[i]; want.Failed > 0 && r.FailedBy[Timeout] != 10 || r.N != 10 || r.Waited != 8 && r.Name != "short" {
			t.Errorf("%s: failed by %v, %d in the latencies, %d waited", r.Name, r.FailedBy, r.N, r.Waited)
		}
	}
	if r := report.Results[0]; r.P50 < 250 {
		t.Errorf("p50 is %.1f ms: requests given up must count with their age", r.P50)
	}
}

func TestCancelKeepsTheResultsSoFar(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), "hang") {
			<-r.Context().Done()
			return
		}
		io.WriteString(w, plain)
	}))
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 300*msec)
	defer cancel()
	began := time.Now()
	report, err := Run(ctx, Options{Workloads: []Workload{
		{Name: "fine", Kind: Chat, Model: "m", URL: server.URL, Phases: steady(100, time.Hour/10)},
		{Name: "hang", Kind: Chat, Model: "hang", URL: server.URL, Phases: append(steady(100, time.Minute), arrivals.Phase{
			Name: "never", Duration: time.Minute, Process: arrivals.Process{Kind: arrivals.Poisson, Rate: 5},
		})},
	}})
	if err != nil || !report.Interrupted {
		t.Fatalf("error %v, interrupted %v, want none and true", err, report != nil && report.Interrupted)
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("took %v to end after 0.3 s", took)
	}
	if len(report.Results) != 2 {
		t.Fatalf("%d results, want 2: the phase that never began is not one", len(report.Results))
	}
	fine, hang := report.Results[0], report.Results[1]
	if fine.OK < 15 || fine.Offered > 40 {
		t.Errorf("fine: %+v, want about 28 offered and nearly all ok", fine.Tally)
	}
	if hang.FailedBy[Cancelled] != hang.Offered || hang.Offered < 15 || hang.Offered > 40 {
		t.Errorf("hang: %+v %v, want about 28, all cancelled", hang.Tally, hang.FailedBy)
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
		{Name: "e", Kind: Embeddings, Inputs: 2, Model: `a "b"`, URL: server.URL, Key: "secret-1", Headers: map[string]string{"x-class": "offline"}, Texts: []string{"one", "two", "three\n"}, Phases: steady(200, 200*msec)},
		{Name: "c", Kind: Chat, Stream: true, MaxTokens: 9, Model: "c", URL: server.URL, Texts: []string{"say"}, Phases: []arrivals.Phase{
			{Name: "p", Duration: 200 * msec, Process: arrivals.Process{Kind: arrivals.Poisson, Rate: 100}},
		}},
		{Name: "p", Kind: Completions, Stream: true, Model: "c", URL: server.URL, Texts: []string{"go"}, Phases: steady(10, 200*msec)},
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
	for _, want := range []string{`"schema":"aloft.load/1"`, `"kind":"poisson","rate":100`, `"duration":"200ms"`, `"p99_ms":`, `"target_ms":0`,
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
