package study

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"aloft/loadgen"
)

// cell is a figure in few characters, or a dash.
func cell(v float64, is bool, digits int) string {
	if !is {
		return "-"
	}
	return strconv.FormatFloat(v, 'f', digits, 64)
}

// at is a figure of a summary; by scales shares to per cent.
func (s *Summary) at(name string, digits int) string {
	st, ok := s.Stats[name]
	if figure(name).Unit == Share {
		st.Value *= 100
	}
	return cell(st.Value, ok, digits)
}

func figure(name string) *Figure {
	for i := range figures {
		if figures[i].Name == name {
			return &figures[i]
		}
	}
	return &Figure{}
}

// WriteTable writes the summary for a terminal of 80 columns.
func (s *Study) WriteTable(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, hours %s to %s, %s\n%s\n", loadgen.OneLine(s.Scenario), plain(s.FromH), plain(s.ToH), seedsOf(s.Seeds), strings.ToUpper(Modelled[:1])+Modelled[1:])
	if s.Interrupted {
		fmt.Fprintf(&b, "INTERRUPTED: these are the runs that were done until then\n")
	}
	more := 0
	for _, n := range s.Notes {
		if strings.HasPrefix(n, noteOf) && len(s.Seeds) > 1 && !strings.HasPrefix(n, fmt.Sprintf("%s%d: ", noteOf, s.Seeds[0])) {
			more++
			continue
		}
		wrapped(&b, loadgen.OneLine(n))
	}
	if more > 0 {
		fmt.Fprintf(&b, "  (the same of the other seeds: --json, --html)\n")
	}
	sums := s.Summaries()
	for _, v := range s.variantNames() {
		var of []Summary
		for _, x := range sums {
			if x.Variant == v {
				of = append(of, x)
			}
		}
		if len(of) == 0 {
			continue
		}
		if len(s.Variants) > 1 {
			fmt.Fprintf(&b, "\n=== %s ===\n", loadgen.OneLine(v))
		}
		s.block(&b, of)
	}
	b.WriteString(legend)
	_, err := io.WriteString(w, b.String())
	return err
}

// wrapped writes a text in lines of 80 columns, set off.
func wrapped(b *strings.Builder, text string) {
	at := 0
	for _, word := range strings.Fields(text) {
		switch n := len([]rune(word)); {
		case at == 0:
			b.WriteString("  " + word)
			at = 2 + n
		case at+1+n > 79:
			b.WriteString("\n    " + word)
			at = 4 + n
		default:
			b.WriteString(" " + word)
			at += 1 + n
		}
	}
	b.WriteString("\n")
}

func (s *Study) block(b *strings.Builder, of []Summary) {
	fmt.Fprintf(b, "\n%-8s %8s %8s %-24s %8s %8s %7s\n", "policy", "attain", "worst", "model and seed of it", "caused", "aloft", "x")
	fmt.Fprintf(b, "%-8s %8s %8s %-24s %8s %8s %7s\n", "", "%", "%", "", "/100k", "ratio", "static")
	for i := range of {
		x := &of[i]
		worst, who := "-", ""
		if _, judged := x.Stats["attainment"]; judged {
			worst, who = cell(100*x.Worst.Attainment, true, 2), fmt.Sprintf("%s, seed %d", loadgen.OneLine(x.Worst.Model), x.Worst.Seed)
		}
		fmt.Fprintf(b, "%-8s %8s %8s %-24s %8s %8s %7s\n", loadgen.Short(x.Policy, 8), x.at("attainment", 2), worst, loadgen.Short(who, 24), x.at("caused", 1), x.at("aloft_ratio", 3), x.at("aloft_to_static", 2))
	}
	fmt.Fprintf(b, "\n%-8s %8s %6s %8s %6s %8s %6s %6s %5s %4s %4s\n", "jobs", "queueing", "x less", "complet.", "x less", "p95", "lost", "over-", "recl.", "bro-", "by")
	fmt.Fprintf(b, "%-8s %8s %6s %8s %6s %8s %6s %6s %5s %4s %4s\n", "", "s", "", "s", "", "s", "%", "head %", "kept", "ken", "flt")
	for i := range of {
		x := &of[i]
		kept, broken, faulted := "-", "-", "-"
		if _, judged := x.Stats["attainment"]; judged {
			kept, broken, faulted = strconv.Itoa(x.Kept), strconv.Itoa(x.Broken), strconv.Itoa(x.Faulted)
		}
		fmt.Fprintf(b, "%-8s %8s %6s %8s %6s %8s %6s %6s %5s %4s %4s\n", loadgen.Short(x.Policy, 8), x.at("queueing", 0), x.at("queueing_shorter", 2), x.at("completion", 0),
			x.at("completion_shorter", 2), x.at("completion_p95", 0), x.at("lost", 2), x.at("overhead", 2), kept, broken, faulted)
	}
	if st, ok := of[0].Stats["job_load"]; ok {
		fmt.Fprintf(b, "jobs offered: %.2f of the job share's time; factors belong to that load\n", st.Value)
	}
}

const legend = `
attain: judged requests that were good; worst: of one model in one seed. caused:
misses per 100,000 requests that the static split, always ready, would not have
had. aloft ratio: useful slice-seconds over all; x: median over seeds of the
factor against static. queueing, completion: mean over submitted jobs, not the
backlog. recl.: reclaims kept within their bound, broken, and broken under an
injected fault. docs/simulate.md defines every figure.
`

func seedsOf(seeds []uint64) string {
	if len(seeds) == 1 {
		return fmt.Sprintf("seed %d", seeds[0])
	}
	var parts []string
	for i := 0; i < len(seeds); {
		j := i
		for j+1 < len(seeds) && seeds[j+1] == seeds[j]+1 {
			j++
		}
		if j > i+1 {
			parts = append(parts, fmt.Sprintf("%d-%d", seeds[i], seeds[j]))
		} else {
			for _, x := range seeds[i : j+1] {
				parts = append(parts, strconv.FormatUint(x, 10))
			}
		}
		i = j + 1
	}
	return "seeds " + strings.Join(parts, ", ")
}

func plain(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
