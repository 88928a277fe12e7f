package arbiter

import (
	"fmt"
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
	AgeEvery     time.Duration // a job without a slice stands one priority higher for each of these that it waits; 0 = never
	MaxPreempts  int           // of one job within an hour, before others are stopped rather; 0 = 4
	MinSamples   int           // of the latency window, for a headroom
	Rho          float64       // utilisation allowed for merged calls
	Spare        int           // ready replicas kept over need, shared by all models; none once all laws are strict
	MaxEta       float64       // the batcher's patience when jobs wait
	Budget       Budget
	Risk         Risk
	Tenants      []Share // who is not listed has weight 1 and no limit
	// ClosedSlices and ClosedGPUs are left alone while a maintenance window is
	// open: no move begins there.
	ClosedSlices []string
	ClosedGPUs   []int
	// Frozen stops all lending, of free slices too: a maintenance window.
	Frozen bool
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
	BorrowLimit float64 // in whole GPUs, of compute or memory slices, whichever is more; 0 = no limit
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
	case !(p.LendAbove > p.ReclaimBelow):
		return fmt.Errorf("arbiter: lend_above is %g, want more than reclaim_below (%g)", p.LendAbove, p.ReclaimBelow)
	case p.LendAbove >= 1:
		return fmt.Errorf("arbiter: lend_above is %g, want less than 1, which no headroom (1 - p99/target) is above", p.LendAbove)
	case !(p.Rho > 0 && p.Rho <= 1):
		return fmt.Errorf("arbiter: rho is %g, want more than 0 and at most 1", p.Rho)
	case p.Spare < 0 || p.MinSamples < 1 || p.Hold < 0 || p.AfterReclaim < 0 || p.AgeEvery < 0:
		return fmt.Errorf("arbiter: spare, hold, after_reclaim and age_every must not be negative and min_samples at least 1")
	case !(p.MaxEta >= 0 && p.MaxEta <= 1):
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

// coldBound is the bound where no replica sleeps: half as long again as the p99 of
// a start from nothing, which is spread less than a wake.
func (p Policy) coldBound(j Job, m Model) time.Duration {
	m.Back = max(m.Back, m.Cold*3/4)
	return p.Bound(j, m)
}

// decision is one run of Decide: the snapshot with the moves so far applied.
type decision struct {
	Policy
	*Snapshot
	slices   []Slice // the snapshot's until the first move, then a copy with the moves applied
	owned    bool
	plan     Plan
	models   []serving
	lent     int // compute slices lent or on their way to a job
	loans    int // slices
	kept     int // compute slices that claims keep, and that are not lent
	lendable int // compute slices that may be lent in all
	slowMax  int // of them to work that must save first
	index
	ranking
}

// serving is what one model needs and has.
type serving struct {
	*Model
	Numbers
	coming bool // a replica is on its way
	lent   int  // its slices that are lent
	sourcing
}

// Decide returns what to do now. It is pure: the same snapshot gives the same plan.
func (p Policy) Decide(s Snapshot) Plan {
	d := &decision{Policy: p, Snapshot: &s, slices: s.Slices}
	d.count()
	d.supply()
	d.restoreSpare()
	d.keepClaims()
	if s.Plan {
		d.giveBackSlow()
	}
	if s.Plan || s.Queue {
		d.lendAll()
	}
	if s.Plan {
		d.warmUp()
	}
	d.settings()
	d.plan.Needs = make(map[string]Numbers, len(d.models))
	for i := range d.models {
		c := &d.models[i]
		c.Lent, c.Lendable = d.lent, d.lendable
		d.plan.Needs[c.Name] = c.Numbers
	}
	return d.plan
}

// count works out needs, what is there and what may be lent.
func (d *decision) count() {
	d.models = make([]serving, len(d.Models))
	for i := range d.Models {
		d.models[i] = d.lines(&d.Models[i])
	}
	healthy := 0
	for i := range d.slices {
		s := &d.slices[i]
		if s.Phase == Unhealthy {
			continue
		}
		u := units(s.Shape)
		healthy += u
		if s.Lent() {
			d.lent += u
			d.loans++
			if c := d.model(s.Model); c != nil {
				c.lent++
			}
			continue
		}
		if c := d.model(holder(s)); c != nil {
			c.Have++
			c.coming = c.coming || s.Moving || s.Phase == Loading
		}
	}
	fast, slow := 0, 0
	for i := range d.models {
		c := &d.models[i]
		d.missed(c)
		u := units(c.Needs)
		fast, slow = fast+c.Fast*u, slow+c.Slow*u
	}
	spare := d.spare()
	d.lendable = max(0, healthy-fast-spare)
	d.slowMax = max(0, healthy-slow-spare)
}

// spare is what stays ready over all needs. A strict law covers more than the worst
// rise that was ever seen, from whatever level it came: a spare on top covers nothing.
func (d *decision) spare() int {
	if d.Risk == Strict && d.allLaws() {
		return 0
	}
	return d.Spare
}

// model is a served model by name; nil = none. Slices of one model mostly lie
// side by side, and nodes have few models: looking through them beats hashing.
func (d *decision) model(name string) *serving {
	if name == "" {
		return nil
	}
	if d.last < len(d.models) && d.models[d.last].Name == name {
		return &d.models[d.last]
	}
	for i := range d.models {
		if d.models[i].Name == name {
			d.last = i
			return &d.models[i]
		}
	}
	return nil
}

// holder is the model that a slice serves or will serve in a moment; "" = none.
func holder(s *Slice) string {
	switch {
	case s.Moving && !s.Lent():
		return s.To
	case s.Lent() || s.Phase == Asleep || s.Phase == Draining || s.Phase == Free || s.Phase == Unhealthy:
		return ""
	}
	return s.Model
}

// units is what a shape counts in sums: compute slices, at least one. Counting
// slices instead is the commonest mistake in the field (KAI #987).
func units(s gpu.Shape) int { return max(1, s.ComputeSlices) }

// own makes the slices the decision's before the first move changes one.
func (d *decision) own() {
	if !d.owned {
		d.slices, d.owned = slices.Clone(d.slices), true
	}
}

// apply adds a move and marks its slice, so that no second move takes it.
func (d *decision) apply(i int, m Move) {
	d.own()
	s := &d.slices[i]
	m.Slice = s.ID
	s.Moving = true
	switch m.Action {
	case Lend:
		s.Job, s.To = m.Job, m.Job
	case Vacate:
		s.Job, s.To = "", ""
	default:
		s.Job, s.To = "", m.Model
	}
	if d.on != nil {
		d.on[i] = nil
	}
	d.plan.Moves = append(d.plan.Moves, m)
}

// fits reports whether a slice is large enough.
func fits(have, want gpu.Shape) bool {
	return have.ComputeSlices >= want.ComputeSlices && have.MemorySlices >= want.MemorySlices && have.Bytes >= want.Bytes
}
