package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"aloft/sim/scenario"
	lending "aloft/sim/study"
)

// The scenarios.
const (
	small  = "small-8gpu-conv"
	bursty = "bursty-8gpu-code"
	day    = "day-64gpu-mixed"
	stress = "stress"
	merged = "embed-8gpu"
)

// entry is a policy that runs a scenario, in how many of its first seeds: 0 = all.
type entry struct {
	policy string
	seeds  int
}

// bout is a scenario with the policies that meet in it.
type bout struct {
	scenario string
	from, to scenario.Hours // 0, 0 = all of it
	seeds    []uint64
	entries  []entry
	rows     []entry // with batch rows in ready replicas

	load func() (*scenario.Scenario, error) // once: all its worlds share it

	mu           sync.Mutex
	found, rowed *lending.Study // rowed: with rows
}

// seedsTo are the seeds 1 to n.
func seedsTo(n int) []uint64 {
	out := make([]uint64, n)
	for i := range out {
		out[i] = uint64(i + 1)
	}
	return out
}

// bouts are what is run. A rival that is far from the marks says no more with ten
// seeds than with three; the figures in brackets in the tables are how many it had.
func bouts(full, quick bool) []*bout {
	const few = 3
	weak := few
	if full {
		weak = 0
	}
	standard := []entry{{staticArm, 0}, {oursArm, 0}, {pilotArm, 0}, {boundArm, 0}, {fifoArm, weak}, {hpaArm, weak}, {lyraArm, weak}, {kueueArm, weak}}
	inBursts := []entry{{staticArm, 0}, {oursArm, 0}, {strictArm, 0}, {pilotArm, 0}, {boundArm, 0}, {fifoArm, weak}, {hpaArm, weak}, {lyraArm, weak}, {kueueArm, 0}}
	onDay := []entry{{staticArm, 0}, {oursArm, 0}, {pilotArm, 0}, {boundArm, 0}, {lyraArm, 0}, {kueueArm, 1}}
	list := []*bout{
		{scenario: small, seeds: seedsTo(10), entries: standard},
		{scenario: bursty, seeds: seedsTo(10), entries: inBursts, rows: []entry{{staticArm, 0}, {oursArm, 0}}},
		{scenario: day, from: 6, to: 12, seeds: seedsTo(few), entries: onDay},
		{scenario: stress, seeds: seedsTo(10), entries: standard},
		{scenario: merged, seeds: seedsTo(few), entries: []entry{{staticArm, 0}, {oursArm, 0}, {eagerArm, 0}, {hpaArm, 0}}},
	}
	for _, b := range list {
		switch {
		case quick:
			b.from, b.to, b.seeds = 0, 1, seedsTo(1)
			if b.scenario == day {
				b.from, b.to = 6, 6.25
			}
		case full && b.scenario == day:
			b.from, b.to, b.seeds = 0, 0, seedsTo(10)
			b.entries = append(b.entries, entry{fifoArm, 1}, entry{hpaArm, 1}, entry{strictArm, few})
		}
	}
	return list
}

// arbiterHow is what stands above the tables.
const arbiterHow = "**Simulated: no GPU was used, no request was sent, no job ran.** The product's own decision core (`arbiter.Core`) and batcher (`batcher.Core`) in virtual time (`sim`), beside stylised rivals (`sim/rivals`) on the same worlds (`configs/scenarios`, " +
	"rules and definitions in its README). One rule for all scenarios; what ours keeps ready is learned per model from histories drawn with the seeds %v, which are not judged. " +
	"Every policy meets the same requests, jobs, start times and faults. %s Factors are medians over seeds of per-seed ratios, in brackets the bootstrapped 95 %% interval over seeds; attainment, misses caused, lost work and p95 are judged in the worst seed. " +
	"Factors of jobs belong to the job load beside them."

// arbiters measures what lending gains and costs.
func arbiters(ctx context.Context, l *lab) (*result, error) {
	full := os.Getenv("FULL") == "1"
	list := bouts(full, l.quick)
	for _, b := range list {
		if n := l.setRounds; n > 0 {
			b.seeds = b.seeds[:min(n, len(b.seeds))]
		}
	}
	if err := runBouts(ctx, l, list); err != nil {
		return nil, err
	}
	window := "The day scenario runs its hours 6 to 12 with 3 seeds (FULL=1: all of it, 10 seeds)."
	if full {
		window = "Every scenario runs whole, with all seeds."
	}
	r := &result{title: "Arbiter: what lending gains, and what it costs", how: fmt.Sprintf(arbiterHow, lending.HistorySeeds, window)}
	reportBouts(r, list)
	if err := errors.Join(patienceFloor(r), arbiterPacking(ctx, l, r)); err != nil {
		return nil, err
	}
	if l.quick {
		r.how += " **A quick try: windows of an hour and one seed; nothing here is judged.**"
	}
	return r, nil
}

// boutOf is the bout of a scenario.
func boutOf(list []*bout, name string) *bout {
	for _, b := range list {
		if b.scenario == name {
			return b
		}
	}
	panic("BUG: no scenario " + name)
}

// title of a bout in tables.
func (b *bout) title() string {
	if b.to == 0 {
		return b.scenario
	}
	return fmt.Sprintf("%s, hours %v to %v", b.scenario, b.from, b.to)
}

// short is the scenario's name as marks begin with it.
func (b *bout) short() string {
	name, _, _ := strings.Cut(b.scenario, "-")
	return name
}
