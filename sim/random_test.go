package sim

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"aloft/arbiter"
	"aloft/sim/scenario"
)

var (
	seedFlag = flag.Uint64("seed", 0, "replay one random run")
	runsFlag = flag.Int("runs", 40, "random runs")
)

// chaos orders moves at random, legal ones and others, and keeps book of what was
// ordered: every order has one outcome.
type chaos struct {
	rnd    *rand.Rand
	gen    uint64
	open   map[uint64]arbiter.Action
	count  map[string]int
	failed error
}

func (p *chaos) Every() time.Duration { return 500 * time.Millisecond }

func (p *chaos) Look(o arbiter.Observation, v *View) (out []arbiter.Order) {
	for range p.rnd.IntN(4) {
		m := p.move(o, v)
		p.gen++
		p.open[p.gen] = m.Action
		out = append(out, arbiter.Order{Move: m, Gen: p.gen})
	}
	return out
}

func (p *chaos) move(o arbiter.Observation, v *View) arbiter.Move {
	any := func() arbiter.Slice { return v.Slices[p.rnd.IntN(len(v.Slices))] }
	s := any()
	m := arbiter.Move{Slice: s.ID, Model: v.Scenario.Models[p.rnd.IntN(len(v.Scenario.Models))].Name, Reason: "chaos"}
	if len(o.Jobs) > 0 {
		m.Job = o.Jobs[p.rnd.IntN(len(o.Jobs))].ID
	}
	switch p.rnd.IntN(9) {
	case 0:
		m.Action = arbiter.Start
	case 1:
		m.Action = arbiter.Wake
	case 2, 3:
		m.Action = arbiter.Lend
		for _, j := range o.Jobs {
			if j.ID == m.Job && j.MaxWidth < 50 {
				for range j.MaxWidth - 1 {
					m.Gang = append(m.Gang, any().ID)
				}
			}
		}
	case 4:
		m.Action, m.Job = arbiter.Reclaim, s.Job
	case 5:
		m.Action = arbiter.Vacate
	case 6, 7:
		m = arbiter.Move{Action: arbiter.Reshape, GPU: p.rnd.IntN(len(v.GPUs)), Layout: v.Layout(p.rnd.IntN(2) == 0), Reason: "chaos"}
	default:
		m.Slice, m.Action = fmt.Sprintf("g%d/s%d", p.rnd.IntN(20)-1, p.rnd.IntN(9)), arbiter.Action([]string{"start", "lend", "reclaim", "vacate", "hold", ""}[p.rnd.IntN(6)])
	}
	return m
}

func (p *chaos) Settle(_ time.Time, o arbiter.Outcome) {
	a, ok := p.open[o.Gen]
	if !ok || a != o.Move.Action {
		p.failed = fmt.Errorf("outcome %d of %q, ordered %q", o.Gen, o.Move.Action, a)
	}
	delete(p.open, o.Gen)
	how := "done"
	switch {
	case o.Fault && o.Err != nil:
		how = "failed"
	case o.Err != nil:
		how = "refused"
	}
	p.count[how+" "+string(a)]++
}

// TestChaos: whatever a policy orders, and whatever fails meanwhile, invariants
// hold, the ledger sums up, and no order is without its outcome for long.
func TestChaos(t *testing.T) {
	all := map[string]int{}
	for i := range *runsFlag {
		seed := uint64(i) + 1
		if *seedFlag != 0 {
			seed = *seedFlag
		}
		rnd := rand.New(rand.NewPCG(seed, 4))
		w := randomWorld(rnd, seed)
		p := &chaos{rnd: rnd, open: map[uint64]arbiter.Action{}, count: all}
		r, err := Run(w, p, Options{Name: "chaos", Spans: 100})
		if err == nil {
			err = p.failed
		}
		if err == nil && len(p.open) > 14*7 {
			err = fmt.Errorf("%d orders without an outcome", len(p.open))
		}
		if err != nil {
			t.Fatalf("%v; replay with -seed=%d", err, seed)
		}
		if r.Aloft < 0 || r.Aloft > 1 {
			t.Fatalf("aloft ratio %v; replay with -seed=%d", r.Aloft, seed)
		}
		if *seedFlag != 0 {
			break
		}
	}
	for _, how := range []string{"done start", "done wake", "done lend", "done reclaim", "done vacate", "done reshape", "refused lend",
		"refused reclaim", "refused reshape", "refused start", "failed start", "failed reclaim", "failed lend"} {
		if all[how] == 0 && *seedFlag == 0 {
			t.Errorf("nothing was %s in all runs: %v", how, all)
		}
	}
}

// randomWorld has one or two models on up to six GPUs, some jobs of every kind,
// and faults of every kind, within half an hour.
func randomWorld(rnd *rand.Rand, seed uint64) *scenario.World {
	w := tiny()
	w.Seed, w.Horizon = seed, time.Duration(10+rnd.IntN(20))*time.Minute
	c := &w.Scenario.Cluster
	c.GPUs, c.ServerGPUs = 2+rnd.IntN(5), 1+rnd.IntN(4)
	w.Scenario.Faults = scenario.Faults{Wake: rnd.Float64() / 2, Checkpoint: rnd.Float64() / 2, GPU: 100 * rnd.Float64(), RepairS: 30}
	m := w.Scenario.Models[0]
	m.Start.Sigma = 0.2
	second := m
	second.Name = "n"
	w.Scenario.Models = []scenario.Model{m, second}[:1+rnd.IntN(2)]
	w.Traffic = nil
	for i := range w.Scenario.Models {
		w.Scenario.Models[i].Static = rnd.IntN(7 * c.GPUs / 2)
		t := scenario.Traffic{Model: &w.Scenario.Models[i], Copies: 1, TimeScale: 1}
		rate := 1.0 // a second; it changes by the minute
		for at := time.Duration(0); at < w.Horizon; at += time.Duration(rnd.ExpFloat64() / rate * float64(time.Second)) {
			if rnd.Float64() < 1/(60*rate) {
				rate = 0.2 + 10*rnd.Float64()*float64(rnd.IntN(2))
			}
			t.Arrivals = append(t.Arrivals, scenario.Arrival{At: at, In: int32(1 + rnd.IntN(2000)), Out: int32(1 + rnd.IntN(500))})
		}
		w.Traffic = append(w.Traffic, t)
	}
	for i := range rnd.IntN(30) {
		at, run := time.Duration(rnd.Int64N(int64(w.Horizon))), time.Duration(rnd.Int64N(int64(10*time.Minute)))
		j := train(fmt.Sprint("t", i), at, run, time.Duration(10+rnd.IntN(30))*time.Second)
		j.Save.Sigma = 0.3
		switch rnd.IntN(5) {
		case 0:
			j = embed(fmt.Sprint("e", i), at, run)
		case 1:
			j = quantize(fmt.Sprint("q", i), at, run)
		case 2:
			j.Slices = 2
		case 3:
			j.Slices, j.GPUs = 0, 1+rnd.IntN(2)
		}
		w.Jobs = append(w.Jobs, j)
	}
	if rnd.IntN(3) > 0 {
		w.Backlog = backlog()
	}
	return w
}
