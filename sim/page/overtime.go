package page

import (
	"fmt"

	"aloft/arbiter"
	"aloft/loadgen/page/sheet"
	"aloft/sim"
	"aloft/sim/study"
)

// Steps of a series that are drawn and written at most; a longer one is drawn in
// wider steps.
const (
	maxDrawn = 300
	maxRows  = 48
)

// drawn are the policies that are shown over time: those of the first seed.
func drawn(s *study.Study) (out []string) {
	for i := range s.Runs {
		if r := &s.Runs[i]; r.Variant == s.Variants[0].Name && r.Seed == s.Seeds[0] && r.Series.Minutes > 0 {
			out = append(out, r.Policy)
		}
	}
	return out
}

// overTime is a policy over time, in the first seed. Only one on the page opens
// with its table of spans: they are long.
func overTime(s *study.Study, policy string, first bool) sheet.Section {
	r := s.Find(s.Variants[0].Name, policy, s.Seeds[0])
	sec := sheet.Section{Title: fmt.Sprintf("%s over time, seed %d", policy, r.Seed)}
	if first && len(s.Seeds) > 1 {
		sec.Texts = append(sec.Texts, "What is drawn over time is of the first seed alone.")
	}
	t := newTimes(&r.Result, s.FromH)
	sec.Charts = append(sec.Charts, t.slices(), t.waiting())
	sec.Folded = append(sec.Folded, t.slicesTable())
	for m := range r.Series.Models {
		sec.Charts = append(sec.Charts, t.replicas(&r.Series.Models[m]), t.latency(&r.Series.Models[m]))
		sec.Folded = append(sec.Folded, t.modelTable(&r.Series.Models[m]))
	}
	if chart, table, text := gantt(r, s.FromH); chart != nil {
		sec.Charts, sec.Texts = append(sec.Charts, chart), append(sec.Texts, text)
		sec.Folded = append(sec.Folded, table)
	}
	if len(r.Moves) > 0 {
		sec.Folded = append(sec.Folded, moves(r))
	}
	if len(r.Incidents) > 0 {
		sec.Folded = append(sec.Folded, incidents(r))
	}
	return sec
}

// times are a run's series over hours.
type times struct {
	*sim.Result
	from, to float64 // hours of the scenario
}

func newTimes(r *sim.Result, fromH float64) times {
	return times{r, fromH, fromH + float64(r.Series.Minutes)/60}
}

// axis is the hours, with round ticks.
func (t times) axis() sheet.Axis { return hours(t.from, t.to) }

func hours(from, to float64) sheet.Axis {
	a := sheet.XAxis("hours of the scenario", from, max(to, from+1.0/60))
	step := sheet.NiceStep((to - from) / 8)
	for k := int(from/step - 1e-9); float64(k)*step <= to+1e-9; k++ {
		if v := float64(k) * step; v >= from-1e-9 {
			a.Tick(v, sheet.Plain(v))
		}
	}
	return a
}

// by is how many minutes a step has, so that there are so many at most.
func (t times) by(most int) int { return max((t.Series.Minutes+most-1)/most, 1) }

// mean and peak join the minutes of a step from i on.
func mean(of []float32, i, by int) float64 {
	sum, n := 0.0, 0
	for k := i; k < min(i+by, len(of)); k++ {
		sum, n = sum+float64(of[k]), n+1
	}
	return sum / float64(max(n, 1))
}

func peak(of []float32, i, by int) float64 {
	if i >= len(of) {
		return 0
	}
	out := of[i]
	for k := i; k < min(i+by, len(of)); k++ {
		out = max(out, of[k])
	}
	return float64(out)
}

// points are a series as a chart has it.
func (t times) points(of []float32, join func([]float32, int, int) float64) (out []sheet.Point) {
	by := t.by(maxDrawn)
	for i := 0; i < len(of); i += by {
		out = append(out, sheet.Point{X: t.middle(i, by), Y: join(of, i, by)})
	}
	return out
}

func (t times) middle(i, by int) float64 { return t.from + (float64(i)+float64(by)/2)/60 }

func greatest(points ...[]sheet.Point) (out float64) {
	for _, row := range points {
		for _, p := range row {
			out = max(out, p.Y)
		}
	}
	return out
}

// slices is the stacked area of accounts.
func (t times) slices() *sheet.Chart {
	c := sheet.NewChart("Slices by account", "", t.axis(), sheet.YLinear("slices", float64(t.Slices)))
	var low []sheet.Point
	for _, a := range arbiter.Accounts {
		of := t.Series.Slices[a]
		if len(of) == 0 || peak(of, 0, len(of)) == 0 {
			continue
		}
		high := t.points(of, mean)
		for i := range high {
			if i < len(low) {
				high[i].Y += low[i].Y
			}
		}
		if low == nil {
			for _, p := range high {
				low = append(low, sheet.Point{X: p.X})
			}
		}
		c.Area(accounts[a].Class, accounts[a].Name, low, high)
		c.Desc += fmt.Sprintf("%s: %s slices on average. ", accounts[a].Name, sheet.Number(mean(of, 0, len(of))))
		low = high
	}
	if low == nil {
		return nil
	}
	c.Desc += "The table of slices by account has the figures."
	return c
}

