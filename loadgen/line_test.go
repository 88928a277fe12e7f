package loadgen

import (
	"context"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"aloft/loadgen/arrivals"
)

// workerFor returns a worker of one workload that has no plan, and where its
// results go.
func workerFor(t *testing.T, w Workload, dial dialer) (*worker, chan sample) {
	t.Helper()
	w.Name, w.Model, w.Phases = "w", "m", steady(1, time.Second)
	opt := Options{Workloads: []Workload{w}, dial: dial}
	if err := opt.Validate(); err != nil {
		t.Fatal(err)
	}
	opt = opt.withDefaults()
	stocks, err := opt.stocks()
	if err != nil {
		t.Fatal(err)
	}
	worker, err := opt.worker(0, arrivals.Plan{}, stocks[0], time.Now())
	if err != nil {
		t.Fatal(err)
	}
	out := make(chan sample, 1)
	worker.out, worker.open = out, &atomic.Int64{}
	return worker, out
}

// ask sends one request that is due now over a line.
func ask(l *line, out <-chan sample) sample {
	now := l.now()
	l.shot = shot{body: l.shot.body[:0], intended: now, due: now}
	l.shot.body, l.shot.want = l.make.append(l.shot.body, &l.shot.order)
	l.one(context.Background())
	return <-out
}

// Every time of a stream is that of the read that brought it, to the nanosecond.
func TestStreamTimes(t *testing.T) {
	reasoning := strings.Replace(word, `"content"`, `"reasoning_content"`, 1)
	server := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(10 * msec)
		w.Header().Set("Content-Type", "text/event-stream")
		w.(http.Flusher).Flush() // the head alone
		for _, step := range []struct {
			wait time.Duration
			part string
		}{
			{10 * msec, ": comment\n\n"},
			{10 * msec, role},
			{10 * msec, reasoning},
			{20 * msec, word[:30]}, // an event over two reads has the time of its end
			{10 * msec, word[30:]},
			{30 * msec, strings.Replace(word, "\n\n", "\r\n\r\n", 1) + word + word}, // three in one read
			{10 * msec, finish},
			{10 * msec, strings.Replace(usage, `"completion_tokens":4`, `"completion_tokens":10`, 1)},
			{10 * msec, done},
			{40 * msec, ": trailing\n\n"}, // within linger
		} {
			time.Sleep(step.wait)
			io.WriteString(w, step.part)
			w.(http.Flusher).Flush()
		}
	})
	inBubble(t, server, func(t *testing.T, dial dialer) {
		worker, out := workerFor(t, Workload{Kind: Chat, Stream: true, URL: "http://server"}, dial)
		l := newLine(worker)
		defer l.conn.Close()
		for i, from := range []time.Duration{0, 170 * msec} { // the second over the same connection
			s := ask(l, out)
			want := times{
				intended: from, due: from, sent: from, byte: from + 10*msec, role: from + 30*msec, first: from + 40*msec,
				visible: from + 70*msec, last: from + 100*msec, end: from + 130*msec,
				worst: 0,
			}
			if s.outcome != OK || s.times != want {
				t.Errorf("request %d: %s %q\n%+v, want\n%+v", i, s.outcome, s.problem, s.times, want)
			}
			if want := []gap{{30 * msec, 1}, {30 * msec, 3}}; !slices.Equal(s.gaps, want) {
				t.Errorf("gaps %v, want %v", s.gaps, want)
			}
			if s.tokens != (tokens{prompt: 7, completion: 10, chunks: 5}) {
				t.Errorf("tokens %+v", s.tokens)
			}
			if now := l.now(); now != from+170*msec {
				t.Errorf("free for the next request after %v, want the end of the answer at 170ms", now-from)
			}
		}
	})
}

