// Package scenario reads the worlds in which lending policies are compared, and
// draws them: the requests and jobs of a seed, equal for every policy.
//
// A scenario is a YAML file (configs/scenarios; its README.md is the rule book,
// and this package follows it). A draw is deterministic: one random stream for
// each cause, all from the seed. Everything in it is modelled.
package scenario

import (
	"time"

	"aloft/backends/synthetic/law"
	"aloft/loadgen/arrivals"
)

// Seconds and Hours are times as a scenario writes them.
type (
	Seconds float64
	Hours   float64
)

// UnmarshalYAML reads a number in any notation: the decoder fails on 3e1 for a type
// of its own, and on a number in quotes.
func (s *Seconds) UnmarshalYAML(read func(any) error) error { return read((*float64)(s)) }

// UnmarshalYAML reads a number in any notation.
func (h *Hours) UnmarshalYAML(read func(any) error) error { return read((*float64)(h)) }

// Duration of so many seconds.
func (s Seconds) Duration() time.Duration { return time.Duration(float64(s) * float64(time.Second)) }

// Duration of so many hours.
func (h Hours) Duration() time.Duration { return time.Duration(float64(h) * float64(time.Hour)) }

// Scenario is one file.
type Scenario struct {
	Name      string    `yaml:"name"`
	HorizonH  Hours     `yaml:"horizon_h"`
	Seeds     []uint64  `yaml:"seeds"`
	Measure   Measure   `yaml:"measure"`
	Cluster   Cluster   `yaml:"cluster"`
	Models    []Model   `yaml:"models"`
	Diurnal   Diurnal   `yaml:"diurnal"`
	Jobs      Jobs      `yaml:"jobs"`
	Backlog   Backlog   `yaml:"backlog"`
	BatchRows BatchRows `yaml:"batch_rows"`
	Faults    Faults    `yaml:"faults"`
}

// Measure is which ends of a run are not judged.
type Measure struct {
	WarmUpS Seconds `yaml:"warm_up_s"`
	TailS   Seconds `yaml:"tail_s"`
}

// Cluster is the machine.
type Cluster struct {
	GPUs       int     `yaml:"gpus"`
	GPUModel   string  `yaml:"gpu_model"`
	ServerGPUs int     `yaml:"server_gpus"`
	SliceShape string  `yaml:"slice_shape"` // layout at the start: every GPU as SlicesPerGPU of these
	WholeShape string  `yaml:"whole_shape"`
	ReshapeS   Seconds `yaml:"reshape_s"`
	Serving    int     `yaml:"serving_share_slices"`
	Jobs       int     `yaml:"job_share_slices"`
}

// SlicesPerGPU is how many of slice_shape a GPU is split into at the start.
const SlicesPerGPU = 7

// Slices is how many the machine has.
func (c Cluster) Slices() int { return c.GPUs * SlicesPerGPU }

// Model is one served model.
type Model struct {
	Name     string   `yaml:"name"`
	Static   int      `yaml:"static_share_slices"`
	Service  Service  `yaml:"service_time"`
	SLO      SLO      `yaml:"slo"`
	Arrivals Arrivals `yaml:"arrivals"`
	Start    Start    `yaml:"start"`
	Replicas Replicas `yaml:"replicas"`
}

// Replicas are the fewest and the most that an operator lets a model have. The
// standard scenarios leave them out: then it keeps one, and may have a quarter more
// than its static share.
type Replicas struct {
	Min int `yaml:"min"`
	Max int `yaml:"max"`
}

// Service is the service-time law of one replica on one slice_shape. A model
// generates (a decoding step over n sequences takes alpha + beta_ms_per_sequence
// x n) or, where beta_ms_per_token is set, answers merged calls (a call of S
// tokens takes alpha + beta_ms_per_token x S, S at most max_tokens).
type Service struct {
	AlphaMs          float64 `yaml:"alpha_ms"`
	BetaMsPerSeq     float64 `yaml:"beta_ms_per_sequence"`
	Slots            int     `yaml:"slots"`
	PrefillPerS      float64 `yaml:"prefill_tokens_per_s"`
	SpeedWhenPrefill float64 `yaml:"decode_speed_during_prefill"`

	BetaMsPerToken float64 `yaml:"beta_ms_per_token"`
	MaxTokens      int     `yaml:"max_tokens"`
}

// Merged reports whether the model answers merged calls.
func (s Service) Merged() bool { return s.BetaMsPerToken > 0 }

// Law is the service time in the words of the timed engine.
func (s Service) Law() law.Law {
	l := law.Law{BlockTokens: 1, Slots: s.Slots, PrefillTokensPerS: s.PrefillPerS, StepMs: s.AlphaMs, StepMsPerSeq: s.BetaMsPerSeq}
	if s.Merged() {
		l = law.Law{BlockTokens: 1, PrefillTokensPerS: 1, AlphaMs: s.AlphaMs, BetaMsPerToken: s.BetaMsPerToken}
	}
	return l
}

// Step is the time of one decoding step over n sequences, in seconds.
func (s Service) Step(n float64) float64 { return (s.AlphaMs + s.BetaMsPerSeq*n) / 1000 }

// Prefill is the time of a prompt alone in a replica, in seconds.
func (s Service) Prefill(in float64) float64 { return in / s.PrefillPerS }

// SLO is what a good request keeps: the first token (merged calls: the answer)
// within ttft + the part for its input, the mean time per later token within tpot.
type SLO struct {
	TTFTS        Seconds `yaml:"ttft_s"`
	TTFTMsPerTok float64 `yaml:"ttft_ms_per_input_token"`
	TPOTMs       float64 `yaml:"tpot_ms"` // generation only
}

