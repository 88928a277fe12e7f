package arbiter

import (
	"cmp"
	"slices"
	"time"

	"aloft/gpu"
)

// gatherFor is how long a claim may take beyond the slowest stop: then all that it
// has gathered is let go, since capacity that waits for more serves nobody.
const gatherFor = 2 * time.Minute

// claims reports whether the job has a claim, or backs off from one.
func (d *decision) claims(id string) bool {
	if d.claimants == nil {
		d.claimants = map[string]bool{}
		for i := range d.Claims {
			d.claimants[d.Claims[i].Job] = true
		}
		for i := range d.plan.Claims {
			d.claimants[d.plan.Claims[i].Job] = true
		}
	}
	return d.claimants[id]
}

// keepClaims goes on with every claim: empties what is still held, cuts what has
// the wrong shape, and lends when all of it is there. It is done on every look,
// since a plan period at each step would leave gathered slices idle.
func (d *decision) keepClaims() {
	if len(d.Claims) == 0 {
		return
	}
	kept := make([][]int, len(d.Claims)) // the slices of each
	for i := range d.slices {
		if k := d.claimOf(i); k > 0 && k <= len(kept) {
			kept[k-1] = append(kept[k-1], i)
		}
	}
	for k := range d.Claims {
		c := &d.Claims[k]
		if c.Resting() {
			continue
		}
		j := d.job(c.Job)
		if c.Job == "" || !j.Waits() {
			continue // met, or nobody is left to meet it
		}
		mine := kept[k]
		if d.advance(c, j, mine) {
			d.plan.Claims = append(d.plan.Claims, *c)
			for _, i := range mine {
				if s := &d.slices[i]; !s.Lent() && s.Phase != Unhealthy {
					d.kept += units(s.Shape)
				}
			}
		}
	}
}

// advance takes a claim one step on; false: it is met, or it cannot be.
func (d *decision) advance(c *Claim, j *Job, mine []int) bool {
	if j.Broken() {
		return false
	}
	ready := len(mine) > 0
	for _, i := range mine {
		s := &d.slices[i]
		switch {
		case s.Phase == Unhealthy, !s.Moving && !s.Lent() && s.Phase != Free && s.Phase != Asleep:
			return false // broken, or a model needed it more
		case s.Moving:
			ready = false
		case s.Lent() || s.Phase == Asleep && len(c.GPUs) > 0:
			d.vacate(i, ForJob)
			ready = false
		}
	}
	var use []int
	whole := map[int]bool{}
	for _, i := range mine {
		if s := &d.slices[i]; c.takes(s, j) && !whole[s.GPU] {
			use = append(use, i)
			whole[s.GPU] = len(c.GPUs) > 0
		}
	}
	want := max(1, j.MinWidth-j.Have)
	if len(c.GPUs) > 0 {
		d.shape(c, j, mine, whole)
	} else if len(mine) < want {
		return false
	}
	if !ready || len(use) < want {
		return true
	}
	use = use[:min(len(use), max(want, j.most()))] // a claim holds no more than there was room for
	u := 0
	for _, i := range use {
		u += units(d.slices[i].Shape)
	}
	if d.lent+u > d.lendable || d.loans+len(use) > d.Cap {
		return true // needs have grown meanwhile; the claim's timeout ends it
	}
	var from *serving
	if len(use) == 1 {
		from = d.model(d.slices[use[0]].Model)
	}
	d.lendTo(use, j, from)
	return false
}

// takes reports whether the claim is for the slice as it is.
func (c *Claim) takes(s *Slice, j *Job) bool {
	if c.Cut.Size > 0 {
		return s.Start == c.Cut.Start && s.Shape.Profile == c.Cut.Profile
	}
	return fits(s.Shape, j.Needs)
}

// shape cuts those GPUs of a claim that are empty and have no slice for the job.
func (d *decision) shape(c *Claim, j *Job, mine []int, whole map[int]bool) {
	for _, g := range c.GPUs {
		empty := !whole[g]
		for _, i := range mine {
			s := &d.slices[i]
			empty = empty && (s.GPU != g || s.Phase == Free && !s.Moving && !s.Lent())
		}
		switch {
		case !empty:
		case c.Cut.Size > 0:
			d.cutAt(g, c.Cut, Move{Job: j.ID})
		default:
			d.reshape(g, j.Needs, Move{Job: j.ID})
		}
	}
}

// reshape fills an empty GPU with instances of one shape, for the job or model that
// the move names.
func (d *decision) reshape(g int, needs gpu.Shape, m Move) {
	f, ok := gpu.Lookup(d.family(g))
	if !ok || slices.ContainsFunc(d.GPUs, func(o GPU) bool { return o.Index == g && o.Shaping }) {
		return
	}
	n := smallestProfile(f, needs)
	if n < 0 {
		return
	}
	var layout []gpu.Placement
	mask := uint8(0)
	for _, p := range f.Profiles[n].Placements() {
		if mask&p.Mask() == 0 {
			layout, mask = append(layout, p), mask|p.Mask()
		}
	}
	if f.Legal(layout) != nil {
		return
	}
	d.own()
	for i := range d.slices {
		if s := &d.slices[i]; s.GPU == g {
			s.Moving = true
		}
	}
	m.Action, m.GPU, m.Layout, m.Reason = Reshape, g, layout, OtherShape
	d.plan.Moves = append(d.plan.Moves, m)
}

