package loadgen

import (
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
)

// CSVFile is one curve as a table: times in milliseconds, shares of 1.
type CSVFile struct {
	Name  string
	Write func(io.Writer) error
}

// CSVFiles are the curves of one run, or of several (a sweep), told apart by
// their first columns: results.csv with a line for each phase, and so a curve
// over the rate; timeline.csv; distributions.csv with every bucket; cuts.csv.
func CSVFiles(reports ...*Report) []CSVFile {
	file := func(name string, head []string, rows func(*Report, func(...any))) CSVFile {
		return CSVFile{name, func(w io.Writer) error {
			out := csv.NewWriter(w)
			_ = out.Write(slices.Concat([]string{"run", "name"}, head)) // an error stays for Error below
			for i, r := range reports {
				rows(r, func(cells ...any) {
					_ = out.Write(slices.Concat([]string{strconv.Itoa(i + 1), r.Name}, texts(cells)))
				})
			}
			out.Flush()
			if err := out.Error(); err != nil {
				return fmt.Errorf("loadgen: write %s: %w", name, err)
			}
			return nil
		}}
	}
	return []CSVFile{
		file("results.csv", resultHead(), (*Report).resultRows),
		file("timeline.csv", []string{"workload", "phase", "at_s", "step_s", "offered", "good", "late", "shed", "failed", "good_tokens", "p50_ms", "p99_ms", "in_flight"},
			func(r *Report, row func(...any)) {
				for _, x := range r.Results {
					for _, p := range x.Timeline {
						row(x.Name, x.Phase, p.At, r.Step, p.Offered, p.Good, p.Late, p.Shed, p.Failed, p.Tokens, p.P50, p.P99, p.InFlight)
					}
				}
			}),
		file("distributions.csv", []string{"workload", "phase", "metric", "from_ms", "to_ms", "count", "share_up_to"}, (*Report).distributionRows),
		file("cuts.csv", slices.Concat([]string{"workload", "by", "value"}, tallyHead, []string{"attainment"}, quantileHead("e2e"), quantileHead("ttft"), quantileHead("tpot")),
			func(r *Report, row func(...any)) {
				for _, c := range r.Cuts {
					row(slices.Concat([]any{c.Workload, c.By, c.Name}, c.Tally.cells(), []any{c.Attainment}, c.E2E.cells(), c.TTFT.cells(), c.TPOT.cells())...)
				}
			}),
	}
}

func texts(cells []any) []string {
	out := make([]string, len(cells))
	for i, c := range cells {
		if v, ok := c.(float64); ok {
			out[i] = strconv.FormatFloat(v, 'f', -1, 64)
			continue
		}
		out[i] = fmt.Sprint(c)
	}
	return out
}

var tallyHead = []string{"offered", "ok", "late", "shed", "failed", "unfinished", "shed_retry_after", "waited_for_slot", "retries", "abandoned"}

func (t *Tally) cells() []any {
	return []any{t.Offered, t.OK, t.Late, t.Shed, t.Failed, t.Unfinished, t.RetryAfter, t.Waited, t.Retries, t.Abandoned}
}

func quantileHead(of string) []string {
	out := []string{of + "_n", of + "_left_out", of + "_at_least"}
	for _, q := range quantileNames {
		out = append(out, of+"_"+q.name+"_ms")
	}
	return out
}

// cells are empty where there are no values: a 0 would be a time.
func (q *Quantiles) cells() []any {
	if q == nil || q.N == 0 {
		out := slices.Repeat([]any{""}, 3+len(quantileNames))
		if q != nil {
			out[0], out[1], out[2] = q.N, q.LeftOut, q.AtLeast
		}
		return out
	}
	return []any{q.N, q.LeftOut, q.AtLeast, q.Mean, q.P50, q.P90, q.P95, q.P99, q.P999, q.Max}
}

// failures are the kinds of failed, in the order of their columns.
var failures = []Outcome{HTTPError, StreamError, Truncated, Connect, Timeout, Protocol, Cancelled}

func resultHead() []string {
	out := slices.Concat([]string{"workload", "phase", "closed_loop_clients", "planned_per_s", "achieved_per_s", "good_per_s", "extra_per_s", "good_tokens_per_s", "over_s"},
		tallyHead, []string{"attainment"})
	for _, o := range failures {
		out = append(out, string(o))
	}
	for _, name := range Metrics() {
		out = append(out, quantileHead(name)...)
	}
	return append(out, "run_failed")
}

func (r *Report) resultRows(row func(...any)) {
	for i := range r.Results {
		x := &r.Results[i]
		cells := slices.Concat([]any{x.Name, x.Phase, x.Closed, x.Planned, x.Achieved, x.Good, x.Extra, x.GoodTokens, x.Over}, x.Tally.cells(), []any{x.Attainment})
		for _, o := range failures {
			cells = append(cells, x.FailedBy[o])
		}
		for m := range metrics {
			cells = append(cells, x.figure(m).cells()...)
		}
		row(append(cells, len(r.Failed) > 0)...)
	}
}

func (r *Report) distributionRows(row func(...any)) {
	for i := range r.Results {
		x := &r.Results[i]
		for m := range metrics {
			q := x.figure(m)
			if q == nil || q.HDR == nil {
				continue
			}
			seen := int64(0)
			for _, b := range q.HDR.Buckets() {
				seen += b.Count
				row(x.Name, x.Phase, metricNames[m].name, b.From, b.To, b.Count, float64(seen)/float64(q.N))
			}
		}
	}
}
