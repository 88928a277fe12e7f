package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"aloft/arbiter"
	"aloft/loadgen"
	"aloft/loadgen/arrivals"
	"aloft/sim"
	"aloft/sim/scenario"
)

// The demo's phases on timed engines: requests a second of each model. The burst
// is more than one replica does: of the encoder about 60 texts a second.
var predictionLegs = []struct {
	long         time.Duration
	texts, chats float64
}{{20 * time.Second, 15, 3}, {25 * time.Second, 100, 12}, {30 * time.Second, 15, 3}}

const (
	predictionJobs  = 8 // all submitted as the load begins, more than fit beside it
	predictionSteps = 100
	predictionPace  = 100 * time.Millisecond // of a step; its computing is far below that
	predictionPlan  = time.Second            // the arbiter's
	predictionOut   = 32                     // tokens of a chat answer
	predictionGrace = 5 * time.Second
	predictionSave  = 150 * time.Millisecond // of a training job, with the end of its process
	predictionWake  = 0.6                    // s, of a timed engine: 0.5 by its law
	// predictionRest is how long all replicas have been ready, with nothing to do, when
	// the load begins: longer than arbiter.hold, so that the surplus is old enough to be
	// lent. What was simulated is as long up before the load as the server was: begun
	// with the load, its first loans came 2 s later, from other models. In the burst the
	// encoder had two replicas instead of one, and p99 was half of what it was live.
	predictionRest = 5 * time.Second
	// Where between two plans the load begins is chance, and it decides which of two
	// models gets a slice back first, and when jobs end: p99 differs by 20 %, the end by
	// 30 %, on both sides. Each round begins elsewhere, evenly, and each is simulated for
	// so many.
	predictionPhases = 10
)

// prediction are the figures that live and simulated runs are compared in.
type prediction struct {
	encoder50, encoder99, tpot50, tpot99, ttft50, ttft99 float64 // ms
	aloft                                                float64
	finish, completion                                   float64 // s: of the last job, and the mean
	finished                                             int
	ready                                                [2]float64    // mean number of replicas
	back                                                 float64       // s, the median reclaim
	up                                                   time.Duration // of the server, when the load begins
}

// predictionHow is what stands above the table.
const predictionHow = "The demo's scenario (`cmd/bench/servers/prediction.yaml`: two models and %d training jobs on the 7 slices of a modelled GPU; a steady, a bursty and a calm phase) live with `aloft serve` on timed engines, %d times; " +
	"then each time's recorded requests simulated with the same settings. The simulation takes the median reclaim time from the live records, as `aloft tune` does, and nothing else. The load begins %.0f s after all replicas are ready, and what is simulated has been up for as long. " +
	"Where between two plans it begins is chance, and moves p99 by 20 %% and the end of jobs by 30 %%, on both sides: each live round begins elsewhere, evenly, and is simulated for %d such moments. Means over all, in brackets the extremes; *off* is that of the means. " +
	"First tokens are shown, not judged: a timed engine gives one at the end of the step that its prompt joined, after the step that ran when it came; the simulator, as the standard scenarios say, when the prompt is read."

// predictions lets the demo's scenario run live, records its requests, and
// simulates the same requests.
func predictions(ctx context.Context, l *lab) (*result, error) {
	rounds := 5
	if l.setRounds > 0 {
		rounds = l.setRounds
	} else if l.quick {
		rounds = 1
	}
	r := &result{title: "Prediction: the simulator beside the live server", how: fmt.Sprintf(predictionHow, predictionJobs, rounds, predictionRest.Seconds(), predictionPhases),
		head: []string{"figure", "live, timed engines", "simulated", "off, %"}}
	var live, said []prediction
	for i := range rounds {
		was, rows, took, err := l.predictionLive(ctx, predictionRest+predictionPlan*time.Duration(i)/time.Duration(rounds))
		if err != nil {
			return nil, err
		}
		live = append(live, was)
		for k := range predictionPhases {
			would, err := predictionSimulated(rows, was.up.Truncate(predictionPlan)+predictionPlan*time.Duration(k)/predictionPhases, took, was.back)
			if err != nil {
				return nil, err
			}
			said = append(said, would)
		}
		l.say("prediction: p50 %.0f ms, p99 %.0f ms, last job's end %.1f s live", was.encoder50, was.encoder99, was.finish)
	}
	line := func(name string, judged bool, of func(prediction) float64) {
		mean := func(ps []prediction) (mean float64, text string) {
			var v []float64
			for _, p := range ps {
				v, mean = append(v, of(p)), mean+of(p)/float64(len(ps))
			}
			s := spreadOf(v)
			return mean, fmt.Sprintf("%.3g (%.3g to %.3g)", mean, s.min, s.max)
		}
		a, was := mean(live)
		b, would := mean(said)
		off := 100 * math.Abs(b/a-1)
		r.row(name, was, would, fmt.Sprintf("%.1f", off))
		if judged {
			r.atMost(name+", simulated against live, % off", off, 10)
		}
	}
	line("p50 of an embedding, ms", true, func(p prediction) float64 { return p.encoder50 })
	line("p99 of an embedding, ms", true, func(p prediction) float64 { return p.encoder99 })
	line("p50 time per later token of a chat, ms", true, func(p prediction) float64 { return p.tpot50 })
	line("p99 time per later token of a chat, ms", true, func(p prediction) float64 { return p.tpot99 })
	line("p50 to the first token of a chat, ms", false, func(p prediction) float64 { return p.ttft50 })
	line("p99 to the first token of a chat, ms", false, func(p prediction) float64 { return p.ttft99 })
	line("aloft ratio", true, func(p prediction) float64 { return p.aloft })
	line("finish of the last job, s", true, func(p prediction) float64 { return p.finish })
	line("mean completion of a job, s", false, func(p prediction) float64 { return p.completion })
	line("jobs finished", false, func(p prediction) float64 { return float64(p.finished) })
	line("ready replicas of the encoder, mean", false, func(p prediction) float64 { return p.ready[0] })
	line("ready replicas of the language model, mean", false, func(p prediction) float64 { return p.ready[1] })
	return r, nil
}

