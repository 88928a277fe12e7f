package serving

import (
	"testing"
	"time"

	"aloft/sim/scenario"
)

// TestPremise: the scenarios want a static split to meet 99.5 % of the targets.
// Over the real core, which holds long prompts back and orders by due time, the
// bursty model does; the plain rule of one queue, first come, first served, comes
// out below the core.
func TestPremise(t *testing.T) {
	sc, err := scenario.Load("../../configs/scenarios/bursty-8gpu-code.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for seed := uint64(1); seed <= 3; seed++ {
		w, err := sc.Draw(seed, scenario.DrawOptions{To: 1.5})
		if err != nil {
			t.Fatal(err)
		}
		tr := &w.Traffic[1]
		m := tr.Model
		law := Law{Alpha: m.Service.AlphaMs / 1000, Beta: m.Service.BetaMsPerSeq / 1000, Slots: m.Service.Slots,
			Prefill: m.Service.PrefillPerS, DecodeSpeed: m.Service.SpeedWhenPrefill}
		slo := SLO{TTFT: m.SLO.TTFT(0), PerInput: m.SLO.TTFT(1) - m.SLO.TTFT(0), TPOT: m.SLO.TPOT()}
		var asks []ask
		longest := 0
		for _, a := range tr.Arrivals {
			asks = append(asks, ask{a.At, int(a.In), int(a.Out)})
			longest = max(longest, int(a.In))
		}
		share := func(good []bool) float64 {
			n := 0
			for _, g := range good {
				if g {
					n++
				}
			}
			return float64(n) / float64(len(good))
		}
		byCore := func(target time.Duration) float64 {
			out := map[int]Outcome{}
			play(server(t, Options{Law: law, SLO: slo, Target: target}, m.Static, out), asks)
			good := make([]bool, len(asks))
			for i, o := range out {
				good[i] = o.Good
			}
			return share(good)
		}
		fifo, eager, core := share(plain(law, slo, m.Static, asks)), byCore(0), byCore(slo.first(longest))
		t.Logf("seed %d: %d requests; good by the plain rule %.3f %%, by the core without a target %.3f %%, with one %.3f %%", seed, len(asks), 100*fifo, 100*eager, 100*core)
		if core < 0.995 || core < fifo {
			t.Errorf("seed %d: %.3f %% good by the core, want 99.5 and the plain rule's %.3f at least", seed, 100*core, 100*fifo)
		}
	}
}
