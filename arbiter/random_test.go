package arbiter

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

var seedFlag = flag.Int("seed", -1, "replay one seed of TestRandom")

// TestRandom lets the loop live with random load, jobs and faults, and looks at
// the invariants after every decision and every half second.
func TestRandom(t *testing.T) {
	first, count := 0, 200
	if testing.Short() {
		count = 40
	}
	if *seedFlag >= 0 {
		first, count = *seedFlag, 1
	}
	sum := Stats{}
	for seed := first; seed < first+count && !t.Failed(); seed++ {
		synctest.Test(t, func(t *testing.T) {
			s := live(t, uint64(seed))
			sum.Loans, sum.Reclaims, sum.Breaches = sum.Loans+s.Loans, sum.Reclaims+s.Reclaims, sum.Breaches+s.Breaches
		})
	}
	t.Logf("%d seeds: %d loans, %d reclaims, %d broken bounds", count, sum.Loans, sum.Reclaims, sum.Breaches)
	if count > 10 && (sum.Loans < 3*count || sum.Reclaims < count || sum.Breaches == 0) {
		t.Errorf("too little happened: %+v", sum)
	}
}

// live is two minutes of one seed.
func live(t *testing.T, seed uint64) Stats {
	rng := rand.New(rand.NewPCG(seed, 7))
	w := newWorld(t, 4+rng.IntN(5))
	w.seed, w.replay = seed+1, fmt.Sprintf("; replay with -run TestRandom -seed=%d", seed)
	for i := range w.slices {
		if rng.IntN(4) == 0 {
			w.slices[i].Shape = g2
		}
	}
	for i := range 1 + rng.IntN(3) {
		m := chat(fmt.Sprintf("m%d", i), 0, rng.IntN(2), 1+rng.IntN(6))
		m.SurplusFrom = time.Time{}
		w.models = append(w.models, m)
	}
	faults := seed%3 > 0 // a third of the seeds is calm
	audit := &audit{t: t, world: w, moving: map[string]Record{}}
	r := begin(w, func(o *Options) {
		o.Core.Policy.Spare, o.Core.Policy.Hold, o.Core.Policy.AfterReclaim = rng.IntN(2), time.Duration(rng.IntN(10))*time.Second, time.Duration(rng.IntN(20))*time.Second
		o.Core.RiseQuantile = []float64{0.5, 0.9, 1}[rng.IntN(3)]
		o.MoveTimeout = 90 * time.Second
		o.OnRecord = audit.record
	})
	for step := range 240 {
		stir(w, rng, faults && step < 160) // then peace, in which everything must settle
		pass(500 * time.Millisecond)
		audit.look()
		if t.Failed() {
			break
		}
	}
	r.end()
	w.mu.Lock()
	defer w.mu.Unlock()
	for slice, l := range r.core.Leases() {
		if l.Moving {
			t.Errorf("lease of %s still moves: %+v%s", slice, l, w.replay)
		}
	}
	if s := r.core.stats; !faults && s.Breaches > 0 {
		t.Errorf("%d bounds broken without a fault%s", s.Breaches, w.replay)
	}
	return r.core.stats
}

// stir changes something at random.
func stir(w *world, rng *rand.Rand, faults bool) {
	for _, m := range w.models {
		if rng.IntN(20) == 0 {
			w.load(m.Name, rng.Float64()*float64(m.Max)*1.2)
		}
	}
	if rng.IntN(4) == 0 && len(w.jobs) < 8 {
		kind := []string{"batch", "train", "evaluate"}[rng.IntN(3)]
		j := Job{ID: fmt.Sprintf("j%d", rng.IntN(1e9)), Kind: kind, Needs: g1, MaxWidth: 1 + rng.IntN(2), Priority: rng.IntN(2), Created: time.Now()}
		if kind != "batch" {
			j.Grace, j.Unsaved, j.Restart = 5*time.Second, time.Duration(rng.IntN(60))*time.Second, time.Second
		}
		if rng.IntN(4) == 0 {
			j.Needs = g2
		}
		w.submit(j)
	}
	if rng.IntN(30) == 0 && len(w.jobs) > 0 { // perhaps in the middle of a move
		w.finish(w.jobs[rng.IntN(len(w.jobs))].ID)
	}
	if !faults {
		w.set(func() { clear(w.sick); clear(w.fail); w.blind = false })
		return
	}
	slice := w.slices[rng.IntN(len(w.slices))].ID
	switch rng.IntN(40) {
	case 0:
		w.crash(slice)
	case 1:
		w.set(func() { w.sick[slice] = !w.sick[slice] })
	case 2:
		op := []string{"wake", "start", "rest", "start job", "preempt"}[rng.IntN(5)]
		w.set(func() { w.fail[op] = 1 + rng.IntN(2) })
	case 3:
		w.set(func() { w.blind = !w.blind })
	case 4:
		w.set(func() { w.took["preempt"] = time.Duration(1+rng.IntN(50)) * time.Second })
	}
}

// audit checks what must always hold.
type audit struct {
	t      *testing.T
	world  *world
	moving map[string]Record // decided and without outcome, by slice
}

