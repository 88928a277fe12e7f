package page

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"aloft/loadgen"
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
func quantileChart(title string, of []named, target float64) *chart {
	of = whole(of)
	if len(of) == 0 {
		return nil
	}
	const steps = 60
	least, greatest := math.Inf(1), 0.0
	rows := make([][]point, len(of))
	for i, n := range of {
		for k := 0; k <= steps; k++ {
			x := nines(0.999) * float64(k) / steps
			v := max(n.HDR.Quantile(1-math.Pow(10, -x)), 0.001) // the least that is told apart
			rows[i] = append(rows[i], point{x: x, y: v})
			least, greatest = min(least, v), max(greatest, v)
		}
	}
	if target > 0 {
		least, greatest = min(least, target), max(greatest, target)
	}
	x := axis{Label: "share of requests within (log scale of the rest)", scale: scale{hi: nines(0.999), from: plotLeft, to: plotRight}}
	for _, q := range []struct {
		at    float64
		label string
	}{{0, "0"}, {0.5, "p50"}, {0.9, "p90"}, {0.95, "p95"}, {0.99, "p99"}, {0.999, "p99.9"}} {
		x.tick(nines(q.at), q.label)
	}
	c := newChart(title, "", x, yLog("ms, log scale", least, greatest))
	for i, n := range of {
		c.line(n.name, rows[i])
		for _, q := range []struct {
			at   float64
			name string
			v    float64
		}{{0.5, "p50", n.P50}, {0.99, "p99", n.P99}, {0.999, "p99.9", n.P999}} {
			c.dot(point{x: nines(q.at), y: max(q.v, 0.001)}, class(i), fmt.Sprintf("%s: %s is %s ms", n.name, q.name, number(q.v)))
		}
		c.Desc += fmt.Sprintf("%s, %d values: p50 %s ms, p99 %s ms, p99.9 %s ms, at most %s ms. ", n.name, n.N, number(n.P50), number(n.P99), number(n.P999), number(n.Max))
		if n.N < 1000 {
			c.Desc += "With fewer than 1000 values p99.9 is the greatest. "
		}
	}
	if target > 0 {
		c.across(target, "limit "+number(target)+" ms")
	}
	return c
}

// perDecade is how many bars a distribution has for each power of ten.
const perDecade = 20

// densityChart shows how many values lie where, on a log scale; nil without any.
func densityChart(title string, of []named) *chart {
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
	c := newChart(title, "", xLog("ms, log scale", edge(low), edge(high+1)), yLinear("% of values in each step", 100*top))
	for i, n := range of {
		points := []point{{x: edge(low)}}
		for k := low; k <= high; k++ {
			points = append(points, point{x: edge(k), y: 100 * counts[i][k]}, point{x: edge(k + 1), y: 100 * counts[i][k]})
		}
		c.line(n.name, append(points, point{x: edge(high + 1)}))
		c.Desc += fmt.Sprintf("%s: %d values from %s to %s ms, mean %s ms, half of them up to %s ms. ", n.name, n.N, number(n.HDR.Quantile(0)), number(n.Max), number(n.Mean), number(n.P50))
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
func timeLine(r *loadgen.Report, of []*loadgen.Result) ([]*chart, []table) {
	points, begins := joined(of)
	if len(points) == 0 {
		return nil, nil
	}
	step := cmp.Or(r.Step, 1)
	end := points[len(points)-1].At + step
	drawn, wide := widened(points, maxDrawn, step)
	rates := rateChart(drawn, wide, end)
	times := latencyChart(drawn, wide, end)
	open := newChart("In flight", "", xLinear("s from the start of the run", end), yLinear("requests", float64(greatest(drawn, func(p loadgen.Point) float64 { return float64(p.InFlight) }))))
	open.line("in flight at the end of each step", series(drawn, wide, func(p loadgen.Point) float64 { return float64(p.InFlight) }))
	open.Desc = fmt.Sprintf("Requests sent and not ended, at most %s.", number(greatest(drawn, func(p loadgen.Point) float64 { return float64(p.InFlight) })))
	out := []*chart{rates, times, open}
	for _, c := range out {
		if c == nil {
			continue
		}
		for _, b := range begins {
			c.down(b.at, shortened(b.name, 18))
		}
		c.hover(drawn, wide)
	}
	rows, wide := widened(points, maxRows, step)
	t := table{Caption: fmt.Sprintf("Time line in steps of %s s", plain(wide)), Head: []string{"From s", "Offered", "Good", "Late", "Shed", "Failed", "p50 ms", "p99 ms", "In flight"}}
	if wide > step {
		t.Caption += "; p50 and p99 are the highest of any second in it"
	}
	for _, p := range rows {
		t.Rows = append(t.Rows, []string{plain(p.At), itoa(p.Offered), itoa(p.Good), itoa(p.Late), itoa(p.Shed), itoa(p.Failed), orDash(p.P50, p.P50 > 0), orDash(p.P99, p.P99 > 0), itoa(p.InFlight)})
	}
	return out, []table{t}
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
func series(points []loadgen.Point, wide float64, of func(loadgen.Point) float64) []point {
	out := make([]point, len(points))
	for i, p := range points {
		out[i] = point{x: p.At + wide/2, y: of(p)}
	}
	return out
}

func rateChart(points []loadgen.Point, wide, end float64) *chart {
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
	c := newChart("Requests a second, by intended start", "", xLinear("s from the start of the run", end), yLinear("requests/s", greatest(points, kinds[0].of)))
	for i, k := range kinds {
		if most := greatest(points, k.of); most > 0 || i < 2 {
			c.Lines = append(c.Lines, stroke{class(i), k.name, c.path(series(points, wide, k.of))})
			c.Desc += fmt.Sprintf("%s: up to %s/s. ", k.name, number(most))
		}
	}
	return c
}

// latencyChart is nil when no request has a latency.
func latencyChart(points []loadgen.Point, wide, end float64) *chart {
	least, most := math.Inf(1), 0.0
	for _, p := range points {
		if p.P50 > 0 {
			least, most = min(least, p.P50), max(most, p.P99)
		}
	}
	if most == 0 {
		return nil
	}
	c := newChart("Latency of each step, from intended start", "", xLinear("s from the start of the run", end), yLog("ms, log scale", least, most))
	for _, k := range []struct {
		name string
		of   func(loadgen.Point) float64
	}{{"p50", func(p loadgen.Point) float64 { return p.P50 }}, {"p99", func(p loadgen.Point) float64 { return p.P99 }}} {
		row := series(points, wide, k.of)
		for i := range row {
			row[i].none = row[i].y == 0
		}
		c.line(k.name, row)
		c.Desc += fmt.Sprintf("%s: up to %s ms. ", k.name, number(greatest(points, k.of)))
	}
	return c
}

// hover lets each step tell its figures.
func (c *chart) hover(points []loadgen.Point, wide float64) {
	for _, p := range points {
		from, to := c.X.at(p.At), c.X.at(p.At+wide)
		c.Hovers = append(c.Hovers, box{pos(from), pos(plotTop), pos(to - from), pos(plotBottom - plotTop), "", fmt.Sprintf(
			"%s to %s s: %d offered, %d good, %d late, %d shed, %d failed, p50 %s ms, p99 %s ms, %d in flight", plain(p.At), plain(p.At+wide),
			p.Offered, p.Good, p.Late, p.Shed, p.Failed, orDash(p.P50, p.P50 > 0), orDash(p.P99, p.P99 > 0), p.InFlight)})
	}
}
