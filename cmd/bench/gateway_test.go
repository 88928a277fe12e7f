package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"aloft/gateway/keys"
)

// TestMain lets tests start this program in its roles.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "as" {
		if err := playRole(context.Background(), os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// role runs this program as stub or proxy and returns where it listens.
func role(t testing.TB, args ...string) (addr string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "output")
	out, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command(self, append([]string{"as"}, args...)...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for range 6000 {
		if base, err := announced(file); err == nil {
			return strings.TrimPrefix(base, "http://")
		}
		time.Sleep(10 * time.Millisecond)
	}
	b, _ := os.ReadFile(file)
	t.Fatalf("%v does not listen: %s", args, b)
	return ""
}

// reading is a wire that reads a text and writes nowhere.
func reading(text string) *wire { return &wire{r: bufio.NewReaderSize(strings.NewReader(text), 64)} }

func TestWire(t *testing.T) {
	for _, c := range []struct {
		what, text string
		start      string
		body       string
		closing    bool
		fails      bool
	}{
		{"length", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1", "HTTP/1.1 200 OK", "hello", false, false},
		{"no body", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET / HTTP/1.1", "", false, false},
		{"chunks", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nCONNECTION: Close\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n", "HTTP/1.1 200 OK", "hello", true, false},
		{"longer than the buffer", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + strings.Repeat("x", 100), "HTTP/1.1 200 OK", strings.Repeat("x", 100), false, false},
		{"cut", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", "HTTP/1.1 200 OK", "hel", false, true},
		{"cut after a chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n", "HTTP/1.1 200 OK", "hel", false, true},
		{"broken size", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "HTTP/1.1 200 OK", "", false, true},
		{"longer than it says", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhello\r\n0\r\n\r\n", "HTTP/1.1 200 OK", "hel", false, true},
	} {
		w := reading(c.text)
		var body []byte
		f, err := w.head()
		if err == nil {
			err = w.body(f, func(b []byte) { body = append(body, b...) })
		}
		if string(w.start) != c.start || string(body) != c.body || f.closing != c.closing || (err != nil) != c.fails || errors.Is(err, io.EOF) {
			t.Errorf("%s: %q, %q, closing %v, %v", c.what, w.start, body, f.closing, err)
		}
	}
}

func FuzzWire(f *testing.F) {
	f.Add("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
	f.Add("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n0\r\n\r\n")
	f.Add("HTTP/1.1 200 OK\r\nContent-Length: -7\r\n\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		w := reading(text)
		n := 0
		for range 3 {
			f, err := w.head()
			if err == nil {
				err = w.body(f, func(b []byte) { n += len(b) })
			}
			if err != nil {
				break
			}
		}
		if n > len(text) {
			t.Errorf("read %d bytes of bodies out of %d", n, len(text))
		}
	})
}

// Events are counted the same in whatever pieces they come.
func TestTally(t *testing.T) {
	const text = "data: a\n\ndata: b\n: comment\n\n\n\ndata: c\n\n"
	for first := range len(text) {
		for second := first; second < len(text); second++ {
			var got tally
			for _, piece := range []string{text[:first], text[first:second], "", text[second:]} {
				got.add([]byte(piece))
			}
			if got.events != 4 || got.bytes != len(text) {
				t.Fatalf("%d events in %d bytes, cut at %d and %d; want 4 in %d", got.events, got.bytes, first, second, len(text))
			}
		}
	}
}

// ways starts the stub and everything that is installed in front of it.
func ways(t *testing.T) []*target {
	stub := role(t, "stub", "127.0.0.1:0")
	s := &stage{l: &lab{dir: t.TempDir()}}
	t.Cleanup(s.close)
	all := []*target{{name: straight, addr: stub}, {name: bare, addr: role(t, "proxy", "127.0.0.1:0", stub)}}
	web, err := s.nginx(t.Context(), stub)
	var missing *missingError
	switch {
	case errors.As(err, &missing):
		t.Logf("left out: %v", err)
	case err != nil:
		t.Fatal(err)
	default:
		web.name = nginx
		all = append(all, web)
	}
	return all
}

// Every way brings exactly what the stub sends, and the stub sends what an
// engine may.
func TestWaysBringTheAnswers(t *testing.T) {
	var events strings.Builder
	for i, e := range canned.events {
		if i == 0 {
			_, rest, _ := bytes.Cut(e, []byte("\r\n\r\n"))
			e = rest
		}
		_, event, _ := bytes.Cut(e, []byte("\r\n"))
		events.Write(bytes.TrimSuffix(event, []byte("\r\n")))
	}
	events.WriteString("data: [DONE]\n\n")
	want := map[string]string{unaries.name: chatReply(), streams.name: events.String()}
	if !json.Valid([]byte(want[unaries.name])) || len(want[unaries.name]) != replySize {
		t.Errorf("the unary answer is no JSON of %d bytes: %s", replySize, want[unaries.name])
	}
	for line := range strings.SplitSeq(strings.TrimSpace(events.String()), "\n\n") {
		data := strings.TrimPrefix(line, "data: ")
		if data != "[DONE]" && !json.Valid([]byte(data)) {
			t.Errorf("event %q is no JSON", line)
		}
	}
	for _, way := range ways(t) {
		for _, k := range []kind{unaries, streams, unaries} {
			w, err := dial(way.addr)
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			f, err := w.ask(way.request(k.body))
			if err == nil {
				err = w.body(f, func(b []byte) { got.Write(b) })
			}
			w.Close()
			if err != nil || got.String() != want[k.name] {
				t.Errorf("%s, %s: %v, got %d bytes, want %d:\n%s", way.name, k.name, err, got.Len(), len(want[k.name]), got.String())
			}
		}
		for _, k := range []kind{unaries, streams} {
			if rate, err := way.throughput(t.Context(), k, 8, 50*time.Millisecond); err != nil || rate <= 0 {
				t.Errorf("%s, %s: %.0f/s, %v", way.name, k.name, rate, err)
			}
		}
		if took, err := way.paced(t.Context(), 200, 200*time.Millisecond); err != nil || len(took) != 40 || slices.Min(took) <= 0 {
			t.Errorf("%s, open loop: %v, %v", way.name, took, err)
		}
	}
}

func TestStubCountsUsageWhenAsked(t *testing.T) {
	w, err := dial(role(t, "stub", "127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	body := []byte(`{"model":"stub","stream":true,"stream_options":{"include_usage":true}}`)
	if got, err := w.call((&target{}).request(body), nil); err != nil || got.events != chunks+2 {
		t.Errorf("%d events, %v; want one more than %d and [DONE]", got.events, err, chunks)
	}
}

func TestIdleStreamsAreHeldAndCounted(t *testing.T) {
	addr := role(t, "stub", "127.0.0.1:0")
	var open opened
	defer open.close()
	way := &target{addr: addr}
	if failed, err := way.hold(t.Context(), &open, 100); failed != 0 || err != nil || open.alive() != 100 {
		t.Fatalf("%d of 100 streams failed: %v; %d are open", failed, err, open.alive())
	}
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusTooManyRequests) }))
	defer refusing.Close()
	refused := &target{addr: strings.TrimPrefix(refusing.URL, "http://")}
	if failed, err := refused.hold(t.Context(), &opened{}, 5); failed != 5 || err == nil || !strings.Contains(err.Error(), "429") {
		t.Errorf("%d of 5 refused streams failed: %v", failed, err)
	}
}

// A server that cannot keep up makes later requests later and later: they count
// from when they were due.
func TestOpenLoopCountsTheWait(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const work = 40 * time.Millisecond // of one answer: 16 connections get at most 400 answers a second
	slow := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(work)
		_, _ = io.WriteString(w, chatReply())
	})}
	go slow.Serve(l)
	defer slow.Close()
	took, err := (&target{addr: l.Addr().String()}).paced(t.Context(), 1000, 200*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	// The last of 200 is due at 0.2 s and answered after 200/400 s at the soonest.
	if last := slices.Max(took); last < 250_000 || slices.Min(took) < 40_000 {
		t.Errorf("latencies from %.0f to %.0f us, want from 40000 to more than 250000", slices.Min(took), last)
	}
}

func TestThroughputEndsWithAnError(t *testing.T) {
	failing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "broken", http.StatusBadGateway) }))
	defer failing.Close()
	way := &target{name: "failing", addr: strings.TrimPrefix(failing.URL, "http://")}
	if rate, err := way.throughput(t.Context(), unaries, 4, time.Hour); err == nil || !strings.Contains(err.Error(), "502") {
		t.Errorf("%.0f/s, %v; want the answer's status", rate, err)
	}
}

