package arbiter

import (
	"cmp"
	"slices"

	"aloft/gpu"
)

// offers are the slices that a plan may give to jobs, of one size, in the order
// in which they are given. Work that is cheap to stop (light) goes where serving
// comes back first; what must save or would lose everything (careful) goes where
// serving never was, close together, so that whole GPUs stay free for gangs.
type offers struct {
	careful, light []int // idle ones
	surplus        []modelSurplus
	careVictims    []int // lent, by the priority of their jobs
	lightVictims   []int
}

// modelSurplus are the ready replicas of one model, not all of which it may need.
type modelSurplus struct {
	model string
	at    []int
}

// lender is the state of one lendAll.
type lender struct {
	*decision
	byShape     map[gpu.Shape]*offers
	slow        int            // compute slices lent to work that must save first
	gave        map[string]int // ready replicas given up, by model
	failed      map[failure]bool
	veto        Reason  // of every loan; "" = none
	cards       []card1 // by slice's GPU; see cardAt
	cardAt      map[int]int
	ofSlice     []int32                 // the card of each slice
	gathers     int                     // gangs that GPUs were looked for
	lookedAhead int                     // gangs of slices that it was worked out for when they can start
	fitting     map[gpu.Shape][]*offers // see shapes
	dry         map[search]bool
	idle        int // slices that nobody uses
	// turn says of the gang that is looked at that an idle slice may be lent to every
	// single job that stands before it: only then equals give way to it, or a GPU is
	// kept for it. Emptying one of light work while such jobs wait makes seven more
	// of them wait, for as long as the gang runs.
	turn   bool
	before int // how many such jobs there are

	reservations []*reservation
	reserved     []*reservation // by slice; nil = there are none
}

// card1 is what a plan knows of one GPU.
type card1 struct {
	at      []int // its slices
	serves  int   // slices with a replica on them, asleep or awake
	careful int   // slices lent to work that is kept
}

// lendAll gives slices to waiting jobs in their order.
func (d *decision) lendAll() {
	l := &lender{decision: d, byShape: map[gpu.Shape]*offers{}, gave: map[string]int{}, failed: map[failure]bool{}, dry: map[search]bool{},
		fitting: map[gpu.Shape][]*offers{}, slow: d.slowLent()}
	l.survey()
	l.veto = l.vetoAll()
	q := d.newQueue(d.Snapshot)
	// Gangs first: what they gather or keep for later must be known before a job
	// moves in that would hold them up.
	var singles []queued
	first := 0 // jobs of one slice that stand before the gang and have none
	for x := q.next(); x.tenant != nil; x = q.next() {
		switch {
		case x.job.Broken():
			l.disband(x.job)
		case d.claims(x.job.ID):
		case x.job.gathers():
			l.before, l.turn = first, first <= l.forSingles()
			l.gather(x)
		default:
			if x.have == 0 {
				first++
			}
			singles = append(singles, x)
		}
	}
	q.refill(singles)
	for x := q.next(); x.tenant != nil; x = q.next() {
		for x.have < x.job.MaxWidth && l.one(x.job, x.tenant) {
			if x.have++; d.claims(x.job.ID) || q.push(x) { // others have their turn
				break
			}
		}
	}
	l.recast(singles)
	l.recut()
}

// forSingles is how many idle slices may be lent to single jobs.
func (l *lender) forSingles() int { return max(0, min(l.idle, l.lendable-l.lent-l.kept)) }

// disband empties what a gang still holds that has lost a member. It cannot run on
// that, and is not made whole either: by the time the missing member came, another
// could be on its way out. So a gang always starts from nothing.
func (d *decision) disband(j *Job) {
	for i := range d.slices {
		if s := &d.slices[i]; s.Job == j.ID && !s.Moving && s.Phase != Unhealthy && !d.closed(s) {
			d.vacate(i, LostMember)
		}
	}
}

