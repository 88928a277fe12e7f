package arbiter

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"
	"time"

	"aloft/gpu"
)

// ReshapeRules bound how often GPUs are cut anew.
type ReshapeRules struct {
	Step    time.Duration // p99 of destroying or creating one instance
	Dwell   time.Duration // a layout stays at least that long; the gain is counted over it
	PerHour int           // GPUs reshaped within an hour, all servers
}

// DefaultReshapeRules are the settings until measured: a destroy takes about a
// second and a create somewhat less.
func DefaultReshapeRules() ReshapeRules {
	return ReshapeRules{Step: time.Second, Dwell: 10 * time.Minute, PerHour: 12}
}

// Validate says which setting is wrong.
func (r ReshapeRules) Validate() error {
	if r.Step <= 0 || r.Dwell < r.Step || r.PerHour < 1 {
		return fmt.Errorf("arbiter: reshape: step is %v, dwell %v, per_hour %d; want a step above 0, a dwell no shorter and at least 1 an hour",
			r.Step, r.Dwell, r.PerHour)
	}
	return nil
}

// Recut is one GPU's way to other instances.
type Recut struct {
	GPU     int
	Layout  []gpu.Placement // all instances afterwards: those that stay, then the new ones, large first
	Destroy []string        // slices that go; all free
	Serves  int             // wants that the new instances serve
	Gain    time.Duration   // what they earn over the dwell
	Cost    time.Duration   // steps × the time of one × the weight of what changes
}

// card is one GPU during planning.
type card struct {
	GPU
	family gpu.Family
	on     []Slice // its instances, by start
	free   []bool  // of on: may go
}

func (c *card) placement(i int) gpu.Placement {
	s := c.on[i]
	return gpu.Placement{Profile: s.Shape.Profile, Start: s.Start, Size: s.Shape.MemorySlices}
}

// fixed is the mask of the instances that stay.
func (c *card) fixed() (mask uint8) {
	for i := range c.on {
		if !c.free[i] {
			mask |= c.placement(i).Mask()
		}
	}
	return mask
}

// busy reports a GPU that is being changed or was a moment ago.
func (c *card) busy(now time.Time, dwell time.Duration) bool {
	return !c.Reshaped.IsZero() && now.Sub(c.Reshaped) < dwell || c.reshaping()
}

func (c *card) reshaping() bool {
	return slices.ContainsFunc(c.on, func(s Slice) bool { return s.Phase == Reshaping })
}

// cards groups the slices by GPU; whole GPUs without MIG have no card.
func cards(s Snapshot, free func(Slice) bool) []*card {
	var all []*card
	at := map[int]*card{}
	for _, g := range s.GPUs {
		if f, ok := gpu.Lookup(g.Family); ok {
			at[g.Index] = &card{GPU: g, family: f}
			all = append(all, at[g.Index])
		}
	}
	for _, sl := range s.Slices {
		if c := at[sl.GPU]; c != nil {
			c.on = append(c.on, sl)
		}
	}
	all = slices.DeleteFunc(all, func(c *card) bool {
		return slices.ContainsFunc(c.on, func(s Slice) bool { return s.Shape.Profile == gpu.Full })
	})
	for _, c := range all {
		slices.SortStableFunc(c.on, func(a, b Slice) int { return a.Start - b.Start })
		for _, sl := range c.on {
			c.free = append(c.free, free(sl))
		}
	}
	return all
}

// Plan says which GPUs to cut anew, and how, so that more of what waits can run.
// Only slices for which free says so are touched: those that are free, or about
// to be. Wants that a free slice serves as it is come off first, with that slice;
// what is left over is weighed against the cost, best GPU first, at most one GPU
// of a server at a time.
func (r ReshapeRules) Plan(s Snapshot, wants []Want, free func(Slice) bool) []Recut {
	all := cards(s, free)
	left := r.unserved(all, wants)
	servers, hour := map[int]bool{}, 0
	for _, c := range all {
		if !c.Reshaped.IsZero() && s.Now.Sub(c.Reshaped) < time.Hour {
			hour++
		}
		servers[c.Server] = servers[c.Server] || c.reshaping()
	}
	var plan []Recut
	for hour+len(plan) < r.PerHour && len(left) > 0 {
		var best *card
		var way Recut
		seen := map[string]Recut{} // equal GPUs have equal ways
		for _, c := range all {
			if servers[c.Server] || !c.Health.OK || c.busy(s.Now, r.Dwell) || c.full() && !slices.Contains(c.free, true) {
				continue
			}
			key := c.signature()
			w, ok := seen[key]
			if !ok {
				w = r.way(c, left)
				seen[key] = w
			}
			if net := w.Gain - w.Cost; net > 0 && (best == nil || net > way.Gain-way.Cost) {
				best, way = c, w
			}
		}
		if best == nil {
			break
		}
		way = r.way(best, left) // with its own slices' names
		servers[best.Server] = true
		left, _, _ = best.serve(way.Layout[len(best.on)-len(way.Destroy):], left)
		plan = append(plan, way)
	}
	return plan
}

