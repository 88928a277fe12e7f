package arbiter

import (
	"cmp"
	"slices"

	"aloft/gpu"
)

// search is one way of looking for a slice. What found nothing finds nothing in
// the rest of the plan either, since what there is to lend only grows less.
type search struct {
	failure
	way string
}

// failure is a kind of job for which nothing was found: the next of its kind
// need not look again in the same plan.
type failure struct {
	needs    gpu.Shape
	priority int
	light    bool
	passes   uint16
}

func (l *lender) kind(j *Job) failure { return failure{j.Needs, j.Priority, j.Light(), l.passes(j)} }

// elsewhere reports whether light work that makes room for j finds another slice.
func (l *lender) elsewhere(j *Job) bool {
	for _, o := range l.shapes(j.Needs) {
		for _, list := range [][]int{o.light, o.lightVictims} {
			for _, i := range list {
				s := &l.slices[i]
				if s.Moving || l.claimed(i) {
					continue
				}
				if s.Lent() && l.holderOf(i).Priority >= j.Priority {
					break // sorted by priority
				}
				if !l.oversize(s, j.Needs) {
					return true
				}
			}
		}
	}
	return false
}

// shapes are what there is of the sizes of slices that do for the job, the
// smallest first.
func (l *lender) shapes(needs gpu.Shape) []*offers {
	if known, ok := l.fitting[needs]; ok {
		return known
	}
	var sizes []gpu.Shape
	for s := range l.byShape {
		if fits(s, needs) {
			sizes = append(sizes, s)
		}
	}
	slices.SortFunc(sizes, func(a, b gpu.Shape) int {
		return cmp.Or(cmp.Compare(a.Weight(), b.Weight()), cmp.Compare(a.Bytes, b.Bytes), cmp.Compare(a.Profile, b.Profile))
	})
	all := make([]*offers, 0, len(sizes))
	for _, s := range sizes {
		all = append(all, l.byShape[s])
	}
	l.fitting[needs] = all
	return all
}

// oversize is a slice so much larger than what is asked for that its GPU is cut
// anew instead, where it can be.
func (d *decision) oversize(s *Slice, needs gpu.Shape) bool {
	return units(s.Shape) >= 2*units(needs) && d.family(s.GPU) != ""
}

// way is a kind of slice to look for.
type way struct {
	name  string
	idle  bool // or lent
	firm  bool // only where no replica sleeps
	moves bool // only from light work of the same priority, which moves over
}

var ways = map[bool][]way{
	true: {{name: "idle", idle: true}, {name: "lent"}},
	false: {{name: "firm idle", idle: true, firm: true}, {name: "firm lent", firm: true}, {name: "firm light", firm: true, moves: true},
		{name: "idle", idle: true}, {name: "lent"}},
}

// pick finds a slice for the job; −1 = none.
func (l *lender) pick(j *Job, w way) int {
	for _, o := range l.shapes(j.Needs) {
		list := &o.careful
		switch {
		case w.idle && j.Light():
			list = &o.light
		case !w.idle && j.Light():
			list = &o.lightVictims
		case !w.idle:
			list = &o.careVictims
		}
		if i := l.first(list, j, w); i >= 0 {
			return i
		}
	}
	return -1
}

// gives reports whether what is on a lent slice gives way to j.
func (l *lender) gives(i int, j *Job, w way) bool {
	v := l.holderOf(i)
	if w.moves {
		return v.Light() && v.Priority == j.Priority && v.stopped(l.Now) < l.mostStops()
	}
	return l.aged(l.Now, v) < j.Priority
}

// first takes the first slice of a list off that is still to be had.
func (l *lender) first(list *[]int, j *Job, w way) int {
	skipped := 0
	for k, i := range *list {
		s := &l.slices[i]
		if s.Moving || l.claimed(i) {
			if k == skipped { // gone for good: nobody looks at it again
				skipped++
			}
			continue
		}
		if !w.idle && l.holderOf(i).Priority > j.Priority {
			break // sorted by priority
		}
		if w.firm && s.Model != "" || !w.idle && !l.gives(i, j, w) || l.keptForGang(i, j) || l.oversize(s, j.Needs) {
			continue
		}
		*list = (*list)[skipped:]
		return i
	}
	*list = (*list)[skipped:]
	return -1
}

// pickSurplus finds a replica of the model that has most to spare.
func (l *lender) pickSurplus(j *Job) int {
	if l.Mode == ModeStatic || !l.Plan {
		return -1
	}
	best, most := -1, 0
	for _, o := range l.shapes(j.Needs) {
		for k := range o.surplus {
			x := &o.surplus[k]
			c := l.model(x.model)
			if c == nil || c.Frozen || c.Have-c.Fast < max(most, 1) || l.gave[c.Name] >= c.atOnce() {
				continue
			}
			i := l.firstSpare(x, j)
			if i >= 0 && (c.Have-c.Fast > most || i < best) {
				best, most = i, c.Have-c.Fast
			}
		}
		if best >= 0 {
			break
		}
	}
	return best
}

// firstSpare is the first of a model's ready replicas that is still to be had; −1 = none.
func (l *lender) firstSpare(x *modelSurplus, j *Job) int {
	for len(x.at) > 0 && l.slices[x.at[0]].Moving { // gone for good
		x.at = x.at[1:]
	}
	for _, i := range x.at {
		if !l.slices[i].Moving && !l.keptForGang(i, j) && !l.misfit(i, j.Needs) {
			return i
		}
	}
	return -1
}

// atOnce is how many ready replicas a model may give up in one plan. Headroom is
// known only for what was: without a law one, so that its effect is seen; with
// one an eighth, so that a day curve can be followed and survivors never have
// more than 8/7 of their load at a step (Dynamo #9294).
func (c *serving) atOnce() int {
	if !c.Law.Learned() {
		return 1
	}
	return max(1, c.Have/8)
}
