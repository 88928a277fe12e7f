package arbiter

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"aloft/gpu"
)

// Mode is how much the arbiter may do.
type Mode string

// The modes.
const (
	ModeLend    Mode = "lend"    // the default
	ModeStatic  Mode = "static"  // jobs get only slices that no model claims
	ModeObserve Mode = "observe" // decides and records; starts and wakes replicas, lends nothing
)

// Policy holds the settings of the decision. All are configuration.
type Policy struct {
	Mode         Mode
	LendAbove    float64       // headroom above which lending is allowed
	ReclaimBelow float64       // headroom below which batch rows stop and eta is 0
	Hold         time.Duration // surplus must last this long before it is lent
	AfterReclaim time.Duration // and this long after a reclaim for the same model
	MinSamples   int           // of the latency window, for a headroom
	Rho          float64       // utilisation allowed for merged calls
	Spare        int           // ready replicas kept over need, shared by all models
	MaxEta       float64       // the batcher's patience when jobs wait
	Budget       Budget
	Risk         Risk
	Tenants      []Share // who is not listed has weight 1 and no limit
	// ClosedSlices and ClosedGPUs are left alone while a maintenance window is
	// open: no move begins there.
	ClosedSlices []string
	ClosedGPUs   []int
}

// Risk is how sure a loan must be.
type Risk string

// The risks; "" is Normal.
const (
	Normal Risk = "normal"
	Strict Risk = "strict" // lend only below the worst rise ever seen
)

// Share is what the jobs of one tenant may borrow.
type Share struct {
	Tenant      string
	Weight      float64 // of what is borrowed, among all who want
	BorrowLimit float64 // in slice weights; 0 = no limit
}

// Budget is what each rung of the reclaim ladder may take. A loan's bound is
// their sum with the job's grace, fixed before the loan.
type Budget struct {
	Detect time.Duration // from the event to the decision: the guard period
	Kill   time.Duration // from SIGKILL to an empty slice
	Back   time.Duration // from an empty slice to a ready replica, at least
}

// Validate says which setting is wrong.
func (p Policy) Validate() error {
	switch {
	case p.Mode != ModeLend && p.Mode != ModeStatic && p.Mode != ModeObserve:
		return fmt.Errorf("arbiter: mode is %q, want lend, static or observe", p.Mode)
	case p.Risk != "" && p.Risk != Normal && p.Risk != Strict:
		return fmt.Errorf("arbiter: risk is %q, want normal or strict", p.Risk)
	case p.LendAbove <= p.ReclaimBelow:
		return fmt.Errorf("arbiter: lend_above is %g, want more than reclaim_below (%g)", p.LendAbove, p.ReclaimBelow)
	case p.Rho <= 0 || p.Rho > 1:
		return fmt.Errorf("arbiter: rho is %g, want more than 0 and at most 1", p.Rho)
	case p.Spare < 0 || p.MinSamples < 1 || p.Hold < 0 || p.AfterReclaim < 0:
		return fmt.Errorf("arbiter: spare, hold and after_reclaim must not be negative and min_samples at least 1")
	case p.MaxEta < 0 || p.MaxEta > 1:
		return fmt.Errorf("arbiter: max_eta is %g, want 0 to 1", p.MaxEta)
	case p.Budget.Detect <= 0 || p.Budget.Kill <= 0 || p.Budget.Back <= 0:
		return fmt.Errorf("arbiter: every rung of the reclaim ladder needs a budget above 0")
	}
	return nil
}

// Bound is the promised reclaim time of a loan to j by m.
func (p Policy) Bound(j Job, m Model) time.Duration {
	back := max(p.Budget.Back, 2*m.Back)
	return p.Budget.Detect + j.Grace + p.Budget.Kill + back
}

// decision is one run of Decide: the snapshot with the moves so far applied.
type decision struct {
	Policy
	Snapshot
	plan     Plan
	models   map[string]*claim
	lent     int // slices lent or on their way to a job
	lendable int // slices that may be lent in all
	slowMax  int // of them to work that must save first
}

// claim is what one model needs and has.
type claim struct {
	Model
	Numbers
}

// Decide returns what to do now. It is pure: the same snapshot gives the same plan.
func (p Policy) Decide(s Snapshot) Plan {
	d := &decision{Policy: p, Snapshot: s, models: map[string]*claim{}}
	d.Slices = slices.Clone(s.Slices)
	d.plan.Needs = map[string]Numbers{}
	d.count()
	d.supply()
	d.restoreSpare()
	if s.Plan {
		d.lendAll()
		d.warmUp()
	}
	d.settings()
	for name, c := range d.models {
		c.Lent, c.Lendable = d.lent, d.lendable
		d.plan.Needs[name] = c.Numbers
	}
	return d.plan
}

