package known

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
	"time"

	"aloft/loadgen"
	"aloft/loadgen/arrivals"
)

// CalibrateOptions say how long to measure.
type CalibrateOptions struct {
	// Null is the command that starts a null server when an address is added:
	// {"aloft", "load", "null-server"}.
	Null   []string
	Rounds int           // 0 = 5
	Span   time.Duration // of each cell of a round; 0 = 1.5 s
	// Say is told of each round; nil = nobody is.
	Say func(string)
}

// CalibrationSchema names the layout of Calibration as JSON.
const CalibrationSchema = "aloft.calibration/1"

// Calibration is what this machine can do as a load generator, null server
// included.
type Calibration struct {
	Schema  string          `json:"schema"`
	Started time.Time       `json:"started"`
	Host    loadgen.Machine `json:"host"`
	Rounds  int             `json:"rounds"`
	Figures []Figure        `json:"figures"`
	Notes   []string        `json:"notes"` // what was not measured, and why
}

// Figure is one figure over the rounds.
type Figure struct {
	Name   string    `json:"name"`
	Unit   string    `json:"unit"`
	Best   float64   `json:"best"`
	Median float64   `json:"median"`
	Rounds []float64 `json:"rounds"`
	// Generator and Server are the cores that both processes used in the best
	// round.
	Generator float64 `json:"generator_cores"`
	Server    float64 `json:"server_cores"`
	// Target counts in the best round; 0 = there is none. It is a lower bound of
	// a rate and an upper one of a time.
	Target float64 `json:"target,omitempty"`
	OK     bool    `json:"ok"`

	cores [][2]float64 // of each round
}

// The targets of issue 4, on 2 cores.
const (
	unaryTarget  = 20_000  // requests/s
	eventsTarget = 200_000 // events/s
	lagTarget    = 1       // ms, p99 at 5,000 requests/s
)

const (
	closedClients = 64
	streamClients = 32
	streamTokens  = 1000 // of each stream
)

// The names of the figures.
const (
	closedLoop = "unary, closed loop of 64 clients"
	openLoop   = "unary, open loop, highest rate kept"
	punctual   = "unary, open loop, highest rate kept with a send lag p99 of 1 ms"
	eventRate  = "SSE events, 32 streams"
	wrkRate    = "unary, wrk with 64 connections"
)

// ladder are the open-loop rates that are tried, per second.
var ladder = []float64{500, 1000, 2000, 3000, 4000, 5000, 6000, 8000, 10_000, 12_500, 15_000, 17_500, 20_000, 22_500, 25_000,
	27_500, 30_000, 35_000, 40_000, 45_000, 50_000, 60_000, 70_000, 80_000, 100_000}

// lagRates are those at which the send lag is measured.
var lagRates = []float64{1000, 5000}

// Calibrate measures this machine against a null server in a process of its
// own, in rounds in which all figures take turns.
func Calibrate(ctx context.Context, opt CalibrateOptions) (*Calibration, error) {
	opt.Rounds, opt.Span = cmp.Or(opt.Rounds, 5), cmp.Or(opt.Span, 1500*msec)
	if opt.Rounds < 1 || opt.Span < 100*msec || opt.Span > time.Minute {
		return nil, fmt.Errorf("known: %d rounds of %v, want at least 1, of 100ms to 1m", opt.Rounds, opt.Span)
	}
	child, err := StartNull(ctx, opt.Null...)
	if err != nil {
		return nil, err
	}
	defer child.Close()
	c := &calibrator{opt: opt, child: child, out: &Calibration{
		Schema: CalibrationSchema, Started: time.Now().UTC(), Rounds: opt.Rounds, Notes: []string{},
		Host: loadgen.ThisMachine(),
	}}
	for round := range opt.Rounds {
		if err := c.round(ctx); err != nil {
			return nil, err
		}
		if opt.Say != nil {
			opt.Say(fmt.Sprintf("round %d of %d: %s", round+1, opt.Rounds, c.out.last()))
		}
	}
	for i := range c.out.Figures {
		c.out.Figures[i].settle()
	}
	return c.out, nil
}

