package study

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"aloft/loadgen"
)

// Comparison is what changed from study A to study B.
type Comparison struct {
	A       string           `json:"a"`
	B       string           `json:"b"`
	Changes []loadgen.Change `json:"changes"` // of the scenario and of what else the figures depend on
	Doubts  []string         `json:"doubts"`  // why there are no verdicts
	Figures []FigureChange   `json:"figures"`
	OnlyA   []string         `json:"only_a"` // variants and policies that the other has not
	OnlyB   []string         `json:"only_b"`
}

// FigureChange is a figure of a policy that both have: means over seeds.
type FigureChange struct {
	Variant string  `json:"variant"`
	Policy  string  `json:"policy"`
	Figure  string  `json:"figure"`
	Unit    Unit    `json:"unit"`
	A       float64 `json:"a"`
	B       float64 `json:"b"`
	SeedsA  int     `json:"seeds_a"`
	SeedsB  int     `json:"seeds_b"`
	// Paired: both have the same seeds, of which there are two at least. Then Change
	// is the interval of the mean of B − A over seeds, which knows that a hard seed
	// is hard for both; else it is where B − A may lie as far as the two intervals say.
	Paired    bool             `json:"paired"`
	IntervalA loadgen.Interval `json:"interval_a"`
	IntervalB loadgen.Interval `json:"interval_b"`
	Change    loadgen.Interval `json:"change"`
	Verdict   loadgen.Verdict  `json:"verdict"`
}

// Certainty is that of a verdict: a comparison has some hundred figures, of which five
// would seem to differ by chance at loadgen.Confidence.
const Certainty = 0.99

// Compare says what differs between two studies. There is a verdict only where the
// intervals do not overlap: those of A and B, or, with the same seeds, that of
// B − A and 0.
func Compare(a, b *Study) Comparison {
	out := Comparison{A: a.title(), B: b.title(), Changes: changed(a, b), Doubts: []string{}, Figures: []FigureChange{}, OnlyA: []string{}, OnlyB: []string{}}
	for _, s := range []struct {
		who string
		*Study
	}{{"A", a}, {"B", b}} {
		if s.Interrupted {
			out.Doubts = append(out.Doubts, s.who+" was interrupted: it has fewer seeds, or none, of some policies")
		}
		if len(s.Seeds) < 2 {
			out.Doubts = append(out.Doubts, s.who+" has one seed: there is no interval, and no verdict")
		}
	}
	for _, s := range [][2]*Study{{a, b}, {b, a}} {
		for _, v := range s[0].variantNames() {
			for _, p := range s[0].policies() {
				switch only := v + ": " + p; {
				case len(s[0].runs(v, p)) == 0 || len(s[1].runs(v, p)) > 0:
				case s[0] == a:
					out.OnlyA = append(out.OnlyA, only)
				default:
					out.OnlyB = append(out.OnlyB, only)
				}
			}
		}
	}
	for _, v := range b.variantNames() {
		for _, p := range b.policies() {
			for i := range figures {
				if f := &figures[i]; f.Better != 0 && !f.Relative {
					if c, ok := (pair{a, b, v, p}).compare(f); ok {
						out.Figures = append(out.Figures, c)
					}
				}
			}
		}
	}
	return out
}

// values are a figure by seed.
func (s *Study) values(f *Figure, variant, policy string) (seeds []uint64, values []float64) {
	for _, r := range s.runs(variant, policy) {
		if v, ok := f.of(s.world(r)); ok {
			seeds, values = append(seeds, r.Seed), append(values, v)
		}
	}
	return seeds, values
}

// pair is a policy in a variant that both may have.
type pair struct {
	a, b            *Study
	variant, policy string
}

func (p pair) compare(f *Figure) (FigureChange, bool) {
	seedsA, was := p.a.values(f, p.variant, p.policy)
	seedsB, is := p.b.values(f, p.variant, p.policy)
	c := FigureChange{Variant: p.variant, Policy: p.policy, Figure: f.Name, Unit: f.Unit, SeedsA: len(was), SeedsB: len(is)}
	if len(was) == 0 || len(is) == 0 {
		return c, false
	}
	c.A, c.IntervalA = meanOf(was, loadgen.Confidence)
	c.B, c.IntervalB = meanOf(is, loadgen.Confidence)
	c.Paired = len(was) > 1 && slices.Equal(seedsA, seedsB)
	if c.Paired {
		diff := make([]float64, len(was))
		for i := range was {
			diff[i] = is[i] - was[i]
		}
		_, c.Change = meanOf(diff, loadgen.Confidence)
		_, strict := meanOf(diff, Certainty)
		c.Verdict = verdict(f, strict)
		return c, true
	}
	_, strictA := meanOf(was, Certainty)
	_, strictB := meanOf(is, Certainty)
	c.Change = loadgen.Interval{Lo: c.IntervalB.Lo - c.IntervalA.Hi, Hi: c.IntervalB.Hi - c.IntervalA.Lo, Open: c.IntervalA.Open || c.IntervalB.Open}
	c.Verdict = verdict(f, loadgen.Interval{Lo: strictB.Lo - strictA.Hi, Hi: strictB.Hi - strictA.Lo, Open: strictA.Open || strictB.Open})
	return c, true
}

