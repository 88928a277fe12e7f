package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"aloft/sim/batching"
)

// run lets every cell run, as many at once as there are cores.
func (s *study) run(ctx context.Context, l *lab) error {
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // short-lived all of it, and little
	began := time.Now()
	next := make(chan *point)
	errs := make(chan error, len(s.cells))
	var workers sync.WaitGroup
	for range runtime.NumCPU() {
		workers.Go(func() {
			for c := range next {
				found, err := c.Do()
				if err != nil {
					errs <- err
				}
				c.found = found
			}
		})
	}
	requests := 0
	for i, c := range s.cells {
		select {
		case next <- c:
		case <-ctx.Done():
		}
		if (i+1)%20 == 0 {
			l.say("batcher, virtual time: %d of %d cells begun, %.0f s", i+1, len(s.cells), time.Since(began).Seconds())
		}
	}
	close(next)
	workers.Wait()
	select {
	case err := <-errs:
		return err
	default:
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for _, c := range s.cells {
		for _, runs := range c.found.Runs {
			for _, r := range runs {
				requests += r.Offered
			}
		}
	}
	l.say("batcher, virtual time: %d cells, %d counted requests, %.0f s", len(s.cells), requests, time.Since(began).Seconds())
	return nil
}

// config is what a cell was made of, for the hash and the report for machines.
type config struct {
	Name    string           `json:"name"`
	Load    float64          `json:"load"` // share of the knee
	World   batching.World   `json:"world"`
	Traffic batching.Traffic `json:"traffic"`
	Mean    float64          `json:"mean_tokens"`
	Lasts   time.Duration    `json:"lasts_ns"`
	AtLeast int              `json:"at_least"`
	Seeds   []uint64         `json:"seeds"`
	Search  []uint64         `json:"search_seeds"`
	Arms    []string         `json:"arms"`
	Plans   []string         `json:"plans"`
}

func (c *point) config() config {
	return config{Name: c.name, Load: c.Load, World: c.World, Traffic: c.Source.Traffic, Mean: c.Source.Mean, Lasts: c.Lasts, AtLeast: c.AtLeast,
		Seeds: c.Seeds, Search: c.Search, Arms: c.Arms, Plans: c.found.Plans}
}

// hash identifies all that was asked: worlds, plans, settings that were tried.
func (s *study) hash() (string, error) {
	h := sha256.New()
	e := json.NewEncoder(h)
	for _, c := range s.cells {
		if err := e.Encode(c.config()); err != nil {
			return "", err
		}
		if err := e.Encode(batching.Grid(c.World.Target)); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}

// armReport is one arm of a cell, over all seeds.
type armReport struct {
	Attainment batching.Interval  `json:"attainment"`
	Goodput    float64            `json:"good_per_s"`
	Tokens     float64            `json:"good_tokens_share"`
	P50        float64            `json:"p50_ms"`
	P99        float64            `json:"p99_ms"`
	PerGood    float64            `json:"replica_ms_per_good"`
	Rows       float64            `json:"rows_per_call"`
	Late       float64            `json:"late_share"`
	Shed       float64            `json:"shed_share"`
	Left       int                `json:"left"`
	Deciles    [10]float64        `json:"attainment_by_length"`
	Tenants    map[string]float64 `json:"attainment_by_tenant,omitempty"`
}

// report sums an arm up.
func (c *point) report(arm string) armReport {
	f := c.found
	sum := func(of func(batching.Run) float64) float64 { return f.Total(arm, of) }
	offered := sum(func(r batching.Run) float64 { return float64(r.Offered) })
	good := sum(func(r batching.Run) float64 { return float64(r.Good) })
	a := armReport{Attainment: f.Attainment(arm),
		Tokens:  sum(func(r batching.Run) float64 { return float64(r.GoodTokens) }) / sum(func(r batching.Run) float64 { return float64(r.OfferedTokens) }),
		PerGood: sum(func(r batching.Run) float64 { return ms(r.Busy) }) / max(1, good),
		Rows:    sum(func(r batching.Run) float64 { return float64(r.Rows) }) / max(1, sum(func(r batching.Run) float64 { return float64(r.Calls) })),
		Late:    sum(func(r batching.Run) float64 { return float64(r.Late) }) / offered,
		Shed:    sum(func(r batching.Run) float64 { return float64(r.Shed) }) / offered,
		Left:    int(sum(func(r batching.Run) float64 { return float64(r.Left) })),
		P50:     c.median(arm, func(r batching.Run) float64 { return ms(r.P50) }),
		P99:     c.median(arm, func(r batching.Run) float64 { return ms(r.P99) })}
	a.Goodput = f.Rate * a.Attainment.Value
	for i := range a.Deciles {
		a.Deciles[i] = sum(func(r batching.Run) float64 { return float64(r.Deciles[i].Good) }) / max(1, sum(func(r batching.Run) float64 { return float64(r.Deciles[i].Offered) }))
	}
	for _, s := range c.Source.Senders {
		if a.Tenants == nil {
			a.Tenants = map[string]float64{}
		}
		a.Tenants[s.Tenant] = c.tenant(arm, s.Tenant).Value
	}
	return a
}

func (c *point) median(arm string, of func(batching.Run) float64) float64 {
	var all []float64
	for _, r := range c.found.Runs[arm] {
		all = append(all, of(r))
	}
	return spreadOf(all).median
}

// tenant is what one tenant attains.
func (c *point) tenant(arm, name string) batching.Interval {
	share := func(w *batching.Window) batching.Share {
		if s := w.Tenants[name]; s != nil {
			return *s
		}
		return batching.Share{}
	}
	return batching.Ratio(c.found.Each(arm, func(w *batching.Window) float64 { return float64(share(w).Good) }),
		c.found.Each(arm, func(w *batching.Window) float64 { return float64(share(w).Offered) }))
}

// write keeps every figure of every arm for machines.
func (s *study) write(dir, hash string) error {
	type row struct {
		config
		Rate  float64              `json:"offered_per_s"`
		Tuned batching.Fixed       `json:"tuned"`
		Bound []float64            `json:"bound"`
		Found map[string]armReport `json:"found"`
	}
	var rows []row
	for _, c := range s.cells {
		found := map[string]armReport{}
		for _, arm := range c.Arms {
			found[arm] = c.report(arm)
		}
		rows = append(rows, row{c.config(), c.found.Rate, c.found.Tuned, c.found.Bounds, found})
	}
	b, err := json.MarshalIndent(struct {
		Config string `json:"config"`
		Cells  []row  `json:"cells"`
	}{hash, rows}, "", " ")
	if err != nil {
		return fmt.Errorf("batcher: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "batcher-arms.json"), append(b, '\n'), 0o644)
}

// table shows what share of all that was offered each arm answered in time.
func (s *study) table(r *result) {
	r.head = append([]string{"traffic", "x knee", "offered/s"}, batching.Arms...)
	for _, c := range s.cells {
		if c.name != poissonTail && !slices.Contains([]float64{0.5, 0.95, 1.12, 1.3, 1.8}, c.Load) && slices.Contains([]string{poissonEven, gammaTail, gammaEven, azureCode}, c.name) {
			continue
		}
		if strings.HasPrefix(c.name, wrongPriors) && c.Load != 0.1 && c.Load != 0.8 {
			continue
		}
		cells := []string{c.name, fmt.Sprintf("%.2f", c.Load), fmt.Sprintf("%.0f", c.found.Rate)}
		best := c.found.Best()
		for _, arm := range batching.Arms {
			text := fmt.Sprintf("%.1f", 100*c.found.Attainment(arm).Value)
			if arm == best {
				text = "**" + text + "**"
			}
			cells = append(cells, text)
		}
		r.row(cells...)
	}
}
