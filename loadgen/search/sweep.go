package search

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
)

// Curve is what a sweep drew.
type Curve struct{ Head }

// grid is a log grid of rates: equal steps, both ends on it.
func grid(from, to float64, points int) []float64 {
	out := make([]float64, points)
	for i := range out {
		out[i] = from * math.Pow(to/from, float64(i)/float64(points-1))
	}
	out[points-1] = to
	return out
}

// hopeless reports whether higher rates cannot be of interest.
func (p *Point) hopeless(attain float64) bool {
	return p.Verdict == Fails && (p.Reason == Growing || p.High < attain/2)
}

// Sweep measures a grid of rates from Min to Max, each for Repeats whole windows,
// and keeps every report. It ends early when points are hopeless. Errors are as
// those of Find.
func Sweep(ctx context.Context, o Options) (Curve, error) {
	if o.Min == 0 || o.Max == 0 || !(o.Min < o.Max) {
		return Curve{}, fmt.Errorf("search: a sweep from %v to %v arrivals per second, want 0 < from < to", o.Min, o.Max)
	}
	o.Start = o.Min
	if err := o.Validate(); err != nil {
		return Curve{}, err
	}
	o.Repeats = cmp.Or(o.Repeats, 1)
	s, err := o.searcher()
	if err != nil {
		return Curve{}, err
	}
	s.whole = true
	var points []Point
	var fail error
	stop, lost := Stop(""), 0
	for _, rate := range grid(s.Min, s.Max, s.Points) {
		for range s.Repeats {
			if stop = s.mayRun(ctx, rate); stop == "" {
				points, stop, fail = s.visit(ctx, points, rate)
			}
			if stop != "" {
				break
			}
		}
		if stop != "" {
			break
		}
		if lost++; !points[len(points)-1].hopeless(s.Attain) {
			lost = 0
		}
		if lost == s.Hopeless {
			stop = GaveUp
			break
		}
	}
	points = measured(points)
	c := Curve{s.head(points, cmp.Or(stop, Drawn))}
	switch {
	case errors.Is(fail, ErrGenerator):
		c.Note = "the generator failed: the server may do more than what is shown here"
	case stop == GaveUp && len(points) < s.Points:
		c.Note = fmt.Sprintf("ended after %d hopeless points in a row, %d rates before the end of the grid", lost, s.Points-len(points))
	case stop != "":
		c.Note = fmt.Sprintf("%s; %d rates before the end of the grid", stop.Meaning(), s.Points-len(points))
	}
	return c, fail
}
