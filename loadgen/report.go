package loadgen

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"aloft/loadgen/arrivals"
)

// Schema names the layout of Report as JSON. Adding a field keeps it.
const Schema = "aloft.load/2"

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
	Tool        Tool `json:"tool"`
	// Config is the profile as it ran, in the profile's own words, without keys,
	// header values and texts.
	Config json.RawMessage `json:"config"`
	// Failed says why the run does not count: the generator, not the server, was
	// behind its schedule, off its rate or short of CPU. Empty means that it counts.
	Failed []string `json:"run_failed"`
	// Warnings say what else to know of the figures.
	Warnings []string `json:"warnings"`
	// Notes say what was done to recorded traffic before it was replayed.
	Notes   []string `json:"notes,omitempty"`
	Results []Result `json:"results"`
	Cuts    []Cut    `json:"cuts"`              // by tenant, class and length, over the phases
	WarmUp  *Tally   `json:"warm_up,omitempty"` // counted nowhere else
	Step    float64  `json:"timeline_step_s"`
	// Lines of JSON that were written, one a request, and those that were not
	// since the writer failed or was too slow.
	Lines     int64 `json:"lines_written,omitempty"`
	LinesLost int64 `json:"lines_lost,omitempty"`
}

// Machine is one that generates load.
type Machine struct {
	OS     string `json:"os"`
	Arch   string `json:"arch"`
	Kernel string `json:"kernel,omitempty"`
	Model  string `json:"cpu_model,omitempty"`
	CPUs   int    `json:"cpus"`
	Procs  int    `json:"procs"` // that the generator may use: GOMAXPROCS
	Go     string `json:"go"`
}

// Host is the machine that generated the load, and what the run took of it.
type Host struct {
	Machine
	// CPU is what this process used during the run, and CPUShare that of what it
	// may use (0 to 1). Both are 0 where the system does not tell.
	CPU      float64 `json:"process_cpu_s"`
	CPUShare float64 `json:"cpu_share"`
}

// Tool is the build of the generator, as far as it knows.
type Tool struct {
	Version  string `json:"version,omitempty"`
	Commit   string `json:"commit,omitempty"`
	Modified bool   `json:"modified,omitempty"` // built from a changed tree
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
	// Retries are attempts after the first, load that is offered in addition;
	// Abandoned are clients that left as planned before an answer or their target.
	// Neither is in offered.
	Retries   int `json:"retries"`
	Abandoned int `json:"abandoned"`
}

func (t *Tally) merge(u *Tally) {
	t.Offered, t.OK, t.Late, t.Shed, t.Failed = t.Offered+u.Offered, t.OK+u.OK, t.Late+u.Late, t.Shed+u.Shed, t.Failed+u.Failed
	t.Unfinished, t.RetryAfter, t.Waited = t.Unfinished+u.Unfinished, t.RetryAfter+u.RetryAfter, t.Waited+u.Waited
	t.Retries, t.Abandoned = t.Retries+u.Retries, t.Abandoned+u.Abandoned
}

// Targets of a workload, in milliseconds; 0 means none.
type Targets struct {
	E2E           float64 `json:"target_ms"`
	TTFBTarget    float64 `json:"ttfb_target_ms,omitempty"`
	RoleTarget    float64 `json:"role_target_ms,omitempty"`
	TTFT          float64 `json:"ttft_target_ms,omitempty"`
	VisibleTarget float64 `json:"visible_target_ms,omitempty"`
	TPOT          float64 `json:"tpot_target_ms,omitempty"`
	ITLTarget     float64 `json:"itl_target_ms,omitempty"` // of the longest in an answer, as Gap
	GapTarget     float64 `json:"gap_target_ms,omitempty"`
	Smooth        float64 `json:"smooth_target_ms,omitempty"`
}

// targets of a goal.
func (g Goal) targets() Targets {
	return Targets{
		E2E: ms(g.Target), TTFBTarget: ms(g.TTFBTarget), RoleTarget: ms(g.RoleTarget), TTFT: ms(g.TTFTTarget), VisibleTarget: ms(g.VisibleTarget),
		TPOT: ms(g.TPOTTarget), ITLTarget: ms(g.ITLTarget), GapTarget: ms(g.GapTarget), Smooth: ms(g.Smooth),
	}
}

// LagLimit is how high the p99 of the send lag may be before the run does not
// count, in milliseconds: 1, or 1 % of the least target that counts from the
// intended start, where that is more (issue 4).
func (t Targets) LagLimit() float64 {
	least := 0.0
	for _, target := range []float64{t.E2E, t.TTFBTarget, t.RoleTarget, t.TTFT, t.VisibleTarget} {
		if target > 0 && (least == 0 || target < least) {
			least = target
		}
	}
	return max(1, least/100)
}

