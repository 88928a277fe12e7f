package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/alecthomas/kong"

	"aloft/sim/packing"
)

// simulatePackingCmd runs the placement experiments.
type simulatePackingCmd struct {
	Traces string  `help:"Folder with openb-gpu-v2023; by default the traces below ALOFT_SHARED." type:"path" placeholder:"DIR"`
	Shared string  `env:"ALOFT_SHARED" hidden:""`
	Seeds  int     `help:"How many seeds, from 42 on." default:"10"`
	Load   float64 `help:"MIG: compute slices asked for, of those there are." default:"1.3"`
	JSON   bool    `help:"Print JSON with every run."`
}

// Run implements kong's command.
func (c *simulatePackingCmd) Run(ctx context.Context, k *kong.Context) error {
	if c.Traces == "" {
		if c.Shared == "" {
			return errors.New("simulate packing: no traces: give --traces or set ALOFT_SHARED")
		}
		c.Traces = filepath.Join(c.Shared, "traces")
	}
	if c.Seeds < 1 || c.Seeds > len(packing.DefaultSeeds) {
		return fmt.Errorf("simulate packing: %d seeds, want 1 to %d", c.Seeds, len(packing.DefaultSeeds))
	}
	if c.Load <= 0 || c.Load > 10 {
		return fmt.Errorf("simulate packing: load is %g, want more than 0 and at most 10", c.Load)
	}
	trace, err := packing.Load(c.Traces)
	if err != nil {
		return err
	}
	openb, err := trace.Openb(ctx, packing.DefaultSeeds[:c.Seeds])
	if err != nil {
		return err
	}
	var mig []packing.MIG
	for _, whole := range []bool{false, true} {
		m, err := trace.MIG(ctx, whole, c.Load, packing.DefaultSeeds[:c.Seeds])
		if err != nil {
			return err
		}
		mig = append(mig, m)
	}
	if c.JSON {
		e := json.NewEncoder(k.Stdout)
		e.SetIndent("", "  ")
		return e.Encode(map[string]any{"openb": openb, "mig": mig})
	}
	openb.Table(k.Stdout)
	for _, m := range mig {
		fmt.Fprintln(k.Stdout)
		m.Table(k.Stdout)
	}
	return nil
}