// survey sorts what there is to lend.
func (l *lender) survey() {
	l.byCard()
	for i := range l.slices {
		s, c := &l.slices[i], l.card(i)
		if s.Model != "" || s.Moving && !s.Lent() && l.model(s.To) != nil {
			c.serves++
		}
		if s.Lent() && !l.holderOf(i).Light() {
			c.careful++
		}
		if s.Moving && s.Lent() {
			l.gave[s.Model]++
		}
	}
	for i := range l.slices {
		s := &l.slices[i]
		if s.Moving || s.Phase == Unhealthy || l.closed(s) || l.pinned(s) || l.claimed(i) {
			continue
		}
		o := l.byShape[s.Shape]
		if o == nil {
			o = &offers{}
			l.byShape[s.Shape] = o
		}
		switch {
		case s.Lent():
			o.careVictims = append(o.careVictims, i)
		case s.Phase == Free || s.Phase == Asleep:
			l.idle++
			o.careful = append(o.careful, i)
		case s.Phase == Ready:
			o.spare(s.Model, i)
		}
	}
	for _, o := range l.byShape {
		o.light, o.lightVictims = slices.Clone(o.careful), slices.Clone(o.careVictims)
		slices.SortFunc(o.careful, func(a, b int) int { return l.carefulFirst(a, b) })
		slices.SortFunc(o.light, func(a, b int) int { return l.lightFirst(a, b) })
		slices.SortFunc(o.careVictims, func(a, b int) int { return cmp.Or(l.victimFirst(a, b), l.carefulFirst(a, b)) })
		slices.SortFunc(o.lightVictims, func(a, b int) int { return cmp.Or(l.victimFirst(a, b), l.lightFirst(a, b)) })
	}
}

// byCard gathers the slices by GPU.
func (l *lender) byCard() {
	l.cardAt, l.ofSlice = make(map[int]int, len(l.GPUs)), make([]int32, len(l.slices))
	last := -1 // the slices of a GPU mostly lie side by side
	for i := range l.slices {
		g := l.slices[i].GPU
		if i == 0 || l.slices[i-1].GPU != g {
			n, ok := l.cardAt[g]
			if !ok {
				n = len(l.cards)
				l.cardAt[g], l.cards = n, append(l.cards, card1{})
			}
			last = n
		}
		l.ofSlice[i] = int32(last)
		l.cards[last].at = append(l.cards[last].at, i)
	}
}

// card is the GPU of a slice.
func (l *lender) card(i int) *card1 { return &l.cards[l.ofSlice[i]] }

// spare adds a ready replica.
func (o *offers) spare(model string, i int) {
	n := slices.IndexFunc(o.surplus, func(m modelSurplus) bool { return m.model == model })
	if n < 0 {
		n, o.surplus = len(o.surplus), append(o.surplus, modelSurplus{model: model})
	}
	o.surplus[n].at = append(o.surplus[n].at, i)
}

func (l *lender) carefulFirst(a, b int) int {
	x, y := &l.slices[a], &l.slices[b]
	p, q := l.card(a), l.card(b)
	return cmp.Or(asleep(x)-asleep(y), p.serves-q.serves, q.careful-p.careful, a-b)
}

func (l *lender) lightFirst(a, b int) int {
	x, y := &l.slices[a], &l.slices[b]
	return cmp.Or(l.card(b).serves-l.card(a).serves, asleep(x)-asleep(y), a-b)
}

func (l *lender) victimFirst(a, b int) int {
	return cmp.Compare(l.holderOf(a).Priority, l.holderOf(b).Priority)
}

func asleep(s *Slice) int {
	if s.Model != "" {
		return 1
	}
	return 0
}

