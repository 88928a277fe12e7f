package search

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"aloft/loadgen"
	"aloft/loadgen/arrivals"
)

func base(seed uint64, kind arrivals.Kind) loadgen.Options {
	return loadgen.Options{Name: "model", Seed: seed, Drain: 2 * time.Second, WarmUp: 2 * time.Second, Workloads: []loadgen.Workload{{
		Name: "a", Kind: loadgen.Embeddings, URL: "http://127.0.0.1:1", Model: "m",
		Phases: []arrivals.Phase{{Name: "p", Duration: time.Second, Process: arrivals.Process{Kind: kind, Rate: 8}}},
	}}}
}

func slo(t testing.TB, text string) SLO {
	t.Helper()
	s, err := ParseSLO(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// knees: in M/M/1 the time in the system is exponential with rate μ-λ, so that
// the share within B is 1-exp(-(μ-λ)B), which is 0.99 at λ = μ + ln(0.01)/B. Those of M/D/c
// and of evenly spaced arrivals are the rates at which a long run of the model
// itself has that share (TestKneeOfModels).
var knees = []struct {
	name  string
	model model
	kind  arrivals.Kind
	slo   string
	knee  float64
}{
	{"M/M/1", model{servers: 1, serve: exponential(100)}, arrivals.Poisson, "e2e_p99<=100ms", 100 + math.Log(0.01)/0.1},
	{"M/D/4", model{servers: 4, serve: fixed(0.02)}, arrivals.Poisson, "e2e_p99<60ms", 152.4},
}

// The knees of M/D/c above, by brute force.
func TestKneeOfModels(t *testing.T) {
	for _, k := range knees {
		share := func(rate float64) float64 {
			plan := draw(1, arrivals.Phase{Duration: time.Duration(1e6 / rate * float64(time.Second)), Process: arrivals.Process{Kind: k.kind, Rate: rate}}, 0)
			n, good := 0, 0
			for _, d := range k.model.serveAll(plan, rand.New(rand.NewPCG(1, 1)), slo(t, k.slo).Clauses[0].Bound) {
				n++
				if d.outcome == loadgen.OK {
					good++
				}
			}
			return float64(good) / float64(n)
		}
		if below, above := share(k.knee*0.985), share(k.knee*1.015); below < 0.99 || above > 0.99 {
			t.Errorf("%s: attainment is %.4f and %.4f at 1.5 %% below and above %.2f/s: not the knee", k.name, below, above, k.knee)
		}
	}
}

// The interval covers the knee in at least the promised share of seeds, is not
// wider than it has to be, and no search passes its limit.
func TestFindCoversTheKnee(t *testing.T) {
	seeds := uint64(200)
	if testing.Short() {
		seeds = 20
	}
	for _, k := range knees {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			covered, found, width, runs := 0, 0, 0.0, 0
			for seed := range seeds {
				synctest.Test(t, func(t *testing.T) {
					m := k.model
					o := Options{Base: base(seed, k.kind), SLO: slo(t, k.slo), Run: m.run, Limit: 2 * time.Hour}
					a, err := Find(t.Context(), o)
					if err != nil {
						t.Fatalf("seed %d: %v", seed, err)
					}
					if a.Stopped == Found {
						found++
						width += math.Log(a.High / a.Low)
					}
					runs += m.runs
					if a.Low <= k.knee && (a.High == 0 || k.knee <= a.High) {
						covered++
					} else {
						t.Logf("seed %d: %.2f to %.2f (%s), knee %.2f", seed, a.Low, a.High, a.Stopped, k.knee)
					}
				})
			}
			t.Logf("covered %d, found %d of %d; mean width %.3f, mean runs %.1f", covered, found, seeds, width/float64(found), float64(runs)/float64(seeds))
			if covered*100 < int(seeds)*95 {
				t.Errorf("%d of %d intervals cover the knee, want 95 %%", covered, seeds)
			}
			if found < int(seeds)*9/10 {
				t.Errorf("%d of %d searches found an end", found, seeds)
			}
			if w := width / float64(found); w > 0.6 {
				t.Errorf("the interval is %.0f %% wide in the mean, want at most 60 %%", 100*w)
			}
		})
	}
}

