package loadgen

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Verdict of a comparison, about B against A.
type Verdict string

// The verdicts.
const (
	Better  Verdict = "better"
	Worse   Verdict = "worse"
	Unclear Verdict = ""  // the intervals overlap
	NoWord  Verdict = "-" // nothing may be said: see Comparison.Doubts
)

// Comparison is what changed from report A to report B.
type Comparison struct {
	A       string         `json:"a"` // name, start and build of each
	B       string         `json:"b"`
	Changes []Change       `json:"changes"`
	Doubts  []string       `json:"doubts"` // why there are no verdicts, over all or for a phase
	Figures []FigureChange `json:"figures"`
	// Cuts are the figures with a verdict of tenants, classes and tenths by length:
	// of more than mostCuts those that are furthest apart, and CutsMore is how many
	// others there are.
	Cuts     []FigureChange `json:"cuts"`
	CutsMore int            `json:"cuts_more,omitempty"`
	OnlyA    []string       `json:"only_a"` // phases that the other has not
	OnlyB    []string       `json:"only_b"`
}

// Change is a key of the profile, or of what else the figures depend on, that
// differs; "" is what is not there.
type Change struct {
	Key string `json:"key"`
	A   string `json:"a"`
	B   string `json:"b"`
}

// FigureChange is one figure of a phase that both ran, or of a cut (over the
// phases). Unit is ms, /s, or "" for a share of 1.
type FigureChange struct {
	Workload  string   `json:"workload"`
	Phase     string   `json:"phase"`
	Cut       string   `json:"cut,omitempty"` // such as tenant=a
	Figure    string   `json:"figure"`
	Unit      string   `json:"unit"`
	A         float64  `json:"a"`
	B         float64  `json:"b"`
	IntervalA Interval `json:"interval_a"`
	IntervalB Interval `json:"interval_b"`
	Verdict   Verdict  `json:"verdict"`
}

// Compare says what differs between two reports, with an interval for each
// figure, and a verdict only where the intervals do not overlap. That is stricter
// than a test of the difference at the same confidence, and has to be: a report
// has some hundred figures.
func Compare(a, b *Report) Comparison {
	out := Comparison{A: a.title(), B: b.title(), Changes: changes(a, b), Doubts: []string{}, Figures: []FigureChange{}, Cuts: []FigureChange{}, OnlyA: []string{}, OnlyB: []string{}}
	silent := false
	for _, r := range []struct {
		who string
		*Report
	}{{"A", a}, {"B", b}} {
		if len(r.Failed) > 0 {
			silent = true
			out.Doubts = append(out.Doubts, fmt.Sprintf("run %s does not count: %s", r.who, strings.Join(r.Failed, "; ")))
		}
		if r.Interrupted {
			out.Doubts = append(out.Doubts, fmt.Sprintf("run %s was interrupted: its phases may be shorter", r.who))
		}
	}
	for i := range a.Results {
		x := &a.Results[i]
		if b.find(x) == nil {
			out.OnlyA = append(out.OnlyA, x.Name+"/"+x.Phase)
		}
	}
	for i := range b.Results {
		y := &b.Results[i]
		x := a.find(y)
		if x == nil {
			out.OnlyB = append(out.OnlyB, y.Name+"/"+y.Phase)
			continue
		}
		quiet := silent
		if (x.Closed > 0) != (y.Closed > 0) {
			quiet = true
			out.Doubts = append(out.Doubts, fmt.Sprintf("%s/%s: a closed loop is compared with an open one: their latencies are different things", y.Name, y.Phase))
		}
		figures, doubt := pair{x: x, y: y, quiet: quiet}.compare(phaseMeasures())
		out.Figures = append(out.Figures, figures...)
		if doubt != "" {
			out.Doubts = append(out.Doubts, fmt.Sprintf("%s/%s: %s", y.Name, y.Phase, doubt))
		}
	}
	if !silent {
		out.compareCuts(a, b)
	}
	return out
}

// selective reports whether the requests that the better side leaves out of a
// figure are a greater share than the other's: it may have left out the slow ones.
func selective(m measure, x, y *Result, v Verdict) bool {
	if m.leftOut == nil {
		return false
	}
	apart, bBelow := wilson(m.leftOut(y), y.Offered).apart(wilson(m.leftOut(x), x.Offered))
	return apart && (v == Better) != bBelow
}

func (r *Report) title() string {
	out := fmt.Sprintf("%s, %s", r.Name, r.Started.Format("2006-01-02 15:04:05"))
	if r.Tool.Commit != "" {
		out += ", built from " + r.Tool.Commit[:min(len(r.Tool.Commit), 12)]
	}
	return out
}

