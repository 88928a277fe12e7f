package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/goccy/go-yaml"

	"aloft/arbiter"
	"aloft/loadgen/arrivals"
)

// tuned is a node of one GPU with an embedding model that has four replicas.
const tuned = `
node: {devices: simulated, simulated: [{family: A100-80GB, layout: [1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb, 1g.10gb]}]}
models:
  - {name: e, engine: synthetic, endpoints: [embeddings], shape: 1g.10gb, replicas: {min: 1, max: 4}, target: 1s, law: {alpha: 5ms, beta: 500us}, batch: {max_tokens: 512}}
`

// tuneWith runs the command on a recording.
func tuneWith(t *testing.T, text string, more func(*tuneCmd)) (string, error) {
	t.Helper()
	var out bytes.Buffer
	c := &tuneCmd{Config: write(t, "aloft.yaml", tuned), Recording: write(t, "20270131T140500.000.jsonl", text), Hours: 1, Live: liveNone}
	c.URL = "http://127.0.0.1:1" // nobody
	if more != nil {
		more(c)
	}
	err := c.Run(t.Context(), &kong.Context{Kong: &kong.Kong{Stdout: &out}})
	return out.String(), err
}

// quarterly is two hours that are busy in each hour's first quarter, as JSON lines.
func quarterly(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	w := arrivals.NewWriter(&b)
	for s := range 7200 {
		n := 100
		if s%3600 < 900 {
			n = 3600 // 1.8 of four replicas
		}
		for k := range 8 {
			r := arrivals.Record{Offset: time.Duration(s)*time.Second + time.Duration(k)*125*time.Millisecond, Endpoint: "embeddings", Model: "e", InputTokens: n / 8}
			if err := w.Write(r); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Write(arrivals.Record{Endpoint: "embeddings", Model: "e", Class: "offline", Offset: time.Duration(s) * time.Second, InputTokens: 5000}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestTune: the newest hour of a recording is replayed by the simulator under the
// whole grid, with laws of the hour before; what is proposed is a configuration, and
// rows of batches are no clients' traffic.
func TestTune(t *testing.T) {
	text := quarterly(t)
	out, err := tuneWith(t, text+`{"offset_ns":7200000000000,"endp`, func(c *tuneCmd) { c.JSON = true })
	if err != nil {
		t.Fatal(err)
	}
	var got tuning
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got.Hours != 1 || got.Learned < 0.99 || got.Learned > 1.01 || !strings.Contains(got.Cut, "64800 requests that it holds") || len(got.Models) != 2 {
		t.Errorf("%+v", got)
	}
	static, now := got.Runs[0], got.Runs[1]
	if static.Name != "static split" || static.Caused != 0 || static.Attainment < 0.99 || now.Name != "as it is" {
		t.Errorf("static %+v, as it is %+v", static, now)
	}
	if now.LentH <= static.LentH || now.Aloft <= static.Aloft {
		t.Errorf("lending lends %.2f slice-h at aloft ratio %.3f, a static split %.2f at %.3f", now.LentH, now.Aloft, static.LentH, static.Aloft)
	}
	if n := len(tuneQuantiles) * len(tuneHolds); len(got.Runs) < n+8 || len(got.Runs) > n+16 {
		t.Errorf("%d runs: the grid is bounded", len(got.Runs))
	}
	lends := func(risk arbiter.Risk) float64 { // with no spare, which strict has none of
		i := slices.IndexFunc(got.Runs, func(r tuneRun) bool { return r.Risk == risk && (risk == arbiter.Strict || r.Spare == 0) })
		return got.Runs[max(i, 0)].LentH
	}
	if strict, normal := lends(arbiter.Strict), lends(arbiter.Normal); strict > normal || normal <= static.LentH {
		t.Errorf("strict lends %.2f slice-h, normal %.2f, a static split %.2f", strict, normal, static.LentH)
	}
	for _, r := range got.Runs {
		t.Logf("%-40s aloft %.3f lent %.2f caused %.1f", r.Name, r.Aloft, r.LentH, r.Caused)
	}
}

// TestTuneProposes: the text that is proposed is a part of a configuration.
func TestTuneProposes(t *testing.T) {
	g := tuning{Recording: "r", Runs: []tuneRun{{tuneSetting: tuneSetting{Name: "static split"}}},
		Proposal: tuneProposal{tuneSetting: tuneSetting{Risk: arbiter.Strict, LendAbove: 0.35, ReclaimBelow: 0.15, Spare: 1, Quantile: 0.999, Hold: 2 * time.Minute}}}
	var b strings.Builder
	g.draw(&b)
	_, text, ok := strings.Cut(b.String(), "nothing was changed:\n\n")
	next := defaults()
	if err := yaml.UnmarshalWithOptions([]byte(text), &next, yaml.Strict()); !ok || err != nil {
		t.Fatalf("%v:\n%s", err, b.String())
	}
	if a := next.Arbiter; next.policy(time.Time{}).Validate() != nil || a.Risk != "strict" || a.Hold != 2*time.Minute || a.RiseQuantile != 0.999 {
		t.Errorf("%+v", a)
	}
}

// TestPropose: among safe settings the one that gains most, and no change for next to
// nothing; among those that are not, the least harm.
func TestPropose(t *testing.T) {
	run := func(name string, follows bool, aloft, caused float64, safe bool) tuneRun {
		r := tuneRun{Aloft: aloft, Caused: caused, Safe: safe}
		r.Name, r.Follows = name, follows
		if !follows {
			_, _ = fmt.Sscanf(name, "%f", &r.Quantile)
		}
		return r
	}
	for _, c := range []struct {
		name string
		runs []tuneRun
		want string
		keep bool
		gain float64
	}{
		{"more of it", []tuneRun{run("now", true, 0.6, 1, true), run("a", true, 0.65, 5, true), run("b", true, 0.7, 50, false)}, "a", false, 0.05},
		{"next to nothing", []tuneRun{run("now", true, 0.6, 1, true), run("a", true, 0.6015, 0, true)}, "now", true, 0},
		{"now is not safe", []tuneRun{run("now", true, 0.6, 100, false), run("a", true, 0.5, 3, true)}, "a", false, -0.1},
		{"nothing is", []tuneRun{run("now", true, 0.6, 100, false), run("a", true, 0.7, 60, false), run("b", true, 0.5, 80, false)}, "a", false, 0.1},
	} {
		now := run("0.9", false, 0.5, 0, true)
		now.Quantile = 0
		p := propose(append(c.runs, now))
		if p.Name != c.want || p.Keep != c.keep || p.Gain < c.gain-1e-9 || p.Gain > c.gain+1e-9 {
			t.Errorf("%s: %+v", c.name, p)
		}
	}
	runs := []tuneRun{run("now", true, 0.6, 1, true), run("0.99", false, 0.5, 0, true), run("1", false, 0.55, 0, true), run("0.5", false, 0.8, 900, false)}
	if p := propose(runs); p.Name != "now" || p.Quantile != 1 || p.Keep {
		t.Errorf("before a law: %+v", p)
	}
}

// TestTuneRefuses says what is missing.
func TestTuneRefuses(t *testing.T) {
	few := strings.Join(strings.SplitAfter(quarterly(t), "\n")[:1000], "")
	for _, c := range []struct {
		text, want string
		more       func(*tuneCmd)
	}{
		{few, "an hour is the least", nil},
		{"", "it has no requests", nil},
		{"{\"a\n{}\n", "line 1", nil},
		{few, "--hours 0: want more than 0", func(c *tuneCmd) { c.Hours = 0 }},
		{few, "--rate huge=10: want a model", func(c *tuneCmd) { c.Rate = map[string]float64{"huge": 10} }},
		{few, "--rate e=-1: want", func(c *tuneCmd) { c.Rate = map[string]float64{"e": -1} }},
		{strings.ReplaceAll(few, `"model":"e"`, `"model":"lm"`), "models.lm.service_time.alpha_ms", func(c *tuneCmd) {
			c.Config = write(t, "lm.yaml", strings.Replace(strings.Replace(tuned, "name: e,", "name: lm,", 1), "[embeddings]", "[chat]", 1))
		}},
	} {
		if _, err := tuneWith(t, c.text, c.more); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}
