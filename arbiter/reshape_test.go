package arbiter

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"aloft/gpu"
)

// slice is an instance that is free.
func slice(t testing.TB, family string, card int, profile string, start int) Slice {
	t.Helper()
	return Slice{Slice: gpu.Slice{ID: fmt.Sprintf("g%d/%s@%d", card, profile, start), GPU: card, Start: start, Shape: shapeOf(t, family, profile)}, Phase: Free}
}

func isFree(s Slice) bool { return s.Phase == Free && !s.Moving && s.Job == "" }

// fleet reads GPUs of one family from texts such as "3g.40gb@0 1g.10gb@4!": a
// mark "!" after an instance in use.
func fleet(t testing.TB, family string, texts ...string) Snapshot {
	t.Helper()
	s := Snapshot{Now: time.Unix(1e6, 0), GPUs: healthy(family, len(texts))}
	for i, text := range texts {
		for _, entry := range strings.Fields(text) {
			entry, used := strings.CutSuffix(entry, "!")
			name, _, _ := strings.Cut(entry, "@")
			var at int
			if _, err := fmt.Sscanf(entry, name+"@%d", &at); err != nil {
				t.Fatal(err)
			}
			sl := slice(t, family, i, name, at)
			if used {
				sl.Phase = JobRuns
				sl.Job = "j" + sl.ID
			}
			s.Slices = append(s.Slices, sl)
			s.GPUs[i].Mask |= gpu.Mask(at, sl.Shape.MemorySlices)
		}
	}
	return s
}

func layout(set []gpu.Placement) string {
	var parts []string
	for _, p := range set {
		parts = append(parts, fmt.Sprintf("%s@%d", p.Profile, p.Start))
	}
	return strings.Join(parts, " ")
}

// randomFleet has legal instances, some in use, some memory bare.
func randomFleet(t testing.TB, rng *rand.Rand, family string, n int) Snapshot {
	t.Helper()
	f := lookup(t, family)
	var texts []string
	for range n {
		var set []gpu.Placement
		var parts []string
		for range 12 {
			p := f.Profiles[rng.IntN(len(f.Profiles))]
			all := p.Placements()
			pl := all[rng.IntN(len(all))]
			if next := append(slices.Clip(set), pl); f.Legal(next) == nil {
				set = next
				part := fmt.Sprintf("%s@%d", pl.Profile, pl.Start)
				if rng.IntN(2) == 0 {
					part += "!"
				}
				parts = append(parts, part)
			}
		}
		texts = append(texts, strings.Join(parts, " "))
	}
	return fleet(t, family, texts...)
}

