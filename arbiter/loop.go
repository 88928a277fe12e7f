package arbiter

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"sync"
	"time"

	"aloft/gpu"
)

// Serving is what the arbiter needs of the pool and the batchers.
type Serving interface {
	// Models reports every served model; the loop fills in what it learns itself.
	Models(now time.Time) []Model
	// Replicas reports which slice holds whose replica, and its phase.
	Replicas() []Placed
	// Bring returns when a replica of the model is ready on the slice: it wakes
	// the sleeper there or starts one.
	Bring(ctx context.Context, model string, s gpu.Slice) error
	// Rest drains what serves on the slice and returns when it is asleep.
	Rest(ctx context.Context, s gpu.Slice) error
	Tune(Setting)
}

// Work is what the arbiter needs of the jobs.
type Work interface {
	// Jobs reports all that wait or run.
	Jobs() []Job
	Start(ctx context.Context, job string, s gpu.Slice) error
	// Preempt returns when the job has left the slice, with the progress that
	// could not be saved. It keeps to the job's grace by itself.
	Preempt(ctx context.Context, job string, s gpu.Slice) (lost time.Duration, err error)
}

// Placed is a replica on a slice.
type Placed struct {
	Slice, Model, Replica string
	Phase                 Phase
}

// Options of the loop.
type Options struct {
	Policy    Policy
	Serving   Serving
	Work      Work
	Inventory gpu.Inventory

	Guard time.Duration // between looks; wakes and reclaims
	Plan  time.Duration // between plans; loans
	// FastHorizon and SlowHorizon are how far ahead the rise is covered, until
	// reclaims have been measured.
	FastHorizon, SlowHorizon time.Duration
	RiseQuantile             float64
	MoveTimeout              time.Duration // a move that takes longer is given up
	Journal                  io.Writer     // decisions as JSON lines; nil = none
	OnRecord                 func(Record)  // every decision and outcome; nil = nobody listens
}

// Validate says which option is wrong.
func (o Options) Validate() error {
	if err := o.Policy.Validate(); err != nil {
		return err
	}
	switch {
	case o.Serving == nil || o.Work == nil || o.Inventory == nil:
		return fmt.Errorf("arbiter: serving, work and inventory are needed")
	case o.Guard <= 0 || o.Plan < o.Guard:
		return fmt.Errorf("arbiter: guard is %v and plan %v, want 0 < guard <= plan", o.Guard, o.Plan)
	case o.FastHorizon <= 0 || o.SlowHorizon < o.FastHorizon:
		return fmt.Errorf("arbiter: horizons are %v and %v, want 0 < fast <= slow", o.FastHorizon, o.SlowHorizon)
	case o.RiseQuantile <= 0 || o.RiseQuantile > 1:
		return fmt.Errorf("arbiter: rise_quantile is %g, want more than 0 and at most 1", o.RiseQuantile)
	case o.MoveTimeout <= 0:
		return fmt.Errorf("arbiter: move_timeout is %v, want more than 0", o.MoveTimeout)
	}
	return nil
}

// Arbiter is the running loop.
type Arbiter struct {
	opt     Options
	log     *slog.Logger
	outcome chan outcome
	kick    chan struct{}
	moves   sync.WaitGroup

	mu    sync.Mutex // guards what others may look at while the loop runs
	state state
}

// state is what the loop owns and others may look at.
type state struct {
	snapshot Snapshot
	plan     Plan
	ledger   Ledger
	leases   map[string]Lease // by slice
	history  history
	stats    Stats
	rises    map[string]*Rise
	surplus  map[string]time.Time
	reclaims map[string]time.Time
	cap      int
	planned  time.Time
	roomFrom time.Time // the last look at which nothing more could be lent
	risen    time.Time
	calm     time.Time // since when no bound was broken
}

// New makes a loop; Run starts it.
func New(o Options, log *slog.Logger) (*Arbiter, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	return &Arbiter{opt: o, log: log, outcome: make(chan outcome), kick: make(chan struct{}, 1), state: state{
		leases: map[string]Lease{}, rises: map[string]*Rise{}, surplus: map[string]time.Time{},
		reclaims: map[string]time.Time{}, cap: noCap,
	}}, nil
}

// noCap is the lending cap while no bound was broken.
const noCap = 1 << 30

// Kick makes the loop look at once: a job was queued, a replica changed.
func (a *Arbiter) Kick() {
	select {
	case a.kick <- struct{}{}:
	default:
	}
}

// Run decides until ctx ends, then waits for the moves under way.
func (a *Arbiter) Run(ctx context.Context) {
	tick := time.NewTicker(a.opt.Guard)
	defer tick.Stop()
	done := make(chan struct{})
	a.Kick() // the first look need not wait for the guard
	for {
		select {
		case <-tick.C:
			a.look(ctx)
		case <-a.kick:
			a.look(ctx)
		case o := <-a.outcome:
			a.settle(o)
		case <-ctx.Done():
			go func() { a.moves.Wait(); close(done) }()
			for {
				select {
				case o := <-a.outcome:
					a.settle(o)
				case <-done:
					return
				}
			}
		}
	}
}

