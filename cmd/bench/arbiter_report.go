package main

import (
	"fmt"
	"strings"

	lending "aloft/sim/study"
)

// reportBouts writes tables and marks.
func reportBouts(r *result, list []*bout) {
	r.head = []string{"scenario", "policy (seeds)", "attained % (worst seed)", "caused / 100k (worst seed)", "aloft ratio", "x static", "x pilot",
		"queueing x less", "completion x less (p95)", "lost %", "overhead %", "reclaims / h", "kept in bound %"}
	for _, b := range list {
		for _, e := range b.entries {
			b.line(r, b.found, e.policy, "")
		}
		for _, e := range b.rows {
			b.line(r, b.rowed, e.policy, " + rows")
		}
	}
	for _, b := range list {
		b.models(r)
	}
	for _, b := range list {
		b.seedBySeed(r)
	}
	arbiterMarks(r, list)
}

// line is one policy in one scenario. Rows' runs are held against static without.
func (b *bout) line(r *result, s *lending.Study, policy, with string) {
	ps := beside(s, policy, b.found, staticArm)
	if len(ps) == 0 {
		return
	}
	median := func(of func(duel) float64) float64 { return spreadOf(over(ps, of)).median }
	served := ps[0].run.Total.Requests > 0
	cells := []string{b.title(), fmt.Sprintf("%s%s (%d)", policy, with, len(ps))}
	if served {
		cells = append(cells, fmt.Sprintf("%.3f (%.3f)", 100*median(func(p duel) float64 { return p.run.Total.Attainment }), worstOf(over(ps, func(p duel) float64 { return 100 * p.run.Total.Attainment }), false)),
			fmt.Sprintf("%.1f (%.1f)", pooled(s, policy), worstOf(over(ps, func(p duel) float64 { return caused(p.run) }), true)))
	} else {
		cells = append(cells, "–", "–")
	}
	x := middle(over(ps, duel.aloft))
	cells = append(cells, fmt.Sprintf("%.3f", median(func(p duel) float64 { return p.run.Aloft })), fmt.Sprintf("%.3f (%.3f to %.3f)", x.Value, x.Low, x.High))
	if of := beside(s, policy, b.found, pilotArm); len(of) > 0 {
		cells = append(cells, fmt.Sprintf("%.3f", middle(over(of, duel.aloft)).Value))
	} else {
		cells = append(cells, "–")
	}
	cells = append(cells, fmt.Sprintf("%.2f", median(func(p duel) float64 { return queueing(p.static) / queueing(p.run) })))
	cells = append(cells, fmt.Sprintf("%.2f (%.2f)", median(func(p duel) float64 { return completion(p.static) / completion(p.run) }),
		median(func(p duel) float64 { return p.static.Jobs.Completion.P95 / p.run.Jobs.Completion.P95 })))
	if !served {
		r.row(append(cells, "–", "–", "–", "–")...)
		return
	}
	kept, broken, faulted := 0, 0, 0
	hours := 0.0
	for _, p := range ps {
		hours += p.run.HorizonS / 3600
		k, b, f := p.run.Reclaimed()
		kept, broken, faulted = kept+k, broken+b, faulted+f
	}
	within := "–"
	if kept+broken > 0 {
		within = fmt.Sprintf("%.2f", 100*float64(kept)/float64(kept+broken))
	}
	r.row(append(cells, fmt.Sprintf("%.2f", 100*median(func(p duel) float64 { return p.run.Jobs.Lost })), fmt.Sprintf("%.2f", 100*median(func(p duel) float64 { return p.run.Jobs.Overhead })),
		fmt.Sprintf("%.0f", float64(kept+broken+faulted)/hours), within)...)
}

// models shows each model by itself: pooling hides a bad one behind a busy one.
func (b *bout) models(r *result) {
	var rows [][]string
	add := func(s *lending.Study, policy, with string) {
		ps := beside(s, policy, b.found, staticArm)
		if len(ps) == 0 || ps[0].run.Total.Requests == 0 {
			return
		}
		for i, m := range ps[0].run.Models {
			of := func(f func(duel) float64) spread { return spreadOf(over(ps, f)) }
			at := of(func(p duel) float64 { return 100 * p.run.Models[i].Attainment })
			gross := "–"
			if len(ps[0].run.Caused) > 0 {
				c := of(func(p duel) float64 { return p.run.Caused[i].GrossPer })
				n := of(func(p duel) float64 { return p.run.Caused[i].NetPer })
				gross = fmt.Sprintf("%.1f (%.1f), net %.1f", c.median, c.max, n.median)
			}
			rows = append(rows, []string{policy + with, m.Name, fmt.Sprintf("%.3f (%.3f)", at.median, at.min), gross,
				fmt.Sprintf("%.2f", of(func(p duel) float64 { return p.run.Models[i].TTFT.P99 }).median), fmt.Sprintf("%.0f", 1000*of(func(p duel) float64 { return p.run.Models[i].TPOT.P99 }).median),
				fmt.Sprintf("%.1f of %d", of(func(p duel) float64 { return p.run.Models[i].ReadyMean }).median, m.Static)})
		}
	}
	for _, e := range b.entries {
		add(b.found, e.policy, "")
	}
	for _, e := range b.rows {
		add(b.rowed, e.policy, " + rows")
	}
	var text strings.Builder
	writeTable(&text, []string{"policy", "model", "attained % (worst seed)", "caused / 100k (worst seed)", "TTFT p99 s", "TPOT p99 ms", "ready slices, mean"}, rows)
	r.note("%s, by model (medians over seeds).\n\n%s", b.title(), strings.TrimSuffix(text.String(), "\n"))
}

// seedBySeed shows ours in every seed: single giant jobs make seeds differ.
func (b *bout) seedBySeed(r *result) {
	var rows [][]string
	for _, p := range duels(b.found, oursArm) {
		j, s := p.run.Jobs, p.static.Jobs
		rows = append(rows, []string{fmt.Sprint(p.run.Seed), fmt.Sprintf("%.3f", 100*p.static.Total.Attainment), fmt.Sprintf("%.3f", 100*p.run.Total.Attainment), fmt.Sprintf("%.1f", caused(p.run)),
			fmt.Sprintf("%.3f", p.static.Aloft), fmt.Sprintf("%.3f", p.run.Aloft), fmt.Sprintf("%.2f", j.OfferedLoad), fmt.Sprintf("%d / %d / %d", j.Submitted, s.Finished, j.Finished),
			fmt.Sprintf("%.0f / %.0f", s.Queueing.Mean, j.Queueing.Mean), fmt.Sprintf("%.0f / %.0f", s.Completion.Mean, j.Completion.Mean), fmt.Sprintf("%.0f / %.0f", s.Completion.P95, j.Completion.P95),
			fmt.Sprintf("%.2f", 100*j.Lost)})
	}
	var text strings.Builder
	writeTable(&text, []string{"seed", "static attained %", "ours attained %", "caused / 100k", "static aloft", "ours aloft", "job load", "jobs / finished static / ours", "queueing s, static / ours",
		"completion s, static / ours", "p95 completion s, static / ours", "lost %"}, rows)
	r.note("%s, ours seed by seed.\n\n%s", b.title(), strings.TrimSuffix(text.String(), "\n"))
}