// predictionStatus is what is read of /aloft/v1/status.
type predictionStatus struct {
	Slices []struct{ Phase, Model string }
	Ledger arbiter.Balance
}

// predictionLive runs the server, and returns what was measured and recorded. The
// load begins when all replicas have rested for so long.
func (l *lab) predictionLive(ctx context.Context, rest time.Duration) (out prediction, rows []arrivals.Record, took time.Duration, err error) {
	c, err := l.startServer(ctx, filepath.Join("cmd", "bench", "servers", "prediction.yaml"))
	if err != nil {
		return out, nil, 0, err
	}
	defer c.stop()
	var s predictionStatus
	ready := func() bool {
		if c.get(ctx, "/aloft/v1/status", &s) != nil {
			return false
		}
		n := 0
		for _, sl := range s.Slices {
			if sl.Phase == string(arbiter.Ready) {
				n++
			}
		}
		return n == 7
	}
	if err := c.await(ctx, "all replicas are ready", func() bool { time.Sleep(50 * time.Millisecond); return ready() }); err != nil {
		return out, nil, 0, err
	}
	if !pause(ctx, rest) || !ready() { // the ledger is read again
		return out, nil, 0, errors.New("the replicas do not stay ready")
	}
	if _, err := c.post(ctx, "/aloft/v1/recording", []byte(`{"on":true}`), nil); err != nil {
		return out, nil, 0, err
	}
	before, began := s.Ledger, time.Now()
	out.up = time.Since(c.began)
	ids, err := c.train(ctx)
	if err != nil {
		return out, nil, 0, err
	}
	done := make(chan []time.Duration, 1)
	watch, stop := context.WithCancel(ctx)
	go func() { done <- c.ends(watch, ids, began) }()
	counted := make(chan [2]float64, 1)
	go func() { counted <- c.readyMean(watch) }()
	report, err := loadgen.Run(ctx, predictionLoad(c.base))
	stop()
	ends := <-done
	out.ready = <-counted
	took = time.Since(began)
	if err != nil {
		return out, nil, 0, err
	}
	if !ready() && s.Ledger.Total == 0 { // only to read the ledger again
		return out, nil, 0, errors.New("the status cannot be read")
	}
	out.measured(report, before, s.Ledger)
	out.ended(ends, took)
	if out.back, err = c.reclaimTime(ctx); err != nil {
		return out, nil, 0, err
	}
	if _, err := c.post(ctx, "/aloft/v1/recording", []byte(`{"on":false}`), nil); err != nil {
		return out, nil, 0, err
	}
	rows, err = recorded(c.dir)
	return out, rows, took, err
}

// train submits the jobs.
func (c *child) train(ctx context.Context) (ids []string, err error) {
	for i := range predictionJobs {
		body := fmt.Appendf(nil, `{"template":"train-demo","params":{"steps":%d,"seed":%d,"pace_ms":%d}}`, predictionSteps, i+1, predictionPace.Milliseconds())
		answer, err := c.post(ctx, "/aloft/v1/jobs", body, nil)
		var j struct{ ID string }
		if err == nil {
			err = json.Unmarshal(answer, &j)
		}
		if err != nil {
			return nil, err
		}
		ids = append(ids, j.ID)
	}
	return ids, nil
}

