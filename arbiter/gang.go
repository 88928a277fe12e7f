package arbiter

import (
	"slices"
	"strconv"
)

// most is how many slices a job may be given in one go: a gang what it needs, one
// of flexible width all that it can use.
func (j *Job) most() int {
	if j.Whole {
		return j.MaxWidth
	}
	return max(1, j.MinWidth-j.Have)
}

// gatherSlices finds a gang its slices: idle ones first, of which one of flexible
// width takes more than it needs; then ready replicas that are not needed, or what
// jobs of lower priority hold.
func (l *lender) gatherSlices(x queued, want int) {
	j, t := x.job, x.tenant
	// A gang that finds too few is no reason for smaller ones, or single jobs, not
	// to look.
	f := search{l.kind(j), "gang of " + strconv.Itoa(want)}
	if l.dry[f] || l.veto != "" {
		return
	}
	found := l.idleFor(j, t, want)
	if len(found) < want {
		if with := l.surplusFor(j, found, want); len(with) == want {
			l.lendGang(with, j, t)
			return
		}
	} else if len(found) > want { // of one of flexible width what there is room for
		l.dry[f] = !l.take(j, t, found, nil)
		return
	}
	all := l.berths(j, want)
	on, _, _, ok := berthing(all, nil, want, l.spare())
	if ok && l.take(j, t, indices(on), nil) {
		return
	}
	l.dry[f] = true
	l.explain(j)
	if l.lookedAhead == mostGathers || slices.ContainsFunc(l.reservations, func(r *reservation) bool { return r.small }) {
		return
	}
	l.lookedAhead++
	more, ends := l.later(j)
	on, wait, left, ok := berthing(append(all, more...), ends, want, l.spare())
	idle := 0 // of those that it would keep
	for _, b := range on {
		if !l.slices[b.i].Lent() {
			idle++
		}
	}
	if ok && wait > 0 && l.before+idle <= max(idle, l.forSingles()) {
		l.reserve(&reservation{job: j, level: x.level, until: l.Now.Add(wait), room: left, small: true}, indices(on))
	}
}

// spare is what may be lent beside what is.
func (l *lender) spare() room { return room{l.lendable - l.lent - l.kept, l.slowMax - l.slow} }

// free reports whether a slice of a list may go to the gang.
func (l *lender) free(i int, j *Job) bool {
	s := &l.slices[i]
	return !s.Moving && !l.claimed(i) && !l.keptForGang(i, j) && !l.oversize(s, j.Needs)
}

// idleFor takes idle slices, more than want only while there is room for them.
func (l *lender) idleFor(j *Job, t *tenant, want int) (found []int) {
	u := 0
	for _, o := range l.shapes(j.Needs) {
		for _, i := range o.careful {
			if len(found) == max(want, j.most()) {
				return found
			}
			if !l.free(i, j) {
				continue
			}
			u += units(l.slices[i].Shape)
			if cost := costOf(j, u); len(found) >= want && (!l.spare().holds(cost) || l.overbooks(j, i, cost) ||
				l.loans+len(found) >= l.Cap || !t.fits(partsOf(j.Needs, len(found)+1))) {
				return found
			}
			found = append(found, i)
		}
	}
	return found
}

// surplusFor fills up with ready replicas that are not needed. A gang cannot wait
// for the effect of the first that goes, as single jobs do: it takes as many as it
// lacks, but never one that its model needs within the horizon.
func (l *lender) surplusFor(j *Job, found []int, want int) []int {
	if l.Mode == ModeStatic || !l.Plan {
		return nil
	}
	found = slices.Clone(found)
	u, out := 0, map[*serving]int{}
	for _, i := range found {
		u += units(l.slices[i].Shape)
	}
	for _, o := range l.shapes(j.Needs) {
		for _, of := range o.surplus {
			c := l.model(of.model)
			if c == nil || c.Have <= c.Fast {
				continue
			}
			for _, i := range of.at {
				more := units(l.slices[i].Shape)
				if len(found) == want || !l.free(i, j) || out[c] == c.Have-c.Fast {
					continue
				}
				reason, ok := l.mayLend(j, c, c, u+more)
				if ok && l.overbooks(j, i, costOf(j, u+more)) {
					reason, ok = ForJob, false
				}
				if !ok {
					l.hold(i, j, c, reason)
					break
				}
				u, found = u+more, append(found, i)
				out[c]++
			}
		}
	}
	return found
}

// lendGang gives a gang slices on which nobody has to be stopped.
func (l *lender) lendGang(at []int, j *Job, t *tenant) {
	for _, i := range at {
		s := &l.slices[i]
		t.add(partsOf(s.Shape, 1))
		l.book(j, i, costOf(j, units(s.Shape)))
		if s.Phase == Ready {
			l.gave[s.Model]++
		}
	}
	l.lendTo(at, j, nil)
}
