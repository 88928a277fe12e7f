package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"aloft/arbiter"
	"aloft/backends"
	"aloft/batcher"
	"aloft/gpu"
	"aloft/jobs"
	"aloft/pool"
)

// served is one model with its batcher.
type served struct {
	ModelConfig
	batcher *batcher.Batcher
	needs   gpu.Shape
	counter *backends.Ratio
	created time.Time
	meter   meter
}

func (m *served) embeds() bool { return slices.Contains(m.Endpoints, "embeddings") }

// serving fits pool and batchers to arbiter.Serving.
type serving struct {
	pool   *pool.Pool
	models map[string]*served
	order  []string

	mu      sync.Mutex
	changed chan struct{}   // closed and replaced whenever a replica changes
	rows    map[string]bool // whether batch rows may ride in serving replicas, per model
	offline map[string]int  // ready replicas lent to batches, per model
	lent    map[string]bool // ids of replicas lent to batches
	seen    map[string][]pool.State
}

// named finds a model by its name or an alias; nil = there is none.
func (s *serving) named(name string) *served {
	if m := s.models[name]; m != nil {
		return m
	}
	for _, m := range s.models {
		if slices.Contains(m.Aliases, name) {
			return m
		}
	}
	return nil
}

// publish is the pool's Publish: the batcher gets the ready replicas.
func (s *serving) publish(model string, ready []pool.ReadyReplica) {
	var out []batcher.Replica
	s.mu.Lock()
	s.offline[model] = 0
	for _, r := range ready {
		out = append(out, batcher.Replica{ID: r.ID, Backend: r.Backend, Slots: r.Slots, Offline: r.Offline, Shape: r.Shape, Index: r.Index})
		if r.Offline {
			s.offline[model]++
		}
	}
	s.mu.Unlock()
	s.models[model].batcher.SetReplicas(out)
}

