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
	if err := c.keepable(c.Profile); err != nil {
		return err
	}
	if c.Lines != "" {
		f, err := openLines(c.Lines)
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
	err = errors.Join(c.write(k.Stdout, report), counted(report, c.JSON != "-"), held(report, demands), answered(report))
	if report.LinesLost > 0 {
		err = errors.Join(err, fmt.Errorf("%s lacks %d of the requests", c.Lines, report.LinesLost))
	}
	return err
}

// held is an error when not all is as demanded, or when a run that was ended before
// its time cannot say.
func held(r *loadgen.Report, demands []loadgen.Assert) error {
	err := r.Check(demands)
	if r.Interrupted && len(demands) > 0 {
		err = errors.Join(err, errors.New("--assert: the run was ended before its time, and says nothing of the whole"))
	}
	return coded(exitNotHeld, err)
}

// keepable checks before the run that its results can be kept.
func (c *loadOutputs) keepable(profile string) error {
	files := []string{c.JSON, c.HTML, c.Lines}
	if c.CSV != "" {
		if err := os.MkdirAll(c.CSV, 0o777); err != nil {
			return err
		}
		for _, f := range loadgen.CSVFiles() {
			files = append(files, filepath.Join(c.CSV, f.Name))
		}
	}
	return keepable([]string{profile}, files...)
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

// write writes all that it can, the files first: a terminal that is stopped, or a
// table that nobody reads any more, costs none.
func (c *loadOutputs) write(stdout io.Writer, r *loadgen.Report) error {
	err := errors.Join(into(c.JSON, stdout, indented(r)), into(c.HTML, stdout, func(w io.Writer) error { return page.Run(w, r) }))
	if c.CSV != "" {
		for _, f := range loadgen.CSVFiles(r) {
			err = errors.Join(err, into(filepath.Join(c.CSV, f.Name), stdout, f.Write))
		}
	}
	if c.JSON != "-" {
		err = errors.Join(err, r.WriteTable(stdout))
	}
	return err
}

// answered is an error when nothing was offered, or when every request failed,
// which says why and what to look at: a wrong address, key or model, most likely.
// What was cancelled at the end of a run has not failed.
func answered(r *loadgen.Report) error {
	offered, failed, abandoned := 0, 0, 0
	most, problem := 0, ""
	for _, x := range r.Results {
		cancelled := x.FailedBy[loadgen.Cancelled]
		offered, failed = offered+x.Offered-cancelled, failed+x.Tally.Failed-cancelled
		abandoned += x.Abandoned
		for _, outcome := range slices.Sorted(maps.Keys(x.FailedBy)) {
			if n := x.FailedBy[outcome]; outcome != loadgen.Cancelled && n > most && x.Problems[outcome] != "" {
				most, problem = n, x.Problems[outcome]
			}
		}
	}
	switch {
	case offered == 0 && abandoned == 0 && !r.Interrupted:
		return errors.New("nothing was sent: the plan has no request in the time that is measured")
	case offered == 0 || failed < offered:
		return nil
	}
	return coded(exitNotHeld, fmt.Errorf("all %d requests failed, such as with: %s%s", offered, problem, advice(problem)))
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
