// Package page renders a simulation as one HTML page: a study of policies, or
// what changed between two. All that it shows is modelled, and it says so.
package page

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"aloft/arbiter"
	"aloft/loadgen/page/sheet"
	"aloft/sim/study"
)

// Write writes the page of a study.
func Write(w io.Writer, s *study.Study) error {
	sums := s.Summaries()
	d := sheet.Document{Title: orUnnamed(s.Scenario), Kind: kind(s), Verdict: verdict(s, sums)}
	d.Notes = append(d.Notes, "Everything on this page is "+study.Modelled+". What is modelled and how, what is not, and what every figure means stands in docs/simulate.md.")
	if len(s.Runs) > 0 {
		overview(&d, s, sums)
		if len(s.Variants) > 1 {
			whatIf(&d, s, sums)
		}
		jobs(&d, s, sums)
		reclaims(&d, s)
		for i, p := range drawn(s) {
			d.Add(overTime(s, p, i == 0))
		}
	}
	configuration(&d, s)
	return d.Write(w)
}

func orUnnamed(name string) string {
	if strings.TrimSpace(name) == "" {
		return "(no name)"
	}
	return name
}

func kind(s *study.Study) string {
	out := fmt.Sprintf("Simulation (modelled), hours %s to %s, %d seeds", sheet.Plain(s.FromH), sheet.Plain(s.ToH), len(s.Seeds))
	if len(s.Seeds) == 1 {
		out = strings.TrimSuffix(out, "s")
	}
	if s.Rows {
		out += ", batch rows in ready replicas"
	}
	return out
}

// verdict is what each policy but static came to, in one line.
func verdict(s *study.Study, sums []study.Summary) sheet.Verdict {
	v := sheet.Verdict{Class: "fact", Text: "Simulated: no GPU was used"}
	for i := range sums {
		x := &sums[i]
		factor, ok := x.Stats["aloft_to_static"]
		if x.Policy == study.Static || !ok || len(v.Reasons) == maxReasons {
			continue
		}
		text := fmt.Sprintf("%s: aloft ratio %s, %s × static", called(s, x), sheet.Number(x.Stats["aloft_ratio"].Value), sheet.Number(factor.Value))
		if c, ok := x.Stats["caused"]; ok {
			text += fmt.Sprintf("; %s misses caused by lending per 100,000 requests, worst seed %s", sheet.Number(c.Value), sheet.Number(c.Worst))
		}
		if c, ok := x.Stats["completion_shorter"]; ok {
			text += fmt.Sprintf("; jobs complete %s × as quickly", sheet.Number(c.Value))
		}
		v.Reasons = append(v.Reasons, text+".")
	}
	switch {
	case len(s.Runs) == 0:
		return sheet.Verdict{Class: "warn", Text: "Nothing was simulated"}
	case s.Interrupted:
		v.Class, v.Text = "warn", "Interrupted: these are the runs that were done until then. "+v.Text
	}
	return v
}

// maxReasons bounds the lines of the verdict; the tables have all policies.
const maxReasons = 9

// called names a policy, and the variant where there are several.
func called(s *study.Study, x *study.Summary) string {
	if len(s.Variants) > 1 {
		return x.Policy + ", " + x.Variant
	}
	return x.Policy
}

// accounts are the ledger's, as a reader calls them, with the class of each.
var accounts = map[arbiter.Account]sheet.Key{
	arbiter.ServingUseful: {Class: "k1", Name: "serving, good"}, arbiter.ServingLate: {Class: "k2", Name: "serving, late"}, arbiter.JobUseful: {Class: "k3", Name: "job progress"},
	arbiter.LostWork: {Class: "k4", Name: "lost work"}, arbiter.Checkpointing: {Class: "k5", Name: "checkpoint"}, arbiter.JobStarting: {Class: "k6", Name: "job start"},
	arbiter.LoadWake: {Class: "k7", Name: "load and wake"}, arbiter.ReshapeTime: {Class: "k8", Name: "reshape"}, arbiter.Drain: {Class: "k9", Name: "drain"},
	arbiter.WarmReserve: {Class: "k10", Name: "warm reserve"}, arbiter.Held: {Class: "k11", Name: "held"}, arbiter.Stranded: {Class: "k12", Name: "stranded by shape"},
	arbiter.FreeEmpty: {Class: "k13", Name: "free, empty queue"}, arbiter.Broken: {Class: "k14", Name: "unhealthy"},
}

// accountKeys is the legend of the ledger.
func accountKeys() (out []sheet.Key) {
	for _, a := range arbiter.Accounts {
		out = append(out, accounts[a])
	}
	return out
}

