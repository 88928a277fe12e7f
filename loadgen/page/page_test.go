package page

import (
	"encoding/json"
	"flag"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"aloft/loadgen"
	"aloft/loadgen/page/suite"
	"aloft/loadgen/search"
)

var update = flag.Bool("update", false, "write the golden pages anew")

// spread is a distribution of n values that are even on a log scale, in
// milliseconds.
func spread(t testing.TB, n int, from, to float64) loadgen.Quantiles {
	t.Helper()
	h := hdrhistogram.New(1, int64(2*time.Hour/time.Microsecond), 3)
	for i := range n {
		if err := h.RecordValue(int64(1000 * from * math.Pow(to/from, float64(i)/float64(max(n-1, 1))))); err != nil {
			t.Fatal(err)
		}
	}
	text, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		t.Fatal(err)
	}
	hdr := &loadgen.Histogram{}
	if err := hdr.UnmarshalText(text); err != nil {
		t.Fatal(err)
	}
	at := func(q float64) float64 { return hdr.Quantile(q) }
	return loadgen.Quantiles{N: int64(n), Mean: math.Round(h.Mean()) / 1000, P50: at(0.5), P90: at(0.9), P95: at(0.95), P99: at(0.99), P999: at(0.999), Max: at(1), HDR: hdr}
}

// sampleReport is a stream with two phases, and an embedding in a closed loop.
func sampleReport(t testing.TB, name string) *loadgen.Report {
	t.Helper()
	q := func(n int, from, to float64) *loadgen.Quantiles {
		out := spread(t, n, from, to)
		return &out
	}
	stream := func(phase string, n int, slow float64, from int) loadgen.Result {
		r := loadgen.Result{Name: name, Kind: loadgen.Chat, Model: "m-" + name, Phase: phase,
			Tally:    loadgen.Tally{Offered: n + 30, OK: n - 20, Late: 20, Shed: 20, Failed: 10, Unfinished: 2, RetryAfter: 15, Waited: 3, Retries: 4, Abandoned: 5},
			FailedBy: map[loadgen.Outcome]int{loadgen.StreamError: 7, loadgen.Timeout: 3}, Problems: map[loadgen.Outcome]string{loadgen.StreamError: "the server said: " + name},
			Quantiles: spread(t, n, 40, 400*slow), FromSend: spread(t, n, 40, 200*slow), SendLag: spread(t, n+30, 0.01, 0.6),
			TTFT: q(n, 10, 90*slow), TPOT: q(n, 5, 20), Targets: loadgen.Targets{E2E: 300, TTFT: 50},
			Attainment: float64(n-20) / float64(n+30), Rates: loadgen.Rates{Planned: 50, Achieved: 49.9, Good: 47, Extra: 0.2, GoodTokens: 1500},
			Tokens: loadgen.Tokens{Prompt: 9000, Completion: 30000, Good: 29000, Estimated: 12}}
		r.Marks = loadgen.Marks{TTFB: spread(t, n, 9, 80), TTFTFromSend: q(n, 10, 80), ITL: q(30*n, 1, 60), Gap: q(20*n, 1, 120)}
		for i := range 4 {
			r.Timeline = append(r.Timeline, loadgen.Point{At: float64(from + i), Offered: 50, Good: 45 - i, Late: i, Shed: 3, Failed: 2, P50: 60 * slow, P99: 300 * slow, InFlight: 4 + i})
		}
		return r
	}
	closed := loadgen.Result{Name: "closed", Kind: loadgen.Embeddings, Model: "e", Phase: "run", Closed: 4, Tally: loadgen.Tally{Offered: 10, OK: 10},
		Quantiles: spread(t, 10, 3, 3), FromSend: spread(t, 10, 3, 3), Attainment: 1}
	return &loadgen.Report{
		Schema: loadgen.Schema, Name: name, Seed: 42, Plan: []string{"0123456789abcdef", "fedcba9876543210"}, Started: time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC), Elapsed: 8.4,
		Host: loadgen.Host{Machine: loadgen.Machine{OS: "linux", Arch: "amd64", Model: "a CPU", CPUs: 2, Procs: 2, Go: "go1.26"}, CPU: 1, CPUShare: 0.06}, Tool: loadgen.Tool{Commit: "abc", Modified: true},
		Config: json.RawMessage(`{"name":` + quoted(name) + `,"workloads":[{"url":"http://127.0.0.1:8080"}]}`), Warnings: []string{"closed: a closed loop"}, Failed: []string{},
		Results: []loadgen.Result{stream("steady", 200, 1, 0), stream("peak", 1200, 3, 4), closed}, Step: 1,
		Cuts: []loadgen.Cut{
			{Workload: name, By: "tenant", Name: name, Tally: loadgen.Tally{Offered: 20, OK: 19, Late: 1}, E2E: spread(t, 20, 40, 80), TTFT: q(20, 10, 20)},
			{Workload: name, By: "class", Name: "interactive", Tally: loadgen.Tally{Offered: 20, OK: 19, Late: 1}, E2E: spread(t, 20, 40, 80)},
			{Workload: name, By: "input_tokens", Name: "12-80", Tally: loadgen.Tally{Offered: 3, Failed: 3}},
		},
		WarmUp: &loadgen.Tally{Offered: 9, OK: 8},
	}
}

func quoted(s string) string {
	text, _ := json.Marshal(s)
	return string(text)
}

