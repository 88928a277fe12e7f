package search

import (
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"aloft/loadgen"
)

// WriteTable writes the answer in 80 columns, without colours.
func (a *Answer) WriteTable(w io.Writer) error {
	var b strings.Builder
	promise := "of requests " + string(a.SLO.String())
	if len(a.SLO.Clauses) == 0 {
		promise = "of requests within the profile's own targets"
	}
	fmt.Fprintf(&b, "%.6g %% %s\n", 100*a.Attain, promise)
	switch {
	case a.Low > 0 && a.High > 0:
		fmt.Fprintf(&b, "holds up to %.4g/s, fails from %.4g/s (%.4g %% sure; %d of %d windows agree)\n",
			a.Low, a.High, 100*floor4(a.Certainty), a.Agreed, a.Windows)
	case a.Low > 0:
		fmt.Fprintf(&b, "holds up to %.4g/s at least; no rate failed\n", a.Low)
	case a.High > 0:
		fmt.Fprintf(&b, "fails from %.4g/s; no rate held\n", a.High)
	default:
		b.WriteString("no rate is known to hold or to fail\n")
	}
	a.table(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

// floor4 keeps a certainty from being rounded up to one.
func floor4(v float64) float64 { return float64(int(v*10000)) / 10000 }

// WriteTable writes the curve in 80 columns, without colours.
func (c *Curve) WriteTable(w io.Writer) error {
	var b strings.Builder
	if len(c.SLO.Clauses) > 0 {
		fmt.Fprintf(&b, "%.6g %% of requests %s\n", 100*c.Attain, c.SLO)
	}
	c.table(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

// table is the part that answers and curves share: a line for each rate, with
// the figures of its last run that counts.
func (h *Head) table(b *strings.Builder) {
	b.WriteString("   rate/s runs  offered  good %       interval   p99 ms   good/s  verdict\n")
	for i := range h.Points {
		p := &h.Points[i]
		f := p.Last().Figures
		fmt.Fprintf(b, "%9.4g %4d %8d %7.2f  %6.2f-%6.2f %8s %8.4g  %s\n", p.Rate, len(p.Tries), p.Offered,
			100*p.Attainment, 100*p.Low, 100*p.High, loadgen.Cell(f.E2E99, f.E2E99 > 0), f.Good, p.word())
	}
	fmt.Fprintf(b, "%s after %.0f s (limit %.0f s), seed %d; times from intended start\n", h.Stopped, h.Elapsed, h.Limit, h.Seed)
	if h.Note != "" {
		fmt.Fprintf(b, "%s\n", h.Note)
	}
	for _, w := range words {
		if slices.ContainsFunc(h.Points, func(p Point) bool { return p.word() == w.word }) {
			fmt.Fprintf(b, "  %-12s  %s\n", w.word, w.meaning)
		}
	}
}

// words are the verdicts that do not explain themselves, in a line each.
var words = []struct{ word, meaning string }{
	{"open", "too near to what is promised to say; more windows may"},
	{"queue grows", "it fails: the server does not keep up with this rate"},
	{"over a bound", "it fails by a quantile or mean, whatever share was good"},
	{"short window", "the queue remembers for longer than a window can show"},
	{"generator", "the generator did not send as planned: nothing is known"},
}

// Last is the last run that counts, or else the last, or an empty one.
func (p *Point) Last() *Try {
	for i := len(p.Tries) - 1; i >= 0; i-- {
		if p.Tries[i].Discarded == "" {
			return &p.Tries[i]
		}
	}
	if len(p.Tries) == 0 {
		return &Try{}
	}
	return &p.Tries[len(p.Tries)-1]
}

// word is the verdict with its reason where that is not the usual one.
func (p *Point) word() string {
	switch p.Reason {
	case Growing:
		return "queue grows"
	case ClauseMiss:
		return "over a bound"
	case Remembering:
		return "short window"
	case Unsent:
		return "generator"
	}
	return string(p.Verdict)
}

var columns = []string{
	"run", "rate_per_s", "seed", "window_s", "ended_early", "verdict", "reason", "discarded",
	"offered", "ok", "attainment", "attainment_low", "attainment_high", "variance_inflation",
	"queue_growth_per_s", "queue_growth_error_per_s", "achieved_per_s", "good_per_s", "shed", "failed",
	"e2e_p50_ms", "e2e_p99_ms", "ttft_p50_ms", "ttft_p99_ms", "tpot_p99_ms", "send_lag_p99_ms",
}

// WriteCSV writes a line for each run, by rate.
func (h *Head) WriteCSV(w io.Writer) error {
	out := csv.NewWriter(w)
	if err := out.Write(columns); err != nil {
		return err
	}
	for _, p := range h.Points {
		for _, t := range p.Tries {
			f := t.Figures
			if err := out.Write(fields(
				t.Run, t.Rate, t.Seed, t.Window, t.Early, t.Verdict, t.Reason, t.Discarded,
				t.Offered, t.OK, t.Attainment, t.Low, t.High, t.Inflation,
				t.Growth, t.GrowthError, f.Achieved, f.Good, f.Shed, f.Failed,
				f.E2E50, f.E2E99, f.TTFT50, f.TTFT99, f.TPOT99, f.Lag99,
			)); err != nil {
				return err
			}
		}
	}
	out.Flush()
	return out.Error()
}

func fields(values ...any) []string {
	out := make([]string, len(values))
	for i, v := range values {
		if f, is := v.(float64); is {
			out[i] = strconv.FormatFloat(f, 'g', 7, 64)
		} else {
			out[i] = fmt.Sprint(v)
		}
	}
	return out
}
