package page

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"aloft/loadgen"
	"aloft/loadgen/page/sheet"
)

// named is a distribution as a chart shows it.
type named struct {
	name string
	*loadgen.Quantiles
}

// whole are those that have values and all of them at hand.
func whole(of []named) []named {
	return slices.DeleteFunc(slices.Clone(of), func(n named) bool { return n.Quantiles == nil || n.N == 0 || n.HDR == nil })
}

// nines is a quantile on an axis where each further nine takes as much room.
func nines(q float64) float64 { return -math.Log10(1 - q) }

// quantileChart shows distributions from p0 to p99.9, with a target (0 = none).
// nil without values.
func quantileChart(title string, of []named, target float64) *sheet.Chart {
	of = whole(of)
	if len(of) == 0 {
		return nil
	}
	const steps = 60
	least, greatest := math.Inf(1), 0.0
	rows := make([][]sheet.Point, len(of))
	for i, n := range of {
		for k := 0; k <= steps; k++ {
			x := nines(0.999) * float64(k) / steps
			v := max(n.HDR.Quantile(1-math.Pow(10, -x)), 0.001) // the least that is told apart
			rows[i] = append(rows[i], sheet.Point{X: x, Y: v})
			least, greatest = min(least, v), max(greatest, v)
		}
	}
	if target > 0 {
		least, greatest = min(least, target), max(greatest, target)
	}
	x := sheet.XAxis("share of requests within (log scale of the rest)", 0, nines(0.999))
	for _, q := range []struct {
		at    float64
		label string
	}{{0, "0"}, {0.5, "p50"}, {0.9, "p90"}, {0.95, "p95"}, {0.99, "p99"}, {0.999, "p99.9"}} {
		x.Tick(nines(q.at), q.label)
	}
	c := sheet.NewChart(title, "", x, sheet.YLog("ms, log scale", least, greatest))
	for i, n := range of {
		c.Line(n.name, rows[i])
		for _, q := range []struct {
			at   float64
			name string
			v    float64
		}{{0.5, "p50", n.P50}, {0.99, "p99", n.P99}, {0.999, "p99.9", n.P999}} {
			c.Dot(sheet.Point{X: nines(q.at), Y: max(q.v, 0.001)}, sheet.Class(i), fmt.Sprintf("%s: %s is %s ms", n.name, q.name, sheet.Number(q.v)))
		}
		c.Desc += fmt.Sprintf("%s, %d values: p50 %s ms, p99 %s ms, p99.9 %s ms, at most %s ms. ", n.name, n.N, sheet.Number(n.P50), sheet.Number(n.P99), sheet.Number(n.P999), sheet.Number(n.Max))
		if n.N < 1000 {
			c.Desc += "With fewer than 1000 values p99.9 is the greatest. "
		}
	}
	if target > 0 {
		c.Across(target, "limit "+sheet.Number(target)+" ms")
	}
	return c
}

// perDecade is how many bars a distribution has for each power of ten.
const perDecade = 20

// densityChart shows how many values lie where, on a log scale; nil without any.
func densityChart(title string, of []named) *sheet.Chart {
	of = whole(of)
	if len(of) == 0 {
		return nil
	}
	bin := func(ms float64) int { return int(math.Floor(perDecade * math.Log10(max(ms, 0.001)))) }
	edge := func(i int) float64 { return math.Pow(10, float64(i)/perDecade) }
	counts := make([]map[int]float64, len(of))
	low, high, top := math.MaxInt, math.MinInt, 0.0
	for i, n := range of {
		counts[i] = map[int]float64{}
		for _, b := range n.HDR.Buckets() {
			k := bin((b.From + b.To) / 2)
			counts[i][k] += float64(b.Count) / float64(n.N)
			low, high, top = min(low, k), max(high, k), max(top, counts[i][k])
		}
	}
	c := sheet.NewChart(title, "", sheet.XLog("ms, log scale", edge(low), edge(high+1)), sheet.YLinear("% of values in each step", 100*top))
	for i, n := range of {
		points := []sheet.Point{{X: edge(low)}}
		for k := low; k <= high; k++ {
			points = append(points, sheet.Point{X: edge(k), Y: 100 * counts[i][k]}, sheet.Point{X: edge(k + 1), Y: 100 * counts[i][k]})
		}
		c.Line(n.name, append(points, sheet.Point{X: edge(high + 1)}))
		c.Desc += fmt.Sprintf("%s: %d values from %s to %s ms, mean %s ms, half of them up to %s ms. ", n.name, n.N, sheet.Number(n.HDR.Quantile(0)), sheet.Number(n.Max), sheet.Number(n.Mean), sheet.Number(n.P50))
	}
	return c
}

