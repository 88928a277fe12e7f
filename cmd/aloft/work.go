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
	"aloft/gpu"
	"aloft/jobs"
	"aloft/pool"
)

// work fits jobs and the pool's offline replicas to arbiter.Work.
type work struct {
	jobs    *jobs.Manager
	serving *serving
	shape   func(profile string) (gpu.Shape, error)
	width   int // slices a batch may borrow

	last []arbiter.Job // the newest listing; belongs to Jobs

	mu    sync.Mutex
	began map[string]time.Time   // when a listed job was last given a slice
	stops map[string][]time.Time // when a listed job was stopped for others within the last hour
}

// Jobs implements arbiter.Work.
func (w *work) Jobs() ([]arbiter.Job, error) {
	list, err := w.jobs.List(context.Background(), jobs.Filter{States: []jobs.State{jobs.Queued, jobs.Starting, jobs.Running, jobs.Preempting}})
	if err != nil {
		return slices.Clone(w.last), err
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
		a := arbiter.Job{ID: j.ID, Kind: string(j.Kind), Needs: needs, Tenant: j.Tenant, Priority: j.Priority, Created: j.Created, Model: j.Model, Grace: j.Grace, Slices: j.Slices, Running: j.State == jobs.Running}
		if j.Kind == jobs.KindBatch {
			if !w.batch(&a, j, offline[j.ID]) {
				continue
			}
			delete(offline, j.ID)
		} else {
			a.MinWidth, a.MaxWidth, a.Whole = width(j)
			a.Restart = time.Second
			a.Unsaved = time.Since(w.saved(j))
			a.Deadline, a.Rest = j.Deadline, restOf(j, max(1, a.MinWidth))
			a.Preempted = w.stopped(j.ID)
		}
		if inUse(j) {
			a.Priority = aboveAll
		}
		out = append(out, a)
	}
	for _, left := range offline { // their batch has ended: the loan is over
		for _, r := range left {
			_ = w.serving.pool.Stop(r.ID) // it may be on its way out already
		}
	}
	w.last = slices.Clone(out)
	return out, nil
}

// aboveAll is a priority that no user can ask for.
const aboveAll = 1000

// inUse reports whether somebody works in the job: no other job takes its slice
// then. Serving does, from jobs of less priority first; the session is warned.
func inUse(j jobs.Job) bool {
	return j.Session != nil && j.State == jobs.Running && j.Session.Warned.IsZero() && !j.Session.Yields
}

// restOf is how long a job is thought to run yet on so many slices; 0 = nobody knows.
func restOf(j jobs.Job, width int) time.Duration {
	left := j.Expected
	if p := j.Progress; p.Total > 0 && p.Done > 0 {
		left = time.Duration(float64(left) * (1 - min(1, float64(p.Done)/float64(p.Total))))
	}
	if j.Expected > 0 {
		left = max(left, time.Minute) // it has not said that it is done
	}
	return left / time.Duration(width)
}

// stopped is when a job was stopped for others within the last hour.
func (w *work) stopped(id string) []time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.stops[id])
}

// stop notes that a job is stopped for others; what is older than an hour is
// forgotten.
func (w *work) stop(id string, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stops == nil {
		w.stops = map[string][]time.Time{}
	}
	w.stops[id] = append(slices.DeleteFunc(w.stops[id], func(t time.Time) bool { return now.Sub(t) >= time.Hour }), now)
}

// width is how many slices a program may be given. One that has its slices keeps
// that number until it is queued again: its processes cannot be told of another,
// and the loss of any of them ends all.
func width(j jobs.Job) (least, most int, whole bool) {
	least = max(1, j.MinWidth)
	if n := len(j.Slices); n > 0 {
		return n, n, true
	}
	return least, max(least, j.MaxWidth), true
}

// keep forgets when jobs began that are not listed any more.
func (w *work) keep(list []jobs.Job) {
	w.mu.Lock()
	defer w.mu.Unlock()
	listed := make(map[string]bool, len(list))
	for _, j := range list {
		listed[j.ID] = true
	}
	maps.DeleteFunc(w.began, func(id string, _ time.Time) bool { return !listed[id] })
	maps.DeleteFunc(w.stops, func(id string, _ []time.Time) bool { return !listed[id] })
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
	room  func(gpu.Shape) int // slices of this node that are as large
}

// Submit implements gateway.Jobs.
func (d jobDoor) Submit(ctx context.Context, j jobs.Job) (jobs.Job, error) {
	needs, err := d.shape(j.Shape)
	if err != nil {
		return jobs.Job{}, &jobs.InvalidError{Param: "shape", Reason: err.Error()}
	}
	if have := d.room(needs); j.MinWidth > have {
		return jobs.Job{}, &jobs.InvalidError{Param: "min_width", Reason: fmt.Sprintf("%d slices are wanted, this node has %d that are as large", j.MinWidth, have)}
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
func (w *work) Start(ctx context.Context, id string, on []gpu.Slice) error {
	j, err := w.jobs.Get(ctx, id)
	if err != nil {
		return err
	}
	if j.Kind != jobs.KindBatch {
		w.mu.Lock()
		w.began[id] = time.Now()
		w.mu.Unlock()
		return w.jobs.Start(ctx, id, on)
	}
	slice := on[0] // a batch is no gang
	m := w.serving.named(j.Model)
	if m == nil {
		return fmt.Errorf("start %s: %w", id, backends.ErrUnknownModel)
	}
	if len(j.Slices) == 0 {
		if err := w.jobs.Start(ctx, id, on); err != nil {
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
	if j.Kind == jobs.KindBatch || j.State != jobs.Running {
		return 0, nil // finished rows are kept, the rest is asked again; of a gang the first slice tells for all
	}
	w.stop(id, asked)
	after, err := w.jobs.Get(ctx, id)
	if err != nil || after.State.Terminal() || after.Progress.CheckpointAt.After(asked) {
		return 0, nil
	}
	return time.Duration(len(j.Slices)) * asked.Sub(w.saved(j)), nil
}