// overview is the ledger, and the figures over seeds.
func overview(d *sheet.Document, s *study.Study, sums []study.Summary) {
	base := of(sums, s.Variants[0].Name)
	sec := sheet.Section{Title: "Overview", Charts: []*sheet.Chart{ledgerBars(s, base)}}
	sec.Tables = append(sec.Tables, serving(base), models(base), ledger(s, base))
	sec.Folded = append(sec.Folded, figures(s, base))
	if len(s.Variants) > 1 {
		sec.Texts = append(sec.Texts, "Of the scenario as it is; what was changed is compared below.")
	}
	d.Add(sec)
}

func of(sums []study.Summary, variant string) (out []study.Summary) {
	for _, x := range sums {
		if x.Variant == variant {
			out = append(out, x)
		}
	}
	return out
}

// balance is each account's share over the seeds of a summary.
func balance(s *study.Study, x *study.Summary) map[arbiter.Account]float64 {
	out, sum := map[arbiter.Account]float64{}, 0.0
	for i := range s.Runs {
		r := &s.Runs[i]
		if r.Variant == x.Variant && r.Policy == x.Policy {
			for _, a := range arbiter.Accounts {
				out[a] += r.Ledger[a]
				sum += r.Ledger[a]
			}
		}
	}
	for a := range out {
		if sum > 0 {
			out[a] /= sum
		}
	}
	return out
}

func ledgerBars(s *study.Study, sums []study.Summary) *sheet.Chart {
	var rows []sheet.Row
	for i := range sums {
		rows = append(rows, ledgerRow(s, &sums[i]))
	}
	return sheet.NewRows("Where the slice-hours went", "For each policy the share of all powered-on slice-seconds in each account of the ledger. The table of the ledger has the figures.", accountKeys(), rows)
}

func ledgerRow(s *study.Study, x *study.Summary) sheet.Row {
	row, at, shares := sheet.Row{Name: x.Policy}, 0.0, balance(s, x)
	for _, a := range arbiter.Accounts {
		if v := shares[a]; v > 0 {
			to := min(at+v, 1)
			row.Parts = append(row.Parts, sheet.Span{From: at, To: to, Class: accounts[a].Class, Text: fmt.Sprintf("%s: %s, %s", x.Policy, accounts[a].Name, sheet.Percent(v))})
			at = to
		}
	}
	return row
}

