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
	Traces string `help:"Folder with openb-gpu-v2023; by default the traces below ALOFT_SHARED." type:"path" placeholder:"DIR"`
	Shared string `env:"ALOFT_SHARED" hidden:""`
	Seeds  int    `help:"How many seeds, from 42 on." default:"10"`
	JSON   bool   `help:"Print JSON with every run."`
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
	trace, err := packing.Load(c.Traces)
	if err != nil {
		return err
	}
	openb, err := trace.Openb(ctx, packing.DefaultSeeds[:c.Seeds])
	if err != nil {
		return err
	}
	if c.JSON {
		e := json.NewEncoder(k.Stdout)
		e.SetIndent("", "  ")
		return e.Encode(map[string]any{"openb": openb})
	}
	openb.Table(k.Stdout)
	return nil
}