// Rates of a phase, a second.
type Rates struct {
	Planned    float64 `json:"planned_per_s"`
	Achieved   float64 `json:"achieved_per_s"` // actually sent, retries not counted
	Good       float64 `json:"good_per_s"`     // ok
	Extra      float64 `json:"extra_per_s"`    // retries
	GoodTokens float64 `json:"good_tokens_per_s"`
	Over       float64 `json:"over_s"` // the time that all of them are over: the phase as it was sent
}

// Tokens of complete answers.
type Tokens struct {
	Prompt     int `json:"prompt"`
	Completion int `json:"completion"`
	Good       int `json:"good"` // of completion: in answers that were ok
	// Estimated counts answers without usage; their completion tokens are the
	// number of chunks.
	Estimated int `json:"answers_without_usage"`
}

// Marks are the further distributions of a phase. Those of a stream are nil for
// other workloads. See Metrics for what each one is.
type Marks struct {
	TTFB            Quantiles  `json:"ttfb"`
	TTFBFromSend    Quantiles  `json:"ttfb_from_send"`
	Role            *Quantiles `json:"role,omitempty"`
	RoleFromSend    *Quantiles `json:"role_from_send,omitempty"`
	TTFTFromSend    *Quantiles `json:"ttft_from_send,omitempty"`
	Visible         *Quantiles `json:"visible,omitempty"`
	VisibleFromSend *Quantiles `json:"visible_from_send,omitempty"`
	ITL             *Quantiles `json:"itl,omitempty"`
	Gap             *Quantiles `json:"gap,omitempty"`
	Lateness        *Quantiles `json:"worst_token_late,omitempty"`
}

// Result is one phase of one workload.
type Result struct {
	Name  string `json:"name"`
	Kind  Kind   `json:"kind"`
	Model string `json:"model"`
	Phase string `json:"phase"`
	// Closed: so many clients waited for their answers, so that the latencies
	// hide what a stalled server costs. For comparison only.
	Closed int `json:"closed_loop_clients,omitempty"`
	Tally
	FailedBy map[Outcome]int `json:"failed_by,omitempty"`
	// Starved requests are those of failed for which the generator's machine had no
	// descriptor, port or memory left: not the server's failures.
	Starved int `json:"starved,omitempty"`
	// Quantiles of the time from intended start to the end of the answer, over
	// requests that were answered or that the generator gave up (their age then).
	Quantiles
	FromSend Quantiles  `json:"from_send"` // the same from the actual send
	SendLag  Quantiles  `json:"send_lag"`  // actual send after intended start
	TTFT     *Quantiles `json:"ttft,omitempty"`
	TPOT     *Quantiles `json:"tpot,omitempty"`
	Marks
	Targets
	Attainment float64 `json:"attainment"` // ok / offered; 0 when nothing was offered
	Rates
	Tokens Tokens `json:"tokens"`
	// Problems holds the first message of each kind of failure.
	Problems map[Outcome]string `json:"problems,omitempty"`
	Timeline []Point            `json:"timeline,omitempty"` // nil in snapshots
}

// Figure is the distribution of that name, one of Metrics; nil where the
// workload has none.
func (r *Result) Figure(name string) *Quantiles {
	i := slices.IndexFunc(metricNames[:], func(m struct{ name, what string }) bool { return m.name == name })
	if i < 0 {
		return nil
	}
	return r.figure(metric(i))
}

func (r *Result) figure(m metric) *Quantiles {
	return [metrics]*Quantiles{
		e2e: &r.Quantiles, e2eSent: &r.FromSend, sendLag: &r.SendLag, ttfb: &r.TTFB, ttfbSent: &r.TTFBFromSend,
		roleChunk: r.Role, roleSent: r.RoleFromSend, ttft: r.TTFT, ttftSent: r.TTFTFromSend, visible: r.Visible, visibleSent: r.VisibleFromSend,
		tpot: r.TPOT, itl: r.ITL, chunkGap: r.Gap, lateness: r.Lateness,
	}[m]
}

