package loadgen

import (
	"slices"
	"strings"
)

// unit of a measure.
type unit string

const (
	asShare   unit = "" // 0 to 1, in percent for people
	asTime    unit = "ms"
	perSecond unit = "/s"
)

// measure is one number of a Result that can be asked for by name: a share or a
// rate, or a quantile of a distribution.
type measure struct {
	name     string
	unit     unit
	better   int // 1: more is better, -1: less is
	of       func(*Result) (v float64, is bool)
	interval func(*Result) Interval // nil: none is known
	leftOut  func(*Result) int      // requests without a value; nil: it is of all that were offered
}

// overall are the measures that are no quantiles.
var overall = []measure{
	{"attainment", asShare, 1, func(r *Result) (float64, bool) { return r.Attainment, r.Offered > 0 }, attained, nil},
	{"goodput", perSecond, 1, func(r *Result) (float64, bool) { return r.Good, r.Over > 0 }, func(r *Result) Interval {
		return attained(r).scaled(float64(r.Offered) / r.Over)
	}, nil},
	{"good_tokens", perSecond, 1, func(r *Result) (float64, bool) { return r.GoodTokens, r.Over > 0 && r.Tokens.Completion > 0 }, func(r *Result) Interval {
		steps := r.Timeline
		for len(steps) > 0 && steps[len(steps)-1].Offered == 0 { // the last answers after the phase
			steps = steps[:len(steps)-1]
		}
		perStep := batchMeans(steps, func(p *Point) float64 { return float64(p.Tokens) }, func(*Point) float64 { return 1 })
		out := perStep.scaled(float64(len(steps)) / r.Over)
		if r.Attainment > 0 && !out.Open { // even steps do not make the requests certain
			out = out.hull(attained(r).scaled(r.GoodTokens / r.Attainment))
		}
		return out
	}, nil},
	{"late", asShare, -1, func(r *Result) (float64, bool) { return share(r.Late, r.Offered), r.Offered > 0 }, func(r *Result) Interval {
		return r.shareInterval(r.Late, func(p *Point) float64 { return float64(p.Late) })
	}, nil},
	{"shed", asShare, -1, func(r *Result) (float64, bool) { return share(r.Shed, r.Offered), r.Offered > 0 }, func(r *Result) Interval {
		return r.shareInterval(r.Shed, func(p *Point) float64 { return float64(p.Shed) })
	}, nil},
	{"failed", asShare, -1, func(r *Result) (float64, bool) { return share(r.Failed, r.Offered), r.Offered > 0 }, func(r *Result) Interval {
		return r.shareInterval(r.Failed, func(p *Point) float64 { return float64(p.Failed) })
	}, nil},
	{"achieved", perSecond, 1, func(r *Result) (float64, bool) { return r.Achieved, r.Over > 0 }, nil, nil},
	{"retries", perSecond, -1, func(r *Result) (float64, bool) { return r.Extra, r.Over > 0 }, nil, nil},
}

func attained(r *Result) Interval {
	return r.shareInterval(r.OK, func(p *Point) float64 { return float64(p.Good) })
}

// quantileNames are those of a distribution; 0 = the mean, 1 = the greatest.
var quantileNames = []struct {
	name string
	at   float64
}{{"mean", 0}, {"p50", 0.5}, {"p90", 0.9}, {"p95", 0.95}, {"p99", 0.99}, {"p999", 0.999}, {"max", 1}}

// quantile is the measure of one quantile of one distribution.
func quantile(m metric, name string, at float64) measure {
	out := measure{name: metricNames[m].name + "_" + name, unit: asTime, better: -1, of: func(r *Result) (float64, bool) {
		q := r.figure(m)
		if q == nil || q.N == 0 {
			return 0, false
		}
		return q.At(name)
	}, leftOut: func(r *Result) int { return r.figure(m).LeftOut }}
	switch at {
	case 0:
		out.interval = func(r *Result) Interval { return r.figure(m).meanInterval(r.Offered) }
	case 1: // of the greatest value nothing can be said
	default:
		out.interval = func(r *Result) Interval { return r.figure(m).interval(at, r.Offered) }
	}
	return out
}

// ofCuts are the measures that a cut has, too.
func ofCuts() (out []measure) {
	for _, m := range overall {
		if m.unit == asShare {
			out = append(out, m)
		}
	}
	for _, d := range []metric{e2e, ttft, tpot} {
		for _, q := range quantileNames {
			out = append(out, quantile(d, q.name, q.at))
		}
	}
	return out
}

// measureNamed finds a measure, such as attainment or ttft_p99.
func measureNamed(name string) (measure, bool) {
	if i := slices.IndexFunc(overall, func(m measure) bool { return m.name == name }); i >= 0 {
		return overall[i], true
	}
	cut := strings.LastIndexByte(name, '_')
	if cut < 0 {
		return measure{}, false
	}
	for m := range metrics {
		for _, q := range quantileNames {
			if metricNames[m].name == name[:cut] && q.name == name[cut+1:] {
				return quantile(m, q.name, q.at), true
			}
		}
	}
	return measure{}, false
}
