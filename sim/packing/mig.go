package packing

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"strings"
	"time"

	"aloft/arbiter"
	"aloft/gpu"
)

// The modelled fleet of the MIG study.
const (
	migFamily  = "A100-80GB"
	migGPUs    = 100
	migCreate  = 500 * time.Millisecond // making an instance, until measured
	migDestroy = time.Second            // unmaking one
	// migLongest cuts the pods' own lifetimes: a pod in fifty is older than a day,
	// and those hold most of the time; with them a fleet does not come to rest
	// within the 149 days of the trace.
	migLongest = 24 * time.Hour
)

// request is one pod as a MIG instance.
type request struct {
	profile int // of the family's table
	compute int // slices of 7 that it asks for
	life    time.Duration
}

// requests maps the trace's pods to MIG by their compute share: the least profile
// with as many sevenths. Pods on several GPUs and on none are left out, and with
// whole unset those that ask for a whole GPU too: they need no MIG.
func (t Trace) requests(f gpu.Family, whole bool) []request {
	var out []request
	for _, p := range t.Pods {
		if p.GPUs != 1 || p.Life <= 0 || p.Milli == milli && !whole {
			continue
		}
		sevenths := int(math.Ceil(float64(p.Milli) * 7 / milli))
		best := -1
		for i, pr := range f.Profiles {
			if pr.Compute >= sevenths && (best < 0 || smaller(pr, f.Profiles[best])) {
				best = i
			}
		}
		out = append(out, request{best, f.Profiles[best].Compute, min(p.Life, migLongest)})
	}
	return out
}

// smaller orders profiles by compute, then memory; one that takes the media
// engines comes after its like.
func smaller(a, b gpu.Profile) bool {
	return cmp.Or(a.Compute-b.Compute, a.Memory-b.Memory, strings.Compare(a.Name, b.Name)) < 0
}

// rule is how a fleet gives a request its place.
type rule struct {
	name string
	// score of a legal place beside the taken memory slices; the least wins, of
	// equals the first GPU and the lowest start. nil: layouts are fixed, and a request takes the smallest
	// free instance that holds it.
	score func(g *arbiter.Geometry, taken uint8, pl gpu.Placement) float64
	// reshape: free instances may be unmade for others, which takes its time.
	// Without it a GPU is cut once, as requests come, and stays as it is.
	reshape bool
	layouts [][]string // with a nil score
}

// firstFit takes the first GPU with room, at the lowest start.
func firstFit(*arbiter.Geometry, uint8, gpu.Placement) float64 { return 0 }

// bestFitMIG takes the fullest GPU with room, at the lowest start.
func bestFitMIG(_ *arbiter.Geometry, taken uint8, pl gpu.Placement) float64 {
	return float64(8-bits.OnesCount8(taken)) + float64(pl.Start)/8
}

// fgdMIG is the arbiter's own: the least growth of expected fragmentation, of
// equals the fullest GPU and the highest start.
func fgdMIG(g *arbiter.Geometry, taken uint8, pl gpu.Placement) float64 {
	return g.Frag(taken|pl.Mask()) - g.Frag(taken) + 1e-6*float64(8-bits.OnesCount8(taken)) - 1e-9*float64(pl.Start)
}

// place is the best start for a profile beside a mask.
type place struct {
	score float64 // +Inf = no room
	at    gpu.Placement
}

// fleet is GPUs under one rule.
type fleet struct {
	rule
	family gpu.Family
	gpus   []migGPU
	best   [][256]place // by profile and mask
	made   int          // instances
	unmade int
}

// migGPU is one GPU.
type migGPU struct {
	taken uint8 // what a request cannot have
	on    []instance
}

type instance struct {
	gpu.Placement
	profile int
	used    bool
}

// newFleet lays out a fleet; the geometry expects the mix of the requests.
func newFleet(r rule, f gpu.Family, gpus int, mix []request) (*fleet, error) {
	fl := &fleet{rule: r, family: f, gpus: make([]migGPU, gpus), best: make([][256]place, len(f.Profiles))}
	if r.score == nil {
		for g := range fl.gpus {
			set, err := f.Layout(r.layouts[g])
			if err != nil {
				return nil, err
			}
			for _, pl := range set {
				fl.gpus[g].on = append(fl.gpus[g].on, instance{Placement: pl, profile: slices.IndexFunc(f.Profiles, func(p gpu.Profile) bool { return p.Name == pl.Profile })})
			}
		}
		return fl, nil
	}
	var wants []arbiter.Want
	for i, n := range count(f, mix) {
		if n == 0 {
			continue
		}
		shape, err := gpu.ShapeOf(f.Name, f.Profiles[i].Name)
		if err != nil {
			return nil, err
		}
		wants = append(wants, arbiter.Want{Shape: shape, Count: n})
	}
	geo := arbiter.NewGeometry(f, wants)
	for p := range fl.best {
		for mask := range fl.best[p] {
			b := place{score: math.Inf(1)}
			for _, pl := range f.Profiles[p].Placements() {
				if uint8(mask)&pl.Mask() != 0 {
					continue
				}
				if s := r.score(geo, uint8(mask), pl); s < b.score {
					b = place{s, pl}
				}
			}
			fl.best[p][mask] = b
		}
	}
	return fl, nil
}