// one finds the job one slice: an idle one, one that a job of lower priority
// holds, or a ready replica's that is not needed. Work that is kept looks first
// where serving does not come back; before it takes a slice that serving may want
// again, light work of its own priority makes room for it there and moves over.
func (l *lender) one(j *Job, t *tenant) bool {
	f := l.kind(j)
	if l.failed[f] || !t.fits(partsOf(j.Needs, 1)) || t.gang != noGang && l.level(j) <= t.gang {
		return false
	}
	for _, way := range ways[j.Light()] {
		if l.dry[search{f, way.name}] {
			continue
		}
		i := l.pick(j, way)
		if i < 0 {
			l.dry[search{f, way.name}] = true
			continue
		}
		if l.slices[i].Lent() {
			if way.moves && !l.elsewhere(j) {
				continue
			}
			return l.vacateFor(j, t, i)
		}
		_, ok := l.try(i, j, t, l.model(l.slices[i].Model))
		return ok
	}
	for i := l.pickSurplus(j); i >= 0; i = l.pickSurplus(j) {
		from := l.model(l.slices[i].Model)
		why, ok := l.try(i, j, t, from)
		if ok {
			return true
		}
		if why == NotWorthIt { // for this job
			break
		}
		l.gave[from.Name] = from.Have // not this model in this plan; another perhaps
	}
	l.failed[f] = true
	l.explain(j)
	return false
}

// explain notes why a job has found no slice to ask for: a replica that it would
// fit is needed, or a maintenance window keeps it.
func (l *lender) explain(j *Job) {
	if l.Mode == ModeStatic || !l.Plan {
		return
	}
	for i := range l.slices {
		s := &l.slices[i]
		if s.Phase != Ready || s.Moving || s.Lent() || !fits(s.Shape, j.Needs) || l.oversize(s, j.Needs) || l.closed(s) || l.pinned(s) || l.claimed(i) {
			continue
		}
		switch c := l.model(s.Model); {
		case c == nil:
		case l.Frozen || c.Frozen:
			l.hold(i, j, c, OverLimit)
			return
		case c.Have <= c.Fast:
			l.hold(i, j, c, NeededSoon)
			return
		}
	}
}

// try lends slice i to the job unless something speaks against it.
func (l *lender) try(i int, j *Job, t *tenant, from *serving) (Reason, bool) {
	serves := from
	if l.slices[i].Phase != Ready {
		serves = nil // nothing goes out: no wait to pay for it
	}
	cost := costOf(j, units(l.slices[i].Shape))
	reason, ok := l.mayLend(j, from, serves, cost.all)
	if ok && l.overbooks(j, i, cost) {
		reason, ok = ForJob, false
	}
	if !ok {
		l.hold(i, j, from, reason)
		l.failed[l.kind(j)] = true
		return reason, false
	}
	l.book(j, i, cost)
	if serves != nil {
		l.gave[from.Name]++
	}
	t.add(partsOf(l.slices[i].Shape, 1))
	l.lendTo([]int{i}, j, from)
	return "", true
}

// vetoAll is what speaks against every new loan.
func (l *lender) vetoAll() Reason {
	switch {
	case l.loans >= l.Cap:
		return CapReached
	case l.Now.Sub(l.RoomFrom) < l.Hold && !l.allLaws():
		return NotLongYet
	}
	for i := range l.models { // spares are shared: a model in trouble vetoes every loan
		if c := &l.models[i]; c.Room != nil && *c.Room < l.ReclaimBelow && c.Have < c.share() {
			return LowHeadroom
		}
	}
	return ""
}

func (d *decision) allLaws() bool {
	for i := range d.models {
		if !d.models[i].Law.Learned() {
			return false
		}
	}
	return true
}

// mayLend applies the vetoes: safe set, cap, limits, headroom, hold, value. from
// is the model that lent it, serves the same if a ready replica has to go.
func (l *lender) mayLend(j *Job, from, serves *serving, u int) (Reason, bool) {
	switch {
	case l.lent+l.kept+u > l.lendable || !j.Fast() && l.slow+u > l.slowMax:
		return NeededSoon, false
	case l.loans >= l.Cap:
		return CapReached, false
	case l.Frozen || from != nil && (from.Frozen || from.LendLimit > 0 && from.lent >= from.LendLimit):
		return OverLimit, false
	case l.veto != "":
		return l.veto, false
	case serves == nil:
		return "", true
	}
	if serves.Law.Learned() {
		// A law that was replayed on the model's own past stands for the headroom that
		// too few samples do not give: at night there are never enough.
		if serves.Room != nil && *serves.Room < l.ReclaimBelow {
			return LowHeadroom, false
		}
		return l.worth(j, serves)
	}
	switch {
	case serves.Room != nil && *serves.Room < l.LendAbove:
		return LowHeadroom, false
	case serves.Room == nil && serves.Traffic():
		return NoHeadroom, false
	case !serves.Reclaimed.IsZero() && l.Now.Sub(serves.Reclaimed) < l.AfterReclaim:
		return NotLongYet, false
	// Ski rental: with no forecast of the idle time, wait as long as going out
	// and coming back costs before paying for it.
	case serves.SurplusFrom.IsZero() || l.Now.Sub(serves.SurplusFrom) < max(l.Hold, serves.Out+serves.Back):
		return NotLongYet, false
	}
	return "", true
}

