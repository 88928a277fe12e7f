package arbiter

import (
	"math"
	"math/bits"
	"slices"
	"strings"

	"aloft/gpu"
)

// Want is a shape that somebody waits for, or is expected to.
type Want struct {
	Shape gpu.Shape
	Count int // instances of it
}

// Geometry is the placement space of one family under one expectation of what
// will be asked for. A GPU is a mask of taken memory slices, so that all there
// is to know about its fragmentation is a table of 256 numbers.
type Geometry struct {
	family gpu.Family
	mix    []float64 // p_s by profile
	frag   [256]float64
}

// Geometries holds one Geometry for each MIG family of a fleet.
type Geometries map[string]*Geometry

// NewGeometries makes the tables of the families that the GPUs have.
func NewGeometries(gpus []GPU, wants []Want) Geometries {
	all := Geometries{}
	for _, g := range gpus {
		if f, ok := gpu.Lookup(g.Family); ok && all[g.Family] == nil {
			all[g.Family] = NewGeometry(f, wants)
		}
	}
	return all
}

// NewGeometry fills the table:
//
//	F(mask) = Σ_s p_s · (free(mask) − size_s·fit_s(mask)) / slices
//
// the share of the GPU that is free and of no use to the next arrival, in
// expectation over its shape s (FGD for MIG). p_s is the share of shape s among
// the wants, which are mapped to the smallest profile that holds them; with no
// wants every profile without media engines is as likely as the next.
func NewGeometry(f gpu.Family, wants []Want) *Geometry {
	g := &Geometry{family: f, mix: make([]float64, len(f.Profiles))}
	sum := 0.0
	for _, w := range wants {
		if p := smallestProfile(f, w.Shape); p >= 0 && w.Count > 0 {
			g.mix[p] += float64(w.Count)
			sum += float64(w.Count)
		}
	}
	if sum == 0 {
		for i, p := range f.Profiles {
			if !media(p) {
				g.mix[i] = 1
				sum++
			}
		}
	}
	for i := range g.mix {
		g.mix[i] /= sum
	}
	for mask := range 1 << f.Slices {
		free := f.Slices - bits.OnesCount8(uint8(mask))
		for i, share := range g.mix {
			if share > 0 {
				p := f.Profiles[i]
				g.frag[mask] += share * float64(free-p.Memory*fit(p, uint8(mask))) / float64(f.Slices)
			}
		}
	}
	return g
}

// fit is how many instances of the profile still go beside the mask. The starts
// of one profile never overlap each other, on any family of the table, so that
// counting the free ones is exact (place_test.go).
func fit(p gpu.Profile, mask uint8) int {
	n := 0
	for _, start := range p.Starts {
		if mask&gpu.Mask(start, p.Memory) == 0 {
			n++
		}
	}
	return min(n, p.Max)
}

// Frag is F of a mask.
func (g *Geometry) Frag(mask uint8) float64 { return g.frag[mask] }

// Start is the legal start for the profile beside the mask at which F grows
// least; of equals the highest, since most profiles can also stand low.
func (g *Geometry) Start(mask uint8, profile string) (start int, growth float64, ok bool) {
	p, _ := g.family.Profile(profile)
	growth = math.Inf(1)
	for _, at := range slices.Backward(p.Starts) {
		m := gpu.Mask(at, p.Memory)
		if mask&m != 0 {
			continue
		}
		if d := g.frag[mask|m] - g.frag[mask]; d < growth-1e-12 {
			start, growth, ok = at, d, true
		}
	}
	return start, growth, ok
}

// Spot is a place for a new instance.
type Spot struct {
	GPU    int // index of the GPU
	Place  gpu.Placement
	Growth float64 // of F on that GPU
}

// Place finds the GPU and the start for an instance that can hold the shape
// where expected fragmentation grows least; of equals the fullest GPU, then the
// first. taken has, for each GPU, the memory slices that cannot be had: those of
// instances, or only of instances in use if free ones may go.
func (all Geometries) Place(gpus []GPU, taken []uint8, shape gpu.Shape) (Spot, bool) {
	best, full, found := Spot{Growth: math.Inf(1)}, 0, false
	profile := map[string]string{} // by family
	for name, g := range all {
		if p := smallestProfile(g.family, shape); p >= 0 {
			profile[name] = g.family.Profiles[p].Name
		}
	}
	for i, card := range gpus {
		g, name := all[card.Family], profile[card.Family]
		if g == nil || name == "" || !card.Health.OK {
			continue
		}
		start, growth, ok := g.Start(taken[i], name)
		n := bits.OnesCount8(taken[i])
		if !ok || growth > best.Growth+1e-12 || growth > best.Growth-1e-12 && n <= full {
			continue
		}
		p, _ := g.family.Profile(name)
		best, full, found = Spot{card.Index, gpu.Placement{Profile: name, Start: start, Size: p.Memory}, growth}, n, true
	}
	return best, found
}

// Fragmentation is the mean of F over the GPUs that have a MIG table: the share
// of the node that is free and of no use, in expectation.
func (all Geometries) Fragmentation(gpus []GPU, taken []uint8) float64 {
	sum, n := 0.0, 0
	for i, card := range gpus {
		if g := all[card.Family]; g != nil {
			sum += g.frag[taken[i]]
			n++
		}
	}
	return sum / float64(max(n, 1))
}

// Fragmentation is the share of the node that is free and of no use to what its
// jobs and models ask for; sleepers give way, so they count as free.
func (s *Snapshot) Fragmentation() float64 {
	taken := Taken(s.GPUs, s.Slices, func(x Slice) bool {
		return x.Moving || x.Lent() || x.Phase != Free && x.Phase != Asleep
	})
	return NewGeometries(s.GPUs, s.wants()).Fragmentation(s.GPUs, taken)
}

// wants is what jobs and models ask for.
func (s *Snapshot) wants() (wants []Want) {
	for i := range s.Jobs {
		wants = append(wants, Want{Shape: s.Jobs[i].Needs, Count: max(1, s.Jobs[i].MinWidth)})
	}
	for i := range s.Models {
		wants = append(wants, Want{Shape: s.Models[i].Needs, Count: max(1, s.Models[i].Max)})
	}
	return wants
}

// Taken is, for each GPU, the mask of the memory slices whose instances count.
func Taken(gpus []GPU, all []Slice, counts func(Slice) bool) []uint8 {
	taken, at := make([]uint8, len(gpus)), indexOf(gpus)
	for _, s := range all {
		if i, ok := at[s.GPU]; ok && counts(s) {
			taken[i] |= gpu.Mask(s.Start, s.Shape.MemorySlices)
		}
	}
	return taken
}

func indexOf(gpus []GPU) map[int]int {
	at := make(map[int]int, len(gpus))
	for i, g := range gpus {
		at[g.Index] = i
	}
	return at
}

// smallestProfile is the index of the family's least profile that holds the
// shape, −1 when none does. Media engines are for those who ask for them.
func smallestProfile(f gpu.Family, s gpu.Shape) int {
	best := -1
	for i, p := range f.Profiles {
		if p.Name == s.Profile {
			return i
		}
		if media(p) || p.Compute < s.ComputeSlices || p.Memory < s.MemorySlices || p.Bytes < s.Bytes {
			continue
		}
		if best < 0 || smaller(p, f.Profiles[best]) {
			best = i
		}
	}
	return best
}

func smaller(a, b gpu.Profile) bool {
	return a.Memory < b.Memory || a.Memory == b.Memory && a.Compute < b.Compute
}

func media(p gpu.Profile) bool { return strings.HasSuffix(p.Name, "+me") }