// look takes a snapshot, books the time, decides, and starts the moves.
func (a *Arbiter) look(ctx context.Context) {
	now := time.Now()
	s, err := a.observe(ctx, now)
	if err != nil {
		a.log.Warn("inventory not read", "error", err) // next look tries again
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	st := &a.state
	st.check(s, a.log)
	st.ledger.Advance(s)
	a.learn(&s)
	s.Plan = now.Sub(st.planned) >= a.opt.Plan
	if s.Plan {
		st.planned = now
	}
	if st.cap < noCap && now.Sub(st.calm) >= time.Minute { // slow increase after a breach
		st.cap, st.calm = st.cap+1, now
	}
	s.Cap, s.RoomFrom = st.cap, st.roomFrom
	plan := a.opt.Policy.Decide(s)
	st.snapshot, st.plan = s, plan
	st.noteSurplus(now, plan)
	st.noteRoom(now, plan)
	for _, h := range plan.Holds {
		if st.history.news(h, now) {
			a.record(Record{Time: now, Move: h})
		}
	}
	for _, set := range plan.Settings {
		a.opt.Serving.Tune(set)
	}
	for _, m := range plan.Moves {
		switch {
		case a.opt.Policy.Mode != ModeObserve || m.Action == Start || m.Action == Wake:
			a.begin(ctx, m, now)
		case st.history.news(m, now):
			a.record(Record{Time: now, Move: m, Outcome: "observed"})
		}
	}
}

// learn keeps each model's rise, one entry a second, and fills in what the
// loop knows of a model.
func (a *Arbiter) learn(s *Snapshot) {
	st := &a.state
	second := s.Now.Sub(st.risen) >= time.Second
	if second {
		st.risen = s.Now
	}
	fast, slow := st.stats.horizons(a.opt.FastHorizon, a.opt.SlowHorizon)
	for i := range s.Models {
		m := &s.Models[i]
		r := st.rises[m.Name]
		if r == nil {
			r = &Rise{}
			st.rises[m.Name] = r
		}
		if second {
			r.Add(a.opt.Policy.level(*m))
			r.fast, r.slow = r.Within(fast, a.opt.RiseQuantile), r.Within(slow, a.opt.RiseQuantile)
		}
		m.RiseFast, m.RiseSlow = r.fast, r.slow
		m.SurplusFrom, m.Reclaimed = st.surplus[m.Name], st.reclaims[m.Name]
	}
}

// observe reads the devices, the replicas and the jobs into a snapshot.
func (a *Arbiter) observe(ctx context.Context, now time.Time) (Snapshot, error) {
	devices, err := a.opt.Inventory.List(ctx)
	if err != nil {
		return Snapshot{}, fmt.Errorf("list slices: %w", err)
	}
	a.mu.Lock()
	leases := maps.Clone(a.state.leases)
	a.mu.Unlock()
	s := Snapshot{Now: now, Models: a.opt.Serving.Models(now), Jobs: a.opt.Work.Jobs()}
	placed := map[string]Placed{}
	for _, p := range a.opt.Serving.Replicas() {
		if old, taken := placed[p.Slice]; !taken || old.Phase == Asleep {
			placed[p.Slice] = p
		}
	}
	jobs, holds := map[string]*Job{}, map[string]string{}
	for i := range s.Jobs {
		j := &s.Jobs[i]
		jobs[j.ID], j.Have = j, len(j.Slices)
		for _, id := range j.Slices {
			holds[id] = j.ID
		}
	}
	for _, d := range devices {
		for _, g := range d.Slices {
			l := a.reconcile(g.ID, leases[g.ID], jobs[holds[g.ID]])
			if j := jobs[l.Job]; j != nil && holds[g.ID] != l.Job {
				j.Have++ // on its way there
			}
			sl := join(g, placed[g.ID], l, jobs[l.Job])
			if !d.Health.OK {
				sl.Phase = Unhealthy
			}
			s.Slices = append(s.Slices, sl)
		}
	}
	return s, nil
}

// reconcile makes a settled lease say what the keeper of the jobs says: a job
// that let go ended by itself, and one that holds a slice without a lease (a
// move failed half-way) is given one, so that nobody else gets the slice.
func (a *Arbiter) reconcile(slice string, l Lease, holder *Job) Lease {
	id := ""
	if holder != nil {
		id = holder.ID
	}
	if l.Moving || l.Job == id {
		return l
	}
	l = Lease{Gen: l.Gen + 1, Job: id, Since: time.Now()}
	if holder != nil {
		l.Bound = a.opt.Policy.Bound(*holder, Model{})
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.state.leases[slice] = l
	return l
}

// join makes one slice of what its keepers report.
func join(g gpu.Slice, p Placed, l Lease, job *Job) Slice {
	s := Slice{Slice: g, Phase: Free, Model: p.Model, Job: l.Job, Moving: l.Moving, To: l.To, Since: l.Since}
	if p.Slice != "" {
		s.Phase = p.Phase
	}
	switch {
	case l.Moving && l.Leaving:
		s.Phase = Checkpoint
		if p.Phase == Loading || p.Phase == Ready { // the job has left, the claimant comes
			s.Phase = Loading
		}
	case l.Job != "" && p.Phase != Draining && (job == nil || !job.Running):
		s.Phase = JobStart
	case l.Job != "" && p.Phase != Draining:
		s.Phase = JobRuns
	}
	return s
}
