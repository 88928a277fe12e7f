package arbiter

import (
	"slices"
	"time"
)

// Lease says who holds a slice. Gen rises with every change, so that a late
// outcome of an earlier lease is refused. Every look renews it; one that is not
// renewed until Until ends, and its slice goes back to serving. Who enforces that:
// the loop's watch while its own process lives (watch.go), and the operating
// system, which ends engines and jobs with the server, when it does not.
type Lease struct {
	Gen     uint64
	Job     string // the borrower; "" = serving or nobody
	Since   time.Time
	Until   time.Time     // of a loan
	Bound   time.Duration // promised reclaim time of the loan
	Moving  bool
	Leaving bool   // moving away from a job
	Shaping bool   // moving since its GPU is reshaped
	Unsure  bool   // a move failed, and the keeper of the jobs has not yet said whom the slice has: nobody gets it
	To      string // while moving: the model or job it goes to
}

// enter writes a decided move into the leases: assumed until Settle.
func (c *Core) enter(m Move) Order {
	now, gen := c.snapshot.Now, c.nextGen()
	p := pending{}
	if m.Action == Reshape {
		c.shape(m, gen, now)
	} else {
		i := c.at[m.Slice]
		l, old := Lease{Gen: gen, Since: now, Moving: true, To: m.Model}, c.leases[i]
		switch m.Action {
		case Lend:
			l.Job, l.To, l.Bound = m.Job, m.Job, m.Bound
			for _, id := range m.Gang {
				c.leases[c.at[id]] = l
			}
		case Reclaim:
			l.Leaving, l.Bound, p.left = true, old.Bound, old.Job
			// The one that was promised, not today's; where another model comes than the
			// one that sleeps there, the one of a start from nothing.
			if c.snapshot.Slices[i].Model == m.Model || m.Bound < old.Bound {
				m.Bound = old.Bound
			}
			l.Bound = m.Bound
			c.models[m.Model].reclaimed = now
		case Vacate:
			l.Leaving, l.Bound, l.To, p.left = old.Job != "", old.Bound, c.claimantOf(m.Slice), old.Job
		}
		if k, ok := c.byJob[m.Job]; ok {
			p.fast = c.snapshot.Jobs[k].Fast()
		}
		c.leases[i] = l
	}
	p.move = m
	c.pending[gen] = p
	c.record(Record{Time: now, Move: m, Gen: gen})
	return Order{m, gen}
}

// renew lets the loans last on, or ends them: after a silence longer than their
// term somebody else has ended them, and what is really held is to be seen.
func (c *Core) renew(last, now time.Time, stale bool) {
	until := now.Add(c.opt.Lease)
	for i := range c.leases {
		l := &c.leases[i]
		switch {
		case l.Job == "":
		case !l.Moving && !stale && now.After(l.Until) && !l.Until.IsZero():
			c.stats.Expired++
			s := &c.snapshot.Slices[i]
			c.record(Record{Time: now, Outcome: "expired", Gen: l.Gen, Took: now.Sub(last),
				Move: Move{Action: Reclaim, Slice: s.ID, Job: l.Job, Model: s.Model, Bound: l.Bound}})
			*l = Lease{Gen: c.nextGen(), Since: now}
		default:
			l.Until = until
		}
	}
}

// shape takes the slices of a GPU that will not be there any more.
func (c *Core) shape(m Move, gen uint64, now time.Time) {
	c.shaping[m.GPU] = gen
	for i := range c.leases {
		s := &c.snapshot.Slices[i]
		if s.GPU != m.GPU || s.Moving || s.Lent() {
			continue
		}
		stays := false
		for _, p := range m.Layout {
			stays = stays || p.Start == s.Start && p.Profile == s.Shape.Profile
		}
		if !stays {
			c.leases[i] = Lease{Gen: gen, Since: now, Moving: true, Shaping: true}
		}
	}
}

// claimantOf is for whom a slice is claimed; "" = nobody.
func (c *Core) claimantOf(slice string) string {
	for _, k := range c.claims {
		if slices.Contains(k.Slices, slice) {
			return k.Job + k.Model // one of them
		}
	}
	return ""
}

