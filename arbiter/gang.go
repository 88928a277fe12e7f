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
func (l *lender) gatherSlices(j *Job, t *tenant, want int) {
	// A gang that finds too few is no reason for smaller ones, or single jobs, not
	// to look.
	f := search{failure{j.Needs, j.Priority, false}, "gang of " + strconv.Itoa(want)}
	if l.dry[f] || l.veto != "" {
		return
	}
	found := l.idleFor(j, t, want)
	if len(found) < want {
		if with := l.surplusFor(j, found, want); len(with) == want {
			l.lendGang(with, j, t)
			return
		}
		found = l.victimsFor(j, found, want)
	}
	if len(found) < want {
		l.dry[f] = true
		l.explain(j)
		return
	}
	l.take(j, t, found, nil)
}

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
			if len(found) >= want && (l.lent+l.kept+u > l.lendable || !j.Fast() && l.slow+u > l.slowMax ||
				l.loans+len(found) >= l.Cap || !t.fits(float64(len(found)+1)*j.Needs.Weight())) {
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
				if reason, ok := l.mayLend(j, c, c, u+more); !ok {
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

// victimsFor fills up with slices of jobs of lower priority.
func (l *lender) victimsFor(j *Job, found []int, want int) []int {
	for _, o := range l.shapes(j.Needs) {
		for _, i := range o.careVictims {
			s := &l.slices[i]
			if len(found) < want && s.Lent() && l.free(i, j) && l.aged(l.Now, l.holderOf(i)) < j.Priority {
				found = append(found, i)
			}
		}
	}
	return found
}

// lendGang gives a gang slices on which nobody has to be stopped.
func (l *lender) lendGang(at []int, j *Job, t *tenant) {
	for _, i := range at {
		s := &l.slices[i]
		t.has += s.Shape.Weight()
		if !j.Fast() {
			l.slow += units(s.Shape)
		}
		if s.Phase == Ready {
			l.gave[s.Model]++
		}
	}
	l.lendTo(at, j, nil)
}