func ledger(s *study.Study, sums []study.Summary) sheet.Table {
	t := sheet.Table{Caption: "Ledger: % of all powered-on slice-seconds, over the seeds", Text: 1, Head: []string{"Policy"}}
	for _, a := range arbiter.Accounts {
		t.Head = append(t.Head, accounts[a].Name)
	}
	for i := range sums {
		row, shares := []string{sums[i].Policy}, balance(s, &sums[i])
		for _, a := range arbiter.Accounts {
			row = append(row, sheet.Number(100*shares[a]))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// share is a figure of a summary in per cent, and value as it is.
func share(x *study.Summary, name string) string {
	st, ok := x.Stats[name]
	if !ok {
		return "–"
	}
	return sheet.Percent(st.Value)
}

func value(x *study.Summary, name string) string {
	st, ok := x.Stats[name]
	return sheet.OrDash(st.Value, ok)
}

func worst(x *study.Summary, name string) string {
	st, ok := x.Stats[name]
	return sheet.OrDash(st.Worst, ok)
}

// serving is what the requests and the machine came to.
func serving(sums []study.Summary) sheet.Table {
	t := sheet.Table{Caption: "Policies over the seeds: means, and medians of factors", Text: 1, Head: []string{"Policy", "Seeds", "Attainment", "Worst model and seed", "Caused/100k", "Worst seed", "Net", "Aloft ratio", "× static", "Of the pilot's",
		"Reclaims kept", "Broken", "By fault", "Invariants checked"}}
	for i := range sums {
		x := &sums[i]
		low, kept, broken, faulted := "–", "–", "–", "–"
		if _, judged := x.Stats["attainment"]; judged {
			low = fmt.Sprintf("%s: %s, seed %d", sheet.Percent(x.Worst.Attainment), x.Worst.Model, x.Worst.Seed)
			kept, broken, faulted = fmt.Sprint(x.Kept), fmt.Sprint(x.Broken), fmt.Sprint(x.Faulted)
		}
		t.Rows = append(t.Rows, []string{x.Policy, fmt.Sprint(x.Seeds), share(x, "attainment"), low, value(x, "caused"), worst(x, "caused"), value(x, "caused_net"),
			value(x, "aloft_ratio"), value(x, "aloft_to_static"), value(x, "aloft_to_pilot"), kept, broken, faulted, fmt.Sprint(x.Checks)})
	}
	return t
}

func models(sums []study.Summary) sheet.Table {
	t := sheet.Table{Caption: "Models; caused: misses by lending per 100,000 requests, all seeds", Text: 2, Head: []string{"Policy", "Model", "Requests", "Attainment", "Worst seed", "Caused", "Net", "TTFT p99 s", "TPOT p99 ms", "Ready, mean", "Static share", "Hopeless"}}
	for i := range sums {
		for _, m := range sums[i].Models {
			t.Rows = append(t.Rows, []string{sums[i].Policy, m.Model, fmt.Sprint(m.Requests), sheet.Percent(m.Attainment), fmt.Sprintf("%s, seed %d", sheet.Percent(m.Worst), m.Seed),
				sheet.OrDash(m.Caused, m.Compared), sheet.OrDash(m.Net, m.Compared), sheet.Number(m.TTFT99), sheet.Number(1000 * m.TPOT99), sheet.Number(m.Ready), fmt.Sprint(m.Static), fmt.Sprint(m.Hopeless)})
		}
	}
	return t
}

// figures are all of them, with where they lie.
func figures(s *study.Study, sums []study.Summary) sheet.Table {
	t := sheet.Table{Caption: fmt.Sprintf("All figures: mean over %d seeds (of factors and gaps the median), the interval of the mean, the worst seed", len(s.Seeds)), Text: 2, Last: true,
		Head: []string{"Figure", "Policy", "Value", "From", "To", "Worst", "In seed", "What it is"}}
	for _, f := range study.Figures() {
		for i := range sums {
			x := &sums[i]
			st, ok := x.Stats[f.Name]
			if !ok {
				continue
			}
			by, name := 1.0, f.Name
			if f.Unit == study.Share {
				by = 100
			}
			if f.Unit != "" {
				name += ", " + string(f.Unit)
			}
			row := []string{name, x.Policy, sheet.Number(by * st.Value), "–", "–", sheet.Number(by * st.Worst), fmt.Sprint(st.Seed), f.Meaning}
			if !st.Interval.Open {
				row[3], row[4] = sheet.Number(by*st.Interval.Lo), sheet.Number(by*st.Interval.Hi)
			}
			t.Rows = append(t.Rows, row)
		}
	}
	return t
}

// whatIf has the variants side by side.
func whatIf(d *sheet.Document, s *study.Study, sums []study.Summary) {
	t := sheet.Table{Caption: "What if: each change, under each policy", Text: 2, Head: []string{"Policy", "Scenario", "Attainment", "Caused/100k", "Worst seed", "Aloft ratio", "× static", "Queueing s", "Completion s", "Completion p95 s", "Lost", "Overhead", "Reclaims kept", "Broken"}}
	for _, p := range policies(sums) {
		for i := range sums {
			if x := &sums[i]; x.Policy == p {
				t.Rows = append(t.Rows, []string{p, x.Variant, share(x, "attainment"), value(x, "caused"), worst(x, "caused"), value(x, "aloft_ratio"), value(x, "aloft_to_static"),
					value(x, "queueing"), value(x, "completion"), value(x, "completion_p95"), share(x, "lost"), share(x, "overhead"), fmt.Sprint(x.Kept), fmt.Sprint(x.Broken)})
			}
		}
	}
	d.Add(sheet.Section{Title: "What if", Tables: []sheet.Table{t},
		Texts: []string{"Each row is the same seeds in a changed world; factors are against the static run of that same world."}})
}

func policies(sums []study.Summary) (out []string) {
	for i := range sums {
		if !slices.Contains(out, sums[i].Policy) {
			out = append(out, sums[i].Policy)
		}
	}
	return out
}

func configuration(d *sheet.Document, s *study.Study) {
	facts := sheet.Table{Caption: "What ran", Text: 2, Head: []string{"Fact", "Value"}}
	add := func(key, value string) {
		if value != "" {
			facts.Rows = append(facts.Rows, []string{key, value})
		}
	}
	add("Scenario", s.Scenario)
	add("Hours", sheet.Plain(s.FromH)+" to "+sheet.Plain(s.ToH))
	add("Seeds", strings.Trim(fmt.Sprint(s.Seeds), "[]"))
	add("Policies", strings.Join(s.Policies, " "))
	add("Started", s.Started.UTC().Format("2006-01-02 15:04:05 UTC"))
	add("Took", fmt.Sprintf("%.1f s of this machine's time", s.Elapsed))
	add("Program", strings.TrimSpace(s.Tool.Version+" "+s.Tool.Commit))
	add("Schema", s.Schema)
	sec := sheet.Section{Title: "Configuration", Texts: s.Notes, Tables: []sheet.Table{facts}}
	for _, v := range s.Variants {
		if v.Name != study.AsIs {
			sec.Texts = append(sec.Texts, "What if: "+v.Name)
		}
	}
	if len(s.Variants) > 0 {
		sec.Code = indented(s.Variants[0].Config)
	}
	d.Add(sec)
}
