package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/alecthomas/kong"

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

// loadProfile is what is sent: a profile, perhaps to another server or model than
// it names, or a simple load by flags.
type loadProfile struct {
	Profile string `arg:"" optional:"" type:"existingfile" help:"Profile (YAML). Without one the flags make a simple load."`
	URL     string `help:"Server, in place of the profile's; of a simple load http://127.0.0.1:8080." env:"ALOFT_URL" placeholder:"URL"`
	Key     string `help:"API key, where the profile has none." env:"ALOFT_API_KEY" placeholder:"KEY"`
	Model   string `help:"Model, in place of the profile's; of a simple load aloft-encoder for embeddings, else aloft-lm."`

	CA       string `type:"existingfile" xor:"ca" help:"PEM file to check https servers against, in place of the profile's or the system's." placeholder:"FILE"`
	Insecure bool   `xor:"ca" help:"Check no https server's certificate; every report of the run warns of it."`

	Kind     string        `group:"simple" help:"embeddings, chat or completions." default:"embeddings" enum:"embeddings,chat,completions"`
	Rate     float64       `group:"simple" help:"Arrivals a second." default:"10"`
	Arrivals string        `group:"simple" help:"constant, poisson or burst." default:"poisson" enum:"constant,poisson,burst"`
	Base     float64       `group:"simple" help:"burst: rate between bursts." default:"0"`
	On       time.Duration `group:"simple" help:"burst: length of a burst." default:"2s"`
	Off      time.Duration `group:"simple" help:"burst: time between bursts." default:"8s"`
	For      time.Duration `group:"simple" help:"Duration." default:"20s"`
	Target   time.Duration `group:"simple" help:"What a good request may take, from its intended start to the end of the answer." default:"1s"`
	Stream   bool          `group:"simple" help:"Stream the answers."`
	Tokens   int           `group:"simple" help:"Most generated tokens." default:"32"`
	Seed     uint64        `group:"simple" help:"Decides every arrival and text." default:"1"`
}

func (c *loadProfile) options(k *kong.Context) (loadgen.Options, error) {
	if c.Profile == "" {
		opt := c.simple()
		return opt, opt.Validate()
	}
	for _, given := range k.Path {
		if f := given.Flag; f != nil && f.Group != nil && f.Group.Key == "simple" {
			return loadgen.Options{}, fmt.Errorf("--%s is for a load without a profile; %s says its own", f.Name, c.Profile)
		}
	}
	text, err := os.ReadFile(c.Profile)
	if err != nil {
		return loadgen.Options{}, err
	}
	opt, err := loadgen.ReadProfile(text)
	if err != nil {
		return opt, fmt.Errorf("%s: %w", c.Profile, err)
	}
	opt.Open = func(name string) (io.ReadCloser, error) { // as seen from the profile
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(c.Profile), name)
		}
		return os.Open(name)
	}
	return opt, c.redirect(&opt)
}

// redirect sends a profile to the server, with the model and the key, that the
// flags name.
func (c *loadProfile) redirect(opt *loadgen.Options) error {
	model := ""
	for i := range opt.Workloads {
		w := &opt.Workloads[i]
		w.URL, w.Key = cmp.Or(c.URL, w.URL), cmp.Or(w.Key, c.Key)
		if c.CA != "" || c.Insecure {
			w.CA, w.Insecure = c.CA, c.Insecure // kong made the path absolute
		}
		if c.Model == "" || w.Model == "" {
			continue
		}
		if model = cmp.Or(model, w.Model); w.Model != model {
			return fmt.Errorf("--model: %s has workloads of %s and of %s; name the models in it", c.Profile, model, w.Model)
		}
		w.Model = c.Model
	}
	return opt.Validate()
}

func (c *loadProfile) simple() loadgen.Options {
	w := loadgen.Workload{Name: c.Kind, Kind: loadgen.Kind(c.Kind), URL: cmp.Or(c.URL, "http://127.0.0.1:8080"), CA: c.CA, Insecure: c.Insecure, Key: c.Key, Model: cmp.Or(c.Model, "aloft-encoder"),
		Goal: loadgen.Goal{Target: c.Target}}
	if c.Kind != "embeddings" {
		w.Model, w.Stream, w.MaxTokens = cmp.Or(c.Model, "aloft-lm"), c.Stream, c.Tokens
	}
	p := arrivals.Process{Kind: arrivals.Kind(c.Arrivals), Rate: c.Rate}
	if c.Arrivals == "burst" {
		p.Base, p.On, p.Off = c.Base, c.On, c.Off
	}
	w.Phases = []arrivals.Phase{{Name: "run", Duration: c.For, Process: p}}
	open := func(name string) (io.ReadCloser, error) { return os.Open(name) }
	return loadgen.Options{Name: "aloft load", Seed: c.Seed, Open: open, Workloads: []loadgen.Workload{w}}
}
