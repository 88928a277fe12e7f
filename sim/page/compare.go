package page

import (
	"fmt"
	"io"

	"aloft/loadgen"
	"aloft/loadgen/page/sheet"
	"aloft/sim/study"
)

// Compare writes the page of what changed from study A to study B.
func Compare(w io.Writer, a, b *study.Study) error {
	c := study.Compare(a, b)
	d := sheet.Document{Title: orUnnamed(a.Scenario) + " against " + orUnnamed(b.Scenario), Kind: "Comparison of simulations (modelled)", Verdict: changed(&c)}
	d.Notes = []string{"A: " + c.A, "B: " + c.B,
		"Everything on this page is " + study.Modelled + ".",
		fmt.Sprintf("Figures are means over seeds. The change holds B − A with %.0f %% confidence, were other seeds drawn; with the same seeds in both it is of the differences seed by seed. There is a verdict, about B against A, only where an interval of %.0f %% excludes 0.", 100*loadgen.Confidence, 100*study.Certainty),
	}
	for _, only := range []struct {
		who  string
		list []string
	}{{"A", c.OnlyA}, {"B", c.OnlyB}} {
		for _, name := range only.list {
			d.Notes = append(d.Notes, fmt.Sprintf("Only in %s: %s", only.who, name))
		}
	}
	changes := sheet.Table{Caption: "What differs between the simulations themselves", Text: 3, Head: []string{"Key", "A", "B"}}
	for _, x := range c.Changes {
		changes.Rows = append(changes.Rows, []string{x.Key, x.A, x.B})
	}
	s := sheet.Section{Title: "What was changed", Tables: []sheet.Table{changes}}
	if len(c.Changes) == 0 {
		s = sheet.Section{Title: "What was changed", Texts: []string{"Nothing that the files know of: scenario, window, seeds and build are the same."}}
	}
	d.Add(s)
	for i := 0; i < len(c.Figures); {
		j := i
		for j < len(c.Figures) && c.Figures[j].Variant == c.Figures[i].Variant && c.Figures[j].Policy == c.Figures[i].Policy {
			j++
		}
		d.Add(comparison(a, b, c.Figures[i:j]))
		i = j
	}
	return d.Write(w)
}

// comparison is a policy that both ran.
func comparison(a, b *study.Study, of []study.FigureChange) sheet.Section {
	title := of[0].Policy
	if of[0].Variant != study.AsIs {
		title += ", " + of[0].Variant
	}
	s := sheet.Section{Title: title, Charts: []*sheet.Chart{ledgersOf(a, b, of[0].Variant, of[0].Policy)}}
	all := sheet.Table{Caption: "All figures of " + title, Text: 1, Last: true, Head: []string{"Figure", "A", "B", "Change", "From", "To", "Seeds of A", "Seeds of B", "B is"}}
	clear := all
	clear.Caption = "Figures of " + title + " with a verdict"
	for i := range of {
		f := &of[i]
		by := 1.0
		name := f.Figure
		if f.Unit == study.Share {
			by = 100
		}
		if f.Unit != study.Count {
			name += ", " + string(f.Unit)
		}
		row := []string{name, signed(by * f.A), signed(by * f.B), signed(by * (f.B - f.A)), "–", "–", fmt.Sprint(f.SeedsA), fmt.Sprint(f.SeedsB), string(f.Verdict)}
		if !f.Change.Open {
			row[4], row[5] = signed(by*f.Change.Lo), signed(by*f.Change.Hi)
		}
		all.Rows = append(all.Rows, row)
		if f.Verdict == loadgen.Better || f.Verdict == loadgen.Worse {
			clear.Rows = append(clear.Rows, row)
		}
	}
	if len(clear.Rows) == 0 {
		s.Texts = append(s.Texts, "No figure of this policy has a verdict.")
	} else {
		s.Tables = append(s.Tables, clear)
	}
	s.Folded = append(s.Folded, all)
	return s
}

// ledgersOf are the ledgers of a policy in both.
func ledgersOf(a, b *study.Study, variant, policy string) *sheet.Chart {
	var rows []sheet.Row
	for _, x := range []struct {
		who string
		*study.Study
	}{{"A", a}, {"B", b}} {
		row := ledgerRow(x.Study, &study.Summary{Variant: variant, Policy: policy})
		row.Name = x.who
		rows = append(rows, row)
	}
	return sheet.NewRows("Where the slice-hours went", "The share of all powered-on slice-seconds in each account, in A and in B.", accountKeys(), rows)
}

func changed(c *study.Comparison) sheet.Verdict {
	if len(c.Figures) == 0 {
		return sheet.Verdict{Class: "bad", Text: "NOTHING WAS COMPARED: the files have no policy in common", Reasons: c.Doubts}
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
	v := sheet.Verdict{Class: "fact", Text: fmt.Sprintf("Simulated: of %d figures B is better in %d and worse in %d; of the others nothing can be said", len(c.Figures), better, worse), Reasons: c.Doubts}
	if len(c.Doubts) > 0 {
		v.Class = "warn"
	}
	return v
}

// signed is a figure that may be below 0.
func signed(v float64) string {
	if v < 0 {
		return "−" + sheet.Number(-v)
	}
	return sheet.Number(v)
}
