package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"aloft/loadgen/arrivals"
	"aloft/sim/batching"
)

// The traffics that every load is tried with.
const (
	poissonTail = "Poisson, heavy tail"
	poissonEven = "Poisson, even"
	gammaTail   = "gamma CV 3, heavy tail"
	gammaEven   = "gamma CV 3, even"
	azureCode   = "Azure code trace"
	flooded     = "flood 15:1"
	slowing     = "1.6 x slower midway"
	leaving     = "1 in 10 leaves"
	padding     = "padded engine"
	bestAlone   = "engine where 1 is best"
	wrongPriors = "cold, prior wrong"
	quietTenant = "quiet"
	loudTenant  = "flood"
	traceCopies = 3 // 26,000 requests
)

// point is one point of the study, by its name.
type point struct {
	name string
	batching.Cell
	found *batching.Findings
}

// study is all that runs in virtual time.
type study struct {
	cells   []*point
	skipped string // why the trace is missing, "" if it is not
	seeds   []uint64
	search  []uint64
	quick   bool
}

// loads are shares of the knee.
var (
	loads      = []float64{0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 1.0, 1.12, 1.3, 1.5, 1.8}
	fewerLoads = []float64{0.1, 0.35, 0.5, 0.8, 0.95, 1.12, 1.3, 1.8}
	quickLoads = []float64{0.2, 0.5, 0.95, 1.12, 1.3}
)

// newStudy lists the cells. Plans for the search have other seeds than those that
// are judged.
func newStudy(quick bool) (*study, error) {
	s := &study{quick: quick, seeds: []uint64{1, 2, 3, 4, 5}, search: []uint64{101, 102, 103}}
	all, few := loads, fewerLoads
	if quick {
		s.seeds, s.search, all, few = s.seeds[:2], s.search[:1], quickLoads, quickLoads
	}
	traffics := []batching.Traffic{
		{Name: poissonTail, Kind: arrivals.Poisson, Lengths: batching.HeavyTail()},
		{Name: poissonEven, Kind: arrivals.Poisson, Lengths: batching.EvenLengths()},
		{Name: gammaTail, Kind: arrivals.Gamma, CV: 3, Lengths: batching.HeavyTail()},
		{Name: gammaEven, Kind: arrivals.Gamma, CV: 3, Lengths: batching.EvenLengths()},
	}
	for i, t := range traffics {
		if i > 0 {
			all = few
		}
		if err := s.add(batching.Paper(), t, all...); err != nil {
			return nil, err
		}
	}
	if err := s.addTrace(few); err != nil {
		return nil, err
	}
	return s, s.addSpecials(traffics[0])
}

// add adds a cell for each load.
func (s *study) add(w batching.World, t batching.Traffic, loads ...float64) error {
	source, err := batching.NewSource(t, openTrace)
	if err != nil {
		return err
	}
	for _, load := range loads {
		c := batching.Cell{World: w, Source: source, Load: load, Lasts: 12 * time.Second, AtLeast: 12_000, Seeds: s.seeds, Search: s.search, Arms: batching.Arms}
		if s.quick {
			c.Lasts, c.AtLeast = 6*time.Second, 0
		}
		s.cells = append(s.cells, &point{name: t.Name, Cell: c})
	}
	return nil
}

// traceFile is the trace below the folder that ALOFT_SHARED names.
const traceFile = "traces/azure-llm-2023/AzureLLMInferenceTrace_code.csv"

func openTrace(file string) (io.ReadCloser, error) {
	return os.Open(filepath.Join(os.Getenv("ALOFT_SHARED"), file))
}

// addTrace adds the Azure trace with its own lengths, which are ten times the
// others': the engine is as much faster a token.
func (s *study) addTrace(loads []float64) error {
	if os.Getenv("ALOFT_SHARED") == "" {
		s.skipped = "ALOFT_SHARED names no folder with " + traceFile
		return nil
	}
	w := batching.Paper()
	w.Law.BetaMsPerToken /= 10
	t := batching.Traffic{Name: azureCode, Kind: arrivals.Replay, Trace: traceFile, Copies: traceCopies}
	if s.quick {
		t.Copies = 1
	}
	return s.add(w, t, loads...)
}