func TestGatewayConfig(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("servers", "gateway.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	const self = `/a folder/with "quotes"/bench`
	var c struct {
		Models []struct {
			Name    string
			Command []string
		}
		Gateway struct {
			KeyFile string `yaml:"key_file"`
		}
	}
	if err := yaml.Unmarshal(gatewayConfig(text, self, `/x: y/keys.yaml`), &c); err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprintf("%q", c.Models), fmt.Sprintf(`[{"stub" [%q "as" "stub" "127.0.0.1:{port}"]}]`, self); got != want {
		t.Errorf("models are %s, want %s", got, want)
	}
	if c.Gateway.KeyFile != "/x: y/keys.yaml" {
		t.Errorf("the key file is %q", c.Gateway.KeyFile)
	}
	file := filepath.Join(t.TempDir(), "keys.yaml")
	if err := os.WriteFile(file, keyFile(), 0o600); err != nil {
		t.Fatal(err)
	}
	store, err := keys.Open(file, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := store.Find([]byte(limitedKey), time.Now()); !ok {
		t.Error("the key file does not have its key")
	}
}

func TestGatewayReport(t *testing.T) {
	g := &gatewayRun{l: &lab{}, rates: series{}, cost: map[cell]*costOf{}, rate: 500,
		targets: []*target{{name: straight}, {name: bare}, {name: through}, {name: portkey}},
		absent:  []*target{{name: nginx, absent: "nginx is not installed"}},
		late: map[string][][2]float64{
			straight: {{100, 200}, {110, 220}, {120, 900}},
			bare:     {{150, 260}, {160, 290}, {175, 990}},
			through:  {{290, 1500}, {230, 1620}, {310, 1700}},
		},
		idle: []idleStep{{2000, 0, nil, 31.5}, {9000, 2, errors.New("reset"), 30}},
	}
	for _, k := range []string{unaries.name, streams.name} {
		for _, n := range connections {
			for name, rates := range map[string][]float64{straight: {9000, 9500, 9200}, bare: {1000, 2000, 1500}, through: {750, 1300, 1200}, portkey: {100, 100, 150}} {
				g.rates[cell{k, name, n}] = rates
				g.cost[cell{k, name, n}] = &costOf{cpu: 0.5, done: 10_000}
			}
		}
	}
	r := g.report()
	if got, want := fmt.Sprint(r.rows[1]), "[requests 16 9500 2000  1300 150 0.75 (0.80)  8.00 (13.00)]"; got != want {
		t.Errorf("row is %s\nwant   %s", got, want)
	}
	all := r.section()
	for _, want := range []string{
		"5 rounds; a cell of a round is measured for 1s after 150ms of running in.",
		"but without limits",
		"nginx was not measured: nginx is not installed.",
		"**1000 requests/s were asked for; this machine did not keep up with them.**",
		"| p50 | 110 | 160 | 230 | 100 | 50 | 130 | 190 (120 to 190) |",
		"| p99 | 200 | 260 | 1500 | 200 | 60 | 1300 | 1300 (800 to 1400) |",
		"9000 idle SSE streams through a fresh `aloft serve`: 2 failed", "The first failure: reset.",
		"| requests/s over 64 connections: aloft / bare proxy | 0.75 | >= 0.7 | ok |",
		"| added p50 at 500 requests/s, µs | 130 | <= 150 | ok |",
		"| added p99 at 500 requests/s, µs | 1300 | <= 1000 | **missed** |",
		"| KiB of each of 2000 idle streams | 31.5 | <= 32 | ok |",
		"| idle streams open without a failure | 8998 | >= 9000 | **missed** |",
		"stub 50.0, bare proxy 50.0, aloft 50.0, portkey 50.0",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("the section does not say %q:\n%s", want, all)
		}
	}
	if strings.Contains(all, "NaN") || strings.Contains(all, "connections: aloft / nginx") {
		t.Errorf("there is a mark on what was not measured:\n%s", all)
	}
}

func TestTurnsAreFair(t *testing.T) {
	g := &gatewayRun{targets: []*target{{name: "a"}, {name: "b"}, {name: "c"}}}
	var got []string
	for i := range 4 {
		order := ""
		for _, t := range g.turn(i) {
			order += t.name
		}
		got = append(got, order)
	}
	if want := "[abc bca cab abc]"; fmt.Sprint(got) != want {
		t.Errorf("orders are %v, want %s", got, want)
	}
}