// By how much the worst token is late against the playback line, by hand.
func TestLateness(t *testing.T) {
	for name, c := range map[string]struct {
		gaps       []gap // the first stands for the first read, which is no gap
		completion int
		want       time.Duration
	}{
		"none":               {nil, 0, 0},
		"one read":           {[]gap{{0, 3}}, 3, 0},
		"in time":            {[]gap{{0, 1}, {10 * msec, 1}, {10 * msec, 1}}, 3, 0},
		"early":              {[]gap{{0, 3}, {5 * msec, 1}}, 4, 0},
		"held back":          {[]gap{{0, 1}, {50 * msec, 5}, {10 * msec, 1}}, 7, 40 * msec},
		"caught up later":    {[]gap{{0, 1}, {30 * msec, 1}, {0, 8}}, 10, 20 * msec},
		"several in a chunk": {[]gap{{0, 1}, {40 * msec, 1}}, 8, 0}, // 4 tokens each: 40 ms are theirs
		"dropped":            {[]gap{{0, 1}, {40 * msec, 1}}, 2, 30 * msec},
	} {
		s := sample{gaps: c.gaps[min(1, len(c.gaps)):], tokens: tokens{completion: c.completion}}
		for _, g := range c.gaps {
			s.chunks += int(g.chunks)
		}
		if got := s.lateness(10 * msec); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// A stream that is quick in the mean and holds its tokens back misses a smooth
// target that it would meet evenly.
func TestSmoothTarget(t *testing.T) {
	held := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		write(w, word)
		if r.Header.Get("X-Held") != "" {
			time.Sleep(90 * msec)
			write(w, strings.Repeat(word, 9))
		} else {
			for range 9 {
				time.Sleep(10 * msec)
				write(w, word)
			}
		}
		write(w, finish, done)
	})
	inBubble(t, held, func(t *testing.T, dial dialer) {
		even := Workload{
			Name: "even", Kind: Chat, Model: "m", Stream: true, URL: "http://server", Phases: steady(10, time.Second),
			Goal: Goal{TPOTTarget: 10 * msec, Smooth: 50 * msec},
		}
		atOnce := even
		atOnce.Name, atOnce.Headers = "at once", map[string]string{"x-held": "1"}
		report := mustRun(t, Options{dial: dial, Workloads: []Workload{even, atOnce}})
		if r := report.Results[0]; r.OK != 10 {
			t.Errorf("even: %+v %v, want all ok", r.Tally, r.Problems)
		}
		if r := report.Results[1]; r.Late != 10 {
			t.Errorf("at once: %+v %v, want all late by 80 ms", r.Tally, r.Problems)
		}
	})
}

// A request and its answer allocate nothing once a line has warmed up, a stream's
// hundred events included.
func TestLineAllocatesNothing(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go answerNull(conn)
		}
	}()
	for name, w := range map[string]Workload{
		"stream": {Kind: Chat, Stream: true}, "whole": {Kind: Completions},
	} {
		w.URL = "http://" + listener.Addr().String()
		worker, out := workerFor(t, w, nil)
		l := newLine(worker)
		if got := testing.AllocsPerRun(200, func() {
			s := ask(l, out)
			if s.outcome != OK || w.Stream && (s.chunks != 99 || s.completion != 4) {
				t.Fatalf("%s: %+v", name, s)
			}
			s.recycle()
		}); got != 0 {
			t.Errorf("%s: %v allocations for a request, want none", name, got)
		}
		l.conn.Close()
	}
}

// The warm-up is sent before the window, at the first phase's rate, and counted
// apart.
func TestWarmUp(t *testing.T) {
	var began time.Time
	var mu sync.Mutex
	var at []time.Duration
	server := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		at = append(at, time.Since(began))
		mu.Unlock()
		io.WriteString(w, plain)
	})
	inBubble(t, server, func(t *testing.T, dial dialer) {
		began = time.Now()
		report := mustRun(t, Options{dial: dial, WarmUp: 500 * msec, Workloads: []Workload{
			{Name: "w", Kind: Chat, Model: "m", URL: "http://server", Phases: steady(20, time.Second)},
		}})
		if r := report.Results[0]; r.Tally != (Tally{Offered: 20, OK: 20}) || r.Planned != 20 {
			t.Errorf("window: %+v, %v planned/s, want 20 at 20/s", r.Tally, r.Planned)
		}
		if report.WarmUp == nil || *report.WarmUp != (Tally{Offered: 10, OK: 10}) {
			t.Errorf("warm-up: %+v, want 10", report.WarmUp)
		}
		if len(at) != 30 || at[0] != lead || at[10] != lead+500*msec || at[29] != lead+1450*msec {
			t.Errorf("sent at %v, want every 50 ms from %v", at, lead)
		}
	})
}

