package arbiter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"aloft/gpu"
)

// world is a node with its pool and its jobs, as far as the loop can tell: it
// takes its time, fails on cue, and notices when a slice is given to two.
type world struct {
	t      *testing.T
	replay string // how to run a failing case again

	mu       sync.Mutex
	slices   []gpu.Slice
	models   []Model // as Models reports them; tests change the load
	replicas []*Placed
	jobs     []*Job
	sick     map[string]bool          // slices
	took     map[string]time.Duration // by operation: wake, start, rest, "start job", "preempt" or "preempt ID"
	fail     map[string]int           // by operation: how many more times it fails
	blind    bool                     // the inventory cannot be read
	lost     time.Duration            // that each preempt reports
	seed     uint64                   // 0: what took says, exactly
	tuned    map[string]Setting
	arb      *Arbiter            // the loop that runs over it
	seen     int                 // looks
	gate     chan struct{}       // a look that reads the replicas hangs until it is closed
	family   string              // of every GPU; "" = no MIG
	script   func(Snapshot) Plan // decides instead of the policy; nil = the policy does
}

func newWorld(t *testing.T, n int, models ...Model) *world {
	w := &world{t: t, models: models, sick: map[string]bool{}, fail: map[string]int{}, tuned: map[string]Setting{},
		took: map[string]time.Duration{"wake": 2 * time.Second, "start": 10 * time.Second, "rest": time.Second, "start job": time.Second, "preempt": 2 * time.Second}}
	for i := range n {
		w.slices = append(w.slices, gpu.Slice{ID: fmt.Sprintf("s%d", i), GPU: i, Shape: g1})
	}
	return w
}

func (w *world) List(context.Context) ([]gpu.Device, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen++
	if w.blind {
		return nil, errors.New("driver gone")
	}
	var out []gpu.Device
	for _, s := range w.slices { // most often a device each, so that a test can spoil one
		i := slices.IndexFunc(out, func(d gpu.Device) bool { return d.Index == s.GPU })
		if i < 0 {
			i, out = len(out), append(out, gpu.Device{Index: s.GPU, Family: w.family, MIG: w.family != "", Health: gpu.Health{OK: true}})
		}
		out[i].Slices = append(out[i].Slices, s)
		if w.sick[s.ID] {
			out[i].Health.OK = false
		}
	}
	return out, nil
}

// Reshape implements gpu.Shaper: halfway through what goes has gone.
func (w *world) Reshape(ctx context.Context, index int, layout []gpu.Placement) ([]gpu.Slice, error) {
	stays := func(s gpu.Slice) bool {
		return slices.ContainsFunc(layout, func(p gpu.Placement) bool { return p.Start == s.Start && p.Profile == s.Shape.Profile })
	}
	w.set(func() {
		w.slices = slices.DeleteFunc(w.slices, func(s gpu.Slice) bool {
			gone := s.GPU == index && !stays(s)
			if gone {
				w.mustBeFree(s.ID, "a reshape")
				w.replicas = slices.DeleteFunc(w.replicas, func(r *Placed) bool { return r.Slice == s.ID })
			}
			return gone
		})
	})
	if err := w.wait(ctx, "reshape", "", fmt.Sprint(index)); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range layout {
		shape, err := gpu.ShapeOf(w.family, p.Profile)
		if err != nil {
			return nil, err
		}
		s := gpu.Slice{ID: fmt.Sprintf("g%d/%s@%d", index, p.Profile, p.Start), GPU: index, Start: p.Start, Shape: shape}
		if !slices.ContainsFunc(w.slices, func(o gpu.Slice) bool { return o.GPU == index && stays(o) && o.Start == p.Start }) {
			w.slices = append(w.slices, s)
		}
	}
	return nil, nil
}

func (w *world) Usage(context.Context, string) (gpu.Usage, error) { return gpu.Usage{}, nil }
func (w *world) Close() error                                     { return nil }

func (w *world) Observe(time.Time) ([]Model, []Placed) {
	w.mu.Lock()
	if gate := w.gate; gate != nil {
		w.mu.Unlock()
		<-gate
		w.mu.Lock()
	}
	defer w.mu.Unlock()
	var out []Placed
	for _, r := range w.replicas {
		out = append(out, *r)
	}
	return slices.Clone(w.models), out
}

func (w *world) Jobs() ([]Job, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []Job
	for _, j := range w.jobs {
		c := *j
		c.Slices = slices.Clone(j.Slices)
		out = append(out, c)
	}
	return out, nil
}

func (w *world) Tune(s Setting) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tuned[s.Model] = s
}

