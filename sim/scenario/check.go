package scenario

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/parser"
)

// Bounds of what a scenario may ask: far above any use, so that a typing mistake
// is refused before it is simulated.
const (
	maxGPUs     = 100_000
	maxHours    = 24 * 366
	maxModels   = 1000
	maxCopies   = 4096
	maxSeconds  = 30 * 24 * 3600
	maxTokens   = 10_000_000
	maxArrivals = 50_000_000 // of one model; 16 bytes each
	maxJobs     = 5_000_000
)

// check holds a scenario to its bounds, and keeps the first mistake.
type check struct {
	text []byte
	err  error
}

// that refuses the value at path, a YAML path without "$.", unless ok.
func (c *check) that(ok bool, path, format string, args ...any) {
	if ok || c.err != nil {
		return
	}
	c.err = fmt.Errorf("%s %s", path, fmt.Sprintf(format, args...))
	if n := c.line(path); n > 0 {
		c.err = fmt.Errorf("line %d: %w", n, c.err)
	}
}

// line of the value at path, else of what it belongs to; 0 = unknown.
func (c *check) line(path string) int {
	file, err := parser.ParseBytes(c.text, 0)
	if err != nil {
		return 0
	}
	for path != "" {
		p, err := yaml.PathString("$." + path)
		if err != nil {
			return 0
		}
		if node, err := p.FilterFile(file); err == nil && node != nil {
			return node.GetToken().Position.Line
		}
		path = path[:max(0, strings.LastIndexByte(path, '.'))]
	}
	return 0
}

// bounds are one number and what it may be.
type bounds struct {
	key       string
	v         float64
	low, high float64
	unit      string
	above     bool // low itself is not allowed
}

