package arbiter

import (
	"cmp"
	"slices"
	"time"
)

// reservation is what a gang that cannot start yet will start on: slices that are
// kept for it as they fall free, and what may be lent to it. Others may have them
// meanwhile if that does not delay it (backfill). Without it a gang would starve
// behind single jobs without end, each of which takes the one slice that is free.
//
// It is worked out anew by every plan, and yet the gang starts: whoever would delay
// it moves in on nothing that is kept, so that what is free for it only grows, until
// the jobs that run when it begins to be kept have ended.
type reservation struct {
	job     *Job
	level   int       // of the queue; who stands higher goes before it
	until   time.Time // when it expects to start
	trusted bool      // see trustEnds
	room              // what may still be lent beyond that; of the small gang's alone
	small   bool
}

// room is compute slices that may be lent: in all, and to work that must save first.
type room struct{ all, slow int }

func (r room) less(o room) room  { return room{r.all - o.all, r.slow - o.slow} }
func (r room) holds(o room) bool { return o.all <= r.all && o.slow <= r.slow }

// trustEnds is how long a gang of slices waits before nobody moves in any more by the time when
// it says that it will be over: of times that never come true there could be no end.
// For whole GPUs such times are believed always: seven slices are kept for each.
const trustEnds = 30 * time.Minute

// berth is a slice on which a member of a gang could run.
type berth struct {
	i    int
	free time.Duration // until it can be had: 0 = it is idle, or its job gives way; else the rest of its job
	cost room          // what may be lent less, once the gang is there
}

// ending is a job's slice that may be lent anew when the job is over.
type ending struct {
	after time.Duration
	frees room
}

// berthing finds when a gang of so many can start at the earliest, and where: of the
// slices that can be had by then it takes the first in their order whose cost there
// is room for. left is the room beside the gang at that time. It looks for the time
// by halves, since with time there are only more slices, and only more room.
func berthing(all []berth, ends []ending, want int, has room) (on []berth, wait time.Duration, left room, ok bool) {
	at := func(wait time.Duration) (on []berth, left room) {
		left = has
		for _, e := range ends {
			if e.after <= wait {
				left.all, left.slow = left.all+e.frees.all, left.slow+e.frees.slow
			}
		}
		for _, b := range all {
			if len(on) < want && b.free <= wait && left.holds(b.cost) {
				on, left = append(on, b), left.less(b.cost)
			}
		}
		return on, left
	}
	times := []time.Duration{0}
	for _, b := range all {
		times = append(times, b.free)
	}
	for _, e := range ends {
		times = append(times, e.after)
	}
	slices.Sort(times)
	times = slices.Compact(times)
	n, _ := slices.BinarySearchFunc(times, want, func(t time.Duration, want int) int {
		on, _ := at(t)
		return cmp.Compare(len(on), want)
	})
	if n == len(times) {
		return nil, 0, room{}, false
	}
	on, left = at(times[n])
	return on, times[n], left, true
}

func indices(on []berth) []int {
	at := make([]int, len(on))
	for k, b := range on {
		at[k] = b.i
	}
	return at
}

// yields reports whether a job that runs is stopped for a gang, whose turn it is or
// not: see lender.turn.
func (l *lender) yields(v, gang *Job, turn bool) bool {
	p := l.aged(l.Now, v)
	return p < gang.Priority || p == gang.Priority && turn && v.Light() && v.stopped(l.Now) < l.mostStops()
}

// restOf is how long a job that runs is thought to run yet.
func restOf(j *Job) time.Duration { return cmp.Or(j.Rest, unknownRest) }

// berths lists where so many members could run now: idle slices first, then those of
// jobs that give way; no more of a kind than there are members, since what one costs
// grows with its size, and the smallest come first.
func (l *lender) berths(j *Job, want int) (all []berth) {
	var n, fast, slow int
	for _, o := range l.shapes(j.Needs) {
		for _, i := range o.careful {
			if n == want {
				break
			}
			if l.free(i, j) {
				n, all = n+1, append(all, berth{i: i, cost: costOf(j, units(l.slices[i].Shape))})
			}
		}
	}
	for _, o := range l.shapes(j.Needs) {
		for _, i := range o.careVictims {
			v := l.holderOf(i)
			if v.Priority > j.Priority || fast == want && slow == want {
				break // sorted by priority
			}
			if !l.slices[i].Lent() || !l.yields(v, j, l.turn) || !l.free(i, j) {
				continue
			}
			switch {
			case j.Fast() || !v.Fast():
				if slow < want {
					slow, all = slow+1, append(all, berth{i: i})
				}
			case fast < want:
				fast, all = fast+1, append(all, berth{i: i, cost: room{0, units(l.slices[i].Shape)}})
			}
		}
	}
	return all
}