// concurrency is how many rows of batches may be under way for a model now,
// each per replica. A model that does not exist has no queue to spare: its rows
// are let through to their refusals.
func (s *serving) concurrency(model string, each int) int {
	m := s.named(model)
	if m == nil {
		return each
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.offline[m.Name]
	if s.rows[m.Name] {
		n++
	}
	return n * each
}

// isLent reports whether a replica serves a batch on a borrowed slice.
func (s *serving) isLent(replica string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lent[replica]
}

// notify is called on every change of a replica: whoever waits looks again.
func (s *serving) notify(replicas []pool.Replica) {
	seen, lent := map[string][]pool.State{}, map[string]bool{}
	for _, r := range replicas {
		if r.Job == "" {
			seen[r.Model] = append(seen[r.Model], r.State)
		} else {
			lent[r.ID] = true
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen, s.lent = seen, lent
	close(s.changed)
	s.changed = make(chan struct{})
}

// Models implements arbiter.Serving.
func (s *serving) Models(now time.Time) []arbiter.Model {
	timings := s.pool.Timings()
	out := make([]arbiter.Model, 0, len(s.order))
	for _, name := range s.order {
		m := s.models[name]
		sig := m.batcher.Signals(now)
		a := arbiter.Model{Name: name, Needs: m.needs, Min: m.Replicas.Min, Max: m.Replicas.Max,
			Target: m.Target, P99: sig.First.P99, Samples: sig.First.Samples,
			Back: timings[pool.Step{Model: name, Name: "wake"}].P99,
			Out:  timings[pool.Step{Model: name, Name: "sleep"}].P99}
		rate := m.unitTime(sig)
		m.meter.charge(rate)
		for _, b := range sig.Load.Buckets {
			a.Work = append(a.Work, float64(b.Tokens)*rate)
		}
		if !m.embeds() {
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

// unitTime is the replica time that one token of demand costs, in seconds: in
// the largest useful call for merged ones (1/µ*), or in the largest that the
// settings allow; the slope of the prefill for generation.
func (m *served) unitTime(sig batcher.Signals) float64 {
	if len(sig.Fits) == 0 {
		return 0
	}
	f := sig.Fits[0]
	if !m.embeds() {
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
	return 64 // the batcher's default
}

var phases = map[pool.State]arbiter.Phase{
	pool.Loading: arbiter.Loading, pool.Warming: arbiter.Loading, pool.Waking: arbiter.Loading, pool.Failed: arbiter.Loading,
	pool.Ready: arbiter.Ready, pool.Draining: arbiter.Draining, pool.Sleeping: arbiter.Asleep,
}

// Replicas implements arbiter.Serving.
func (s *serving) Replicas() []arbiter.Placed {
	var out []arbiter.Placed
	for _, r := range s.pool.Replicas() {
		out = append(out, arbiter.Placed{Slice: r.Slice.ID, Model: r.Model, Replica: r.ID, Phase: phases[r.State]})
	}
	return out
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

// Tune implements arbiter.Serving.
func (s *serving) Tune(t arbiter.Setting) {
	m := s.models[t.Model]
	m.batcher.SetEta(t.Eta)
	s.mu.Lock()
	s.rows[t.Model] = t.Rows
	s.mu.Unlock()
	limit := 0
	if t.Rows {
		limit = max(1, m.Slots/2)
		if m.embeds() {
			limit = m.maxRows()
		}
	}
	m.batcher.SetOfflineLimit(limit)
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

// work fits jobs and the pool's offline replicas to arbiter.Work.
type work struct {
	jobs    *jobs.Manager
	serving *serving
	shape   func(profile string) (gpu.Shape, error)
	width   int // slices a batch may borrow
	log     func(msg string, args ...any)

	last []arbiter.Job // the newest listing; belongs to Jobs

	mu    sync.Mutex
	began map[string]time.Time // when a listed job was last given a slice
}

// Jobs implements arbiter.Work. While the store does not answer the last listing
// stands: without its job a borrowed slice would count as free.
func (w *work) Jobs() []arbiter.Job {
	list, err := w.jobs.List(context.Background(), jobs.Filter{States: []jobs.State{jobs.Queued, jobs.Starting, jobs.Running, jobs.Preempting}})
	if err != nil {
		w.log("jobs not listed", "error", err)
		return slices.Clone(w.last)
	}
	offline := map[string][]pool.Replica{} // by job
	for _, r := range w.serving.pool.Replicas() {
		if r.Job != "" {
			offline[r.Job] = append(offline[r.Job], r)
		}
		if r.Job != "" && r.State == pool.Failed { // the pool does not restart it: the loan is over
			_ = w.serving.pool.Stop(r.ID)
		}
	}
	w.keep(list)
	var out []arbiter.Job
	for _, j := range list {
		needs, err := w.shape(j.Shape)
		if err != nil {
			continue // stored when the node was another: it waits for one on which it fits
		}
		a := arbiter.Job{ID: j.ID, Kind: string(j.Kind), Needs: needs, MaxWidth: 1, // Start gives a program one slice
			Priority: j.Priority, Created: j.Created, Model: j.Model, Grace: j.Grace, Slices: j.Slices, Running: j.State == jobs.Running}
		if j.Kind == jobs.KindBatch {
			if !w.batch(&a, j, offline[j.ID]) {
				continue
			}
			delete(offline, j.ID)
		} else {
			a.Restart = time.Second
			a.Unsaved = time.Since(w.saved(j))
		}
		out = append(out, a)
	}
	for _, left := range offline { // their batch has ended: the loan is over
		for _, r := range left {
			_ = w.serving.pool.Stop(r.ID) // it may be on its way out already
		}
	}
	w.last = slices.Clone(out)
	return out
}

// keep forgets when jobs began that are not listed any more.
func (w *work) keep(list []jobs.Job) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.began, func(id string, _ time.Time) bool {
		return !slices.ContainsFunc(list, func(j jobs.Job) bool { return j.ID == id })
	})
}

// saved is the moment up to which a job's work is safe: its last checkpoint, or
// the start of this run. The queue between two runs is no lost work.
func (w *work) saved(j jobs.Job) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return latest(j.Progress.CheckpointAt, latest(j.Started, w.began[j.ID]))
}

// batch fills in what is special about a batch job, and reports whether it has
// work that another slice could do.
func (w *work) batch(a *arbiter.Job, j jobs.Job, replicas []pool.Replica) bool {
	m := w.serving.named(j.Model)
	if j.Batch == nil || j.Batch.Status != jobs.InProgress || m == nil {
		return false
	}
	a.Model, a.Needs, a.MaxWidth, a.Running, a.Slices, a.Grace = m.Name, m.needs, w.width, false, nil, 0
	for _, r := range replicas {
		a.Running = a.Running || r.State == pool.Ready
		a.Slices = append(a.Slices, r.Slice.ID)
	}
	left := j.Batch.Counts.Total - j.Batch.Counts.Completed - j.Batch.Counts.Failed
	if left < 64 {
		a.MaxWidth = len(a.Slices) // not worth another slice
	}
	return true
}

// jobDoor is the jobs' manager as gateway.Jobs: what no slice of this node can
// ever run is refused at once.
type jobDoor struct {
	*jobs.Manager
	shape func(profile string) (gpu.Shape, error)
}

// Submit implements gateway.Jobs.
func (d jobDoor) Submit(ctx context.Context, j jobs.Job) (jobs.Job, error) {
	if _, err := d.shape(j.Shape); err != nil {
		return jobs.Job{}, &jobs.InvalidError{Param: "shape", Reason: err.Error()}
	}
	if j.MinWidth > 1 {
		return jobs.Job{}, &jobs.InvalidError{Param: "min_width", Reason: fmt.Sprintf("%d slices are wanted, a job gets one", j.MinWidth)}
	}
	return d.Manager.Submit(ctx, j)
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// undoTime bounds the way back from a start that failed.
const undoTime = 10 * time.Second

// Start implements arbiter.Work.
func (w *work) Start(ctx context.Context, id string, slice gpu.Slice) error {
	j, err := w.jobs.Get(ctx, id)
	if err != nil {
		return err
	}
	if j.Kind != jobs.KindBatch {
		w.mu.Lock()
		w.began[id] = time.Now()
		w.mu.Unlock()
		return w.jobs.Start(ctx, id, []gpu.Slice{slice})
	}
	m := w.serving.named(j.Model)
	if m == nil {
		return fmt.Errorf("start %s: %w", id, backends.ErrUnknownModel)
	}
	if len(j.Slices) == 0 {
		if err := w.jobs.Start(ctx, id, []gpu.Slice{slice}); err != nil {
			return err
		}
	}
	replica, err := w.serving.pool.Start(m.Name, slice, id)
	if err == nil {
		err = w.serving.await(ctx, replica, pool.Ready)
	}
	if err != nil { // most often ctx has ended; the slice must be cleared all the same
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
		defer cancel()
		_, _ = w.Preempt(ctx, id, slice)
	}
	return err
}

// Preempt implements arbiter.Work.
func (w *work) Preempt(ctx context.Context, id string, slice gpu.Slice) (lost time.Duration, err error) {
	others := 0
	for _, r := range w.serving.pool.Replicas() {
		if r.Job != id {
			continue
		}
		if r.Slice.ID != slice.ID {
			others++
			continue
		}
		_ = w.serving.pool.Stop(r.ID) // it may be on its way out already
		if err := w.serving.await(ctx, r.ID, pool.Stopped); err != nil {
			return 0, err
		}
	}
	j, err := w.jobs.Get(ctx, id)
	if errors.Is(err, jobs.ErrNotFound) || others > 0 {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	asked := time.Now()
	if err := w.jobs.Preempt(ctx, id, j.Grace); err != nil && !errors.Is(err, jobs.ErrFinished) {
		return 0, err
	}
	if j.Kind == jobs.KindBatch {
		return 0, nil // finished rows are kept, the rest is asked again
	}
	after, err := w.jobs.Get(ctx, id)
	if err != nil || after.State.Terminal() || after.Progress.CheckpointAt.After(asked) {
		return 0, nil
	}
	return asked.Sub(w.saved(j)), nil
}
