package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/alecthomas/kong"

	"aloft/arbiter"
	"aloft/gpu"
	"aloft/loadgen/arrivals"
)

// tuneCmd replays a recording under other settings and proposes some.
type tuneCmd struct {
	remote
	Config    string             `help:"Configuration file ($$ALOFT_CONFIG) that the recording was made with." short:"c" type:"path" placeholder:"FILE"`
	Recording string             `arg:"" optional:"" type:"existingfile" help:"Recording of aloft record; default: the newest in the data folder."`
	Rate      map[string]float64 `help:"Tokens a second of one replica of a model (repeatable); default: as a running server has fitted it." placeholder:"MODEL=TOKENS"`
}

// tuneRisks are the shares of the work that lending may make late, from careful
// to bold; 0 is risk strict.
var tuneRisks = []struct {
	name   string
	budget float64
}{{"strict", 0}, {"careful", 2e-5}, {"normal", 2e-4}, {"bold", 2e-3}}

// tuneDays bounds what is replayed: the newest so many days.
const tuneDays = 7

// Run implements kong's command.
func (c *tuneCmd) Run(ctx context.Context, k *kong.Context) error {
	conf, err := common{Config: c.Config}.load()
	if err != nil {
		return err
	}
	if c.Recording == "" {
		if c.Recording, err = newest(filepath.Join(cmp.Or(c.Data, "aloft-data"), "recordings")); err != nil {
			return err
		}
	}
	f, err := os.Open(c.Recording)
	if err != nil {
		return err
	}
	defer f.Close()
	rows, err := arrivals.Read(f, 0)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Recording, err)
	}
	for name, rate := range c.Rate {
		if rate <= 0 || !slices.ContainsFunc(conf.Models, func(m ModelConfig) bool { return m.Name == name }) {
			return fmt.Errorf("--rate %s=%g: want a model of the configuration and more than 0 tokens a second", name, rate)
		}
	}
	rates := c.Rate
	if rates == nil {
		rates = c.fitted(ctx)
	}
	return tune(k.Stdout, conf, rows, rates)
}

// newest finds the recording that was begun last.
func newest(dir string) (string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil || len(files) == 0 {
		return "", fmt.Errorf("no recording in %s: let `aloft record on` run for a day or more, or name one", dir)
	}
	return slices.Max(files), nil // their names begin with the time
}

// fitted asks a running server how fast its replicas are; none = nothing is known.
func (c *tuneCmd) fitted(ctx context.Context) map[string]float64 {
	var s Status
	out := map[string]float64{}
	if c.client().call(ctx, http.MethodGet, "/aloft/v1/status", nil, &s) != nil {
		return out
	}
	for _, m := range s.Models {
		for _, f := range m.Batching.Fits {
			out[m.Name] = max(out[m.Name], f.Rate)
		}
	}
	return out
}

// tune proposes settings of the arbiter for a recording. It applies nothing.
func tune(w io.Writer, conf *Config, rows []arrivals.Record, rates map[string]float64) error {
	p, a := conf.policy(time.Time{}), conf.Arbiter
	total := map[string][4]arbiter.Trial{}
	fmt.Fprintln(w, "What each setting would have done with the recorded arrivals: modelled, one model apart from the others.")
	fmt.Fprintf(w, "\n%-14s %-9s %9s %6s %14s %12s %9s\n", "model", "risk", "quantile", "hold", "replicas lent", "work late", "loans/h")
	for i := range conf.Models {
		m := &conf.Models[i]
		rate := rates[m.Name]
		if rate == 0 && m.Engine == "synthetic" && m.Law.Beta > 0 {
			rate = 1 / m.Law.Beta.Seconds()
		}
		if rate <= 0 {
			fmt.Fprintf(w, "%-14s how fast a replica is is not known: start the server, or say --rate %s=TOKENS_PER_SECOND\n", m.Name, m.Name)
			continue
		}
		share := cmp.Or(m.Static, m.Replicas.Max)
		o := arbiter.LearnOptions{Share: share, Fast: a.FastHorizon, Slow: a.SlowHorizon, Slack: m.Target, OutBack: 2 * a.FastHorizon}
		model := arbiter.Model{Target: m.Target, Needs: gpu.Shape{}}
		if !m.merges() {
			model.Slots = m.Slots
		}
		past := p.PastOf(model, workOf(m, rows, rate))
		now := arbiter.Replay(past, o, a.RiseQuantile, a.Hold)
		if !now.Learned() {
			fmt.Fprintf(w, "%-14s %d s are recorded; an hour is the least to judge by\n", m.Name, len(past.Work))
			continue
		}
		fmt.Fprint(w, trialLine(m.Name, "as it is", now, share))
		var trials [4]arbiter.Trial
		for i, r := range tuneRisks {
			o.Budget, o.Strict = r.budget, r.budget == 0
			trials[i] = arbiter.Learn(past, o)
			fmt.Fprint(w, trialLine(m.Name, r.name, trials[i], share))
		}
		total[m.Name] = trials
	}
	if len(total) == 0 {
		return fmt.Errorf("nothing to propose: no model has both an hour of recorded requests and a known speed")
	}
	propose(w, total)
	return nil
}

func trialLine(model, risk string, t arbiter.Trial, share int) string {
	return fmt.Sprintf("%-14s %-9s %9g %5.0fs %7.2f of %-3d %9.4f %% %9.1f\n", model, risk, t.Quantile, t.Hold.Seconds(), max(0, t.Lent), share, 100*t.Late, t.Moves)
}

// workOf is a model's work in replica seconds that arrived in each second.
func workOf(m *ModelConfig, rows []arrivals.Record, rate float64) []float64 {
	var work []float64
	for _, r := range rows {
		if r.Model != m.Name || r.Class == "offline" {
			continue
		}
		at := int(r.Offset / time.Second)
		for len(work) <= at {
			work = append(work, 0)
		}
		work[at] += float64(r.InputTokens) / rate
	}
	return work[max(0, len(work)-tuneDays*24*3600):]
}

// propose writes what to paste: the most careful of the models' settings at risk
// normal, since quantile and hold are one for all.
func propose(w io.Writer, total map[string][4]arbiter.Trial) {
	quantile, hold, lent, late := 0.0, time.Duration(0), 0.0, 0.0
	for _, t := range total {
		n := t[2]
		quantile, hold = max(quantile, n.Quantile), max(hold, n.Hold)
		lent, late = lent+max(0, n.Lent), max(late, n.Late)
	}
	risk := "normal"
	if quantile > 1 { // more than the worst rise seen
		risk, quantile = "strict", 1
	}
	fmt.Fprintf(w, "\nTo paste, if you agree; nothing was changed. At most %.2f replicas lent on average, at most %.4f %% of a model's work late because of it:\n\n", lent, 100*late)
	fmt.Fprintf(w, "arbiter:\n  risk: %s\n  rise_quantile: %g\n  hold: %v\n", risk, quantile, hold)
}