// reclaimTime is the median of what reclaims took, as the server's own records
// have it. Without a reclaim it is that of the engine's law.
func (c *child) reclaimTime(ctx context.Context) (float64, error) {
	var list struct{ Data []arbiter.Record }
	if err := c.get(ctx, "/aloft/v1/decisions?limit=1000", &list); err != nil {
		return 0, err
	}
	var took []float64
	for _, r := range list.Data {
		if r.Move.Action == arbiter.Reclaim && r.Outcome == "done" {
			took = append(took, r.Took.Seconds())
		}
	}
	if len(took) == 0 {
		return predictionSave.Seconds() + predictionWake, nil
	}
	return spreadOf(took).median, nil
}

// ends polls jobs until all have ended or ctx is, and says when each did.
func (c *child) ends(ctx context.Context, ids []string, began time.Time) []time.Duration {
	var out []time.Duration
	for len(ids) > 0 && pause(ctx, 100*time.Millisecond) {
		var left []string
		for _, id := range ids {
			var j struct{ State string }
			if err := c.get(ctx, "/aloft/v1/jobs/"+id, &j); err == nil && (j.State == "succeeded" || j.State == "failed") {
				out = append(out, time.Since(began))
			} else {
				left = append(left, id)
			}
		}
		ids = left
	}
	return out
}

// readyMean samples how many replicas of each model are ready, until ctx ends.
func (c *child) readyMean(ctx context.Context) (mean [2]float64) {
	n := 0.0
	for pause(ctx, 200*time.Millisecond) {
		var s predictionStatus
		if c.get(ctx, "/aloft/v1/status", &s) != nil {
			continue
		}
		n++
		for _, sl := range s.Slices {
			if sl.Phase == string(arbiter.Ready) {
				mean[map[string]int{"encoder": 0, "lm": 1}[sl.Model]]++
			}
		}
	}
	return [2]float64{mean[0] / max(1, n), mean[1] / max(1, n)}
}

func predictionLoad(base string) loadgen.Options {
	// One phase with steps: its quantiles are over all of it.
	phases := func(of func(i int) float64) []arrivals.Phase {
		p := arrivals.Process{Kind: arrivals.Steps}
		for i, leg := range predictionLegs {
			p.Steps = append(p.Steps, arrivals.Step{Rate: of(i), For: leg.long})
		}
		return []arrivals.Phase{{Name: "all", Process: p}}
	}
	text := []string{strings.Repeat("a grounded aircraft costs by the hour whether it flies or not ", 4)}
	return loadgen.Options{Name: "prediction", Seed: 1, Drain: 10 * time.Second, Workloads: []loadgen.Workload{
		{Name: "embed", Kind: loadgen.Embeddings, URL: base, Model: "encoder", Content: loadgen.Content{Texts: text}, Goal: loadgen.Goal{Target: 2 * time.Second},
			Phases: phases(func(i int) float64 { return predictionLegs[i].texts })},
		{Name: "chat", Kind: loadgen.Chat, URL: base, Model: "lm", Content: loadgen.Content{Texts: text}, Stream: true, MaxTokens: predictionOut,
			Goal: loadgen.Goal{TTFTTarget: 1500 * time.Millisecond}, Phases: phases(func(i int) float64 { return predictionLegs[i].chats })},
	}}
}

func (p *prediction) measured(report *loadgen.Report, before, after arbiter.Balance) {
	for i := range report.Results {
		x := &report.Results[i]
		if x.Kind == loadgen.Embeddings {
			p.encoder50, p.encoder99 = x.P50, x.P99
		} else if x.TPOT != nil && x.TTFT != nil {
			p.tpot50, p.tpot99, p.ttft50, p.ttft99 = x.TPOT.P50, x.TPOT.P99, x.TTFT.P50, x.TTFT.P99
		}
	}
	p.aloft = (after.Aloft*after.Total - before.Aloft*before.Total) / (after.Total - before.Total)
}

// ended counts jobs; those that were not done count with their age.
func (p *prediction) ended(ends []time.Duration, took time.Duration) {
	p.finished = len(ends)
	for len(ends) < predictionJobs {
		ends = append(ends, took)
	}
	for _, e := range ends {
		p.finish = max(p.finish, e.Seconds())
		p.completion += e.Seconds() / predictionJobs
	}
}

// recorded reads the only recording below the data folder.
func recorded(dir string) ([]arrivals.Record, error) {
	files, err := filepath.Glob(filepath.Join(dir, "recordings", "*.jsonl"))
	if err != nil || len(files) != 1 {
		return nil, fmt.Errorf("recordings are %q, want one (%v)", files, err)
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		return nil, err
	}
	return arrivals.Read(bytes.NewReader(text), 0)
}

