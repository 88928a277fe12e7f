package loadgen

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"aloft/loadgen/arrivals"
	"aloft/loadgen/wire"
)

func makerOf(w Workload) *maker { return newStock(&w, 1, sources{}).maker() }

var untilNoon = []arrivals.Span{{Name: "a", To: time.Hour}, {Name: "b", From: time.Hour, To: 12 * time.Hour}}

// What a client does after an answer, and when.
func TestNext(t *testing.T) {
	const sec = time.Second
	retry := Workload{Kind: Chat, Retry: &Retry{Most: 3, Base: sec}}
	obeys := Workload{Kind: Chat, Retry: &Retry{Most: 3, Base: sec, Obey: true}}
	for name, c := range map[string]struct {
		w    Workload
		sh   shot
		e    ending
		due  time.Duration // 0 = nothing follows
		same bool
	}{
		"answered":         {retry, shot{}, ending{outcome: OK, end: sec, wait: -1}, 0, false},
		"failed":           {retry, shot{}, ending{outcome: HTTPError, end: sec, wait: -1}, 0, false},
		"no retries":       {Workload{Kind: Chat}, shot{}, ending{outcome: Shed, end: sec, wait: -1}, 0, false},
		"first":            {retry, shot{}, ending{outcome: Shed, end: 2 * sec, wait: -1}, 3 * sec, true},
		"third":            {retry, shot{retries: 2}, ending{outcome: Shed, end: 2 * sec, wait: -1}, 6 * sec, true},
		"no fourth":        {retry, shot{retries: 3}, ending{outcome: Shed, end: 2 * sec, wait: -1}, 0, false},
		"ignores":          {retry, shot{}, ending{outcome: Shed, end: 2 * sec, wait: 9 * sec}, 3 * sec, true},
		"obeys":            {obeys, shot{}, ending{outcome: Shed, end: 2 * sec, wait: 9 * sec}, 11 * sec, true},
		"obeys at once":    {obeys, shot{}, ending{outcome: Shed, end: 2 * sec, wait: 0}, 2 * sec, true},
		"told not to":      {obeys, shot{}, ending{outcome: Shed, end: 2 * sec, wait: -1, again: dontRetry}, 0, false},
		"told to":          {obeys, shot{}, ending{outcome: HTTPError, end: 2 * sec, wait: 5 * sec, again: doRetry}, 7 * sec, true},
		"told to, often":   {obeys, shot{retries: 3}, ending{outcome: HTTPError, end: 2 * sec, wait: -1, again: doRetry}, 0, false},
		"told to, is cut":  {obeys, shot{}, ending{outcome: Truncated, end: 2 * sec, wait: -1, again: doRetry}, 0, false},
		"does not listen":  {retry, shot{}, ending{outcome: Shed, end: 2 * sec, wait: -1, again: dontRetry}, 3 * sec, true},
		"nothing to obey":  {obeys, shot{}, ending{outcome: Shed, end: 2 * sec, wait: -1}, 3 * sec, true},
		"after timeout":    {obeys, shot{}, ending{outcome: Shed, end: 2 * sec, wait: 58 * sec}, 0, false},
		"after it left":    {retry, shot{leave: 3 * sec}, ending{outcome: Shed, end: 2 * sec, wait: -1}, 0, false},
		"doubling ends":    {Workload{Kind: Chat, Timeout: time.Hour, Retry: &Retry{Most: 99, Base: sec}}, shot{retries: 50}, ending{outcome: Shed, wait: -1}, 30 * sec, true},
		"batch is created": {Workload{Kind: Batch}, shot{}, ending{outcome: OK, end: sec, file: []byte(`"f"`)}, sec, true},
		"batch is there":   {Workload{Kind: Batch}, shot{order: order{step: 1}}, ending{outcome: OK, end: sec}, 0, false},
		"upload failed":    {Workload{Kind: Batch}, shot{}, ending{outcome: Protocol, end: sec}, 0, false},
	} {
		again, ok := makerOf(c.w).next(&c.sh, c.e, untilNoon)
		if ok != (c.due > 0) || ok && (again.due != c.due || again.same != c.same || again.intended != c.sh.intended) {
			t.Errorf("%s: %v, due %v, same %v; want %v, %v", name, ok, again.due, again.same, c.due, c.same)
		}
		if ok && c.e.outcome == Shed && again.retries != c.sh.retries+1 {
			t.Errorf("%s: %d retries", name, again.retries)
		}
		if ok && c.w.Kind == Batch && (again.step != 1 || string(again.file) != `"f"`) {
			t.Errorf("%s: step %d of file %s", name, again.step, again.file)
		}
	}
}