// family is the MIG family of a GPU; "" = it cannot be cut.
func (d *decision) family(g int) string {
	if g >= 0 && g < len(d.GPUs) && d.GPUs[g].Index == g { // mostly
		return d.GPUs[g].Family
	}
	for i := range d.GPUs {
		if d.GPUs[i].Index == g {
			return d.GPUs[i].Family
		}
	}
	return ""
}

// vacate empties a slice.
func (d *decision) vacate(i int, why Reason) {
	s := &d.slices[i]
	m := Move{Action: Vacate, Job: s.Job, Model: s.Model, Reason: why}
	if s.Lent() {
		m.Model = ""
		m.Why.Cost, m.Why.For = d.job(s.Job).Cost(), d.Now.Sub(s.Since)
		d.lent -= units(s.Shape)
		d.loans--
	}
	m.Why.Lent, m.Why.Lendable = d.lent, d.lendable
	d.apply(i, m)
}

// vacateFor stops the job on a slice for one that goes before it there.
func (l *lender) vacateFor(j *Job, t *tenant, i int) bool {
	s := &l.slices[i]
	old := l.job(s.Job)
	if cost := (room{0, units(s.Shape)}); !j.Fast() && old.Fast() {
		if l.slow+cost.slow > l.slowMax || l.overbooks(j, i, cost) {
			l.failed[l.kind(j)] = true
			return false
		}
		l.book(j, i, cost)
	}
	l.enterClaim(Claim{Job: j.ID, Slices: []string{s.ID}, Since: l.Now, Until: l.Now.Add(gatherFor + old.leaving())}, i)
	l.kept += units(s.Shape)
	t.add(partsOf(s.Shape, 1))
	l.vacate(i, ForJob)
	return true
}

// enterClaim adds a claim to the plan, on the slices that it keeps.
func (d *decision) enterClaim(c Claim, at ...int) {
	d.plan.Claims = append(d.plan.Claims, c)
	d.claims(c.Job)
	d.claimants[c.Job] = true
	if d.owner == nil {
		d.owners()
	}
	for _, i := range at {
		d.owner[i] = len(d.Claims) + len(d.plan.Claims)
	}
}

// site is one GPU on which a member of a gang could run.
type site struct {
	gpu, server int
	at          []int // its slices
	cost        time.Duration
	leave       time.Duration // the slowest stop
	wait        time.Duration // until it could be emptied: p90 of the rest of those who stay
	stays       int           // slices of jobs that do not give way
}

// unknownRest stands for the rest of a job that nobody knows.
const unknownRest = time.Hour

// gathers reports whether the job is given slices by gathering: several at once, or
// a whole GPU, for which others may have to be emptied.
func (j *Job) gathers() bool {
	return j.Gang() || j.Whole && j.most() > 1 || units(j.Needs) >= wholeUnits
}

// gather finds a gang its slices, all or none: whole GPUs from those that are
// cheapest to empty, in one server if the gang fits one, or single slices.
func (l *lender) gather(x queued) {
	j, t := x.job, x.tenant
	want := max(1, j.MinWidth-j.Have)
	if more := partsOf(j.Needs, want); x.level <= t.gang || !t.fits(more) {
		if t.ever(more) { // the tenant's other jobs wait for it
			t.gang = max(t.gang, x.level)
		}
		return
	}
	if l.loans+want > l.Cap {
		return
	}
	if units(j.Needs) < wholeUnits {
		l.gatherSlices(x, want)
		return
	}
	if f := l.kind(j); !l.failed[f] && l.gathers < mostGathers {
		l.gathers++
		l.gatherGPUs(x, want)
	}
}

// mostGathers bounds the gangs that one plan looks for GPUs for: each look goes
// through all of them.
const mostGathers = 8

// wholeUnits is how many compute slices make a member a whole GPU: what needs
// more than half of one gets one to itself.
const wholeUnits = 4

// take claims what was found and empties it; with nothing to empty it is lent at once.
// false: there is no room for it.
func (l *lender) take(j *Job, t *tenant, found []int, gpus []int) bool {
	u, cost := 0, room{}
	leave := time.Duration(0)
	for _, i := range found {
		s := &l.slices[i]
		more := costOf(j, units(s.Shape))
		u += more.all
		if s.Lent() {
			v := l.holderOf(i)
			leave, more.all = max(leave, v.leaving()), 0
			if !v.Fast() {
				more.slow = 0
			}
		}
		cost.all, cost.slow = cost.all+more.all, cost.slow+more.slow
	}
	if !l.spare().holds(cost) || l.overbooks(j, found[0], cost) {
		return false
	}
	l.book(j, found[0], cost)
	t.add(partsOf(j.Needs, max(len(found), len(gpus))))
	c := Claim{Job: j.ID, GPUs: gpus, Since: l.Now, Until: l.Now.Add(gatherFor + leave)}
	if len(gpus) == 0 {
		for _, i := range found {
			c.Slices = append(c.Slices, l.slices[i].ID)
		}
	}
	if l.advance(&c, j, found) {
		l.enterClaim(c, found...)
		l.kept += u
	}
	return true
}

