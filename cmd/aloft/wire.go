package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"aloft/arbiter"
	"aloft/backends"
	"aloft/batcher"
	"aloft/gateway"
	"aloft/gateway/overflow"
	"aloft/gateway/variants"
	"aloft/gpu"
	"aloft/pool"
)

// served is one model with its batcher.
type served struct {
	ModelConfig
	batcher *batcher.Batcher
	options batcher.Options // of the batcher
	route   *overflow.Route // to an external provider; nil = none
	needs   gpu.Shape
	side    side
	counting
	created time.Time
	meter   *meter
}

// listing is a model, or one of its adapters, as the edge knows it.
type listing struct {
	served *served
	model  gateway.Model // without what changes while it is listed
}

// modelSet is all that is served. It is never changed: a reload replaces it.
type modelSet struct {
	models map[string]*served
	order  []string                   // as configured
	names  map[string]*listing        // by name, alias, MODEL@VARIANT, and each with :ADAPTER
	splits map[string]*variants.Split // of models that have variants
	listed []*listing                 // in order, each model before its adapters
}

// newModelSet lists models. A model that is called like an adapter of another
// comes before it.
func newModelSet(models ...*served) *modelSet {
	set := &modelSet{models: map[string]*served{}, names: map[string]*listing{}, splits: splitsOf(models)}
	for _, m := range models {
		set.order = append(set.order, m.Name)
		set.models[m.Name] = m
		l := &listing{m, m.listed()}
		if split := set.splits[l.model.Name]; split != nil {
			l.model.Split = len(split.Shares) > 0
		}
		for _, n := range m.called() {
			set.names[n] = l
		}
	}
	for _, m := range models {
		listed := m.side.of == "" && !m.side.idle || m.side.current
		if listed {
			set.listed = append(set.listed, set.names[m.called()[0]])
		}
		for _, a := range m.Adapters {
			l := &listing{m, m.listed()}
			l.model.Adapter, l.model.EngineModel = a, a
			for i, n := range m.called() {
				if set.names[n+":"+a] != nil {
					continue
				}
				set.names[n+":"+a] = l
				if i == 0 && listed {
					set.listed = append(set.listed, l)
				}
			}
		}
	}
	return set
}

// called are the names by which clients ask for what is served, the one that is
// listed first. A variant can be asked for as such whoever serves its model.
func (m *served) called() []string {
	switch {
	case m.side.idle:
		return nil
	case m.side.current:
		return slices.Concat([]string{m.side.of}, m.Aliases, []string{m.Name})
	case m.side.of != "":
		return []string{m.Name}
	}
	return append([]string{m.Name}, m.Aliases...)
}

// splitsOf says how the requests of models with variants are divided.
func splitsOf(models []*served) map[string]*variants.Split {
	out := map[string]*variants.Split{}
	for _, m := range models {
		of := m.side.of
		if of == "" {
			continue
		}
		if out[of] == nil {
			out[of] = &variants.Split{Model: of, By: variants.Base}
		}
		if m.side.current {
			out[of].Model, out[of].By = m.Name, m.side.variant
		} else {
			out[of].Shares = append(out[of].Shares, m.side.share)
		}
	}
	for _, s := range out {
		if s.By != variants.Base {
			s.Shares = nil // they are compared with the model, which does not serve now
		}
	}
	return out
}

// named is the model that a name in a request means; nil = there is none.
func (set *modelSet) named(name string) *served {
	if l := set.names[name]; l != nil {
		return l.served
	}
	return nil
}

// listed is the part of a model's listing that stays.
func (m *served) listed() gateway.Model {
	g := gateway.Model{Name: m.Name, EngineModel: m.side.of, Context: m.Context, Created: m.created, OwnedBy: "aloft", Shape: m.Shape, Counter: m.counter, Calibration: m.calibration,
		BySession: m.Affinity.Session, ByPrefix: m.Affinity.Prefix, Overflow: m.Overflow != nil}
	if m.side.current {
		g.Name = m.side.of
	}
	for _, e := range m.Endpoints {
		g.Endpoints = append(g.Endpoints, backends.Endpoint(e))
	}
	return g
}

// serving fits pool and batchers to arbiter.Serving.
type serving struct {
	pool *pool.Pool
	set  atomic.Pointer[modelSet]
	open atomic.Pointer[[]WindowConfig]         // the maintenance windows that are open; nil = none
	tell func(model string, work time.Duration) // the arbiter, of each arrival; nil = nobody listens

	mu       sync.Mutex
	changed  chan struct{}                 // closed and replaced whenever a replica changes
	rows     map[string]bool               // whether batch rows may ride in serving replicas, per model
	offline  map[string]int                // ready replicas lent to batches, per model
	shared   map[string]int                // ready replicas that are not, by model
	lent     map[string]bool               // ids of replicas lent to batches
	seen     map[string]pool.State         // the best of its replicas, per model
	back     map[string]time.Time          // when the first of its failed ones starts again, per model
	adapters map[string][]string           // what its ready replicas have, per model
	retired  map[string][]*batcher.Batcher // of before a reload, until they are empty
	old      map[string]bool               // models with replicas of before a reload
	renewed  func()                        // called when the last of a model's has gone; nil = nobody asks
}