// worth is the value test of a loan for which a replica goes to sleep.
func (l *lender) worth(j *Job, from *serving) (Reason, bool) {
	idle := from.Law.Hold
	if !from.SurplusFrom.IsZero() {
		idle += l.Now.Sub(from.SurplusFrom)
	}
	if j.Light() { // the law has weighed what light work costs
		return "", true
	}
	w := Worth{Idle: idle, Rest: j.Rest, Chance: 1, Stop: j.Restart + min(j.Grace, j.Save), OutBack: from.Out + from.Back + j.Restart}
	if w.Value() <= 0 {
		return NotWorthIt, false
	}
	return "", true
}

// lendTo gives slices to the job, several to a gang.
func (d *decision) lendTo(at []int, j *Job, from *serving) {
	m := Move{Action: Lend, Job: j.ID, Reason: NoNeed}
	who := Model{}
	if from != nil {
		who, m.Model, m.Why = *from.Model, from.Name, from.Numbers
		m.Why.Cost = from.Back
		if d.slices[at[0]].Phase == Ready {
			m.Reason = Surplus
			m.Why.Cost = from.Out + from.Back
			if !from.SurplusFrom.IsZero() {
				m.Why.For = d.Now.Sub(from.SurplusFrom)
			}
			m.Why.Gain = m.Why.For // what lasted t is expected to last t again
		}
	}
	cold := false // some of it would have to start from nothing
	for _, i := range at {
		s := &d.slices[i]
		cold = cold || s.Model == ""
		c := d.model(s.Model)
		if c == nil {
			continue
		}
		if c.lent++; s.Phase == Ready {
			c.Have--
			m.Reason = Surplus
		}
	}
	for i := range d.Models { // whoever takes it back must be able to keep the promise
		m := &d.Models[i]
		if !fits(d.slices[at[0]].Shape, m.Needs) {
			continue
		}
		if who.Back = max(who.Back, m.Back); cold {
			who.Cold = max(who.Cold, m.Cold)
		} else {
			who.Cold = 0
		}
	}
	for _, i := range at {
		d.lent += units(d.slices[i].Shape)
		d.loans++
		if i != at[0] {
			m.Gang = append(m.Gang, d.slices[i].ID)
		}
	}
	m.Why.Lent, m.Why.Lendable = d.lent, d.lendable
	m.Bound = d.coldBound(*j, who)
	d.apply(at[0], m)
	for _, i := range at[1:] {
		s := &d.slices[i]
		s.Moving, s.Job, s.To = true, j.ID, j.ID
	}
}

// hold notes, once a slice and plan, that the first in the queue does not get it.
func (d *decision) hold(i int, j *Job, from *serving, why Reason) {
	if slices.ContainsFunc(d.plan.Holds, func(h Move) bool { return h.Slice == d.slices[i].ID }) {
		return
	}
	m := Move{Action: Hold, Slice: d.slices[i].ID, Job: j.ID, Reason: why}
	if from != nil {
		m.Model, m.Why = from.Name, from.Numbers
		m.Why.Cost, m.Why.Gain = from.Out+from.Back, from.Law.Hold // what lasted t is expected to last t again
		if !from.SurplusFrom.IsZero() {
			m.Why.For = d.Now.Sub(from.SurplusFrom)
			m.Why.Gain += m.Why.For
		}
	}
	m.Why.Lent, m.Why.Lendable = d.lent, d.lendable
	d.plan.Holds = append(d.plan.Holds, m)
}
