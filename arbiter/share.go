package arbiter

import "aloft/gpu"

// parts is capacity by resource, each counted in whole GPUs: a 3g.40gb slice of an
// A100 is 3/7 of one's compute and 4/8 of its memory.
type parts struct{ compute, memory float64 }

// partsOf is what so many slices of a shape have.
func partsOf(s gpu.Shape, n int) parts {
	c, m := s.Parts()
	return parts{c * float64(n), m * float64(n)}
}

func (p parts) plus(o parts) parts { return parts{p.compute + o.compute, p.memory + o.memory} }

// of is the dominant share: the larger of the shares of either resource in a whole.
// It is taken of the sums. Adding up each slice's own dominant share instead would
// charge a tenant that has 3g.40gb and 1g.10gb slices for more than it has of either.
func (p parts) of(whole parts) float64 {
	share := 0.0
	if whole.compute > 0 {
		share = p.compute / whole.compute
	}
	if whole.memory > 0 {
		share = max(share, p.memory/whole.memory)
	}
	return share
}

// oneGPU is the unit of borrow limits.
var oneGPU = parts{1, 1}

// tenant is what the jobs of one tenant have borrowed.
type tenant struct {
	Share
	has   parts
	whole *parts  // what there is to share
	share float64 // its share of that: see add
	gang  int     // level of its gang that waits for what it may borrow; noGang = none
}

// noGang is below every level.
const noGang = -1 << 31

// fits reports whether the tenant may borrow so much more.
func (t *tenant) fits(more parts) bool {
	return t.BorrowLimit <= 0 || t.has.plus(more).of(oneGPU) <= t.BorrowLimit+1e-9
}

// ever reports whether the tenant could borrow so much if it had nothing.
func (t *tenant) ever(more parts) bool {
	return t.BorrowLimit <= 0 || more.of(oneGPU) <= t.BorrowLimit+1e-9
}

// add gives the tenant so much more. Its share is the dominant one of what there is,
// for its weight: whoever has least goes first (dominant resource fairness).
func (t *tenant) add(more parts) {
	t.has = t.has.plus(more)
	if t.share = t.has.of(*t.whole); t.Weight > 0 {
		t.share /= t.Weight
	}
}

// measure works out what each tenant has: the slices that its jobs hold, as large
// as they are, and those that are on their way to them, as large as they need.
func (q *queue) measure(s *Snapshot) {
	type holder struct {
		tenant *tenant
		coming int // slices that it has been given and that are not seen on it yet
		needs  gpu.Shape
		has    parts
	}
	var all []holder
	at := map[string]int{}
	for i := range s.Jobs {
		if j := &s.Jobs[i]; j.Have > 0 {
			at[j.ID] = len(all)
			all = append(all, holder{tenant: q.tenant(j.Tenant), coming: j.Have, needs: j.Needs})
		}
	}
	for i := range s.Slices {
		x := &s.Slices[i]
		if x.Phase == Unhealthy {
			continue
		}
		size := partsOf(x.Shape, 1)
		q.whole = q.whole.plus(size)
		if x.Job == "" {
			continue
		}
		if k, ok := at[x.Job]; ok && all[k].coming > 0 {
			all[k].coming--
			all[k].has = all[k].has.plus(size)
		}
	}
	for _, h := range all {
		h.tenant.add(h.has.plus(partsOf(h.needs, h.coming)))
	}
}
