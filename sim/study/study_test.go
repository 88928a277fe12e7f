package study

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"

	"aloft/arbiter"
	"aloft/loadgen"
	"aloft/sim"
)

// made is a run with figures by hand: an hour of one GPU, 25,200 slice-seconds.
func made(policy string, seed uint64, aloft, queueing float64) Run {
	const all = 7 * 3600.0
	return Run{Variant: AsIs, Result: sim.Result{Policy: policy, Seed: seed, HorizonS: 3600, Slices: 7, Aloft: aloft,
		Ledger: map[arbiter.Account]float64{arbiter.JobUseful: all * aloft, arbiter.WarmReserve: all * (1 - aloft)},
		Total:  sim.Served{Requests: 2000, Good: 1990, Attainment: 0.995},
		Models: []sim.ModelResult{{Name: "chat", Served: sim.Served{Requests: 1000, Good: 1000, Attainment: 1}, ReadyMean: 3},
			{Name: "code", Served: sim.Served{Requests: 1000, Good: 990, Attainment: 0.99 - 0.001*float64(seed)}, ReadyMean: 2}},
		Jobs:     sim.JobFigures{Submitted: 4, Finished: 4, OfferedLoad: 0.8, Queueing: sim.Spread{N: 4, Mean: queueing, P95: 2 * queueing}, Completion: sim.Spread{N: 4, Mean: 100 + queueing}, ProgressS: 100, Lost: 0.01},
		Reclaims: []sim.ReclaimTime{{Class: "fast", Kept: 9, Broken: 1, Faulted: 5}},
		Series: sim.Series{Minutes: 2, Slices: map[arbiter.Account][]float32{arbiter.JobUseful: {1, 2}}, Queued: []float32{1, 0}, Lent: []float32{2, 2},
			Models: []sim.ModelSeries{{Name: "chat", Need: []float32{1, 2}, Ready: []float32{3, 3}, Lent: []float32{0, 0}, P99: []float32{0.5, -1}, Headroom: []float32{0.5, 1}}}}}}
}

func madeStudy(ours ...float64) *Study {
	s := &Study{Schema: Schema, Modelled: Modelled, Scenario: "made", ToH: 1, Policies: []string{"ours", "pilot"}, Variants: []Variant{{Name: AsIs, Config: json.RawMessage(`{"gpus":1}`)}}}
	for i, v := range ours {
		seed := uint64(i + 1)
		s.Seeds = append(s.Seeds, seed)
		// A hard seed is hard for all: it costs each a tenth.
		s.Runs = append(s.Runs, made(Static, seed, 0.5-0.1*float64(i), 1000), made("ours", seed, v, 200), made("pilot", seed, 0.8, 100))
		r := &s.Runs[len(s.Runs)-2]
		r.Caused = []sim.Cause{{Model: "chat", Requests: 1000}, {Model: "code", Requests: 1000, Gross: 2, Net: 1, GrossPer: 200, NetPer: 100}, {Requests: 2000, Gross: 2, Net: 1, GrossPer: 100, NetPer: 50}}
	}
	return s
}

