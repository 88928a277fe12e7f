package arbiter

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"aloft/gpu"
)

// Lease says who holds a slice. Gen rises with every change, so that a late
// outcome of an earlier lease is refused.
type Lease struct {
	Gen     uint64
	Job     string // the borrower; "" = serving or nobody
	Since   time.Time
	Bound   time.Duration // promised reclaim time of the loan
	Moving  bool
	Leaving bool   // moving away from a job
	To      string // while moving: the model or job it goes to
}

// outcome is how a move ended.
type outcome struct {
	move  Move
	gen   uint64
	took  time.Duration
	lost  time.Duration
	fast  bool // the job that gave the slice back had nothing to save
	err   error
	slice gpu.Slice
}

// begin enters a move in the leases and carries it out in its own goroutine.
// The caller holds the lock.
func (a *Arbiter) begin(ctx context.Context, m Move, now time.Time) {
	st := &a.state
	i := slices.IndexFunc(st.snapshot.Slices, func(s Slice) bool { return s.ID == m.Slice })
	s := st.snapshot.Slices[i]
	old := st.leases[m.Slice]
	l := Lease{Gen: old.Gen + 1, Since: now, Moving: true, To: m.Model}
	job := Job{ID: m.Job}
	for _, j := range st.snapshot.Jobs {
		if j.ID == m.Job {
			job = j
		}
	}
	switch m.Action {
	case Lend:
		l.Job, l.To, l.Bound = m.Job, m.Job, m.Bound
	case Reclaim:
		l.Leaving, l.Bound = true, old.Bound
		m.Bound = old.Bound // the one that was promised, not today's
		st.reclaims[m.Model] = now
	}
	st.leases[m.Slice] = l
	a.record(Record{Time: now, Move: m, Gen: l.Gen})
	o := outcome{move: m, gen: l.Gen, fast: job.Fast(), slice: s.Slice}
	a.moves.Go(func() {
		// Not ctx: a move under way at shutdown is finished or times out, so
		// that the world it leaves is a legal one.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.opt.MoveTimeout+job.Grace)
		defer cancel()
		began := time.Now()
		o.lost, o.err = a.carryOut(ctx, m, s)
		o.took = time.Since(began)
		a.outcome <- o
	})
}

func (a *Arbiter) carryOut(ctx context.Context, m Move, s Slice) (lost time.Duration, err error) {
	switch m.Action {
	case Lend:
		if s.Phase == Ready {
			if err := a.opt.Serving.Rest(ctx, s.Slice); err != nil {
				return 0, fmt.Errorf("put %s to sleep: %w", s.Model, err)
			}
		}
		return 0, a.opt.Work.Start(ctx, m.Job, s.Slice)
	case Reclaim:
		if lost, err = a.opt.Work.Preempt(ctx, m.Job, s.Slice); err != nil {
			return lost, fmt.Errorf("preempt %s: %w", m.Job, err)
		}
	}
	return lost, a.opt.Serving.Bring(ctx, m.Model, s.Slice)
}

// settle takes an outcome: the lease becomes firm, or is forgotten.
func (a *Arbiter) settle(o outcome) {
	a.mu.Lock()
	defer a.mu.Unlock()
	st := &a.state
	now := time.Now()
	l := st.leases[o.move.Slice]
	if l.Gen != o.gen {
		a.log.Warn("late outcome refused", "slice", o.move.Slice, "gen", o.gen, "current", l.Gen)
		return
	}
	r := Record{Time: now, Move: o.move, Gen: o.gen, Took: o.took, Outcome: "done"}
	l.Moving, l.Leaving, l.To, l.Since = false, false, "", now
	if o.err != nil {
		r.Outcome, r.Error = "failed", o.err.Error()
		l.Job = "" // forget; if a job holds the slice nevertheless, the next look sees it
	}
	st.ledger.Lose(o.lost)
	switch {
	case o.move.Action == Lend && o.err == nil:
		st.stats.Loans++
	case o.move.Action == Reclaim:
		st.stats.reclaimed(o)
		if o.took > o.move.Bound || o.err != nil {
			st.stats.Breaches++
			lent := 0
			for _, x := range st.leases {
				if x.Job != "" {
					lent++
				}
			}
			st.cap, st.calm = max(1, lent/2), now
			r.Outcome = "bound_broken"
			a.log.Error("reclaim bound broken", "slice", o.move.Slice, "took", o.took, "bound", o.move.Bound, "cap", st.cap, "error", r.Error)
		}
	}
	l.Gen++
	st.leases[o.move.Slice] = l
	a.record(r)
	if o.err == nil {
		a.Kick() // a failed move is tried again by the next look, not at once
	}
}

