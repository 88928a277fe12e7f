package search

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
	"time"

	"aloft/loadgen"
)

// ErrGenerator means that the generator, not the server, was at its end: what it
// sent was not what was planned, so that the rates say nothing about the server.
var ErrGenerator = errors.New("the generator did not keep to its plan")

// errClear ends a run whose rate is judged before its window is over.
var errClear = errors.New("the rate is clear")

// Try is one run.
type Try struct {
	Run      int     `json:"run"` // counted from 1
	Rate     float64 `json:"rate_per_s"`
	Seed     uint64  `json:"seed"`
	Began    float64 `json:"began_s"` // after the start of it all
	Took     float64 `json:"took_s"`
	Window   float64 `json:"window_s"` // as planned
	Early    bool    `json:"ended_early"`
	Verdict  Verdict `json:"verdict"`
	Reason   Reason  `json:"reason"`
	Evidence `json:"evidence"`
	Figures  Figures `json:"figures"`
	// Discarded says why the run does not count: the generator failed.
	Discarded string `json:"discarded,omitempty"`
	// Report is the whole report, kept by sweeps.
	Report *loadgen.Report `json:"report,omitempty"`

	window  window
	clauses Reason
}

// Figures of one run over all workloads; milliseconds are the worst workload's.
type Figures struct {
	Achieved float64 `json:"achieved_per_s"`
	Good     float64 `json:"good_per_s"`
	Shed     int     `json:"shed"`
	Failed   int     `json:"failed"`
	E2E50    float64 `json:"e2e_p50_ms"`
	E2E99    float64 `json:"e2e_p99_ms"`
	TTFT50   float64 `json:"ttft_p50_ms,omitempty"`
	TTFT99   float64 `json:"ttft_p99_ms,omitempty"`
	TPOT99   float64 `json:"tpot_p99_ms,omitempty"`
	Lag99    float64 `json:"send_lag_p99_ms"`
}

func figuresOf(r *loadgen.Report) (f Figures) {
	for i := range r.Results {
		x := &r.Results[i]
		f.Achieved, f.Good = f.Achieved+x.Achieved, f.Good+x.Good
		f.Shed, f.Failed = f.Shed+x.Shed, f.Failed+x.Failed
		f.E2E50, f.E2E99, f.Lag99 = max(f.E2E50, x.P50), max(f.E2E99, x.P99), max(f.Lag99, x.SendLag.P99)
		if x.TTFT != nil {
			f.TTFT50, f.TTFT99 = max(f.TTFT50, x.TTFT.P50), max(f.TTFT99, x.TTFT.P99)
		}
		if x.TPOT != nil {
			f.TPOT99 = max(f.TPOT99, x.TPOT.P99)
		}
	}
	return f
}

// searcher is a search or a sweep under way.
type searcher struct {
	Options
	began  time.Time
	config json.RawMessage
	runs   int
	memory time.Duration // the longest that a queue was seen to remember
	whole  bool          // no window ends early
}

// searcher begins.
func (o Options) searcher() (*searcher, error) {
	config, err := o.Base.Config()
	if err != nil {
		return nil, fmt.Errorf("search: %w", err)
	}
	return &searcher{Options: o.withDefaults(), began: time.Now(), config: config}, nil
}

// watcher judges a run while it goes on. It is called by the run alone.
type watcher struct {
	o     Options
	to    time.Duration // the end of the window; it begins at 0, after the warm-up
	early bool
	end   func() // the run

	next int // of earlyLooks
	seen slice
	last time.Duration
	window
	out struct {
		clear   bool
		verdict Verdict
		reason  Reason
	}
}

