package loadgen

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"aloft/loadgen/arrivals"
)

// pipes is a listener whose connections stay in memory, so that a real HTTP
// server and a real client can meet in a bubble of fake time, where every
// figure is exact however busy the machine is.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.done); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// inBubble runs body in a bubble with a server for h, to be reached by dial.
func inBubble(t *testing.T, h http.Handler, body func(t *testing.T, dial dialer)) {
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
		server := &http.Server{Handler: h}
		go server.Serve(p)
		defer server.Close()
		body(t, p.dial)
	})
}

// known answers embeddings after 40 ms (120 ms with X-Slow) and chat with a
// stream: first token after 60 ms, 4 tokens in 3 chunks over 30 ms, end at 110.
func known() http.Handler {
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
		write(w, word+word, finish, usage)
		time.Sleep(20 * msec)
		write(w, done)
	})
	return mux
}

func knownWorkloads(url string) []Workload {
	return []Workload{
		{Name: "fast", Kind: Embeddings, Content: Content{Inputs: 2}, Model: "e", URL: url, Phases: steady(50, 500*msec), Goal: Goal{Target: 100 * msec}},
		{Name: "slow", Kind: Embeddings, Content: Content{Inputs: 2}, Model: "e", URL: url + "/v1/", Headers: map[string]string{"X-Slow": "1"}, Phases: steady(50, 500*msec), Goal: Goal{Target: 100 * msec}},
		{Name: "chat", Kind: Chat, Stream: true, Model: "c", URL: url + "/", Phases: steady(50, 500*msec)},
	}
}

func TestKnownTimes(t *testing.T) {
	inBubble(t, known(), func(t *testing.T, dial dialer) {
		var last Snapshot
		calls := 0
		report := mustRun(t, Options{
			Workloads: knownWorkloads("http://server"), dial: dial, SampleEvery: 100 * msec,
			OnSample: func(s Snapshot) { last = s; calls++ },
		})
		fast, slow, chat := report.Results[0], report.Results[1], report.Results[2]
		for _, c := range []struct {
			what      string
			got, want float64
		}{
			{"fast p50", fast.P50, 40}, {"fast p99", fast.P99, 40}, {"fast max from send", fast.FromSend.Max, 40},
			{"slow p50", slow.P50, 120}, {"slow p99", slow.P99, 120},
			{"chat p50", chat.P50, 110}, {"chat p99", chat.P99, 110},
			{"TTFT p50", chat.TTFT.P50, 60}, {"TTFT p99", chat.TTFT.P99, 60}, {"TPOT p99", chat.TPOT.P99, 10},
			{"send lag", fast.SendLag.Max, 0}, {"sent/s", chat.Achieved, 50}, {"planned/s", chat.Planned, 50},
			{"fast attainment", fast.Attainment, 1}, {"slow attainment", slow.Attainment, 0}, {"chat attainment", chat.Attainment, 1},
			{"fast prompt tokens", float64(fast.Tokens.Prompt), 25 * 12}, {"chat tokens", float64(chat.Tokens.Completion), 25 * 4},
		} {
			near(t, c.what, c.got, c.want)
		}
		if want := (Tally{Offered: 25, Late: 25}); slow.Tally != want {
			t.Errorf("slow: %+v, want %+v", slow.Tally, want)
		}
		if len(report.Warnings) != 0 || report.Interrupted {
			t.Errorf("warnings %q, interrupted %v, want none", report.Warnings, report.Interrupted)
		}
		// 480 ms to the last start and 120 ms for it: five ticks, perhaps six, and the end.
		if calls < 6 || calls > 8 || len(last.Results) != 3 || last.Results[0].Offered != 25 || last.InFlight != 0 {
			t.Errorf("%d snapshots, the last %+v, want 6 to 8 and a complete last one", calls, last)
		}
	})
}

// The same over TCP with the real clock. A busy machine may only add to times.
func TestKnownTimesOverTCP(t *testing.T) {
	server := httptest.NewServer(known())
	defer server.Close()
	report := mustRun(t, Options{Workloads: knownWorkloads(server.URL)})
	for i, want := range []float64{40, 120, 110} {
		r := report.Results[i]
		if r.Offered != 25 || r.OK+r.Late != 25 || r.P50 < want || r.FromSend.P50 < want || r.P50 < r.FromSend.P50 {
			t.Errorf("%s: %+v, p50 %.2f ms, from send %.2f, want 25 answered and at least %.0f", r.Name, r.Tally, r.P50, r.FromSend.P50, want)
		}
	}
	if got := report.Results[2].TTFT.P50; got < 60 {
		t.Errorf("TTFT p50 is %.2f ms, want at least 60", got)
	}
}