// Back-off spreads clients over the share of the pause that is drawn, the same
// each time for the same seed.
func TestJitter(t *testing.T) {
	for name, c := range map[string]struct {
		r        Retry
		wait     time.Duration
		low, top time.Duration
	}{
		"full":  {Retry{Most: 1, Base: time.Second, Jitter: 1}, -1, 0, time.Second},
		"equal": {Retry{Most: 1, Base: time.Second, Jitter: 0.5}, -1, 500 * msec, time.Second},
		"obeys": {Retry{Most: 1, Base: time.Second, Jitter: 0.5, Obey: true}, 5 * time.Second, 5 * time.Second, 5500 * msec},
	} {
		m, again := makerOf(Workload{Kind: Chat, Retry: &c.r}), makerOf(Workload{Kind: Chat, Retry: &c.r})
		var all []time.Duration
		for i := range 400 {
			sh := shot{order: order{index: i}, retries: 1}
			p := m.pause(&sh, ending{wait: c.wait})
			if p < c.low || p > c.top || p != again.pause(&sh, ending{wait: c.wait}) {
				t.Fatalf("%s: pause %v, want %v to %v and the same again", name, p, c.low, c.top)
			}
			all = append(all, p)
		}
		slices.Sort(all)
		width := c.top - c.low
		if all[0] > c.low+width/20 || all[399] < c.top-width/20 || all[200] < c.low+width*4/10 || all[200] > c.low+width*6/10 {
			t.Errorf("%s: pauses from %v to %v, half below %v: not even over %v to %v", name, all[0], all[399], all[200], c.low, c.top)
		}
	}
}

func TestLeaving(t *testing.T) {
	w := Workload{Kind: Chat, Goal: Goal{Target: time.Second}, Abandon: &Abandon{Share: 0.25},
		Tenants: []Tenant{{Name: "a"}, {Name: "b", Goal: &Goal{Target: 3 * time.Second}}}}
	m := makerOf(w)
	left := 0
	for i := range 2000 {
		sh := shot{order: order{index: i}, tenant: i % 2, intended: time.Minute}
		m.begin(&sh)
		if sh.leave == 0 {
			continue
		}
		left++
		if want := time.Minute + []time.Duration{time.Second, 3 * time.Second}[i%2]; sh.leave != want {
			t.Fatalf("tenant %d leaves at %v, want %v", i%2, sh.leave, want)
		}
	}
	if left < 440 || left > 560 { // 500, with a deviation of 19
		t.Errorf("%d of 2000 leave, want a quarter", left)
	}
}

// A session repeats what was said, bounded, and thinks before it goes on.
func TestSession(t *testing.T) {
	w := Workload{Kind: Chat, Model: "m", Content: Content{Texts: []string{"hi"}},
		Sessions: &Sessions{Turns: Dist{Kind: "fixed", Mean: 3}, Think: time.Second}}
	m := makerOf(w)
	sh := shot{order: order{index: 5}, intended: time.Second}
	m.begin(&sh)
	var bodies []string
	for at := 2 * time.Second; ; at += 10 * time.Second {
		body, _ := m.append(nil, &sh.order)
		bodies = append(bodies, string(body))
		if sh.hear != (sh.turn < 2) {
			t.Errorf("turn %d hears: %v", sh.turn, sh.hear)
		}
		again, ok := m.next(&sh, ending{outcome: Late, end: at, said: []byte(`a\"b`), wait: -1}, untilNoon)
		if !ok {
			break
		}
		if think := again.due - at; again.same || again.intended != again.due || think <= 0 || think > 4*time.Second || again.turn != sh.turn+1 {
			t.Errorf("turn %d, same %v, due %v after the answer", again.turn, again.same, think)
		}
		sh = again
	}
	u, a := `{"role":"user","content":"hi"}`, `,{"role":"assistant","content":"a\"b"},`
	want := []string{`{"model":"m","messages":[` + u + `]}`, `{"model":"m","messages":[` + u + a + u + `]}`, `{"model":"m","messages":[` + u + a + u + a + u + `]}`}
	if !slices.Equal(bodies, want) {
		t.Errorf("bodies are\n%s\nwant\n%s", strings.Join(bodies, "\n"), strings.Join(want, "\n"))
	}

	first := shot{order: order{index: 5}}
	m.begin(&first)
	if _, ok := m.next(&first, ending{outcome: StreamError, end: 1, wait: -1}, untilNoon); ok {
		t.Error("a session goes on after an answer that failed")
	}
	if _, ok := m.next(&first, ending{outcome: OK, end: 12 * time.Hour, wait: -1}, untilNoon); ok {
		t.Error("a turn is offered after the last phase")
	}
	if next, ok := m.next(&first, ending{outcome: OK, end: 2 * time.Hour, wait: -1}, untilNoon); !ok || next.phase != 1 {
		t.Errorf("the next turn is %v of phase %d, want 1", ok, next.phase)
	}
}