// each holds numbers below path to their bounds.
func (c *check) each(path string, numbers ...bounds) {
	for _, b := range numbers {
		in := b.v >= b.low && b.v <= b.high && !(b.above && b.v == b.low) // false for NaN
		from := "at least"
		if b.above {
			from = "more than"
		}
		unit := b.unit
		if unit != "" {
			unit = " " + unit
		}
		c.that(in, join(path, b.key), "is %v%s, want %s %v and at most %v%s", b.v, unit, from, b.low, b.high, unit)
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// The usual bounds.
func seconds(key string, v Seconds) bounds {
	return bounds{key, float64(v), 0, maxSeconds, "s", false}
}
func positive(key string, v Seconds) bounds { return bounds{key, float64(v), 0, maxSeconds, "s", true} }
func share(key string, v float64) bounds    { return bounds{key, v, 0, 1, "", false} }
func count(key string, v, low, high int) bounds {
	return bounds{key, float64(v), float64(low), float64(high), "", false}
}

func (c *check) scenario(s *Scenario) {
	c.that(s.Name != "", "name", "is missing")
	c.each("", bounds{"horizon_h", float64(s.HorizonH), 0, maxHours, "h", true})
	c.that(len(s.Seeds) > 0, "seeds", "is empty, want at least one")
	c.each("measure", seconds("warm_up_s", s.Measure.WarmUpS), seconds("tail_s", s.Measure.TailS))
	c.that(s.Measure.WarmUpS+s.Measure.TailS < Seconds(s.HorizonH*3600), "measure", "leaves nothing of %v h to judge", s.HorizonH)
	c.cluster(s)
	c.each("diurnal", bounds{"amplitude", s.Diurnal.Amplitude, 0, 0.99, "", false}, bounds{"trough_at_h", float64(s.Diurnal.TroughAtH), 0, maxHours, "h", false})
	if s.Diurnal.Amplitude > 0 {
		c.each("diurnal", bounds{"period_h", float64(s.Diurnal.PeriodH), 0, maxHours, "h", true})
	}
	c.jobs(&s.Jobs)
	if s.Backlog != (Backlog{}) {
		c.that(s.Backlog.Kind == EmbedJob, "backlog.kind", "is %q, want %s", s.Backlog.Kind, EmbedJob)
		c.that(s.Backlog.Size == "unlimited", "backlog.size", "is %q, want unlimited", s.Backlog.Size)
		c.each("backlog", seconds("start_s", s.Backlog.StartS), seconds("stop_s", s.Backlog.StopS), seconds("loses_s", s.Backlog.LosesS))
	}
	c.each("faults", share("wake_failure", s.Faults.Wake), share("checkpoint_failure", s.Faults.Checkpoint),
		bounds{"gpu_failures_per_gpu_day", s.Faults.GPU, 0, 1e4, "", false}, seconds("gpu_repair_s", s.Faults.RepairS))
}

func (c *check) cluster(s *Scenario) {
	k := s.Cluster
	c.each("cluster", count("gpus", k.GPUs, 1, maxGPUs), count("server_gpus", k.ServerGPUs, 1, maxGPUs), seconds("reshape_s", k.ReshapeS),
		count("serving_share_slices", k.Serving, 0, k.Slices()), count("job_share_slices", k.Jobs, 0, k.Slices()))
	c.that(k.SliceShape != "", "cluster.slice_shape", "is missing")
	c.that(k.WholeShape != "", "cluster.whole_shape", "is missing")
	c.that(k.Serving+k.Jobs == k.Slices(), "cluster.job_share_slices", "is %d and serving_share_slices %d, want %d together: %d GPUs of %d slices",
		k.Jobs, k.Serving, k.Slices(), k.GPUs, SlicesPerGPU)
	c.that(len(s.Models) > 0 && len(s.Models) <= maxModels, "models", "are %d, want 1 to %d", len(s.Models), maxModels)
	sum := 0
	seen := map[string]bool{}
	for i := range s.Models {
		m := &s.Models[i]
		path := fmt.Sprintf("models[%d]", i)
		c.that(m.Name != "" && !seen[m.Name], path+".name", "is %q: every model needs a name of its own", m.Name)
		seen[m.Name] = true
		sum += m.Static
		c.model(path, m)
	}
	c.that(sum == k.Serving, "cluster.serving_share_slices", "is %d, and the models' static_share_slices sum to %d", k.Serving, sum)
}

func (c *check) model(path string, m *Model) {
	c.each(path, count("static_share_slices", m.Static, 1, maxGPUs*SlicesPerGPU))
	if m.Replicas != (Replicas{}) {
		c.each(path+".replicas", count("min", m.Replicas.Min, 0, m.Static), count("max", m.Replicas.Max, m.Static, maxGPUs*SlicesPerGPU))
	}
	s := m.Service
	at := path + ".service_time"
	c.each(at, bounds{"alpha_ms", s.AlphaMs, 0, 1e6, "ms", false})
	if s.Merged() {
		c.each(at, bounds{"beta_ms_per_token", s.BetaMsPerToken, 0, 1e4, "ms", true}, count("max_tokens", s.MaxTokens, 1, maxTokens))
		c.that(s.BetaMsPerSeq == 0 && s.Slots == 0 && s.PrefillPerS == 0 && s.SpeedWhenPrefill == 0, at,
			"has beta_ms_per_token, so that its calls are merged, and keys of a model that generates")
		c.that(m.SLO.TPOTMs == 0, path+".slo.tpot_ms", "is for models that generate")
	} else {
		c.each(at, bounds{"beta_ms_per_sequence", s.BetaMsPerSeq, 0, 1e6, "ms", false}, count("slots", s.Slots, 1, 10_000),
			bounds{"prefill_tokens_per_s", s.PrefillPerS, 0, 1e9, "tokens/s", true}, share("decode_speed_during_prefill", s.SpeedWhenPrefill))
		c.that(s.AlphaMs+s.BetaMsPerSeq > 0, at+".alpha_ms", "is 0, and so is beta_ms_per_sequence: a step takes time")
		c.that(s.MaxTokens == 0, at+".max_tokens", "is for merged calls, which have beta_ms_per_token")
		c.each(path+".slo", bounds{"tpot_ms", m.SLO.TPOTMs, 0, 1e6, "ms", true})
	}
	c.each(path+".slo", positive("ttft_s", m.SLO.TTFTS), bounds{"ttft_ms_per_input_token", m.SLO.TTFTMsPerTok, 0, 1e6, "ms", false})
	c.each(path+".start", positive("wake_median_s", m.Start.WakeMedianS), positive("cold_median_s", m.Start.ColdMedianS),
		bounds{"lognormal_sigma", m.Start.Sigma, 0, 3, "", false})
	c.arrivals(path+".arrivals", m.Arrivals)
}

func (c *check) arrivals(at string, a Arrivals) {
	c.each(at, bounds{"mean_utilization", a.MeanUtilization, 0, 100, "", false})
	c.that((a.Trace == "") != (a.Process == nil), at, "wants either trace or process")
	if a.Process == nil {
		c.that(a.Input == nil && a.Output == nil, at, "has a trace, whose requests have sizes: input_tokens and output_tokens are for a process")
		c.that(!a.AsRecorded || a.MeanUtilization == 0 && a.Copies == 0, at+".as_recorded", "plays the trace as it is: mean_utilization and copies would change it")
		c.that(a.AsRecorded || a.MeanUtilization > 0 || a.Copies > 0, at+".mean_utilization", "is missing: copies: auto cannot tell how many")
		return
	}
	c.that(a.Copies == 0 && !a.AsRecorded && a.OfModel == "", at, "has a process: copies, as_recorded and of_model are for traces")
	if err := a.Process.Validate(); err != nil {
		c.that(false, at+".process", "is not valid: %v", err)
	}
	c.that(a.Process.Trace.File == "", at+".process", "is a trace: write trace")
	c.that(a.Input != nil, at+".input_tokens", "is missing")
	if a.Input != nil {
		if err := a.Input.Validate(); err != nil {
			c.that(false, at+".input_tokens", "is not valid: %v", err)
		}
	}
	if a.Output != nil {
		if err := a.Output.Validate(); err != nil {
			c.that(false, at+".output_tokens", "is not valid: %v", err)
		}
	}
}

func (c *check) jobs(j *Jobs) {
	c.each("jobs", bounds{"offered_load", j.OfferedLoad, 0, 100, "", false})
	if j.OfferedLoad == 0 {
		return
	}
	shares := []bounds{share("train.load_share", j.Train.LoadShare), share("embed.load_share", j.Embed.LoadShare), share("quantize.load_share", j.Quantize.LoadShare)}
	c.each("jobs", shares...)
	sum := j.Train.LoadShare + j.Embed.LoadShare + j.Quantize.LoadShare
	c.that(math.Abs(sum-1) < 1e-9, "jobs", "have load_shares that sum to %v, want 1", sum)
	if j.Train.LoadShare > 0 {
		c.train(j.Train)
	}
	if e := j.Embed; e.LoadShare > 0 {
		c.that(e.Arrivals == "poisson", "jobs.embed.arrivals", "is %q, want poisson", e.Arrivals)
		c.each("jobs.embed", positive("work_mean_s", e.WorkMeanS), bounds{"work_sigma", e.WorkSigma, 0, 4, "", false},
			count("width_slices", e.WidthSlices, 1, maxGPUs), seconds("start_s", e.StartS), seconds("stop_s", e.StopS), seconds("loses_s", e.LosesS))
	}
	if q := j.Quantize; q.LoadShare > 0 {
		c.that(q.Arrivals == "bursts", "jobs.quantize.arrivals", "is %q, want bursts", q.Arrivals)
		c.that(q.Loses == "everything", "jobs.quantize.loses", "is %q, want everything", q.Loses)
		c.that(q.BurstJobs[0] >= 1 && q.BurstJobs[0] <= q.BurstJobs[1] && q.BurstJobs[1] <= 1000, "jobs.quantize.burst_jobs", "is %v, want [low, high] of 1 to 1000", q.BurstJobs)
		c.each("jobs.quantize", positive("work_mean_s", q.WorkMeanS), count("width_slices", q.WidthSlices, 1, maxGPUs),
			seconds("start_s", q.StartS), seconds("stop_s", q.StopS))
	}
}

func (c *check) train(t Train) {
	const at = "jobs.train"
	c.that(t.Trace != "", at+".trace", "is missing")
	c.that(t.Window == "random", at+".window", "is %q, want random", t.Window)
	c.each(at, bounds{"duration_divisor", t.DurationDivisor, 0, 1e9, "", true}, positive("duration_min_s", t.DurationMinS), positive("duration_max_s", t.DurationMaxS),
		bounds{"largest_job_share", t.LargestShare, 0, 1, "", true}, bounds{"arrivals_over_horizon", t.OverHorizon, 0, 1, "", true},
		seconds("start_s", t.StartS), positive("checkpoint_interval_s", t.CheckpointEvery), positive("checkpoint_median_s", t.CheckpointS),
		bounds{"checkpoint_lognormal_sigma", t.CheckpointSigma, 0, 3, "", false}, seconds("grace_s", t.GraceS))
	c.that(t.DurationMinS <= t.DurationMaxS, at+".duration_min_s", "is %v s, above duration_max_s, %v s", t.DurationMinS, t.DurationMaxS)
	c.that(len(t.WidthSlices) > 0, at+".width_slices", "is missing")
	for _, gpus := range sorted(t.WidthSlices) {
		w := t.WidthSlices[gpus]
		c.that(w >= 1 && w <= maxGPUs*SlicesPerGPU, at+".width_slices", "gives %d slices to jobs of %d GPUs, want at least 1", w, gpus)
	}
}

func sorted(m map[int]int) []int {
	keys := make([]int, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
