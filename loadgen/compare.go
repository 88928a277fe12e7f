package loadgen

import (
	"encoding/json"
	"fmt"
	"io"
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
	OnlyA   []string       `json:"only_a"` // phases that the other has not
	OnlyB   []string       `json:"only_b"`
}

// Change is a key of the profile, or of what else the figures depend on, that
// differs; "" is what is not there.
type Change struct {
	Key string `json:"key"`
	A   string `json:"a"`
	B   string `json:"b"`
}

// FigureChange is one figure of a phase that both ran. Unit is ms, /s, or "" for
// a share of 1.
type FigureChange struct {
	Workload  string   `json:"workload"`
	Phase     string   `json:"phase"`
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
	out := Comparison{A: a.title(), B: b.title(), Changes: changes(a, b), Doubts: []string{}, Figures: []FigureChange{}, OnlyA: []string{}, OnlyB: []string{}}
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
		figures, doubt := compareResults(x, y, quiet)
		out.Figures = append(out.Figures, figures...)
		if doubt != "" {
			out.Doubts = append(out.Doubts, fmt.Sprintf("%s/%s: %s", y.Name, y.Phase, doubt))
		}
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

func compareResults(x, y *Result, quiet bool) (out []FigureChange, doubt string) {
	list := slices.Clone(overall)
	for _, m := range slices.Concat(tabled, []metric{ttfbSent, roleChunk, roleSent, ttftSent, visibleSent}) {
		for _, q := range quantileNames {
			if slices.Contains(compared, q.name) {
				list = append(list, quantile(m, q.name, q.at))
			}
		}
	}
	for _, m := range list {
		a, inA := m.of(x)
		b, inB := m.of(y)
		if !inA || !inB || m.interval == nil {
			continue
		}
		c := FigureChange{Workload: x.Name, Phase: x.Phase, Figure: m.name, Unit: string(m.unit), A: a, B: b, IntervalA: m.interval(x), IntervalB: m.interval(y)}
		apart, bBelow := c.IntervalB.apart(c.IntervalA)
		switch {
		case quiet:
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
	was, is := of(a), of(b)
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

// WriteTable writes the comparison for a terminal of 80 columns: what changed in
// the runs, and of the figures those with a verdict and the headline ones.
func (c *Comparison) WriteTable(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "A: %s\nB: %s\n", OneLine(c.A), OneLine(c.B))
	for _, ch := range c.Changes {
		fmt.Fprintf(&b, "  %s: %s -> %s\n", OneLine(ch.Key), orNone(ch.A), orNone(ch.B))
	}
	for _, d := range c.Doubts {
		fmt.Fprintf(&b, "NO VERDICT: %s\n", OneLine(d))
	}
	for _, o := range c.OnlyA {
		fmt.Fprintf(&b, "only in A: %s\n", OneLine(o))
	}
	for _, o := range c.OnlyB {
		fmt.Fprintf(&b, "only in B: %s\n", OneLine(o))
	}
	at := ""
	for _, f := range c.Figures {
		if f.Verdict != Better && f.Verdict != Worse && !slices.Contains(headline, f.Figure) {
			continue
		}
		if here := f.Workload + ", phase " + f.Phase; here != at {
			at = here
			fmt.Fprintf(&b, "\n%s\n  %-15s %26s %26s %s\n", OneLine(at), "figure", "A", "B", "B is")
		}
		fmt.Fprintf(&b, "  %-15s %26s %26s %s\n", f.Figure, f.side(f.A, f.IntervalA), f.side(f.B, f.IntervalB), f.Verdict)
	}
	fmt.Fprintf(&b, "\n[from to] holds the figure with %.0f %% confidence, were the run repeated under the\n"+
		"same conditions; + is open for want of values. Quantiles take requests to be\nindependent, which they are less the fuller the server is.\n"+
		"A verdict stands only where the two do not overlap; other figures are not shown\nunless they are headlines. Shares are in %%, times in ms, rates a second.\n", 100*Confidence)
	_, err := io.WriteString(w, b.String())
	return err
}

// headline figures are shown whether there is a verdict or not.
var headline = []string{"attainment", "goodput", "good_tokens", "shed", "failed", "e2e_p50", "e2e_p99", "ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99", "itl_p99"}

func (f *FigureChange) side(v float64, in Interval) string {
	by := 1.0
	if f.Unit == string(asShare) {
		by = 100
	}
	end := Cell(by*in.Hi, true)
	if in.Open {
		end = "+"
	}
	return fmt.Sprintf("%s [%s %s]", Cell(by*v, true), Cell(by*in.Lo, true), end)
}

func orNone(s string) string {
	if s == "" {
		return "(none)"
	}
	return OneLine(s)
}