// A server that stops for 300 ms must show it. With one slot the generator can
// send nothing meanwhile: measured from the send, as a closed loop would have it,
// one request in a hundred was slow; from the intended start the 30 that were due
// meanwhile waited 300, 290, … 10 ms.
func TestStallShowsFromIntendedStart(t *testing.T) {
	var served atomic.Int64
	stall := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if served.Add(1) == 30 {
			time.Sleep(300 * msec)
		}
		io.WriteString(w, plain)
	})
	inBubble(t, stall, func(t *testing.T, dial dialer) {
		report := mustRun(t, Options{dial: dial, Workloads: []Workload{{
			Name: "w", Kind: Chat, Model: "m", URL: "http://server", Phases: steady(100, time.Second), MaxInFlight: 1, Goal: Goal{Target: 99 * msec},
		}}})
		r := report.Results[0]
		if want := (Tally{Offered: 100, OK: 79, Late: 21, Waited: 29}); r.Tally != want {
			t.Errorf("%+v %v, want %+v", r.Tally, r.Problems, want)
		}
		near(t, "max", r.Max, 300)
		near(t, "p99", r.P99, 290)
		near(t, "p95", r.P95, 250)
		near(t, "p99 from send", r.FromSend.P99, 0)
		near(t, "send lag p99", r.SendLag.P99, 280)
		if len(report.Failed) != 1 || len(report.Warnings) != 1 {
			t.Errorf("failed %q, warnings %q, want the lag and the waits", report.Failed, report.Warnings)
		}
	})
}

// Without an answer requests time out, in the generator too, and the run ends at
// its drain deadline.
func TestRunIsBounded(t *testing.T) {
	silent := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})
	inBubble(t, silent, func(t *testing.T, dial dialer) {
		began := time.Now()
		w := Workload{Kind: Chat, Model: "m", URL: "http://server", Phases: steady(50, 200*msec), MaxInFlight: 2, Timeout: 10 * time.Second}
		target, short := w, w
		w.Name, target.Name, short.Name = "none", "target", "short"
		target.Target, short.Timeout = 50*msec, 110*msec
		report := mustRun(t, Options{dial: dial, Drain: 200 * msec, Workloads: []Workload{w, target, short}})
		if took := time.Since(began); took != lead+400*msec {
			t.Errorf("the run took %v, want %v", took, lead+400*msec)
		}
		for i, want := range []Tally{
			{Offered: 10, Failed: 10, Unfinished: 10, Waited: 8}, // no target: timed out
			{Offered: 10, Late: 10, Unfinished: 10, Waited: 8},   // over its target already
			{Offered: 10, Failed: 10, Waited: 8},                 // its own timeout came first
		} {
			r := report.Results[i]
			if r.Tally != want || r.FailedBy[Timeout] != want.Failed || r.N != 10 {
				t.Errorf("%s: %+v, failed by %v, %d in the latencies; want %+v", r.Name, r.Tally, r.FailedBy, r.N, want)
			}
		}
		near(t, "age of the oldest given up", report.Results[0].Max, 400)
		near(t, "age at its timeout", report.Results[2].P50, 110)
	})
}

func TestCancelKeepsTheResultsSoFar(t *testing.T) {
	half := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); strings.Contains(string(body), `"hang"`) {
			<-r.Context().Done()
			return
		}
		io.WriteString(w, plain)
	})
	inBubble(t, half, func(t *testing.T, dial dialer) {
		ctx, cancel := context.WithTimeout(t.Context(), lead+275*msec)
		defer cancel()
		began := time.Now()
		report, err := Run(ctx, Options{dial: dial, Workloads: []Workload{
			{Name: "fine", Kind: Chat, Model: "m", URL: "http://server", Phases: steady(100, time.Hour/10)},
			{Name: "hang", Kind: Chat, Model: "hang", URL: "http://server", MaxInFlight: 20, Phases: append(steady(100, time.Minute), arrivals.Phase{
				Name: "never", Duration: time.Minute, Process: arrivals.Process{Kind: arrivals.Poisson, Rate: 5},
			})},
		}})
		if err != nil || !report.Interrupted {
			t.Fatalf("error %v, report %+v, want no error and an interrupted run", err, report)
		}
		if took := time.Since(began); took != lead+275*msec {
			t.Errorf("took %v, want to end at once after %v", took, lead+275*msec)
		}
		if len(report.Results) != 2 {
			t.Fatalf("%d results, want 2: the phase that never began is not one", len(report.Results))
		}
		// 0, 10, … 270 ms: 28 were due. Of those that hang 20 were sent; the others waited.
		if got, want := report.Results[0].Tally, (Tally{Offered: 28, OK: 28}); got != want {
			t.Errorf("fine: %+v, want %+v", got, want)
		}
		if got, want := report.Results[1].Tally, (Tally{Offered: 28, Failed: 28, Waited: 8}); got != want || report.Results[1].FailedBy[Cancelled] != 28 {
			t.Errorf("hang: %+v %v, want %+v, all cancelled", got, report.Results[1].FailedBy, want)
		}
		near(t, "sent/s", report.Results[0].Achieved, 28/0.275)
	})
}
