package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/alecthomas/kong"

	"aloft/loadgen"
	"aloft/loadgen/known"
	"aloft/loadgen/page"
)

type loadCompareCmd struct {
	A    string `arg:"" type:"existingfile" help:"Report (JSON) of the run before."`
	B    string `arg:"" type:"existingfile" help:"Report of the run after."`
	JSON string `help:"Write the comparison here; - is standard output." placeholder:"FILE"`
	HTML string `name:"html" help:"Write a page to look at and to print here, which needs no other file." placeholder:"FILE"`
}

// Run implements kong's command. It fails when there was nothing to compare;
// that B is worse is no failure.
func (c *loadCompareCmd) Run(k *kong.Context) error {
	if err := keepable([]string{c.A, c.B}, c.JSON, c.HTML); err != nil {
		return err
	}
	a, err := readReport(c.A)
	if err != nil {
		return err
	}
	b, err := readReport(c.B)
	if err != nil {
		return err
	}
	found := loadgen.Compare(a, b)
	err = errors.Join(into(c.HTML, k.Stdout, func(w io.Writer) error { return page.Compare(w, a, b) }), into(c.JSON, k.Stdout, indented(&found)))
	if c.JSON != "-" {
		err = errors.Join(err, found.WriteTable(k.Stdout))
	}
	if len(found.Figures) == 0 {
		err = errors.Join(err, coded(exitNotHeld, fmt.Errorf("NOTHING WAS COMPARED: %s and %s have no phase of a workload in common that has figures", c.A, c.B)))
	}
	return err
}

func readReport(path string) (*loadgen.Report, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := loadgen.ReadReport(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

type loadCalibrateCmd struct {
	Rounds int    `help:"Rounds of which the best counts." default:"5"`
	JSON   string `help:"Write the figures here; - is standard output." placeholder:"FILE"`
}

// Run implements kong's command. A missed target is told loudly but is no
// error: the machine may be small, or busy.
func (c *loadCalibrateCmd) Run(ctx context.Context, k *kong.Context) error {
	if err := keepable(nil, c.JSON); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	found, err := known.Calibrate(ctx, known.CalibrateOptions{Null: []string{self, "load", "null-server"}, Rounds: c.Rounds,
		Say: func(line string) { fmt.Fprintln(os.Stderr, line) }})
	if err != nil {
		return err
	}
	if c.JSON != "-" {
		if err := found.WriteTable(k.Stdout); err != nil {
			return err
		}
	}
	return into(c.JSON, k.Stdout, indented(found))
}

type loadNullCmd struct {
	Address  string `arg:"" help:"Where to listen."`
	UntilEOF bool   `name:"until-eof" help:"End when standard input does."`
}

// Run implements kong's command.
func (c *loadNullCmd) Run(ctx context.Context, k *kong.Context) error {
	var in io.Reader
	if c.UntilEOF {
		in = os.Stdin
	}
	return known.ListenNull(ctx, c.Address, in, k.Stdout)
}

type loadPlanCmd struct {
	loadProfile
	Out string `short:"o" required:"" help:"Write the plan here; a profile's plan: names it." placeholder:"FILE"`
}

// Run implements kong's command.
func (c *loadPlanCmd) Run(k *kong.Context) error {
	opt, err := c.options(k)
	if err != nil {
		return err
	}
	if err := keepable([]string{c.Profile}, c.Out); err != nil {
		return err
	}
	var planned []loadgen.Planned
	err = into(c.Out, k.Stdout, func(w io.Writer) (err error) {
		planned, err = loadgen.WritePlan(w, opt)
		return err
	})
	if err != nil || c.Out == "-" {
		return err
	}
	for _, p := range planned {
		fmt.Fprintf(k.Stdout, "%s: %d requests in %v, plan %s\n", p.Name, p.Arrivals, p.Length, p.Hash)
		for _, note := range p.Notes {
			fmt.Fprintf(k.Stdout, "  %s\n", note)
		}
	}
	return nil
}