// Steps of a time line that are drawn and written at most; a longer one is
// drawn in wider steps.
const (
	maxDrawn = 300
	maxRows  = 60
)

// timeLine is a workload over all its phases: rates, latencies, what is in
// flight, and the table.
func timeLine(r *loadgen.Report, of []*loadgen.Result) ([]*sheet.Chart, []sheet.Table) {
	points, begins := joined(of)
	if len(points) == 0 {
		return nil, nil
	}
	step := cmp.Or(r.Step, 1)
	end := points[len(points)-1].At + step
	drawn, wide := widened(points, maxDrawn, step)
	rates := rateChart(drawn, wide, end)
	times := latencyChart(drawn, wide, end)
	open := sheet.NewChart("In flight", "", sheet.XLinear("s from the start of the run", end), sheet.YLinear("requests", float64(greatest(drawn, func(p loadgen.Point) float64 { return float64(p.InFlight) }))))
	open.Line("in flight at the end of each step", series(drawn, wide, func(p loadgen.Point) float64 { return float64(p.InFlight) }))
	open.Desc = fmt.Sprintf("Requests sent and not ended, at most %s.", sheet.Number(greatest(drawn, func(p loadgen.Point) float64 { return float64(p.InFlight) })))
	out := []*sheet.Chart{rates, times, open}
	for _, c := range out {
		if c == nil {
			continue
		}
		for _, b := range begins {
			c.Down(b.at, sheet.Shortened(b.name, 18))
		}
		hover(c, drawn, wide)
	}
	rows, wide := widened(points, maxRows, step)
	t := sheet.Table{Caption: fmt.Sprintf("Time line in steps of %s s", sheet.Plain(wide)), Head: []string{"From s", "Offered", "Good", "Late", "Shed", "Failed", "p50 ms", "p99 ms", "In flight"}}
	if wide > step {
		t.Caption += "; p50 and p99 are the highest of any second in it"
	}
	for _, p := range rows {
		t.Rows = append(t.Rows, []string{sheet.Plain(p.At), itoa(p.Offered), itoa(p.Good), itoa(p.Late), itoa(p.Shed), itoa(p.Failed), sheet.OrDash(p.P50, p.P50 > 0), sheet.OrDash(p.P99, p.P99 > 0), itoa(p.InFlight)})
	}
	return out, []sheet.Table{t}
}

// begin is where a phase begins on a time line.
type begin struct {
	at   float64
	name string
}

// joined is the time line of all phases. Two that share a step, one ending in it
// and one beginning, are added; of their quantiles the higher stands.
func joined(of []*loadgen.Result) (out []loadgen.Point, begins []begin) {
	at := map[float64]int{}
	for _, x := range of {
		if len(x.Timeline) > 0 && len(of) > 1 {
			begins = append(begins, begin{x.Timeline[0].At, x.Phase})
		}
		for _, p := range x.Timeline {
			i, ok := at[p.At]
			if !ok {
				at[p.At] = len(out)
				out = append(out, p)
				continue
			}
			out[i] = merged(out[i], p)
			out[i].InFlight += p.InFlight
		}
	}
	slices.SortFunc(out, func(a, b loadgen.Point) int { return cmp.Compare(a.At, b.At) })
	return out, begins
}

