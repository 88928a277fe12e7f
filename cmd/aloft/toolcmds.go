package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/alecthomas/kong"
	"github.com/goccy/go-yaml"
	"golang.org/x/term"

	"aloft/jobs"
	"aloft/jobs/trainer"
)

// indented writes v as JSON for into.
func indented(v any) func(io.Writer) error {
	return func(w io.Writer) error {
		out := json.NewEncoder(w)
		out.SetIndent("", "  ")
		out.SetEscapeHTML(false) // an SLO is full of <
		return out.Encode(v)
	}
}

type configCmd struct {
	Check configCheckCmd `cmd:"" help:"Check a configuration file; errors name the line."`
	Show  configShowCmd  `cmd:"" help:"Show the effective configuration, secrets hidden."`
}

type configCheckCmd struct {
	File string `arg:"" type:"existingfile" help:"Configuration file (YAML)."`
}

// Run implements kong's command.
func (c *configCheckCmd) Run(k *kong.Context) error {
	conf, err := common{Config: c.File}.load()
	if err != nil {
		return err
	}
	warnings, err := conf.check()
	for _, w := range warnings {
		fmt.Fprintln(k.Stderr, "warning:", w)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(k.Stdout, "%s: right; %d models\n", c.File, len(conf.Models))
	return nil
}

type configShowCmd struct{ common }

// Run implements kong's command.
func (c *configShowCmd) Run() error {
	conf, err := c.load()
	if err != nil {
		return err
	}
	conf.hideSecrets()
	b, err := yaml.Marshal(conf)
	if err != nil {
		return err
	}
	fmt.Printf("# %s, data folder %s\n%s", configName(conf.path), conf.data, b)
	return nil
}

// hideSecrets blanks what may be one: the environments of engines
// and jobs, a password in the bucket's URL.
func (c *Config) hideSecrets() {
	const hidden = "(hidden)"
	hide := func(env map[string]string) {
		for k := range env {
			env[k] = hidden
		}
	}
	for _, m := range c.Models {
		hide(m.Env)
	}
	for _, t := range c.Jobs.Templates {
		hide(t.Env)
	}
	if u, err := url.Parse(c.Jobs.Blobs); err != nil {
		c.Jobs.Blobs = hidden
	} else if u.User != nil {
		c.Jobs.Blobs = u.Redacted()
	}
}

type topCmd struct {
	remote
	Every time.Duration `help:"Refresh." default:"1s"`
	Once  bool          `help:"Print once and end."`
}

// Run implements kong's command.
func (c *topCmd) Run(ctx context.Context) error {
	api := c.client()
	if c.JSON {
		return c.show(ctx, http.MethodGet, "/aloft/v1/status", nil)
	}
	live := term.IsTerminal(int(os.Stdout.Fd())) && !c.Once
	for {
		var s Status
		if err := api.call(ctx, http.MethodGet, "/aloft/v1/status", nil, &s); err != nil {
			return err
		}
		if live {
			fmt.Print("\033[H\033[J")
		}
		fmt.Print(screen(s))
		if !live {
			return nil
		}
		select {
		case <-time.After(c.Every):
		case <-ctx.Done():
			return nil
		}
	}
}

type trainCmd struct {
	Steps int           `default:"400"`
	Seed  uint64        `default:"1"`
	Every int           `help:"Steps between checkpoints; default: as often as advised, or 50."`
	Pace  time.Duration `help:"Least time of a step."`
	Data  string        `help:"Text file; default: the examples of $ALOFT_TRAINING_FILE, or a chapter that is built in."`

	Epochs int     `help:"Passes over the text, instead of steps."`
	Rate   float64 `help:"Times the learning rate." default:"1"`
}

// Run implements kong's command: the job's side of the checkpoint protocol.
func (c *trainCmd) Run(ctx context.Context) error {
	progress, err := openProgress()
	if err != nil {
		return err
	}
	defer progress.Close()
	dir := os.Getenv("ALOFT_CHECKPOINT_DIR")
	every, err := c.every(dir)
	if err != nil {
		return err
	}
	gang, err := gangOf(os.Getenv)
	if err != nil {
		return err
	}
	resume := os.Getenv("ALOFT_RESUME_FROM")
	if resume != "" && !filepath.IsAbs(resume) {
		resume = filepath.Join(dir, resume)
	}
	examples := os.Getenv("ALOFT_TRAINING_FILE")
	if c.Data != "" {
		examples = ""
	}
	err = trainer.Run(ctx, trainer.Options{CheckpointDir: dir, Resume: resume, Steps: c.Steps, Seed: c.Seed, Data: c.Data,
		Examples: examples, Validation: os.Getenv("ALOFT_VALIDATION_FILE"), Epochs: c.Epochs, Rate: c.Rate, OutputDir: os.Getenv("ALOFT_OUTPUT_DIR"),
		Progress: progress, StepsPerCheckpoint: c.Every, CheckpointEvery: every, Pace: c.Pace, Gang: gang})
	if errors.Is(err, trainer.ErrPreempted) {
		return exitCode(jobs.ExitRequeue)
	}
	return err
}

// every settles how often to save: as the user says, else as advised, else as
// suits the demonstration.
func (c *trainCmd) every(dir string) (time.Duration, error) {
	advice := os.Getenv("ALOFT_CHECKPOINT_INTERVAL")
	switch {
	case dir == "":
		c.Every = 0
	case c.Every == 0 && advice != "":
		s, err := strconv.ParseFloat(advice, 64)
		if err != nil || !(s > 0 && s < 1e9) {
			return 0, fmt.Errorf("ALOFT_CHECKPOINT_INTERVAL is %q, want seconds", advice)
		}
		return time.Duration(s * float64(time.Second)), nil
	case c.Every == 0:
		c.Every = 50
	}
	return 0, nil
}

// gangOf reads which member of a gang this process is.
func gangOf(getenv func(string) string) (trainer.Gang, error) {
	g := trainer.Gang{Rendezvous: getenv("ALOFT_RENDEZVOUS"), Job: getenv("ALOFT_JOB_ID")}
	for name, v := range map[string]*int{"ALOFT_RANK": &g.Rank, "ALOFT_WORLD_SIZE": &g.World} {
		s := getenv(name)
		if s == "" {
			continue
		}
		var err error
		if *v, err = strconv.Atoi(s); err != nil {
			return g, fmt.Errorf("%s is %q, want a number", name, s)
		}
	}
	return g, nil
}
