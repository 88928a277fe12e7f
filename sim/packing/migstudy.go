package packing

import (
	"container/heap"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"aloft/gpu"
)

// How long a MIG run lasts, in days: two until the fleet has come to rest, and
// then those that count.
const (
	migWarm  = 2 * 24 * time.Hour
	migCount = 5 * 24 * time.Hour
)

// MIGRun is one rule on one seed's arrivals.
type MIGRun struct {
	Allocated float64 `json:"allocated_percent"` // compute slices that running requests asked for, mean over time
	Refused   float64 `json:"refused_percent"`   // of the requests: no room when they came
	Made      float64 `json:"made_per_gpu_hour"` // instances
}

// MIGRow is one rule's outcome.
type MIGRow struct {
	Rule      string   `json:"rule"`
	Allocated Estimate `json:"allocated_percent"`
	Refused   Estimate `json:"refused_percent"`
	Made      Estimate `json:"made_per_gpu_hour"`
	Runs      []MIGRun `json:"runs"`
}

// MIG is the study of one mix.
type MIG struct {
	Modeled bool     `json:"modelled"` // always
	Mix     string   `json:"mix"`
	Shares  []string `json:"shares"` // per cent of the requests by profile
	GPUs    int      `json:"gpus"`
	Load    float64  `json:"load"` // compute slices asked for, of those there are
	Seeds   []int64  `json:"seeds"`
	Rows    []MIGRow `json:"rows"`
	// Over are differences of allocated points, seed by seed: FGD with reshape over
	// best fit with reshape, and over the better of the static layouts.
	OverBestFit Estimate `json:"over_best_fit"`
	OverStatic  Estimate `json:"over_static"`
}

// event is a request that leaves.
type event struct {
	at       time.Duration
	g, start int
	compute  int
}

type events []event

