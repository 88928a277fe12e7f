// Command bench holds the programs behind `make bench-NAME`. Each one starts the
// real binary, measures, and writes its section of BENCHMARKS.md and
// bench/out/NAME.json. It is not shipped. A missed mark is told loudly but is no
// error: the machine may be busy, and a figure is worth having all the same.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
)

// benchmark is one program, by its name.
type benchmark struct {
	name, about string
	run         func(context.Context, *lab) (*result, error)
}

var benchmarks = []benchmark{
	{"embeddings", "embeddings/s with the batcher on and off at 1, 8 and 32 clients", embeddings},
	{"chat", "chat tokens/s at 1, 4 and 16 streams", chat},
	{"overhead", "latency that the gateway adds to the engine's", overhead},
	{"gateway", "throughput, latency and memory of the gateway beside a bare proxy, nginx and Portkey", gateways},
	{"batcher", "goodput of the batcher beside other ways to batch, in virtual time, over HTTP and before the real engine", batchers},
	{"plan", "time and memory of one plan of the arbiter, from 100 to 10,000 GPUs", plans},
	{"loadgen", "what the load generator can send, and what others report of a stalled server", loadgens},
	{"arbiter", "what lending gains and what it costs, beside other policies, in virtual time (half an hour; FULL=1: hours)", arbiters},
	{"simulate", "processor time and memory of a simulated day of 64 GPUs", simulations},
	{"prediction", "the demo's scenario live on timed engines beside the simulator", predictions},
	{"jobs", "rows/s of a batch beside straight calls, the job store with 100,000 jobs, preemption of a trainer", jobsBench},
	{"starts", "cold start and wake of a replica, start-up of `aloft serve`", starts},
}

// limit is the most that one benchmark may take before it counts as stuck, for all
// but those in limits.
const limit = 8 * time.Minute

var limits = map[string]time.Duration{"arbiter": 12 * time.Hour} // with FULL=1; without it half an hour

type cli struct {
	Names   []string `arg:"" optional:"" name:"name" help:"Benchmarks to run, or all."`
	List    bool     `help:"List the benchmarks."`
	Quick   bool     `help:"Seconds instead of minutes, to try it out: the section is printed, nothing is written."`
	Rounds  int      `help:"So many rounds instead of 5." placeholder:"N"`
	Seconds float64  `help:"So many seconds for each cell of a round." placeholder:"S"`
	Bin     string   `help:"Measure this aloft binary instead of building one." type:"existingfile" placeholder:"FILE"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench: "+err.Error())
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) > 0 && args[0] == "as" {
		return playRole(ctx, args[1:])
	}
	var c cli
	k, err := kong.New(&c, kong.Name("bench"), kong.Writers(out, os.Stderr), kong.Description("Measures Aloft and writes BENCHMARKS.md."))
	if err != nil {
		return err
	}
	if _, err := k.Parse(doubleDashes(args)); err != nil {
		return err
	}
	if c.List {
		for _, b := range benchmarks {
			fmt.Fprintf(out, "%-12s %s\n", b.name, b.about)
		}
		return nil
	}
	chosen, err := choose(c.Names)
	if err != nil {
		return err
	}
	return c.measure(ctx, chosen, out)
}

// doubleDashes lets flags be written as Go's own tools write them: -list.
func doubleDashes(args []string) []string {
	out := slices.Clone(args)
	for i, a := range out {
		if len(a) > 2 && a[0] == '-' && a[1] != '-' {
			out[i] = "-" + a
		}
	}
	return out
}

func choose(names []string) ([]benchmark, error) {
	if slices.Contains(names, "all") {
		return benchmarks, nil
	}
	var chosen []benchmark
	for _, n := range names {
		i := slices.IndexFunc(benchmarks, func(b benchmark) bool { return b.name == n })
		if i < 0 {
			return nil, fmt.Errorf("there is no benchmark %q; --list shows all", n)
		}
		chosen = append(chosen, benchmarks[i])
	}
	if len(chosen) == 0 {
		return nil, errors.New("name a benchmark, or all; --list shows them")
	}
	return chosen, nil
}

// measure runs the benchmarks one after the other; one that fails does not keep
// the rest from running.
func (c *cli) measure(ctx context.Context, chosen []benchmark, out io.Writer) error {
	l, err := newLab(ctx, c.Bin, c.Quick)
	if err != nil {
		return err
	}
	defer l.close()
	l.setRounds, l.setSpan = c.Rounds, time.Duration(c.Seconds*float64(time.Second))
	var failed []error
	var missed []string
	for _, b := range chosen {
		where := surroundings(ctx)
		began := time.Now()
		all0, own0 := machineCPU()
		most := cmp.Or(limits[b.name], limit)
		limited, cancel := context.WithTimeoutCause(ctx, most, fmt.Errorf("not done in %v", most))
		r, err := b.run(limited, l)
		cancel()
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", b.name, err))
			continue
		}
		all1, own1 := machineCPU() // the benchmark's children have ended, so that they are counted
		r.name, r.where, r.took = b.name, where, time.Since(began)
		r.others = max(0, all1-all0-(own1-own0)) / r.took.Seconds()
		fmt.Fprintln(out, r.section())
		for _, m := range r.marks {
			if !m.OK {
				missed = append(missed, fmt.Sprintf("MISSED %s: %s is %.3g, want %s", b.name, m.Name, m.Value, m.Mark))
			}
		}
		if !c.Quick {
			failed = append(failed, r.write("."))
		}
	}
	if len(missed) > 0 {
		fmt.Fprintf(os.Stderr, "\n%s\n", strings.Join(missed, "\n"))
	}
	return errors.Join(failed...)
}