// addSpecials adds what goes wrong in the field.
func (s *study) addSpecials(usual batching.Traffic) error {
	w := batching.Paper()
	flood := usual
	flood.Name, flood.Senders = flooded, []batching.Sender{{Tenant: quietTenant, Share: 1. / 16}, {Tenant: loudTenant, Share: 15. / 16}}
	from := len(s.cells)
	if err := s.add(w, flood, 1.85); err != nil { // 200/s beside 3,000/s
		return err
	}
	s.cells[from].Arms = append([]string{batching.OursBlind}, batching.Arms...)

	slow, usually := w, usual
	slow.SlowAt, slow.Slow, slow.Warm = 8*time.Second, 1.6, 8*time.Second
	usually.Name = slowing
	if err := s.add(slow, usually, 0.65); err != nil {
		return err
	}
	s.cells[len(s.cells)-1].Lasts = 24 * time.Second

	left := usual
	left.Name, left.Leaving, left.LeaveAfter = leaving, 0.1, 20*time.Millisecond
	if err := s.add(w, left, 0.5, 0.95, 1.3); err != nil {
		return err
	}
	padded, alone, pads, one := w, w, usual, usual
	padded.Law.Padded, pads.Name = true, padding
	if err := s.add(padded, pads, 0.2, 0.35, 0.5, 0.65, 0.8, 1.12); err != nil {
		return err
	}
	alone.Law.Padded, alone.Law.AlphaMs, alone.Law.BetaMsPerToken, one.Name = true, 0.2, 0.03, bestAlone
	if err := s.add(alone, one, 0.35, 0.8, 1.12, 1.5); err != nil {
		return err
	}
	return s.addWrongPriors(usual)
}

// The core's prior, milliseconds and milliseconds a token (docs/batching.md).
const priorAlpha, priorBeta = 5, 0.020

// addWrongPriors adds engines of which the core's prior is wrong by three times,
// either way in either part. Their target is four times what the longest request
// takes alone, as in the paper's world. Every request counts, from the first.
func (s *study) addWrongPriors(usual batching.Traffic) error {
	for _, by := range [][2]float64{{3, 3}, {3, 1. / 3}, {1. / 3, 3}, {1. / 3, 1. / 3}} {
		w, t := batching.Paper(), usual
		w.Warm = 0
		w.Law.AlphaMs, w.Law.BetaMsPerToken = priorAlpha*by[0], priorBeta*by[1]
		w.Target = 4 * w.Law.Batch(t.Lengths.Max)
		t.Name = fmt.Sprintf("%s: alpha x %.2g, beta x %.2g", wrongPriors, by[0], by[1])
		if err := s.add(w, t, 0.1, 0.2, 0.5, 0.8); err != nil {
			return err
		}
	}
	return nil
}

// at returns the cell of this name at this load, nil if it was not run.
func (s *study) at(name string, load float64) *point {
	for _, c := range s.cells {
		if c.name == name && c.Load == load {
			return c
		}
	}
	return nil
}

// how is what stands above the tables.
const how = "Share of *offered* requests that were answered within the target, in %% (what was refused or late counts as missed); the best arm of a row in bold. " +
	"Virtual time: the product's own `batcher.Core` and its rivals (`sim/batching`) before four simulated replicas of 6 ms + 10 µs a token, 5 %% noise, target 100 ms; lengths of median 120 and mean 190 tokens (heavy tail) or 100 to 300 (even). " +
	"*x knee*: the rate at which calls of which 15 %% is fixed cost keep all replicas busy, for these lengths. Every arm meets the same plans of `loadgen/arrivals`, %d seeds, at least 12 s each; intervals are bootstrapped over seeds and tenths of a run. " +
	"*Fixed*: Triton's rule with 32 rows, 5 ms, 50 ms timeout; *tuned*: the best of 150 settings of it for each row, searched on other seeds. *AIMD*: Clipper's with the target, and with half of it, as objective; *token FIFO*: TEI's with calls of half the target; " +
	"*cork*: BentoML's, mended; *shed-late EDF* is told the law and two deviations of margin. Ours is told the target. No figure is of a GPU. Worlds, plans, settings: config %s; all figures: `bench/out/batcher-arms.json`."

// batchers compares ways to batch.
func batchers(ctx context.Context, l *lab) (*result, error) {
	s, err := newStudy(l.quick)
	if err != nil {
		return nil, err
	}
	if err := s.run(ctx, l); err != nil {
		return nil, err
	}
	hash, err := s.hash()
	if err != nil {
		return nil, err
	}
	r := &result{title: "Batcher: goodput beside other ways to batch", how: fmt.Sprintf(how, len(s.seeds), hash)}
	s.report(r)
	coreCost(l, r)
	if err := overHTTP(ctx, l, r); err != nil {
		return nil, err
	}
	if err := realEngine(ctx, l, r); err != nil {
		return nil, err
	}
	if !l.quick {
		return r, s.write(filepath.Join("bench", "out"), hash)
	}
	return r, nil
}