// record keeps a decision or its outcome, logs it once, and appends it to the journal.
func (a *Arbiter) record(r Record) {
	a.state.history.add(r)
	level := slog.LevelInfo
	if r.Move.Action == Hold {
		level = slog.LevelDebug
	}
	a.log.Log(context.Background(), level, "decision", "slice", r.Move.Slice, "action", r.Move.Action, "model", r.Move.Model,
		"job", r.Move.Job, "reason", r.Move.Reason, "outcome", r.Outcome, "took", r.Took, "error", r.Error)
	if a.opt.Journal != nil {
		if b, err := json.Marshal(r); err == nil {
			if _, err := a.opt.Journal.Write(append(b, '\n')); err != nil {
				a.log.Warn("journal not written", "error", err)
			}
		}
	}
	if a.opt.OnRecord != nil {
		a.opt.OnRecord(r)
	}
}

// Stats counts what the arbiter did since its start.
type Stats struct {
	Loans, Reclaims, Breaches, Violations int
	// Fast and Slow are the newest reclaim times of work that stops at once and
	// of work that saves first.
	Fast, Slow []time.Duration
	// Bound is the largest bound that was promised for a reclaimed loan.
	Bound time.Duration
}

func (s *Stats) reclaimed(o outcome) {
	if o.err != nil {
		return
	}
	s.Reclaims++
	s.Bound = max(s.Bound, o.move.Bound)
	list := &s.Slow
	if o.fast {
		list = &s.Fast
	}
	if *list = append(*list, o.took); len(*list) > 256 {
		*list = (*list)[1:]
	}
}

// P99 is the 99th percentile of all kept reclaim times; 0 with none.
func (s *Stats) P99() time.Duration { return p99(slices.Concat(s.Fast, s.Slow)) }

// horizons are how far ahead a rise must be covered: the measured p99 of each
// class once there are five samples, before that the configured ones.
func (s *Stats) horizons(fast, slow time.Duration) (time.Duration, time.Duration) {
	if len(s.Fast) >= 5 {
		fast = p99(s.Fast)
	}
	if len(s.Slow) >= 5 {
		slow = p99(s.Slow)
	}
	return fast, max(fast, slow)
}

func p99(d []time.Duration) time.Duration {
	if len(d) == 0 {
		return 0
	}
	d = slices.Sorted(slices.Values(d))
	return d[min(len(d)-1, len(d)*99/100)]
}

// noteSurplus remembers since when each model has had more than it needs.
func (st *state) noteSurplus(now time.Time, plan Plan) {
	for name, n := range plan.Needs {
		switch {
		case n.Have <= n.Fast:
			delete(st.surplus, name)
		case st.surplus[name].IsZero():
			st.surplus[name] = now
		}
	}
}

// noteRoom remembers when nothing more could be lent.
func (st *state) noteRoom(now time.Time, plan Plan) {
	for _, n := range plan.Needs { // the two counts are the same for all models
		if n.Lent >= n.Lendable {
			st.roomFrom = now
		}
	}
}

// check holds the invariants that are cheap enough for every look.
func (st *state) check(s Snapshot, log *slog.Logger) {
	bad := func(what string, args ...any) {
		st.stats.Violations++
		log.Error("BUG: invariant broken: "+what, args...)
	}
	seen := map[string]bool{}
	for i, a := range s.Slices {
		if seen[a.ID] {
			bad("slice listed twice", "slice", a.ID)
		}
		seen[a.ID] = true
		for _, b := range s.Slices[:i] {
			if a.GPU == b.GPU && a.Start < b.Start+b.Shape.MemorySlices && b.Start < a.Start+a.Shape.MemorySlices {
				bad("slices overlap", "slice", a.ID, "other", b.ID)
			}
		}
		if l := st.leases[a.ID]; l.Job != "" && l.Bound <= 0 {
			bad("loan without a bound", "slice", a.ID, "job", l.Job)
		}
	}
	for id, l := range st.leases {
		if l.Job != "" && !seen[id] {
			bad("loan of a slice that is gone", "slice", id, "job", l.Job)
		}
	}
}