// Settle takes an outcome: the lease becomes firm, or is forgotten.
func (c *Core) Settle(now time.Time, o Outcome) {
	now = c.time(now)
	p, ok := c.pending[o.Gen]
	if !ok {
		c.log.Warn("late outcome refused", "slice", o.Move.Slice, "gen", o.Gen)
		return
	}
	delete(c.pending, o.Gen)
	m := p.move
	r := Record{Time: now, Move: m, Gen: o.Gen, Took: o.Took, Outcome: "done", Fast: p.fast}
	if o.Err != nil {
		r.Outcome, r.Error = "failed", o.Err.Error()
	}
	c.release(p, o, now)
	if i, ok := c.at[m.Slice]; ok {
		c.ledger.Lose(o.Lost, units1(c.snapshot.Slices[i].Shape))
	}
	switch {
	case m.Action == Lend && o.Err == nil:
		c.stats.Loans++
	case m.Action == Reclaim:
		if c.stats.reclaimed(o, m.Bound, p.fast); !o.kept(m.Bound) {
			c.breach(&r, o.Fault || c.phase(m.Slice) == Unhealthy)
		}
	}
	c.record(r)
}

// release ends the move in the leases. Of one that failed nobody knows how far it
// came: until the keeper of the jobs has said whom the slice has, it counts as
// that of the job that was to leave it, or to come.
func (c *Core) release(p pending, o Outcome, now time.Time) {
	if p.move.Action == Reshape {
		delete(c.shaping, p.move.GPU)
		c.shaped[p.move.GPU] = now
	}
	for i := range c.leases { // a gang or a GPU has several
		l := &c.leases[i]
		if l.Gen != o.Gen {
			continue
		}
		l.Unsure = o.Err != nil
		if o.Err != nil && l.Job == "" {
			l.Job, l.Until = p.left, now.Add(c.opt.Lease)
		}
		l.Moving, l.Leaving, l.Shaping, l.To, l.Since, l.Gen = false, false, false, "", now, c.nextGen()
	}
}

func (o Outcome) kept(bound time.Duration) bool { return o.Err == nil && o.Took <= bound }

func (c *Core) phase(slice string) Phase {
	if i, ok := c.at[slice]; ok {
		return c.snapshot.Slices[i].Phase
	}
	return Unhealthy // it is gone
}

// breach answers a broken promise: an incident, and fewer loans. A device's fault
// says little about the promises that hold for the other slices, so it costs a
// tenth of them; a bound that was wrong costs half.
func (c *Core) breach(r *Record, fault bool) {
	lent := 0
	for i := range c.leases {
		if c.leases[i].Job != "" {
			lent++
		}
	}
	c.stats.Breaches++
	now := lent / 2
	if fault {
		c.stats.Faulted++
		now = lent * 9 / 10
	}
	c.cap, c.calm = max(1, min(now, c.cap-1)), r.Time
	r.Outcome, r.Fault, r.Cap = "bound_broken", fault, c.cap
	c.log.Error("reclaim bound broken", "slice", r.Move.Slice, "took", r.Took, "bound", r.Move.Bound, "cap", c.cap, "error", r.Error, "fault", fault)
}

// raise lets the cap rise again, by a tenth in each minute without a breach.
func (c *Core) raise(now time.Time) {
	for c.cap < noCap && now.Sub(c.calm) >= time.Minute {
		c.cap, c.calm = c.cap+max(1, c.cap/10), c.calm.Add(time.Minute)
		if c.cap > len(c.leases) {
			c.cap = noCap
		}
	}
}

// Stats counts what the arbiter did since its start.
type Stats struct {
	Loans, Reclaims, Violations int
	// Kept are the reclaims within their bound, Breaches the others; Faulted are
	// those of the others that an injected fault or a device's broke.
	Kept, Breaches, Faulted int
	Expired                 int // leases that ended because nobody renewed them
	// Fast and Slow are the newest reclaim times of work that stops at once and
	// of work that saves first.
	Fast, Slow []time.Duration
	// Bound is the largest bound that was promised for a reclaimed loan.
	Bound time.Duration
}

func (s *Stats) reclaimed(o Outcome, bound time.Duration, fast bool) {
	if o.Err != nil {
		return
	}
	s.Reclaims++
	s.Bound = max(s.Bound, bound)
	if o.kept(bound) {
		s.Kept++
	}
	s.took(o.Took, fast)
}

func (s *Stats) took(d time.Duration, fast bool) {
	list := &s.Slow
	if fast {
		list = &s.Fast
	}
	if *list = append(*list, d); len(*list) > 256 {
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
