package sim

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"aloft/arbiter"
	"aloft/sim/scenario"
	"aloft/sim/serving"
)

// served is one model: its traffic, its queue and what came of its requests.
type served struct {
	traffic  *scenario.Traffic
	server   *serving.Server
	next     int // arrival
	ready    int // replicas
	draining []*slot
	starts   []uint64        // by unit: how often a replica was started there
	drains   []time.Duration // the newest, for the p99 that the arbiter is told
	needs    []float64       // by second, once somebody asked

	readyFrom time.Duration
	readyTime time.Duration // sum over replicas
	figures
}

// maxDrains bounds the history of drains.
const maxDrains = 64

// serve puts every model on its static share, ready at once.
func (r *engine) serve() error {
	r.serving = make([]served, len(r.world.Traffic))
	for i := range r.serving {
		m := &r.serving[i]
		t := &r.world.Traffic[i]
		m.traffic, m.starts = t, make([]uint64, len(r.share))
		m.figures = newFigures(t, r.world)
		law := t.Model.Service
		o := serving.Options{Model: t.Model.Name, Merge: law.Merged(),
			Law: serving.Law{Alpha: law.AlphaMs / 1000, Beta: law.BetaMsPerSeq / 1000, Slots: law.Slots, Prefill: law.PrefillPerS,
				DecodeSpeed: law.SpeedWhenPrefill, DecodeBound: t.DecodeBound},
			SLO: serving.SLO{TTFT: t.Model.SLO.TTFTS.Duration(), TPOT: t.Model.SLO.TPOT(),
				PerInput: time.Duration(t.Model.SLO.TTFTMsPerTok * float64(time.Millisecond))},
			// Requests wait as long as they must: one that is refused is not good
			// either, and to refuse early is the batcher's affair, not the arbiter's.
			MaxQueue: maxQueue, QueueTimeout: queueTimeout,
			Target: t.Model.SLO.TTFT(longest(t)), Window: r.opt.Window,
			Done: func(o serving.Outcome) { r.answered(m, o) }}
		if law.Merged() {
			o.Law.Beta, o.Law.MaxTokens = law.BetaMsPerToken/1000, law.MaxTokens
		}
		var err error
		if m.server, err = serving.New(o); err != nil {
			return fmt.Errorf("sim: model %s: %w", t.Model.Name, err)
		}
		if r.world.Rows { // under every policy that does not say otherwise: static with rows too
			m.server.SetRows(0, true)
		}
	}
	for _, s := range r.slots {
		if m := r.share[s.number()]; m >= 0 {
			s.model, s.phase = m, arbiter.Ready
			r.serving[m].add(r, s)
			r.refresh(s)
		}
	}
	return nil
}

const (
	maxQueue     = 1 << 20
	queueTimeout = 24 * time.Hour
)

// longest is the longest prompt of all.
func longest(t *scenario.Traffic) (in int32) {
	for _, a := range t.Arrivals {
		in = max(in, a.In)
	}
	return in
}

// arrive hands over the next request and says how much work of one replica it is,
// as the need counts it: its prompt, or its part of merged calls.
func (m *served) arrive(now time.Duration) (work float64) {
	a := &m.traffic.Arrivals[m.next]
	m.server.Arrive(now, m.next, int(a.In), int(a.Out))
	m.next++
	if m.traffic.Model.Service.Merged() {
		return m.traffic.Knee(a.In, a.Out)
	}
	return m.traffic.Model.Service.Prefill(float64(a.In))
}

// sum counts ready time up to now.
func (m *served) sum(now time.Duration) {
	m.readyTime += time.Duration(m.ready) * (now - m.readyFrom)
	m.readyFrom = now
}

func (m *served) add(r *engine, s *slot) {
	m.sum(r.now)
	m.ready++
	m.server.Add(r.now, s.number())
}

func (m *served) remove(r *engine, s *slot) {
	m.sum(r.now)
	m.ready--
	m.server.Remove(r.now, s.number())
	s.since = r.now
	m.draining = append(m.draining, s)
}

func (m *served) fail(r *engine, s *slot) {
	if s.phase == arbiter.Ready {
		m.sum(r.now)
		m.ready--
	}
	m.draining = slices.DeleteFunc(m.draining, func(d *slot) bool { return d == s })
	m.server.Fail(r.now, s.number())
}

// out remembers how long a drain took.
func (m *served) out(d time.Duration) {
	if m.drains = append(m.drains, d); len(m.drains) > maxDrains {
		m.drains = m.drains[1:]
	}
}

// outP99 is the 99th of a hundred drains.
func (m *served) outP99() time.Duration {
	if len(m.drains) == 0 {
		return 0
	}
	return slices.MaxFunc(m.drains, cmp.Compare[time.Duration])
}

// need is the model's requirement by second.
func (r *engine) need(model int) []float64 {
	m := &r.serving[model]
	if m.needs == nil {
		m.needs = scenario.Need(m.traffic, r.world.Horizon)
	}
	return m.needs
}