// model finds a served model by its name; nil = there is none.
func (s *serving) model(name string) *served { return s.set.Load().models[name] }

// named finds the model that a name in a request means; nil = there is none.
func (s *serving) named(name string) *served { return s.set.Load().named(name) }

// served finds who served a request of a model, by what the answer says of that;
// nil = there is no such model.
func (s *serving) served(model, by string) *served {
	set := s.set.Load()
	if m := set.models[model+"@"+by]; m != nil && by != "" {
		return m
	}
	if m := set.models[model]; m != nil {
		return m
	}
	return set.named(model)
}

// publish is the pool's Publish: the batcher gets the ready replicas.
func (s *serving) publish(model string, ready []pool.ReadyReplica) {
	var out []batcher.Replica
	s.mu.Lock()
	s.offline[model], s.shared[model], s.adapters[model] = 0, 0, nil
	for _, r := range ready {
		out = append(out, batcher.Replica{ID: r.ID, Backend: r.Backend, Slots: r.Slots, Offline: r.Offline, Shape: r.Shape, Index: r.Index,
			Adapters: r.Adapters, Old: r.Old})
		s.adapters[model] = append(s.adapters[model], r.Adapters...)
		if r.Offline {
			s.offline[model]++
		} else {
			s.shared[model]++
		}
	}
	s.mu.Unlock()
	for _, b := range s.batchers(model) {
		b.SetReplicas(out)
	}
	s.limitRows(model)
}

// reading is the pool's OnReading: the batcher hears what a replica's engine says.
func (s *serving) reading(model, replica string, said backends.Reading) {
	for _, b := range s.batchers(model) {
		b.SetReading(replica, said)
	}
}

// batchers are a model's, and those of before a reload that are not empty yet.
func (s *serving) batchers(model string) []*batcher.Batcher {
	s.mu.Lock()
	all := slices.Clone(s.retired[model])
	s.mu.Unlock()
	if m := s.model(model); m != nil {
		all = append(all, m.batcher)
	}
	return all
}

// isLent reports whether a replica serves a batch on a borrowed slice.
func (s *serving) isLent(replica string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lent[replica]
}

// upToDate reports whether every replica of a model is of its present configuration.
func (s *serving) upToDate(model string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.old[model]
}

// markOld notes which models have replicas of before a reload.
func (s *serving) markOld(replicas []pool.Replica) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.old = map[string]bool{}
	for _, r := range replicas {
		if r.Old {
			s.old[r.Model] = true
		}
	}
}

