package loadgen

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// nameWidth is how much of a name the tables show, in characters: what is left
// of 80 columns.
const nameWidth = 16

// WriteTable writes the report for a terminal of 80 columns, without colours or
// cursor movements, so that it reads the same in a log file.
func (r *Report) WriteTable(w io.Writer) error {
	var b strings.Builder
	r.writeOutcomes(&b)
	r.writeTimes(&b)
	r.writeCuts(&b)
	r.writeNotes(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Report) writeOutcomes(b *strings.Builder) {
	fmt.Fprintf(b, "%-*s %-10s %8s %7s %6s %6s %6s %7s %6s\n", nameWidth, "workload", "phase", "offered", "ok", "late", "shed", "failed", "good %", "good/s")
	for i := range r.Results {
		x := &r.Results[i]
		fmt.Fprintf(b, "%-*s %-10s %8d %7d %6d %6d %6d %7.2f %6s\n", nameWidth, Short(x.Name, nameWidth), Short(x.Phase, 10),
			x.Offered, x.OK, x.Late, x.Shed, x.Failed, 100*x.Attainment, Cell(x.Good, x.Offered > 0))
	}
	b.WriteString(`
  offered  requests that the plan had, counted by their intended start
  ok       whole and within every target; only these are good
  late     whole but over a target, or open at the drain deadline and over it
  shed     refused with 429 or 503
  failed   anything else: the kinds are below
  good %   ok / offered; good/s is ok a second
`)
}

// tabled are the distributions that the table shows where there are any; files
// have them all.
var tabled = []metric{e2e, e2eSent, ttfb, ttft, visible, tpot, itl, chunkGap, lateness, sendLag}

func (r *Report) writeTimes(b *strings.Builder) {
	fmt.Fprintf(b, "\nmilliseconds   %8s %8s %8s %8s %8s %8s %8s\n", "mean", "p50", "p95", "p99", "max", "n", "left out")
	used := map[metric]bool{}
	for i := range r.Results {
		x := &r.Results[i]
		planned := fmt.Sprintf("planned %.2f/s", x.Planned)
		if x.Closed > 0 {
			planned = fmt.Sprintf("%d clients in a closed loop", x.Closed)
		}
		fmt.Fprintf(b, "%s, %s: %s, sent %.2f/s", Short(x.Name, nameWidth), Short(x.Phase, nameWidth), planned, x.Achieved)
		if x.Extra > 0 {
			fmt.Fprintf(b, ", retries %.2f/s", x.Extra)
		}
		if x.Tokens.Completion > 0 {
			fmt.Fprintf(b, ", %.1f good tokens/s", x.GoodTokens)
		}
		b.WriteByte('\n')
		for _, m := range tabled {
			q := x.figure(m)
			if q == nil || q.N == 0 || m == lateness && x.Targets.Smooth == 0 {
				continue
			}
			used[m] = true
			fmt.Fprintf(b, "  %-12s %8s %8s %8s %8s %8s %8d %8d\n", metricNames[m].name,
				Cell(q.Mean, true), Cell(q.P50, true), Cell(q.P95, true), Cell(q.P99, true), Cell(q.Max, true), q.N, q.LeftOut)
		}
	}
	b.WriteByte('\n')
	for _, m := range tabled {
		if used[m] {
			fmt.Fprintf(b, "  %-8s %s\n", metricNames[m].name, metricNames[m].what)
		}
	}
	b.WriteString("  left out requests of those offered without this figure: refused, failed, or no\n           stream of two tokens; one that was given up counts with its age then\n")
}

func (r *Report) writeCuts(b *strings.Builder) {
	if len(r.Cuts) == 0 {
		return
	}
	fmt.Fprintf(b, "\n%-*s %-12s %-15s %8s %7s %8s %8s\n", nameWidth, "workload", "by", "", "offered", "good %", "e2e p99", "TTFT p99")
	for _, c := range r.Cuts {
		first := "-"
		if c.TTFT != nil {
			first = Cell(c.TTFT.P99, c.TTFT.N > 0)
		}
		fmt.Fprintf(b, "%-*s %-12s %-15s %8d %7.2f %8s %8s\n", nameWidth, Short(c.Workload, nameWidth), c.By, Short(c.Name, 15),
			c.Offered, 100*c.Attainment, Cell(c.E2E.P99, c.E2E.N > 0), first)
	}
}

func (r *Report) writeNotes(b *strings.Builder) {
	b.WriteByte('\n')
	for i := range r.Results {
		x := &r.Results[i]
		who := fmt.Sprintf("%s, phase %s: ", OneLine(x.Name), OneLine(x.Phase))
		if x.Shed > 0 {
			fmt.Fprintf(b, "%s%d shed, %d of them with Retry-After\n", who, x.Shed, x.RetryAfter)
		}
		for _, kind := range slices.Sorted(maps.Keys(x.FailedBy)) {
			fmt.Fprintf(b, "%s%d %s\n", who, x.FailedBy[kind], kind)
		}
		for _, kind := range slices.Sorted(maps.Keys(x.Problems)) {
			fmt.Fprintf(b, "%sthe first %s: %s\n", who, kind, OneLine(x.Problems[kind]))
		}
		if x.AtLeast > 0 {
			fmt.Fprintf(b, "%s%d requests of e2e were given up and count with their age: they took LONGER\n", who, x.AtLeast)
		}
		if x.Abandoned > 0 {
			fmt.Fprintf(b, "%s%d clients left as planned; they are not among the offered\n", who, x.Abandoned)
		}
		if x.Tokens.Estimated > 0 {
			fmt.Fprintf(b, "%s%d answers had no usage: their tokens are ESTIMATED from chunks\n", who, x.Tokens.Estimated)
		}
	}
	if r.WarmUp != nil {
		fmt.Fprintf(b, "warm-up: %d requests, %d ok, in no figure above\n", r.WarmUp.Offered, r.WarmUp.OK)
	}
	if r.Host.CPUShare > 0 {
		fmt.Fprintf(b, "the generator used %.0f %% of its %d CPUs\n", 100*r.Host.CPUShare, r.Host.Procs)
	}
	for _, warning := range r.Warnings {
		fmt.Fprintf(b, "WARNING: %s\n", OneLine(warning))
	}
	for _, reason := range r.Failed {
		fmt.Fprintf(b, "THE RUN DOES NOT COUNT: %s\n", OneLine(reason))
	}
	if r.Interrupted {
		fmt.Fprintf(b, "INTERRUPTED after %.1f s: these are the results so far", r.Elapsed)
		if len(r.Failed) == 0 {
			b.WriteString("; as far as it came, the generator sent as planned")
		}
		b.WriteByte('\n')
	}
}

// Cell is a figure in at most nine characters, or a dash where there is none.
func Cell(v float64, is bool) string {
	switch {
	case !is:
		return "-"
	case v < 100:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// Short is a name in so many columns, on one line; ~ stands for what was cut off.
func Short(s string, width int) string {
	s = OneLine(s)
	if utf8.RuneCountInString(s) <= width {
		return s
	}
	return string([]rune(s)[:max(width-1, 0)]) + "~"[:min(max(width, 0), 1)]
}

// OneLine keeps a server's message, or a name, from moving the terminal's cursor.
func OneLine(s string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c >= 0x7f && c < 0xa0 {
			return ' '
		}
		return c
	}, s)
}