// find is the phase of the same names.
func (r *Report) find(like *Result) *Result {
	for i := range r.Results {
		if x := &r.Results[i]; x.Name == like.Name && x.Phase == like.Phase {
			return x
		}
	}
	return nil
}

// compared are the quantiles of each distribution that a comparison looks at.
var compared = []string{"mean", "p50", "p90", "p95", "p99", "p999"}

// phaseMeasures are those of a phase that are compared.
func phaseMeasures() []measure {
	list := slices.Clone(overall)
	for _, m := range slices.Concat(tabled, []metric{ttfbSent, roleChunk, roleSent, ttftSent, visibleSent}) {
		for _, q := range quantileNames {
			if slices.Contains(compared, q.name) {
				list = append(list, quantile(m, q.name, q.at))
			}
		}
	}
	return list
}

// pair is a phase or a cut that both runs have.
type pair struct {
	x, y *Result
	cut  string
	// clumpX and clumpY are how much wider the intervals of shares are than those of
	// independent requests; nil: they are known by themselves.
	clumpX, clumpY func(measure) float64
	quiet          bool // no verdicts
}

func (p pair) compare(list []measure) (out []FigureChange, doubt string) {
	x, y := p.x, p.y
	for _, m := range list {
		a, inA := m.of(x)
		b, inB := m.of(y)
		if !inA || !inB || m.interval == nil {
			continue
		}
		c := FigureChange{Workload: x.Name, Phase: x.Phase, Cut: p.cut, Figure: m.name, Unit: string(m.unit), A: a, B: b, IntervalA: m.interval(x), IntervalB: m.interval(y)}
		if p.clumpX != nil && m.unit == asShare {
			c.IntervalA, c.IntervalB = c.IntervalA.around(a, p.clumpX(m)), c.IntervalB.around(b, p.clumpY(m))
		}
		apart, bBelow := c.IntervalB.apart(c.IntervalA)
		switch {
		case p.quiet:
			c.Verdict = NoWord
		case !apart:
		case bBelow == (m.better < 0):
			c.Verdict = Better
		default:
			c.Verdict = Worse
		}
		if (c.Verdict == Better || c.Verdict == Worse) && selective(m, x, y, c.Verdict) {
			if doubt == "" {
				doubt = fmt.Sprintf("%s of %s is over fewer of the requests (%d of %d left out in A, %d of %d in B): the slow ones may be those that are missing",
					c.Figure, map[Verdict]string{Better: "B", Worse: "A"}[c.Verdict], m.leftOut(x), x.Offered, m.leftOut(y), y.Offered)
			}
			c.Verdict = NoWord
		}
		out = append(out, c)
	}
	return out, doubt
}

// changes lists what the runs were that differs.
func changes(a, b *Report) []Change {
	of := func(r *Report) map[string]string {
		out := map[string]string{
			"host.cpu_model": r.Host.Model, "host.kernel": r.Host.Kernel, "host.cpus": strconv.Itoa(r.Host.CPUs), "host.procs": strconv.Itoa(r.Host.Procs),
			"host.arch": r.Host.OS + "/" + r.Host.Arch, "host.go": r.Host.Go, "tool.version": r.Tool.Version, "tool.commit": r.Tool.Commit,
			"tool.modified": strconv.FormatBool(r.Tool.Modified), "plan": strings.Join(r.Plan, " "),
		}
		var config any
		if json.Unmarshal(r.Config, &config) == nil {
			flatten("config", config, out)
		}
		return out
	}
	return differences(of(a), of(b))
}

// Differences lists the keys of two configurations, in JSON, that differ.
func Differences(a, b json.RawMessage) []Change {
	of := func(text json.RawMessage) map[string]string {
		out := map[string]string{}
		var config any
		if json.Unmarshal(text, &config) == nil {
			flatten("config", config, out)
		}
		return out
	}
	return differences(of(a), of(b))
}

func differences(was, is map[string]string) []Change {
	keys := maps.Clone(was)
	maps.Copy(keys, is)
	out := []Change{}
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		if was[k] != is[k] {
			out = append(out, Change{k, was[k], is[k]})
		}
	}
	return out
}

// flatten enters every leaf by its path; entries of a list that have names go by
// them, so that a workload more does not change the keys of the others.
func flatten(path string, v any, into map[string]string) {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			flatten(path+"."+k, x, into)
		}
	case []any:
		for i, x := range v {
			key := strconv.Itoa(i)
			if m, ok := x.(map[string]any); ok {
				if name, ok := m["name"].(string); ok && name != "" {
					key = name
				}
			}
			flatten(path+"."+key, x, into)
		}
	case nil:
	default:
		into[path] = fmt.Sprint(v)
	}
}