// notify is called on every change of a replica: whoever waits looks again.
func (s *serving) notify(replicas []pool.Replica) {
	seen, lent, old, back := map[string]pool.State{}, map[string]bool{}, map[string]bool{}, map[string]time.Time{}
	for _, r := range replicas {
		if r.Old {
			old[r.Model] = true
		}
		if r.Job != "" {
			lent[r.ID] = true
			continue
		}
		if at, ok := back[r.Model]; !r.Retry.IsZero() && (!ok || r.Retry.Before(at)) {
			back[r.Model] = r.Retry
		}
		was, ok := seen[r.Model]
		if !ok || slices.Index(best, r.State) < slices.Index(best, was) {
			seen[r.Model] = r.State
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for model := range s.old {
		if !old[model] && s.renewed != nil {
			s.renewed()
		}
	}
	s.seen, s.lent, s.old, s.back = seen, lent, old, back
	close(s.changed)
	s.changed = make(chan struct{})
}

// Observe implements arbiter.Serving.
func (s *serving) Observe(now time.Time) ([]arbiter.Model, []arbiter.Placed) {
	return s.modelLoads(now), s.placed()
}

func (s *serving) modelLoads(now time.Time) []arbiter.Model {
	timings := s.pool.Timings()
	set := s.set.Load()
	out := make([]arbiter.Model, 0, len(set.order))
	var open []WindowConfig
	if p := s.open.Load(); p != nil {
		open = *p
	}
	for _, name := range set.order {
		m := set.models[name]
		sig := m.batcher.Signals(now)
		a := arbiter.Model{Name: name, Needs: m.needs, Min: m.Replicas.Min, Max: m.Replicas.Max, Limits: m.limits(open),
			Target: m.Target, P99: sig.First.P99, Samples: sig.First.Samples,
			Back: timings[pool.Step{Model: name, Name: "wake"}].P99,
			Cold: timings[pool.Step{Model: name, Name: "start"}].P99,
			Out:  timings[pool.Step{Model: name, Name: "sleep"}].P99}
		rate := m.unitTime(sig)
		m.meter.charge(rate)
		for _, b := range sig.Load.Buckets {
			a.Work = append(a.Work, float64(b.Tokens)*rate)
		}
		if !m.merges() {
			a.Slots = m.Slots
			for c := backends.Interactive; c <= backends.Standard; c++ {
				a.InFlight += float64(sig.Class[c].Queue + sig.Class[c].InFlight)
			}
		}
		a.Useful, a.Late, a.Rows = m.meter.totals()
		out = append(out, a)
	}
	return out
}

// unitTime is the replica time that one token of demand costs, in seconds, on the
// shape that most replicas have: in the largest useful call for merged ones
// (1/µ*), or in the largest that the settings allow; the slope of the prefill for
// generation.
func (m *served) unitTime(sig batcher.Signals) float64 {
	if len(sig.Fits) == 0 {
		return 0
	}
	f := slices.MaxFunc(sig.Fits, func(a, b batcher.ShapeFit) int { return cmp.Compare(a.Replicas, b.Replicas) })
	if !m.merges() {
		return f.Beta
	}
	tokens := float64(f.Largest)
	if rows := m.maxRows(); sig.Load.Requests > 0 {
		tokens = min(tokens, float64(rows)*sig.Load.Tokens/sig.Load.Requests)
	}
	if tokens <= 0 {
		return 0
	}
	return (f.Alpha + f.Beta*tokens) / tokens
}

// maxRows is how many rows a merged call may have.
func (m *served) maxRows() int {
	switch {
	case m.Batch.Off:
		return 1
	case m.Batch.MaxRows > 0:
		return m.Batch.MaxRows
	}
	return batcher.DefaultBatchRows
}

var phases = map[pool.State]arbiter.Phase{
	pool.Loading: arbiter.Loading, pool.Warming: arbiter.Loading, pool.Waking: arbiter.Loading, pool.Failed: arbiter.Loading,
	pool.Ready: arbiter.Ready, pool.Draining: arbiter.Draining, pool.Sleeping: arbiter.Asleep,
}

// placed lists the replicas. While one is replaced its slice has two: the ready
// one counts.
func (s *serving) placed() []arbiter.Placed {
	var out []arbiter.Placed
	all := s.pool.Replicas()
	slices.SortStableFunc(all, func(a, b pool.Replica) int { return cmp.Compare(serves(b), serves(a)) })
	for _, r := range all {
		out = append(out, arbiter.Placed{Slice: r.Slice.ID, Model: r.Model, Replica: r.ID, Phase: phases[r.State]})
	}
	return out
}

func serves(r pool.Replica) int {
	if r.State == pool.Ready {
		return 1
	}
	return 0
}

// Bring implements arbiter.Serving.
func (s *serving) Bring(ctx context.Context, model string, slice gpu.Slice) error {
	id := ""
	for _, r := range s.pool.Replicas() {
		if r.Slice.ID != slice.ID || r.Model != model || r.Job != "" {
			continue
		}
		id = r.ID
		if r.State == pool.Sleeping {
			if err := s.pool.Wake(id); err != nil {
				return err
			}
		}
	}
	if id == "" {
		var err error
		if id, err = s.pool.Start(model, slice, ""); err != nil {
			return err
		}
	}
	return s.await(ctx, id, pool.Ready)
}

// Rest implements arbiter.Serving.
func (s *serving) Rest(ctx context.Context, slice gpu.Slice) error {
	for _, r := range s.pool.Replicas() {
		if r.Slice.ID == slice.ID && r.State == pool.Ready {
			if err := s.pool.Sleep(r.ID); err != nil {
				return err
			}
			return s.await(ctx, r.ID, pool.Sleeping)
		}
	}
	return fmt.Errorf("no ready replica on %s", slice.ID)
}

// Empty implements arbiter.Serving.
func (s *serving) Empty(ctx context.Context, slice gpu.Slice) error {
	for _, r := range s.pool.Replicas() {
		if r.Slice.ID != slice.ID || r.Job != "" {
			continue
		}
		_ = s.pool.Stop(r.ID) // it may be on its way out already
		if err := s.await(ctx, r.ID, pool.Stopped); err != nil {
			return err
		}
	}
	return nil
}

// Tune implements arbiter.Serving.
func (s *serving) Tune(t arbiter.Setting) {
	m := s.model(t.Model)
	if m == nil {
		return // removed since the arbiter looked
	}
	m.batcher.SetEta(t.Eta)
	s.mu.Lock()
	s.rows[t.Model] = t.Rows
	s.mu.Unlock()
	s.limitRows(t.Model)
}

// await returns when the replica is in the state, or cannot come there.
func (s *serving) await(ctx context.Context, id string, want pool.State) error {
	for {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		state := pool.Stopped
		for _, r := range s.pool.Replicas() {
			if r.ID == id {
				state = r.State
				if state == pool.Failed {
					return fmt.Errorf("replica %s failed: %s", id, r.Error)
				}
			}
		}
		switch state {
		case want:
			return nil
		case pool.Stopped:
			return fmt.Errorf("replica %s was stopped", id)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("replica %s is %s, not %s: %w", id, state, want, context.Cause(ctx))
		}
	}
}
