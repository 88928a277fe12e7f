package known

import (
	"bufio"
	"bytes"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"aloft/loadgen"
)

// What became of requests is exact however busy the machine is. The times are
// the self-test's own business: `aloft load selftest`.
func TestFaultsAreClassedExactly(t *testing.T) {
	rows, err := test(t.Context(), faults(), time.Now().Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	servers := map[string]bool{}
	for _, r := range rows {
		servers[r.Server] = true
		timed := strings.HasSuffix(r.Metric, "/s") || strings.HasSuffix(r.Metric, ", ms")
		if !r.OK && !timed {
			t.Errorf("%s: %s is %v, want %v", r.Server, r.Metric, r.Measured, r.Right)
		}
	}
	if want := len(faults()); len(servers) != want {
		t.Errorf("%d servers were asked, want %d", len(servers), want)
	}
}

// The right values of a stream follow from when each write was really made.
func TestTruthIsByTheServersClock(t *testing.T) {
	start := time.Unix(1000, 0)
	after := func(ms int) time.Time { return start.Add(time.Duration(ms) * msec) }
	s := paced("s", streaming, loadgen.OK, stream(5, at(0, role), at(50*msec, thought), at(90*msec, word), end(110*msec, 5)))
	for i := range 2 { // the second is due after 10 ms, and arrives 3 ms late
		late := 13 * i
		r := &record{script: s.server.scripts[0], arrived: after(late)}
		for _, w := range []int{0, 1, 52, 92, 112} {
			r.writes = append(r.writes, after(late+w))
		}
		s.server.records = append(s.server.records, r)
	}
	got := s.truth(start)
	for metric, want := range map[string][]float64{
		fromIntended: {112, 115}, fromSend: {112, 112}, sendLag: {0, 3}, firstByte: {0, 3}, roleChunk: {1, 4}, firstToken: {52, 55},
		firstToken + sinceSend: {52, 52}, firstVisible: {92, 95}, chunkGap: {40, 40}, interToken: {13.333333, 13.333333, 13.333333, 13.333333, 13.333333, 13.333333},
		perToken: {10, 10}, lateness: {0, 0},
	} {
		if !slices.Equal(got[metric], want) {
			t.Errorf("%s: %v, want %v", metric, got[metric], want)
		}
	}
	if n := got.late(113 * msec); n != 1 {
		t.Errorf("%d are over 113 ms, want 1", n)
	}
}

// A generator that is wrong has to be found: in each metric, by little.
func TestWrongFiguresAreFound(t *testing.T) {
	for _, c := range []struct {
		right, got []float64
		want       bool
	}{
		{[]float64{50, 60}, []float64{50.9, 60}, true},
		{[]float64{50, 60}, []float64{50, 61.1}, false},
		{[]float64{2000}, []float64{2019}, true},
		{[]float64{2000}, []float64{1979}, false},
		{[]float64{0.1}, []float64{1.2}, false},
		{[]float64{1}, nil, false},
		{nil, []float64{1}, false},
	} {
		if near(c.right, c.got) != c.want {
			t.Errorf("near(%v, %v) is %v", c.right, c.got, !c.want)
		}
	}
	s := paced("s", unary, loadgen.OK, chat(0))
	for range s.n {
		s.server.records = append(s.server.records, &record{script: s.server.scripts[0]})
	}
	right := loadgen.Result{Tally: loadgen.Tally{Offered: 100, OK: 100}, Attainment: 1, Rates: loadgen.Rates{Achieved: 99.5},
		Tokens: loadgen.Tokens{Prompt: 700, Completion: 400}}
	wrong := func(change func(*loadgen.Result)) (names []string) {
		r := right
		change(&r)
		for _, row := range s.counts(&r, time.Time{}) {
			if !row.OK {
				names = append(names, row.Metric)
			}
		}
		return names
	}
	for name, c := range map[string]struct {
		change func(*loadgen.Result)
		want   []string
	}{
		"right":           {func(*loadgen.Result) {}, nil},
		"one not offered": {func(r *loadgen.Result) { r.Offered-- }, []string{"offered", "any other outcome"}},
		"one late":        {func(r *loadgen.Result) { r.OK, r.Late = 99, 1 }, []string{"outcome ok", "any other outcome"}},
		"a token more":    {func(r *loadgen.Result) { r.Tokens.Completion++ }, []string{"completion tokens"}},
		"attainment":      {func(r *loadgen.Result) { r.Attainment = 0.99 }, []string{"attainment"}},
		"too slow":        {func(r *loadgen.Result) { r.Achieved = 98.9 }, []string{"sent/s"}},
	} {
		if got := wrong(c.change); !slices.Equal(got, c.want) {
			t.Errorf("%s: wrong rows %q, want %q", name, got, c.want)
		}
	}
}

// A row that was right once stays right and keeps its try.
func TestMergeKeepsWhatWasRight(t *testing.T) {
	rows := merge(nil, []Row{{Metric: "a", OK: true}, {Metric: "b"}}, 1)
	rows = merge(rows, []Row{{Metric: "a"}, {Metric: "b", OK: true}, {Metric: "c"}}, 2)
	if len(rows) != 3 || !rows[0].OK || rows[0].Tries != 1 || !rows[1].OK || rows[1].Tries != 2 || rows[2].OK {
		t.Errorf("rows are %+v", rows)
	}
}

func TestQuantilesAreByTheNearestRank(t *testing.T) {
	var v []float64
	for i := range 100 {
		v = append(v, float64(100-i))
	}
	if got, want := quantilesOf(v), []float64{50, 95, 99, 100}; !slices.Equal(got, want) {
		t.Errorf("quantiles are %v, want %v", got, want)
	}
	if got := quantilesOf(nil); got != nil {
		t.Errorf("quantiles of nothing are %v", got)
	}
}

// FuzzRequest: whatever a client sends, a request is read or refused, and never
// more of it than was sent.
func FuzzRequest(f *testing.F) {
	f.Add([]byte("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\ncontent-length: 5\r\n\r\nhelloGET / HTTP/1.1\r\n\r\n"))
	f.Add([]byte("GET / HTTP/1.1\nContent-Length: -1\n\n"))
	f.Add([]byte("GET\r\n\r\n"))
	f.Add([]byte("POST / HTTP/1.1\r\nContent-Length: 67108865\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := &conn{Conn: (*net.TCPConn)(nil), signs: true, r: bufio.NewReaderSize(bytes.NewReader(b), readSize)}
		for read := 0; ; {
			if _, err := c.next(); err != nil {
				return
			}
			if read += len(c.path) + len(c.body); read > len(b) {
				t.Fatalf("read %d bytes of %d", read, len(b))
			}
			if strings.ContainsAny(string(c.path), " \n") {
				t.Fatalf("path is %q", c.path)
			}
		}
	})
}
