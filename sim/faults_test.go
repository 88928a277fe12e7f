package sim

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestFaults lets ours run random worlds in which engines crash, GPUs fail, jobs
// hang, reshapes are slow, the clock jumps and the store does not answer: no
// invariant of the engine or of the core breaks, and what ours orders is legal
// but for what changed within the instant.
func TestFaults(t *testing.T) {
	kinds := map[string]int{}
	for i := range *runsFlag {
		seed := uint64(i) + 1
		if *seedFlag != 0 {
			seed = *seedFlag
		}
		if err := faulty(seed, kinds); err != nil {
			t.Fatalf("%v; replay with -run TestFaults -seed=%d", err, seed)
		}
		if *seedFlag != 0 {
			t.Log(kinds)
			return
		}
	}
	for _, kind := range []string{"engine_crashed", "gpu_failed", "job_hung", "reshape_slow", "clock_jumped", "store_failed", "wake_failed", "checkpoint_failed"} {
		if kinds[kind] == 0 {
			t.Errorf("no run had a fault of kind %s: %v", kind, kinds)
		}
	}
	t.Log(kinds)
}

func faulty(seed uint64, kinds map[string]int) error {
	rnd := rand.New(rand.NewPCG(seed, 9))
	w := randomWorld(rnd, seed)
	s := w.Scenario
	s.Faults.GPU = 20 * rnd.Float64()
	s.Cluster.ServerGPUs = 8 // as the core takes it
	s.Jobs.Train.GraceS, s.Backlog.StartS, s.Backlog.StopS = 30, 10, 0.5
	for i := range s.Models {
		s.Models[i].Static = max(1, s.Models[i].Static)
	}
	p, err := NewOurs(OursOptions(s, nil))
	if err != nil {
		return err
	}
	chance := func(most float64) float64 { return most * float64(rnd.IntN(2)) * rnd.Float64() }
	r, err := Run(w, p, Options{Name: "ours", Injected: Injected{Crash: chance(10), Hang: chance(0.5), Slow: chance(0.5), Jump: chance(20), Store: chance(0.5)}})
	if err != nil {
		return err
	}
	for _, i := range r.Incidents {
		kinds[i.Kind]++
	}
	if v := p.Core().Stats().Violations; v > 0 {
		return fmt.Errorf("the core counts %d invariants broken", v)
	}
	if b := p.Core().Balance(); !b.Sums() {
		return fmt.Errorf("the core's ledger does not sum up: %+v", b)
	}
	orders, refused := 0, 0
	for _, m := range r.Moves {
		orders, refused = orders+m.Done+m.Failed+m.Refused, refused+m.Refused
		kinds[fmt.Sprint("refused ", m.Action)] += m.Refused
	}
	kinds["orders"] += orders
	if refused > 10+orders/10 {
		return fmt.Errorf("%d of %d orders were refused: %+v", refused, orders, r.Moves)
	}
	return nil
}