// count works out needs, what is there and what may be lent.
func (d *decision) count() {
	healthy, fast, slow := 0, 0, 0
	for _, m := range d.Models {
		lv := d.level(m)
		clamp := func(x float64) int { return min(max(int(math.Ceil(x-1e-9)), m.Min), m.Max) }
		c := &claim{Model: m, Numbers: Numbers{Level: lv, Need: clamp(lv), Latency: m.P99}}
		root := math.Sqrt(max(lv, 1))
		c.Fast = max(c.Need, clamp(lv+m.RiseFast*root))
		c.Slow = max(c.Fast, clamp(lv+m.RiseSlow*root))
		if h, ok := m.Headroom(d.MinSamples); ok {
			c.Room = &h
		}
		d.models[m.Name] = c
	}
	coming := map[string]bool{}
	for _, s := range d.Slices {
		if s.Phase == Unhealthy {
			continue
		}
		healthy++
		if s.Lent() {
			d.lent++
		}
		if c := d.models[holder(s)]; c != nil {
			c.Have++
			coming[c.Name] = coming[c.Name] || s.Moving || s.Phase == Loading
		}
	}
	for _, m := range d.Models {
		c := d.models[m.Name]
		// The envelope knows demand and a fitted rate; a missed target knows better.
		// One replica at a time, since headroom tells what was, not what is.
		if c.Room != nil && *c.Room < d.ReclaimBelow && m.Traffic() && !coming[c.Name] {
			c.Fast = max(c.Fast, min(c.Have+1, c.Max))
			c.Slow = max(c.Slow, c.Fast)
		}
		fast, slow = fast+c.Fast, slow+c.Slow
	}
	d.lendable = max(0, healthy-fast-d.Spare)
	d.slowMax = max(0, healthy-slow-d.Spare)
}

// holder is the model that a slice serves or will serve in a moment; "" = none.
func holder(s Slice) string {
	switch {
	case s.Moving && !s.Lent():
		return s.To
	case s.Lent() || s.Phase == Asleep || s.Phase == Draining || s.Phase == Free || s.Phase == Unhealthy:
		return ""
	}
	return s.Model
}

// supply gives the models the replicas that they need within the fast horizon,
// the most urgent step of all of them first: one model's rise ahead must not
// take the slice that another needs to serve at all.
func (d *decision) supply() {
	for _, step := range []struct {
		reason Reason
		want   func(*claim) int
	}{
		{BelowMin, func(c *claim) int { return c.Min }},
		{NeedsMore, func(c *claim) int { return c.Need }},
		{RiseAhead, func(c *claim) int { return c.Fast }},
	} {
		for _, m := range d.Models {
			c := d.models[m.Name]
			for c.Have < step.want(c) && d.add(c, step.reason) {
			}
		}
	}
}

// add wakes a replica, or starts one on a free slice or beside another model's
// sleeper, or reclaims a slice for one: whichever comes first to hand.
func (d *decision) add(c *claim, reason Reason) bool {
	if i := d.find(func(s Slice) bool { return s.Phase == Asleep && s.Model == c.Name && !s.Lent() }); i >= 0 {
		d.move(i, Move{Action: Wake, Model: c.Name, Reason: reason}, c)
		return true
	}
	for _, phase := range []Phase{Free, Asleep} {
		if i := d.smallest(phase, c.Needs); i >= 0 {
			d.move(i, Move{Action: Start, Model: c.Name, Reason: reason}, c)
			return true
		}
	}
	return d.reclaim(c, reason)
}

// restoreSpare reclaims when needs have grown into the shared spare.
func (d *decision) restoreSpare() {
	for d.lent > d.lendable {
		var most *claim // the model whose rise is the largest may need it first
		for _, m := range d.Models {
			c := d.models[m.Name]
			if c.Have < c.Max && (most == nil || c.RiseFast > most.RiseFast) {
				most = c
			}
		}
		if most == nil || !d.reclaim(most, SpareGone) {
			return
		}
	}
}

