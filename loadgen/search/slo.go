package search

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"aloft/loadgen"
)

// Metric is a figure of a request that a clause bounds, from its intended start
// where it has a start.
type Metric string

// The metrics. ITL and gap are figures of which one answer has many.
const (
	TTFB    Metric = "ttfb"    // to the first byte
	Role    Metric = "role"    // to the first chunk of a stream
	TTFT    Metric = "ttft"    // to the first token
	Visible Metric = "visible" // to the first token that a reader sees
	TPOT    Metric = "tpot"    // mean time of each further token
	ITL     Metric = "itl"     // time of each token, pooled over answers
	Gap     Metric = "gap"     // between reads that brought content, pooled
	E2E     Metric = "e2e"     // to the end of the answer
)

var metrics = []Metric{TTFB, Role, TTFT, Visible, TPOT, ITL, Gap, E2E}

// Clause bounds one figure.
type Clause struct {
	Metric Metric
	// Mean bounds the mean; else Quantile in (0, 1] is what is bounded. 1 is the
	// longest of an answer, of what it has many of.
	Mean     bool
	Quantile float64
	Bound    time.Duration
	Strict   bool // <, not <=

	stat string // as it was written: p99
}

// SLO is what a server promises: every clause of it.
type SLO struct {
	Clauses []Clause
	text    string
}

// String is the SLO as it was written, without blanks.
func (s SLO) String() string { return s.text }

// MarshalText writes the SLO as String does.
func (s SLO) MarshalText() ([]byte, error) { return []byte(s.text), nil }

// UnmarshalText reads an SLO as ParseSLO does; an empty one is none.
func (s *SLO) UnmarshalText(text []byte) (err error) {
	*s = SLO{}
	if len(text) > 0 {
		*s, err = ParseSLO(string(text))
	}
	return err
}

// The bounds of an SLO: a clause for each metric and a few quantiles, and a
// request may not take longer than an hour.
const (
	maxClauses = 32
	maxBound   = time.Hour
)

// ParseSLO reads clauses separated by commas, each a metric, an underscore, a
// quantile (p50, p99, p99.9) or mean, of itl and gap also max, < or <=, and a duration with one of the
// units ns, us, ms and s: "ttft_p99<800ms,tpot_p99<50ms". Blanks around parts
// are allowed. An error says what was expected and at which character, counted
// from 1.
func ParseSLO(text string) (SLO, error) {
	p := &parser{text: text}
	var out SLO
	for {
		c, err := p.clause()
		if err != nil {
			return SLO{}, err
		}
		for _, o := range out.Clauses {
			if o.Metric == c.Metric && o.stat == c.stat {
				return SLO{}, p.fail("another figure than " + string(c.Metric) + "_" + c.stat + ", which has a bound")
			}
		}
		if out.text != "" {
			out.text += ","
		}
		out.Clauses, out.text = append(out.Clauses, c), out.text+c.String()
		p.blanks()
		if p.at == len(p.text) {
			return out, nil
		}
		if len(out.Clauses) == maxClauses {
			return SLO{}, p.fail(fmt.Sprintf("the end, after %d clauses", maxClauses))
		}
		if !p.take(",") {
			return SLO{}, p.fail("a comma or the end")
		}
	}
}

// String is the clause as ParseSLO reads it.
func (c Clause) String() string {
	sign := "<="
	if c.Strict {
		sign = "<"
	}
	return string(c.Metric) + "_" + c.stat + sign + durationText(c.Bound)
}

