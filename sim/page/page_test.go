package page

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"aloft/arbiter"
	"aloft/loadgen/page/suite"
	"aloft/sim"
	"aloft/sim/study"
)

var update = flag.Bool("update", false, "write the golden page anew")

// sampleRun is a made-up hour of two GPUs: 14 slices, 50,400 slice-seconds.
func sampleRun(name, policy string, seed uint64, useful float64) study.Run {
	const all = 14 * 3600.0
	r := study.Run{Variant: study.AsIs, Result: sim.Result{
		Scenario: name, Policy: policy, Seed: seed, HorizonS: 3600, Slices: 14, Aloft: useful,
		Ledger: map[arbiter.Account]float64{arbiter.ServingUseful: all * 0.2, arbiter.JobUseful: all * (useful - 0.2), arbiter.LostWork: all * 0.01, arbiter.WarmReserve: all * (0.99 - useful)},
		Total:  sim.Served{Requests: 1000, Good: 999, Attainment: 0.999},
		Models: []sim.ModelResult{
			{Name: name, Static: 6, Served: sim.Served{Requests: 600, Good: 600, Attainment: 1}, TTFT: sim.Spread{N: 600, P50: 0.2, P99: 0.8}, TPOT: sim.Spread{N: 600, P50: 0.02, P99: 0.04}, ReadyMean: 4.5},
			{Name: "code", Static: 4, Served: sim.Served{Requests: 400, Good: 399, Attainment: 0.9975, Hopeless: 1}, ReadyMean: 3},
		},
		Jobs: sim.JobFigures{OfferedLoad: 0.8, Submitted: 3, Finished: 2, Unfinished: 1, Queueing: sim.Spread{N: 3, Mean: 100 / useful, P95: 300}, Completion: sim.Spread{N: 3, Mean: 600 / useful, P95: 900},
			QueuedBy: sim.QueuedBy{Capacity: 200, Shape: 60, Policy: 40}, ProgressS: 20000, LostS: 504, OverheadS: 100, Lost: 0.0252, Overhead: 0.005,
			List: []sim.JobResult{{ID: name, Kind: "train", Width: 7, AtS: 10, StartS: 40, FinishS: 600, QueuedS: 30}, {ID: "j2", Kind: "embed", Width: 1, AtS: 20, StartS: 120, FinishS: 900, QueuedS: 100}, {ID: "j3", AtS: 3000, StartS: -1, FinishS: -1, QueuedS: 600}}},
		Moves:    []sim.MoveCount{{Action: arbiter.Lend, Reason: arbiter.Surplus, Done: 9, Refused: 1}},
		Reclaims: []sim.ReclaimTime{{Class: "fast", Kept: 8, Broken: 1, BoundS: 6, Took: sim.Spread{N: 9, Mean: 4, P50: 3.9, P99: 6.5, Max: 6.5}}},
		Checks:   100, Incidents: []sim.Incident{{AtS: 1200, Kind: "bound_broken", Slice: "g0/s1", Job: name, TookS: 6.5, Bound: 6}},
	}}
	r.Series = sim.Series{Minutes: 60, Slices: map[arbiter.Account][]float32{}, Models: []sim.ModelSeries{{Name: name}, {Name: "code"}}}
	for i := range 60 {
		v := float32(i%7) / 7
		for a, s := range r.Ledger {
			r.Series.Slices[a] = append(r.Series.Slices[a], float32(s/3600))
		}
		r.Series.Queued, r.Series.Lent = append(r.Series.Queued, 3*v), append(r.Series.Lent, 5*v)
		for m := range r.Series.Models {
			x := &r.Series.Models[m]
			p99 := 0.5 + v
			if i%20 == 9 {
				p99 = -1 // nothing came
			}
			x.Need, x.Ready, x.Lent = append(x.Need, 3+v), append(x.Ready, 4), append(x.Lent, 2*v)
			x.P99, x.Headroom = append(x.P99, p99), append(x.Headroom, 1-p99)
		}
	}
	r.Spans = sim.Spans{FromS: 0, ToS: 3600, List: []sim.Span{
		{GPU: 0, Start: 0, Width: 1, FromS: 0, ToS: 3600, Phase: arbiter.Ready, Who: name}, {GPU: 0, Start: 1, Width: 1, FromS: 0, ToS: 1200, Phase: arbiter.Asleep, Who: name},
		{GPU: 0, Start: 1, Width: 1, FromS: 1200, ToS: 1204, Phase: arbiter.Loading, Who: name}, {GPU: 1, Start: 0, Width: 7, FromS: 40, ToS: 600, Phase: arbiter.JobRuns, Who: name},
	}}
	if policy != study.Static {
		r.Caused = []sim.Cause{{Model: name, Requests: 600}, {Model: "code", Requests: 400, Gross: 1, Net: 1, GrossPer: 250, NetPer: 250}, {Requests: 1000, Gross: 1, Net: 1, GrossPer: 100, NetPer: 100}}
	}
	return r
}