// reclaim takes back the lent slice that costs least and that the model can
// use: the claimant is placed before the first signal is sent (Kueue #1309).
func (d *decision) reclaim(c *claim, reason Reason) bool {
	best, bestCost := -1, time.Duration(math.MaxInt64)
	for i, s := range d.Slices {
		if !s.Lent() || s.Moving || s.Phase == Unhealthy || !fits(s.Shape, c.Needs) {
			continue
		}
		cost := d.job(s.Job).Cost()
		if s.Model != c.Name {
			cost += time.Millisecond // no sleeper of ours there: a start instead of a wake
		}
		if cost < bestCost {
			best, bestCost = i, cost
		}
	}
	if best < 0 {
		return false
	}
	s := d.Slices[best]
	n := c.Numbers
	n.Cost, n.For = bestCost, d.Now.Sub(s.Since)
	d.lent--
	d.apply(best, Move{Action: Reclaim, Model: c.Name, Job: s.Job, Reason: reason, Why: n, Bound: d.Bound(d.job(s.Job), c.Model)})
	c.Have++
	return true
}

func (d *decision) job(id string) Job {
	for _, j := range d.Jobs {
		if j.ID == id {
			return j
		}
	}
	return Job{ID: id}
}

// lendAll gives slices to waiting jobs, at most one from each model a plan.
func (d *decision) lendAll() {
	waiting := slices.Clone(d.Jobs)
	slices.SortStableFunc(waiting, func(a, b Job) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Have, b.Have),
			cmp.Compare(order[a.Kind], order[b.Kind]), a.Created.Compare(b.Created))
	})
	slow := 0
	for _, s := range d.Slices {
		if s.Lent() && !d.job(s.Job).Fast() {
			slow++
		}
	}
	gave := map[string]bool{} // one lend of each model in flight
	for _, s := range d.Slices {
		if s.Moving && s.Lent() {
			gave[s.Model] = true
		}
	}
	for _, j := range waiting {
		if !j.Waits() {
			continue
		}
		i, from := d.candidate(j, gave)
		if i < 0 {
			continue
		}
		serves := from
		if d.Slices[i].Phase != Ready {
			serves = nil // nothing goes out: no wait to pay for it
		}
		if reason, ok := d.mayLend(j, serves, slow); !ok {
			d.hold(i, j, from, reason)
			continue
		}
		if !j.Fast() {
			slow++
		}
		d.lendTo(i, j, from)
		if from != nil {
			gave[from.Name] = true
		}
	}
}

// candidate picks the slice to lend to j: a free one, then one with a sleeper
// on it, then the surplus of the model that has most; of equals the smallest.
func (d *decision) candidate(j Job, gave map[string]bool) (int, *claim) {
	best, bestRank := -1, math.MaxInt
	var from *claim
	for i, s := range d.Slices {
		if s.Moving || s.Lent() || !fits(s.Shape, j.Needs) {
			continue
		}
		c := d.models[s.Model]
		rank := 0
		switch {
		case s.Phase == Free:
		case s.Phase == Asleep:
			rank = 1
		case s.Phase == Ready && c != nil && c.Have > c.Fast && !gave[s.Model] && d.Mode != ModeStatic:
			rank = math.MaxInt32 - (c.Have - c.Fast) // after all idle slices
		default:
			continue
		}
		if rank < bestRank || rank == bestRank && s.Shape.Weight() < d.Slices[best].Shape.Weight() {
			best, bestRank, from = i, rank, c
		}
	}
	return best, from
}

// mayLend applies the vetoes: safe set, cap, headroom, hold, value.
func (d *decision) mayLend(j Job, from *claim, slow int) (Reason, bool) {
	switch {
	case d.lent >= d.lendable || (!j.Fast() && slow >= d.slowMax):
		return NeededSoon, false
	case d.lent >= d.Cap:
		return CapReached, false
	case d.Now.Sub(d.RoomFrom) < d.Hold:
		return NotLongYet, false
	}
	for _, c := range d.models { // spares are shared: a model in trouble vetoes every loan
		if c.Room != nil && *c.Room < d.LendAbove {
			return LowHeadroom, false
		}
	}
	switch {
	case from == nil:
		return "", true
	case from.Room == nil && from.Traffic():
		return NoHeadroom, false
	case !from.Reclaimed.IsZero() && d.Now.Sub(from.Reclaimed) < d.AfterReclaim:
		return NotLongYet, false
	// Ski rental: with no forecast of the idle time, wait as long as going out
	// and coming back costs before paying for it.
	case from.SurplusFrom.IsZero() || d.Now.Sub(from.SurplusFrom) < max(d.Hold, from.Out+from.Back):
		return NotLongYet, false
	}
	return "", true
}