func (e events) Len() int           { return len(e) }
func (e events) Less(i, j int) bool { return e[i].at < e[j].at }
func (e events) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)        { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// runMIG lets requests arrive at random (Poisson) so that on average they ask for
// load times the fleet's compute slices. One that finds no room goes away, as in
// FGD's experiment: with a queue behind it any rule fills any hole in time.
func runMIG(f *fleet, mix []request, load float64, seed int64) MIGRun {
	rng := rand.New(rand.NewPCG(uint64(seed), 0x319))
	mean := 0.0 // slice-seconds of a request
	for _, r := range mix {
		mean += float64(r.compute) * r.life.Seconds() / float64(len(mix))
	}
	all := float64(len(f.gpus) * f.family.Compute)
	gap := func() time.Duration {
		return time.Duration(rng.ExpFloat64() * mean / (load * all) * float64(time.Second))
	}
	var leaving events
	var now time.Duration
	used, area, arrived, refused := 0, 0.0, 0, 0
	advance := func(to time.Duration) {
		if from := max(now, migWarm); to > from {
			area += float64(used) * (to - from).Seconds()
		}
		now = to
	}
	made := 0
	for next := gap(); next < migWarm+migCount; next += gap() {
		for len(leaving) > 0 && leaving[0].at <= next {
			e := heap.Pop(&leaving).(event)
			advance(e.at)
			used -= e.compute
			f.leave(e.g, e.start)
		}
		advance(next)
		if now < migWarm {
			made = f.made
		}
		r := mix[rng.IntN(len(mix))]
		g, start, took, ok := f.give(r.profile)
		if now >= migWarm {
			arrived++
			if !ok {
				refused++
			}
		}
		if ok {
			used += r.compute
			heap.Push(&leaving, event{now + took + r.life, g, start, r.compute})
		}
	}
	span := (now - migWarm).Seconds()
	return MIGRun{Allocated: 100 * area / span / all, Refused: 100 * float64(refused) / float64(arrived),
		Made: float64(f.made-made) / float64(len(f.gpus)) / (span / 3600)}
}

func migRules(f gpu.Family, gpus int, mix []request) []rule {
	whole := make([][]string, gpus)
	for i := range whole {
		whole[i] = []string{"7g.80gb"}
	}
	return []rule{
		{name: "static, whole GPUs", layouts: whole},
		{name: "static, fitted to the mix", layouts: fitted(f, gpus, mix)},
		{name: "first fit, cut once", score: firstFit},
		{name: "best fit, cut once", score: bestFitMIG},
		{name: "FGD, cut once", score: fgdMIG},
		{name: "first fit, reshape", score: firstFit, reshape: true},
		{name: "best fit, reshape", score: bestFitMIG, reshape: true},
		{name: "FGD, reshape", score: fgdMIG, reshape: true},
	}
}

// MIG runs every rule on every seed. With whole set, pods that ask for a whole
// GPU are part of the mix.
func (t Trace) MIG(ctx context.Context, whole bool, load float64, seeds []int64) (MIG, error) {
	f, _ := gpu.Lookup(migFamily)
	mix := t.requests(f, whole)
	m := MIG{Modeled: true, Mix: "parts of a GPU", GPUs: migGPUs, Load: load, Seeds: seeds}
	if whole {
		m.Mix = "parts and whole GPUs"
	}
	for i, n := range count(f, mix) {
		if n > 0 {
			m.Shares = append(m.Shares, fmt.Sprintf("%s %.1f %%", f.Profiles[i].Name, 100*float64(n)/float64(len(mix))))
		}
	}
	allocated := map[string][]float64{}
	for _, r := range migRules(f, migGPUs, mix) {
		row := MIGRow{Rule: r.name}
		var refused, made []float64
		for _, seed := range seeds {
			if ctx.Err() != nil {
				return m, fmt.Errorf("packing: %w", context.Cause(ctx))
			}
			fl, err := newFleet(r, f, migGPUs, mix)
			if err != nil {
				return m, fmt.Errorf("packing: %s: %w", r.name, err)
			}
			run := runMIG(fl, mix, load, seed)
			row.Runs = append(row.Runs, run)
			allocated[r.name] = append(allocated[r.name], run.Allocated)
			refused, made = append(refused, run.Refused), append(made, run.Made)
		}
		row.Allocated, row.Refused, row.Made = estimate(allocated[r.name]), estimate(refused), estimate(made)
		m.Rows = append(m.Rows, row)
	}
	over := func(others ...string) Estimate {
		var least Estimate
		for i, o := range others {
			var d []float64
			for s, v := range allocated["FGD, reshape"] {
				d = append(d, v-allocated[o][s])
			}
			if e := estimate(d); i == 0 || e.Mean < least.Mean {
				least = e
			}
		}
		return least
	}
	m.OverBestFit, m.OverStatic = over("best fit, reshape"), over("static, whole GPUs", "static, fitted to the mix")
	return m, nil
}

// Table writes the outcome for people.
func (m MIG) Table(w io.Writer) {
	fmt.Fprintf(w, "openb's requests on MIG (modelled), %s: %v.\n", m.Mix, m.Shares)
	fmt.Fprintf(w, "%d %s, load %.2f: requests come at random, stay for their own lifetime (a day at most), and go away where there is no room.\n", m.GPUs, migFamily, m.Load)
	fmt.Fprintf(w, "Making an instance takes %v, unmaking %v. Mean and 95 %% interval over %d seeds from %d.\n\n", migCreate, migDestroy, len(m.Seeds), m.Seeds[0])
	fmt.Fprintf(w, "%-27s %-23s %-22s %s\n", "rule", "allocated %", "refused %", "instances made per GPU and hour")
	cell := func(e Estimate) string { return fmt.Sprintf("%5.2f (%5.2f-%5.2f)", e.Mean, e.Low, e.High) }
	for _, r := range m.Rows {
		fmt.Fprintf(w, "%-27s %-23s %-22s %.2f\n", r.Rule, cell(r.Allocated), cell(r.Refused), r.Made.Mean)
	}
	fmt.Fprintf(w, "\nFGD with reshape over best fit with reshape: %+.2f points (%+.2f to %+.2f); over the better static layout: %+.2f (%+.2f to %+.2f).\n",
		m.OverBestFit.Mean, m.OverBestFit.Low, m.OverBestFit.High, m.OverStatic.Mean, m.OverStatic.Low, m.OverStatic.High)
}
