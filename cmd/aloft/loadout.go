package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

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
	opt, err := c.options(k)
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
	watch, err := c.start(ctx)
	if err != nil {
		return err
	}
	opt.OnSample = watch.show
	report, err := loadgen.Run(ctx, opt)
	watch.close()
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
	if err := into(c.JSON, stdout, indented(r)); err != nil {
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

// answered is an error when every request failed, which says why and what to
// look at: a wrong address, key or model, most likely.
func answered(r *loadgen.Report) error {
	offered, failed := 0, 0
	most, problem := 0, ""
	for _, x := range r.Results {
		offered, failed = offered+x.Offered, failed+x.Tally.Failed
		for _, outcome := range slices.Sorted(maps.Keys(x.FailedBy)) {
			if n := x.FailedBy[outcome]; n > most && x.Problems[outcome] != "" {
				most, problem = n, x.Problems[outcome]
			}
		}
	}
	if offered == 0 || failed < offered {
		return nil
	}
	return fmt.Errorf("all %d requests failed, such as with: %s%s", offered, problem, advice(problem))
}

// advice is what helps against a failure that a wrong flag causes.
func advice(problem string) string {
	for _, a := range []struct{ sign, text string }{
		{"no answer: ", "is the server up, and is its address right (--url, or url in the profile)?"},
		{"HTTP 401", "the server wants a key: --key or ALOFT_API_KEY"},
		{"HTTP 403", "the server does not take the key (--key or ALOFT_API_KEY) for this"},
		{"HTTP 404", "the server's /v1/models lists what --model, or model in the profile, may be; url has no route"},
	} {
		if strings.HasPrefix(problem, a.sign) {
			return "\n  " + a.text
		}
	}
	return ""
}