func (t times) slicesTable() sheet.Table {
	by := t.by(maxRows)
	out := sheet.Table{Caption: fmt.Sprintf("Slices by account, means of %d minutes; jobs waiting and slices lent at most", by), Head: []string{"From hour"}}
	for _, a := range arbiter.Accounts {
		out.Head = append(out.Head, accounts[a].Name)
	}
	out.Head = append(out.Head, "Jobs waiting", "Lent")
	for i := 0; i < t.Series.Minutes; i += by {
		row := []string{sheet.Number(t.from + float64(i)/60)}
		for _, a := range arbiter.Accounts {
			row = append(row, sheet.Number(mean(t.Series.Slices[a], i, by)))
		}
		out.Rows = append(out.Rows, append(row, sheet.Number(peak(t.Series.Queued, i, by)), sheet.Number(peak(t.Series.Lent, i, by))))
	}
	return out
}

// waiting is the queue of jobs, and what jobs hold.
func (t times) waiting() *sheet.Chart {
	queued, lent := t.points(t.Series.Queued, peak), t.points(t.Series.Lent, peak)
	c := sheet.NewChart("Jobs waiting, slices held by jobs", "", t.axis(), sheet.YLinear("jobs, slices", greatest(queued, lent)))
	c.Series(0, "submitted jobs waiting", queued)
	c.Series(1, "slices held by jobs", lent)
	c.Desc = fmt.Sprintf("At most %s submitted jobs wait, and %s slices are held by jobs, the backlog's among them.", sheet.Number(greatest(queued)), sheet.Number(greatest(lent)))
	return c
}

// replicas are those that a model needs, has ready and has lent.
func (t times) replicas(m *sim.ModelSeries) *sheet.Chart {
	need, ready, lent := t.points(m.Need, peak), t.points(m.Ready, mean), t.points(m.Lent, mean)
	c := sheet.NewChart(m.Name+": replicas", "", t.axis(), sheet.YLinear("replicas", greatest(need, ready, lent)))
	c.Series(0, "needed, most within a step", need)
	c.Series(1, "ready", ready)
	c.Series(2, "lent", lent)
	c.Desc = fmt.Sprintf("%s needs up to %s replicas, and has up to %s ready and %s lent.", m.Name, sheet.Number(greatest(need)), sheet.Number(greatest(ready)), sheet.Number(greatest(lent)))
	return c
}

// latency is p99 as a share of the target; what is left below 1 is the headroom.
func (t times) latency(m *sim.ModelSeries) *sheet.Chart {
	by := t.by(maxDrawn)
	var p99, used, one []sheet.Point
	missed := 0
	for i := 0; i < len(m.P99); i += by {
		p := sheet.Point{X: t.middle(i, by), Y: peak(m.P99, i, by)}
		if p.None = p.Y < 0; p.Y > 1 {
			missed++
		}
		p99 = append(p99, p)
		one = append(one, sheet.Point{X: p.X, Y: 1})
		below := sheet.Point{X: p.X, Y: min(max(p.Y, 0), 1)}
		used = append(used, below)
	}
	most := greatest(p99)
	if most <= 0 {
		return nil
	}
	const top = 3 // times the target; what is above stands at the edge
	c := sheet.NewChart(m.Name+": p99 and headroom", "", t.axis(), sheet.YLinear("p99 as a share of the target", min(max(most, 1), top)))
	c.Area("band", "headroom", used, one)
	c.Series(0, "p99, worst minute of a step", p99)
	c.Across(1, "target")
	c.Desc = fmt.Sprintf("The p99 of the share of its target that a request of %s used, by the minute: at most %s, above the target in %d of %d steps. The band below the target is the headroom.", m.Name, sheet.Number(most), missed, len(p99))
	return c
}

func (t times) modelTable(m *sim.ModelSeries) sheet.Table {
	by := t.by(maxRows)
	out := sheet.Table{Caption: fmt.Sprintf("%s in steps of %d minutes: replicas needed at most, ready and lent on average, p99 of the worst minute over the target, least headroom", m.Name, by),
		Head: []string{"From hour", "Needed", "Ready", "Lent", "p99 / target", "Headroom"}}
	for i := 0; i < t.Series.Minutes; i += by {
		p99 := peak(m.P99, i, by)
		out.Rows = append(out.Rows, []string{sheet.Number(t.from + float64(i)/60), sheet.Number(peak(m.Need, i, by)), sheet.Number(mean(m.Ready, i, by)), sheet.Number(mean(m.Lent, i, by)),
			sheet.OrDash(p99, p99 >= 0), sheet.OrDash(1-p99, p99 >= 0)})
	}
	return out
}

func moves(r *study.Run) sheet.Table {
	t := sheet.Table{Caption: "Moves", Text: 2, Head: []string{"Action", "Reason", "Done", "Failed by a fault", "Not legal then"}}
	for _, m := range r.Moves {
		t.Rows = append(t.Rows, []string{string(m.Action), string(m.Reason), fmt.Sprint(m.Done), fmt.Sprint(m.Failed), fmt.Sprint(m.Refused)})
	}
	return t
}

func incidents(r *study.Run) sheet.Table {
	const most = 60
	t := sheet.Table{Caption: "Incidents", Text: 2, Head: []string{"Kind", "Slice, job or model", "At s", "Took s", "Bound s", "By a fault"}}
	for i, x := range r.Incidents {
		if i == most {
			break
		}
		who, fault := "", "no"
		for _, name := range []string{x.Slice, x.Job, x.Model} {
			if name != "" && who != "" {
				who += ", "
			}
			who += name
		}
		if x.Fault {
			fault = "yes"
		}
		t.Rows = append(t.Rows, []string{x.Kind, who, sheet.Number(x.AtS), sheet.OrDash(x.TookS, x.TookS > 0), sheet.OrDash(x.Bound, x.Bound > 0), fault})
	}
	if more := len(r.Incidents) - len(t.Rows) + r.IncidentsLeftOut; more > 0 {
		t.Caption += fmt.Sprintf(": the first %d, %d more are left out", len(t.Rows), more)
	}
	return t
}
