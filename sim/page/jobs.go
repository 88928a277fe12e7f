package page

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"aloft/loadgen/page/sheet"
	"aloft/sim"
	"aloft/sim/study"
)

// maxLines bounds the policies in one chart: there are as many colours and dashes.
const maxLines = 9

// jobs is what the submitted jobs came to, as the scenario is.
func jobs(d *sheet.Document, s *study.Study, sums []study.Summary) {
	base := of(sums, s.Variants[0].Name)
	sec := sheet.Section{Title: "Jobs"}
	t := sheet.Table{Caption: "Submitted jobs; the backlog and batch rows do not count", Text: 1, Head: []string{"Policy", "Job load", "Queueing s", "× shorter", "Gap closed", "p95 s", "Completion s", "× shorter", "Gap closed", "p95 s",
		"Unfinished", "Preemptions", "Lost", "Overhead"}}
	cause := sheet.Table{Caption: "Queue time by cause, hours a seed", Text: 1, Head: []string{"Policy", "Capacity", "Shape", "Policy's choice"}}
	submitted := 0
	for i := range base {
		x := &base[i]
		t.Rows = append(t.Rows, []string{x.Policy, share(x, "job_load"), value(x, "queueing"), value(x, "queueing_shorter"), share(x, "queueing_gap"), value(x, "queueing_p95"),
			value(x, "completion"), value(x, "completion_shorter"), share(x, "completion_gap"), value(x, "completion_p95"), value(x, "unfinished"), value(x, "preemptions"), share(x, "lost"), share(x, "overhead")})
		q := queued(s, x)
		cause.Rows = append(cause.Rows, []string{x.Policy, sheet.Number(q[0] / 3600), sheet.Number(q[1] / 3600), sheet.Number(q[2] / 3600)})
	}
	for i := range s.Runs {
		submitted += s.Runs[i].Jobs.Submitted
	}
	if submitted == 0 {
		sec.Texts = append(sec.Texts, "No job was submitted.")
		d.Add(sec)
		return
	}
	sec.Charts = []*sheet.Chart{
		distribution(s, base, "Queueing of submitted jobs", func(q, _ float64, _ bool) (float64, bool) { return q, true }),
		distribution(s, base, "Completion of submitted jobs", func(_, c float64, done bool) (float64, bool) { return c, done }),
		causes(s, base), lostBars(base),
	}
	sec.Tables = []sheet.Table{t, cause}
	d.Add(sec)
}

// queued is queued seconds by cause, a seed: capacity, shape, policy.
func queued(s *study.Study, x *study.Summary) (out [3]float64) {
	for i := range s.Runs {
		if r := &s.Runs[i]; r.Variant == x.Variant && r.Policy == x.Policy {
			q := r.Jobs.QueuedBy
			for k, v := range []float64{q.Capacity, q.Shape, q.Policy} {
				out[k] += v / float64(x.Seeds)
			}
		}
	}
	return out
}

func causes(s *study.Study, sums []study.Summary) *sheet.Chart {
	keys := []sheet.Key{{Class: "k4", Name: "capacity: too few idle slices"}, {Class: "k12", Name: "shape: not in its shape"}, {Class: "k11", Name: "policy: enough, but not given"}}
	most := 0.0
	for i := range sums {
		q := queued(s, &sums[i])
		most = max(most, q[0]+q[1]+q[2])
	}
	var rows []sheet.Row
	for i := range sums {
		row, at := sheet.Row{Name: sums[i].Policy}, 0.0
		for k, v := range queued(s, &sums[i]) {
			if v > 0 {
				row.Parts = append(row.Parts, sheet.Span{From: at / most, To: (at + v) / most, Class: keys[k].Class, Text: fmt.Sprintf("%s: %s, %s h", row.Name, keys[k].Name, sheet.Number(v/3600))})
				at += v
			}
		}
		rows = append(rows, row)
	}
	return sheet.NewRows("Queue time by cause", fmt.Sprintf("Queued time of submitted jobs for each policy, a seed; the longest bar is %s hours. The table has the figures.", sheet.Number(most/3600)), keys, rows)
}

// lostBars shows lost work and overhead over progress made.
func lostBars(sums []study.Summary) *sheet.Chart {
	keys := []sheet.Key{{Class: "k4", Name: "lost"}, {Class: "k6", Name: "overhead: starts, restarts, checkpoints"}}
	most := 0.0
	for i := range sums {
		most = max(most, sums[i].Stats["lost"].Value+sums[i].Stats["overhead"].Value)
	}
	if most == 0 {
		return nil
	}
	var rows []sheet.Row
	for i := range sums {
		row, at := sheet.Row{Name: sums[i].Policy}, 0.0
		for k, name := range []string{"lost", "overhead"} {
			if v := sums[i].Stats[name].Value; v > 0 {
				row.Parts = append(row.Parts, sheet.Span{From: at / most, To: (at + v) / most, Class: keys[k].Class, Text: fmt.Sprintf("%s: %s, %s of progress", row.Name, keys[k].Name, sheet.Percent(v))})
				at += v
			}
		}
		rows = append(rows, row)
	}
	return sheet.NewRows("Lost work and overhead", fmt.Sprintf("Over progress made, for each policy; the longest bar is %s. The table has the figures.", sheet.Percent(most)), keys, rows)
}

