package loadgen

import (
	"encoding/json"
	"fmt"
	"math"
	"runtime"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/goccy/go-yaml"

	"aloft/loadgen/arrivals"
)

// Schema names the layout of Report as JSON. Adding a field keeps it.
const Schema = "aloft.load/1"

// Report is what a run found.
type Report struct {
	Schema  string    `json:"schema"`
	Name    string    `json:"name"`
	Seed    uint64    `json:"seed"`
	Plan    []string  `json:"plan"` // hash of each workload's schedule
	Started time.Time `json:"started"`
	Elapsed float64   `json:"elapsed_s"`
	// Interrupted: the run was ended from outside; the results are those so far.
	Interrupted bool `json:"interrupted"`
	Host        Host `json:"host"`
	// Config is the profile as it ran, in the profile's own words, without keys,
	// header values and texts.
	Config json.RawMessage `json:"config"`
	// Warnings say why the figures may not mean what they seem to: the generator
	// fell behind its schedule, or could not send all of it.
	Warnings []string `json:"warnings"`
	Results  []Result `json:"results"`
}

// Host is the machine that generated the load.
type Host struct {
	OS   string  `json:"os"`
	Arch string  `json:"arch"`
	CPUs int     `json:"cpus"`
	Go   string  `json:"go"`
	CPU  float64 `json:"process_cpu_s"` // used by this process since it began
}

// Tally counts requests by how they ended:
// offered = ok + late + shed + failed.
type Tally struct {
	Offered    int `json:"offered"`
	OK         int `json:"ok"`
	Late       int `json:"late"`
	Shed       int `json:"shed"`
	Failed     int `json:"failed"`
	Unfinished int `json:"unfinished"`       // of late and failed: open at the drain deadline
	RetryAfter int `json:"shed_retry_after"` // of shed: said when to come back
	Waited     int `json:"waited_for_slot"`  // delayed by max_in_flight
}

// Quantiles of a distribution, in milliseconds; all 0 without samples.
type Quantiles struct {
	N   int64   `json:"n"`
	P50 float64 `json:"p50_ms"`
	P95 float64 `json:"p95_ms"`
	P99 float64 `json:"p99_ms"`
	Max float64 `json:"max_ms"`
}

// Targets of a workload, in milliseconds; 0 means none.
type Targets struct {
	E2E  float64 `json:"target_ms"`
	TTFT float64 `json:"ttft_target_ms,omitempty"`
	TPOT float64 `json:"tpot_target_ms,omitempty"`
}

// Rates of a phase, in requests per second.
type Rates struct {
	Planned  float64 `json:"planned_per_s"`
	Achieved float64 `json:"achieved_per_s"` // actually sent
	Good     float64 `json:"good_per_s"`     // ok
}

// Tokens of complete answers.
type Tokens struct {
	Prompt     int `json:"prompt"`
	Completion int `json:"completion"`
	// Estimated counts answers without usage; their completion tokens are the
	// number of chunks.
	Estimated int `json:"answers_without_usage"`
}

// Result is one phase of one workload.
type Result struct {
	Name  string `json:"name"`
	Kind  Kind   `json:"kind"`
	Model string `json:"model"`
	Phase string `json:"phase"`
	Tally
	FailedBy map[Outcome]int `json:"failed_by,omitempty"`
	// Quantiles of the time from intended start to the end of the answer, over
	// requests that were answered or that the generator gave up (their age then).
	Quantiles
	FromSend Quantiles  `json:"from_send"` // the same from the actual send
	SendLag  Quantiles  `json:"send_lag"`  // actual send after intended start
	TTFT     *Quantiles `json:"ttft,omitempty"`
	TPOT     *Quantiles `json:"tpot,omitempty"`
	Targets
	Attainment float64 `json:"attainment"` // ok / offered; 0 when nothing was offered
	Rates
	Tokens Tokens `json:"tokens"`
	// Problems holds the first message of each kind of failure.
	Problems map[Outcome]string `json:"problems,omitempty"`
}