// find searches a model in virtual time.
func find(t *testing.T, m *model, o Options) (a Answer, err error) {
	t.Helper()
	o.Run = m.run
	synctest.Test(t, func(t *testing.T) { a, err = Find(t.Context(), o) })
	return a, err
}

// Far from the knee a run ends at one of the early looks; on both sides.
func TestFindStopsEarlyWhereItIsClear(t *testing.T) {
	m := &model{servers: 1, serve: exponential(1000)}
	b := base(1, arrivals.Poisson)
	a, err := find(t, m, Options{Base: b, SLO: slo(t, "e2e_p99<50ms"), Limit: 2 * time.Hour})
	if err != nil || a.Stopped != Found {
		t.Fatalf("%v, %s", err, a.Stopped)
	}
	early := 0
	for _, p := range a.Points {
		t1 := p.Tries[0]
		if p.Rate > 100 && p.Rate < 700 || p.Rate > 1200 {
			if early++; !t1.Early || t1.Took > t1.Window/2+3 {
				t.Errorf("%.0f/s took %.1f s of a window of %.1f s: %s, %s, %v", p.Rate, t1.Took, t1.Window, p.Verdict, p.Reason, p.Evidence)
			}
		}
		for i, x := range p.Tries {
			if i > 0 && x.Early {
				t.Errorf("%.0f/s: repeat %d ended early", p.Rate, i)
			}
		}
	}
	if early < 3 {
		t.Errorf("only %d rates were clear", early)
	}
}

// A server that answers each request quickly enough for now but falls behind
// fails, though every request attains.
func TestFindSeesTheGrowingQueue(t *testing.T) {
	m := &model{servers: 1, serve: fixed(0.01)}
	b := base(1, arrivals.Constant)
	b.Workloads[0].Phases[0].Process.Rate = 103
	a, err := find(t, m, Options{Base: b, SLO: slo(t, "e2e_p99<60s"), Limit: 2 * time.Hour, Min: 40, Max: 150})
	if err != nil || a.Stopped != Found {
		t.Fatalf("%v, %s", err, a.Stopped)
	}
	if a.Low > 100 || a.High < 100 || a.High > 106 {
		t.Errorf("the knee lies between %.2f and %.2f, want 100", a.Low, a.High)
	}
	for _, p := range a.Points {
		if p.Rate > 102 && p.Reason != Growing {
			t.Errorf("%.1f/s: %s, %s, growth %.2f ± %.2f", p.Rate, p.Verdict, p.Reason, p.Growth, p.GrowthError)
		}
	}
}

// Whatever the limit, a search is over when it is, and says so.
func TestFindKeepsToItsLimit(t *testing.T) {
	for _, limit := range []time.Duration{time.Second, 64 * time.Second, time.Minute, 5 * time.Minute, 20 * time.Minute} {
		m := &model{servers: 1, serve: exponential(100)}
		began := time.Duration(0)
		var a Answer
		synctest.Test(t, func(t *testing.T) {
			from := time.Now()
			var err error
			if a, err = Find(t.Context(), Options{Base: base(3, arrivals.Poisson), SLO: slo(t, "e2e_p99<100ms"), Limit: limit, Run: m.run}); err != nil {
				t.Fatal(err)
			}
			began = time.Since(from)
		})
		if began > limit || a.Elapsed > limit.Seconds() {
			t.Errorf("limit %v: took %v", limit, began)
		}
		if a.Stopped != TimeUp && a.Stopped != Found || a.Stopped == TimeUp && a.Note == "" {
			t.Errorf("limit %v: %s, %q", limit, a.Stopped, a.Note)
		}
		if limit == time.Second && (m.runs != 0 || a.Stopped != TimeUp) {
			t.Errorf("a limit below one window began %d runs", m.runs)
		}
	}
}