// result is the figures of a phase, now being the time since the run's start.
func (r *series) result(w *Workload, span arrivals.Span, now time.Duration, whole bool) Result {
	out := Result{
		Name: w.Name, Kind: w.Kind, Model: w.Model, Phase: span.Name, Closed: w.Clients,
		Tally:      r.tally,
		FailedBy:   copied(r.failed),
		Starved:    r.starved,
		Targets:    w.Goal.targets(),
		Attainment: share(r.tally.OK, r.tally.Offered),
		Tokens:     r.tokens,
		Problems:   copied(r.problems),
	}
	of := func(m metric) Quantiles { return r.dist[m].quantiles(r.tally.Offered, whole) }
	out.Quantiles, out.FromSend, out.TTFB, out.TTFBFromSend = of(e2e), of(e2eSent), of(ttfb), of(ttfbSent)
	out.SendLag = r.dist[sendLag].quantiles(r.tally.Offered+r.tally.Abandoned, whole)
	if w.Stream {
		for m, to := range map[metric]**Quantiles{
			roleChunk: &out.Role, roleSent: &out.RoleFromSend, ttft: &out.TTFT, ttftSent: &out.TTFTFromSend,
			visible: &out.Visible, visibleSent: &out.VisibleFromSend, tpot: &out.TPOT, itl: &out.ITL, chunkGap: &out.Gap, lateness: &out.Lateness,
		} {
			q := of(m)
			*to = &q
		}
	}
	if w.Clients == 0 {
		out.Planned = float64(span.N+r.further) / (span.To - span.From).Seconds()
	}
	// A phase that is sent late is longer than planned, and its rate is lower.
	if took := (max(min(now, span.To), r.lastSent) - span.From).Seconds(); took > 0 {
		out.Over = took
		out.Achieved, out.Good = float64(r.sent)/took, float64(r.tally.OK)/took
		out.Extra, out.GoodTokens = float64(r.tally.Retries)/took, float64(r.tokens.Good)/took
	}
	if whole {
		out.Timeline = r.line.points()
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
		Host: host(c.used(), time.Since(c.began)), Tool: tool(),
		Failed: []string{}, Warnings: []string{}, Cuts: []Cut{},
		Results: c.results(until, true), WarmUp: c.warm, Step: stepFor(0).Seconds(),
	}
	for i, p := range c.plans {
		out.Plan = append(out.Plan, p.Hash())
		out.Step = c.series[i][0].line.step.Seconds()
		out.Cuts = append(out.Cuts, c.cuts[i].list()...)
		out.Notes = append(out.Notes, p.Notes...)
	}
	for _, w := range c.opt.Workloads {
		if w.Insecure {
			out.Warnings = append(out.Warnings, fmt.Sprintf("%s: insecure: the server's certificate was NOT CHECKED: anyone may have answered", w.Name))
		}
	}
	for _, r := range out.Results {
		out.Failed = append(out.Failed, r.faults(interrupted)...)
		out.Warnings = append(out.Warnings, r.warnings()...)
	}
	if share := out.Host.CPUShare; share > maxCPUShare {
		out.Failed = append(out.Failed, fmt.Sprintf("the generator used %.0f %% of the CPU time it may have, more than %.0f %%: it may have been its own bottleneck", 100*share, 100*maxCPUShare))
	}
	if c.lines != nil {
		var err error
		if out.Lines, out.LinesLost, err = c.lines.result(); err != nil {
			out.Warnings = append(out.Warnings, fmt.Sprintf("the lines of the requests end early: %v", err))
		} else if out.LinesLost > 0 {
			out.Warnings = append(out.Warnings, fmt.Sprintf("%d lines of requests were lost: their writer was slower than the run", out.LinesLost))
		}
	}
	return out
}

// used is what this process has used of its CPUs since the run began; in fake
// time it means nothing.
func (c *collector) used() time.Duration {
	if c.opt.dial != nil {
		return 0
	}
	return ProcessCPU() - c.cpu
}

// maxCPUShare is how much of its CPU time a generator may use: with more there
// are moments in which it has none left.
const maxCPUShare = 0.9

// Verdict is an error that names the reasons when the run does not count.
func (r *Report) Verdict() error {
	if len(r.Failed) == 0 {
		return nil
	}
	return fmt.Errorf("THE RUN DOES NOT COUNT: %s\n  what helps: %s", strings.Join(r.Failed, "; "), WhatHelps)
}

// WhatHelps is what to do about a run that does not count.
const WhatHelps = "a machine with free CPUs that is not the server's, or a lower rate; where requests waited for a slot, a server that keeps up or a larger max_in_flight; aloft load calibrate says what a machine can send"

