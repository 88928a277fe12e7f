package arbiter

import (
	"cmp"
	"math"
	"slices"
	"time"

	"aloft/gpu"
)

// Bounds of how often GPUs are cut anew.
const (
	reshapeStep    = time.Second      // p99 of destroying or creating one instance: a destroy takes about a second, a create somewhat less
	reshapeDwell   = 10 * time.Minute // a layout stays at least that long; the gain is counted over it
	reshapesHourly = 12               // GPUs of one server
)

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

// refill lists the instances that fill what the mask leaves bare, since what is not
// cut can be lent to nobody: those of the wanted profile first, then large ones.
func refill(f gpu.Family, mask uint8, wanted string) []gpu.Placement {
	var set []gpu.Placement
	profiles := slices.DeleteFunc(slices.Clone(f.Profiles), func(p gpu.Profile) bool { return media(p) || p.Name == wanted })
	slices.SortStableFunc(profiles, largerFirst)
	if p, ok := f.Profile(wanted); ok && !media(p) {
		profiles = slices.Insert(profiles, 0, p)
	}
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

// Eviction is what makes room for one instance.
type Eviction struct {
	GPU    int
	Slices []string        // to be emptied and destroyed
	Place  gpu.Placement   // of the claimant
	Layout []gpu.Placement // all instances afterwards
	Cost   time.Duration   // sum over the slices, and a step for each instance that goes or comes
	Growth float64         // of F on the GPU
}

// Victims finds the cheapest set of instances on one GPU whose freed mask
// contains a legal placement for the shape: a set that frees enough in total and
// no place for the claimant helps nobody (Kueue #1309, Volcano #5881). cost is
// what emptying an instance loses; ok is false for one that must stay. Of equal
// cost the one after which F is least.
//
// The search is exact: whatever set is freed, the claimant stands at one of at
// most seven starts, and the cheapest set for a start is what overlaps it.
func Victims(s Snapshot, shape gpu.Shape, geo Geometries, cost func(Slice) (time.Duration, bool)) (Eviction, bool) {
	best, found := Eviction{Cost: math.MaxInt64}, false
	for _, c := range cards(s, func(s Slice) bool { _, ok := cost(s); return ok }) {
		if !c.Health.OK || c.reshaping() {
			continue
		}
		for _, e := range c.evictions(shape, geo[c.Family], cost) {
			if e.Cost < best.Cost || found && e.Cost == best.Cost && e.Growth < best.Growth-1e-12 {
				best, found = e, true
			}
		}
	}
	return best, found
}

// evictions are the ways to an instance of the shape on one GPU, one for each start.
func (c *card) evictions(shape gpu.Shape, geo *Geometry, cost func(Slice) (time.Duration, bool)) []Eviction {
	n := smallestProfile(c.family, shape)
	if n < 0 {
		return nil
	}
	var all []Eviction
	for _, pl := range c.family.Profiles[n].Placements() {
		e := Eviction{GPU: c.Index, Place: pl}
		ok, used, after := true, uint8(0), pl.Mask() // what loses nothing is not used
		for i, s := range c.on {
			old := c.placement(i)
			lost, may := cost(s)
			if !may || lost > 0 {
				used |= old.Mask()
			}
			if old.Mask()&pl.Mask() == 0 {
				after |= used & old.Mask()
				continue
			}
			ok = ok && may && old != pl
			e.Slices, e.Cost = append(e.Slices, s.ID), e.Cost+lost+reshapeStep
		}
		if !ok {
			continue
		}
		e.Layout = c.with(pl)
		e.Cost += reshapeStep * time.Duration(len(e.Layout)-len(c.on)+len(e.Slices))
		if geo != nil {
			e.Growth = geo.Frag(after) - geo.Frag(used)
		}
		if c.family.Legal(e.Layout) == nil {
			all = append(all, e)
		}
	}
	return all
}

// with is the layout of the GPU with an instance at that place: what does not
// overlap it stays, what is bare beside it is filled.
func (c *card) with(pl gpu.Placement) []gpu.Placement {
	var stay []gpu.Placement
	mask := pl.Mask()
	for i := range c.on {
		if old := c.placement(i); old.Mask()&pl.Mask() == 0 {
			stay, mask = append(stay, old), mask|old.Mask()
		}
	}
	return append(append(stay, pl), refill(c.family, mask, pl.Profile)...)
}
