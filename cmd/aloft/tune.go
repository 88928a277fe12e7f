package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/goccy/go-yaml"

	"aloft/loadgen/arrivals"
	"aloft/sim/scenario"
)

// tuneCmd replays a recording under other settings and proposes some.
type tuneCmd struct {
	remote
	Config    string             `help:"Configuration file ($$ALOFT_CONFIG) that the recording was made with." short:"c" type:"path" placeholder:"FILE"`
	Recording string             `arg:"" optional:"" type:"existingfile" help:"Recording of aloft record; default: the newest in the data folder."`
	Rate      map[string]float64 `help:"Tokens a second of one replica of a model that answers merged calls (repeatable); default: as a running server has fitted it." placeholder:"MODEL=TOKENS"`
	Scenario  string             `type:"existingfile" help:"What aloft simulate --trace --scenario-out wrote of the recording, filled in: for models that generate, whose step times no server fits." placeholder:"FILE"`
	Jobs      string             `type:"existingfile" help:"What aloft jobs list --json --limit=1000 said of the time; default: the jobs that a running server knows." placeholder:"FILE"`
	Hours     float64            `help:"Replay the newest so many hours; laws are learned from what came before, if that is an hour or more." default:"6"`
	Workers   int                `help:"Runs that go on at once; 0 = one for each CPU." default:"0"`
	Live      string             `help:"The progress, on standard error: auto redraws a terminal, plain writes a line at times, none." default:"auto" enum:"auto,plain,none"`
}

// tuneDays bounds what laws are learned from: the newest so many days.
const tuneDays = 7

// Run implements kong's command.
func (c *tuneCmd) Run(ctx context.Context, k *kong.Context) error {
	conf, err := common{Config: c.Config}.load()
	if err != nil {
		return err
	}
	if c.Hours <= 0 {
		return fmt.Errorf("--hours %g: want more than 0", c.Hours)
	}
	for name, rate := range c.Rate {
		if rate <= 0 || !slices.ContainsFunc(conf.Models, func(m ModelConfig) bool { return m.Name == name }) {
			return fmt.Errorf("--rate %s=%g: want a model of the configuration and more than 0 tokens a second", name, rate)
		}
	}
	if c.Recording == "" {
		if c.Recording, err = newest(filepath.Join(cmp.Or(c.Data, "aloft-data"), "recordings")); err != nil {
			return err
		}
	}
	r, err := readRecording(c.Recording)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "aloft-tune-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	t := &tuning{conf: conf, Recording: filepath.Base(c.Recording), Cut: r.cut, workers: c.Workers}
	if err := c.worlds(ctx, t, r, dir); err != nil {
		return err
	}
	t.limits()
	view := newProgress(c.Live, os.Stderr, os.Getenv)
	err = t.run(ctx, view)
	view.close()
	if err != nil {
		return err
	}
	t.Ledger = c.ledger(ctx, r.since)
	if c.JSON {
		return json.NewEncoder(k.Stdout).Encode(t)
	}
	t.draw(k.Stdout)
	return nil
}

// newest finds the recording that was begun last.
func newest(dir string) (string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil || len(files) == 0 {
		return "", fmt.Errorf("no recording in %s: let `aloft record on` run for a day or more, or name one", dir)
	}
	return slices.Max(files), nil // their names begin with the time
}

// heard is a recording that has been read.
type heard struct {
	rows  []arrivals.Record // of clients: rows of batches go where lending lets them
	since time.Time         // when it began; zero = its name does not say
	cut   string            // what a crash cost; "" = nothing
}

// readRecording reads what is good of a recording.
func readRecording(path string) (*heard, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := &heard{}
	r.rows, err = arrivals.Read(f, 0)
	switch {
	case errors.Is(err, arrivals.ErrCut):
		r.cut = fmt.Sprintf("the recording was cut off by a crash: its last line is lost, and up to %v of requests before it; the %d requests that it holds are used", recordFlush, len(r.rows))
	case err != nil:
		return nil, fmt.Errorf("%s: %w", path, err)
	case len(r.rows) == 0:
		return nil, fmt.Errorf("%s: it has no requests", path)
	}
	r.rows = slices.DeleteFunc(r.rows, func(x arrivals.Record) bool { return x.Class == "offline" })
	if at, err := time.Parse(recordName, strings.TrimSuffix(filepath.Base(path), ".jsonl")); err == nil {
		r.since = at
	}
	return r, nil
}