// wait lets an operation take its time and says whether it fails.
func (w *world) wait(ctx context.Context, op, which, slice string) error {
	w.mu.Lock()
	d, ok := w.took[op+" "+which]
	if !ok {
		d = w.took[op]
	}
	if w.seed > 0 { // of what happens and when, so that it does not matter who comes first
		h := fnv.New64a()
		fmt.Fprint(h, op, which, slice, time.Now().UnixNano())
		d = time.Duration(float64(d) * (0.2 + 2*rand.New(rand.NewPCG(w.seed, h.Sum64())).Float64()))
	}
	w.mu.Unlock()
	select {
	case <-time.After(d):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fail[op] > 0 {
		w.fail[op]--
		return fmt.Errorf("%s: scripted fault", op)
	}
	return nil
}

// holders are all that use the slice now; a sleeper uses nothing. The caller
// holds the lock.
func (w *world) holders(slice string) (out []string) {
	for _, r := range w.replicas {
		if r.Slice == slice && r.Phase != Asleep {
			out = append(out, r.Model)
		}
	}
	for _, j := range w.jobs {
		if slices.Contains(j.Slices, slice) {
			out = append(out, j.ID)
		}
	}
	return out
}

func (w *world) mustBeFree(slice, who string) {
	if h := w.holders(slice); len(h) > 0 {
		w.t.Errorf("%s was given to %s while %v held it%s", slice, who, h, w.replay)
	}
}

func (w *world) Bring(ctx context.Context, model string, s gpu.Slice) error {
	w.mu.Lock()
	w.mustBeFree(s.ID, model)
	op := "wake"
	i := slices.IndexFunc(w.replicas, func(r *Placed) bool { return r.Slice == s.ID && r.Model == model })
	if i < 0 {
		op = "start"
		w.replicas, i = append(w.replicas, &Placed{Slice: s.ID, Model: model}), len(w.replicas)
	}
	r := w.replicas[i]
	r.Phase = Loading
	w.mu.Unlock()
	err := w.wait(ctx, op, model, s.ID)
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Contains(w.replicas, r) {
		return errors.New("replica crashed")
	}
	if err != nil {
		w.remove(r)
		return err
	}
	r.Phase = Ready
	return nil
}

func (w *world) remove(r *Placed) {
	w.replicas = slices.DeleteFunc(w.replicas, func(o *Placed) bool { return o == r })
}

func (w *world) Rest(ctx context.Context, s gpu.Slice) error {
	w.mu.Lock()
	i := slices.IndexFunc(w.replicas, func(r *Placed) bool { return r.Slice == s.ID && r.Phase == Ready })
	if i < 0 {
		w.mu.Unlock()
		return errors.New("no ready replica")
	}
	r := w.replicas[i]
	r.Phase = Draining
	w.mu.Unlock()
	err := w.wait(ctx, "rest", r.Model, s.ID)
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Contains(w.replicas, r) {
		return errors.New("replica crashed")
	}
	if err != nil {
		r.Phase = Ready
		return err
	}
	r.Phase = Asleep
	return nil
}

func (w *world) Empty(ctx context.Context, s gpu.Slice) error {
	err := w.wait(ctx, "empty", "", s.ID)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.replicas = slices.DeleteFunc(w.replicas, func(r *Placed) bool { return r.Slice == s.ID })
	}
	return err
}

func (w *world) job(id string) *Job { // the caller holds the lock
	for _, j := range w.jobs {
		if j.ID == id {
			return j
		}
	}
	return nil
}

func (w *world) Start(ctx context.Context, id string, on []gpu.Slice) error {
	w.mu.Lock()
	j := w.job(id)
	if j == nil {
		w.mu.Unlock()
		return errors.New("no such job")
	}
	if len(j.Slices)+len(on) > j.MaxWidth {
		w.t.Errorf("%s is given %v while it holds %v, at most %d%s", id, on, j.Slices, j.MaxWidth, w.replay)
	}
	for _, s := range on {
		w.mustBeFree(s.ID, id)
		j.Slices = append(j.Slices, s.ID)
	}
	w.mu.Unlock()
	err := w.wait(ctx, "start job", id, on[0].ID)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		for _, s := range on {
			j.leave(s.ID)
		}
		return err
	}
	j.Running = len(j.Slices) > 0
	return nil
}

func (j *Job) leave(slice string) {
	j.Slices = slices.DeleteFunc(j.Slices, func(s string) bool { return s == slice })
	j.Running = len(j.Slices) > 0
}

