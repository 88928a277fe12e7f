package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"aloft/loadgen"
	"aloft/sim/page"
	"aloft/sim/scenario"
	"aloft/sim/study"
)

// simulateCmd is `aloft simulate` with all that it can do; without a further word it
// runs policies on a scenario.
type simulateCmd struct {
	Run     simulateRunCmd     `cmd:"" default:"withargs" help:"Run policies side by side on a scenario, in virtual time."`
	Packing simulatePackingCmd `cmd:"" help:"Place openb's requests by six policies, as FGD's authors did."`
}

// simulateRunCmd runs policies, or compares what they came to.
type simulateRunCmd struct {
	Files []string `arg:"" name:"scenario" help:"Scenario: a file (YAML) or the name of a built-in one. With --compare two results (JSON); with --trace a configuration (aloft.yaml)."`
	simulateWhat
	simulateRecording
	simulateOutputs
	Compare bool   `help:"Say what changed between two results of --json, where the intervals allow a verdict."`
	Live    string `help:"The progress, on standard error: auto redraws a terminal, plain writes a line at times, none." default:"auto" enum:"auto,plain,none"`
}

// simulateWhat is what is to be simulated.
type simulateWhat struct {
	Policy  string   `help:"Policies with commas between, or all; see above. Static is always run too: the others are held against it." default:"static,ours" placeholder:"LIST"`
	Seed    string   `help:"Seeds such as 1,2,3 or 1-10; without it the first seed of the scenario." placeholder:"SEEDS"`
	Hours   string   `help:"Window of the scenario's hours, such as 6-12; without it all of them." placeholder:"FROM-TO"`
	Rows    bool     `help:"Let batch rows ride in ready replicas, whatever the scenario says."`
	Set     []string `sep:"none" help:"What if: a changed scenario beside the scenario as it is, such as jobs.offered_load=1.2; several keys of one change have a semicolon between. Repeat it for several changes." placeholder:"KEY=VALUE"`
	Traces  string   `type:"path" help:"Folder of traces that the binary does not hold; without it traces below ALOFT_SHARED." placeholder:"DIR"`
	Shared  string   `env:"ALOFT_SHARED" hidden:""`
	Workers int      `help:"Runs that go on at once; 0 = one for each CPU. A day of 64 GPUs needs some 500 MB for each." default:"0"`
}

// simulateOutputs are where the results go besides the table.
type simulateOutputs struct {
	JSON string `help:"Write the result here; - is standard output." placeholder:"FILE"`
	CSV  string `name:"csv" help:"Write the tables figures, models, ledger, jobs, reclaims, slices and series into this folder." placeholder:"DIR"`
	HTML string `name:"html" help:"Write a page to look at and to print here, which needs no other file." placeholder:"FILE"`
}

// Run implements kong's command.
func (c *simulateRunCmd) Run(ctx context.Context, k *kong.Context) error {
	if c.Compare {
		return c.compare(k)
	}
	if len(c.Files) != 1 {
		return fmt.Errorf("simulate: %d scenarios are given, want one (two results with --compare)", len(c.Files))
	}
	text, err := c.scenario(k)
	if err != nil || text == nil {
		return err
	}
	o, err := c.options(c.Files[0], text)
	if err != nil {
		return err
	}
	if err := c.keepable(c.Files[0], c.Trace); err != nil {
		return err
	}
	view := newProgress(c.Live, os.Stderr, os.Getenv)
	o.OnProgress = studied(view)
	result, err := study.Grid(ctx, o)
	view.close()
	if err != nil {
		return err
	}
	if len(result.Runs) == 0 {
		return coded(exitNotHeld, errors.New("simulate: ended before a run was done"))
	}
	return c.write(k.Stdout, result)
}

// scenario is the text of what is to be simulated; nil = it was to be written only.
func (c *simulateRunCmd) scenario(k *kong.Context) ([]byte, error) {
	if c.Trace == "" {
		if c.Out != "" || c.Status != "" {
			return nil, errors.New("simulate: --status and --scenario-out are for a recording, with --trace")
		}
		return scenario.Text(c.Files[0])
	}
	text, missing, err := c.simulateRecording.text(c.Files[0])
	if err != nil {
		return nil, err
	}
	if c.Out != "" {
		if err := keepable([]string{c.Files[0], c.Trace}, c.Out); err != nil {
			return nil, err
		}
		err := into(c.Out, k.Stdout, func(w io.Writer) error { _, err := w.Write(text); return err })
		for _, m := range missing {
			fmt.Fprintln(os.Stderr, "to be filled in: "+m)
		}
		return nil, err
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("simulate: the recording and the configuration do not say\n  %s\nwrite the scenario with --scenario-out FILE, fill that in, and simulate the file", strings.Join(missing, "\n  "))
	}
	return text, nil
}

