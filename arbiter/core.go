package arbiter

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"aloft/gpu"
)

// CoreOptions are what a Core is made with.
type CoreOptions struct {
	Policy Policy

	Guard    time.Duration // at least this often it should look: wakes and reclaims
	Plan     time.Duration // between plans: loans
	Geometry time.Duration // between plans that may reshape; 0 = never
	// FastHorizon and SlowHorizon are how far ahead the rise is covered, until
	// reclaims have been measured.
	FastHorizon, SlowHorizon time.Duration
	RiseQuantile             float64
	// Laws are what has been learned of models before; they are followed as they
	// are. Models without one cover the quantile of their last hour's rises.
	Laws map[string]Law

	Lease time.Duration // a loan that no look renews for so long ends; 0 = a minute

	Log      *slog.Logger // nil = none
	OnRecord func(Record) // every decision and outcome; nil = nobody listens
}

// Validate says which option is wrong.
func (o CoreOptions) Validate() error {
	if err := o.Policy.Validate(); err != nil {
		return err
	}
	switch {
	case o.Guard <= 0 || o.Plan < o.Guard:
		return fmt.Errorf("arbiter: guard is %v and plan %v, want 0 < guard <= plan", o.Guard, o.Plan)
	case o.Geometry != 0 && o.Geometry < o.Plan:
		return fmt.Errorf("arbiter: geometry is %v, want 0 or at least plan (%v)", o.Geometry, o.Plan)
	case o.FastHorizon <= 0 || o.SlowHorizon < o.FastHorizon:
		return fmt.Errorf("arbiter: horizons are %v and %v, want 0 < fast <= slow", o.FastHorizon, o.SlowHorizon)
	case o.Lease != 0 && o.Lease < 2*o.Guard:
		return fmt.Errorf("arbiter: lease is %v, want at least two guards (%v)", o.Lease, 2*o.Guard)
	case o.RiseQuantile <= 0 || o.RiseQuantile > 1:
		return fmt.Errorf("arbiter: rise_quantile is %g, want more than 0 and at most 1", o.RiseQuantile)
	}
	return nil
}

// Core is the arbiter without clock, lock or goroutine: what it has learned, the
// leases, the claims, the ledger, the cap. The live loop and the simulator drive
// it alike: Look, carry out the orders, Settle each.
type Core struct {
	opt    CoreOptions
	decide func(Snapshot) Plan // for tests; nil = the policy's
	log    *slog.Logger

	scene             // the slices as last observed, with their leases
	plan     Plan     // the last one
	orders   []Order  // of the last look; reused
	claims   []Claim  // see Claim
	timeouts timeouts // of claims
	ledger   Ledger
	history  history
	stats    Stats
	models   map[string]*memory

	now  time.Time     // of the last look
	skew time.Duration // by how much its time is ahead of the driver's: a clock set back must not stop it

	lending
	planned beat
	reshape time.Time // the last plan that might
	queue   [3]int    // what the last look saw of it
	risen   beat      // by the second: what is learned from
}

// lending is what bounds the loans of the next plan.
type lending struct {
	cap      int
	calm     time.Time // since when no bound was broken
	roomFrom time.Time // the last look at which nothing more could be lent
	surplus  int       // ready replicas over the need of their models, as of the last look
}

// memory is what the core keeps of one model.
type memory struct {
	rise               Rise
	surplus, reclaimed time.Time
	studied            studied
}

// Observation is what a look is made from. It is neither kept nor changed.
type Observation struct {
	Now     time.Time
	Devices []gpu.Device
	Placed  []Placed
	Models  []Model // without what the core learns itself
	Jobs    []Job   // without Have
	// Stale says that Jobs is an older listing, since the store did not answer:
	// then the leases stand, whatever it says of slices.
	Stale bool
}

// Order is a move that has been entered in the leases and is now to be carried
// out; Settle says how it went.
type Order struct {
	Move Move
	Gen  uint64
}

// Outcome is how an order ended.
type Outcome struct {
	Move       Move
	Gen        uint64
	Took, Lost time.Duration // Lost: job progress that could not be saved
	Err        error
	Fault      bool // injected, or a device's: not the arbiter's
}

// noCap is the lending cap while no bound was broken.
const noCap = 1 << 30

// NewCore makes a core that has seen nothing yet.
func NewCore(o CoreOptions) (*Core, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.Lease = cmp.Or(o.Lease, time.Minute)
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Core{opt: o, log: log, lending: lending{cap: noCap}, scene: newScene(), models: map[string]*memory{}, timeouts: timeouts{}}, nil
}

// SetPolicy is the policy from the next look on.
func (c *Core) SetPolicy(p Policy) error {
	if err := p.Validate(); err != nil {
		return err
	}
	was := c.risk()
	if c.opt.Policy = p; c.risk() != was {
		c.unlearn()
	}
	return nil
}