func merged(a, b loadgen.Point) loadgen.Point {
	a.Offered, a.Good, a.Late, a.Shed, a.Failed = a.Offered+b.Offered, a.Good+b.Good, a.Late+b.Late, a.Shed+b.Shed, a.Failed+b.Failed
	a.Tokens += b.Tokens
	a.P50, a.P99 = max(a.P50, b.P50), max(a.P99, b.P99)
	return a
}

// widened joins steps until there are at most so many; it returns their width.
func widened(points []loadgen.Point, most int, step float64) ([]loadgen.Point, float64) {
	by := (len(points) + most - 1) / most
	var out []loadgen.Point
	for group := range slices.Chunk(points, by) {
		p := group[0]
		for _, q := range group[1:] {
			open := max(p.InFlight, q.InFlight)
			p = merged(p, q)
			p.InFlight = open
		}
		out = append(out, p)
	}
	return out, step * float64(by)
}

func greatest(points []loadgen.Point, of func(loadgen.Point) float64) (out float64) {
	for _, p := range points {
		out = max(out, of(p))
	}
	return out
}

// series is a figure of each step, drawn in its middle.
func series(points []loadgen.Point, wide float64, of func(loadgen.Point) float64) []sheet.Point {
	out := make([]sheet.Point, len(points))
	for i, p := range points {
		out[i] = sheet.Point{X: p.At + wide/2, Y: of(p)}
	}
	return out
}

func rateChart(points []loadgen.Point, wide, end float64) *sheet.Chart {
	kinds := []struct {
		name string
		of   func(loadgen.Point) float64
	}{
		{"offered", func(p loadgen.Point) float64 { return float64(p.Offered) / wide }},
		{"good", func(p loadgen.Point) float64 { return float64(p.Good) / wide }},
		{"late", func(p loadgen.Point) float64 { return float64(p.Late) / wide }},
		{"shed", func(p loadgen.Point) float64 { return float64(p.Shed) / wide }},
		{"failed", func(p loadgen.Point) float64 { return float64(p.Failed) / wide }},
	}
	c := sheet.NewChart("Requests a second, by intended start", "", sheet.XLinear("s from the start of the run", end), sheet.YLinear("requests/s", greatest(points, kinds[0].of)))
	for i, k := range kinds {
		if most := greatest(points, k.of); most > 0 || i < 2 {
			c.Series(i, k.name, series(points, wide, k.of))
			c.Desc += fmt.Sprintf("%s: up to %s/s. ", k.name, sheet.Number(most))
		}
	}
	return c
}

// latencyChart is nil when no request has a latency.
func latencyChart(points []loadgen.Point, wide, end float64) *sheet.Chart {
	least, most := math.Inf(1), 0.0
	for _, p := range points {
		if p.P50 > 0 {
			least, most = min(least, p.P50), max(most, p.P99)
		}
	}
	if most == 0 {
		return nil
	}
	c := sheet.NewChart("Latency of each step, from intended start", "", sheet.XLinear("s from the start of the run", end), sheet.YLog("ms, log scale", least, most))
	for _, k := range []struct {
		name string
		of   func(loadgen.Point) float64
	}{{"p50", func(p loadgen.Point) float64 { return p.P50 }}, {"p99", func(p loadgen.Point) float64 { return p.P99 }}} {
		row := series(points, wide, k.of)
		for i := range row {
			row[i].None = row[i].Y == 0
		}
		c.Line(k.name, row)
		c.Desc += fmt.Sprintf("%s: up to %s ms. ", k.name, sheet.Number(greatest(points, k.of)))
	}
	return c
}

// hover lets each step tell its figures.
func hover(c *sheet.Chart, points []loadgen.Point, wide float64) {
	for _, p := range points {
		c.Hover(p.At, p.At+wide, fmt.Sprintf("%s to %s s: %d offered, %d good, %d late, %d shed, %d failed, p50 %s ms, p99 %s ms, %d in flight", sheet.Plain(p.At), sheet.Plain(p.At+wide),
			p.Offered, p.Good, p.Late, p.Shed, p.Failed, sheet.OrDash(p.P50, p.P50 > 0), sheet.OrDash(p.P99, p.P99 > 0), p.InFlight))
	}
}