func durationText(d time.Duration) string {
	for _, u := range units {
		if d%u.is == 0 {
			return strconv.FormatInt(int64(d/u.is), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(d), 10) + "ns"
}

var units = []struct {
	name string
	is   time.Duration
}{{"s", time.Second}, {"ms", time.Millisecond}, {"us", time.Microsecond}, {"ns", time.Nanosecond}}

type parser struct {
	text string
	at   int
}

func (p *parser) blanks() {
	for p.at < len(p.text) && (p.text[p.at] == ' ' || p.text[p.at] == '\t') {
		p.at++
	}
}

func (p *parser) take(s string) bool {
	is := strings.HasPrefix(p.text[p.at:], s)
	if is {
		p.at += len(s)
	}
	return is
}

// number takes digits with at most one point; "" if there are none.
func (p *parser) number() string {
	from, point := p.at, false
	for ; p.at < len(p.text); p.at++ {
		c := p.text[p.at]
		if c == '.' && !point && p.at > from {
			point = true
		} else if c < '0' || c > '9' {
			break
		}
	}
	return p.text[from:p.at]
}

func (p *parser) fail(want string) error {
	got := "the end"
	if p.at < len(p.text) {
		got = strconv.QuoteToASCII(string([]rune(p.text[p.at:min(len(p.text), p.at+16)])))
	}
	return fmt.Errorf("search: slo, character %d: want %s, got %s", p.at+1, want, got)
}

func (p *parser) clause() (c Clause, err error) {
	p.blanks()
	i := slices.IndexFunc(metrics, func(m Metric) bool { return strings.HasPrefix(p.text[p.at:], string(m)+"_") })
	if i < 0 {
		names := make([]string, len(metrics))
		for i, m := range metrics {
			names[i] = string(m) + "_"
		}
		return c, p.fail("one of " + strings.Join(names, ", "))
	}
	c.Metric = metrics[i]
	p.take(string(c.Metric) + "_")
	from := p.at
	switch {
	case p.take("mean"):
		c.Mean = true
	case c.pooled() && p.take("max"):
		c.Quantile = 1
	case p.take("p"):
		digits := p.number()
		q, err := strconv.ParseFloat(digits, 64)
		if err != nil || !(q > 0 && q < 100) || strings.HasSuffix(digits, ".") {
			p.at = from + 1
			return c, p.fail("a quantile above 0 and below 100, as in p99 or p99.9")
		}
		c.Quantile = q / 100
	case c.pooled():
		return c, p.fail("mean, max or a quantile as in p99")
	default:
		return c, p.fail("mean or a quantile as in p99")
	}
	c.stat = p.text[from:p.at]
	p.blanks()
	switch {
	case p.take("<="):
	case p.take("<"):
		c.Strict = true
	default:
		return c, p.fail("< or <=")
	}
	p.blanks()
	c.Bound, err = p.duration()
	return c, err
}

func (p *parser) duration() (time.Duration, error) {
	from := p.at
	digits := p.number()
	n, err := strconv.ParseFloat(digits, 64)
	if err != nil || strings.HasSuffix(digits, ".") {
		p.at = from
		return 0, p.fail("a number, as in 800ms")
	}
	for _, u := range units {
		if p.take(u.name) {
			d := n * float64(u.is)
			if !(d >= 1 && d <= float64(maxBound)) {
				p.at = from
				return 0, p.fail(fmt.Sprintf("a duration of 1ns to %v", maxBound))
			}
			return time.Duration(d + 0.5), nil
		}
	}
	return 0, p.fail("a unit: ns, us, ms or s")
}

// limit is the highest value that is within the bound.
func (c Clause) limit() time.Duration {
	if c.Strict {
		return c.Bound - 1
	}
	return c.Bound
}

// each reports whether the clause bounds each request at this attainment.
func (c Clause) each(attain float64) bool {
	return c.longest() || !c.Mean && c.Quantile >= attain-1e-9 && !c.pooled()
}

// within reports whether a result is within the bound, by itself. A request that
// failed without the figure counts as beyond every quantile of it; pooled figures
// and means have no place for it.
func (c Clause) within(r *loadgen.Result) (within, known bool) {
	q := r.Figure(string(c.Metric))
	if q == nil || q.N == 0 {
		return false, false
	}
	is := func(ms float64) (bool, bool) { return ms <= float64(c.limit())/float64(time.Millisecond), true }
	if c.Mean {
		return is(q.Mean)
	}
	at := c.Quantile
	if !c.pooled() {
		failed := min(q.LeftOut, r.Shed+r.Failed-q.AtLeast)
		at *= float64(q.N+int64(max(failed, 0))) / float64(q.N)
	}
	if at > 1 {
		return false, true
	}
	if q.HDR != nil {
		return is(q.HDR.Quantile(at))
	}
	if v, named := q.At(strings.ReplaceAll(c.stat, ".", "")); named && at == c.Quantile {
		return is(v)
	}
	return false, false // a figure of a run under way that is not kept then
}

// beside is what the clauses say that the attainment does not: "" if each holds
// in each workload that has its figure.
func (s SLO) beside(results []loadgen.Result, attain float64) Reason {
	why := Reason("")
	for _, c := range s.Clauses {
		if c.each(attain) && (c.longest() || c.Quantile <= attain+1e-9) {
			continue // who attains it holds it
		}
		some := false
		for i := range results {
			within, known := c.within(&results[i])
			if known && !within {
				return ClauseMiss
			}
			some = some || known
		}
		if !some {
			why = NoFigures
		}
	}
	return why
}

// pooled reports whether one answer has many of the figure.
func (c Clause) pooled() bool { return c.Metric == ITL || c.Metric == Gap }

// longest reports whether the clause bounds the longest of an answer.
func (c Clause) longest() bool { return c.stat == "max" }

// streams reports whether only streams have the figure.
func (c Clause) streams() bool { return c.Metric != E2E && c.Metric != TTFB }

// goal puts the clauses that bound each request in the place of the targets.
func (s SLO) goal(g *loadgen.Goal, stream bool, attain float64) {
	var set []*time.Duration
	for _, c := range s.Clauses {
		if !c.each(attain) || (c.streams() && !stream) {
			continue
		}
		target := map[Metric]*time.Duration{
			TTFB: &g.TTFBTarget, Role: &g.RoleTarget, TTFT: &g.TTFTTarget, Visible: &g.VisibleTarget,
			TPOT: &g.TPOTTarget, ITL: &g.ITLTarget, Gap: &g.GapTarget, E2E: &g.Target,
		}[c.Metric]
		if slices.Contains(set, target) {
			*target = min(*target, c.limit())
		} else {
			*target, set = c.limit(), append(set, target)
		}
	}
}