// A generator that falls behind is not taken for a server that does.
func TestFindDoesNotBlameTheServer(t *testing.T) {
	lag := func(rate float64) float64 {
		if rate > 30 {
			return 25
		}
		return 0.2
	}
	m := &model{servers: 1, serve: exponential(100), lag: lag}
	a, err := find(t, m, Options{Base: base(1, arrivals.Poisson), SLO: slo(t, "e2e_p99<100ms"), Limit: time.Hour})
	if !errors.Is(err, ErrGenerator) || !strings.Contains(err.Error(), "send lag p99 is 25.00 ms, more than 1.00 ms") {
		t.Errorf("error %v", err)
	}
	if a.Stopped != Broken || a.Low != 16 || a.High != 0 || a.Certainty != 0 {
		t.Errorf("stopped %s with %v to %v", a.Stopped, a.Low, a.High)
	}
	if last := a.Points[len(a.Points)-1]; len(last.Tries) != 2 || last.Tries[0].Discarded == "" || last.Verdict != Open || last.Reason != Unsent {
		t.Errorf("the last rate is %+v", last)
	}
	// A single hiccup costs one run.
	once := true
	m = &model{servers: 1, serve: exponential(100), lag: func(float64) float64 {
		if once {
			once = false
			return 25
		}
		return 0
	}}
	if a, err = find(t, m, Options{Base: base(1, arrivals.Poisson), SLO: slo(t, "e2e_p99<100ms"), Limit: 2 * time.Hour}); err != nil || a.Stopped != Found {
		t.Errorf("after a hiccup: %v, %s", err, a.Stopped)
	}
}

func TestFindEnds(t *testing.T) {
	quick := func() *model { return &model{servers: 1, serve: exponential(100)} }
	o := Options{Base: base(1, arrivals.Poisson), SLO: slo(t, "e2e_p99<100ms"), Limit: 2 * time.Hour}
	low := o
	low.SLO = slo(t, "e2e_p99<1us")
	low.Min = 4
	if a, err := find(t, quick(), low); err != nil || a.Stopped != BelowMin || a.Low != 0 || a.High != 4 {
		t.Errorf("a bound that no rate holds: %v, %s, %v to %v", err, a.Stopped, a.Low, a.High)
	}
	high := o
	high.Max = 20
	if a, err := find(t, quick(), high); err != nil || a.Stopped != AboveMax || a.Low != 20 || a.High != 0 || a.Windows != 3 {
		t.Errorf("a highest rate that holds: %v, %s, %v to %v in %d windows", err, a.Stopped, a.Low, a.High, a.Windows)
	}
	// Ended from outside in its first run: no rate was measured.
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second+time.Millisecond)
		defer cancel()
		m := quick()
		o.Run = m.run
		a, err := Find(ctx, o)
		if err != nil || a.Stopped != Interrupted || len(a.Points) != 0 || a.Elapsed > 101 {
			t.Errorf("%v, %s after %.0f s with %d points", err, a.Stopped, a.Elapsed, len(a.Points))
		}
	})
	broken := errors.New("nobody listens")
	o.Run = func(context.Context, loadgen.Options) (*loadgen.Report, error) { return nil, broken }
	if _, err := Find(t.Context(), o); !errors.Is(err, broken) {
		t.Errorf("error %v, want that of the run", err)
	}
}

// The same seed gives the same answer, and no two runs share one.
func TestFindReplays(t *testing.T) {
	o := Options{Base: base(9, arrivals.Poisson), SLO: slo(t, "e2e_p99<100ms"), Limit: 2 * time.Hour}
	text := func() string {
		a, err := find(t, &model{servers: 1, serve: exponential(100)}, o)
		if err != nil {
			t.Fatal(err)
		}
		seeds := map[uint64]bool{}
		runs := 0
		for _, p := range a.Points {
			for _, x := range p.Tries {
				seeds[x.Seed] = true
				runs++
			}
		}
		if len(seeds) != runs {
			t.Errorf("%d seeds in %d runs", len(seeds), runs)
		}
		var b strings.Builder
		if err := json.NewEncoder(&b).Encode(&a); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	if a, b := text(), text(); a != b {
		t.Error("two searches with one seed differ")
	}
}
