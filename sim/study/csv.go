package study

import (
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"

	"aloft/arbiter"
	"aloft/loadgen"
	"aloft/sim"
)

// CSVFiles are the figures of a study as tables, told apart by their first columns:
// variant, policy and seed. Shares are of 1, times in seconds.
func (s *Study) CSVFiles() []loadgen.CSVFile {
	file := func(name string, head []string, rows func(*Run, func(...any))) loadgen.CSVFile {
		return loadgen.CSVFile{Name: name, Write: func(w io.Writer) error {
			out := csv.NewWriter(w)
			_ = out.Write(slices.Concat([]string{"variant", "policy", "seed"}, head)) // an error stays for Error below
			for i := range s.Runs {
				r := &s.Runs[i]
				rows(r, func(cells ...any) {
					_ = out.Write(slices.Concat([]string{r.Variant, r.Policy, strconv.FormatUint(r.Seed, 10)}, texts(cells)))
				})
			}
			out.Flush()
			if err := out.Error(); err != nil {
				return fmt.Errorf("sim/study: write %s: %w", name, err)
			}
			return nil
		}}
	}
	return []loadgen.CSVFile{
		file("figures.csv", figureNames(), func(r *Run, row func(...any)) { row(s.figureCells(r)...) }),
		file("models.csv", []string{"model", "requests", "good", "attainment", "refused", "cut", "unfinished", "hopeless", "caused", "caused_net",
			"ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s", "knee_good_s", "knee_late_s", "ready_mean", "static_share"}, modelCells),
		file("ledger.csv", accountNames(), func(r *Run, row func(...any)) {
			var cells []any
			for _, a := range arbiter.Accounts {
				cells = append(cells, r.Ledger[a])
			}
			row(cells...)
		}),
		file("jobs.csv", []string{"job", "kind", "width", "at_s", "start_s", "finish_s", "queued_s", "stops", "lost_slice_s"}, func(r *Run, row func(...any)) {
			for _, j := range r.Jobs.List {
				row(j.ID, j.Kind, j.Width, j.AtS, j.StartS, j.FinishS, j.QueuedS, j.Stops, j.LostS)
			}
		}),
		file("reclaims.csv", []string{"class", "kept", "broken", "broken_by_fault", "bound_s", "took_mean_s", "took_p50_s", "took_p99_s", "took_max_s"}, func(r *Run, row func(...any)) {
			for _, c := range r.Reclaims {
				row(c.Class, c.Kept, c.Broken, c.Faulted, c.BoundS, c.Took.Mean, c.Took.P50, c.Took.P99, c.Took.Max)
			}
		}),
		file("slices.csv", slices.Concat([]string{"minute"}, accountNames(), []string{"queued", "lent"}), sliceRows),
		file("series.csv", []string{"minute", "model", "need", "ready", "lent", "p99", "headroom"}, seriesRows),
	}
}

func texts(cells []any) []string {
	out := make([]string, len(cells))
	for i, c := range cells {
		switch v := c.(type) {
		case float64:
			out[i] = strconv.FormatFloat(v, 'f', -1, 64)
		case float32:
			out[i] = strconv.FormatFloat(float64(v), 'f', -1, 32)
		default:
			out[i] = fmt.Sprint(c)
		}
	}
	return out
}

func figureNames() (out []string) {
	for _, f := range figures {
		out = append(out, f.Name)
	}
	return out
}

func accountNames() (out []string) {
	for _, a := range arbiter.Accounts {
		out = append(out, string(a))
	}
	return out
}

// figureCells are all figures of a run; one that it has not is empty.
func (s *Study) figureCells(r *Run) (out []any) {
	w := s.world(r)
	for i := range figures {
		if v, ok := figures[i].of(w); ok {
			out = append(out, v)
		} else {
			out = append(out, "")
		}
	}
	return out
}

func modelCells(r *Run, row func(...any)) {
	for i := range r.Models {
		m := &r.Models[i]
		caused, net := any(""), any("")
		if c := causedOf(r, m.Name); c != nil {
			caused, net = c.Gross, c.Net
		}
		row(m.Name, m.Requests, m.Good, m.Attainment, m.Refused, m.Cut, m.Unfinished, m.Hopeless, caused, net,
			m.TTFT.P50, m.TTFT.P99, m.TPOT.P50, m.TPOT.P99, m.KneeGood, m.KneeLate, m.ReadyMean, m.Static)
	}
}

// minute is an entry of a series; a series that lacks it says nothing.
func minute(of []float32, i int) any {
	if i >= len(of) {
		return ""
	}
	return of[i]
}

func sliceRows(r *Run, row func(...any)) {
	for i := range r.Series.Minutes {
		cells := []any{i}
		for _, a := range arbiter.Accounts {
			cells = append(cells, minute(r.Series.Slices[a], i))
		}
		row(append(cells, minute(r.Series.Queued, i), minute(r.Series.Lent, i))...)
	}
}

func seriesRows(r *Run, row func(...any)) {
	for m := range r.Series.Models {
		x := &r.Series.Models[m]
		for i := range r.Series.Minutes {
			p99, headroom := none(minute(x.P99, i), x, i), none(minute(x.Headroom, i), x, i)
			row(i, x.Name, minute(x.Need, i), minute(x.Ready, i), minute(x.Lent, i), p99, headroom)
		}
	}
}

// none leaves out what a minute without requests has.
func none(v any, x *sim.ModelSeries, i int) any {
	if i < len(x.P99) && x.P99[i] < 0 {
		return ""
	}
	return v
}
