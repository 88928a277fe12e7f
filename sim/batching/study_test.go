package batching

import (
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"aloft/loadgen/arrivals"
)

func source(t *testing.T, tr Traffic, open opener) *Source {
	t.Helper()
	s, err := NewSource(tr, open)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var tail = Traffic{Name: "tail", Kind: arrivals.Poisson, Lengths: HeavyTail()}

func near(t *testing.T, what string, got, want, by float64) {
	t.Helper()
	if math.Abs(got/want-1) > by {
		t.Errorf("%s is %v, want %v within %v", what, got, want, by)
	}
}

// Equal seeds give equal plans, others do not; rates, lengths, senders' shares and
// those that leave are as asked.
func TestTraffic(t *testing.T) {
	s := source(t, tail, nil)
	near(t, "mean length", s.Mean, 190, 0.03)
	near(t, "knee", Paper().Knee(s.Mean), knee, 0.03)
	mixed := tail
	mixed.Senders, mixed.Leaving, mixed.LeaveAfter = []Sender{{"quiet", 1. / 16}, {"flood", 15. / 16}}, 0.1, 20*ms
	s = source(t, mixed, nil)
	draw := func(seed uint64) *Drawn {
		d, err := s.Draw(3200, 5*time.Second, seed)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	a, again, b := draw(1), draw(1), draw(2)
	if a.Hashes[0] != again.Hashes[0] || a.Hashes[1] != again.Hashes[1] || a.Hashes[1] == b.Hashes[1] || a.Hashes[0] == a.Hashes[1] {
		t.Errorf("hashes %v, %v, %v", a.Hashes, again.Hashes, b.Hashes)
	}
	tenants, left, last := map[string]float64{}, 0.0, time.Duration(0)
	for _, q := range a.Requests {
		if q.At < last {
			t.Fatal("out of order")
		}
		last = q.At
		if tenants[q.Tenant]++; q.Leaves > 0 {
			left++
		}
	}
	near(t, "quiet", tenants["quiet"], 1000, 0.1)
	near(t, "flood", tenants["flood"], 15000, 0.03)
	near(t, "leaving", left, 1600, 0.1)
}

// A trace keeps its rows and is scaled to the rate.
func TestTraceTraffic(t *testing.T) {
	const csv = "TIMESTAMP,ContextTokens,GeneratedTokens\n" +
		"2023-11-16 18:15:46.0,100,1\n2023-11-16 18:15:47.0,200,1\n2023-11-16 18:15:49.0,300,1\n2023-11-16 18:15:50.0,400,1\n"
	open := func(string) (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(csv)), nil }
	s := source(t, Traffic{Name: "trace", Kind: arrivals.Replay, Trace: "x.csv", Copies: 1}, open)
	near(t, "mean length", s.Mean, 250, 1e-9)
	d, err := s.Draw(10, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Requests) != 4 || d.Requests[3].Tokens != 400 {
		t.Fatalf("%+v", d.Requests)
	}
	near(t, "last", d.Requests[3].At.Seconds(), 0.4, 0.01)
	if _, err := NewSource(Traffic{Name: "none", Kind: arrivals.Replay, Trace: "x.csv", Copies: 1}, nil); err == nil {
		t.Error("a trace that cannot be opened is no error")
	}
}

// All arms meet the same plans, equal seeds give equal findings, and the windows
// add up to the whole.
func TestCell(t *testing.T) {
	c := Cell{World: Paper(), Source: source(t, tail, nil), Load: 1.3, Lasts: 4 * time.Second, Seeds: []uint64{1, 2}, Search: []uint64{9}, Arms: []string{FixedArm, Tuned, Ours}}
	f, err := c.Do()
	if err != nil {
		t.Fatal(err)
	}
	again, err := c.Do()
	if err != nil {
		t.Fatal(err)
	}
	if f.Tuned != again.Tuned || f.Tuned.Timeout == 0 { // without a timeout nothing is in time beyond the knee
		t.Errorf("tuned to %+v, then to %+v", f.Tuned, again.Tuned)
	}
	if len(f.Plans) != 2 {
		t.Errorf("plans %v", f.Plans)
	}
	for _, arm := range c.Arms {
		for i, r := range f.Runs[arm] {
			var sum Window
			for _, w := range r.Windows {
				sum.Offered, sum.Good, sum.Busy, sum.Longest.Good = sum.Offered+w.Offered, sum.Good+w.Good, sum.Busy+w.Busy, sum.Longest.Good+w.Longest.Good
			}
			if sum.Share != r.Share || sum.Busy != r.Busy || sum.Longest.Good != r.Deciles[9].Good || r.Good+r.Late+r.Shed != r.Offered {
				t.Errorf("%s: windows %+v beside %+v", arm, sum, r.Outcome)
			}
			if r.Good != again.Runs[arm][i].Good || r.Offered != f.Runs[Ours][i].Offered {
				t.Errorf("%s: %d good of %d, then %d", arm, r.Good, r.Offered, again.Runs[arm][i].Good)
			}
			if float64(r.Good) > f.Bounds[i] {
				t.Errorf("%s: %d good, above the bound of %v", arm, r.Good, f.Bounds[i])
			}
		}
	}
	if best := f.Best(); best != Ours {
		t.Errorf("best is %s", best)
	}
	if v := f.Over(Ours, Tuned); !(v.Low <= v.Value && v.Value <= v.High && v.Low > 1) {
		t.Errorf("ours over tuned %+v", v)
	}
	same := f.PerGood(Ours, Ours)
	if same != (Interval{1, 1, 1}) {
		t.Errorf("an arm beside itself: %+v", same)
	}
}

// The grid has the settings that research section 4 asks for, and the search finds
// the one that is right for a world.
func TestTune(t *testing.T) {
	grid := Grid(target)
	seen := map[Fixed]bool{}
	for _, f := range grid {
		seen[f] = true
	}
	if len(seen) != 150 || !seen[Fixed{Size: 32, Delay: 5 * ms, Timeout: 50 * ms}] {
		t.Errorf("%d settings, or the usual one is missing", len(seen))
	}
	w := paper()
	some := []Fixed{{Size: 8, Timeout: 40 * ms}, {Size: 24, Timeout: 40 * ms}, {Size: 24}, {Size: 64, Timeout: 40 * ms}}
	a, b := poisson(1.2*knee, 5*time.Second, 11, ""), poisson(1.2*knee, 5*time.Second, 12, "")
	if got := Tune(w, some, a, b); got != some[1] {
		t.Errorf("tuned to %+v", got)
	}
}

func TestRatio(t *testing.T) {
	one := [][]float64{{1, 2, 3}, {4, 5, 6}}
	twice := [][]float64{{2, 4, 6}, {8, 10, 12}}
	if v := Ratio(one, twice); v != (Interval{0.5, 0.5, 0.5}) { // paired: no resampling changes it
		t.Errorf("a constant ratio: %+v", v)
	}
	even := [][]float64{{5, 5, 5}, {5, 5, 5}}
	if v := Ratio(one, even); v.Value != 0.7 || v.Low >= 0.6 || v.High <= 0.8 || v.Low < 0.2 || v.High > 1.2 {
		t.Errorf("a varying one: %+v", v)
	}
	if v := Quotient(one, even, twice, even); v != (Interval{0.5, 0.5, 0.5}) {
		t.Errorf("a quotient: %+v", v)
	}
	none := [][]float64{{0, 0}}
	if v := Ratio(none, none); v != (Interval{1, 1, 1}) {
		t.Errorf("nothing of nothing: %+v", v)
	}
}

// By hand: 1 replica, 10 ms + 1 ms a token, target 30 ms: at most 20 tokens a call,
// 1.5 ms a token. Until the last deadline at 40 ms after the first that counts
// there is room for 26 tokens: the three shortest.
func TestBound(t *testing.T) {
	w := paper()
	w.Replicas, w.Target, w.Warm = 1, 30*ms, 100*ms
	w.Law.AlphaMs, w.Law.BetaMsPerToken = 10, 1
	reqs := []Request{{At: 0, Tokens: 1}, {At: 100 * ms, Tokens: 10}, {At: 101 * ms, Tokens: 9}, {At: 105 * ms, Tokens: 6}, {At: 110 * ms, Tokens: 8}}
	if n := Bound(w, reqs); n != 3 {
		t.Errorf("bound %d, want 3", n)
	}
	w.Target = 10 * ms
	if n := Bound(w, reqs); n != 0 {
		t.Errorf("bound %d where no call is in time", n)
	}
}