// result is the figures of a phase, now being the time since the run's start.
func (r *series) result(w *Workload, span arrivals.Span, now time.Duration) Result {
	out := Result{
		Name: w.Name, Kind: w.Kind, Model: w.Model, Phase: span.Name,
		Tally:     r.tally,
		FailedBy:  copied(r.failed),
		Quantiles: quantiles(r.latency), FromSend: quantiles(r.service), SendLag: quantiles(r.lag),
		Targets:  Targets{ms(w.Target), ms(w.TTFTTarget), ms(w.TPOTTarget)},
		Tokens:   Tokens{r.prompt, r.completion, r.noUsage},
		Problems: copied(r.problems),
	}
	if w.Stream {
		ttft, tpot := quantiles(r.ttft), quantiles(r.tpot)
		out.TTFT, out.TPOT = &ttft, &tpot
	}
	if r.tally.Offered > 0 {
		out.Attainment = float64(r.tally.OK) / float64(r.tally.Offered)
	}
	out.Planned = float64(span.N) / (span.To - span.From).Seconds()
	// A phase that is sent late is longer than planned, and its rate is lower.
	if took := (max(min(now, span.To), r.lastSent) - span.From).Seconds(); took > 0 {
		out.Achieved, out.Good = float64(r.sent)/took, float64(r.tally.OK)/took
	}
	return out
}

// copied returns a copy for readers outside the collector.
func copied[V any](m map[Outcome]V) map[Outcome]V {
	out := make(map[Outcome]V, len(m))
	for k, v := range m {
		out[k] = v
	}
	return out
}

func quantiles(h *hdrhistogram.Histogram) Quantiles {
	n := h.TotalCount()
	if n == 0 {
		return Quantiles{}
	}
	at := h.ValueAtPercentilesSlice([]float64{50, 95, 99})
	us := func(v int64) float64 { return float64(v) / 1000 }
	return Quantiles{N: n, P50: us(at[0]), P95: us(at[1]), P99: us(at[2]), Max: us(h.Max())}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func (c *collector) report(interrupted bool) *Report {
	now := time.Since(c.start)
	until := now
	for _, p := range c.plans { // a run that is through was through its phases, though nothing was due at their end
		if !interrupted {
			until = max(until, p.End())
		}
	}
	out := &Report{
		Schema: Schema, Name: c.opt.Name, Seed: c.opt.Seed,
		Started: c.started.UTC(), Elapsed: math.Round(max(now, 0).Seconds()*1000) / 1000, Interrupted: interrupted,
		Host: Host{
			OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), Go: runtime.Version(),
			CPU: processCPU().Seconds(),
		},
		Warnings: []string{},
		Results:  c.results(until),
	}
	for _, p := range c.plans {
		out.Plan = append(out.Plan, p.Hash())
	}
	for _, r := range out.Results {
		out.Warnings = append(out.Warnings, r.warnings(interrupted)...)
	}
	return out
}

// warnings judges the generator, not the server: a send lag of p99 above 1 ms
// and 1 % of the target, or a rate off by more than 1 %, would be measured as if
// the server had caused it.
func (r *Result) warnings(interrupted bool) []string {
	var out []string
	who := fmt.Sprintf("%s, phase %s: ", r.Name, r.Phase)
	if limit := max(1, r.Targets.E2E/100); r.SendLag.P99 > limit {
		out = append(out, who+fmt.Sprintf("send lag p99 is %.2f ms, more than %.2f ms: the generator fell behind its schedule", r.SendLag.P99, limit))
	}
	if !interrupted && math.Abs(r.Achieved-r.Planned) > r.Planned/100 {
		out = append(out, who+fmt.Sprintf("sent %.2f requests/s where %.2f were planned", r.Achieved, r.Planned))
	}
	if r.Waited > 0 {
		out = append(out, who+fmt.Sprintf("%d requests waited in the generator for one of max_in_flight slots", r.Waited))
	}
	return out
}

// config renders the options as JSON with the profile's keys, without what is
// secret or text.
func (o Options) config() (json.RawMessage, error) {
	o = o.withDefaults()
	for i := range o.Workloads {
		w := &o.Workloads[i]
		w.Texts = nil
		if w.Key != "" {
			w.Key = "hidden"
		}
		hidden := make(map[string]string, len(w.Headers))
		for k := range w.Headers {
			hidden[k] = "hidden"
		}
		w.Headers = hidden
	}
	text, err := yaml.Marshal(o)
	if err == nil {
		text, err = yaml.YAMLToJSON(text)
	}
	if err != nil {
		return nil, fmt.Errorf("loadgen: render options: %w", err)
	}
	return json.RawMessage(text), nil
}