// predictionSimulated simulates the same machine, requests, jobs and settings.
// The load begins after a rest. The reclaim time is as measured live, as `aloft tune` would take it from the
// ledger: how long this machine's processes need to end and start is not what is
// predicted.
func predictionSimulated(rows []arrivals.Record, rest, took time.Duration, back float64) (out prediction, err error) {
	horizon := rest + took
	wake := scenario.Seconds(max(0.1, back-predictionSave.Seconds()))
	start := scenario.Start{WakeMedianS: wake, ColdMedianS: 2 * wake, Sigma: 0.05}
	s := &scenario.Scenario{Name: "prediction", HorizonH: scenario.Hours(horizon.Hours()), Seeds: []uint64{1},
		Cluster: scenario.Cluster{GPUs: 1, GPUModel: "A100-SXM4-80GB", ServerGPUs: 1, SliceShape: "1g.10gb", WholeShape: "7g.80gb", ReshapeS: 2, Serving: 7},
		Models: []scenario.Model{
			{Name: "encoder", Static: 4, Replicas: scenario.Replicas{Min: 1, Max: 4}, Start: start, SLO: scenario.SLO{TTFTS: 2}, Service: scenario.Service{AlphaMs: 60, BetaMsPerToken: 0.2, MaxTokens: 1024}},
			{Name: "lm", Static: 3, Replicas: scenario.Replicas{Min: 1, Max: 3}, Start: start, SLO: scenario.SLO{TTFTS: 1.5, TPOTMs: 1000}, Service: scenario.Service{AlphaMs: 6, BetaMsPerSeq: 0.15, Slots: 8, PrefillPerS: 20000, SpeedWhenPrefill: 0.5}},
		}}
	w := &scenario.World{Scenario: s, Seed: 1, Horizon: horizon}
	for i := range s.Models {
		t := scenario.Traffic{Model: &s.Models[i], Copies: 1, TimeScale: 1, DecodeBound: true}
		for _, r := range rows {
			if r.Model == t.Model.Name && r.Offset < took {
				t.Arrivals = append(t.Arrivals, scenario.Arrival{At: rest + r.Offset, In: int32(r.InputTokens), Out: int32(r.OutputTokens)})
			}
		}
		w.Traffic = append(w.Traffic, t)
	}
	for i := range predictionJobs {
		w.Jobs = append(w.Jobs, scenario.Job{ID: fmt.Sprintf("train-%02d", i+1), At: rest, Kind: scenario.TrainJob, Run: predictionSteps * predictionPace, Slices: 1,
			Start: 300 * time.Millisecond, Grace: predictionGrace, Save: scenario.Save{Every: time.Hour, Median: predictionSave, Sigma: 0.1}})
	}
	p, err := sim.NewOurs(arbiter.CoreOptions{
		Policy: arbiter.Policy{Mode: arbiter.ModeLend, LendAbove: 0.3, ReclaimBelow: 0.1, Hold: 3 * time.Second, AfterReclaim: 6 * time.Second, MinSamples: 10, Rho: 0.6, Spare: 1,
			Budget: arbiter.Budget{Detect: 500 * time.Millisecond, Kill: 2 * time.Second, Back: 6 * time.Second}},
		Guard: 250 * time.Millisecond, Plan: predictionPlan, FastHorizon: 2 * time.Second, SlowHorizon: 5 * time.Second, RiseQuantile: 0.75})
	if err != nil {
		return out, err
	}
	r, err := sim.Run(w, p, sim.Options{Name: "ours", Window: time.Minute})
	if err != nil {
		return out, err
	}
	out.encoder50, out.encoder99 = 1e3*r.Models[0].TTFT.P50, 1e3*r.Models[0].TTFT.P99
	out.ttft50, out.ttft99, out.tpot50, out.tpot99 = 1e3*r.Models[1].TTFT.P50, 1e3*r.Models[1].TTFT.P99, 1e3*r.Models[1].TPOT.P50, 1e3*r.Models[1].TPOT.P99
	// The rest is not part of what is compared: nothing useful was done in it, and
	// all replicas were ready.
	share := rest.Seconds() / took.Seconds()
	out.aloft = r.Aloft * (1 + share)
	for i := range out.ready {
		out.ready[i] = r.Models[i].ReadyMean*(1+share) - share*float64(s.Models[i].Static)
	}
	var ends []time.Duration
	for _, j := range r.Jobs.List {
		if j.FinishS >= 0 {
			ends = append(ends, time.Duration(j.FinishS*float64(time.Second))-rest)
		}
	}
	out.ended(ends, took)
	return out, nil
}
