package page

import (
	"fmt"
	"io"

	"aloft/loadgen"
	"aloft/loadgen/page/sheet"
)

// Compare writes the page of what changed from report A to report B.
func Compare(w io.Writer, a, b *loadgen.Report) error {
	c := loadgen.Compare(a, b)
	d := sheet.Document{Title: orUnnamed(a.Name) + " against " + orUnnamed(b.Name), Kind: "Comparison of loads", Verdict: changed(&c)}
	d.Notes = []string{
		"A: " + c.A, "B: " + c.B,
		fmt.Sprintf("Intervals hold the figure with %.0f %% confidence; those that end in + are open for want of values. There is a verdict, about B against A, only where the two do not overlap.", 100*loadgen.Confidence),
	}
	for _, only := range []struct {
		who  string
		list []string
	}{{"A", c.OnlyA}, {"B", c.OnlyB}} {
		for _, name := range only.list {
			d.Notes = append(d.Notes, fmt.Sprintf("Only in %s: %s", only.who, name))
		}
	}
	changes := sheet.Table{Caption: "What differs between the runs themselves", Text: 3, Head: []string{"Key", "A", "B"}}
	for _, x := range c.Changes {
		changes.Rows = append(changes.Rows, []string{x.Key, x.A, x.B})
	}
	s := sheet.Section{Title: "What was changed", Tables: []sheet.Table{changes}}
	if len(c.Changes) == 0 {
		s = sheet.Section{Title: "What was changed", Texts: []string{"Nothing that the reports know of: profile, plan, host and build are the same."}}
	}
	d.Add(s)
	d.Add(sheet.Section{Title: "How requests ended", Tables: []sheet.Table{outcomesOf("A", a), outcomesOf("B", b)}})
	for i := range a.Results {
		x := &a.Results[i]
		for j := range b.Results {
			if y := &b.Results[j]; x.Name == y.Name && x.Phase == y.Phase {
				addComparison(&d, &c, x, y)
			}
		}
	}
	if len(c.Cuts) > 0 {
		d.Add(cutsSection(&c))
	}
	return d.Write(w)
}

func changed(c *loadgen.Comparison) sheet.Verdict {
	if len(c.Figures) == 0 {
		return sheet.Verdict{Class: "bad", Text: "NOTHING WAS COMPARED: the runs have no phase of a workload in common that has figures", Reasons: c.Doubts}
	}
	better, worse := 0, 0
	for _, f := range c.Figures {
		switch f.Verdict {
		case loadgen.Better:
			better++
		case loadgen.Worse:
			worse++
		}
	}
	if len(c.Doubts) > 0 {
		v := sheet.Verdict{Class: "bad", Text: "NO VERDICT on all or part of it", Reasons: c.Doubts}
		if better+worse > 0 {
			v.Text += fmt.Sprintf("; of the rest B is better in %d figures and worse in %d", better, worse)
		}
		return v
	}
	return sheet.Verdict{Class: "fact", Text: fmt.Sprintf("Of %d figures B is better in %d and worse in %d; of the others nothing can be said", len(c.Figures), better, worse)}
}

func outcomesOf(who string, r *loadgen.Report) sheet.Table {
	t := outcomeTable(r.Results)
	t.Caption = who + ": " + t.Caption
	return t
}

// addComparison is a phase that both ran.
func addComparison(d *sheet.Document, c *loadgen.Comparison, x, y *loadgen.Result) {
	s := sheet.Section{Title: x.Name + ", phase " + x.Phase}
	if x.Closed > 0 || y.Closed > 0 {
		s.Badge = "CLOSED LOOP: for comparison only"
	}
	both := func(metric string) []named { return []named{{"A", x.Figure(metric)}, {"B", y.Figure(metric)}} }
	s.Charts = []*sheet.Chart{
		quantileChart("Latency to the end of the answer, by quantile", both("e2e"), 0), densityChart("Latency to the end of the answer, distribution", both("e2e")),
		quantileChart("Time to first token, by quantile", both("ttft"), 0), quantileChart("Time per output token, by quantile", both("tpot"), 0),
	}
	clear := sheet.Table{Caption: "Figures with a verdict", Text: 1, Last: true, Head: []string{"Figure", "A", "A from", "A to", "B", "B from", "B to", "B to A", "B is"}}
	all := clear
	all.Caption = "All figures; shares in %, times in ms, rates a second"
	for i := range c.Figures {
		f := &c.Figures[i]
		if f.Workload != x.Name || f.Phase != x.Phase {
			continue
		}
		row := figureRow(f)
		all.Rows = append(all.Rows, row)
		if f.Verdict == loadgen.Better || f.Verdict == loadgen.Worse {
			clear.Rows = append(clear.Rows, row)
		}
	}
	if len(clear.Rows) == 0 {
		s.Texts = append(s.Texts, "No figure of this phase has a verdict.")
	} else {
		s.Tables = append(s.Tables, clear)
	}
	s.Folded = append(s.Folded, all)
	d.Add(s)
}

// cutsSection is what changed for some of the requests.
func cutsSection(c *loadgen.Comparison) sheet.Section {
	t := sheet.Table{Caption: "Figures with a verdict; shares in %, times in ms", Text: 3, Last: true,
		Head: []string{"Workload", "Of", "Figure", "A", "A from", "A to", "B", "B from", "B to", "B to A", "B is"}}
	for i := range c.Cuts {
		f := &c.Cuts[i]
		t.Rows = append(t.Rows, append([]string{f.Workload, f.Cut}, figureRow(f)...))
	}
	s := sheet.Section{Title: "Tenants, classes and lengths, over the phases", Tables: []sheet.Table{t}}
	if c.CutsMore > 0 {
		s.Texts = []string{fmt.Sprintf("%d more figures of them have a verdict.", c.CutsMore)}
	}
	return s
}

func figureRow(f *loadgen.FigureChange) []string {
	by := 1.0
	if f.Unit == "" {
		by = 100 // a share
	}
	end := func(i loadgen.Interval) string {
		if i.Open {
			return "+"
		}
		return sheet.Number(by * i.Hi)
	}
	ratio := "–"
	if f.A != 0 {
		ratio = fmt.Sprintf("%+.1f %%", 100*(f.B-f.A)/f.A)
	}
	return []string{f.Figure, sheet.Number(by * f.A), sheet.Number(by * f.IntervalA.Lo), end(f.IntervalA), sheet.Number(by * f.B), sheet.Number(by * f.IntervalB.Lo), end(f.IntervalB), ratio, string(f.Verdict)}
}