// distribution is the share of submitted jobs that were through within a time, all
// seeds together. Those for which of says false never get there.
func distribution(s *study.Study, sums []study.Summary, title string, of func(queued, completed float64, done bool) (float64, bool)) *sheet.Chart {
	values, all := make([][]float64, len(sums)), make([]int, len(sums))
	most := 0.0
	for k := range sums {
		for i := range s.Runs {
			r := &s.Runs[i]
			if r.Variant != sums[k].Variant || r.Policy != sums[k].Policy {
				continue
			}
			for _, j := range r.Jobs.List {
				all[k]++
				if v, ok := of(j.QueuedS, j.FinishS-j.AtS, j.FinishS >= 0); ok {
					values[k], most = append(values[k], v), max(most, v)
				}
			}
		}
		slices.Sort(values[k])
	}
	if most == 0 {
		return nil
	}
	const least = 1.0 // s; shorter ones stand at the left edge
	c := sheet.NewChart(title, "", sheet.XLog("s, log scale", least, max(most, 10)), sheet.YLinear("% of submitted jobs within", 100))
	for k := range sums {
		if k >= maxLines || len(values[k]) == 0 {
			continue
		}
		const steps = 80
		var points []sheet.Point
		for i := 0; i <= steps; i++ {
			t := least * math.Pow(max(most, 10)/least, float64(i)/steps)
			n, _ := slices.BinarySearch(values[k], math.Nextafter(t, math.Inf(1)))
			points = append(points, sheet.Point{X: t, Y: 100 * float64(n) / float64(all[k])})
		}
		c.Series(k, sums[k].Policy, points)
		v := values[k]
		c.Desc += fmt.Sprintf("%s: %d of %d jobs, half of those within %s s, the last at %s s. ", sums[k].Policy, len(v), all[k], sheet.Number(v[(len(v)-1)/2]), sheet.Number(v[len(v)-1]))
	}
	return c
}

// reclaims are their times against what was promised.
func reclaims(d *sheet.Document, s *study.Study) {
	t := sheet.Table{Caption: "Reclaims: from the decision to a ready replica, in seconds; the bound was fixed before the run", Text: 3,
		Head: []string{"Policy", "Class", "Seed", "Kept", "Broken", "By fault", "Bound", "Mean", "p50", "p99", "Longest"}}
	var rows []sheet.Row
	longest := 0.0
	for i := range s.Runs {
		if r := &s.Runs[i]; r.Variant == s.Variants[0].Name {
			for _, c := range r.Reclaims {
				longest = max(longest, c.Took.P99, c.BoundS)
			}
		}
	}
	for i := range s.Runs {
		r := &s.Runs[i]
		if r.Variant != s.Variants[0].Name {
			continue
		}
		for _, c := range r.Reclaims {
			if c.Kept+c.Broken+c.Faulted == 0 {
				continue
			}
			t.Rows = append(t.Rows, []string{r.Policy, c.Class, fmt.Sprint(r.Seed), fmt.Sprint(c.Kept), fmt.Sprint(c.Broken), fmt.Sprint(c.Faulted), sheet.OrDash(c.BoundS, c.BoundS > 0),
				sheet.Number(c.Took.Mean), sheet.Number(c.Took.P50), sheet.Number(c.Took.P99), sheet.Number(c.Took.Max)})
			if r.Seed == s.Seeds[0] && len(rows) < maxBars {
				rows = append(rows, reclaimRow(r.Policy, &c, longest))
			}
		}
	}
	if len(t.Rows) == 0 {
		return
	}
	legend := []sheet.Key{{Class: "k7", Name: "to p50"}, {Class: "k10", Name: "to p99"}, {Class: "limit", Name: "bound"}}
	sec := sheet.Section{Title: "Reclaims", Charts: []*sheet.Chart{sheet.NewRows("Reclaim times against their bound", fmt.Sprintf("Seed %d, of each policy and class; the full width is %s s. The table has the figures.", s.Seeds[0], sheet.Number(longest)), legend, rows)}}
	if len(t.Rows) > maxTable {
		sec.Folded = []sheet.Table{t}
	} else {
		sec.Tables = []sheet.Table{t}
	}
	d.Add(sec)
}

const (
	maxBars  = 24 // rows of a chart
	maxTable = 24 // rows of a table that is not folded
)

// reclaimRow is a bar to p50, on to p99, and the bound as a stroke.
func reclaimRow(policy string, c *sim.ReclaimTime, longest float64) sheet.Row {
	name, p50, p99, bound := policy+", "+c.Class, c.Took.P50/longest, c.Took.P99/longest, c.BoundS/longest
	row := sheet.Row{Name: name, Parts: []sheet.Span{
		{From: 0, To: p50, Class: "k7", Text: fmt.Sprintf("%s: p50 %s s", name, sheet.Number(c.Took.P50))},
		{From: p50, To: p99, Class: "k10", Text: fmt.Sprintf("%s: p99 %s s", name, sheet.Number(c.Took.P99))},
	}}
	if bound > 0 {
		row.Parts = append(row.Parts, sheet.Span{From: max(bound-0.004, 0), To: bound, Class: "limit", Text: fmt.Sprintf("%s: bound %s s", name, sheet.Number(c.BoundS))})
	}
	return row
}

func indented(text json.RawMessage) string {
	var b bytes.Buffer
	if json.Indent(&b, text, "", "  ") != nil {
		return string(text)
	}
	return b.String()
}
