package loadgen

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// WriteTable writes the report for a terminal, without colours or cursor
// movements, so that it reads the same in a log file.
func (r *Report) WriteTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "workload\tphase\toffered\tok\tlate\tshed\tfailed\tp50 ms\tp95 ms\tp99 ms\ttarget ms\tgood %\tTTFT p50\tTTFT p99\tsent/s\tlag p99\t")
	for _, x := range r.Results {
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\t%s\t%s\t%s\t%.2f\t%s\t%s\t%.2f\t%s\t\n",
			x.Name, x.Phase, x.Offered, x.OK, x.Late, x.Shed, x.Failed,
			cell(x.P50, x.N > 0), cell(x.P95, x.N > 0), cell(x.P99, x.N > 0), cell(x.Targets.E2E, x.Targets.E2E > 0),
			100*x.Attainment, ttft(x.TTFT, 50), ttft(x.TTFT, 99), x.Achieved, cell(x.SendLag.P99, x.SendLag.N > 0))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	var notes strings.Builder
	notes.WriteString("times from intended start; good = ok / offered\n")
	for _, x := range r.Results {
		for _, kind := range slices.Sorted(maps.Keys(x.Problems)) {
			n := x.FailedBy[kind]
			switch kind {
			case Shed:
				n = x.Shed
			case Late:
				n = x.Unfinished
			}
			fmt.Fprintf(&notes, "%s, phase %s: %d %s, the first: %s\n", x.Name, x.Phase, n, kind, oneLine(x.Problems[kind]))
		}
	}
	for _, warning := range r.Warnings {
		fmt.Fprintf(&notes, "WARNING: %s\n", warning)
	}
	if r.Interrupted {
		notes.WriteString("INTERRUPTED: these are the results so far\n")
	}
	_, err := io.WriteString(w, notes.String())
	return err
}

// cell is a figure in milliseconds, or a dash where there is none.
func cell(v float64, is bool) string {
	switch {
	case !is:
		return "-"
	case v < 100:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

func ttft(q *Quantiles, p int) string {
	switch {
	case q == nil || q.N == 0:
		return "-"
	case p == 50:
		return cell(q.P50, true)
	}
	return cell(q.P99, true)
}

// oneLine keeps a server's message from moving the terminal's cursor.
func oneLine(s string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, s)
}