// Static is summed up although it was not asked for; factors are medians of the
// seeds' ratios, gaps are against the pilot.
func TestSummaries(t *testing.T) {
	s := madeStudy(0.6, 0.6, 0.6)
	sums := s.Summaries()
	if len(sums) != 3 || sums[0].Policy != Static || sums[1].Policy != "ours" {
		t.Fatalf("summaries %+v", sums)
	}
	ours := sums[1]
	for name, want := range map[string]float64{
		"aloft_ratio": 0.6, "aloft_to_static": 1.5, // 0.6 over 0.5, 0.4, 0.3: 1.2, 1.5, 2
		"aloft_to_pilot": 0.75, "queueing_shorter": 5, "queueing_gap": 800.0 / 900, "completion_gap": 800.0 / 900,
		"caused": 100, "caused_net": 50, "attainment": 0.995, "attainment_worst": 0.988, // 0.989, 0.988, 0.987
		"ready": 5, "warm_reserve": 0.4, "reclaims": 15, "reclaims_kept": 0.9, "lost": 0.01, "job_load": 0.8,
	} {
		if got := ours.Stats[name].Value; math.Abs(got-want) > 1e-9 {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if w := ours.Stats["aloft_to_static"]; w.Worst != 1.2 || w.Seed != 1 {
		t.Errorf("the worst factor is %v in seed %d, want 1.2 in seed 1", w.Worst, w.Seed)
	}
	if ours.Worst != (ModelSeed{"code", 3, 0.99 - 0.003}) {
		t.Errorf("worst %+v", ours.Worst)
	}
	if m := ours.Models[1]; m.Caused != 200 || m.Net != 100 || !m.Compared || m.Requests != 3000 {
		t.Errorf("model %+v", m)
	}
	if _, ok := sums[0].Stats["caused"]; ok {
		t.Error("static causes misses against itself")
	}
}

// 0.5, 0.6, 0.7 have a mean of 0.6 and a deviation of 0.1: with t(2) = 4.3027 the
// mean lies within 0.6 ± 4.3027 × 0.1/√3 = 0.2484.
func TestInterval(t *testing.T) {
	mean, in := meanOf([]float64{0.5, 0.6, 0.7}, 0.95)
	if math.Abs(mean-0.6) > 1e-9 || math.Abs(in.Hi-0.8484) > 1e-4 || math.Abs(in.Lo-0.3516) > 1e-4 || in.Open {
		t.Errorf("%v, %+v", mean, in)
	}
	if _, in := meanOf([]float64{3}, 0.95); !in.Open {
		t.Error("one value has an interval")
	}
}

func TestCompare(t *testing.T) {
	find := func(c Comparison, policy, figure string) FigureChange {
		for _, f := range c.Figures {
			if f.Policy == policy && f.Figure == figure {
				return f
			}
		}
		t.Fatalf("no %s of %s", figure, policy)
		return FigureChange{}
	}
	// Seeds differ by far more than the change, which is the same in each.
	a, b := madeStudy(0.2, 0.5, 0.8), madeStudy(0.21, 0.51, 0.81)
	b.Variants[0].Config = json.RawMessage(`{"gpus":2}`)
	c := Compare(a, b)
	if f := find(c, "ours", "aloft_ratio"); f.Verdict != loadgen.Better || !f.Paired || math.Abs(f.Change.Lo-0.01) > 1e-9 {
		t.Errorf("paired: %+v", f)
	}
	if f := find(c, Static, "aloft_ratio"); f.Verdict != loadgen.Unclear {
		t.Errorf("nothing changed for static: %+v", f)
	}
	if len(c.Changes) != 1 || c.Changes[0] != (loadgen.Change{Key: "config.gpus", A: "1", B: "2"}) {
		t.Errorf("changes %+v", c.Changes)
	}
	// Other seeds: the intervals of the two overlap.
	for i := range b.Runs {
		b.Runs[i].Seed += 10
	}
	b.Seeds = []uint64{11, 12, 13}
	if f := find(Compare(a, b), "ours", "aloft_ratio"); f.Verdict != loadgen.Unclear || f.Paired {
		t.Errorf("unpaired: %+v", f)
	}
	// One seed: no word.
	c = Compare(madeStudy(0.2), madeStudy(0.9))
	if f := find(c, "ours", "aloft_ratio"); f.Verdict != loadgen.NoWord || len(c.Doubts) != 2 {
		t.Errorf("one seed: %+v, %q", f, c.Doubts)
	}
	b = madeStudy(0.2, 0.5, 0.8)
	b.Policies, b.Runs = []string{"ours"}, slices.DeleteFunc(b.Runs, func(r Run) bool { return r.Policy == "pilot" })
	if c := Compare(a, b); len(c.OnlyA) != 1 || c.OnlyA[0] != "as it is: pilot" || len(c.OnlyB) != 0 {
		t.Errorf("only in A %q, in B %q", c.OnlyA, c.OnlyB)
	}
	var text strings.Builder
	if err := c.WriteTable(&text); err != nil || !strings.Contains(text.String(), "NO VERDICT: A has one seed") || !strings.Contains(text.String(), Modelled) {
		t.Errorf("%v\n%s", err, text.String())
	}
	narrow(t, text.String())
}

// narrow holds a text to 80 columns.
func narrow(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > 80 && !strings.HasPrefix(line, "A: ") && !strings.HasPrefix(line, "B: ") {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

func TestTable(t *testing.T) {
	s := madeStudy(0.6, 0.61)
	s.Interrupted = true
	var text strings.Builder
	if err := s.WriteTable(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"made, hours 0 to 1, seeds 1, 2", "no GPU was used", "INTERRUPTED", "static", "code, seed 2", "0.605", "1.36", "jobs offered: 0.80"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
	narrow(t, text.String())
}

func TestCSV(t *testing.T) {
	s := madeStudy(0.6)
	rows := map[string]int{"figures.csv": 3, "models.csv": 6, "ledger.csv": 3, "jobs.csv": 0, "reclaims.csv": 3, "slices.csv": 6, "series.csv": 6}
	for _, f := range s.CSVFiles() {
		var b bytes.Buffer
		if err := f.Write(&b); err != nil {
			t.Fatal(err)
		}
		got, err := csv.NewReader(&b).ReadAll() // every row is as long as the first
		if err != nil || len(got) != rows[f.Name]+1 {
			t.Errorf("%s has %d rows, want %d: %v", f.Name, len(got)-1, rows[f.Name], err)
		}
		if f.Name == "series.csv" && strings.Join(got[2], ",") != "as it is,static,1,1,chat,2,3,0,," {
			t.Errorf("a minute without requests has a p99: %q", got[2])
		}
	}
}

func TestReadRefuses(t *testing.T) {
	whole := madeStudy(0.6, 0.7)
	var b bytes.Buffer
	if err := whole.Write(&b); err != nil {
		t.Fatal(err)
	}
	got, err := Read(bytes.NewReader(b.Bytes()))
	if err != nil || len(got.Runs) != 6 || got.Runs[1].Jobs.Queueing.Mean != 200 || got.Runs[1].Caused[2].GrossPer != 100 {
		t.Errorf("%v, %+v", err, got)
	}
	for text, says := range map[string]string{
		"nonsense": "no JSON object", "{}": "no schema", `{"schema":"aloft.simulation/9"}`: `the file is "aloft.simulation/9"`, `{"schema":"aloft.simulation/1","runs":1}`: "read the simulation",
		`{"schema":"aloft.simulation/1","runs":[{"models":[{"model":"m","requests":1,"good":2}]}]}`:                "model m: 2 of 1 requests are good",
		`{"schema":"aloft.simulation/1","runs":[{"slices":7,"horizon_s":3600,"ledger_slice_s":{"job_useful":1}}]}`: "the ledger sums to 1 slice-s of 25200",
	} {
		if _, err := Read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", text, err, says)
		}
	}
}

func TestSeedsOf(t *testing.T) {
	for want, seeds := range map[string][]uint64{"seed 4": {4}, "seeds 1-10": {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, "seeds 1, 2, 5-7, 9": {1, 2, 5, 6, 7, 9}} {
		if got := seedsOf(seeds); got != want {
			t.Errorf("%v reads %q, want %q", seeds, got, want)
		}
	}
}