// worlds draws what is replayed, and what laws are learned from: the hours before
// it, if they are enough; else the same hours, which flatters, and is said.
func (c *tuneCmd) worlds(ctx context.Context, t *tuning, r *heard, dir string) error {
	var status Status
	_ = c.client().call(ctx, http.MethodGet, "/aloft/v1/status", nil, &status) // without a server the configuration must do
	c.rated(&status)
	known, err := c.recorded(ctx)
	if err != nil {
		return err
	}
	if t.node, err = tuneNode(ctx, t.conf, &status); err != nil {
		return err
	}
	s, err := c.scenario(t.conf, r.rows, &status)
	if err != nil {
		return err
	}
	if len(r.rows) == 0 {
		return errors.New("tune: the recording has rows of batches alone")
	}
	last := r.rows[len(r.rows)-1].Offset + time.Second
	window := min(last, time.Duration(c.Hours*float64(time.Hour)))
	if last < time.Hour {
		return fmt.Errorf("tune: %v are recorded; an hour is the least to judge by", last.Round(time.Second))
	}
	from := last - window
	t.Hours = window.Hours()
	if t.world, err = part(s, filepath.Join(dir, "judged.jsonl"), r.rows, stretch{from, last}); err != nil {
		return err
	}
	t.past = t.world
	if before := max(0, from-tuneDays*24*time.Hour); from-before >= time.Hour {
		t.Learned = (from - before).Hours()
		if t.past, err = part(s, filepath.Join(dir, "before.jsonl"), r.rows, stretch{before, from}); err != nil {
			return err
		}
	}
	if !r.since.IsZero() {
		t.queue(known, r.since.Add(from))
	}
	return nil
}

// rated takes --rate for what a server has fitted: calls of any size at that speed.
func (c *tuneCmd) rated(status *Status) {
	for name, rate := range c.Rate {
		fit := FitStatus{Alpha: 1, Beta: 1e6 / rate, Largest: 8192, Rate: rate}
		i := slices.IndexFunc(status.Models, func(m ModelStatus) bool { return m.Name == name })
		if i < 0 {
			i, status.Models = len(status.Models), append(status.Models, ModelStatus{Name: name})
		}
		status.Models[i].Batching.Fits = []FitStatus{fit}
	}
}

// scenario is the node, the models and their speeds.
func (c *tuneCmd) scenario(conf *Config, rows []arrivals.Record, status *Status) (*scenario.Scenario, error) {
	if c.Scenario != "" {
		return scenario.Load(c.Scenario)
	}
	if len(rows) == 0 {
		return nil, errors.New("tune: the recording has no requests of clients")
	}
	keys, missing, err := recordedWorld(conf, rows, status, true)
	if err != nil {
		return nil, fmt.Errorf("tune: %w", err)
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("tune: neither the configuration nor a running server says\n  %s\nstart the server, give --rate MODEL=TOKENS_PER_SECOND for merged calls, or write the scenario with aloft simulate --trace RECORDING --scenario-out FILE, fill it in, and give --scenario FILE",
			strings.Join(missing, "\n  "))
	}
	for _, m := range keys["models"].([]map[string]any) {
		m["arrivals"] = map[string]any{"trace": "recording", "of_model": m["name"], "as_recorded": true}
	}
	keys["name"] = "recording"
	text, err := yaml.Marshal(keys)
	if err != nil {
		return nil, fmt.Errorf("tune: %w", err)
	}
	s, err := scenario.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("tune: the recording as a scenario: %w", err)
	}
	return s, nil
}

// stretch is a part of a recording.
type stretch struct{ from, to time.Duration }

// part draws the world of a part of the recording, which it writes to a file.
func part(s *scenario.Scenario, file string, rows []arrivals.Record, of stretch) (*scenario.World, error) {
	from, to := of.from, of.to
	world := *s
	world.HorizonH = scenario.Hours((to - from).Hours())
	judged := (to - from).Seconds()
	world.Measure = scenario.Measure{WarmUpS: scenario.Seconds(min(300, judged/20)), TailS: scenario.Seconds(min(120, judged/20))}
	world.Models = slices.DeleteFunc(slices.Clone(s.Models), func(m scenario.Model) bool {
		return !slices.ContainsFunc(rows, func(r arrivals.Record) bool { return r.Model == m.Name && from <= r.Offset && r.Offset < to })
	})
	if len(world.Models) == 0 {
		return nil, fmt.Errorf("tune: no model has requests in the %.1f h from %v on", float64(world.HorizonH), from)
	}
	f, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	w := arrivals.NewWriter(f)
	for _, r := range rows {
		if r.Offset < from || r.Offset >= to {
			continue
		}
		r.Offset -= from
		if err = w.Write(r); err != nil {
			break
		}
	}
	if err = errors.Join(err, w.Flush(), f.Close()); err != nil {
		return nil, fmt.Errorf("tune: %w", err)
	}
	for i := range world.Models {
		world.Models[i].Arrivals = scenario.Arrivals{Trace: file, OfModel: world.Models[i].Name, AsRecorded: true}
	}
	return world.Draw(1, scenario.DrawOptions{})
}

