// Command aloft is the whole product in one binary: server, engines, load
// generator, job client and demo.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	_ "time/tzdata" // windows have time zones, and a container may have none

	"github.com/alecthomas/kong"
)

type cli struct {
	Serve  serveCmd `cmd:"" help:"Serve models and lend what they leave."`
	Engine struct {
		Llama     llamaCmd     `cmd:"" help:"llama.cpp on one GGUF file."`
		Synthetic syntheticCmd `cmd:"" help:"The timed engine: no model, answers after alpha + beta x tokens."`
		Quantize  quantizeCmd  `cmd:"" help:"Make a smaller copy of a GGUF file, through llama.cpp's quantizer."`
	} `cmd:"" help:"Run one engine behind an OpenAI-compatible endpoint, or prepare a model for it."`
	Load  loadCmd  `cmd:"" help:"Put load on an OpenAI-compatible server and report what can be believed."`
	Batch batchCmd `cmd:"" help:"OpenAI batch files."`
	Jobs  jobsCmd  `cmd:"" help:"Jobs that borrow slices."`

	Session sessionCmd `cmd:"" help:"A shell or notebook on a slice."`

	Keys struct {
		Make   keysMakeCmd   `cmd:"" help:"Make a key and print its secret, this once."`
		List   keysListCmd   `cmd:"" help:"List keys with their limits and use."`
		Rotate keysRotateCmd `cmd:"" help:"Give a key a new secret and print it, this once."`
		Revoke keysRevokeCmd `cmd:"" help:"Delete a key."`
	} `cmd:"" help:"API keys, in a data folder or of a running server."`
	Variant  variantCmd  `cmd:"" help:"Try a variant of a served model beside it, compare, promote or drop it."`
	Evaluate evaluateCmd `cmd:"" help:"Measure a model on a set of rows, and compare it with another; by hand or as a job."`
	Simulate simulateCmd `cmd:"" help:"Simulate lending on a scenario, or placement; everything is modelled."`
	Record   recordCmd   `cmd:"" help:"Record what requests come (sizes and times, never text), for replay by load and simulate."`
	Why      whyCmd      `cmd:"" help:"Say why slices moved: the decisions about a slice, job or model."`
	Report   reportCmd   `cmd:"" help:"Say where slice time went, what lending gained and what it cost."`
	Tune     tuneCmd     `cmd:"" help:"Replay a recording under other settings of the arbiter and propose some; changes nothing."`
	Top      topCmd      `cmd:"" help:"Show slices, models, jobs and the ledger, live."`
	Config   configCmd   `cmd:"" help:"Check or show a configuration."`
	Demo     demoCmd     `cmd:"" help:"Show the whole idea on this machine in under two minutes."`
	Train    trainCmd    `cmd:"" hidden:"" help:"The demonstration training program (run by jobs)."`

	Version kong.VersionFlag `help:"Print the version and exit."`
}

func main() {
	// The first signal asks for an orderly stop, a second one ends at once.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	go func() { <-ctx.Done(); stop() }()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	var code exitCode
	switch {
	case err == nil:
	case errors.As(err, &code):
		os.Exit(int(code))
	default:
		fmt.Fprintln(os.Stderr, "aloft: "+err.Error())
		os.Exit(int(codeOf(err)))
	}
}

// exitCode is an error that has been told already.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var c cli
	code := -1
	k, err := kong.New(&c, kong.Name("aloft"), kong.Writers(stdout, stderr), kong.Exit(func(n int) { code = n }),
		kong.Description("Aloft keeps GPUs in the air: it serves models from warm replicas and lends what they leave to jobs."),
		kong.ExplicitGroups([]kong.Group{{Key: "simple", Title: "Without a profile:"}}),
		kong.UsageOnError(), kong.Vars{"version": version()}, kong.BindTo(ctx, (*context.Context)(nil)))
	if err != nil {
		return err
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	parsed, err := k.Parse(args)
	if code >= 0 { // --help or --version has been printed
		if code == 0 {
			return nil
		}
		return exitCode(code)
	}
	if err != nil {
		return err
	}
	if strings.HasPrefix(parsed.Command(), "load ") {
		ctx, stop := untilHangUp(ctx)
		defer stop()
		parsed.BindTo(ctx, (*context.Context)(nil))
	}
	return parsed.Run()
}

func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	return versionOf(info)
}

// versionOf is the module's version; of a build that has none the revision that
// it was made from, and when that was committed.
func versionOf(info *debug.BuildInfo) string {
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	set := map[string]string{}
	for _, s := range info.Settings {
		set[s.Key] = s.Value
	}
	if set["vcs.revision"] == "" {
		return "devel"
	}
	v := strings.TrimSpace(fmt.Sprintf("devel %.12s %s", set["vcs.revision"], set["vcs.time"]))
	if set["vcs.modified"] == "true" {
		v += " (modified)"
	}
	return v
}

func defaultLogger() *slog.Logger { return slog.New(slog.NewTextHandler(os.Stderr, nil)) }