// later lists where they could run once the jobs that are there have ended, and the
// ends of all jobs that do not give way.
func (l *lender) later(j *Job) (all []berth, ends []ending) {
	for i := range l.slices {
		s := &l.slices[i]
		if !s.Lent() || s.Phase == Unhealthy {
			continue
		}
		v := l.holderOf(i)
		if l.yields(v, j, l.turn) {
			continue
		}
		e := ending{restOf(v), costOf(v, units(s.Shape))}
		ends = append(ends, e)
		if fits(s.Shape, j.Needs) && !l.oversize(s, j.Needs) && !l.closed(s) && !l.pinned(s) && !l.claimed(i) && !l.keptForGang(i, j) {
			all = append(all, berth{i, e.after, costOf(j, e.frees.all)})
		}
	}
	slices.SortFunc(all, func(a, b berth) int { return cmp.Or(cmp.Compare(a.free, b.free), a.i-b.i) })
	return all, ends
}

// reserve keeps slices for a gang.
func (l *lender) reserve(r *reservation, at []int) {
	r.trusted = !r.small || l.Now.Sub(r.job.waitsSince()) < trustEnds
	if l.reserved == nil {
		l.reserved = make([]*reservation, len(l.slices))
	}
	for _, i := range at {
		l.reserved[i] = r
	}
	l.reservations = append(l.reservations, r)
}

// level is where the job stands in the queue.
func (l *lender) level(j *Job) int { return l.aged(l.Now, j) + l.steps(l.Now, j) }

// behind reports whether the job comes after the gang, and is not over when the gang
// expects to start.
func (l *lender) behind(r *reservation, j *Job) bool {
	if r.trusted && j.Rest > 0 && !l.Now.Add(j.Rest).After(r.until) {
		return false
	}
	return j != r.job && (!r.small || l.level(j) <= r.level)
}

// keptForGang reports whether a gang waits for the slice which j would hold up: j
// cannot be stopped for it and is not over by then.
func (l *lender) keptForGang(i int, j *Job) bool {
	return l.reserved != nil && l.reserved[i] != nil && l.delays(l.reserved[i], j)
}

func (l *lender) delays(r *reservation, j *Job) bool {
	return l.behind(r, j) && !l.yields(j, r.job, r.small)
}

// overbooks reports whether a loan to j, on such a slice, would take what may be lent
// to a gang by the time that it can start.
func (l *lender) overbooks(j *Job, i int, cost room) bool {
	for _, r := range l.reservations {
		if r.small && l.counts(r, j, i) && !r.holds(cost) {
			return true
		}
	}
	return false
}

// counts reports whether j on the slice would still be there when the gang starts,
// and could not make room for a member of it.
func (l *lender) counts(r *reservation, j *Job, i int) bool {
	return l.behind(r, j) && !(fits(l.slices[i].Shape, r.job.Needs) && l.yields(j, r.job, r.small))
}

// book enters a loan to j in what may be lent.
func (l *lender) book(j *Job, i int, cost room) {
	l.slow += cost.slow
	for _, r := range l.reservations {
		if r.small && l.counts(r, j, i) {
			r.room = r.less(cost)
		}
	}
}

// costOf is what a loan of so many compute slices to j takes.
func costOf(j *Job, u int) room {
	if j.Fast() {
		return room{u, 0}
	}
	return room{u, u}
}

// passes tells the reservations that j does not delay, one bit each: what one job
// does not find another may that passes more of them.
func (l *lender) passes(j *Job) (mask uint16) {
	for k, r := range l.reservations {
		if !l.delays(r, j) {
			mask |= 1 << k
		}
	}
	return mask
}
