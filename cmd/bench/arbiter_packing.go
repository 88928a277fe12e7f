package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"aloft/sim/batching"
	"aloft/sim/packing"
)

// arbiterPacking repeats FGD's experiment and the mix of MIG shapes.
func arbiterPacking(ctx context.Context, l *lab, r *result) error {
	shared := os.Getenv("ALOFT_SHARED")
	if shared == "" {
		r.note("Packing was not run: ALOFT_SHARED names no folder with the openb trace, which is not shipped.")
		return nil
	}
	t, err := packing.Load(filepath.Join(shared, "traces"))
	if err != nil {
		return err
	}
	seeds := packing.DefaultSeeds
	if l.quick {
		seeds = seeds[:2]
	}
	o, err := t.Openb(ctx, seeds)
	if err != nil {
		return err
	}
	l.say("arbiter, packing: %d policies x %d seeds", len(o.Rows), len(seeds))
	var rows [][]string
	worst := 0.0
	for _, p := range o.Rows {
		cells := []string{p.Policy}
		for i, e := range []packing.Estimate{p.At130, p.At100, p.Fragment} {
			cells = append(cells, fmt.Sprintf("%.2f (%.2f to %.2f)", e.Mean, e.Low, e.High), fmt.Sprintf("%.2f", p.Published[i]))
			worst = max(worst, math.Abs(e.Mean-p.Published[i]))
		}
		rows = append(rows, cells)
	}
	r.atMost(fmt.Sprintf("packing, openb: furthest of %d cells from the published figure, points", 3*len(o.Rows)), worst, 0.5)
	var b strings.Builder
	writeTable(&b, []string{"policy", "allocated at 130 % asked, %", "published", "at 100 %", "published", "fragment at the end, %", "published"}, rows)
	r.note("Packing, modelled: FGD's experiment on openb in plain Go: %d nodes, %d GPUs, %d seeds; beside each figure what the authors' artifact published.\n\n%s",
		o.Nodes, o.GPUs, len(seeds), strings.TrimSuffix(b.String(), "\n"))
	for _, whole := range []bool{false, true} {
		m, err := t.MIG(ctx, whole, migLoad, seeds)
		if err != nil {
			return err
		}
		l.say("arbiter, packing: MIG, %s", m.Mix)
		migNote(r, m, !whole)
	}
	return nil
}

// migLoad is how many compute slices are asked for, of those there are: as in
// FGD's experiment.
const migLoad = 1.3

// migNote judges the mix of parts of GPUs, which is what MIG is about; with whole
// GPUs, which fit every rule alike, there is less to win.
func migNote(r *result, m packing.MIG, judged bool) {
	interval := func(e packing.Estimate) batching.Interval {
		return batching.Interval{Value: e.Mean, Low: e.Low, High: e.High}
	}
	at := "packing, MIG, " + m.Mix + ": allocated share, FGD with reshape above "
	if judged {
		r.atLeastIn(at+"best fit with reshape, points", interval(m.OverBestFit), 2)
		r.atLeastIn(at+"the better static layout, points", interval(m.OverStatic), 5)
	}
	var rows [][]string
	cell := func(e packing.Estimate) string { return fmt.Sprintf("%.2f (%.2f to %.2f)", e.Mean, e.Low, e.High) }
	for _, x := range m.Rows {
		rows = append(rows, []string{x.Rule, cell(x.Allocated), cell(x.Refused), fmt.Sprintf("%.2f", x.Made.Mean)})
	}
	var b strings.Builder
	writeTable(&b, []string{"rule", "allocated, %", "refused, %", "instances made per GPU and hour"}, rows)
	r.note("openb's requests on MIG, modelled: %s (%s) on %d GPUs at load %.1f, %d seeds; who finds no room goes away. FGD with reshape is %+.2f points (%+.2f to %+.2f) above best fit with reshape, %+.2f (%+.2f to %+.2f) above the better static layout.\n\n%s", m.Mix, strings.Join(m.Shares, ", "), m.GPUs, m.Load, len(m.Seeds),
		m.OverBestFit.Mean, m.OverBestFit.Low, m.OverBestFit.High, m.OverStatic.Mean, m.OverStatic.Low, m.OverStatic.High,
		strings.TrimSuffix(b.String(), "\n"))
}