// ledger is what the server's own says of the time since the recording began; nil =
// nobody says.
func (c *tuneCmd) ledger(ctx context.Context, since time.Time) *Report {
	if since.IsZero() {
		return nil
	}
	var r Report
	q := url.Values{"since": {since.Format(time.RFC3339Nano)}}
	if err := c.client().call(ctx, http.MethodGet, "/aloft/v1/report?"+q.Encode(), nil, &r); err != nil || r.SliceS == 0 {
		return nil
	}
	return &r
}

// limits says what a replay cannot know.
func (t *tuning) limits() {
	t.Modelled = "replayed by the simulator (modelled): " + tuneLimits
	if t.Jobs > 0 {
		t.Modelled += fmt.Sprintf("the %d jobs that were recorded, which run as long as they did, and start, save and stop as in the standard scenarios", t.Jobs)
	} else {
		t.Modelled += "jobs a queue that never ends, since none are recorded of these hours"
	}
}

// queued is how long jobs waited; a queue that never ends always waits.
func (t *tuning) queued(r tuneRun) string {
	if t.Jobs == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f", r.Queued)
}

// draw writes the table and what is proposed.
func (t *tuning) draw(w io.Writer) {
	fmt.Fprintf(w, "%s: %.1f h of it %s\n", t.Recording, t.Hours, t.Modelled)
	if t.Cut != "" {
		fmt.Fprintln(w, t.Cut)
	}
	if t.Learned > 0 {
		fmt.Fprintf(w, "laws are learned from the %.1f h before\n", t.Learned)
	} else {
		fmt.Fprintln(w, "laws are learned from the same hours, since less than one came before: they look better than they are")
	}
	if l := t.Ledger; l != nil {
		fmt.Fprintf(w, "the ledger since it began, as booked live: aloft ratio %.3f, mode %s\n", l.Aloft, l.Mode)
	}
	if t.LeftOut > 0 {
		fmt.Fprintf(w, "%d jobs are left out: this node has no slice of their shape\n", t.LeftOut)
	}
	fmt.Fprintf(w, "\n%-44s %7s %7s %9s %8s %7s %9s %8s\n", "setting", "aloft", "lent h", "attain. %", "caused", "lost %", "reclaims", "queued s")
	for _, r := range t.Runs {
		mark := ""
		if !r.Safe {
			mark = "  too risky"
		}
		fmt.Fprintf(w, "%-44s %7.3f %7.1f %9.2f %8.1f %7.2f %5d/%-3d %8s%s\n", r.Name, r.Aloft, r.LentH, 100*r.Attainment, r.Caused, 100*r.Lost, r.Kept, r.Broken, t.queued(r), mark)
	}
	fmt.Fprint(w, "\naloft: useful slice time over all. lent h: slice-hours that jobs held. attain.: of the worst model. caused: misses\nper 100,000 requests that a static split would not have had. reclaims: within their bound / broken.\nqueued: of the recorded jobs, on average.\n")
	for _, m := range t.Models {
		fmt.Fprintf(w, "\n%s, law at risk %s: ready are level + %.2f × level^%g replicas, never below %.2f, held %v; in the past it would have lent %.2f replicas on average and made %.4f %% of the work late\n",
			m.Name, m.Risk, m.Fast, m.Power, m.Floor, m.Hold, max(0, m.Lent), 100*m.Late)
	}
	p := t.Proposal
	fmt.Fprintf(w, "\n%s\n", p.Says)
	if p.Keep {
		return
	}
	fmt.Fprintf(w, "To paste, if you agree; nothing was changed:\n\narbiter:\n  risk: %s\n  lend_above: %g\n  reclaim_below: %g\n  spare: %d\n  rise_quantile: %g\n  hold: %v\n",
		p.Risk, p.LendAbove, p.ReclaimBelow, p.Spare, p.Quantile, p.Hold)
}
