package page

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"aloft/loadgen"
	"aloft/loadgen/page/sheet"
)

// Run writes the page of one run.
func Run(w io.Writer, r *loadgen.Report) error {
	d := sheet.Document{Title: orUnnamed(r.Name), Kind: "Load report" + when(r.Started, r.Elapsed), Verdict: verdictOf(r)}
	d.Notes = append(d.Notes, "Times count from the intended start of a request, which was planned before the run, unless they say “from send”. Good means whole and within every target; shares are of all that was offered.",
		"Left out are offered requests without this figure: refused, failed, or no stream of two tokens. One that the generator gave up counts with its age then, as “at least”.")
	if len(r.Failed) > 0 {
		d.Notes = append(d.Notes, "What helps: "+loadgen.WhatHelps+".")
	}
	for _, text := range r.Warnings {
		d.Notes = append(d.Notes, "Warning: "+text)
	}
	if r.WarmUp != nil {
		d.Notes = append(d.Notes, fmt.Sprintf("The warm-up sent %d requests before, of which %d were ok; they are in no figure.", r.WarmUp.Offered, r.WarmUp.OK))
	}
	d.Add(sheet.Section{Title: "Overview", Charts: []*sheet.Chart{outcomeBars(r.Results)}, Tables: append(overview(r), outcomeTable(r.Results))})
	for _, of := range byWorkload(r.Results) {
		addWorkload(&d, r, of)
	}
	addGenerator(&d, r)
	return d.Write(w)
}

// when says when a run was and how long it took.
func when(started time.Time, elapsed float64) string {
	if started.IsZero() {
		return ""
	}
	return fmt.Sprintf(", %s, %s s", started.UTC().Format("2006-01-02 15:04:05 UTC"), strconv.FormatFloat(elapsed, 'f', 0, 64))
}

func orUnnamed(name string) string {
	if strings.TrimSpace(name) == "" {
		return "(no name)"
	}
	return name
}

// verdictOf is loud when the generator failed: then no figure below counts.
func verdictOf(r *loadgen.Report) sheet.Verdict {
	if len(r.Failed) > 0 {
		return sheet.Verdict{Class: "bad", Text: "THIS RUN DOES NOT COUNT: the generator did not send as planned", Reasons: r.Failed}
	}
	offered, ok, answered := 0, 0, 0
	closed := false
	var each []string
	for i := range r.Results {
		x := &r.Results[i]
		offered, ok, closed = offered+x.Offered, ok+x.OK, closed || x.Closed > 0
		answered += x.OK + x.Late
		if len(r.Results) > 1 {
			each = append(each, fmt.Sprintf("%s, %s: %s of %d good, %s/s", x.Name, x.Phase, sheet.Part(x.OK, x.Offered), x.Offered, sheet.Number(x.Good)))
		}
	}
	v := sheet.Verdict{Class: "fact", Text: fmt.Sprintf("%s of %d offered requests were good", sheet.Part(ok, offered), offered), Reasons: each}
	switch {
	case r.Interrupted:
		v.Class, v.Text = "warn", "Interrupted: these are the results so far. "+v.Text
	case closed:
		v.Class, v.Text = "warn", v.Text+". A closed loop is among them, for comparison only: its latencies hide what a stalled server costs"
	case offered == 0:
		v = sheet.Verdict{Class: "warn", Text: "Nothing was offered"}
	}
	if offered > 0 && answered == 0 {
		v.Class, v.Text = "bad", "NO REQUEST WAS ANSWERED. "+v.Text
	}
	return v
}

// byWorkload splits results, which are in order, by their workload.
func byWorkload(results []loadgen.Result) [][]*loadgen.Result {
	var out [][]*loadgen.Result
	for i := range results {
		if n := len(out); n > 0 && out[n-1][0].Name == results[i].Name {
			out[n-1] = append(out[n-1], &results[i])
		} else {
			out = append(out, []*loadgen.Result{&results[i]})
		}
	}
	return out
}