func (a *audit) bad(format string, args ...any) {
	a.t.Errorf(format+"%s", append(args, a.world.replay)...)
}

// record checks a decision against the snapshot that it was made from. It runs
// under the arbiter's lock.
func (a *audit) record(r Record) {
	m := r.Move
	if m.Action == Hold || r.Outcome == "expired" {
		return
	}
	if r.Outcome != "" {
		if a.moving[m.Slice].Gen != r.Gen {
			a.bad("%s: an outcome of generation %d, decided was %d", m.Slice, r.Gen, a.moving[m.Slice].Gen)
		}
		delete(a.moving, m.Slice)
		return
	}
	if was, ok := a.moving[m.Slice]; ok {
		a.bad("%v was decided while %v was under way", m, was)
	}
	a.moving[m.Slice] = r
	st := a.world.arb.core
	i := slices.IndexFunc(st.snapshot.Slices, func(s Slice) bool { return s.ID == m.Slice })
	if i < 0 {
		a.bad("%v of no slice", m)
		return
	}
	s := st.snapshot.Slices[i]
	if s.Moving || s.Phase == Unhealthy {
		a.bad("%v of %+v", m, s)
	}
	switch m.Action {
	case Lend:
		j := jobOf(st.snapshot, m.Job)
		if s.Lent() || !fits(s.Shape, j.Needs) || m.Bound <= 0 || m.Why.Lent > m.Why.Lendable || lentAfter(st.snapshot, st.plan) > st.snapshot.Cap {
			a.bad("%v: slice %+v, job %+v, cap %d", m, s, j, st.snapshot.Cap)
		}
	case Reclaim:
		if s.Job != m.Job || m.Bound <= 0 {
			a.bad("%v of %+v", m, s)
		}
	case Vacate: // for a claim, and by lower priority only
		k := slices.IndexFunc(st.plan.Claims, func(c Claim) bool { return slices.Contains(c.Slices, m.Slice) })
		if k < 0 || s.Job != m.Job {
			a.bad("%v of %+v, claims %+v", m, s, st.plan.Claims)
			break
		}
		old, by := jobOf(st.snapshot, m.Job), jobOf(st.snapshot, st.plan.Claims[k].Job)
		if old.Priority > by.Priority || old.Priority == by.Priority && (!old.Light() || by.Light()) {
			a.bad("%v: %+v gives way to %+v", m, old, by)
		}
	default:
		if s.Lent() {
			a.bad("%v of %+v, which is lent", m, s)
		}
	}
	if m.Model != "" && m.Action != Lend {
		if c := modelOf(st.snapshot, m.Model); !fits(s.Shape, c.Needs) || m.Why.Have >= c.Max {
			a.bad("%v: a replica more than %d, or on too small a slice", m, c.Max)
		}
	}
}

// lentAfter is how many slices are lent once a plan is carried out.
func lentAfter(s Snapshot, p Plan) (n int) {
	for _, x := range s.Slices {
		if x.Lent() && x.Phase != Unhealthy {
			n++
		}
	}
	for _, m := range p.Moves {
		switch {
		case m.Action == Lend:
			n += 1 + len(m.Gang)
		case m.Job != "" && (m.Action == Reclaim || m.Action == Vacate):
			n--
		}
	}
	return n
}

func jobOf(s Snapshot, id string) Job {
	return s.Jobs[slices.IndexFunc(s.Jobs, func(j Job) bool { return j.ID == id })]
}

func modelOf(s Snapshot, name string) Model {
	return s.Models[slices.IndexFunc(s.Models, func(m Model) bool { return m.Name == name })]
}

// look checks the state between decisions.
func (a *audit) look() {
	v := a.world.arb.View()
	if !v.Balance.Sums() {
		a.bad("the ledger does not sum up: %+v", v.Balance)
	}
	taken := map[string]bool{}
	for _, m := range v.Plan.Moves {
		taken[m.Slice] = true
	}
	for _, m := range v.Snapshot.Models {
		n := v.Plan.Needs[m.Name]
		if n.Have >= n.Fast {
			continue
		}
		for _, s := range v.Snapshot.Slices { // it has too few: no slice that it could use is left alone
			if usable := s.Phase == Free || s.Phase == Asleep || s.Lent() && s.Phase != Unhealthy; usable && !s.Moving && !taken[s.ID] && fits(s.Shape, m.Needs) {
				a.bad("%s needs %d, has %d, and %+v is left alone", m.Name, n.Fast, n.Have, s)
			}
		}
	}
	a.world.arb.mu.Lock()
	defer a.world.arb.mu.Unlock()
	for slice, l := range a.world.arb.core.Leases() {
		if l.Job != "" && l.Bound <= 0 {
			a.bad("%s is lent without a bound: %+v", slice, l)
		}
		if _, under := a.moving[slice]; under != l.Moving {
			a.bad("%s: lease %+v, under way: %v", slice, l, under)
		}
	}
	a.world.mu.Lock()
	defer a.world.mu.Unlock()
	for _, s := range a.world.slices {
		if h := a.world.holders(s.ID); len(h) > 1 {
			a.bad("%s is held by %v", s.ID, h)
		}
	}
}