func sampleCurve(name string) *search.Curve {
	c := &search.Curve{Head: search.Head{Schema: "s", Name: name, Attain: 0.99, Confidence: 0.95, Seed: 7, Started: time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC), Elapsed: 90, Limit: 600, Stopped: search.Drawn, Note: name}}
	for i, rate := range []float64{10, 20, 40, 80, 160} {
		x := float64(i)
		p := search.Point{Rate: rate, Verdict: search.Holds, Reason: search.Attained,
			Evidence: search.Evidence{Offered: 1000, OK: 998 - 60*i*i/4, Attainment: 0.998 - 0.015*x*x, Low: 0.99 - 0.017*x*x, High: 0.999 - 0.013*x*x}}
		if i > 2 {
			p.Verdict, p.Reason = search.Fails, search.Missed
		}
		p.Tries = []search.Try{
			{Run: 2*i + 1, Rate: rate, Figures: search.Figures{Achieved: rate, Good: rate * p.Attainment, E2E50: 20 + x, E2E99: 80 * math.Exp(x/2), TTFT99: 30 * math.Exp(x/2)}},
			{Run: 2*i + 2, Rate: rate, Discarded: "the generator: " + name},
		}
		c.Points = append(c.Points, p)
	}
	return c
}

// pages are all kinds of page about one name.
func pages(t testing.TB, name string) map[string]string {
	t.Helper()
	failed := sampleReport(t, name)
	failed.Failed = []string{name + ", phase steady: send lag p99 is 9.00 ms, more than 3.00 ms"}
	faster := sampleReport(t, name)
	faster.Results[1].Quantiles = spread(t, 1200, 40, 100)
	down := &loadgen.Report{Name: name, Results: []loadgen.Result{{Name: name, Phase: "p", Tally: loadgen.Tally{Offered: 7, Failed: 7},
		FailedBy: map[loadgen.Outcome]int{loadgen.Connect: 7}, Targets: loadgen.Targets{E2E: 300}, SendLag: spread(t, 7, 0.01, 0.6)}}}
	curve := sampleCurve(name)
	curve.Config = json.RawMessage(`{"name":` + quoted(name) + `,"workloads":[{"name":"w","kind":"chat","model":"m","url":"http://gpu:8000"}]}`)
	answer := &search.Answer{Head: curve.Head, Rate: 55, Low: 40, High: 80, Certainty: 0.9512, Agreed: 5, Windows: 6}
	out := map[string]string{}
	for kind, write := range map[string]func(w io.Writer) error{
		"run":     func(w io.Writer) error { return Run(w, sampleReport(t, name)) },
		"failed":  func(w io.Writer) error { return Run(w, failed) },
		"down":    func(w io.Writer) error { return Run(w, down) },
		"unlike":  func(w io.Writer) error { return Compare(w, sampleReport(t, name), &loadgen.Report{Name: name}) },
		"empty":   func(w io.Writer) error { return Run(w, &loadgen.Report{Name: name}) },
		"compare": func(w io.Writer) error { return Compare(w, sampleReport(t, name), faster) },
		"sweep":   func(w io.Writer) error { return Sweep(w, curve) },
		"search":  func(w io.Writer) error { return Answer(w, answer) },
		"nothing": func(w io.Writer) error { return Sweep(w, &search.Curve{Head: search.Head{Name: name}}) },
	} {
		var b strings.Builder
		if err := write(&b); err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		out[kind] = b.String()
	}
	return out
}

func TestGolden(t *testing.T) {
	all := pages(t, "chat")
	for _, kind := range []string{"run", "sweep"} {
		got := all[kind]
		path := filepath.Join("testdata", kind+".golden.html")
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s: the page differs from %s; look at it, then go test ./loadgen/page -update", kind, path)
		}
	}
}

func TestSelfContainedAndEscaped(t *testing.T) { suite.SelfContained(t, pages(t, suite.Hostile)) }

func TestAccessible(t *testing.T) {
	suite.Accessible(t, pages(t, "chat"), "empty", "nothing", "unlike")
}

func TestVerdicts(t *testing.T) {
	all := pages(t, "chat")
	for kind, want := range map[string][]string{
		"run":     {"% of 1470 offered requests were good. A closed loop is among them", "CLOSED LOOP: for comparison only", "ESTIMATED: 12 answers had no usage", "0123456789abcdef", ">42<", "the server said: chat"},
		"failed":  {`class="verdict bad" role="alert"`, "THIS RUN DOES NOT COUNT: the generator did not send as planned", "send lag p99 is 9.00 ms"},
		"down":    {`class="verdict bad" role="alert"`, "NO REQUEST WAS ANSWERED. 0.00 % of 7 offered"},
		"unlike":  {`class="verdict bad" role="alert"`, "NOTHING WAS COMPARED"},
		"empty":   {"Nothing was offered"},
		"search":  {"Holds up to 40.00/s, fails from 80.00/s", "5 of 6 whole windows", "http://gpu:8000, kind chat, model m", "&#34;workloads&#34;"},
		"sweep":   {"3 of 5 rates hold", "Run 2 at 10.00/s does not count"},
		"compare": {"B is better in", "e2e_p99"},
	} {
		for _, w := range want {
			if !strings.Contains(all[kind], w) {
				t.Errorf("%s does not say %q", kind, w)
			}
		}
	}
	if strings.Contains(all["down"], "Its times in milliseconds") {
		t.Error("a table of targets alone, where nothing was answered")
	}
}