// sample takes the figures so far.
func (w *watcher) sample(s loadgen.Snapshot) {
	if w.out.clear || s.Elapsed <= 0 || s.Elapsed > w.to {
		return
	}
	now := total(s.Results)
	w.slices = append(w.slices, slice{now.offered - w.seen.offered, now.ok - w.seen.ok})
	w.queue = append(w.queue, float64(s.InFlight))
	if n := len(w.queue); n > 1 {
		w.step = (w.step*time.Duration(n-2) + s.Elapsed - w.last) / time.Duration(n-1)
	}
	w.seen, w.last = now, s.Elapsed
	if !w.early || w.next == len(earlyLooks) || float64(s.Elapsed) < earlyLooks[w.next]*float64(w.to) {
		return
	}
	w.next++
	usual := slices.Clone(w.queue)
	sort.Float64s(usual)
	w.extra = max(0, float64(s.InFlight)-usual[len(usual)/2])
	e := weigh([]window{w.window}, w.o.Attain, w.o.Confidence)
	clauses := w.o.SLO.beside(s.Results, w.o.Attain)
	if clauses == ClauseMiss {
		clauses = Unclear // the quantiles of a part of a window are no grounds to end it
	}
	if v, why := e.judge(w.o.alpha(0), clauses); v != Open {
		w.out.clear, w.out.verdict, w.out.reason = true, v, why
		w.end()
	}
}

func total(results []loadgen.Result) (s slice) {
	for i := range results {
		s.offered, s.ok = s.offered+float64(results[i].Offered), s.ok+float64(results[i].OK)
	}
	return s
}

// most is the longest that a run at a rate may take.
func (s *searcher) most(rate float64) time.Duration {
	drain := s.Base.Drain
	if drain == 0 {
		drain = 10 * time.Second // as loadgen's own
	}
	return s.WarmUp + s.full(rate, s.memory) + drain
}

// left is the time that remains.
func (s *searcher) left() time.Duration { return s.Limit - time.Since(s.began) }

// try does one run. early lets it end as soon as the rate is clear. An error
// means that there is nothing to judge.
func (s *searcher) try(ctx context.Context, rate float64, early bool) (Try, error) {
	size := s.full(rate, s.memory)
	t := Try{Run: s.runs + 1, Rate: rate, Seed: seedOf(s.Base.Seed, s.runs), Window: size.Seconds(), Verdict: Open}
	s.runs++
	running, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := &watcher{o: s.Options, to: size, early: early, end: func() { cancel(errClear) }}
	opt, err := s.profile(rate, size, t.Seed)
	if err != nil {
		return t, err
	}
	if s.OnBegin != nil {
		s.OnBegin(t)
	}
	show := opt.OnSample
	opt.OnSample = func(n loadgen.Snapshot) {
		w.sample(n)
		if show != nil {
			show(n)
		}
	}
	began := time.Now()
	report, err := s.Run(running, opt)
	t.Began, t.Took = seconds(began.Sub(s.began)), seconds(time.Since(began))
	if err != nil {
		return t, fmt.Errorf("search: run %d at %.4g/s: %w", t.Run, rate, err)
	}
	if ctx.Err() != nil {
		return t, context.Cause(ctx)
	}
	if report.Interrupted && !w.out.clear {
		return t, fmt.Errorf("search: run %d at %.4g/s ended before its window did", t.Run, rate)
	}
	t.Report, t.Figures = report, figuresOf(report)
	t.window, t.Early = w.window, w.out.clear
	if !t.Early {
		all := total(report.Results) // with what was answered after the last sample
		t.window.extra = 0
		t.window.slices = append(t.window.slices, slice{all.offered - w.seen.offered, all.ok - w.seen.ok})
	}
	t.clauses = s.SLO.beside(report.Results, s.Attain)
	t.Evidence = weigh([]window{t.window}, s.Attain, s.Confidence)
	if t.Verdict, t.Reason = t.judge(s.alpha(1), t.clauses); t.Early {
		t.Verdict, t.Reason = w.out.verdict, w.out.reason
	}
	if t.Discarded = generatorFault(report); t.Discarded != "" {
		t.Verdict, t.Reason = Open, Unsent
	} else {
		s.memory = max(s.memory, time.Duration(t.Memory*float64(time.Second)))
	}
	return t, nil
}

func seconds(d time.Duration) float64 { return math.Round(d.Seconds()*1000) / 1000 }

// generatorFault says in which way the generator failed, as the report judges it
// (issue 4). Where requests waited for a slot and the CPU was not short, the
// server was slow: their wait is in their latency, and the lag is no fault.
func generatorFault(r *loadgen.Report) string {
	waited := slices.ContainsFunc(r.Results, func(x loadgen.Result) bool { return x.Waited*100 > x.Offered })
	if waited && r.Host.CPUShare < 0.9 {
		return ""
	}
	return strings.Join(r.Failed, "; ")
}
