package scenario

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"aloft/loadgen/arrivals"
)

var update = flag.Bool("update", false, "write the golden files")

func draw(t testing.TB, name string, seed uint64, o DrawOptions) *World {
	t.Helper()
	w, err := load(t, name).Draw(seed, o)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestAnArrivalIsSmall(t *testing.T) {
	if n := unsafe.Sizeof(Arrival{}); n != 16 {
		t.Errorf("an arrival has %d bytes, want 16: a day has 18 million", n)
	}
}

// The rule: mean_utilization is the knee work over static share and time.
func TestMeanUtilizationIsMet(t *testing.T) {
	for name, seeds := range map[string]uint64{"small-8gpu-conv": 1, "bursty-8gpu-code": 3, "stress": 1, "embed-8gpu": 1} {
		for seed := uint64(1); seed <= seeds; seed++ {
			w := draw(t, name, seed, DrawOptions{})
			for i := range w.Traffic {
				tr := &w.Traffic[i]
				want := tr.Model.Arrivals.MeanUtilization
				got := tr.Work() / (float64(tr.Model.Static) * w.Horizon.Seconds())
				if math.Abs(got/want-1) > 0.01 {
					t.Errorf("%s, seed %d, %s: mean utilisation %.4f, want %.2f within 1 %%", name, seed, tr.Model.Name, got, want)
				}
				if !slices.IsSortedFunc(tr.Arrivals, func(a, b Arrival) int { return int(a.At - b.At) }) || tr.Arrivals[len(tr.Arrivals)-1].At >= w.Horizon {
					t.Errorf("%s, seed %d, %s: arrivals are out of order or after the end", name, seed, tr.Model.Name)
				}
			}
		}
	}
}

// 0.15 of 18 slices is 2.7 slice-seconds a second, and the code trace makes
// 3,010.0 in 3,436.4 s: 0.876. Three copies make 2.63, two and four are further
// off.
func TestCopies(t *testing.T) {
	w := draw(t, "bursty-8gpu-code", 1, DrawOptions{})
	code := w.Traffic[1]
	if code.Copies != 3 || math.Abs(code.TimeScale-2.7/2.628) > 0.03 || code.DecodeBound || !w.Traffic[0].DecodeBound {
		t.Errorf("code: %d copies, time scale %.4f, decode-bound %v", code.Copies, code.TimeScale, code.DecodeBound)
	}
	if !strings.Contains(w.Notes[1], "3 copies of azure-llm-2023/AzureLLMInferenceTrace_code.csv") || !strings.Contains(w.Notes[1], fmt.Sprintf("time x %.4f", code.TimeScale)) {
		t.Errorf("note %q, want copies and time scale", w.Notes[1])
	}
}

// dispersion is variance over mean of the counts of a second.
func dispersion(a []Arrival) float64 {
	counts := make([]float64, int(a[len(a)-1].At/time.Second)+1)
	for _, x := range a {
		counts[x.At/time.Second]++
	}
	mean, square := 0.0, 0.0
	for _, c := range counts {
		mean += c / float64(len(counts))
		square += c * c / float64(len(counts))
	}
	return (square - mean*mean) / mean
}

// The code trace has a dispersion of 13.2 (traces/README.md). Independent copies
// laid over each other keep it, since both variances and means add; a trace
// shrunk threefold in time has more in a second of everything.
func TestCopiesKeepTheBursts(t *testing.T) {
	mean := 0.0
	const seeds = 8
	s := load(t, "bursty-8gpu-code")
	for seed := uint64(1); seed <= seeds; seed++ {
		w, err := s.Draw(seed, DrawOptions{})
		if err != nil {
			t.Fatal(err)
		}
		mean += dispersion(w.Traffic[1].Arrivals) / seeds
	}
	if mean < 13.2*0.85 || mean > 13.2*1.2 {
		t.Errorf("three copies have a dispersion of %.1f, want about 13.2", mean)
	}
	s.Models[1].Arrivals.Copies = 1
	w, err := s.Draw(1, DrawOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if d := dispersion(w.Traffic[1].Arrivals); d < 1.5*13.2 || w.Traffic[1].TimeScale < 2.5 {
		t.Errorf("one copy shrunk %.2f times has a dispersion of %.1f, want clearly more than 13.2", w.Traffic[1].TimeScale, d)
	}
}

// No row is dropped: a lap of every copy holds each row of the trace once.
func TestALapHoldsEveryRow(t *testing.T) {
	s := load(t, "bursty-8gpu-code")
	m := &s.Models[1]
	m.Arrivals.MeanUtilization, m.Arrivals.Copies = 0, 4
	s.HorizonH = 1
	text, err := find("", m.Arrivals.Trace)
	if err != nil {
		t.Fatal(err)
	}
	rows, _, err := records(text, 1, "")
	if err != nil {
		t.Fatal(err)
	}
	w, err := s.Draw(1, DrawOptions{})
	if err != nil {
		t.Fatal(err)
	}
	tr := w.Traffic[1]
	tr.Arrivals = slices.DeleteFunc(tr.Arrivals, func(a Arrival) bool {
		n := time.Duration(len(rows))
		return a.At >= rows[len(rows)-1].Offset*n/(n-1)
	})
	want := map[[2]int32]int{}
	for _, r := range rows {
		want[[2]int32{int32(r.InputTokens), int32(r.OutputTokens)}] += 4
	}
	got := map[[2]int32]int{}
	for _, a := range tr.Arrivals {
		got[[2]int32{a.In, a.Out}]++
	}
	off := 0 // a copy's last row may fall to either side of the lap by rounding
	for k, n := range want {
		off += max(n-got[k], got[k]-n)
	}
	if len(tr.Arrivals) < 4*len(rows)-4 || len(tr.Arrivals) > 4*len(rows)+4 || off > 8 {
		t.Errorf("%d arrivals in a lap of 4 copies of %d rows, %d of them others", len(tr.Arrivals), len(rows), off)
	}
}

func TestDayCurve(t *testing.T) {
	d := Diurnal{Amplitude: 0.6, PeriodH: 24, TroughAtH: 0}
	if r := d.rate(0); math.Abs(r-0.4) > 1e-12 {
		t.Errorf("rate at the trough is %v, want 0.4", r)
	}
	if r := d.rate(12 * 3600); math.Abs(r-1.6) > 1e-12 {
		t.Errorf("rate at noon is %v, want 1.6", r)
	}
	// Over whole days the mean is 1; over the first half it is 1 too, over the
	// first quarter 1 - 0.6·(2/π) = 0.618.
	for hours, want := range map[float64]float64{24: 1, 12: 1, 6: 1 - 1.2/math.Pi} {
		if got := d.even(hours*3600) / (hours * 3600); math.Abs(got-want) > 1e-9 {
			t.Errorf("mean rate of the first %v h is %v, want %v", hours, got, want)
		}
	}
	for _, c := range []Diurnal{d, {0.99, 24, 7}, {0.5, 4, 0}, {0, 0, 0}} {
		for x := 0.0; x < 90_000; x += 997.5 {
			if back := c.even(c.at(x, 0)); math.Abs(back-x) > 1e-6 {
				t.Errorf("%+v: even(at(%v)) = %v", c, x, back)
			}
		}
	}
	// The scenario's requests follow it: 1.5 times as many in the day's busiest hour
	// as over the mean, half in the quietest.
	w := draw(t, "small-8gpu-conv", 3, DrawOptions{})
	hours := make([]float64, 24)
	for _, a := range w.Traffic[0].Arrivals {
		hours[a.At/time.Hour] += 24 / float64(len(w.Traffic[0].Arrivals))
	}
	for hour, want := range map[int]float64{0: 0.4, 6: 1.08, 12: 1.6, 23: 0.4} { // the hour 6 to 7 is above the mean already
		if math.Abs(hours[hour]-want) > 0.08 {
			t.Errorf("hour %d has %.2f times the mean, want about %.2f", hour, hours[hour], want)
		}
	}
}

func TestDrawsAreDeterministic(t *testing.T) {
	a, b, c := draw(t, "bursty-8gpu-code", 7, DrawOptions{}), draw(t, "bursty-8gpu-code", 7, DrawOptions{}), draw(t, "bursty-8gpu-code", 8, DrawOptions{})
	if !reflect.DeepEqual(a, b) {
		t.Error("one seed drew two worlds")
	}
	if reflect.DeepEqual(a.Traffic[1].Arrivals, c.Traffic[1].Arrivals) || reflect.DeepEqual(a.Jobs, c.Jobs) {
		t.Error("two seeds drew the same traffic or jobs")
	}
}

// A window is a part of the whole: same requests, same jobs, hours earlier.
func TestAWindowIsAPart(t *testing.T) {
	whole, part := draw(t, "small-8gpu-conv", 2, DrawOptions{}), draw(t, "small-8gpu-conv", 2, DrawOptions{From: 6, To: 8})
	if part.Horizon != 2*time.Hour || part.From != 6*time.Hour {
		t.Fatalf("the window begins at %v and lasts %v", part.From, part.Horizon)
	}
	for i := range whole.Traffic {
		var want []Arrival
		for _, a := range whole.Traffic[i].Arrivals {
			if a.At >= part.From && a.At < part.From+part.Horizon {
				a.At -= part.From
				want = append(want, a)
			}
		}
		got := part.Traffic[i].Arrivals
		if len(got) != len(want) {
			t.Fatalf("%d requests, want %d", len(got), len(want))
		}
		for k := range got {
			if (got[k].At-want[k].At).Abs() > time.Microsecond || got[k].In != want[k].In || got[k].Out != want[k].Out {
				t.Fatalf("request %d is %v, want %v", k, got[k], want[k])
			}
		}
	}
	n := 0
	for _, j := range whole.Jobs {
		if j.At >= part.From && j.At < part.From+part.Horizon {
			if got := part.Jobs[n]; got.ID != j.ID || (got.At+part.From-j.At).Abs() > time.Microsecond {
				t.Fatalf("job %d is %v, want %v", n, got, j)
			}
			n++
		}
	}
	if n == 0 || n != len(part.Jobs) {
		t.Errorf("%d jobs, want %d and more than none", len(part.Jobs), n)
	}
	for _, o := range []DrawOptions{{From: 6, To: 6}, {From: -1}, {To: 25}} {
		if _, err := load(t, "small-8gpu-conv").Draw(1, o); err == nil {
			t.Errorf("window %+v is drawn", o)
		}
	}
}

// One small draw, as it has always been: the first requests and jobs of hour 2.
func TestGoldenDraw(t *testing.T) {
	w := draw(t, "bursty-8gpu-code", 1, DrawOptions{From: 2, To: 2.25})
	var b strings.Builder
	for _, tr := range w.Traffic {
		fmt.Fprintf(&b, "%s: %d requests, %d copies, time x %.4f, decode-bound %v\n", tr.Model.Name, len(tr.Arrivals), tr.Copies, tr.TimeScale, tr.DecodeBound)
		for _, a := range tr.Arrivals[:10] {
			fmt.Fprintf(&b, "%v %d %d\n", a.At.Round(time.Millisecond), a.In, a.Out)
		}
	}
	for _, j := range w.Jobs {
		fmt.Fprintf(&b, "%s at %v runs %v on %d slices + %d GPUs\n", j.ID, j.At.Round(time.Millisecond), j.Run.Round(time.Millisecond), j.Slices, j.GPUs)
	}
	const file = "testdata/bursty.golden"
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("the draw is\n%s\nwant\n%s\n(-update after a change that is meant)", b.String(), want)
	}
}

func TestEveryCauseHasItsStream(t *testing.T) {
	w := &World{Seed: 5}
	seen := map[uint64]string{}
	for _, cause := range []string{"start", "faults"} {
		for n := range uint64(100) {
			v := w.Rand(cause, n).Uint64()
			if other := seen[v]; other != "" {
				t.Errorf("%s %d draws what %s draws", cause, n, other)
			}
			seen[v] = fmt.Sprint(cause, n)
			if w.Rand(cause, n).Uint64() != v {
				t.Errorf("%s %d draws twice differently", cause, n)
			}
		}
	}
}

// A recording is played once, at its own times, each model its own requests.
func TestRecorded(t *testing.T) {
	dir := t.TempDir()
	var b strings.Builder
	out := arrivals.NewWriter(&b)
	for i, model := range []string{"chat", "code", "chat", "code", "chat"} {
		if err := out.Write(arrivals.Record{Offset: time.Duration(i) * 700 * time.Second, Endpoint: "chat", Model: model, InputTokens: 100 + i, OutputTokens: 10 + i}); err != nil {
			t.Fatal(err)
		}
	}
	if err := out.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "own.jsonl"), []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	s := load(t, "bursty-8gpu-code")
	for i := range s.Models {
		s.Models[i].Arrivals = Arrivals{Trace: "own.jsonl", OfModel: s.Models[i].Name, AsRecorded: true}
	}
	w, err := s.Draw(1, DrawOptions{Traces: dir})
	if err != nil {
		t.Fatal(err)
	}
	want := [][]Arrival{{{0, 100, 10}, {1400 * time.Second, 102, 12}, {2800 * time.Second, 104, 14}}, {{700 * time.Second, 101, 11}, {2100 * time.Second, 103, 13}}}
	for i := range want {
		if !slices.Equal(w.Traffic[i].Arrivals, want[i]) {
			t.Errorf("%s is asked %v, want %v", s.Models[i].Name, w.Traffic[i].Arrivals, want[i])
		}
	}
	s.Models[0].Arrivals.OfModel = "nobody"
	if _, err := s.Draw(1, DrawOptions{Traces: dir}); err == nil || !strings.Contains(err.Error(), "no request of model nobody") {
		t.Errorf("error %v", err)
	}
	s.Models[0].Arrivals.Trace = "gone.csv"
	if _, err := s.Draw(1, DrawOptions{Traces: dir}); err == nil || !strings.Contains(err.Error(), "gone.csv") || !strings.Contains(err.Error(), dir) {
		t.Errorf("error %v, want file and folder", err)
	}
}

// shared is the folder of all traces, of which some are not ours to ship.
func shared(t *testing.T) string {
	dir := os.Getenv("ALOFT_SHARED")
	if dir == "" {
		t.Skip("ALOFT_SHARED is not set: its traces are not shipped")
	}
	return filepath.Join(dir, "traces")
}

// Mooncake's times lie on a grid of 3 s; replayed as they stand they would come
// in bursts of ten (traces/README.md). Spread, they are as even as chance:
// the dispersion of seconds falls from about 20 to below 3.
func TestMooncake(t *testing.T) {
	dir := shared(t)
	s := load(t, "bursty-8gpu-code")
	s.Models[0].Arrivals = Arrivals{Trace: "mooncake-fast25/conversation_trace.jsonl", MeanUtilization: 0.4}
	w, err := s.Draw(1, DrawOptions{Traces: dir})
	if err != nil {
		t.Fatal(err)
	}
	if d := dispersion(w.Traffic[0].Arrivals); d > 3 || !strings.Contains(w.Notes[0], "spread") {
		t.Errorf("dispersion %.1f, note %q", d, w.Notes[0])
	}
}
