package loadgen

import (
	"cmp"
	"math"
	"slices"
)

// mostCuts bounds the figures of cuts in a comparison: a workload may have
// hundreds of tenants, each with some twenty.
const mostCuts = 40

// compareCuts adds the figures of cuts that have a verdict. Tenths by length have
// the same name only if their lengths are the same; others are not compared.
func (c *Comparison) compareCuts(a, b *Report) {
	type key struct{ workload, cut string }
	was := map[key]*Cut{}
	for i := range a.Cuts {
		x := &a.Cuts[i]
		was[key{x.Workload, x.String()}] = x
	}
	clumpA, clumpB := a.clumps(), b.clumps()
	var found []FigureChange
	for i := range b.Cuts {
		y := &b.Cuts[i]
		x := was[key{y.Workload, y.String()}]
		if x == nil || a.closed(y.Workload) != b.closed(y.Workload) {
			continue
		}
		p := pair{x: x.result(), y: y.result(), cut: y.String(), clumpX: clumpA(y.Workload), clumpY: clumpB(y.Workload)}
		figures, _ := p.compare(ofCuts())
		for _, f := range figures {
			if f.Verdict == Better || f.Verdict == Worse {
				found = append(found, f)
			}
		}
	}
	which := make([]int, len(found))
	for i := range which {
		which[i] = i
	}
	slices.SortStableFunc(which, func(i, j int) int { return cmp.Compare(found[j].distance(), found[i].distance()) })
	c.CutsMore = max(len(which)-mostCuts, 0)
	which = which[:len(which)-c.CutsMore]
	slices.Sort(which) // the figures of a cut stand together
	for _, i := range which {
		c.Cuts = append(c.Cuts, found[i])
	}
}

// distance is that between the intervals, as a share of the larger figure.
func (f *FigureChange) distance() float64 {
	between := max(f.IntervalA.Lo-f.IntervalB.Hi, f.IntervalB.Lo-f.IntervalA.Hi)
	return between / math.Max(math.Abs(f.A), math.Abs(f.B))
}

func (r *Report) closed(workload string) bool {
	return slices.ContainsFunc(r.Results, func(x Result) bool { return x.Name == workload && x.Closed > 0 })
}

// clumps says how much wider the interval of a workload's share is than that of
// independent requests would be, in its worst phase. A cut has no time line that
// could tell, and its requests share with the others what the server went
// through.
func (r *Report) clumps() func(workload string) func(measure) float64 {
	type key struct{ workload, figure string }
	known := map[key]float64{} // a bootstrap takes long
	return func(workload string) func(measure) float64 {
		return func(m measure) float64 {
			at := key{workload, m.name}
			if _, is := known[at]; !is {
				known[at] = 1
				for _, x := range r.Results { // a copy
					if x.Name != workload {
						continue
					}
					whole := m.interval(&x)
					x.Timeline = nil
					if alone := m.interval(&x); alone.Hi > alone.Lo {
						known[at] = max(known[at], (whole.Hi-whole.Lo)/(alone.Hi-alone.Lo))
					}
				}
			}
			return known[at]
		}
	}
}