// calibrator is a calibration while it goes on.
type calibrator struct {
	opt   CalibrateOptions
	child *Child
	out   *Calibration
}

// ran is one run against the null server.
type ran struct {
	loadgen.Result
	took  float64    // seconds
	cores [2]float64 // of the generator and the server
}

func (c *calibrator) round(ctx context.Context) error {
	closed, err := c.run(ctx, loadgen.Workload{Kind: loadgen.Chat, Clients: closedClients, MaxInFlight: closedClients}, 1)
	if err != nil {
		return err
	}
	rate := float64(closed.Result.OK) / closed.took
	c.add(closedLoop, "requests/s", rate, closed.cores)
	if err := c.climb(ctx, rate); err != nil {
		return err
	}
	events, err := c.run(ctx, loadgen.Workload{Kind: loadgen.Chat, Stream: true, MaxTokens: streamTokens, Clients: streamClients, MaxInFlight: streamClients}, 1)
	if err != nil {
		return err
	}
	c.add(eventRate, "events/s", float64(events.Result.OK)*(streamTokens+EventsBeyond)/events.took, events.cores)
	for _, rate := range lagRates {
		r, err := c.run(ctx, loadgen.Workload{Kind: loadgen.Chat}, rate)
		if err != nil {
			return err
		}
		for _, q := range []string{"p50", "p99", "p999"} {
			v, _ := r.SendLag.At(q)
			c.add(fmt.Sprintf("send lag %s at %.0f/s", q, rate), "ms", v, r.cores)
		}
		c.add(fmt.Sprintf("latency p50 at %.0f/s, from intended start", rate), "ms", r.P50, r.cores)
	}
	return c.wrk(ctx)
}

// run puts a load on the null server. The rate of a closed loop means nothing.
func (c *calibrator) run(ctx context.Context, w loadgen.Workload, rate float64) (ran, error) {
	w.Name, w.Model, w.URL = "calibrate", "null", "http://"+c.child.Addr
	w.Timeout = 10 * time.Second
	w.Phases = []arrivals.Phase{{Name: "steady", Duration: c.opt.Span, Process: arrivals.Process{Kind: arrivals.Constant, Rate: rate}}}
	before, err := c.child.Usage(ctx)
	if err != nil {
		return ran{}, err
	}
	own := loadgen.ProcessCPU()
	report, err := loadgen.Run(ctx, loadgen.Options{Name: "calibrate", Seed: 1, Drain: time.Second, Workloads: []loadgen.Workload{w}})
	if err != nil {
		return ran{}, err
	}
	own = loadgen.ProcessCPU() - own
	after, err := c.child.Usage(ctx)
	if err != nil {
		return ran{}, err
	}
	if report.Interrupted {
		return ran{}, errors.Join(errors.New("known: the calibration was interrupted"), context.Cause(ctx))
	}
	out := ran{Result: report.Results[0], took: report.Elapsed}
	out.cores = [2]float64{own.Seconds() / out.took, (after.CPU - before.CPU) / out.took}
	if out.OK == 0 {
		return out, fmt.Errorf("known: of %d requests to the null server none was answered: %v", out.Offered, out.Problems)
	}
	return out, nil
}

// kept reports whether a rate was really put on the server and answered: sent
// within 1 %, all ok, and no queue grew.
func (r *ran) kept() bool {
	return math.Abs(r.Achieved-r.Planned) <= r.Planned/100 && r.OK == r.Offered && r.P99 < 100
}

