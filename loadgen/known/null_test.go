package known

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// nullAt starts a null server and returns its address.
func nullAt(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- new(Null).Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("null server: %v", err)
		}
	})
	return "http://" + l.Addr().String()
}

func post(t *testing.T, url, body string) (*http.Response, string) {
	t.Helper()
	res, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(text)
}

func TestNullServerAnswers(t *testing.T) {
	url := nullAt(t)
	for _, path := range []string{"/v1/chat/completions", "/v1/embeddings"} {
		if res, body := post(t, url+path, `{"model":"null"}`); res.StatusCode != 200 || len(body) != nullReply || !json.Valid([]byte(body)) {
			t.Errorf("%s: status %d, %d bytes, want JSON of %d: %s", path, res.StatusCode, len(body), nullReply, body)
		}
	}
	const n = 7
	for _, path := range []string{"/v1/chat/completions", "/every/2ms/v1/chat/completions"} {
		began := time.Now()
		_, body := post(t, url+path, `{"max_tokens":7,"stream":true}`)
		if got := strings.Count(body, "data: "); got != n+EventsBeyond || !strings.HasSuffix(body, "data: [DONE]\n\n") {
			t.Errorf("%s: %d events, want %d and an end: %s", path, got, n+EventsBeyond, body)
		}
		if took := time.Since(began); strings.HasPrefix(path, "/every") && took < n*2*msec {
			t.Errorf("%s: %d events took %v, want 2ms each", path, n, took)
		}
	}
	c := &Child{Addr: strings.TrimPrefix(url, "http://"), http: http.DefaultClient}
	if err := c.Freeze(t.Context(), 50*msec); err != nil {
		t.Fatal(err)
	}
	post(t, url+"/v1/embeddings", `{}`)
	u, err := c.Usage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if u.Requests != 5 || u.Events != 2*(n+EventsBeyond) || len(u.Freezes) != 1 || u.Freezes[0].Held != 1 {
		t.Errorf("usage is %+v", u)
	}
	if err := c.Freeze(t.Context(), 2*maxFreeze); err == nil {
		t.Error("a freeze of two minutes was taken")
	}
}

func TestWhatAStreamIsAsked(t *testing.T) {
	for body, want := range map[string]int{`{}`: nullEvents, `{"max_tokens":12,"a":1}`: 12, `{"max_tokens": 3}`: 3, `{"max_tokens":0}`: 1, `{"max_tokens":99999999999}`: maxNullEvents} {
		if got := askedTokens([]byte(body)); got != want {
			t.Errorf("%s asks for %d events, want %d", body, got, want)
		}
	}
	for path, want := range map[string]time.Duration{"/v1/x": 0, "/every/10ms/v1/x": 10 * msec, "/every/soon/v1": 0, "/every/-1s/v1": 0} {
		if got := askedGap([]byte(path)); got != want {
			t.Errorf("%s asks for a gap of %v, want %v", path, got, want)
		}
	}
}

// A unary answer costs no allocation, or the server would have a collector that
// delays it.
func TestNullAnswerAllocatesNothing(t *testing.T) {
	client, server := net.Pipe()
	defer client.Close()
	go func() { _, _ = io.Copy(io.Discard, client) }() // ends with the pipe
	request := []byte("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}")
	feed := bytes.NewReader(nil)
	c := &conn{Conn: server, r: bufio.NewReaderSize(feed, readSize)}
	n := &Null{began: time.Now()}
	allocs := testing.AllocsPerRun(100, func() {
		feed.Reset(request)
		if _, err := c.next(); err != nil {
			t.Fatal(err)
		}
		if err := n.answer(c); err != nil {
			t.Fatal(err)
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations for an answer", allocs)
	}
}

func TestFiguresTakeTheBestRound(t *testing.T) {
	c := &calibrator{out: &Calibration{}}
	for i, v := range []float64{15_000, 25_000, 18_000} {
		c.add(openLoop, "requests/s", v, [2]float64{float64(i), 1})
		c.add("send lag p99 at 5000/s", "ms", 30_000/v, [2]float64{float64(i), 1})
		c.add(wrkRate, "requests/s", v, [2]float64{})
	}
	for i := range c.out.Figures {
		c.out.Figures[i].settle()
	}
	open, lag, wrk := c.out.Figures[0], c.out.Figures[1], c.out.Figures[2]
	if open.Best != 25_000 || open.Median != 18_000 || open.Generator != 1 || !open.OK {
		t.Errorf("rate: %+v", open)
	}
	if lag.Best != 1.2 || lag.Generator != 1 || lag.OK || lag.Target != lagTarget {
		t.Errorf("lag: %+v", lag)
	}
	if wrk.Target != 0 || !wrk.OK {
		t.Errorf("a figure without a target: %+v", wrk)
	}
	var table bytes.Buffer
	if err := c.out.WriteTable(&table); err != nil || !strings.Contains(table.String(), "MISSED") {
		t.Errorf("table: %v\n%s", err, table.String())
	}
	if !slices.IsSorted(ladder) {
		t.Error("the ladder of rates is not in order")
	}
}
