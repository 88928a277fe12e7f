package main

import (
	"fmt"
	"strings"

	"aloft/sim/batching"
)

// report writes tables and marks.
func (s *study) report(r *result) {
	s.table(r)
	if s.skipped != "" {
		r.note("The arm %s is missing: %s.", azureCode, s.skipped)
	}
	s.details(r)
	s.marksBeyond(r)
	s.marksBelow(r)
	s.marksSaving(r)
	s.marksSpecial(r)
}

// details shows more of the arms before the usual traffic.
func (s *study) details(r *result) {
	var rows [][]string
	for _, load := range []float64{0.5, 1.12, 1.3} {
		c := s.at(poissonTail, load)
		for _, arm := range batching.Arms {
			a := c.report(arm)
			rows = append(rows, []string{fmt.Sprintf("%.2f", load), arm, fmt.Sprintf("%.1f (%.1f to %.1f)", 100*a.Attainment.Value, 100*a.Attainment.Low, 100*a.Attainment.High),
				fmt.Sprintf("%.0f", a.Goodput), fmt.Sprintf("%.1f", 100*a.Tokens), fmt.Sprintf("%.1f", 100*a.Deciles[9]), fmt.Sprintf("%.1f", 100*a.Shed), fmt.Sprintf("%.1f", 100*a.Late),
				fmt.Sprintf("%.0f", a.P50), fmt.Sprintf("%.0f", a.P99), fmt.Sprintf("%.2f", a.PerGood), fmt.Sprintf("%.1f", a.Rows)})
		}
	}
	var b strings.Builder
	writeTable(&b, []string{"x knee", "arm", "in time, %", "good/s", "of tokens, %", "of longest tenth, %", "refused, %", "late, %", "p50 ms", "p99 ms", "replica ms a good request", "rows a call"}, rows)
	r.note("%s in detail; latencies are of what was answered.\n\n%s", poissonTail, strings.TrimSuffix(b.String(), "\n"))
}

// marksBeyond are those past the knee.
func (s *study) marksBeyond(r *result) {
	for _, m := range []struct{ load, fixed, tuned float64 }{{1.12, 1.3, 1.05}, {1.3, 2, 1.1}} {
		f := s.at(poissonTail, m.load).found
		at := fmt.Sprintf("goodput at %.2f x knee, ours / ", m.load)
		r.atLeastIn(at+"fixed", f.Over(batching.Ours, batching.FixedArm), m.fixed)
		r.atLeastIn(at+"tuned", f.Over(batching.Ours, batching.Tuned), m.tuned)
		for _, name := range []string{poissonEven, gammaTail, gammaEven, azureCode} {
			if c := s.at(name, m.load); c != nil {
				r.measuredIn(fmt.Sprintf("%s, %stuned", name, at), c.found.Over(batching.Ours, batching.Tuned))
			}
		}
	}
	c := s.at(poissonTail, 1.3)
	long := func(w *batching.Window) float64 { return float64(w.Longest.Good) }
	r.atLeastIn("longest tenth at 1.3 x knee, attained by ours / by tuned", batching.Ratio(c.found.Each(batching.Ours, long), c.found.Each(batching.Tuned, long)), 1)
	var good, bound [][]float64
	for i, run := range c.found.Runs[batching.Ours] {
		good, bound = append(good, []float64{float64(run.Good)}), append(bound, []float64{c.found.Bounds[i]})
	}
	r.atLeastIn("goodput at 1.3 x knee, ours / clairvoyant bound", batching.Ratio(good, bound), 0.9)
}

// marksBelow are those where nothing need be shed: the worst load of each traffic.
func (s *study) marksBelow(r *result) {
	for _, name := range []string{poissonTail, poissonEven, gammaTail, gammaEven, azureCode} {
		for _, arm := range []string{batching.Ours, batching.OursSaves} {
			worst, at, beside := batching.Interval{Value: 2}, 0.0, ""
			for _, c := range s.cells {
				if c.name != name || c.Load >= 1 {
					continue
				}
				best := c.found.Best()
				if v := c.found.Over(arm, best); v.Value < worst.Value {
					worst, at, beside = v, c.Load, best
				}
			}
			if at > 0 {
				r.atLeastIn(fmt.Sprintf("%s, below the knee: goodput of %s / the best arm's (worst at %.2f, beside %s)", name, arm, at, beside), worst, 0.995)
			}
		}
	}
}

// marksSaving are those of eta = 1.
func (s *study) marksSaving(r *result) {
	for _, c := range s.cells {
		if c.name != poissonTail || c.Load < 0.2 || c.Load > 0.5 {
			continue
		}
		at := fmt.Sprintf("at %.2f x knee", c.Load)
		r.atMostIn("replica time per good request "+at+", eta 1 / eager", c.found.PerGood(batching.OursSaves, batching.Eager), 0.5)
		r.measuredIn("replica time per good request "+at+", eta 1 / eta 0", c.found.PerGood(batching.OursSaves, batching.Ours))
		r.atLeastIn("attainment "+at+", eta 1", c.found.Attainment(batching.OursSaves), 0.999)
	}
}

// marksSpecial are those of what goes wrong.
func (s *study) marksSpecial(r *result) {
	c := s.at(flooded, 1.85)
	r.atLeastIn("quiet tenant beside a 15:1 flood, attainment", c.tenant(batching.Ours, quietTenant), 0.99)
	r.atLeastIn("goodput beside a 15:1 flood, by tenants / by deadlines only", c.found.Over(batching.Ours, batching.OursBlind), 0.98)
	c = s.at(slowing, 0.65)
	r.atLeastIn("attainment after a 1.6 x slowdown at 0.65 x knee", c.found.Attainment(batching.Ours), 0.97)
	r.measuredIn("the same, tuned before the slowdown", c.found.Attainment(batching.Tuned))
	worst, which := batching.Interval{Value: 2}, ""
	for _, c := range s.cells {
		if v := c.attained(); strings.HasPrefix(c.name, wrongPriors) && v.Value < worst.Value {
			worst, which = v, fmt.Sprintf("%s at %.1f", strings.TrimPrefix(c.name, wrongPriors+": "), c.Load)
		}
	}
	r.atLeastIn("attainment at 0.1 to 0.8 x knee from a prior wrong by 3 (worst: "+which+")", worst, 0.999)
}

func (c *point) attained() batching.Interval { return c.found.Attainment(batching.Ours) }