// options are those of the study, from the flags and a scenario's text.
func (c *simulateWhat) options(name string, text []byte) (o study.Options, err error) {
	base, err := parsedCase(study.AsIs, name, text)
	if err != nil {
		return o, err
	}
	o.Cases = []study.Case{base}
	for _, set := range c.Set {
		changed, err := scenario.Change(text, strings.Split(set, ";"))
		if err != nil {
			return o, fmt.Errorf("--set %s: %w", set, err)
		}
		next, err := parsedCase(set, "--set "+set, changed)
		if err != nil {
			return o, err
		}
		o.Cases = append(o.Cases, next)
	}
	if o.Policies, err = policiesOf(c.Policy); err != nil {
		return o, err
	}
	o.Seeds = base.Scenario.Seeds[:1]
	if c.Seed != "" {
		if o.Seeds, err = seedsOf(c.Seed); err != nil {
			return o, err
		}
	}
	if o.Draw.From, o.Draw.To, err = hoursOf(c.Hours, base.Scenario); err != nil {
		return o, err
	}
	o.Draw.Rows, o.Draw.Traces, o.Workers = c.Rows, c.Traces, c.Workers
	if o.Draw.Traces == "" && c.Shared != "" {
		o.Draw.Traces = filepath.Join(c.Shared, "traces")
	}
	o.Simulate = (&study.Simulator{Traces: o.Draw.Traces, Spans: spansKept}).Simulate
	return o, nil
}

// parsedCase is a variant that can be run; where says what the text is.
func parsedCase(name, where string, text []byte) (study.Case, error) {
	s, err := scenario.Parse(text)
	if err != nil {
		return study.Case{}, fmt.Errorf("%s: %w", where, err)
	}
	config, err := scenario.JSON(text)
	if err != nil {
		return study.Case{}, fmt.Errorf("%s: %w", where, err)
	}
	return study.Case{Variant: study.Variant{Name: name, Config: json.RawMessage(config)}, Scenario: s}, nil
}

// policiesOf reads a list of policies.
func policiesOf(list string) ([]string, error) {
	if list == "all" {
		return study.Policies(), nil
	}
	var out []string
	for name := range strings.SplitSeq(list, ",") {
		switch name = strings.TrimSpace(name); {
		case !slices.Contains(study.Policies(), name):
			return nil, fmt.Errorf("--policy: %q is no policy, want of %s, or all", name, strings.Join(study.Policies(), ", "))
		case !slices.Contains(out, name):
			out = append(out, name)
		}
	}
	return out, nil
}

// spansKept bounds what the chart of slices is drawn from; the page draws fewer.
const spansKept = 4000

// maxSeeds bounds a study; a page with more says no more.
const maxSeeds = 1000

// seedsOf reads seeds such as 1,2,5-8.
func seedsOf(list string) ([]uint64, error) {
	var out []uint64
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
		from, err := strconv.ParseUint(strings.TrimSpace(first), 10, 64)
		to := from
		if err == nil && isRange {
			to, err = strconv.ParseUint(strings.TrimSpace(last), 10, 64)
		}
		if err != nil || to < from || to-from >= maxSeeds {
			return nil, fmt.Errorf("--seed: %q is no seed and no range of at most %d, want such as 1,2,3 or 1-10", part, maxSeeds)
		}
		for s := from; ; s++ {
			if !slices.Contains(out, s) {
				out = append(out, s)
			}
			if s == to {
				break
			}
		}
	}
	if len(out) > maxSeeds {
		return nil, fmt.Errorf("--seed: %d seeds, want at most %d", len(out), maxSeeds)
	}
	return out, nil
}