// In a closed loop each client sends when it has its answer, so that a stall is
// seen by as many requests as there are clients.
func TestClosedLoop(t *testing.T) {
	var served, open, most atomic.Int64
	server := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		most.Store(max(most.Load(), open.Add(1)))
		defer open.Add(-1)
		d := 10 * msec
		if served.Add(1) == 100 {
			d = 310 * msec
		}
		time.Sleep(d)
		io.WriteString(w, plain)
	})
	inBubble(t, server, func(t *testing.T, dial dialer) {
		report := mustRun(t, Options{dial: dial, WarmUp: 100 * msec, Workloads: []Workload{{
			Name: "w", Kind: Chat, Model: "m", URL: "http://server", Clients: 4, MaxInFlight: 1,
			Phases: []arrivals.Phase{{Name: "a", Duration: time.Second}, {Name: "b", Duration: time.Second}},
		}}})
		if most.Load() != 4 {
			t.Errorf("%d requests open at once, want 4", most.Load())
		}
		// 4 clients × 100 in 1 s; one lost 300 ms, which are 30 requests.
		a, b := report.Results[0], report.Results[1]
		if a.OK != 370 || b.OK != 400 || a.Waited != 0 {
			t.Errorf("a %+v, b %+v, want 370 and 400 answered", a.Tally, b.Tally)
		}
		near(t, "p99 in a closed loop", a.P99, 10)
		near(t, "max", a.Max, 310)
		if report.WarmUp == nil || report.WarmUp.OK != 40 {
			t.Errorf("warm-up: %+v, want 40", report.WarmUp)
		}
	})
	nobody := func(context.Context, string, string) (net.Conn, error) { return nil, io.ErrClosedPipe }
	inBubble(t, server, func(t *testing.T, _ dialer) { // without a server it does not spin
		report := mustRun(t, Options{dial: nobody, Workloads: []Workload{{
			Name: "w", Kind: Chat, Model: "m", URL: "http://server", Clients: 1, Phases: []arrivals.Phase{{Name: "a", Duration: time.Second}},
		}}})
		if r := report.Results[0]; r.FailedBy[Connect] != 100 {
			t.Errorf("%v, want 100: one each %v", r.FailedBy, pause)
		}
	})
}

// What follows answers is sent in order of its time, whatever order it comes in.
func TestFollowUpsAreInOrder(t *testing.T) {
	w := &worker{wake: newAlarm(t.Context(), false)}
	defer w.wake.close()
	for i, due := range []time.Duration{5, 1, 3, 3, 9, 0} {
		w.follow(shot{due: due, phase: i})
	}
	var got []time.Duration
	var phases []int
	for len(w.later) > 0 {
		sh := w.pick(w.later[len(w.later)-1].due)
		got, phases = append(got, sh.due), append(phases, sh.phase)
	}
	if !slices.Equal(got, []time.Duration{0, 1, 3, 3, 5, 9}) || !slices.Equal(phases, []int{5, 1, 2, 3, 0, 4}) {
		t.Errorf("in order %v of %v", got, phases)
	}
}

// A nudge wakes a sleeper early, and one that is about to sleep.
func TestNudge(t *testing.T) {
	for _, fine := range []bool{false, true} {
		a := newAlarm(t.Context(), fine)
		for i := range 20 {
			if i%2 == 0 {
				a.nudge()
			} else {
				time.AfterFunc(time.Duration(i)*100*time.Microsecond, a.nudge)
			}
			began := time.Now()
			if err := a.sleep(time.Now().Add(time.Minute)); err != nil || time.Since(began) > 30*time.Second {
				t.Fatalf("fine %v: slept %v (%v)", fine, time.Since(began), err)
			}
		}
		a.close()
	}
}
