package main

import (
	"fmt"
	"math"
	"math/rand/v2"

	"aloft/sim"
	"aloft/sim/batching"
	lending "aloft/sim/study"
)

// wanted are the pass marks of one scenario; 0 or infinite = none.
type wanted struct {
	caused              float64 // per 100,000 requests, worst seed
	aloft, pilot, reach float64 // ours / static, ours / pilot, pilot / static
	gap                 float64 // of queueing and completion closed
	lost                float64 // share
	judged              bool    // attainment and p95 are held against static
}

var marksOf = map[string]wanted{
	small:  {caused: 2, aloft: 1.24, pilot: 0.97, reach: 1.24, gap: 0.9, lost: 0.01, judged: true},
	bursty: {caused: 20, aloft: 1.08, pilot: 0.78, reach: 1.35, gap: 0.9, lost: 0.015, judged: true},
	day:    {caused: 20, aloft: 1.28, pilot: 0.91, reach: 1.38, gap: 0.9, lost: 0.01, judged: true},
	stress: {caused: math.Inf(1), aloft: 1.02, pilot: 0.90, reach: 1.10, lost: 0.015, judged: true},
}

// duel is two runs of one world.
type duel struct{ run, static *lending.Run }

// duels are the runs of a policy beside static's, by seed.
func duels(s *lending.Study, policy string) []duel { return beside(s, policy, s, staticArm) }

// beside pairs the runs of two policies by seed, which may be of two studies.
func beside(s *lending.Study, policy string, t *lending.Study, other string) []duel {
	var out []duel
	for _, seed := range s.Seeds {
		a, b := s.Find(lending.AsIs, policy, seed), t.Find(lending.AsIs, other, seed)
		if a != nil && b != nil {
			out = append(out, duel{a, b})
		}
	}
	return out
}

// over are the values of a figure over pairs.
func over(ps []duel, of func(duel) float64) []float64 {
	var out []float64
	for _, p := range ps {
		out = append(out, of(p))
	}
	return out
}

func worstOf(values []float64, higher bool) float64 {
	s := spreadOf(values)
	if higher {
		return s.max
	}
	return s.min
}

// aloft is the factor of the aloft ratios.
func (p duel) aloft() float64 { return p.run.Aloft / p.static.Aloft }

// caused is per 100,000 requests, all models.
func caused(r *lending.Run) float64 {
	if len(r.Caused) == 0 {
		return 0
	}
	return r.Caused[len(r.Caused)-1].GrossPer
}

// attainment of a model, "" = in total.
func attainment(r *lending.Run, model string) float64 {
	for i := range r.Models {
		if r.Models[i].Name == model {
			return r.Models[i].Attainment
		}
	}
	return r.Total.Attainment
}

// behind is by how many points a model attains less than with static, in the worst
// seed.
func behind(ps []duel, model string) float64 {
	return worstOf(over(ps, func(p duel) float64 { return 100 * (attainment(p.static, model) - attainment(p.run, model)) }), true)
}

func queueing(r *lending.Run) float64   { return r.Jobs.Queueing.Mean }
func completion(r *lending.Run) float64 { return r.Jobs.Completion.Mean }

// resamplings of a bootstrap: the ends of the interval then move by a few
// hundredths of its length.
const resamplings = 2000

// middle is the median of values, one a seed, and where it lies with 95 %, were
// other seeds drawn: by the bootstrap.
func middle(values []float64) batching.Interval {
	out := batching.Interval{Value: spreadOf(values).median}
	r := rand.New(rand.NewPCG(1, 1))
	medians := make([]float64, resamplings)
	again := make([]float64, len(values))
	for i := range medians {
		for k := range again {
			again[k] = values[r.IntN(len(values))]
		}
		medians[i] = spreadOf(again).median
	}
	out.Low, out.High = quantile(medians, 0.025), quantile(medians, 0.975)
	return out
}