// hoursOf reads a window such as 6-12.
func hoursOf(text string, s *scenario.Scenario) (from, to scenario.Hours, err error) {
	if text == "" {
		return 0, 0, nil
	}
	first, last, ok := strings.Cut(text, "-")
	a, errA := strconv.ParseFloat(strings.TrimSpace(first), 64)
	b, errB := strconv.ParseFloat(strings.TrimSpace(last), 64)
	if end := float64(s.HorizonH); !ok || errA != nil || errB != nil || !(a >= 0 && b > a && b <= end) {
		return 0, 0, fmt.Errorf("--hours: %q is no window, want FROM-TO with 0 <= FROM < TO <= %v, the horizon of %s", text, end, s.Name)
	}
	if judged := (b-a)*3600 - float64(s.Measure.WarmUpS+s.Measure.TailS); judged <= 0 {
		return 0, 0, fmt.Errorf("--hours: %q leaves nothing to judge: the first %v s and the last %v s are not", text, float64(s.Measure.WarmUpS), float64(s.Measure.TailS))
	}
	return scenario.Hours(a), scenario.Hours(b), nil
}

// keepable checks before the runs that their results can be kept.
func (c *simulateOutputs) keepable(read ...string) error {
	files := []string{c.JSON, c.HTML}
	if c.CSV != "" {
		if err := os.MkdirAll(c.CSV, 0o777); err != nil {
			return err
		}
		for _, f := range (&study.Study{}).CSVFiles() {
			files = append(files, filepath.Join(c.CSV, f.Name))
		}
	}
	return keepable(read, files...)
}

// write writes all that it can, the files first.
func (c *simulateOutputs) write(stdout io.Writer, s *study.Study) error {
	err := errors.Join(into(c.JSON, stdout, s.Write), into(c.HTML, stdout, func(w io.Writer) error { return page.Write(w, s) }))
	if c.CSV != "" {
		for _, f := range s.CSVFiles() {
			err = errors.Join(err, into(filepath.Join(c.CSV, f.Name), stdout, f.Write))
		}
	}
	if c.JSON != "-" && c.HTML != "-" {
		err = errors.Join(err, s.WriteTable(stdout))
	}
	return err
}

// compare says what changed between two results. That B is worse is no failure.
func (c *simulateRunCmd) compare(k *kong.Context) error {
	if len(c.Files) != 2 {
		return fmt.Errorf("simulate --compare: %d files are given, want two results of --json", len(c.Files))
	}
	if c.CSV != "" {
		return errors.New("simulate --compare: there is no --csv of a comparison; --json has all of it")
	}
	if err := c.keepable(c.Files...); err != nil {
		return err
	}
	a, err := readStudy(c.Files[0])
	if err != nil {
		return err
	}
	b, err := readStudy(c.Files[1])
	if err != nil {
		return err
	}
	found := study.Compare(a, b)
	err = errors.Join(into(c.HTML, k.Stdout, func(w io.Writer) error { return page.Compare(w, a, b) }), into(c.JSON, k.Stdout, indented(&found)))
	if c.JSON != "-" && c.HTML != "-" {
		err = errors.Join(err, found.WriteTable(k.Stdout))
	}
	if len(found.Figures) == 0 {
		err = errors.Join(err, coded(exitNotHeld, fmt.Errorf("NOTHING WAS COMPARED: %s and %s have no policy in common", c.Files[0], c.Files[1])))
	}
	return err
}

func readStudy(path string) (*study.Study, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s, err := study.Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", loadgen.OneLine(path), err)
	}
	return s, nil
}

// Help is what --help shows below the flags.
func (*simulateCmd) Help() string {
	return `Everything is modelled: no GPU is used, no request is sent, no job runs.

Built-in scenarios: ` + strings.Join(scenario.Names(), ", ") + `

Examples:
  aloft simulate small-8gpu-conv
  aloft simulate bursty-8gpu-code --policy all --seed 1-3 --hours 0-2 --html report.html
  aloft simulate --compare before.json after.json

Exit codes:
  0  done, also when it was ended early and some runs were done
  1  bad input, or something could not be done, such as to write a file
  3  it was ended before a run was done, or there was nothing to compare`
}

// Help shows examples.
func (*simulateRunCmd) Help() string {
	return `Built-in scenarios: ` + strings.Join(scenario.Names(), ", ") + `

Policies: ` + strings.Join(study.Policies(), ", ") + ` (docs/simulate.md says what each is)

Examples:
  aloft simulate small-8gpu-conv --seed 1-3 --html report.html
  aloft simulate bursty-8gpu-code --policy all --hours 0-2
  aloft simulate small-8gpu-conv --set jobs.offered_load=1.2 --set 'models.*.start.wake_median_s=10'
  aloft simulate aloft.yaml --trace recording.jsonl --status status.json
  aloft simulate --compare before.json after.json`
}