func (d *decision) lendTo(i int, j Job, from *claim) {
	m := Move{Action: Lend, Job: j.ID, Reason: NoNeed}
	var lender Model
	if from != nil {
		lender, m.Model, m.Why = from.Model, from.Name, from.Numbers
		m.Why.Cost = from.Back
		if d.Slices[i].Phase == Ready {
			from.Have--
			m.Reason = Surplus
			m.Why.Cost = from.Out + from.Back
			m.Why.For = d.Now.Sub(from.SurplusFrom)
			m.Why.Gain = m.Why.For // what lasted t is expected to last t again
		}
	}
	d.lent++
	m.Why.Lent, m.Why.Lendable = d.lent, d.lendable
	for _, m := range d.Models { // whoever takes it back must be able to keep the promise
		if fits(d.Slices[i].Shape, m.Needs) {
			lender.Back = max(lender.Back, m.Back)
		}
	}
	m.Bound = d.Bound(j, lender)
	d.apply(i, m)
}

// hold notes, once a slice and plan, that the first in the queue does not get it.
func (d *decision) hold(i int, j Job, from *claim, why Reason) {
	if slices.ContainsFunc(d.plan.Holds, func(h Move) bool { return h.Slice == d.Slices[i].ID }) {
		return
	}
	m := Move{Action: Hold, Slice: d.Slices[i].ID, Job: j.ID, Reason: why}
	if from != nil {
		m.Model, m.Why = from.Name, from.Numbers
	}
	m.Why.Lent, m.Why.Lendable = d.lent, d.lendable
	d.plan.Holds = append(d.plan.Holds, m)
}

// settings turns the batchers' patience up while jobs wait and headroom allows,
// and lets batch rows ride only while it does.
func (d *decision) settings() {
	wait := slices.ContainsFunc(d.Jobs, Job.Waits)
	for _, m := range d.Models {
		c := d.models[m.Name]
		set := Setting{Model: m.Name, Rows: c.Room == nil || *c.Room >= d.ReclaimBelow}
		if wait && c.Room != nil && *c.Room > d.LendAbove {
			// Patience spends only the headroom above the mark.
			set.Eta = d.MaxEta * min(1, (*c.Room-d.LendAbove)/(1-d.LendAbove))
		}
		d.plan.Settings = append(d.plan.Settings, set)
	}
}

// smallest finds the slice in a phase, held by nobody, that wastes least.
func (d *decision) smallest(phase Phase, needs gpu.Shape) int {
	best := -1
	for i, s := range d.Slices {
		if s.Phase == phase && !s.Moving && !s.Lent() && fits(s.Shape, needs) && (best < 0 || s.Shape.Weight() < d.Slices[best].Shape.Weight()) {
			best = i
		}
	}
	return best
}

// warmUp fills idle slices with replicas while no job waits, one at a time:
// they cost nothing then, and a later reclaim finds a sleeper instead of an
// empty slice.
func (d *decision) warmUp() {
	if d.Mode == ModeStatic { // a ready replica is never lent there
		return
	}
	if slices.ContainsFunc(d.Jobs, Job.Waits) || slices.ContainsFunc(d.Slices, func(s Slice) bool { return s.Moving || s.Phase == Loading }) {
		return
	}
	for _, m := range d.Models {
		c := d.models[m.Name]
		if c.Have == 0 || c.Have >= c.Max {
			continue
		}
		if i := d.find(func(s Slice) bool { return s.Phase == Asleep && s.Model == c.Name && !s.Lent() }); i >= 0 {
			d.move(i, Move{Action: Wake, Model: c.Name, Reason: WarmPool}, c)
			return
		}
		if i := d.smallest(Free, c.Needs); i >= 0 {
			d.move(i, Move{Action: Start, Model: c.Name, Reason: WarmPool}, c)
			return
		}
	}
}

func (d *decision) find(ok func(Slice) bool) int {
	return slices.IndexFunc(d.Slices, func(s Slice) bool { return !s.Moving && ok(s) })
}

func (d *decision) move(i int, m Move, c *claim) {
	m.Why = c.Numbers
	d.apply(i, m)
	c.Have++
}

// apply adds a move and marks its slice, so that no second move takes it.
func (d *decision) apply(i int, m Move) {
	s := &d.Slices[i]
	m.Slice = s.ID
	s.Moving = true
	if m.Action == Lend {
		s.Job, s.To = m.Job, m.Job
	} else {
		s.Job, s.To = "", m.Model
	}
	d.plan.Moves = append(d.plan.Moves, m)
}

// fits reports whether a slice is large enough.
func fits(have, want gpu.Shape) bool {
	return have.ComputeSlices >= want.ComputeSlices && have.MemorySlices >= want.MemorySlices && have.Bytes >= want.Bytes
}