func TestVictims(t *testing.T) {
	cost := func(costs map[string]time.Duration) func(Slice) (time.Duration, bool) {
		return func(s Slice) (time.Duration, bool) {
			if isFree(s) {
				return 0, true
			}
			c, ok := costs[s.ID]
			return c, ok
		}
	}
	for _, c := range []struct {
		name    string
		gpus    []string
		costs   map[string]time.Duration
		profile string
		want    string
	}{
		// Half a GPU on one and half on another is no half GPU (Kueue #1309): 2g at 0
		// and 2 of 1g elsewhere, each cheap, make no place for a 3g.
		{"totals are not shapes", []string{"1g.10gb@0! 1g.10gb@4!", "1g.10gb@3! 1g.10gb@5!"}, map[string]time.Duration{"g0/1g.10gb@0": 1, "g1/1g.10gb@3": 1},
			"3g.40gb", "gpu 0: [g0/1g.10gb@0] 3g.40gb@0 cost 4.000000001s layout 1g.10gb@4 3g.40gb@0 1g.20gb@6 1g.10gb@5"},
		// What is there is not made again, at 3 s; two of 1g at 1 s and 2 s are, with 2 steps
		// out, one in and one for the 1g.20gb that fills what is bare at 6.
		{"not the one that is there", []string{"2g.20gb@0! 1g.10gb@2! 1g.10gb@3! 1g.10gb@4! 1g.10gb@5!"},
			map[string]time.Duration{"g0/2g.20gb@0": 3 * time.Second, "g0/1g.10gb@2": time.Second, "g0/1g.10gb@3": 2 * time.Second},
			"2g.20gb", "gpu 0: [g0/1g.10gb@2 g0/1g.10gb@3] 2g.20gb@2 cost 7s layout 2g.20gb@0 1g.10gb@4 1g.10gb@5 2g.20gb@2 1g.20gb@6"},
		// 9 s as it is; two at 1 s with 3 steps of 1 s: 5 s.
		{"two cheap ones", []string{"2g.20gb@0! 1g.10gb@2! 1g.10gb@3! 3g.40gb@4!"},
			map[string]time.Duration{"g0/2g.20gb@0": 9 * time.Second, "g0/1g.10gb@2": time.Second, "g0/1g.10gb@3": time.Second},
			"2g.20gb", "gpu 0: [g0/1g.10gb@2 g0/1g.10gb@3] 2g.20gb@2 cost 5s layout 2g.20gb@0 3g.40gb@4 2g.20gb@2"},
		{"one that must stay is in the way", []string{"1g.10gb@0! 1g.10gb@2! 3g.40gb@4!"}, map[string]time.Duration{"g0/1g.10gb@0": 1},
			"4g.40gb", "none"},
		{"bare memory costs the creation", []string{"3g.40gb@0!"}, nil, "3g.40gb", "gpu 0: [] 3g.40gb@4 cost 1s layout 3g.40gb@0 3g.40gb@4"},
	} {
		s := fleet(t, a100, c.gpus...)
		geo := NewGeometries(s.GPUs, nil)
		got := "none"
		if e, ok := Victims(s, shapeOf(t, a100, c.profile), geo, cost(c.costs)); ok {
			got = fmt.Sprintf("gpu %d: %v %s cost %v layout %s", e.GPU, e.Slices, layout([]gpu.Placement{e.Place}), e.Cost, layout(e.Layout))
		}
		if got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
	}
}

// TestVictimsAreCheapest tries every subset of the instances of every GPU.
func TestVictimsAreCheapest(t *testing.T) {
	f := lookup(t, a100)
	found := 0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 2))
		s := randomFleet(t, rng, a100, 1+rng.IntN(4))
		costs, stays := map[string]time.Duration{}, map[string]bool{}
		for _, sl := range s.Slices {
			costs[sl.ID] = time.Duration(rng.IntN(100)) * time.Hour
			stays[sl.ID] = rng.IntN(4) == 0
		}
		p := f.Profiles[rng.IntN(len(f.Profiles))]
		if media(p) {
			continue
		}
		best := time.Duration(-1)
		for _, g := range s.GPUs {
			var on []Slice
			for _, sl := range s.Slices {
				if sl.GPU == g.Index {
					on = append(on, sl)
				}
			}
			for set := range 1 << len(on) {
				mask, sum, ok := g.Mask, time.Duration(0), true
				for i, sl := range on {
					if set>>i&1 == 1 {
						mask &^= gpu.Mask(sl.Start, sl.Shape.MemorySlices)
						sum += costs[sl.ID]
						ok = ok && !stays[sl.ID]
					}
				}
				fresh := slices.ContainsFunc(f.Place(mask, p.Name), func(at int) bool { // what is there is not made
					return !slices.ContainsFunc(on, func(sl Slice) bool { return sl.Start == at && sl.Shape.Profile == p.Name })
				})
				if ok && fresh && (best < 0 || sum < best) {
					best = sum
				}
			}
		}
		e, ok := Victims(s, shapeOf(t, a100, p.Name), nil, func(sl Slice) (time.Duration, bool) { return costs[sl.ID], !stays[sl.ID] })
		if ok != (best >= 0) || ok && e.Cost.Truncate(time.Hour) != best { // the steps are seconds
			t.Fatalf("seed %d, %s: %+v, %v; the cheapest of all subsets costs %v", seed, p.Name, e, ok, best)
		}
		if ok {
			found++
		}
	}
	if found < 50 {
		t.Errorf("%d found: the test looks at nothing", found)
	}
}