func count(f gpu.Family, mix []request) []int {
	n := make([]int, len(f.Profiles))
	for _, r := range mix {
		n[r.profile]++
	}
	return n
}

// give finds a place for a request and takes it; took is how long it is in the
// making.
func (f *fleet) give(profile int) (g, start int, took time.Duration, ok bool) {
	if f.score != nil && f.reshape {
		return f.remake(profile)
	}
	g, i := f.free(profile)
	if f.score != nil && (g < 0 || f.gpus[g].on[i].profile != profile) {
		if g, start, took, ok := f.remake(profile); ok { // bare memory, rather than a larger instance
			return g, start, took, true
		}
	}
	if g < 0 {
		return 0, 0, 0, false
	}
	in := &f.gpus[g].on[i]
	in.used = true
	return g, in.Start, 0, true
}

// free is the smallest free instance that holds the profile.
func (f *fleet) free(profile int) (g, i int) {
	want := f.family.Profiles[profile]
	g = -1
	for card := range f.gpus {
		for n, in := range f.gpus[card].on {
			p := f.family.Profiles[in.profile]
			if !in.used && p.Compute >= want.Compute && p.Memory >= want.Memory && (g < 0 || smaller(p, f.family.Profiles[f.gpus[g].on[i].profile])) {
				g, i = card, n
			}
		}
	}
	return g, i
}

// remake makes an instance where the rule wants it, and unmakes the free ones
// that are in the way.
func (f *fleet) remake(profile int) (g, start int, took time.Duration, ok bool) {
	best := place{score: math.Inf(1)}
	for card := range f.gpus {
		if b := &f.best[profile][f.gpus[card].taken]; b.score < best.score {
			g, best = card, *b
		}
	}
	if math.IsInf(best.score, 1) {
		return 0, 0, 0, false
	}
	card := &f.gpus[g]
	card.taken |= best.at.Mask()
	for i := range card.on {
		if card.on[i].Placement == best.at {
			card.on[i].used = true
			return g, best.at.Start, 0, true
		}
	}
	card.on = slices.DeleteFunc(card.on, func(in instance) bool {
		if in.Mask()&best.at.Mask() == 0 {
			return false
		}
		f.unmade++
		took += migDestroy
		return true
	})
	card.on = append(card.on, instance{best.at, profile, true})
	f.made++
	return g, best.at.Start, took + migCreate, true
}

// leave frees the instance at a start.
func (f *fleet) leave(g, start int) {
	card := &f.gpus[g]
	for i := range card.on {
		if in := &card.on[i]; in.used && in.Start == start {
			in.used = false
			if f.reshape {
				card.taken &^= in.Mask()
			}
		}
	}
}

// fitted is the static split of a fleet that knows the mix: as many GPUs for each
// kind of layout as its requests take up on average, 4g beside 3g first, since
// only that fills a GPU, then 4g beside what is smaller.
func fitted(f gpu.Family, gpus int, mix []request) [][]string {
	load := map[int]float64{} // by compute slices, in instances
	for _, r := range mix {
		load[r.compute] += r.life.Seconds()
	}
	both := min(load[4], load[3])
	rest4, rest3 := load[4]-both, load[3]-both
	two := max(0, load[2]-rest4)
	shares := []struct {
		layout string
		load   float64
	}{
		{"7g.80gb", load[7]}, {"4g.40gb 3g.40gb", both}, {"4g.40gb 2g.20gb 1g.10gb", rest4}, {"3g.40gb 3g.40gb", rest3 / 2}, {"2g.20gb 2g.20gb 2g.20gb 1g.10gb", two / 3},
	}
	sum := 0.0
	for _, s := range shares {
		sum += s.load
	}
	var out [][]string
	done := 0.0
	for _, s := range shares {
		done += s.load
		for len(out) < int(math.Round(done/sum*float64(gpus))) {
			out = append(out, strings.Fields(s.layout))
		}
	}
	return out
}
