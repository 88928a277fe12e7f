package gpu

import (
	"cmp"
	"errors"
	"slices"
)

// ErrInUse is wrapped by a Shaper that would have had to destroy an instance on
// which a process runs, or a handle is open. Nothing has been changed then.
var ErrInUse = errors.New("in use")

// Change is the shortest way from some instances to a layout: those that go, and
// the placements that come, large before small. What stands in both stays.
func (f Family) Change(have []Slice, layout []Placement) (gone []Slice, fresh []Placement, err error) {
	if err := f.Legal(layout); err != nil {
		return nil, nil, err
	}
	fresh = slices.Clone(layout)
	for _, s := range have {
		n := slices.Index(fresh, s.Placement())
		if n < 0 {
			gone = append(gone, s)
			continue
		}
		fresh = slices.Delete(fresh, n, n+1)
	}
	slices.SortFunc(fresh, func(a, b Placement) int {
		return cmp.Or(b.Size-a.Size, cmp.Compare(b.Profile, a.Profile), a.Start-b.Start)
	})
	return gone, fresh, nil
}

// Placement is where the slice stands on its GPU.
func (s Slice) Placement() Placement {
	return Placement{Profile: s.Shape.Profile, Start: s.Start, Size: s.Shape.MemorySlices}
}

// Name gives the slices of one GPU their IDs after a change: an instance that was
// there keeps its own, since leases name it; the others take the lowest numbers
// that nothing had before or has now, so that a new instance is not taken for one
// that has just gone.
func Name(gpu int, before, after []Slice) {
	taken := map[string]bool{}
	for _, s := range before {
		taken[s.ID] = true
	}
	next := 0
	for i := range after {
		if n := slices.IndexFunc(before, func(b Slice) bool { return b.UUID == after[i].UUID }); n >= 0 {
			after[i].ID = before[n].ID
			continue
		}
		for taken[SliceID(gpu, next)] {
			next++
		}
		after[i].ID = SliceID(gpu, next)
		next++
	}
}