func TestThinkTimes(t *testing.T) {
	m := makerOf(Workload{Kind: Chat, Sessions: &Sessions{Think: time.Second, Most: 2 * time.Second}})
	sum, most := time.Duration(0), time.Duration(0)
	for i := range 4000 {
		d := m.think(&shot{order: order{index: i}})
		sum, most = sum+d, max(most, d)
	}
	// An exponential of mean 1 cut at 2 has mean 1-exp(-2).
	if mean := sum.Seconds() / 4000; mean < 0.83 || mean > 0.90 || most != 2*time.Second {
		t.Errorf("mean %.3f s, most %v; want 0.865 s and 2s", mean, most)
	}
}

func TestHistoryIsBounded(t *testing.T) {
	m := makerOf(Workload{Kind: Chat, Model: "m", Content: Content{Texts: []string{"hi"}}})
	sh := shot{talk: &talk{}}
	answer := bytes.Repeat([]byte("x"), maxSaid)
	for turn := range 50 {
		answer[0] = byte('A' + turn%26)
		m.remember(&sh, answer)
		sh.turn++
		if len(sh.said) > maxHistory+maxSaid {
			t.Fatalf("history has %d bytes", len(sh.said))
		}
		body, _ := m.append(nil, &sh.order)
		var v struct {
			Messages []struct{ Role, Content string }
		}
		if err := json.Unmarshal(body, &v); err != nil {
			t.Fatal(err)
		}
		n := len(v.Messages)
		if want := min(2*(turn+1), 6) + 1; n != want || v.Messages[0].Role != "user" || v.Messages[n-2].Content[0] != answer[0] {
			t.Fatalf("turn %d: %d messages from a %s, want %d", turn, n, v.Messages[0].Role, want)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC)
	for in, want := range map[string]time.Duration{
		"":                              -1,
		"soon":                          -1,
		"-1":                            -1,
		"NaN":                           -1,
		"0":                             0,
		"2":                             2 * time.Second,
		" 1.5 ":                         1500 * msec,
		"1e30":                          maxPause,
		"Mon, 30 Nov 2026 10:00:07 GMT": 7 * time.Second,
		"Mon, 30 Nov 2026 09:00:00 GMT": 0,
		"Mon, 30 Nov 2099 09:00:00 GMT": maxPause,
	} {
		if got := retryAfter([]byte(in), now); got != want {
			t.Errorf("%q is %v, want %v", in, got, want)
		}
	}
}

// What a server says in milliseconds goes before what it says in seconds.
func TestComeBack(t *testing.T) {
	for _, c := range []struct {
		ms, s string
		want  time.Duration
	}{
		{"", "", -1}, {"250", "", 250 * msec}, {"250", "7", 250 * msec}, {" 0.5 ", "7", 500 * time.Microsecond}, {"0", "7", 0},
		{"soon", "7", 7 * time.Second}, {"-1", "7", 7 * time.Second}, {"NaN", "7", 7 * time.Second}, {"-1", "soon", -1}, {"1e300", "", maxPause}, {"Inf", "1", maxPause},
	} {
		if got := comeBack(wire.Head{RetryAfterMS: []byte(c.ms), RetryAfter: []byte(c.s)}, time.Now()); got != c.want {
			t.Errorf("%q and %q: %v, want %v", c.ms, c.s, got, c.want)
		}
	}
	for in, want := range map[string]advice{"true": doRetry, "false": dontRetry, "": noAdvice, "maybe": noAdvice} {
		if got := shouldRetry([]byte(in)); got != want {
			t.Errorf("x-should-retry %q: %v, want %v", in, got, want)
		}
	}
}

// Clients that obey do what the headers say, whatever the status, and what they
// send again is load beyond the offered.
func TestServersAdviseOverTCP(t *testing.T) {
	w := Workload{Kind: Chat, Model: "m", Retry: &Retry{Most: 3, Base: 5 * time.Second, Obey: true}, Phases: steady(1, 500*msec), Timeout: 20 * time.Second}
	report, all := runAgainst(t, w, func(n int, w http.ResponseWriter, _ *http.Request) {
		switch n {
		case 0:
			w.Header().Set("Retry-After-Ms", "40")
			w.Header().Set("Retry-After", "9")
			w.WriteHeader(429)
		case 1:
			w.Header().Set("Retry-After-Ms", "10")
			w.Header().Set("X-Should-Retry", "true")
			w.WriteHeader(500)
		default:
			io.WriteString(w, plain)
		}
	})
	r := report.Results[0]
	if r.Offered != 1 || r.OK != 1 || r.Retries != 2 || r.Extra != 4 || len(all) != 3 {
		t.Errorf("offered %d, ok %d, retries %d, %v/s extra, seen %d; want 1, 1, 2, 4, 3: %v", r.Offered, r.OK, r.Retries, r.Extra, len(all), r.Problems)
	}
	if r.Max < 50 || r.Max > 4000 {
		t.Errorf("latency %v ms, want at least the pauses of 40 and 10 ms, and not those of Base or Retry-After", r.Max)
	}
	report, all = runAgainst(t, w, func(_ int, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After-Ms", "40")
		w.Header().Set("X-Should-Retry", "false")
		w.WriteHeader(503)
	})
	if r := report.Results[0]; r.Shed != 1 || r.RetryAfter != 1 || r.Retries != 0 || len(all) != 1 {
		t.Errorf("told not to: shed %d, retries %d, seen %d", r.Shed, r.Retries, len(all))
	}
}

func TestClientsRefuse(t *testing.T) {
	fixed := Dist{Kind: "fixed", Mean: 2}
	for want, spoil := range map[string]func(*Workload){
		"tenants: number 1 has no name":               func(w *Workload) { w.Tenants = []Tenant{{Share: 1}} },
		`tenants: two are called "a"`:                 func(w *Workload) { w.Tenants = []Tenant{{Name: "a", Share: 1}, {Name: "a", Share: 1}} },
		`tenant "a": share is 0`:                      func(w *Workload) { w.Tenants = []Tenant{{Name: "a"}} },
		`tenant "a": class is "batch", want one of`:   func(w *Workload) { w.Tenants = []Tenant{{Name: "a", Share: 1, Class: "batch"}} },
		`tenant "a": deadline is 1µs`:                 func(w *Workload) { w.Tenants = []Tenant{{Name: "a", Share: 1, Deadline: time.Microsecond}} },
		`tenant "a": target is -1s`:                   func(w *Workload) { w.Tenants = []Tenant{{Name: "a", Share: 1, Goal: &Goal{Target: -time.Second}}} },
		"tenants has 257 entries":                     func(w *Workload) { w.Tenants = make([]Tenant, 257) },
		"sessions.turns: ":                            func(w *Workload) { w.Sessions = &Sessions{} },
		"sessions belong to chat and responses":       func(w *Workload) { w.Kind, w.Sessions = Completions, &Sessions{Turns: fixed} },
		"sessions do not go with requests":            func(w *Workload) { w.Requests, w.Sessions = "f", &Sessions{Turns: fixed} },
		"sessions.think is -1s":                       func(w *Workload) { w.Sessions = &Sessions{Turns: fixed, Think: -time.Second} },
		"sessions.most_think is 1s, below":            func(w *Workload) { w.Sessions = &Sessions{fixed, 2 * time.Second, time.Second} },
		"sessions, retry and tenants do not go with":  func(w *Workload) { w.Clients, w.Retry = 1, &Retry{Most: 1} },
		"abandon.share is 2":                          func(w *Workload) { w.Abandon = &Abandon{Share: 2, After: 1} },
		"abandon.after is -1s":                        func(w *Workload) { w.Abandon = &Abandon{Share: 1, After: -time.Second} },
		"abandon.after is missing":                    func(w *Workload) { w.Abandon = &Abandon{Share: 1} },
		"retry.most is 0":                             func(w *Workload) { w.Retry = &Retry{} },
		"retry.base is 1ns":                           func(w *Workload) { w.Retry = &Retry{Most: 1, Base: 1} },
		"retry.jitter is 1.1":                         func(w *Workload) { w.Retry = &Retry{Most: 1, Jitter: 1.1} },
		"itl_target and gap_target need stream: true": func(w *Workload) { w.Tenants = []Tenant{{Name: "a", Share: 1, Goal: &Goal{Smooth: 1}}} },
	} {
		w := Workload{Name: "w", Kind: Chat, Model: "m", URL: "http://127.0.0.1:1", Phases: steady(1, 1)}
		spoil(&w)
		if err := w.validateClients(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}

// got is what a server saw of one request.
type got struct {
	path, header, body string
}

// runAgainst runs workloads against a server that notes what it gets.
func runAgainst(t *testing.T, w Workload, answer func(n int, w http.ResponseWriter, r *http.Request)) (*Report, []got) {
	t.Helper()
	var mu sync.Mutex
	var all []got
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		all = append(all, got{r.URL.Path, r.Header.Get("Authorization") + "|" + r.Header.Get("X-Aloft-Priority") + "|" + r.Header.Get("X-Aloft-Deadline-Ms") + "|" + r.Header.Get("Content-Type"), string(body)})
		n := len(all) - 1
		mu.Unlock()
		answer(n, w, r)
	}))
	defer server.Close()
	w.Name, w.URL = "w", server.URL
	report := mustRun(t, Options{Workloads: []Workload{w}, Drain: 20 * time.Second})
	mu.Lock()
	defer mu.Unlock()
	return report, all
}

