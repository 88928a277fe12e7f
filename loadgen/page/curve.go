package page

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"time"

	"aloft/loadgen/page/sheet"
	"aloft/loadgen/search"
)

// Sweep writes the page of a curve over rates.
func Sweep(w io.Writer, c *search.Curve) error {
	d := sheet.Document{Title: orUnnamed(c.Name), Kind: "Load sweep" + when(c.Started, c.Elapsed), Verdict: sheet.Verdict{Class: "fact"}}
	holds := 0
	for i := range c.Points {
		if c.Points[i].Verdict == search.Holds {
			holds++
		}
	}
	d.Verdict.Text = fmt.Sprintf("%d of %d rates hold: %s", holds, len(c.Points), promise(&c.Head))
	addCurve(&d, &c.Head)
	return d.Write(w)
}

// Answer writes the page of a search.
func Answer(w io.Writer, a *search.Answer) error {
	d := sheet.Document{Title: orUnnamed(a.Name), Kind: "Load search" + when(a.Started, a.Elapsed), Verdict: sheet.Verdict{Class: "fact"}}
	switch {
	case a.Low > 0 && a.High > 0:
		d.Verdict.Text = fmt.Sprintf("Holds up to %s/s, fails from %s/s", sheet.Number(a.Low), sheet.Number(a.High))
		d.Verdict.Reasons = []string{fmt.Sprintf("At least %s sure; %d of %d whole windows at the ends agree.", sheet.Percent(math.Floor(1e4*a.Certainty)/1e4), a.Agreed, a.Windows)}
	case a.Low > 0:
		d.Verdict = sheet.Verdict{Class: "warn", Text: fmt.Sprintf("Holds up to %s/s at least; no rate failed", sheet.Number(a.Low))}
	case a.High > 0:
		d.Verdict = sheet.Verdict{Class: "warn", Text: fmt.Sprintf("Fails from %s/s; no rate held", sheet.Number(a.High))}
	default:
		d.Verdict = sheet.Verdict{Class: "warn", Text: "No rate is known to hold or to fail"}
	}
	d.Verdict.Reasons = append(d.Verdict.Reasons, "What is promised: "+promise(&a.Head))
	addCurve(&d, &a.Head)
	return d.Write(w)
}

func promise(h *search.Head) string {
	if len(h.SLO.Clauses) == 0 {
		return sheet.Percent(h.Attain) + " of requests within the profile's own targets"
	}
	return sheet.Percent(h.Attain) + " of requests " + h.SLO.String()
}