// TTFT is the target for the first token of a request with this input.
func (s SLO) TTFT(in int32) time.Duration {
	return s.TTFTS.Duration() + time.Duration(s.TTFTMsPerTok*float64(in)*float64(time.Millisecond))
}

// TPOT is the target for the mean time of each later token.
func (s SLO) TPOT() time.Duration { return time.Duration(s.TPOTMs * float64(time.Millisecond)) }

// Arrivals is a model's traffic: a trace, or a process of loadgen's with sizes.
type Arrivals struct {
	Trace   string `yaml:"trace"`    // below the folder of traces; formats: Azure, Mooncake, a recording of `aloft record`
	OfModel string `yaml:"of_model"` // of a recording: the requests of this model
	// MeanUtilization is the wanted knee work over static share and time. 0 = the
	// rate is as recorded, or as the process says.
	MeanUtilization float64 `yaml:"mean_utilization"`
	// Copies is "auto" or a number, which asks for time to be shrunk or stretched
	// as far as the wanted rate needs.
	Copies Copies `yaml:"copies"`
	// AsRecorded plays the trace once, from its first row, at its own times.
	AsRecorded bool `yaml:"as_recorded"`

	Process *arrivals.Process `yaml:"process"`
	Input   *arrivals.Dist    `yaml:"input_tokens"`
	Output  *arrivals.Dist    `yaml:"output_tokens"`
}

// Copies is how often a trace is laid over itself; 0 = auto.
type Copies int

// Start is how long a replica needs until it serves, log-normal.
type Start struct {
	WakeMedianS Seconds `yaml:"wake_median_s"`
	ColdMedianS Seconds `yaml:"cold_median_s"`
	Sigma       float64 `yaml:"lognormal_sigma"`
}

// Diurnal is the day curve: rate x (1 + amplitude x sin), lowest at trough_at_h.
type Diurnal struct {
	Amplitude float64 `yaml:"amplitude"`
	PeriodH   Hours   `yaml:"period_h"`
	TroughAtH Hours   `yaml:"trough_at_h"`
}

// Jobs are the jobs that are submitted.
type Jobs struct {
	OfferedLoad float64  `yaml:"offered_load"` // their work over job share x horizon
	Train       Train    `yaml:"train"`
	Embed       Embed    `yaml:"embed"`
	Quantize    Quantize `yaml:"quantize"`
}

// Train are jobs that checkpoint, drawn from a trace of jobs.
type Train struct {
	LoadShare       float64     `yaml:"load_share"`
	Trace           string      `yaml:"trace"` // Philly, or openb's pods
	Window          string      `yaml:"window"`
	DurationDivisor float64     `yaml:"duration_divisor"`
	DurationMinS    Seconds     `yaml:"duration_min_s"`
	DurationMaxS    Seconds     `yaml:"duration_max_s"`
	LargestShare    float64     `yaml:"largest_job_share"`
	OverHorizon     float64     `yaml:"arrivals_over_horizon"`
	WidthSlices     map[int]int `yaml:"width_slices"` // GPUs of a row -> slices
	StartS          Seconds     `yaml:"start_s"`
	CheckpointEvery Seconds     `yaml:"checkpoint_interval_s"`
	CheckpointS     Seconds     `yaml:"checkpoint_median_s"`
	CheckpointSigma float64     `yaml:"checkpoint_lognormal_sigma"`
	Pauses          bool        `yaml:"checkpoint_pauses_job"`
	GraceS          Seconds     `yaml:"grace_s"`
}

// Embed are jobs of many small files, which give a slice back at once.
type Embed struct {
	LoadShare   float64 `yaml:"load_share"`
	Arrivals    string  `yaml:"arrivals"` // poisson
	WorkMeanS   Seconds `yaml:"work_mean_s"`
	WorkSigma   float64 `yaml:"work_sigma"` // log-normal
	WidthSlices int     `yaml:"width_slices"`
	StartS      Seconds `yaml:"start_s"`
	StopS       Seconds `yaml:"stop_s"`
	LosesS      Seconds `yaml:"loses_s"`
}

// Quantize are jobs that come together and lose everything when stopped.
type Quantize struct {
	LoadShare   float64 `yaml:"load_share"`
	Arrivals    string  `yaml:"arrivals"` // bursts
	BurstJobs   [2]int  `yaml:"burst_jobs"`
	WorkMeanS   Seconds `yaml:"work_mean_s"` // uniform, half to one and a half times the mean
	WidthSlices int     `yaml:"width_slices"`
	StartS      Seconds `yaml:"start_s"`
	StopS       Seconds `yaml:"stop_s"`
	Loses       string  `yaml:"loses"` // everything
}

// Backlog is the bottomless queue of the lowest class. Kind "" = there is none.
type Backlog struct {
	Kind   Kind    `yaml:"kind"`
	Size   string  `yaml:"size"` // unlimited
	StartS Seconds `yaml:"start_s"`
	StopS  Seconds `yaml:"stop_s"`
	LosesS Seconds `yaml:"loses_s"`
}

// BatchRows is whether batch rows ride in ready replicas.
type BatchRows struct {
	Enabled bool `yaml:"enabled"`
}

// Faults are what is injected.
type Faults struct {
	Wake       float64 `yaml:"wake_failure"`             // chance that a wake fails; the replica then starts cold
	Checkpoint float64 `yaml:"checkpoint_failure"`       // chance that a checkpoint fails
	GPU        float64 `yaml:"gpu_failures_per_gpu_day"` // all slices of the GPU at once
	RepairS    Seconds `yaml:"gpu_repair_s"`
}