// gatherGPUs takes the whole GPUs that are cheapest to empty. If too few can be
// emptied now, those that will be soonest are kept for the gang: nobody moves in
// who could not be stopped for it and would not be over by then (backfill).
func (l *lender) gatherGPUs(x queued, want int) {
	j := x.job
	best := l.sites(j, want)
	if best == nil {
		l.failed[l.kind(j)] = want == 1
		return
	}
	wait := time.Duration(0)
	for _, s := range best {
		wait = max(wait, s.wait)
	}
	if wait > 0 && !l.turn {
		return // nothing is kept from those who stand before it either
	}
	if wait > 0 {
		var at []int
		for _, s := range best {
			at = append(at, s.at...)
		}
		l.reserve(&reservation{job: j, level: x.level, until: l.Now.Add(wait)}, at)
		return
	}
	var found, gpus []int
	for _, s := range best {
		found, gpus = append(found, s.at...), append(gpus, s.gpu)
	}
	slices.Sort(gpus)
	slices.Sort(found)
	l.take(j, x.tenant, found, gpus)
}

// sites are the GPUs for a gang: of all servers that have as many, or of all GPUs
// if no server has, those that are to be had first, and of these the cheapest.
func (l *lender) sites(j *Job, want int) []site {
	servers := map[int][]site{}
	var all []site
	for _, s := range l.everySite(j) {
		servers[s.server] = append(servers[s.server], s)
		all = append(all, s)
	}
	sum := func(list []site) (wait, cost time.Duration) {
		for _, s := range list {
			wait, cost = max(wait, s.wait), cost+s.cost
		}
		return wait, cost
	}
	firstOf := func(list []site) []site {
		slices.SortStableFunc(list, func(a, b site) int {
			return cmp.Or(cmp.Compare(a.wait, b.wait), cmp.Compare(a.stays, b.stays), cmp.Compare(a.cost, b.cost), a.gpu-b.gpu)
		})
		return list[:want]
	}
	var best []site
	names := []int{}
	for name := range servers {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if len(servers[name]) < want {
			continue
		}
		mine := firstOf(servers[name])
		w, c := sum(mine)
		bw, bc := sum(best)
		if best == nil || w < bw || w == bw && c < bc {
			best = mine
		}
	}
	if best == nil && len(all) >= want && !l.fitsServer(want) {
		best = firstOf(all)
	}
	return best
}

// fitsServer reports whether some server has as many GPUs at all.
func (l *lender) fitsServer(want int) bool {
	count := map[int]int{}
	for i := range l.GPUs {
		if count[l.GPUs[i].Server]++; count[l.GPUs[i].Server] >= want {
			return true
		}
	}
	return false
}

// everySite looks at each GPU for a member of the gang.
func (l *lender) everySite(j *Job) []site {
	all := make([]site, 0, len(l.GPUs))
	for i := range l.GPUs {
		g := &l.GPUs[i]
		n, ok := l.cardAt[g.Index]
		if !ok || !g.Health.OK && g.Health.Reason != "" {
			continue
		}
		x := site{gpu: g.Index, server: g.Server, at: l.cards[n].at}
		for _, i := range x.at {
			if x.add(l, &l.slices[i], i, j); x.stays >= unusable {
				break
			}
		}
		all = append(all, x)
	}
	return slices.DeleteFunc(all, func(s site) bool { return s.stays >= unusable || len(s.at) == 0 })
}

// unusable is more slices than a GPU can have.
const unusable = 1 << 16

// add takes one slice of the GPU into account.
func (x *site) add(l *lender, s *Slice, i int, j *Job) {
	whole := fits(s.Shape, j.Needs)
	if !whole && l.family(s.GPU) == "" {
		x.stays += unusable
		return
	}
	switch {
	case s.Phase == Unhealthy || s.Moving || l.closed(s) || l.pinned(s) || l.claimed(i) || l.keptForGang(i, j):
		x.stays += unusable
	case s.Lent():
		v := l.holderOf(i)
		if !l.yields(v, j, l.turn) {
			x.stays, x.wait = x.stays+1, max(x.wait, restOf(v))
			return
		}
		x.cost += l.preemptCost(v) + time.Second
		x.leave = max(x.leave, v.leaving())
	case s.Phase == Asleep: // its model will have to start from cold
		x.cost += 10 * time.Second
		if m := l.model(s.Model); m != nil {
			x.cost += max(0, m.Cold-m.Back)
		}
	case s.Phase != Free:
		x.stays += unusable
	}
	if s.Lent() && s.Model != "" {
		x.cost += 10 * time.Second
	}
}