// full reports that no smallest profile goes beside the instances.
func (c *card) full() bool {
	mask := uint8(0)
	for i := range c.on {
		mask |= c.placement(i).Mask()
	}
	return !slices.ContainsFunc(c.family.Profiles, func(p gpu.Profile) bool { return fit(p, mask) > 0 })
}

func (c *card) signature() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %d", c.Family, c.fixed())
	for i, s := range c.on {
		if c.free[i] {
			fmt.Fprintf(&b, " %s@%d", s.Shape.Profile, s.Start)
		}
	}
	return b.String()
}

// unserved takes off the wants what free slices serve as they are, the most
// worth first, each by the smallest that holds it, and keeps those slices.
func (r ReshapeRules) unserved(all []*card, wants []Want) []Want {
	left := slices.DeleteFunc(slices.Clone(wants), func(w Want) bool { return w.Worth <= 0 || w.Count <= 0 })
	slices.SortStableFunc(left, func(a, b Want) int { return cmp.Compare(b.Worth, a.Worth) })
	type place struct {
		c *card
		i int
	}
	var idle []place
	for _, c := range all {
		for i := range c.on {
			if c.free[i] && c.Health.OK {
				idle = append(idle, place{c, i})
			}
		}
	}
	slices.SortStableFunc(idle, func(a, b place) int {
		return cmp.Compare(a.c.on[a.i].Shape.Weight(), b.c.on[b.i].Shape.Weight())
	})
	for w := range left {
		rest := idle[:0:0]
		for _, p := range idle {
			if left[w].Count > 0 && fits(p.c.on[p.i].Shape, left[w].Shape) {
				left[w].Count--
				p.c.free[p.i] = false
			} else {
				rest = append(rest, p)
			}
		}
		idle = rest
	}
	return slices.DeleteFunc(left, func(w Want) bool { return w.Count == 0 })
}

// way finds the instances for the free part of one GPU that earn most for what
// they cost: every legal set of the wanted profiles and of the free instances
// that are there is tried, at most a few hundred.
func (r ReshapeRules) way(c *card, wants []Want) Recut {
	best := Recut{GPU: c.Index}
	var places []gpu.Placement
	for i, p := range c.family.Profiles {
		wanted := slices.ContainsFunc(wants, func(w Want) bool { return smallestProfile(c.family, w.Shape) == i })
		for _, pl := range p.Placements() {
			if wanted || c.has(pl) {
				places = append(places, pl)
			}
		}
	}
	net := time.Duration(0)
	var grow func(set []gpu.Placement, mask uint8, from int)
	grow = func(set []gpu.Placement, mask uint8, from int) {
		if w := r.weigh(c, set, wants); w.Gain-w.Cost > net {
			if w = r.weigh(c, c.fill(set, mask), wants); w.Gain-w.Cost > net && c.family.Legal(w.Layout) == nil {
				net, best = w.Gain-w.Cost, w
			}
		}
		for i := from; i < len(places); i++ {
			if mask&places[i].Mask() == 0 {
				grow(append(slices.Clip(set), places[i]), mask|places[i].Mask(), i+1)
			}
		}
	}
	grow(nil, c.fixed(), 0)
	return best
}

// has reports whether a free instance stands just there.
func (c *card) has(pl gpu.Placement) bool {
	for i := range c.on {
		if c.free[i] && c.placement(i) == pl {
			return true
		}
	}
	return false
}

// fill leaves no memory slice bare that an instance could take, large first:
// what is not cut can be lent to nobody.
func (c *card) fill(set []gpu.Placement, mask uint8) []gpu.Placement {
	set = slices.Clone(set)
	for i := range c.on { // what is there costs nothing
		if pl := c.placement(i); c.free[i] && mask&pl.Mask() == 0 {
			set, mask = append(set, pl), mask|pl.Mask()
		}
	}
	return append(set, c.refill(mask)...)
}

// refill lists the instances that fill what the mask leaves bare, large first.
func (c *card) refill(mask uint8) []gpu.Placement {
	var set []gpu.Placement
	profiles := slices.DeleteFunc(slices.Clone(c.family.Profiles), media)
	slices.SortStableFunc(profiles, largerFirst)
	for _, p := range profiles {
		for _, pl := range p.Placements() {
			if mask&pl.Mask() == 0 {
				set, mask = append(set, pl), mask|pl.Mask()
			}
		}
	}
	return set
}

func largerFirst(a, b gpu.Profile) int {
	return cmp.Or(cmp.Compare(b.Memory, a.Memory), cmp.Compare(b.Compute, a.Compute), cmp.Compare(a.Name, b.Name))
}

