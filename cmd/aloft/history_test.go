package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"aloft/arbiter"
	"aloft/gpu"
)

func testHistory(t *testing.T, dir string, now time.Time) *history {
	t.Helper()
	h, err := openHistory(dir, now, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// balance is a ledger of total slice-seconds, of which so much was useful to
// jobs and the rest warm reserve.
func balance(total, job, queued float64) arbiter.Balance {
	return arbiter.Balance{Total: total, Share: map[arbiter.Account]float64{arbiter.JobUseful: job / total, arbiter.WarmReserve: 1 - job/total},
		Queue: map[arbiter.Cause]float64{arbiter.ByShape: queued}}
}

// What the ledger sums up goes to the hour in which it happened, and a restart
// goes on with it.
func TestHistory(t *testing.T) {
	dir := t.TempDir()
	noon := time.Date(2026, 11, 30, 12, 59, 50, 0, time.UTC)
	h := testHistory(t, dir, noon)
	lent := arbiter.Slice{Slice: gpu.Slice{Shape: gpu.Shape{ComputeSlices: 2}}, Phase: arbiter.JobRuns, Job: "j"}
	v := arbiter.View{Policy: arbiter.Policy{Mode: arbiter.ModeLend}, Snapshot: arbiter.Snapshot{GPUs: make([]arbiter.GPU, 2), Slices: []arbiter.Slice{lent, {Phase: arbiter.Ready}},
		Models: []arbiter.Model{{Max: 2}}}}
	for _, s := range []struct {
		after time.Duration
		b     arbiter.Balance
	}{
		{0, balance(20, 5, 1)},
		{4 * time.Second, balance(30, 12, 1.5)}, // in 12:00: 10 slice-s more, 7 of them of jobs
		{14 * time.Second, balance(60, 22, 3)},  // in 13:00: 30 more, 10 of them of jobs, 20 reserve
		{15 * time.Second, balance(3, 3, 0)},    // a ledger that begins again
	} {
		v.Balance = s.b
		h.sample(noon.Add(s.after), v)
	}
	move := func(a arbiter.Action, outcome string, took time.Duration) {
		h.record(arbiter.Record{Time: noon.Add(11 * time.Second), Outcome: outcome, Took: took,
			Move: arbiter.Move{Action: a, Reason: arbiter.NeedsMore, Bound: 8 * time.Second}})
	}
	move(arbiter.Reclaim, "", 0)
	move(arbiter.Reclaim, "done", 2*time.Second)
	move(arbiter.Reclaim, "done", 4*time.Second)
	move(arbiter.Reclaim, "bound_broken", 10*time.Second)
	move(arbiter.Lend, "done", time.Second)
	move(arbiter.Lend, "failed", time.Second)
	move(arbiter.Lend, "observed", 0)
	end := noon.Add(20 * time.Second)
	if err := h.save(end); err != nil {
		t.Fatal(err)
	}
	for what, h := range map[string]*history{"before": h, "after a restart": testHistory(t, dir, end)} {
		hours := h.since(noon)
		if len(hours) != 2 || hours[0].Start.Hour() != 12 || hours[1].Start.Hour() != 13 {
			t.Fatalf("%s: hours %+v", what, hours)
		}
		a, b := hours[0], hours[1]
		for name, got := range map[string][2]float64{
			"jobs, 12:00": {a.SliceS[arbiter.JobUseful], 5 + 7}, "reserve, 12:00": {a.SliceS[arbiter.WarmReserve], 15 + 3},
			"jobs, 13:00": {b.SliceS[arbiter.JobUseful], 10 + 3}, "reserve, 13:00": {b.SliceS[arbiter.WarmReserve], 20},
			"queued, 12:00": {a.QueuedS[arbiter.ByShape], 1.5}, "queued, 13:00": {b.QueuedS[arbiter.ByShape], 1.5},
			"seconds": {a.Seconds + b.Seconds, 4 + 11}, "GPUs": {b.GPUS, 22},
			"lent":   {b.LentS, 22},   // two compute slices for 11 s
			"gained": {b.GainedS, 22}, // a static split leaves the job none of 2 slices, which have 3 compute slices
			"kept":   {float64(b.Kept), 2}, "broken": {float64(b.Broken), 1}, "bound": {b.Bound, 8}, "worst": {b.Worst, 1.25},
			"loans": {float64(b.Loans), 1}, "failed": {float64(b.Failed), 1},
		} {
			if math.Abs(got[0]-got[1]) > 1e-9 {
				t.Errorf("%s: %s is %v, want %v", what, name, got[0], got[1])
			}
		}
		if got := fmt.Sprint(b.Moves); got != "map[observed/lend/needs_more:1 reclaim/needs_more:1]" {
			t.Errorf("%s: decisions %s", what, got)
		}
		for q, want := range map[float64]float64{0.33: 2, 0.5: 4, 0.99: 10} {
			if got := quantile(b.Reclaims, q); math.Abs(got/want-1) > 0.05 {
				t.Errorf("%s: quantile %v of 2, 4 and 10 s is %v", what, q, got)
			}
		}
	}
}

// The history is bounded, on disk too, and a damaged day does not stop a server.
func TestHistoryBound(t *testing.T) {
	dir := t.TempDir()
	now := time.Date(2026, 11, 30, 0, 1, 0, 0, time.UTC)
	for name, text := range map[string]string{
		"2026-08-31.json": `[{"start":"2026-08-31T23:00:00Z","seconds":5}]`, // 90 days and an hour ago
		"2026-09-02.json": `[{"start":"2026-09-02T00:00:00Z","seconds":7}]`,
		"2026-11-29.json": `[{"start":`, "note.txt": "",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h := testHistory(t, dir, now)
	if got := h.since(time.Time{}); len(got) != 1 || got[0].Seconds != 7 {
		t.Errorf("kept %+v, want the one of 2 September", got)
	}
	h.sample(now.Add(-time.Minute), arbiter.View{Balance: balance(1, 1, 0)}) // midnight has just passed
	h.sample(now.Add(-61*time.Second), arbiter.View{Balance: balance(2, 1, 0)})
	if err := h.save(now); err != nil {
		t.Fatal(err)
	}
	for name, there := range map[string]bool{"2026-08-31.json": false, "2026-09-02.json": true, "2026-11-29.json": true,
		"2026-11-29.json.damaged": true, "2026-11-30.json": true, "note.txt": true} {
		if _, err := os.Stat(filepath.Join(dir, name)); errors.Is(err, fs.ErrNotExist) == there {
			t.Errorf("%s is there: %v", name, !there)
		}
	}
}

func TestGains(t *testing.T) {
	slice := func(n int, phase arbiter.Phase, job string) (out []arbiter.Slice) {
		for range n {
			out = append(out, arbiter.Slice{Phase: phase, Job: job})
		}
		return out
	}
	world := func(parts ...[]arbiter.Slice) (out []arbiter.Slice) {
		for _, p := range parts {
			out = append(out, p...)
		}
		return out
	}
	waits, some := []arbiter.Job{{MaxWidth: 9}}, []arbiter.Job{{MaxWidth: 1}}
	half := gpu.Shape{Profile: "3g.40gb", ComputeSlices: 3, MemorySlices: 4}
	halves := slice(2, arbiter.JobRuns, "j")
	for i := range halves {
		halves[i].Shape = half
	}
	for _, c := range []struct {
		name           string
		mode           arbiter.Mode
		slices         []arbiter.Slice
		static, max    int
		jobs           []arbiter.Job
		lendable       int
		gained, missed float64
	}{
		{"four run where two are theirs", arbiter.ModeLend, world(slice(4, arbiter.JobRuns, "j"), slice(3, arbiter.Ready, "")), 5, 7, waits, 4, 2, 0},
		{"no static share is set", arbiter.ModeLend, world(slice(4, arbiter.JobRuns, "j"), slice(3, arbiter.Ready, "")), 0, 7, waits, 4, 4, 0},
		{"one only starts", arbiter.ModeLend, world(slice(1, arbiter.JobStart, "j"), slice(6, arbiter.Ready, "")), 0, 7, waits, 4, 0, 0},
		{"broken ones are nobody's", arbiter.ModeLend, world(slice(4, arbiter.JobRuns, "j"), slice(3, arbiter.Unhealthy, "")), 4, 4, waits, 4, 4, 0},
		{"a pilot run", arbiter.ModeObserve, world(slice(1, arbiter.JobRuns, "j"), slice(6, arbiter.Ready, "")), 6, 7, waits, 4, 0, 3},
		{"a pilot run with few jobs", arbiter.ModeObserve, slice(7, arbiter.Ready, ""), 6, 7, some, 4, 0, 1},
		{"a pilot run without jobs", arbiter.ModeObserve, slice(7, arbiter.Ready, ""), 6, 7, nil, 4, 0, 0},
		// 7 compute slices, of which all three are the model's and 6 run jobs; and one of 3 that a job wants, of 6 lendable with none lent.
		{"slices of two sizes count by their size", arbiter.ModeLend, world(halves, slice(1, arbiter.Ready, "")), 3, 3, waits, 6, 6, 0},
		{"so does what could be lent", arbiter.ModeObserve, slice(7, arbiter.Ready, ""), 4, 4, []arbiter.Job{{MaxWidth: 1, Needs: half}}, 6, 0, 3},
		{"nothing at all", arbiter.ModeObserve, nil, 6, 7, waits, 4, 0, 0},
	} {
		v := arbiter.View{Policy: arbiter.Policy{Mode: c.mode}, Plan: arbiter.Plan{Needs: map[string]arbiter.Numbers{"m": {Lendable: c.lendable}}},
			Snapshot: arbiter.Snapshot{Slices: c.slices, Jobs: c.jobs, Models: []arbiter.Model{{Max: c.max, Limits: arbiter.Limits{Static: c.static}}}}}
		if g, m := gains(v); g != c.gained || m != c.missed {
			t.Errorf("%s: gained %v, missed %v, want %v and %v", c.name, g, m, c.gained, c.missed)
		}
	}
}

func TestReport(t *testing.T) {
	r := report([]hour{
		{Seconds: 3600, GPUS: 3600, FragS: 360, LentS: 7200, GainedS: 3600, Loans: 3, Kept: 98, Bound: 6, Worst: 0.5, Reclaims: map[int]int{classOf(2 * time.Second): 98},
			SliceS:  map[arbiter.Account]float64{arbiter.ServingUseful: 3600 * 2, arbiter.JobUseful: 3600 * 3, arbiter.WarmReserve: 3600 * 2},
			QueuedS: map[arbiter.Cause]float64{arbiter.ByPolicy: 900, arbiter.ByShape: 300}, Moves: map[string]int{"lend/surplus": 3}},
		{Seconds: 1800, GPUS: 1800, Kept: 1, Broken: 1, Bound: 5, Worst: 1.2, MissedS: 1800, Failed: 1, Reclaims: map[int]int{classOf(2 * time.Second): 1, classOf(7 * time.Second): 1},
			SliceS: map[arbiter.Account]float64{arbiter.FreeEmpty: 1800 * 7, arbiter.JobUseful: -100}, Moves: map[string]int{"observed/lend/surplus": 2, "lend/surplus": 1}},
	}, 2)
	sum := 0.0
	for _, e := range r.Ledger {
		sum += e.Share
	}
	// 37,800 slice-s less the 100 of a loss that came an hour late.
	if math.Abs(sum-1) > 1e-12 || len(r.Ledger) != len(arbiter.Accounts) || r.SliceS != 37700 {
		t.Errorf("shares sum to %v over %d accounts, %v slice-s", sum, len(r.Ledger), r.SliceS)
	}
	r.Since, r.Until, r.Mode = time.Date(2026, 11, 30, 12, 0, 0, 0, time.Local), time.Date(2026, 11, 30, 13, 30, 0, 0, time.Local), "lend"
	var b strings.Builder
	r.draw(&b)
	want := strings.TrimPrefix(`
2026-11-30 12:00 to 2026-11-30 13:30, mode lend
observed 1h30m0s; aloft ratio 47.5 %; fragmentation 6.7 %

serving_useful   19.1 %       2.00 slice-h  ######                              0.57 USD
`, "\n")
	if !strings.HasPrefix(b.String(), want) {
		t.Errorf("report:\n%s\nwant it to begin\n%s", b.String(), want)
	}
	for _, want := range []string{
		"jobs queued by cause: capacity 0.00 job-h (0 %), shape 0.08 job-h (25 %), policy 0.25 job-h (75 %)\n",
		"reclaims: 99 kept, 1 broken (incidents); p50 2.05 s, p99 2.05 s, largest bound 6.0 s, the slowest took 120 % of its own\n",
		"lending: 3 loans, 2.00 slice-h lent; against a static split about 1.00 slice-h more for jobs (9.5 %)\n",
		"mode lend could have lent about 0.50 slice-h more (4.8 %), less what going out and back costs\n",
		"moves that failed: 1 (aloft why says which)\n",
		"cost: 3.00 USD for 1.5 GPU-h at 2.00 USD; useful 1.42 USD, so 4.21 USD a useful GPU-hour; lending gained 0.29 USD worth\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("not in the report: %s\n%s", want, b.String())
		}
	}
	if got := fmt.Sprint(r.Moves); got != "[{lend surplus false 4} {lend surplus true 2}]" {
		t.Errorf("decisions %s", got)
	}
	for line := range strings.Lines(b.String()) {
		if len(line) > 140 {
			t.Errorf("%d characters: %s", len(line), line)
		}
	}
	empty := report(nil, 0)
	b.Reset()
	if empty.draw(&b); !strings.Contains(b.String(), "nothing is recorded of that time") {
		t.Errorf("of nothing: %s", b.String())
	}
}