// arbiterMarks are the pass marks of all scenarios.
func arbiterMarks(r *result, list []*bout) {
	for _, b := range list {
		if w, ok := marksOf[b.scenario]; ok {
			b.serving(r, w)
			b.gains(r, w)
			b.jobs(r, w)
			b.reclaims(r)
		}
	}
	beside := boutOf(list, bursty)
	beside.strict(r)
	beside.withRows(r)
	ours, kueue := pooled(beside.found, oursArm), pooled(beside.found, kueueArm)
	r.atMost("bursty: misses caused, ours / Kueue-like with a tuned hold (all seeds)", divided(ours, kueue), 0.01)
	boutOf(list, day).lyra(r)
	boutOf(list, merged).patience(r)
}

func divided(a, b float64) float64 {
	if b == 0 {
		return math.Inf(1)
	}
	return a / b
}

// pooled are the misses caused per 100,000 requests over all seeds together.
func pooled(s *lending.Study, policy string) float64 {
	gross, requests := 0, 0
	for _, p := range duels(s, policy) {
		if n := len(p.run.Caused); n > 0 {
			gross, requests = gross+p.run.Caused[n-1].Gross, requests+p.run.Caused[n-1].Requests
		}
	}
	return 1e5 * float64(gross) / float64(max(1, requests))
}

func (b *bout) serving(r *result, w wanted) {
	ps, at := duels(b.found, oursArm), b.short()+": "
	low := worstOf(over(ps, func(p duel) float64 { return 100 * p.static.Total.Attainment }), false)
	if b.scenario == stress {
		r.measured(at+"attainment of static, worst seed, %", low)
	} else {
		r.atLeast(at+"attainment of static, worst seed, % (the scenario's own)", low, 99.5)
	}
	r.atMost(at+"attainment below static, worst seed, points", behind(ps, ""), 0.1)
	for _, m := range ps[0].run.Models {
		what := fmt.Sprintf("%sattainment of %s below static, worst seed, points", at, m.Name)
		if m.Name == "code" {
			r.atMost(what, behind(ps, m.Name), 0.2)
		} else {
			r.measured(what, behind(ps, m.Name))
		}
	}
	worst := worstOf(over(ps, func(p duel) float64 { return caused(p.run) }), true)
	if math.IsInf(w.caused, 1) {
		r.measured(at+"misses caused per 100,000 requests, worst seed", worst)
	} else {
		r.atMost(at+"misses caused per 100,000 requests, worst seed", worst, w.caused)
	}
	for i, m := range ps[0].run.Models {
		r.measured(fmt.Sprintf("%smisses caused per 100,000 requests of %s, worst seed", at, m.Name), worstOf(over(ps, func(p duel) float64 { return p.run.Caused[i].GrossPer }), true))
	}
}

func (b *bout) gains(r *result, w wanted) {
	at := b.short() + ": aloft ratio, "
	ps := duels(b.found, oursArm)
	r.atLeastIn(at+"ours / static", middle(over(ps, duel.aloft)), w.aloft)
	r.measured(at+"ours / static, worst seed", worstOf(over(ps, duel.aloft), false))
	r.atLeastIn(at+"ours / pilot", middle(over(beside(b.found, oursArm, b.found, pilotArm), duel.aloft)), w.pilot)
	r.atLeastIn(at+"pilot / static (the pilot is a good one)", middle(over(duels(b.found, pilotArm), duel.aloft)), w.reach)
}

