package main

import (
	"context"
	"fmt"
	"time"

	"aloft/gateway"
	"aloft/jobs/evaluation"
)

// sample is what a look saw of the node, for the gain of variants.
type sample struct {
	at     time.Time
	held   map[string]float64 // compute slices, by model
	rate   map[string]float64 // requests a second, by model
	booked map[string]float64 // slice-seconds since the start, by account
}

const (
	// sampleEvery is between looks; sampleKept of them are the ten minutes before a
	// variant is added that it is measured against.
	sampleEvery = 5 * time.Second
	sampleKept  = 120
	// gainSaved is how much of what is measured after a promotion a crash can cost.
	gainSaved = time.Minute
)

// sampleGain looks at who holds what. mu is held.
func (s *server) sampleGain(now time.Time) {
	vs := s.way.variants
	n := len(vs.samples)
	if n > 0 && now.Sub(vs.samples[n-1].at) < sampleEvery {
		return
	}
	view := s.arbiter.View()
	x := sample{at: now, held: map[string]float64{}, rate: map[string]float64{}, booked: map[string]float64{}}
	set := s.serving.set.Load()
	for _, sl := range view.Snapshot.Slices {
		if m := set.models[sl.Model]; sl.Job == "" && sl.Model != "" {
			x.held[m.family(sl.Model)] += float64(max(1, sl.Shape.ComputeSlices))
		}
	}
	for name, m := range set.models {
		x.rate[m.family(name)] += m.batcher.Signals(now).Load.Requests
	}
	for account, share := range view.Balance.Share {
		x.booked[string(account)] = share * view.Balance.Total
	}
	if n == sampleKept {
		vs.samples = append(vs.samples[:0], vs.samples[1:]...)
	}
	vs.samples = append(vs.samples, x)
	if n == 0 {
		return
	}
	grown := false
	for _, v := range vs.all {
		if v.State == gateway.VariantPromoted && v.After != nil {
			grow(v.After, v.Model, vs.samples[len(vs.samples)-2], x)
			grown = true
		}
	}
	if grown && now.Sub(vs.saved) > gainSaved {
		vs.saved = now
		if err := vs.save(); err != nil {
			s.log.Warn("what variants gain is not kept", "error", err)
		}
	}
}

// family is the model whose requests a served model answers; name where there is
// none of that name any more.
func (m *served) family(name string) string {
	if m != nil && m.side.of != "" {
		return m.side.of
	}
	return name
}

// holding is the mean of the samples that there are of a model; nil = too few.
func (vs *variantSet) holding(model string) *gateway.VariantHolding {
	if len(vs.samples) < 2 {
		return nil
	}
	h := &gateway.VariantHolding{Since: vs.samples[0].at}
	for i := range vs.samples[1:] {
		grow(h, model, vs.samples[i], vs.samples[i+1])
	}
	return h
}

// grow adds the time between two samples to a mean. What was booked in between
// may be less than before: work is taken back that was lost.
func grow(h *gateway.VariantHolding, model string, a, b sample) {
	dt := b.at.Sub(a.at).Seconds()
	if dt <= 0 {
		return
	}
	h.Seconds += dt
	part := dt / h.Seconds
	h.Held += part * (b.held[model] - h.Held)
	h.Rate += part * (b.rate[model] - h.Rate)
	if h.Ledger == nil {
		h.Ledger = map[string]float64{}
	}
	for account, booked := range b.booked {
		h.Ledger[account] += part * ((booked-a.booked[account])/dt - h.Ledger[account])
	}
}

// evaluationOf is what a job has found.
func (s *server) evaluationOf(job string) (evaluation.Result, error) {
	j, err := s.jobs.Get(context.Background(), job)
	if err != nil {
		return evaluation.Result{}, err
	}
	if len(j.Result) == 0 {
		return evaluation.Result{}, fmt.Errorf("job %s is %s and has no result", job, j.State)
	}
	return evaluation.Decode(j.Result)
}
