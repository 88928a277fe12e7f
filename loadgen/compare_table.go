package loadgen

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

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
	c.writeCuts(&b)
	if len(c.Figures) == 0 {
		_, err := io.WriteString(w, b.String())
		return err
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

func (c *Comparison) writeCuts(b *strings.Builder) {
	if len(c.Cuts) == 0 {
		return
	}
	fmt.Fprintf(b, "\nparts of workloads, over their phases, where there is a verdict\n  %-15s %26s %26s %s\n", "figure", "A", "B", "B is")
	at := ""
	for _, f := range c.Cuts {
		if here := OneLine(f.Workload + ", " + f.Cut); here != at {
			at = here
			fmt.Fprintf(b, "%s\n", Short(at, 80))
		}
		fmt.Fprintf(b, "  %-15s %26s %26s %s\n", f.Figure, f.side(f.A, f.IntervalA), f.side(f.B, f.IntervalB), f.Verdict)
	}
	if c.CutsMore > 0 {
		fmt.Fprintf(b, "and %d more figures of parts with a verdict\n", c.CutsMore)
	}
}