func overview(r *loadgen.Report) []sheet.Table {
	ended := sheet.Table{Caption: "Each phase of each workload", Text: 3, Head: []string{"Workload", "Phase", "Loop", "Offered", "Ok", "Late", "Shed", "Failed", "Good", "Good/s", "Planned/s", "Sent/s", "Good tokens/s"}}
	times := sheet.Table{Caption: "Its times in milliseconds, from intended start", Text: 2, Head: []string{"Workload", "Phase", "p50", "p95", "p99", "Target", "TTFT p50", "TTFT p99", "Target", "TPOT p50", "TPOT p99", "Target"}}
	for i := range r.Results {
		x := &r.Results[i]
		ended.Rows = append(ended.Rows, []string{x.Name, x.Phase, loop(x), itoa(x.Offered), itoa(x.OK), itoa(x.Late), itoa(x.Shed), itoa(x.Failed), sheet.Part(x.OK, x.Offered),
			sheet.Number(x.Good), sheet.OrDash(x.Planned, x.Closed == 0), sheet.Number(x.Achieved), sheet.OrDash(x.GoodTokens, x.Tokens.Completion > 0)})
		goal := func(ms float64) string { return sheet.OrDash(ms, ms > 0) }
		times.Rows = append(times.Rows, []string{x.Name, x.Phase, at(&x.Quantiles, "p50"), at(&x.Quantiles, "p95"), at(&x.Quantiles, "p99"), goal(x.Targets.E2E),
			at(x.TTFT, "p50"), at(x.TTFT, "p99"), goal(x.Targets.TTFT), at(x.TPOT, "p50"), at(x.TPOT, "p99"), goal(x.Targets.TPOT)})
	}
	if !slices.ContainsFunc(r.Results, func(x loadgen.Result) bool { return x.N > 0 }) {
		return []sheet.Table{ended} // targets alone say nothing
	}
	return []sheet.Table{ended, times}
}

// at is a quantile in milliseconds, or a dash without values.
func at(q *loadgen.Quantiles, name string) string {
	if q == nil || q.N == 0 {
		return "–"
	}
	v, _ := q.At(name)
	return sheet.Number(v)
}

func itoa(n int) string { return strconv.Itoa(n) }

func loop(x *loadgen.Result) string {
	if x.Closed > 0 {
		return fmt.Sprintf("CLOSED, %d clients", x.Closed)
	}
	return "open"
}

// outcomeBars shows of each phase how its requests ended.
func outcomeBars(results []loadgen.Result) *sheet.Chart {
	var legend []sheet.Key
	for _, kind := range []string{"ok", "late", "shed", "failed"} {
		legend = append(legend, sheet.Key{Class: kind, Name: kind})
	}
	rows := make([]sheet.Row, len(results))
	for i := range results {
		x := &results[i]
		rows[i].Name = x.Name + ", " + x.Phase
		at := 0.0
		for _, p := range []struct {
			kind string
			n    int
		}{{"ok", x.OK}, {"late", x.Late}, {"shed", x.Shed}, {"failed", x.Failed}} {
			if p.n > 0 {
				to := at + float64(p.n)/float64(max(x.Offered, 1))
				rows[i].Parts = append(rows[i].Parts, sheet.Span{From: at, To: to, Class: p.kind, Text: fmt.Sprintf("%s, %s: %d %s, %s", x.Name, x.Phase, p.n, p.kind, sheet.Part(p.n, x.Offered))})
				at = to
			}
		}
	}
	return sheet.NewRows("How requests ended", "Shares of offered requests that were ok, late, shed and failed. The table of outcomes has the counts.", legend, rows)
}

// outcomeTable names every way in which requests ended, with the first message.
func outcomeTable(results []loadgen.Result) sheet.Table {
	t := sheet.Table{Caption: "Outcomes; only ok is good", Text: 3, Last: true, Head: []string{"Workload", "Phase", "Outcome", "Requests", "Share of offered", "The first message, or what it means"}}
	for i := range results {
		x := &results[i]
		add := func(o loadgen.Outcome, n int, text string) {
			if n == 0 {
				return
			}
			if problem := x.Problems[o]; problem != "" {
				text = problem
			}
			t.Rows = append(t.Rows, []string{x.Name, x.Phase, string(o), itoa(n), sheet.Part(n, x.Offered), text})
		}
		add(loadgen.OK, x.OK, "whole and within every target")
		late := "whole but over a target"
		if x.Unfinished > 0 {
			late += fmt.Sprintf("; %d were still open at the end of the drain", x.Unfinished)
		}
		add(loadgen.Late, x.Late, late)
		add(loadgen.Shed, x.Shed, fmt.Sprintf("refused because of load, %d of them with Retry-After", x.RetryAfter))
		for _, o := range slices.Sorted(maps.Keys(x.FailedBy)) {
			add(o, x.FailedBy[o], "")
		}
		for _, extra := range []struct {
			what string
			n    int
		}{{"abandoned as planned", x.Abandoned}, {"retries, load in addition", x.Retries}} {
			if extra.n > 0 {
				t.Rows = append(t.Rows, []string{x.Name, x.Phase, extra.what, itoa(extra.n), "–", "not among the offered"})
			}
		}
	}
	return t
}