// A refused request is sent again, the same bytes, and counts once, from its
// first intended start.
func TestRetriesOverTCP(t *testing.T) {
	w := Workload{Kind: Chat, Model: "m", Retry: &Retry{Most: 2, Base: 100 * msec}, Phases: steady(1, 500*msec)}
	report, all := runAgainst(t, w, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n < 2 {
			w.WriteHeader([]int{429, 503}[n])
			return
		}
		io.WriteString(w, plain)
	})
	r := report.Results[0]
	if r.Offered != 1 || r.OK != 1 || r.Shed != 0 || r.Retries != 2 {
		t.Errorf("offered %d, ok %d, shed %d, retries %d; want 1, 1, 0, 2", r.Offered, r.OK, r.Shed, r.Retries)
	}
	if len(all) != 3 || all[0] != all[1] || all[0] != all[2] {
		t.Errorf("the server saw %q", all)
	}
	if r.Max < 300 { // 100 and 200 ms of pauses
		t.Errorf("latency %v ms, want at least 300: it counts from the first intended start", r.Max)
	}

	w.Retry.Most = 1
	report, all = runAgainst(t, w, func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(429) })
	if r := report.Results[0]; r.Offered != 1 || r.Shed != 1 || r.Retries != 1 || len(all) != 2 {
		t.Errorf("always refused: offered %d, shed %d, retries %d, seen %d", r.Offered, r.Shed, r.Retries, len(all))
	}
}

