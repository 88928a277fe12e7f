package loadgen

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"
)

// sampleReport is a run of 1000 requests of which so many were good, their
// latencies exponential around the mean.
func sampleReport(t *testing.T, good int, mean time.Duration, seed uint64) *Report {
	t.Helper()
	opt := twoTenants()
	opt.Name, opt.Seed = "sample", seed
	r := rand.New(rand.NewPCG(seed, 1))
	col := collecting(opt, 1000)
	for i := range 1000 {
		at := time.Duration(i) * 10 * msec
		took := time.Duration(float64(mean) * r.ExpFloat64())
		s := sample{outcome: OK, wasSent: true, tenant: i % 2, times: times{intended: at, sent: at + msec/10, byte: at + took/8, role: at + took/8, first: at + took/4, visible: at + took/4, last: at + took, end: at + took},
			tokens: tokens{prompt: 10 + i%90, completion: 10, chunks: 10}, gaps: []gap{{took / 2, 4}, {took / 4, 5}}}
		if i*7919%1000 >= good {
			s.outcome, s.problem = Shed, "HTTP 429: \x1b[2Jslow down"
		}
		col.add(&s)
	}
	report := col.report(false)
	report.Host.CPUShare, report.Failed = 0, []string{} // of this test's process
	var err error
	if report.Config, err = col.opt.Config(); err != nil {
		t.Fatal(err)
	}
	return report
}

