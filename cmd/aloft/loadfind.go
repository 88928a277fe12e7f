package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/alecthomas/kong"

	"aloft/loadgen/known"
	"aloft/loadgen/page"
	"aloft/loadgen/search"
)

// loadFind are the flags that a search and a sweep share.
type loadFind struct {
	loadProfile
	SLO     string        `name:"slo" help:"What is promised, such as ttft_p99<800ms,tpot_p99<50ms; without it the profile's own targets." placeholder:"SLO"`
	Attain  float64       `help:"Share of offered requests that must be good." default:"0.99"`
	From    float64       `help:"Lowest rate, arrivals a second over all workloads." placeholder:"RATE"`
	To      float64       `help:"Highest rate." placeholder:"RATE"`
	Window  time.Duration `help:"How long a rate is measured." default:"30s"`
	WarmUp  time.Duration `help:"Load before each window." placeholder:"TIME"`
	Limit   time.Duration `help:"Most time for it all." default:"30m"`
	Repeats int           `help:"Whole windows at the ends of the answer, or of each point of a sweep." placeholder:"N"`
	JSON    string        `help:"Write the result here; - is standard output." placeholder:"FILE"`
	CSV     string        `name:"csv" help:"Write the curve here." placeholder:"FILE"`
	HTML    string        `name:"html" help:"Write a page to look at and to print here, which needs no other file." placeholder:"FILE"`
}

// found is what a search or a sweep came to.
type found interface {
	WriteTable(w io.Writer) error
	WriteJSON(w io.Writer) error
	WriteCSV(w io.Writer) error
}

func (c *loadFind) search(k *kong.Context) (o search.Options, err error) {
	if o.Base, err = c.options(k); err != nil {
		return o, err
	}
	if c.SLO != "" {
		if o.SLO, err = search.ParseSLO(c.SLO); err != nil {
			return o, fmt.Errorf("--slo: %w", err)
		}
	}
	o.Attain, o.Min, o.Max, o.Window, o.WarmUp, o.Limit, o.Repeats = c.Attain, c.From, c.To, c.Window, c.WarmUp, c.Limit, c.Repeats
	o.OnTry = func(t search.Try) {
		fmt.Fprintf(os.Stderr, "%.4g/s: %s %s, %s\n", t.Rate, t.Verdict, t.Reason, t.Evidence)
	}
	return o, o.Validate()
}

func (c *loadFind) write(stdout io.Writer, f found, html func(io.Writer) error) error {
	if c.JSON != "-" {
		if err := f.WriteTable(stdout); err != nil {
			return err
		}
	}
	return errors.Join(into(c.JSON, stdout, f.WriteJSON), into(c.CSV, stdout, f.WriteCSV), into(c.HTML, stdout, html))
}

// into writes to a file, to standard output ("-"), or nowhere ("").
func into(path string, stdout io.Writer, write func(io.Writer) error) error {
	switch path {
	case "":
		return nil
	case "-":
		return write(stdout)
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

type loadSearchCmd struct {
	loadFind
	Start float64 `help:"First rate that is tried; without it the profile's own." placeholder:"RATE"`
}

// Run implements kong's command. It fails when no rate held.
func (c *loadSearchCmd) Run(ctx context.Context, k *kong.Context) error {
	o, err := c.search(k)
	if err != nil {
		return err
	}
	o.Start = c.Start
	a, err := search.Find(ctx, o)
	if len(a.Points) > 0 { // what was found before an error is of use
		err = errors.Join(err, c.write(k.Stdout, &a, func(w io.Writer) error { return page.Answer(w, &a) }))
	}
	if err != nil {
		return err
	}
	if a.Low == 0 {
		return fmt.Errorf("no rate is known to keep the promise (%s)", a.Stopped)
	}
	return nil
}

type loadSweepCmd struct {
	loadFind
	Points int `help:"Rates on the grid." default:"8"`
}

// Run implements kong's command.
func (c *loadSweepCmd) Run(ctx context.Context, k *kong.Context) error {
	o, err := c.search(k)
	if err != nil {
		return err
	}
	o.Points = c.Points
	curve, err := search.Sweep(ctx, o)
	if len(curve.Points) > 0 {
		err = errors.Join(err, c.write(k.Stdout, &curve, func(w io.Writer) error { return page.Sweep(w, &curve) }))
	}
	return err
}

type loadSelfTestCmd struct {
	JSON string `help:"Write the rows here; - is standard output." placeholder:"FILE"`
}

// Run implements kong's command. It fails when a figure is wrong.
func (c *loadSelfTestCmd) Run(ctx context.Context, k *kong.Context) error {
	out := k.Stdout
	if c.JSON == "-" {
		out = io.Discard
	}
	r, err := known.SelfTest(ctx, out)
	if err != nil {
		return err
	}
	if err := writeJSON(c.JSON, &r); err != nil {
		return err
	}
	if !r.OK() {
		return fmt.Errorf("%d figures are wrong", r.Wrong)
	}
	return nil
}