func (b *bout) jobs(r *result, w wanted) {
	ps, at := duels(b.found, oursArm), b.short()+": "
	for _, f := range []struct {
		name string
		of   func(*lending.Run) float64
	}{{"queueing", queueing}, {"completion", completion}} {
		name, of := f.name, f.of
		closed := middle(over(ps, func(p duel) float64 {
			pilot := b.found.Find(lending.AsIs, pilotArm, p.run.Seed)
			return (of(p.static) - of(p.run)) / (of(p.static) - of(pilot))
		}))
		what := at + "gap between static and pilot closed, mean " + name
		if w.gap > 0 {
			r.atLeastIn(what, closed, w.gap)
		} else {
			r.measuredIn(what, closed)
		}
		r.measuredIn(fmt.Sprintf("%smean %s, static / ours", at, name), middle(over(ps, func(p duel) float64 { return of(p.static) / of(p.run) })))
	}
	r.measured(at+"job load, median", spreadOf(over(ps, func(p duel) float64 { return p.run.Jobs.OfferedLoad })).median)
	r.atMost(at+"p95 completion, ours / static, worst seed", worstOf(over(ps, func(p duel) float64 { return p.run.Jobs.Completion.P95 / p.static.Jobs.Completion.P95 }), true), 1)
	r.atMost(at+"lost work, worst seed, %", worstOf(over(ps, func(p duel) float64 { return 100 * p.run.Jobs.Lost }), true), 100*w.lost)
	r.atMost(at+"lost + overhead above static's, worst seed, points", worstOf(over(ps, func(p duel) float64 {
		return 100 * (p.run.Jobs.Lost + p.run.Jobs.Overhead - p.static.Jobs.Lost - p.static.Jobs.Overhead)
	}), true), 1.5)
}

// reclaims: every broken one must have an incident.
func (b *bout) reclaims(r *result) {
	kept, broken, faulted, told := 0, 0, 0, 0
	for _, p := range duels(b.found, oursArm) {
		k, b, f := p.run.Reclaimed()
		kept, broken, faulted = kept+k, broken+b, faulted+f
		told += incidents(&p.run.Result)
	}
	at := b.short() + ": reclaims "
	within := 100.0
	if kept+broken > 0 {
		within = 100 * float64(kept) / float64(kept+broken)
	}
	r.atLeast(at+fmt.Sprintf("within the bound, %% of %d not hit by a fault", kept+broken), within, 99.9)
	r.atLeast(at+fmt.Sprintf("broken that raised an incident, of %d (%d of them by a fault)", broken+faulted, faulted), float64(told), float64(broken+faulted))
}

// incidents of broken bounds; what was left out of the list is taken for such.
func incidents(r *sim.Result) int {
	n := r.IncidentsLeftOut
	for _, i := range r.Incidents {
		if i.Kind == "bound_broken" {
			n++
		}
	}
	return n
}

func (b *bout) strict(r *result) {
	ps := duels(b.found, strictArm)
	if len(ps) == 0 {
		return
	}
	at := b.short() + ", strict: "
	gross := 0
	for _, p := range ps {
		gross += p.run.Caused[len(p.run.Caused)-1].Gross
	}
	r.atMost(at+"misses caused, all seeds", float64(gross), 0)
	r.atLeastIn(at+"aloft ratio, ours / static", middle(over(ps, duel.aloft)), 1.02)
}

func (b *bout) withRows(r *result) {
	at := b.short() + ", rows in ready replicas: aloft ratio, "
	r.atLeastIn(at+"ours + rows / static", middle(over(beside(b.rowed, oursArm, b.found, staticArm), duel.aloft)), 1.45)
	ps := duels(b.rowed, oursArm)
	r.atLeast(at+"ours + rows / static + rows, worst seed", worstOf(over(ps, duel.aloft), false), 1)
	r.measuredIn(at+"static + rows / static", middle(over(beside(b.rowed, staticArm, b.found, staticArm), duel.aloft)))
	r.measured(b.short()+", rows in ready replicas: misses caused per 100,000 requests, ours + rows, worst seed", worstOf(over(ps, func(p duel) float64 { return caused(p.run) }), true))
}

func (b *bout) lyra(r *result) {
	ps := beside(b.found, oursArm, b.found, lyraArm)
	r.atLeastIn("day: aloft ratio, ours - Lyra-like", middle(over(ps, func(p duel) float64 { return p.run.Aloft - p.static.Aloft })), 0.05)
	r.atMost("day: misses caused, ours / Lyra-like (all seeds)", divided(pooled(b.found, oursArm), pooled(b.found, lyraArm)), 0.1)
}