// Clients that leave close their connection, and are counted apart.
func TestAbandonOverTCP(t *testing.T) {
	noticed := make(chan time.Duration, 1)
	w := Workload{Kind: Chat, Model: "m", Stream: true, Abandon: &Abandon{Share: 1, After: 150 * msec}, Phases: steady(1, 500*msec)}
	report, _ := runAgainst(t, w, func(_ int, w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		write(w, role, word)
		select {
		case <-r.Context().Done():
			noticed <- time.Since(began)
		case <-time.After(10 * time.Second):
		}
	})
	r := report.Results[0]
	if r.Abandoned != 1 || r.Failed != 0 || r.OK != 0 {
		t.Errorf("abandoned %d, failed %d, ok %d; want 1, 0, 0: %v", r.Abandoned, r.Failed, r.OK, r.Problems)
	}
	select {
	case <-noticed:
	default:
		t.Error("the server did not notice that the client left")
	}
}

// A session's turns carry what the server really said, from a stream too.
func TestSessionsOverTCP(t *testing.T) {
	for _, kind := range []Kind{Chat, Responses} {
		for _, stream := range []bool{true, false} {
			w := Workload{Kind: kind, Model: "m", Stream: stream, Content: Content{Texts: []string{"hi"}},
				Sessions: &Sessions{Turns: Dist{Kind: "fixed", Mean: 2}, Think: 50 * msec}, Phases: steady(1, 900*msec)}
			report, all := runAgainst(t, w, func(_ int, w http.ResponseWriter, r *http.Request) {
				switch {
				case kind == Chat && stream:
					write(w, role, word, word, finish, done)
				case kind == Chat:
					io.WriteString(w, strings.Replace(plain, "hi", "word word ", 1))
				case stream:
					write(w, `data: {"type":"response.output_text.delta","delta":"word word "}`+"\n\n",
						`data: {"type":"response.completed","response":{"status":"completed"}}`+"\n\n")
				default:
					io.WriteString(w, `{"status":"completed","output":[{"type":"message","content":[{"type":"output_text","text":"word word "}]}]}`)
				}
			})
			r := report.Results[0]
			if r.Offered != 2 || r.OK != 2 || len(all) != 2 {
				t.Errorf("%s, stream %v: offered %d, ok %d, seen %d: %v", kind, stream, r.Offered, r.OK, len(all), r.Problems)
				continue
			}
			if want := `[{"role":"user","content":"hi"},{"role":"assistant","content":"word word "},{"role":"user","content":"hi"}]`; !strings.Contains(all[1].body, want) {
				t.Errorf("%s, stream %v: the second turn is %s", kind, stream, all[1].body)
			}
		}
	}
}

