package sim

import (
	"time"

	"aloft/arbiter"
	"aloft/sim/scenario"
)

// LearnFrom finds each model's law from the traffic of one world, as the live
// arbiter does from what it has seen: what merged calls need is divided by rho, the
// part of a replica's time that they may take. Models of less than an hour, and those
// for which nothing can be lent, have none.
func LearnFrom(w *scenario.World, rho float64, strict bool) map[string]arbiter.Trial {
	fast, slow := horizons(w.Scenario)
	laws := map[string]arbiter.Trial{}
	for i := range w.Traffic {
		t := &w.Traffic[i]
		var past arbiter.Past
		remember(&past, t, w.Horizon, 0, rho)
		trial := arbiter.Learn(past, arbiter.LearnOptions{Share: t.Model.Static, Fast: fast, Slow: slow, Slack: t.Model.SLO.TTFTS.Duration(),
			OutBack: outBack(w.Scenario, t.Model), Budget: arbiter.LateBudget, Strict: strict})
		if trial.Learned() {
			laws[t.Model.Name] = trial
		}
	}
	return laws
}

// remember adds a world's traffic of one model to its past, without the first so many
// seconds: the level as the arbiter sees it, in which what merged calls need is
// divided by rho.
func remember(past *arbiter.Past, t *scenario.Traffic, horizon time.Duration, without int, rho float64) {
	need, work := scenario.Demand(t, horizon)
	for k := without; k < len(need); k++ {
		if t.Model.Service.Merged() {
			need[k] /= rho
		}
		past.Level, past.Work = append(past.Level, float32(need[k])), append(past.Work, float32(work[k]))
	}
}