// curve is the part that searches and sweeps share.
func addCurve(d *sheet.Document, h *search.Head) {
	if h.Stopped == search.Broken {
		d.Verdict.Class = "bad"
		d.Verdict.Text = "THE GENERATOR FAILED, not the server: the server may do more than what is shown here. " + d.Verdict.Text
	}
	if h.Note != "" && h.Stopped != search.Broken { // else the verdict has it
		d.Notes = append(d.Notes, h.Note)
	}
	d.Notes = append(d.Notes, "Times count from the intended start of a request. Figures of several workloads are the sum of rates and the worst of times. Hollow points fail.")
	judged := sheet.Table{Caption: "Each rate, over its runs that count", Text: 3, Head: []string{"Rate/s", "Verdict", "Why", "Runs", "Discarded", "Offered", "Good", "Good from", "Good to", "Queue grows/s"}}
	times := sheet.Table{Caption: "Its last run that counts; times in milliseconds", Text: 1, Head: []string{"Rate/s", "Sent/s", "Good/s", "Shed", "Failed", "p50", "p99", "TTFT p50", "TTFT p99", "TPOT p99", "Send lag p99"}}
	for i := range h.Points {
		p := &h.Points[i]
		f := &p.Last().Figures
		ms := func(v float64) string { return sheet.OrDash(v, v > 0) }
		judged.Rows = append(judged.Rows, []string{sheet.Number(p.Rate), string(p.Verdict), string(p.Reason), itoa(len(p.Tries)), itoa(discarded(p)), itoa(p.Offered),
			sheet.Percent(p.Attainment), sheet.Percent(p.Low), sheet.Percent(p.High), signed(p.Growth)})
		times.Rows = append(times.Rows, []string{sheet.Number(p.Rate), sheet.Number(f.Achieved), sheet.Number(f.Good), itoa(f.Shed), itoa(f.Failed), ms(f.E2E50), ms(f.E2E99), ms(f.TTFT50), ms(f.TTFT99), ms(f.TPOT99), sheet.Number(f.Lag99)})
	}
	s := sheet.Section{Title: "Curve", Tables: []sheet.Table{judged, times}}
	if len(h.Points) > 0 {
		s.Charts = []*sheet.Chart{attainChart(h), timesChart(h), goodChart(h)}
	}
	d.Add(s)
	var why []string
	for i := range h.Points {
		for _, t := range h.Points[i].Tries {
			if t.Discarded != "" {
				why = append(why, fmt.Sprintf("Run %d at %s/s does not count: %s", t.Run, sheet.Number(t.Rate), t.Discarded))
			}
		}
	}
	facts := sheet.Table{Caption: "What ran", Text: 2, Head: []string{"Fact", "Value"}, Rows: [][]string{
		{"Promise", promise(h)}, {"Confidence", sheet.Percent(h.Confidence)}, {"Started", h.Started.Format(time.RFC3339)},
		{"Lasted", fmt.Sprintf("%.0f s of at most %.0f s", h.Elapsed, h.Limit)}, {"Stopped", string(h.Stopped)},
		{"Seed", strconv.FormatUint(h.Seed, 10)}, {"Schema", h.Schema},
	}}
	for _, s := range servers(h.Config) {
		facts.Rows = append([][]string{s}, facts.Rows...)
	}
	d.Add(sheet.Section{Title: "How it was measured", Texts: why, Tables: []sheet.Table{facts}, Code: indented(h.Config)})
}

// servers are the workloads of a profile and where each is sent, last first.
func servers(config json.RawMessage) (out [][]string) {
	var profile struct {
		Workloads []struct{ Name, Kind, Model, URL string }
	}
	if json.Unmarshal(config, &profile) != nil {
		return nil
	}
	for _, w := range slices.Backward(profile.Workloads) {
		value := w.URL + ", kind " + w.Kind
		if w.Model != "" {
			value += ", model " + w.Model
		}
		out = append(out, []string{"Server of workload " + w.Name, value})
	}
	return out
}

// discarded counts the runs that do not count.
func discarded(p *search.Point) (n int) {
	for i := range p.Tries {
		if p.Tries[i].Discarded != "" {
			n++
		}
	}
	return n
}

func signed(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) }

// rates is the axis of a curve.
func rates(h *search.Head) sheet.Axis {
	least, most := math.Inf(1), 0.0
	for _, p := range h.Points {
		least, most = min(least, p.Rate), max(most, p.Rate)
	}
	return sheet.XLog("offered, requests/s, log scale", least, most)
}

func attainChart(h *search.Head) *sheet.Chart {
	c := sheet.NewChart("Share of good requests", "", rates(h), shares(h))
	var at, low, high []sheet.Point
	for _, p := range h.Points {
		at, low, high = append(at, sheet.Point{X: p.Rate, Y: 100 * p.Attainment}), append(low, sheet.Point{X: p.Rate, Y: 100 * p.Low}), append(high, sheet.Point{X: p.Rate, Y: 100 * p.High})
		c.Desc += fmt.Sprintf("%s/s: %s good, %s. ", sheet.Number(p.Rate), sheet.Percent(p.Attainment), p.Verdict)
	}
	c.Line("good, measured", at)
	c.Band(low, high)
	c.Across(100*h.Attain, "promised "+sheet.Percent(h.Attain))
	for i, p := range h.Points {
		c.Dot(at[i], verdictClass(p.Verdict), fmt.Sprintf("%s/s: %s good (%s to %s), %s, %s", sheet.Number(p.Rate), sheet.Percent(p.Attainment), sheet.Percent(p.Low), sheet.Percent(p.High), p.Verdict, p.Reason))
	}
	return c
}

