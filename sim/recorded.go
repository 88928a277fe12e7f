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
		trial := arbiter.Learn(history(t, w.Horizon, rho), arbiter.LearnOptions{Share: t.Model.Static, Fast: fast, Slow: slow, Slack: t.Model.SLO.TTFTS.Duration(),
			OutBack: outBack(w.Scenario, t.Model), Budget: arbiter.LateBudget, Strict: strict})
		if trial.Learned() {
			laws[t.Model.Name] = trial
		}
	}
	return laws
}

// history is a model's traffic by the second as the arbiter sees it: the level, in
// which what merged calls need is divided by rho, and the work.
func history(t *scenario.Traffic, horizon time.Duration, rho float64) arbiter.Past {
	need, work := scenario.Demand(t, horizon)
	past := arbiter.Past{Level: make([]float32, len(need)), Work: make([]float32, len(work))}
	for k := range need {
		if t.Model.Service.Merged() {
			need[k] /= rho
		}
		past.Level[k], past.Work[k] = float32(need[k]), float32(work[k])
	}
	return past
}
