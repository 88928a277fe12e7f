package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"aloft/loadgen"
	"aloft/loadgen/arrivals"
)

// loadCmd is `aloft load` with all that it can do; without a further word it runs.
type loadCmd struct {
	Run      loadRunCmd      `cmd:"" default:"withargs" help:"Run a profile, or a simple load by flags."`
	Search   loadSearchCmd   `cmd:"" help:"Find the highest rate that keeps an SLO."`
	Sweep    loadSweepCmd    `cmd:"" help:"Draw the curve over a grid of rates."`
	Plan     loadPlanCmd     `cmd:"" help:"Plan a run and keep the plan, without sending anything."`
	Compare  loadCompareCmd  `cmd:"" help:"Say what changed between two reports, where the intervals allow a verdict."`
	Selftest loadSelfTestCmd `cmd:"" help:"Measure servers whose every figure is known."`

	Calibrate  loadCalibrateCmd `cmd:"" help:"Say what this machine can do as a load generator."`
	NullServer loadNullCmd      `cmd:"" hidden:"" help:"The server that calibrate measures against."`
}

// loadProfile is what is sent: a profile, or a simple load by flags.
type loadProfile struct {
	Profile  string        `arg:"" optional:"" type:"existingfile" help:"Profile (YAML); the flags below make a simple one."`
	URL      string        `help:"Server." default:"http://127.0.0.1:8080" env:"ALOFT_URL"`
	Key      string        `help:"API key." env:"ALOFT_API_KEY"`
	Kind     string        `help:"embeddings, chat or completions." default:"embeddings" enum:"embeddings,chat,completions"`
	Model    string        `help:"Model." default:"aloft-encoder"`
	Rate     float64       `help:"Arrivals a second." default:"10"`
	Arrivals string        `help:"constant, poisson or burst." default:"poisson" enum:"constant,poisson,burst"`
	Base     float64       `help:"burst: rate between bursts." default:"0"`
	On       time.Duration `help:"burst: length of a burst." default:"2s"`
	Off      time.Duration `help:"burst: time between bursts." default:"8s"`
	For      time.Duration `help:"Duration." default:"20s"`
	Target   time.Duration `help:"What a good request may take, from its intended start." default:"1s"`
	Stream   bool          `help:"Stream the answers."`
	Tokens   int           `help:"Most generated tokens." default:"32"`
	Seed     uint64        `help:"Decides every arrival and text." default:"1"`
}

func (c *loadProfile) options() (loadgen.Options, error) {
	var opt loadgen.Options
	if c.Profile != "" {
		text, err := os.ReadFile(c.Profile)
		if err != nil {
			return opt, err
		}
		if opt, err = loadgen.ReadProfile(text); err != nil {
			return opt, fmt.Errorf("%s: %w", c.Profile, err)
		}
		opt.Open = func(name string) (io.ReadCloser, error) { // as seen from the profile
			if !filepath.IsAbs(name) {
				name = filepath.Join(filepath.Dir(c.Profile), name)
			}
			return os.Open(name)
		}
		return opt, nil
	}
	opt = loadgen.Options{Name: "aloft load", Seed: c.Seed, Workloads: []loadgen.Workload{{
		Name: c.Kind, Kind: loadgen.Kind(c.Kind), URL: c.URL, Key: c.Key, Model: c.Model, Stream: c.Stream, MaxTokens: c.Tokens, Goal: loadgen.Goal{Target: c.Target},
		Phases: []arrivals.Phase{{Name: "run", Duration: c.For, Process: arrivals.Process{
			Kind: arrivals.Kind(c.Arrivals), Rate: c.Rate, Base: c.Base, On: c.On, Off: c.Off}}},
	}}}
	if c.Arrivals != "burst" {
		p := &opt.Workloads[0].Phases[0].Process
		p.Base, p.On, p.Off = 0, 0, 0
	}
	if c.Kind == "embeddings" {
		opt.Workloads[0].Stream, opt.Workloads[0].MaxTokens = false, 0
	}
	return opt, opt.Validate()
}
