package packing

import (
	"context"
	"fmt"
	"io"
	"math"
)

// Estimate is the mean over seeds and the interval in which it lies with 95 %
// confidence (Student's t).
type Estimate struct {
	Mean float64 `json:"mean"`
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// student holds the 97.5 % quantiles of t for 1 to 29 degrees of freedom; from
// there on the normal one is near enough.
var student = []float64{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
	2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045}

func estimate(values []float64) Estimate {
	n := float64(len(values))
	sum, squares := 0.0, 0.0
	for _, v := range values {
		sum += v
	}
	mean := sum / n
	if len(values) < 2 {
		return Estimate{mean, mean, mean}
	}
	for _, v := range values {
		squares += (v - mean) * (v - mean)
	}
	t := 1.96
	if len(values)-2 < len(student) {
		t = student[len(values)-2]
	}
	half := t * math.Sqrt(squares/(n-1)/n)
	return Estimate{mean, mean - half, mean + half}
}

// Row is one policy's outcome, with what the artifact's authors published.
type Row struct {
	Policy    string     `json:"policy"`
	At130     Estimate   `json:"allocated_at_130_percent"`
	At100     Estimate   `json:"allocated_at_100_percent"`
	Fragment  Estimate   `json:"fragment_percent"`
	Published [3]float64 `json:"published"` // the same three
	Runs      []Run      `json:"runs"`
}

// Openb is the whole experiment.
type Openb struct {
	Modeled bool    `json:"modelled"` // always: no GPU was asked
	GPUs    int     `json:"gpus"`
	Nodes   int     `json:"nodes"`
	Pods    int     `json:"pods"`
	Seeds   []int64 `json:"seeds"`
	Rows    []Row   `json:"rows"`
}

// DefaultSeeds are those of the artifact.
var DefaultSeeds = []int64{42, 43, 44, 45, 46, 47, 48, 49, 50, 51}

// published are the means of the artifact's ten runs of the default workload, in
// per cent: GPU allocated at 130 % and at 100 % requested, fragment at the end.
var published = map[string][3]float64{
	"Random":     {87.47, 86.30, 12.43},
	"DotProd":    {90.85, 90.62, 9.08},
	"Clustering": {91.88, 91.65, 8.00},
	"Packing":    {92.00, 91.78, 7.91},
	"BestFit":    {93.08, 92.86, 6.85},
	"FGD":        {95.39, 95.23, 4.57},
}

// Openb runs every policy on every seed.
func (t Trace) Openb(ctx context.Context, seeds []int64) (Openb, error) {
	o := Openb{Modeled: true, GPUs: int(t.capacity() / milli), Nodes: len(t.Nodes), Pods: len(t.Pods), Seeds: seeds}
	for _, p := range Policies() {
		row := Row{Policy: p.Name, Published: published[p.Name]}
		for _, seed := range seeds {
			if ctx.Err() != nil {
				return o, fmt.Errorf("packing: %w", context.Cause(ctx))
			}
			row.Runs = append(row.Runs, t.Run(p, seed))
		}
		column := func(of func(Run) float64) Estimate {
			var v []float64
			for _, r := range row.Runs {
				v = append(v, of(r))
			}
			return estimate(v)
		}
		row.At130 = column(func(r Run) float64 { return r.At130 })
		row.At100 = column(func(r Run) float64 { return r.At100 })
		row.Fragment = column(func(r Run) float64 { return r.Frag })
		o.Rows = append(o.Rows, row)
	}
	return o, nil
}

// Table writes the outcome for people.
func (o Openb) Table(w io.Writer) {
	fmt.Fprintf(w, "FGD's experiment on openb (modelled): %d nodes, %d GPUs; arrivals only, up to 130 %% of the GPUs asked for; %d seeds from %d.\n",
		o.Nodes, o.GPUs, len(o.Seeds), o.Seeds[0])
	fmt.Fprintf(w, "Per cent of all GPUs, mean and 95 %% interval over seeds; behind it what the authors' artifact published.\n\n")
	fmt.Fprintf(w, "%-11s %-34s %-34s %s\n", "policy", "allocated at 130 %", "allocated at 100 %", "fragment at the end")
	cell := func(e Estimate, want float64) string {
		return fmt.Sprintf("%6.2f (%5.2f-%5.2f) %5.2f %+5.2f", e.Mean, e.Low, e.High, want, e.Mean-want)
	}
	for _, r := range o.Rows {
		fmt.Fprintf(w, "%-11s %-34s %-34s %s\n", r.Policy, cell(r.At130, r.Published[0]), cell(r.At100, r.Published[1]), cell(r.Fragment, r.Published[2]))
	}
}