func addWorkload(d *sheet.Document, r *loadgen.Report, of []*loadgen.Result) {
	first := of[0]
	s := sheet.Section{Title: "Workload " + first.Name, Texts: []string{whatIsSent(r, first)}}
	if first.Closed > 0 {
		s.Badge = "CLOSED LOOP: for comparison only"
		s.Texts = append(s.Texts, fmt.Sprintf("%d clients each wait for their answer before they send again: a server that stalls slows the load down, and the latencies hide it.", first.Closed))
	}
	s.Charts, s.Folded = timeLine(r, of)
	s.Tables = cutTables(r.Cuts, first.Name)
	d.Add(s)
	for _, x := range of {
		addPhase(d, x, s.Badge)
	}
}

// whatIsSent says what requests of a workload are, and where they went.
func whatIsSent(r *loadgen.Report, x *loadgen.Result) string {
	text := "Requests of kind " + string(x.Kind)
	if x.Model != "" {
		text += " for model " + x.Model
	}
	var config struct {
		Workloads []struct{ Name, URL string }
	}
	if json.Unmarshal(r.Config, &config) == nil {
		for _, w := range config.Workloads {
			if w.Name == x.Name && w.URL != "" {
				text += " at " + w.URL
			}
		}
	}
	return text + "."
}

func addPhase(d *sheet.Document, x *loadgen.Result, badge string) {
	s := sheet.Section{Deep: true, Title: x.Name + ", phase " + x.Phase, Badge: badge}
	both := []named{{"from intended start", &x.Quantiles}, {"from send", &x.FromSend}}
	s.Charts = append(s.Charts, quantileChart("Latency to the end of the answer, by quantile", both, x.Targets.E2E), densityChart("Latency to the end of the answer, distribution", both))
	if first := x.Figure("ttft"); first != nil {
		s.Charts = append(s.Charts,
			quantileChart("Time to first token, by quantile", []named{{"from intended start", first}, {"from send", x.Figure("ttft_sent")}}, x.Targets.TTFT),
			quantileChart("Time between tokens, by quantile", []named{{"TPOT, one a request", x.Figure("tpot")}, {"ITL, one a token", x.Figure("itl")}, {"gap, one a read", x.Figure("gap")}}, x.Targets.TPOT))
	}
	t := sheet.Table{Caption: "Distributions, in milliseconds", Text: 2, Head: []string{"Name", "What it is", "Mean", "p50", "p90", "p95", "p99", "p99.9", "Max", "Values", "Left out", "At least"}}
	what := loadgen.Meanings()
	for _, name := range loadgen.Metrics() {
		if q := x.Figure(name); q != nil && q.N > 0 && (name != "lateness" || x.Targets.Smooth > 0) {
			t.Rows = append(t.Rows, []string{name, what[name], sheet.Number(q.Mean), sheet.Number(q.P50), sheet.Number(q.P90), sheet.Number(q.P95), sheet.Number(q.P99), sheet.Number(q.P999), sheet.Number(q.Max),
				strconv.FormatInt(q.N, 10), itoa(q.LeftOut), itoa(q.AtLeast)})
		}
	}
	if len(t.Rows) == 0 {
		s.Texts = append(s.Texts, "No request was answered: there are no latencies.")
	} else {
		s.Tables = append(s.Tables, t)
	}
	if n := x.Tokens.Estimated; n > 0 {
		s.Texts = append(s.Texts, fmt.Sprintf("ESTIMATED: %d answers had no usage; their tokens are counted from chunks, and so are TPOT and ITL.", n))
	}
	if x.Tokens.Completion > 0 {
		s.Texts = append(s.Texts, fmt.Sprintf("Tokens: %d of prompts, %d generated, %d of those in good answers, %s good tokens/s.", x.Tokens.Prompt, x.Tokens.Completion, x.Tokens.Good, sheet.Number(x.GoodTokens)))
	}
	d.Add(s)
}