func TestReportIsReadAsItWasWritten(t *testing.T) {
	report := sampleReport(t, 900, 100*msec, 1)
	text, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	back, err := ReadReport(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	again, err := json.Marshal(back)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(text, again) {
		t.Errorf("written, read and written again it differs:\n%s\n%s", text, again)
	}
	if !reflect.DeepEqual(back.Results[0].Timeline, report.Results[0].Timeline) || len(back.Results[0].Timeline) < 10 {
		t.Error("the time line differs")
	}
	report.Results[0].TTFB.N++
	if text, err = json.Marshal(report); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadReport(bytes.NewReader(text)); err == nil || !strings.Contains(err.Error(), "ttfb has 901 values, and its histogram 900") {
		t.Errorf("a count that was changed: %v", err)
	}
	for bad, want := range map[string]string{
		"":                                      "no JSON",
		"[]":                                    "no JSON",
		"{}":                                    "no schema",
		`{"schema":"aloft.load/1"}`:             `the report is "aloft.load/1", this program reads "aloft.load/2"`,
		`{"schema":"aloft.load/3"}`:             `the report is "aloft.load/3"`,
		`{"schema":"aloft.load/2","results":1}`: "read report",
		`{"schema":"aloft.load/2","results":[{"hdr":"nonsense"}]}`:                                                                "histogram",
		`{"schema":"aloft.load/2","results":[{"offered":5,"ok":50}]}`:                                                             "of 5 offered 50 are ok",
		`{"schema":"aloft.load/2","results":[{"offered":-3,"ok":-3}]}`:                                                            "of -3 offered",
		`{"schema":"aloft.load/2","results":[{"offered":4,"ok":3,"late":1,"attainment":1}]}`:                                      "attainment is 1 with 3 of 4",
		`{"schema":"aloft.load/2","results":[{"offered":1,"late":1,"timeline":[{"offered":1,"late":1},{"offered":1,"late":1}]}]}`: "the time line has 0 ok of 2",
	} {
		if _, err := ReadReport(strings.NewReader(bad)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", bad, err, want)
		}
	}
}

func FuzzReadReport(f *testing.F) {
	f.Add(`{"schema":"aloft.load/2","results":[{"n":1,"hdr":"HISTFAAAACJ42pNpmSzMwMDAxQABzFCaEUoz2X+AMIKYWBgYAGWdBKo="}]}`)
	f.Add(`{"schema":"aloft.load/2","config":{"workloads":[{"name":"a"}]},"results":[{}],"cuts":[{}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		report, err := ReadReport(strings.NewReader(text))
		if err != nil {
			return
		}
		c := Compare(report, report) // whatever was read can be used
		for _, x := range c.Figures {
			if x.Verdict == Better || x.Verdict == Worse {
				t.Fatalf("a report against itself: %+v", x)
			}
		}
		for _, file := range CSVFiles(report) {
			if err := file.Write(&bytes.Buffer{}); err != nil {
				t.Fatal(err)
			}
		}
		if err := report.WriteTable(&bytes.Buffer{}); err != nil {
			t.Fatal(err)
		}
	})
}

func TestTableFits80Columns(t *testing.T) {
	report := sampleReport(t, 900, 3*time.Second, 1)
	report.Results[0].Name = "a workload with quite a long name – 日本"
	report.Failed = []string{"x"}
	var b bytes.Buffer
	if err := report.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		note := strings.Contains(line, "phase ") || strings.HasPrefix(line, "WARNING")
		if n := utf8.RuneCountInString(line); n > 80 && !note {
			t.Errorf("%d columns: %s", n, line)
		}
		if strings.ContainsAny(line, "\x1b\r\t") {
			t.Errorf("a control character in %q", line)
		}
	}
	for _, want := range []string{"offered  requests that", "THE RUN DOES NOT COUNT: x\n", "100 shed, 0 of them with Retry-After", "left out", "input_tokens", "  ttft "} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	t.Log("\n" + text)
}

func TestCSV(t *testing.T) {
	a, b := sampleReport(t, 900, 100*msec, 1), sampleReport(t, 1000, 100*msec, 2)
	files := map[string][][]string{}
	for _, f := range CSVFiles(a, b) {
		var out bytes.Buffer
		if err := f.Write(&out); err != nil {
			t.Fatal(err)
		}
		rows, err := csv.NewReader(&out).ReadAll() // every line has as many cells as the first
		if err != nil {
			t.Fatalf("%s: %v", f.Name, err)
		}
		files[f.Name] = rows
		if err := f.Write(fullDisk{}); err == nil {
			t.Errorf("%s: no error of a full disk", f.Name)
		}
	}
	cell := func(file string, row int, column string) string {
		for i, name := range files[file][0] {
			if name == column {
				return files[file][row][i]
			}
		}
		t.Errorf("%s has no column %s: %q", file, column, files[file][0])
		return ""
	}
	for _, c := range []struct {
		file   string
		row    int
		column string
		want   string
	}{
		{"results.csv", 1, "run", "1"}, {"results.csv", 2, "run", "2"}, {"results.csv", 1, "name", "sample"}, {"results.csv", 1, "offered", "1000"},
		{"results.csv", 1, "attainment", "0.9"}, {"results.csv", 1, "shed", "100"}, {"results.csv", 1, "e2e_left_out", "100"}, {"results.csv", 1, "planned_per_s", "100"},
		{"results.csv", 1, "gap_n", "1800"}, {"results.csv", 1, "itl_n", "8100"}, {"results.csv", 1, "run_failed", "false"}, {"results.csv", 1, "timeout", "0"},
		{"results.csv", 1, "lag_max_ms", "0.1"}, {"timeline.csv", 1, "offered", "100"}, {"timeline.csv", 2, "at_s", "1"},
		{"cuts.csv", 1, "value", "big"}, {"cuts.csv", 1, "offered", "500"}, {"distributions.csv", 1, "metric", "e2e"},
	} {
		if got := cell(c.file, c.row, c.column); got != c.want {
			t.Errorf("%s, line %d: %s is %q, want %q", c.file, c.row, c.column, got, c.want)
		}
	}
	if got := cell("distributions.csv", len(files["distributions.csv"])-1, "share_up_to"); got != "1" {
		t.Errorf("the last bucket reaches to %s of all, want 1", got)
	}
}

// fullDisk is a disk without room.
type fullDisk struct{}

var errFull = errors.New("no room")

func (fullDisk) Write([]byte) (int, error) { return 0, errFull }

func TestLines(t *testing.T) {
	var out bytes.Buffer
	opt := twoTenants()
	opt.Lines = &out
	col := collecting(opt, 3)
	results := make(chan sample, 3)
	s := oneStream()
	s.tenant = 1
	results <- s
	results <- sample{outcome: Shed, retryAfter: true, wasSent: true, problem: "HTTP 429: \"no\"\n", retries: 2, times: times{intended: 2 * msec, sent: 3 * msec, end: 4 * msec}}
	results <- sample{outcome: Timeout, waited: true, warm: true, times: times{end: 5 * msec}}
	close(results)
	col.opt.SampleEvery = time.Hour
	col.collect(results)
	want := `{"workload":"chat","phase":"steady","tenant":"small","outcome":"ok","intended_ms":1000,"sent_ms":1005,"first_byte_ms":1010,"role_ms":1020,"first_token_ms":1050,"visible_ms":1090,"last_token_ms":1310,"end_ms":1320,"worst_token_late_ms":12,"tokens":{"prompt":30,"completion":14,"chunks":7}}
{"workload":"chat","phase":"steady","tenant":"big","outcome":"shed","intended_ms":2,"sent_ms":3,"end_ms":4,"marks":["retry_after"],"retries":2,"problem":"HTTP 429: \"no\"\n"}
{"workload":"chat","phase":"steady","tenant":"big","outcome":"timeout","intended_ms":0,"end_ms":5,"marks":["warm_up","waited"]}
`
	if out.String() != want {
		t.Errorf("lines\n%s\nwant\n%s", out.String(), want)
	}
	if r := col.report(false); r.Lines != 3 || r.LinesLost != 0 {
		t.Errorf("%d written and %d lost, want 3 and none", r.Lines, r.LinesLost)
	}
}

// A disk that stands still costs lines, which are counted, and no time.
func TestSlowLinesAreLost(t *testing.T) {
	hold := make(chan struct{})
	slow := &held{hold: hold}
	opt := twoTenants()
	opt.Lines = slow
	const n = 40_000 // some 8 MiB, where 4 may wait
	col := collecting(opt, n)
	for range n {
		s := oneStream()
		col.add(&s) // hangs if a line is waited for
	}
	close(hold)
	col.lines.close()
	r := col.report(false)
	if r.LinesLost == 0 || r.Lines == 0 || r.Lines+r.LinesLost != n || int(r.Lines) != slow.lines {
		t.Errorf("%d written and %d lost of %d, the disk has %d", r.Lines, r.LinesLost, n, slow.lines)
	}
	if !strings.Contains(strings.Join(r.Warnings, "\n"), strconv.FormatInt(r.LinesLost, 10)+" lines of requests were lost") {
		t.Errorf("warnings %q", r.Warnings)
	}
	opt.Lines = fullDisk{}
	col = collecting(opt, 1)
	s := oneStream()
	col.add(&s)
	col.lines.close()
	if r := col.report(false); r.Lines != 0 || r.LinesLost != 1 || !strings.Contains(strings.Join(r.Warnings, "\n"), "no room") {
		t.Errorf("a full disk: %d lines, warnings %q", r.Lines, r.Warnings)
	}
}

type held struct {
	hold  chan struct{}
	lines int
}

func (h *held) Write(p []byte) (int, error) {
	<-h.hold
	h.lines += bytes.Count(p, []byte("\n"))
	return len(p), nil
}

// A run that cannot begin leaves nobody behind who waits for its lines.
func TestRunThatCannotBeginEndsItsWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, err := Run(t.Context(), Options{Lines: io.Discard, Workloads: []Workload{{
			Name: "w", Kind: Chat, Model: "m", URL: "http://server", Headers: map[string]string{"host": "another"}, Phases: steady(1, time.Second),
		}}})
		if err == nil || !strings.Contains(err.Error(), "header host") {
			t.Errorf("error %v, want that the header is the connection's own", err)
		}
	})
}