// verdict is about a change that lies in the interval. Changes in the last digits
// of a float are none.
func verdict(f *Figure, in loadgen.Interval) loadgen.Verdict {
	const nothing = 1e-12
	switch up := in.Lo > nothing; {
	case in.Open:
		return loadgen.NoWord
	case !up && in.Hi > -nothing:
		return loadgen.Unclear
	case up == (f.Better > 0):
		return loadgen.Better
	}
	return loadgen.Worse
}

func (s *Study) title() string {
	out := fmt.Sprintf("%s, hours %s to %s, %s, %s", s.Scenario, plain(s.FromH), plain(s.ToH), seedsOf(s.Seeds), s.Started.UTC().Format("2006-01-02 15:04:05"))
	if s.Tool.Commit != "" {
		out += ", built from " + s.Tool.Commit[:min(len(s.Tool.Commit), 12)]
	}
	return out
}

// changed lists what the studies were that differs.
func changed(a, b *Study) []loadgen.Change {
	out := []loadgen.Change{}
	for _, k := range []struct{ key, a, b string }{
		{"scenario", a.Scenario, b.Scenario}, {"hours", plain(a.FromH) + " to " + plain(a.ToH), plain(b.FromH) + " to " + plain(b.ToH)},
		{"seeds", seedsOf(a.Seeds), seedsOf(b.Seeds)}, {"rows", fmt.Sprint(a.Rows), fmt.Sprint(b.Rows)},
		{"tool.version", a.Tool.Version, b.Tool.Version}, {"tool.commit", a.Tool.Commit, b.Tool.Commit}, {"tool.modified", fmt.Sprint(a.Tool.Modified), fmt.Sprint(b.Tool.Modified)},
	} {
		if k.a != k.b {
			out = append(out, loadgen.Change{Key: k.key, A: k.a, B: k.b})
		}
	}
	for _, v := range a.Variants {
		for _, x := range b.Variants {
			if v.Name == x.Name {
				for _, c := range loadgen.Differences(v.Config, x.Config) {
					if v.Name != AsIs {
						c.Key = v.Name + ": " + c.Key
					}
					out = append(out, c)
				}
			}
		}
	}
	return out
}

// WriteTable writes the comparison for a terminal of 80 columns: what changed in
// the studies, and the figures that have a verdict or are headlines.
func (c *Comparison) WriteTable(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "A: %s\nB: %s\n%s\n", loadgen.OneLine(c.A), loadgen.OneLine(c.B), Modelled)
	for _, ch := range c.Changes {
		fmt.Fprintf(&b, "  %s: %s -> %s\n", loadgen.OneLine(ch.Key), orNone(ch.A), orNone(ch.B))
	}
	for _, d := range c.Doubts {
		fmt.Fprintf(&b, "NO VERDICT: %s\n", loadgen.OneLine(d))
	}
	for _, o := range c.OnlyA {
		fmt.Fprintf(&b, "only in A: %s\n", loadgen.OneLine(o))
	}
	for _, o := range c.OnlyB {
		fmt.Fprintf(&b, "only in B: %s\n", loadgen.OneLine(o))
	}
	at := ""
	for i := range c.Figures {
		f := &c.Figures[i]
		if f.Verdict != loadgen.Better && f.Verdict != loadgen.Worse && !slices.Contains(headline, f.Figure) {
			continue
		}
		here := f.Policy
		if f.Variant != AsIs {
			here = f.Variant + ": " + f.Policy
		}
		if here != at {
			at = here
			fmt.Fprintf(&b, "\n%s\n  %-18s %10s %10s %26s %s\n", loadgen.OneLine(at), "figure", "A", "B", "B - A [from to]", "B is")
		}
		fmt.Fprintf(&b, "  %-18s %10s %10s %26s %s\n", f.Figure+unit(f.Unit), f.scaled(f.A), f.scaled(f.B), f.change(), f.Verdict)
	}
	if len(c.Figures) > 0 {
		fmt.Fprintf(&b, "\nMeans over seeds. [from to] holds the change with %.0f %% confidence, were other\n"+
			"seeds drawn; with the same seeds in both it is of the differences seed by seed.\nA verdict stands only where an interval of %.0f %% excludes 0. + is open: one seed.\n", 100*loadgen.Confidence, 100*Certainty)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// headline figures are shown whether there is a verdict or not.
var headline = []string{"attainment", "caused", "aloft_ratio", "queueing", "completion", "lost"}

func unit(u Unit) string {
	if u == Count {
		return ""
	}
	return " " + string(u)
}

func (f *FigureChange) scaled(v float64) string {
	if f.Unit == Share {
		v *= 100
	}
	digits := 2
	switch {
	case math.Abs(v) >= 1000:
		digits = 0
	case math.Abs(v) < 1:
		digits = 4
	}
	return cell(v, true, digits)
}

// change is B − A and where it lies.
func (f *FigureChange) change() string {
	if f.Change.Open {
		return f.scaled(f.B-f.A) + " [+]"
	}
	return fmt.Sprintf("%s [%s %s]", f.scaled(f.B-f.A), f.scaled(f.Change.Lo), f.scaled(f.Change.Hi))
}

func orNone(s string) string {
	if s == "" {
		return "(none)"
	}
	return loadgen.OneLine(s)
}