func (w *world) Preempt(ctx context.Context, id string, s gpu.Slice) (time.Duration, error) {
	err := w.wait(ctx, "preempt", id, s.ID)
	w.mu.Lock()
	defer w.mu.Unlock()
	j := w.job(id)
	switch {
	case j == nil:
		return 0, nil // it ended by itself
	case err != nil:
		return 0, err
	}
	j.leave(s.ID)
	return w.lost, nil
}

// What tests do to it.

func (w *world) load(model string, level float64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.models {
		if w.models[i].Name == model {
			w.models[i].InFlight = 19 * level
		}
	}
}

// arrive is one more request.
func (w *world) arrive(model string, work float64) {
	w.set(func() {
		for i := range w.models {
			if m := &w.models[i]; m.Name == model {
				m.InFlight++
				m.Work = slices.Clone(m.Work)
				m.Work[len(m.Work)-1] += work
			}
		}
	})
	w.arb.Arrived(model, time.Duration(work*float64(time.Second)))
}

func (w *world) looks() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen
}

func (w *world) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (w *world) submit(j Job) {
	w.set(func() { w.jobs = append(w.jobs, &j) })
}

func (w *world) finish(id string) {
	w.set(func() { w.jobs = slices.DeleteFunc(w.jobs, func(j *Job) bool { return j.ID == id }) })
}

// crash ends whatever engine is on the slice.
func (w *world) crash(slice string) {
	w.set(func() { w.replicas = slices.DeleteFunc(w.replicas, func(r *Placed) bool { return r.Slice == slice }) })
}

// ready puts a ready replica on each slice.
func (w *world) ready(model string, on ...string) {
	for _, s := range on {
		w.replicas = append(w.replicas, &Placed{Slice: s, Model: model, Phase: Ready})
	}
}

func (w *world) phase(model string, p Phase) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.replicas {
		if r.Model == model && r.Phase == p {
			n++
		}
	}
	return n
}

func (w *world) has(id string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if j := w.job(id); j != nil {
		return slices.Clone(j.Slices)
	}
	return nil
}

// running is a loop over a world, in a bubble.
type running struct {
	*Arbiter
	*world
	logged  *bytes.Buffer
	records []Record // written by the loop under its lock, read when it rests
	stop    context.CancelFunc
	done    chan struct{}
}

func coreOptions() CoreOptions {
	return CoreOptions{Policy: testPolicy(), Guard: 500 * time.Millisecond, Plan: 2 * time.Second,
		FastHorizon: 5 * time.Second, SlowHorizon: 10 * time.Second, RiseQuantile: 0.5}
}

func testCore(t testing.TB, change func(*CoreOptions)) *Core {
	t.Helper()
	o := coreOptions()
	if change != nil {
		change(&o)
	}
	c, err := NewCore(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func testLog(t *testing.T) *slog.Logger { return slog.New(slog.NewTextHandler(t.Output(), nil)) }

// begin starts the loop with quick periods: guard 0.5 s, plan 2 s. The test goes
// on 0.1 s later, so that what it does falls between two looks.
func begin(w *world, change func(*Options)) *running {
	r := &running{world: w, logged: &bytes.Buffer{}, done: make(chan struct{})}
	o := Options{Core: coreOptions(), Serving: w, Work: w, Inventory: w, MoveTimeout: 5 * time.Minute,
		OnRecord: func(rec Record) { r.records = append(r.records, rec) }}
	if change != nil {
		change(&o)
	}
	var err error
	if r.Arbiter, err = New(o, slog.New(slog.NewTextHandler(r.logged, &slog.HandlerOptions{Level: slog.LevelError}))); err != nil {
		w.t.Fatal(err)
	}
	w.arb, r.core.decide = r.Arbiter, w.script
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	go func() { r.Run(ctx); close(r.done) }()
	pass(100 * time.Millisecond)
	return r
}

func (r *running) end() {
	r.stop()
	<-r.done
	v := r.View()
	if v.Stats.Violations > 0 {
		r.world.t.Errorf("%d invariants broken%s: %s", v.Stats.Violations, r.replay, r.logged.Bytes()[:min(r.logged.Len(), 500)])
	}
	if !v.Balance.Sums() {
		r.world.t.Errorf("the ledger does not sum up%s: %+v", r.replay, v.Balance)
	}
}

// did lists what was decided (outcome "") or came of it.
func (r *running) did(outcome string) []string {
	var moves []Move
	for _, rec := range r.Why(Query{}) {
		if rec.Outcome == outcome && rec.Move.Action != Hold {
			moves = append(moves, rec.Move)
		}
	}
	return said(moves)
}
