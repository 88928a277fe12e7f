package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

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
	r.note("Packing: FGD's experiment on openb in plain Go (modelled): %d nodes, %d GPUs, %d seeds; beside each figure what the authors' artifact published.\n\n%s",
		o.Nodes, o.GPUs, len(seeds), strings.TrimSuffix(b.String(), "\n"))
	return nil
}