// faults judges the generator, not the server: a send lag above its limit, or a
// rate off by more than 1 %, would be measured as if the server had caused it. A
// closed loop has no schedule to keep.
func (r *Result) faults(interrupted bool) []string {
	var out []string
	who := fmt.Sprintf("%s, phase %s: ", r.Name, r.Phase)
	if r.Starved > 0 {
		out = append(out, who+fmt.Sprintf("the generator had no descriptor, port or memory to connect with for %d requests", r.Starved))
	}
	if r.Closed > 0 {
		return out
	}
	if limit := r.LagLimit(); r.SendLag.P99 > limit {
		out = append(out, who+fmt.Sprintf("send lag p99 is %.2f ms, more than %.2f ms: the generator fell behind its schedule", r.SendLag.P99, limit))
	}
	if !interrupted && math.Abs(r.Achieved-r.Planned) > r.Planned/100 {
		out = append(out, who+fmt.Sprintf("sent %.2f requests/s where %.2f were planned", r.Achieved, r.Planned))
	}
	return out
}

func (r *Result) warnings() []string {
	var out []string
	who := fmt.Sprintf("%s, phase %s: ", r.Name, r.Phase)
	if r.Closed == 0 && r.Planned == 0 {
		out = append(out, who+"the plan has no request in it: its rate is too low for its duration")
	}
	if r.Waited > 0 {
		out = append(out, who+fmt.Sprintf("%d requests waited in the generator for one of max_in_flight slots", r.Waited))
	}
	if r.Closed > 0 {
		out = append(out, who+"a closed loop, for comparison only: a server that stalls slows the load down, and the latencies hide it")
	}
	return out
}

// ReadReport reads a report's JSON. It refuses other layouts than Schema.
func ReadReport(r io.Reader) (*Report, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxReport+1))
	if err != nil {
		return nil, fmt.Errorf("loadgen: read report: %w", err)
	}
	if len(text) > maxReport {
		return nil, fmt.Errorf("loadgen: the report exceeds %d bytes", maxReport)
	}
	var of struct {
		Schema string `json:"schema"`
	}
	if err := json.Unmarshal(text, &of); err != nil {
		return nil, fmt.Errorf("loadgen: the report is no JSON object: %w", err)
	}
	switch {
	case of.Schema == "":
		return nil, errors.New("loadgen: this is no report of a load: it has no schema")
	case of.Schema != Schema:
		return nil, fmt.Errorf("loadgen: the report is %q, this program reads %q: run the load again, or use the program that wrote it", of.Schema, Schema)
	}
	out := &Report{}
	if err := json.Unmarshal(text, out); err != nil {
		return nil, fmt.Errorf("loadgen: read report: %w", err)
	}
	for i := range out.Results {
		if err := out.Results[i].sound(); err != nil {
			return nil, fmt.Errorf("loadgen: the report was changed or damaged: %s, phase %s: %w", out.Results[i].Name, out.Results[i].Phase, err)
		}
	}
	return out, nil
}

// sound is an error when the numbers contradict each other: a verdict on them
// would be on nothing.
func (r *Result) sound() error {
	if min(r.OK, r.Late, r.Shed, r.Failed) < 0 || r.OK+r.Late+r.Shed+r.Failed != r.Offered {
		return fmt.Errorf("of %d offered %d are ok, %d late, %d shed and %d failed", r.Offered, r.OK, r.Late, r.Shed, r.Failed)
	}
	if math.Abs(r.Attainment-share(r.OK, r.Offered)) > 1e-9 {
		return fmt.Errorf("attainment is %v with %d of %d", r.Attainment, r.OK, r.Offered)
	}
	for m := range metrics {
		if q := r.figure(m); q != nil && q.HDR != nil && q.HDR.N() != q.N {
			return fmt.Errorf("%s has %d values, and its histogram %d", metricNames[m].name, q.N, q.HDR.N())
		}
	}
	if r.Timeline == nil {
		return nil
	}
	var sum Tally
	for _, p := range r.Timeline {
		sum.Offered, sum.OK = sum.Offered+p.Offered, sum.OK+p.Good
	}
	if sum.Offered != r.Offered || sum.OK != r.OK {
		return fmt.Errorf("the time line has %d ok of %d, the whole %d of %d", sum.OK, sum.Offered, r.OK, r.Offered)
	}
	return nil
}

// maxReport bounds a report, in bytes: 128 phases with 15 full histograms and an
// hour of seconds each are some 100 MB.
const maxReport = 256 << 20

// Config renders the options as JSON with the profile's keys, without what is
// secret or text.
func (o Options) Config() (json.RawMessage, error) {
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
		w.Tenants = slices.Clone(w.Tenants)
		for t := range w.Tenants {
			if w.Tenants[t].Key != "" {
				w.Tenants[t].Key = "hidden"
			}
		}
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