// Look books the time since the last one, decides, and enters every move that is
// to be made in the leases. The orders are valid until the next look.
func (c *Core) Look(o Observation) []Order {
	if o.Stale && c.now.IsZero() {
		return nil // who holds what has never been seen
	}
	last, now := c.now, c.time(o.Now)
	c.renew(last, now, o.Stale)
	c.observe(o, now)
	c.promised = nil
	c.check()
	s := &c.snapshot
	c.ledger.Advance(*s, c.gaps())
	c.learn(s)
	s.Plan = c.planned.due(now, c.opt.Plan) > 0
	seen := s.queue()
	s.Queue = !s.Plan && seen != c.queue
	c.queue = seen
	if s.Geometry = s.Plan && c.opt.Geometry > 0 && c.planned.last.Sub(c.reshape) >= c.opt.Geometry; s.Geometry {
		c.reshape = c.planned.last
	}
	c.raise(now)
	c.claims = c.timeouts.expire(c.claims, now)
	s.Cap, s.RoomFrom, s.Claims = c.cap, c.roomFrom, c.claims
	if c.plan = (Plan{}); c.decide != nil {
		c.plan = c.decide(*s)
	} else {
		c.plan = c.opt.Policy.Decide(*s)
	}
	c.claims = c.timeouts.keep(c.claims, c.plan.Claims)
	c.note()
	c.orders = c.orders[:0]
	for _, m := range c.plan.Moves {
		switch {
		case c.opt.Policy.Mode != ModeObserve || m.Action == Start || m.Action == Wake:
			c.orders = append(c.orders, c.enter(m))
		case c.history.news(m, now):
			c.record(Record{Time: now, Move: m, Outcome: "observed"})
		}
	}
	return c.orders
}

// queue counts the jobs, those that wait and the slices that nobody uses: when any
// of them has changed there may be something to lend.
func (s *Snapshot) queue() (n [3]int) {
	n[0] = len(s.Jobs)
	for i := range s.Jobs {
		if s.Jobs[i].Waits() {
			n[1]++
		}
	}
	for i := range s.Slices {
		if x := &s.Slices[i]; !x.Moving && !x.Lent() && (x.Phase == Free || x.Phase == Asleep) {
			n[2]++
		}
	}
	return n
}

// time is the driver's clock made one that never runs back.
func (c *Core) time(now time.Time) time.Time {
	now = now.Add(c.skew)
	if back := c.now.Sub(now); back > 0 {
		c.skew += back
		now = c.now
	}
	c.now = now
	return now
}

// learn keeps each model's rise, one entry a second, and fills in what the core
// knows of a model. Of seconds in which nobody looked the level is not known: that
// of now stands for theirs.
func (c *Core) learn(s *Snapshot) {
	seconds, h := c.risen.due(s.Now, time.Second), c.horizons()
	for i := range s.Models {
		m := &s.Models[i]
		mem := c.memory(m.Name)
		for k := range seconds {
			work := 0.0
			if n := len(m.Work) - seconds + k; n >= 0 {
				work = m.Work[n]
			}
			mem.rise.Add(s.Now, c.opt.Policy.level(*m), work, h)
		}
		mem.rise.fill(&m.Learned, s.Now)
		m.SurplusFrom, m.Reclaimed = mem.surplus, mem.reclaimed
		if m.Within, m.Quantile = h.Fast, h.Quantile; m.Law.Learned() {
			m.Quantile = m.Law.Quantile
		}
	}
}

func (c *Core) memory(model string) *memory {
	mem := c.models[model]
	if mem == nil {
		mem = &memory{}
		mem.rise.Follow(c.opt.Laws[model])
		c.models[model] = mem
	}
	return mem
}

// note remembers of a plan since when each model has had more than it needs, when
// nothing more could be lent, and what was held.
func (c *Core) note() {
	now := c.snapshot.Now
	c.surplus = 0
	for i := range c.snapshot.Models {
		name := c.snapshot.Models[i].Name
		mem, n := c.models[name], c.plan.Needs[name]
		c.surplus += max(0, n.Have-n.Fast)
		switch {
		case n.Have <= n.Fast:
			mem.surplus = time.Time{}
		case mem.surplus.IsZero():
			mem.surplus = now
		}
		if n.Lent >= n.Lendable {
			c.roomFrom = now
		}
	}
	for _, h := range c.plan.Holds {
		if c.history.news(h, now) {
			c.record(Record{Time: now, Move: h})
		}
	}
}

// record keeps a decision or its outcome, and logs it once.
func (c *Core) record(r Record) {
	c.history.add(r)
	level := slog.LevelInfo
	if r.Move.Action == Hold {
		level = slog.LevelDebug
	}
	if ctx := context.Background(); c.log.Enabled(ctx, level) {
		c.log.Log(ctx, level, "decision", "slice", r.Move.Slice, "action", r.Move.Action, "model", r.Move.Model,
			"job", r.Move.Job, "reason", r.Move.Reason, "outcome", r.Outcome, "took", r.Took, "error", r.Error)
	}
	if c.opt.OnRecord != nil {
		c.opt.OnRecord(r)
	}
}

// Snapshot is what the last look saw. It belongs to the core until the next.
func (c *Core) Snapshot() Snapshot { return c.snapshot }

// Settings are what the last look wants of the batchers.
func (c *Core) Settings() []Setting { return c.plan.Settings }

// Needs are the numbers of the last look, by model.
func (c *Core) Needs() map[string]Numbers { return c.plan.Needs }

// Balance is the ledger now.
func (c *Core) Balance() Balance { return c.ledger.Balance() }

// Stats counts what was done. The lists in it belong to the core.
func (c *Core) Stats() Stats { return c.stats }

// Leases are those of all slices, in the order of the devices.
func (c *Core) Leases() iter.Seq2[string, Lease] {
	return func(yield func(string, Lease) bool) {
		for i, l := range c.leases {
			if !yield(c.snapshot.Slices[i].ID, l) {
				return
			}
		}
	}
}

// Cap is how many slices may be lent at once after a broken bound; 0 = as many as
// there are.
func (c *Core) Cap() int {
	if c.cap < noCap {
		return c.cap
	}
	return 0
}

// Claims are those that last.
func (c *Core) Claims() []Claim { return c.claims }