// sample is a study of two policies and the pilot with two seeds.
func sample(name string) *study.Study {
	s := &study.Study{Schema: study.Schema, Modelled: study.Modelled, Scenario: name, ToH: 1, Seeds: []uint64{1, 2}, Policies: []string{"static", "ours", "pilot"},
		Variants: []study.Variant{{Name: study.AsIs, Config: json.RawMessage(`{"name":` + quoted(name) + `,"cluster":{"gpus":2}}`)}},
		Started:  time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC), Elapsed: 3.2, Notes: []string{name + ": 3 copies, time 1.02 times as fast"}}
	s.Tool.Commit = "abc"
	for _, seed := range s.Seeds {
		for i, p := range s.Policies {
			s.Runs = append(s.Runs, sampleRun(name, p, seed, 0.6+0.1*float64(i)+0.01*float64(seed)))
		}
	}
	return s
}

func quoted(s string) string {
	text, _ := json.Marshal(s)
	return string(text)
}

// pages are all kinds of page about one name.
func pages(t testing.TB, name string) map[string]string {
	t.Helper()
	what, better, bound, crowded := sample(name), sample(name), sample(name), sample(name)
	what.Variants = append(what.Variants, study.Variant{Name: name + ": cluster.gpus=4"})
	for _, r := range sample(name).Runs {
		r.Variant = name + ": cluster.gpus=4"
		what.Runs = append(what.Runs, r)
	}
	for i := range better.Runs {
		better.Runs[i].Aloft += 0.1
	}
	better.Variants[0].Config = json.RawMessage(`{"name":` + quoted(name) + `,"cluster":{"gpus":3}}`)
	bound.Runs = append(bound.Runs, study.Run{Variant: study.AsIs, Result: sim.Result{Scenario: name, Policy: "bound", Seed: 1, Slices: 14, HorizonS: 3600, Aloft: 1}})
	bound.Policies = append(bound.Policies, "bound")
	crowded.Runs[0].Spans.List = nil
	for i := range 3 * maxSpans {
		crowded.Runs[0].Spans.List = append(crowded.Runs[0].Spans.List, sim.Span{GPU: i % 20, Start: i % 7, Width: 1, FromS: float64(i), ToS: float64(i + 20), Phase: arbiter.JobRuns, Who: name})
	}
	crowded.Runs[0].Spans.LeftOut = 7
	out := map[string]string{}
	for kind, write := range map[string]func(b *strings.Builder) error{
		"study":     func(b *strings.Builder) error { return Write(b, sample(name)) },
		"what-if":   func(b *strings.Builder) error { return Write(b, what) },
		"bound":     func(b *strings.Builder) error { return Write(b, bound) },
		"crowded":   func(b *strings.Builder) error { return Write(b, crowded) },
		"nothing":   func(b *strings.Builder) error { return Write(b, &study.Study{Scenario: name}) },
		"compare":   func(b *strings.Builder) error { return Compare(b, sample(name), better) },
		"different": func(b *strings.Builder) error { return Compare(b, sample(name), &study.Study{Scenario: name}) },
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
	got, path := pages(t, "chat")["study"], filepath.Join("testdata", "study.golden.html")
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
		t.Errorf("the page differs from %s; look at it, then go test ./sim/page -update", path)
	}
}

func TestSelfContainedAndEscaped(t *testing.T) { suite.SelfContained(t, pages(t, suite.Hostile)) }

func TestAccessible(t *testing.T) { suite.Accessible(t, pages(t, "chat"), "nothing", "different") }

func TestWhatPagesSay(t *testing.T) {
	all := pages(t, "chat")
	for kind, want := range map[string][]string{
		"study":     {"Simulated: no GPU was used", "no request was sent", "ours: aloft ratio 0.715, 1.163 × static; 100.0 misses caused by lending", "code, seed 1", "Slices over time shows hours 0 to 1.000. Point", "bound_broken", "3 copies, time 1.02"},
		"what-if":   {"What if", "chat: cluster.gpus=4"},
		"crowded":   {"of the first 8 of 20 GPUs", "spans are left out"},
		"nothing":   {"Nothing was simulated"},
		"compare":   {"B is better in 3 and worse in 0", "config.cluster.gpus", "aloft_ratio"},
		"different": {`class="verdict bad" role="alert"`, "NOTHING WAS COMPARED"},
	} {
		for _, w := range want {
			if !strings.Contains(all[kind], w) {
				t.Errorf("%s does not say %q", kind, w)
			}
		}
	}
}

// What is left out is counted: 3,600 spans over 20 GPUs, of which 8 are drawn, each
// with 180 spans: 1,440, of which the first 1,200 in time are.
func TestGanttBound(t *testing.T) {
	text := pages(t, "chat")["crowded"]
	// 3,600 in all, 1,200 drawn or fewer where the cut leaves nothing of one, 7 left out before.
	at := strings.Index(text, " spans are left out")
	n := 0
	if _, err := fmt.Sscan(text[strings.LastIndex(text[:at], " ")+1:at], &n); err != nil || n < 2407 || n > 2427 {
		t.Errorf("%d spans are left out (%v), want 3,600 − 1,200 + 7 and a few that the cut leaves empty", n, err)
	}
	if rects := strings.Count(text, ` for chat</title>`); rects > maxSpans*2 {
		t.Errorf("%d spans are drawn", rects)
	}
}
