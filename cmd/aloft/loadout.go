package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/alecthomas/kong"

	"aloft/loadgen"
	"aloft/loadgen/page"
)

// loadOutputs are where a run's results go besides the table.
type loadOutputs struct {
	JSON   string `help:"Write the report here; - is standard output." placeholder:"FILE"`
	CSV    string `name:"csv" help:"Write the tables results, timeline, distributions and cuts into this folder." placeholder:"DIR"`
	HTML   string `name:"html" help:"Write a page to look at and to print here, which needs no other file." placeholder:"FILE"`
	Lines  string `help:"Write a line of JSON for each request here while it runs." placeholder:"FILE"`
	Assert string `help:"Fail unless this holds, such as attainment>=0.99,ttft_p99<800ms." placeholder:"DEMANDS"`
}

type loadRunCmd struct {
	loadProfile
	loadWatch
	loadOutputs
}

// Run implements kong's command. It fails when the run does not count, when
// not all is as demanded, and when no request was answered.
func (c *loadRunCmd) Run(ctx context.Context, k *kong.Context) (err error) {
	opt, err := c.options()
	if err != nil {
		return err
	}
	demands, err := c.demands()
	if err != nil {
		return err
	}
	if c.Lines != "" {
		f, err := os.Create(c.Lines)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		opt.Lines = f
	}
	report, err := c.run(ctx, opt)
	if err != nil {
		return err
	}
	if err := c.write(k.Stdout, report); err != nil {
		return err
	}
	return errors.Join(report.Verdict(), report.Check(demands), answered(report))
}

func (c *loadOutputs) demands() ([]loadgen.Assert, error) {
	if c.Assert == "" {
		return nil, nil
	}
	demands, err := loadgen.ParseAsserts(c.Assert)
	if err != nil {
		return nil, fmt.Errorf("--assert: %w", err)
	}
	return demands, nil
}

func (c *loadOutputs) write(stdout io.Writer, r *loadgen.Report) error {
	if c.JSON != "-" {
		if err := r.WriteTable(stdout); err != nil {
			return err
		}
	}
	if err := writeJSON(c.JSON, r); err != nil {
		return err
	}
	if err := into(c.HTML, stdout, func(w io.Writer) error { return page.Run(w, r) }); err != nil {
		return err
	}
	if c.CSV == "" {
		return nil
	}
	if err := os.MkdirAll(c.CSV, 0o777); err != nil {
		return err
	}
	for _, f := range loadgen.CSVFiles(r) {
		if err := into(filepath.Join(c.CSV, f.Name), stdout, f.Write); err != nil {
			return err
		}
	}
	return nil
}

// answered is an error when every request failed: a wrong address or model, most
// likely.
func answered(r *loadgen.Report) error {
	offered, failed := 0, 0
	for _, x := range r.Results {
		offered, failed = offered+x.Offered, failed+x.Tally.Failed
	}
	if offered > 0 && failed == offered {
		return fmt.Errorf("all %d requests failed", offered)
	}
	return nil
}