// A batch is uploaded, then created of that file; both are one request.
func TestBatchOverTCP(t *testing.T) {
	w := Workload{Kind: Batch, Model: "m", Content: Content{Inputs: 2}, Phases: steady(1, 200*msec)}
	report, all := runAgainst(t, w, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n == 0 {
			io.WriteString(w, `{"id":"file-7","object":"file"}`)
			return
		}
		io.WriteString(w, `{"id":"batch-1","object":"batch","status":"validating"}`)
	})
	if r := report.Results[0]; r.Offered != 1 || r.OK != 1 || r.Retries != 0 || r.Failed != 0 {
		t.Errorf("%+v", r.Tally)
	}
	if len(all) != 2 || all[0].path != "/v1/files" || !strings.HasSuffix(all[0].header, uploadType) ||
		all[1].path != "/v1/batches" || !strings.Contains(all[1].body, `"input_file_id":"file-7"`) {
		t.Errorf("the server saw %q", all)
	}
}

// Each tenant sends its share with its own key, class and deadline, is held to
// its own goal, and its key is in no report.
func TestTenantsOverTCP(t *testing.T) {
	w := Workload{Kind: Embeddings, Model: "m", Key: "sk-common", Content: Content{Texts: []string{"a"}}, Phases: steady(200, 500*msec), Tenants: []Tenant{
		{Name: "fast", Share: 3, Key: "sk-fast", Class: "interactive", Deadline: 1500 * msec},
		{Name: "slow", Share: 1, Goal: &Goal{Target: time.Nanosecond}},
	}}
	report, all := runAgainst(t, w, func(_ int, w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"data":[{"index":0,"embedding":[1]}]}`)
	})
	seen := map[string]int{}
	for _, g := range all {
		seen[g.header]++
	}
	fast, slow := seen["Bearer sk-fast|interactive|1500|application/json"], seen["Bearer sk-common|||application/json"]
	if fast+slow != 100 || fast < 60 || fast > 90 { // 75, with a deviation of 4.3
		t.Errorf("the server saw %v, want 100 requests of which three in four are fast's", seen)
	}
	if r := report.Results[0]; r.OK != fast || r.Late != slow {
		t.Errorf("%d ok, %d late; want %d and %d", r.OK, r.Late, fast, slow)
	}
	text, err := json.Marshal(report)
	if err != nil || bytes.Contains(text, []byte("sk-")) || !bytes.Contains(text, []byte(`"fast"`)) {
		t.Errorf("the report has a key, or no tenant: %v %s", err, text)
	}
}

// Whatever a server asks for, the wait is bounded.
func FuzzRetryAfter(f *testing.F) {
	f.Add("120")
	f.Add("Mon, 30 Nov 2026 10:00:07 GMT")
	f.Fuzz(func(t *testing.T, in string) {
		if d := retryAfter([]byte(in), time.Unix(1e9, 0)); d != -1 && (d < 0 || d > maxPause) {
			t.Errorf("%q is %v", in, d)
		}
	})
}