// shares is an axis up to 100 % that begins where the figures need it: whether
// 99 % is kept shows on none that begins at 0.
func shares(h *search.Head) sheet.Axis {
	least := 100 * h.Attain
	for _, p := range h.Points {
		least = min(least, 100*p.Low)
	}
	lo := 0.0
	for _, v := range []float64{50, 80, 90, 95, 98, 99} {
		if least > v {
			lo = v
		}
	}
	a := sheet.YAxis("% of offered", lo, 100)
	for i := range 6 {
		v := lo + float64(i)*(100-lo)/5
		a.Tick(v, sheet.Plain(v))
	}
	return a
}

func verdictClass(v search.Verdict) string {
	if v == search.Fails {
		return "fails"
	}
	return sheet.Class(0)
}

// timesChart is nil when no request was answered.
func timesChart(h *search.Head) *sheet.Chart {
	kinds := []struct {
		name string
		of   func(*search.Figures) float64
	}{
		{"p50", func(f *search.Figures) float64 { return f.E2E50 }}, {"p99", func(f *search.Figures) float64 { return f.E2E99 }},
		{"TTFT p99", func(f *search.Figures) float64 { return f.TTFT99 }}, {"TPOT p99", func(f *search.Figures) float64 { return f.TPOT99 }},
	}
	least, most := math.Inf(1), 0.0
	for i := range h.Points {
		f := &h.Points[i].Last().Figures
		for _, k := range kinds {
			if v := k.of(f); v > 0 {
				least, most = min(least, v), max(most, v)
			}
		}
	}
	if most == 0 {
		return nil
	}
	c := sheet.NewChart("Latency, from intended start", "", rates(h), sheet.YLog("ms, log scale", least, most))
	for i, k := range kinds {
		var row []sheet.Point
		some := false
		for j := range h.Points {
			p := &h.Points[j]
			f := &p.Last().Figures
			v := k.of(f)
			row, some = append(row, sheet.Point{X: p.Rate, Y: v, None: v == 0}), some || v > 0
			if v > 0 {
				c.Dot(sheet.Point{X: p.Rate, Y: v}, sheet.Class(i), fmt.Sprintf("%s/s: %s %s ms", sheet.Number(p.Rate), k.name, sheet.Number(v)))
			}
		}
		if some {
			c.Series(i, k.name, row)
		}
	}
	c.Desc = "p50 and p99 to the end of the answer, p99 to its first token and of each token; the table has the figures."
	return c
}

func goodChart(h *search.Head) *sheet.Chart {
	most := 0.0
	for i := range h.Points {
		f := &h.Points[i].Last().Figures
		most = max(most, f.Achieved, f.Good)
	}
	c := sheet.NewChart("Good requests a second", "What was sent and what of it was good, at each rate; the table has the figures.", rates(h), sheet.YLinear("requests/s", most))
	var sent, good []sheet.Point
	for i := range h.Points {
		f := &h.Points[i].Last().Figures
		sent, good = append(sent, sheet.Point{X: h.Points[i].Rate, Y: f.Achieved}), append(good, sheet.Point{X: h.Points[i].Rate, Y: f.Good})
	}
	c.Line("good", good)
	c.Line("sent", sent)
	for i, p := range h.Points {
		c.Dot(good[i], verdictClass(p.Verdict), fmt.Sprintf("%s/s: %s/s good of %s/s sent", sheet.Number(p.Rate), sheet.Number(good[i].Y), sheet.Number(sent[i].Y)))
	}
	return c
}