// cutTables are the figures by tenant, class and length.
func cutTables(cuts []loadgen.Cut, workload string) []sheet.Table {
	var out []sheet.Table
	for _, by := range []struct{ key, caption string }{{"tenant", "By tenant"}, {"class", "By class"}, {"input_tokens", "By length: tenths of the requests by their input tokens"}} {
		t := sheet.Table{Caption: by.caption + ", over all phases", Text: 1, Head: []string{"Name", "Offered", "Ok", "Late", "Shed", "Failed", "Good", "p50 ms", "p99 ms", "TTFT p50 ms", "TTFT p99 ms", "TPOT p99 ms"}}
		for i := range cuts {
			c := &cuts[i]
			if c.Workload != workload || c.By != by.key {
				continue
			}
			t.Rows = append(t.Rows, []string{c.Name, itoa(c.Offered), itoa(c.OK), itoa(c.Late), itoa(c.Shed), itoa(c.Failed), sheet.Part(c.OK, c.Offered),
				at(&c.E2E, "p50"), at(&c.E2E, "p99"), at(c.TTFT, "p50"), at(c.TTFT, "p99"), at(c.TPOT, "p99")})
		}
		if len(t.Rows) > 0 {
			out = append(out, t)
		}
	}
	return out
}

// maxLags bounds the lines of the send lag's chart: with more nobody can tell
// them apart.
const maxLags = 6

// addGenerator is what the generator says of itself, and how to run this again.
func addGenerator(d *sheet.Document, r *loadgen.Report) {
	lag := sheet.Table{Caption: "Send lag: intended start to actual send, in milliseconds", Text: 2, Head: []string{"Workload", "Phase", "Mean", "p50", "p99", "p99.9", "Max", "Sends", "Waited for a slot"}}
	var lines []named
	limit := math.Inf(1) // the strictest
	for i := range r.Results {
		x := &r.Results[i]
		q := &x.SendLag
		if q.N == 0 {
			continue
		}
		limit = min(limit, x.LagLimit())
		lag.Rows = append(lag.Rows, []string{x.Name, x.Phase, sheet.Number(q.Mean), sheet.Number(q.P50), sheet.Number(q.P99), sheet.Number(q.P999), sheet.Number(q.Max), strconv.FormatInt(q.N, 10), itoa(x.Waited)})
		if len(lines) < maxLags {
			lines = append(lines, named{x.Name + ", " + x.Phase, q})
		}
	}
	s := sheet.Section{Title: "The generator", Charts: []*sheet.Chart{quantileChart("Send lag by quantile", lines, limit)}}
	if len(lag.Rows) > 0 {
		s.Tables = append(s.Tables, lag)
	}
	if r.Host.CPUShare > 0 {
		s.Texts = append(s.Texts, fmt.Sprintf("It used %s of the CPU time that it may have.", sheet.Percent(r.Host.CPUShare)))
	}
	s.Texts = append(s.Texts, "A run counts when the send lag's p99 is at most 1 ms, or 1 % of the target where that is more, and the rate is within 1 % of the plan.")
	d.Add(s)
	facts := sheet.Table{Caption: "What ran", Text: 2, Head: []string{"Fact", "Value"}}
	add := func(key, value string) {
		if value != "" {
			facts.Rows = append(facts.Rows, []string{key, value})
		}
	}
	add("Started", r.Started.Format(time.RFC3339))
	add("Lasted", strconv.FormatFloat(r.Elapsed, 'f', 1, 64)+" s")
	add("Seed", strconv.FormatUint(r.Seed, 10))
	add("Plan hashes, by workload", strings.Join(r.Plan, " "))
	add("Generator", strings.TrimSpace(r.Tool.Version+" "+r.Tool.Commit+modified(r.Tool.Modified)))
	add("Host", strings.TrimSpace(fmt.Sprintf("%s/%s %s", r.Host.OS, r.Host.Arch, r.Host.Kernel)))
	add("CPU", strings.TrimSpace(fmt.Sprintf("%s, %d CPUs, %d for the generator", r.Host.Model, r.Host.CPUs, r.Host.Procs)))
	add("Go", r.Host.Go)
	add("Schema", r.Schema)
	d.Add(sheet.Section{Title: "Configuration", Tables: []sheet.Table{facts}, Code: indented(r.Config)})
}

func modified(is bool) string {
	if is {
		return " (changed)"
	}
	return ""
}

func indented(text json.RawMessage) string {
	var b bytes.Buffer
	if json.Indent(&b, text, "", "  ") != nil {
		return string(text)
	}
	return b.String()
}
