package main

import (
	"fmt"
	"math"
	"time"

	"aloft/sim/batching"
	"aloft/sim/scenario"
	"aloft/sim/serving"
	lending "aloft/sim/study"
)

// patience is the fifth scenario: eta steered by the arbiter beside eager batching.
func (b *bout) patience(r *result) {
	ps := beside(b.found, oursArm, b.found, eagerArm)
	at := "embed: eta steered, beside eager batching under the same arbiter: "
	model := ps[0].run.Models[0].Name
	ready := func(x *lending.Run) float64 { return x.Models[0].ReadyMean }
	saved := func(p duel) float64 { return ready(p.static) - ready(p.run) }
	gained := func(p duel) float64 { return p.run.Aloft - p.static.Aloft }
	r.above(at+"ready slices of "+model+" saved, mean", middle(over(ps, saved)), 0)
	r.above(at+"aloft ratio gained", middle(over(ps, gained)), 0)
	r.atMost(at+"attainment below, worst seed, points", behind(ps, ""), 0.1)
	busy := beside(b.found, oursArm, b.found, hpaArm)
	at = "embed: beside eager batching and an autoscaler that goes by busy replicas: "
	r.measuredIn(at+"ready slices of "+model+" saved, mean", middle(over(busy, saved)))
	r.measuredIn(at+"aloft ratio gained", middle(over(busy, gained)))
	r.note("What patience is worth (%s): %s keeps %s ready on average with eta steered, %s with eager batching under the same arbiter, %s where replicas in use decide; aloft ratio gained %s and %s.", b.title(), model,
		slicesOf(middle(over(ps, func(p duel) float64 { return ready(p.run) }))), slicesOf(middle(over(ps, func(p duel) float64 { return ready(p.static) }))),
		slicesOf(middle(over(busy, func(p duel) float64 { return ready(p.static) }))), signed(middle(over(ps, gained))), signed(middle(over(busy, gained))))
}

func slicesOf(v batching.Interval) string {
	return fmt.Sprintf("%.2f slices (%.2f to %.2f)", v.Value, v.Low, v.High)
}
func signed(v batching.Interval) string {
	return fmt.Sprintf("%+.4f (%+.4f to %+.4f)", v.Value, v.Low, v.High)
}

// above adds a figure that must be more than a bound.
func (r *result) above(name string, v batching.Interval, least float64) {
	r.measuredIn(name, v)
	m := &r.marks[len(r.marks)-1]
	m.Mark, m.OK = fmt.Sprintf("> %v", least), v.Value > least
}

// patienceFloor says how many ready replicas the fifth scenario's embedding model
// needs by itself, at its mean rate, by the batcher's patience.
func patienceFloor(r *result) error {
	s, err := scenario.Load(merged)
	if err != nil {
		return err
	}
	s.HorizonH, s.Diurnal.Amplitude, s.Jobs.OfferedLoad, s.Models = 0.1, 0, 0, s.Models[:1]
	w, err := s.Draw(1, scenario.DrawOptions{})
	if err != nil {
		return err
	}
	t := &w.Traffic[0]
	load := t.Work() / w.Horizon.Seconds()
	var need []string
	for _, eta := range []float64{0, 0.3, 0.8} {
		n := int(math.Ceil(load))
		for ; n < 4*int(load)+4; n++ {
			share, err := attainedBy(t, n, eta)
			if err != nil {
				return err
			}
			if share >= 0.999 {
				break
			}
		}
		need = append(need, fmt.Sprintf("%d with eta %v", n, eta))
	}
	mean := 0.0
	for _, a := range t.Arrivals {
		mean += (t.Model.Service.AlphaMs + t.Model.Service.BetaMsPerToken*float64(a.In)) / 1000
	}
	r.note("The same model alone at its mean rate, %.1f slices of knee work, %.0f s: 99.9 %% of its requests are good from so many ready replicas on: %s, %s and %s. Replicas pull, so that calls fill by themselves before the fleet is short: eager batching needs no more replicas than patient batching, "+
		"though it keeps them busier. Without merged calls it would take more than %.1f.", load, w.Horizon.Seconds(), need[0], need[1], need[2], mean/w.Horizon.Seconds())
	return nil
}

// attainedBy is the share of good requests with n replicas that are always ready.
func attainedBy(t *scenario.Traffic, n int, eta float64) (float64, error) {
	law, slo := t.Model.Service, t.Model.SLO
	good := 0
	s, err := serving.New(serving.Options{Model: t.Model.Name, Merge: true, Law: serving.Law{Alpha: law.AlphaMs / 1000, Beta: law.BetaMsPerToken / 1000, MaxTokens: law.MaxTokens},
		SLO: serving.SLO{TTFT: slo.TTFTS.Duration()}, Target: slo.TTFTS.Duration(), MaxQueue: 1 << 20, QueueTimeout: time.Hour, Done: func(o serving.Outcome) {
			if o.Good {
				good++
			}
		}})
	if err != nil {
		return 0, err
	}
	for i := range n {
		s.Add(0, i)
	}
	s.SetEta(0, eta)
	for i, a := range t.Arrivals {
		for s.Next() <= a.At {
			s.Step(s.Next())
		}
		s.Arrive(a.At, i, int(a.In), int(a.Out))
	}
	for s.Next() < math.MaxInt64 {
		s.Step(s.Next())
	}
	return float64(good) / float64(len(t.Arrivals)), nil
}