// weigh works out what a set of instances in the free part earns and costs.
func (r ReshapeRules) weigh(c *card, set []gpu.Placement, wants []Want) Recut {
	w := Recut{GPU: c.Index}
	changed, steps := uint8(0), 0
	var kept []gpu.Placement
	for i, s := range c.on {
		pl := c.placement(i)
		if !c.free[i] || slices.Contains(set, pl) {
			kept = append(kept, pl)
			continue
		}
		w.Destroy = append(w.Destroy, s.ID)
		changed |= pl.Mask()
		steps++
	}
	fresh := slices.DeleteFunc(slices.Clone(set), c.has)
	slices.SortFunc(fresh, func(a, b gpu.Placement) int {
		return cmp.Or(b.Size-a.Size, cmp.Compare(b.Profile, a.Profile), a.Start-b.Start)
	})
	for _, pl := range fresh {
		changed |= pl.Mask()
		steps++
	}
	w.Layout = append(kept, fresh...)
	_, w.Serves, w.Gain = c.serve(fresh, wants)
	share := float64(bits.OnesCount8(changed)) / float64(c.family.Slices)
	w.Cost = time.Duration(float64(steps) * share * float64(r.Step))
	return w
}

// serve gives the instances to the wants, the most worth first, each the
// smallest that holds it (profiles are ordered by size, so that nothing is lost
// by that), and returns what is left of the wants.
func (c *card) serve(set []gpu.Placement, wants []Want) (left []Want, n int, gain time.Duration) {
	var idle []gpu.Shape
	for _, pl := range set {
		if s, err := gpu.ShapeOf(c.Family, pl.Profile); err == nil {
			idle = append(idle, s)
		}
	}
	slices.SortStableFunc(idle, func(a, b gpu.Shape) int { return cmp.Compare(a.Weight(), b.Weight()) })
	for _, w := range wants {
		idle = slices.DeleteFunc(idle, func(s gpu.Shape) bool {
			if w.Count == 0 || !fits(s, w.Shape) {
				return false
			}
			w.Count--
			n++
			gain += w.Worth
			return true
		})
		if w.Count > 0 {
			left = append(left, w)
		}
	}
	return left, n, gain
}

// Eviction is what makes room for one instance.
type Eviction struct {
	GPU    int
	Slices []string        // to be emptied; those of them that are free are there to be destroyed
	Place  gpu.Placement   // of the claimant
	Layout []gpu.Placement // all instances afterwards; nil = the one slice will do as it is
	Cost   time.Duration   // sum over the slices
	Growth float64         // of F on the GPU
}

// Victims finds the cheapest set of instances on one GPU whose freed mask
// contains a legal placement for the shape: a set that frees enough in total and
// no place for the claimant helps nobody (Kueue #1309, Volcano #5881). cost is
// what emptying an instance loses; ok is false for one that must stay. A slice
// that will do as it is needs no reshape; else each destroyed or created instance
// costs a step beside. Of equal cost the one after which F is least.
//
// The search is exact: whatever set is freed, the claimant stands at one of at
// most seven starts, and the cheapest set for a start is what overlaps it.
func (r ReshapeRules) Victims(s Snapshot, shape gpu.Shape, geo Geometries, cost func(Slice) (time.Duration, bool)) (Eviction, bool) {
	best, found := Eviction{Cost: math.MaxInt64}, false
	for _, c := range cards(s, func(s Slice) bool { _, ok := cost(s); return ok }) {
		if !c.Health.OK || c.reshaping() {
			continue
		}
		for _, e := range r.evictions(c, shape, geo[c.Family], cost) {
			if e.Cost < best.Cost || found && e.Cost == best.Cost && e.Growth < best.Growth-1e-12 {
				best, found = e, true
			}
		}
	}
	return best, found
}

func (r ReshapeRules) evictions(c *card, shape gpu.Shape, geo *Geometry, cost func(Slice) (time.Duration, bool)) []Eviction {
	var all []Eviction
	taken := uint8(0)
	for i, s := range c.on {
		taken |= c.placement(i).Mask()
		if c.free[i] && fits(s.Shape, shape) {
			lost, _ := cost(s)
			all = append(all, Eviction{GPU: c.Index, Slices: []string{s.ID}, Place: c.placement(i), Cost: lost})
		}
	}
	n := smallestProfile(c.family, shape)
	if n < 0 {
		return all
	}
	for _, pl := range c.family.Profiles[n].Placements() {
		e := Eviction{GPU: c.Index, Place: pl}
		ok, after := true, taken
		var stay []gpu.Placement
		for i, s := range c.on {
			old := c.placement(i)
			if old.Mask()&pl.Mask() == 0 {
				stay = append(stay, old)
				continue
			}
			ok = ok && c.free[i]
			lost, _ := cost(s)
			e.Slices, e.Cost, after = append(e.Slices, s.ID), e.Cost+lost+r.Step, after&^old.Mask()
		}
		if !ok {
			continue
		}
		after |= pl.Mask()
		rest := c.refill(after)
		e.Cost += r.Step * time.Duration(1+len(rest))
		e.Layout = append(append(stay, pl), rest...)
		if geo != nil {
			e.Growth = geo.Frag(after) - geo.Frag(taken)
		}
		if c.family.Legal(e.Layout) == nil {
			all = append(all, e)
		}
	}
	return all
}
