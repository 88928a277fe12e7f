package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/alecthomas/kong"

	"aloft/loadgen/known"
	"aloft/loadgen/page"
	"aloft/loadgen/search"
)

// loadFind are the flags that a search and a sweep share.
type loadFind struct {
	loadProfile
	loadWatch
	SLO        string        `name:"slo" help:"What is promised, such as ttft_p99<800ms,tpot_p99<50ms; without it the profile's own targets." placeholder:"SLO"`
	Attain     float64       `help:"Share of offered requests that must be good." default:"0.99"`
	From       float64       `help:"Lowest rate, arrivals a second over all workloads." placeholder:"RATE"`
	To         float64       `help:"Highest rate." placeholder:"RATE"`
	Window     time.Duration `help:"How long a rate is measured; up to 10 times as long where it brings few requests." default:"30s"`
	WarmUp     time.Duration `help:"Load before each window; without it the profile's, or a sixth of the window." placeholder:"TIME"`
	Limit      time.Duration `help:"Most time for it all." default:"30m"`
	Most       time.Duration `name:"max-window" help:"Longest that a window may become for its requests, or for what the queue remembers; without it 10 windows." placeholder:"TIME"`
	Requests   int           `help:"A window lasts until so many are offered; without it as many as have 20 bad ones at --attain." placeholder:"N"`
	Confidence float64       `help:"What the interval of each rate, and of the answer, promises." default:"0.95"`
	Repeats    int           `help:"Whole windows at the ends of the answer, or of each point of a sweep." placeholder:"N"`
	JSON       string        `help:"Write the result here; - is standard output." placeholder:"FILE"`
	CSV        string        `name:"csv" help:"Write the curve here." placeholder:"FILE"`
	HTML       string        `name:"html" help:"Write a page to look at and to print here, which needs no other file." placeholder:"FILE"`
}

// found is what a search or a sweep came to.
type found interface {
	WriteTable(w io.Writer) error
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
	o.MaxWindow, o.Requests, o.Confidence = c.Most, c.Requests, c.Confidence
	return o, keepable([]string{c.Profile}, c.JSON, c.CSV, c.HTML)
}

// watched has the runs of a search looked at.
func (c *loadFind) watched(ctx context.Context, o *search.Options) (watching, error) {
	if err := o.Validate(); err != nil {
		return watching{}, err
	}
	w, err := c.start(ctx)
	o.Base.OnSample = w.show
	o.OnBegin = func(t search.Try) {
		longer := ""
		if t.Window > c.Window.Seconds() {
			longer = " (for enough requests, or for what the queue remembers)"
		}
		w.begin(fmt.Sprintf("run %d, %.4g/s for %.4g s%s", t.Run, t.Rate, t.Window, longer))
	}
	o.OnTry = func(t search.Try) {
		text := fmt.Sprintf("run %d, %.4g/s: %s %s, %s", t.Run, t.Rate, t.Verdict, t.Reason, t.Evidence)
		if t.Discarded != "" {
			text += "; does not count: " + t.Discarded
		}
		w.say(text)
	}
	return w, err
}

// write writes the files first: a terminal that is stopped costs none.
func (c *loadFind) write(stdout io.Writer, f found, html func(io.Writer) error) error {
	err := errors.Join(into(c.JSON, stdout, indented(f)), into(c.CSV, stdout, f.WriteCSV), into(c.HTML, stdout, html))
	if c.JSON != "-" {
		err = errors.Join(err, f.WriteTable(stdout))
	}
	return err
}

// judged gives an error of a search or a sweep its exit code.
func judged(err error) error {
	if errors.Is(err, search.ErrGenerator) {
		return coded(exitNoCount, err)
	}
	return err
}

type loadSearchCmd struct {
	loadFind
	Start      float64 `help:"First rate that is tried; without it the profile's own." placeholder:"RATE"`
	Resolution float64 `help:"How far, as a share, the ends of the answer may be apart." default:"0.05"`
}

// Run implements kong's command. It fails when no rate held.
func (c *loadSearchCmd) Run(ctx context.Context, k *kong.Context) error {
	o, err := c.search(k)
	if err != nil {
		return err
	}
	o.Start, o.Resolution = c.Start, c.Resolution
	watch, err := c.watched(ctx, &o)
	if err != nil {
		return err
	}
	a, err := search.Find(ctx, o)
	watch.close()
	err = judged(err)
	if len(a.Points) > 0 { // what was found before an error is of use
		err = errors.Join(err, c.write(k.Stdout, &a, func(w io.Writer) error { return page.Answer(w, &a) }))
	}
	if err != nil || a.Low > 0 {
		return err
	}
	return coded(exitNotHeld, fmt.Errorf("no rate is known to keep the promise: %s", a.Stopped.Meaning()))
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
	watch, err := c.watched(ctx, &o)
	if err != nil {
		return err
	}
	curve, err := search.Sweep(ctx, o)
	watch.close()
	err = judged(err)
	if len(curve.Points) > 0 {
		err = errors.Join(err, c.write(k.Stdout, &curve, func(w io.Writer) error { return page.Sweep(w, &curve) }))
	}
	return err
}

type loadSelfTestCmd struct {
	All  bool   `help:"Print every row, not only those that are wrong or were right only when repeated."`
	JSON string `help:"Write the rows here; - is standard output." placeholder:"FILE"`
}

// Run implements kong's command. It fails when a figure is wrong.
func (c *loadSelfTestCmd) Run(ctx context.Context, k *kong.Context) error {
	out := k.Stdout
	if c.JSON == "-" {
		out = io.Discard
	}
	r, err := known.SelfTest(ctx, out, c.All)
	if err != nil {
		return err
	}
	if err := into(c.JSON, k.Stdout, indented(&r)); err != nil {
		return err
	}
	if !r.OK() {
		return coded(exitNotHeld, fmt.Errorf("%d figures are wrong", r.Wrong))
	}
	return nil
}