// climb looks for the highest open-loop rates, up from half of what a closed
// loop reached, and then down from there until one is sent on time, too.
func (c *calibrator) climb(ctx context.Context, closed float64) error {
	var best, exact ran
	try := func(rate float64) (kept bool, err error) {
		r, err := c.run(ctx, loadgen.Workload{Kind: loadgen.Chat}, rate)
		if err != nil || !r.kept() {
			return false, err
		}
		if r.Planned > best.Planned {
			best = r
		}
		if r.SendLag.P99 <= lagTarget && r.Planned > exact.Planned {
			exact = r
		}
		return true, nil
	}
	from, _ := slices.BinarySearch(ladder, closed/2)
	for at, missed := from, 0; at < len(ladder) && missed < 2; at++ {
		kept, err := try(ladder[at])
		if err != nil {
			return err
		}
		if missed++; kept {
			missed = 0
		}
	}
	for at := from - 1; at >= 0 && exact.Planned == 0; at-- {
		if _, err := try(ladder[at]); err != nil {
			return err
		}
	}
	c.add(openLoop, "requests/s", best.Achieved, best.cores)
	c.add(punctual, "requests/s", exact.Achieved, exact.cores)
	return nil
}

// add enters a figure of this round.
func (c *calibrator) add(name, unit string, v float64, cores [2]float64) {
	i := slices.IndexFunc(c.out.Figures, func(f Figure) bool { return f.Name == name })
	if i < 0 {
		i = len(c.out.Figures)
		c.out.Figures = append(c.out.Figures, Figure{Name: name, Unit: unit, Target: targets[name]})
	}
	f := &c.out.Figures[i]
	f.Rounds, f.cores = append(f.Rounds, v), append(f.cores, cores)
}

var targets = map[string]float64{openLoop: unaryTarget, eventRate: eventsTarget, "send lag p99 at 5000/s": lagTarget}

// settle takes the best of the rounds. Noise of other work only ever makes
// rates lower and times longer.
func (f *Figure) settle() {
	less := func(a, b float64) bool { return a < b }
	if f.Unit == "ms" {
		less = func(a, b float64) bool { return a > b }
	}
	best := 0
	for i, v := range f.Rounds {
		if less(f.Rounds[best], v) {
			best = i
		}
	}
	f.Best, f.Generator, f.Server = f.Rounds[best], f.cores[best][0], f.cores[best][1]
	sorted := slices.Sorted(slices.Values(f.Rounds))
	n := len(sorted)
	f.Median = (sorted[(n-1)/2] + sorted[n/2]) / 2
	f.OK = f.Target == 0 || !less(f.Best, f.Target)
}

// last is the round that just ended, in words.
func (c *Calibration) last() string {
	out := ""
	for _, f := range c.Figures {
		if v := f.Rounds[len(f.Rounds)-1]; f.Target > 0 || f.Name == closedLoop {
			out += fmt.Sprintf("%s: %s; ", f.Name, f.show(v))
		}
	}
	return out
}

func (f *Figure) show(v float64) string {
	if f.Unit == "ms" {
		return fmt.Sprintf("%.3f ms", v)
	}
	return fmt.Sprintf("%.0f %s", v, f.Unit)
}

// WriteTable writes the figures for a terminal.
func (c *Calibration) WriteTable(w io.Writer) error {
	fmt.Fprintf(w, "%s/%s, %d CPUs, %s; best of %d rounds, null server in a process of its own on the same machine\n", c.Host.OS, c.Host.Arch, c.Host.CPUs, c.Host.Go, c.Rounds)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\tbest\tmedian\ttarget\t\tgenerator cores\tserver cores")
	for _, f := range c.Figures {
		target, verdict := "", ""
		if f.Target > 0 {
			target, verdict = f.show(f.Target), "ok"
			if !f.OK {
				verdict = "MISSED"
			}
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%.2f\t%.2f\n", f.Name, f.show(f.Best), f.show(f.Median), target, verdict, f.Generator, f.Server)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, n := range c.Notes {
		if _, err := fmt.Fprintln(w, n); err != nil {
			return err
		}
	}
	return nil
}
