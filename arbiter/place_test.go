package arbiter

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"aloft/gpu"
)

func lookup(t testing.TB, name string) gpu.Family {
	t.Helper()
	f, ok := gpu.Lookup(name)
	if !ok {
		t.Fatalf("no family %s", name)
	}
	return f
}

func shapeOf(t testing.TB, family, profile string) gpu.Shape {
	t.Helper()
	s, err := gpu.ShapeOf(family, profile)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func wantsOf(t testing.TB, family string, profiles ...string) []Want {
	t.Helper()
	var w []Want
	for _, p := range profiles {
		w = append(w, Want{Shape: shapeOf(t, family, p), Count: 1})
	}
	return w
}

func TestFrag(t *testing.T) {
	for _, c := range []struct {
		family string
		wants  []string
		mask   uint8
		want   float64
	}{
		{"A100-80GB", []string{"3g.40gb"}, 0, 0},                        // (8−4·2)/8
		{"A100-80GB", []string{"3g.40gb"}, 0x01, 0.375},                 // (7−4·1)/8
		{"A100-80GB", []string{"3g.40gb"}, 0x11, 0.75},                  // (6−4·0)/8
		{"A100-80GB", []string{"7g.80gb"}, 0x80, 0.875},                 // (7−8·0)/8
		{"A100-80GB", []string{"7g.80gb"}, 0xff, 0},                     // nothing is free
		{"A100-80GB", []string{"1g.10gb", "3g.40gb"}, 0, 0.0625},        // ((8−7)/8 + 0)/2
		{"A100-80GB", []string{"1g.10gb", "3g.40gb"}, 0x03, 0.1875},     // ((6−5)/8 + (6−4)/8)/2
		{"A100-80GB", []string{"1g.10gb", "3g.40gb"}, 0x11, 0.4375},     // ((6−5)/8 + 6/8)/2
		{"A100-80GB", []string{"4g.40gb"}, 0x01, 0.875},                 // 7/8: 4g starts at 0 alone
		{"A100-80GB", []string{"4g.40gb"}, 0x10, 0.375},                 // (7−4)/8
		{"A100-80GB", nil, 0, 0.875 / 6},                                // (1/8 + 0 + 2/8 + 0 + 4/8 + 0)/6 over 1g 1g.20 2g 3g 4g 7g
		{"A100-80GB", []string{"1g.10gb+me"}, 0, 0.875},                 // (8−1·1)/8: one set of media engines
		{"A30-24GB", []string{"2g.12gb"}, 0, 0},                         // (4−2·2)/4
		{"A30-24GB", []string{"2g.12gb"}, 0x1, 0.25},                    // (3−2·1)/4
		{"A30-24GB", []string{"2g.12gb"}, 0x5, 0.5},                     // (2−2·0)/4
		{"A30-24GB", []string{"1g.6gb", "1g.6gb", "4g.24gb"}, 0x1, .25}, // (2·(3−3)/4 + 3/4)/3
	} {
		g := NewGeometry(lookup(t, c.family), wantsOf(t, c.family, c.wants...))
		if got := g.Frag(c.mask); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%s %v: F(%08b) = %v, want %v", c.family, c.wants, c.mask, got, c.want)
		}
	}
}

// fit counts starts; the most that go in at once is found here by trying.
func TestFitIsExact(t *testing.T) {
	for _, name := range gpu.Families() {
		f := lookup(t, name)
		for _, p := range f.Profiles {
			for mask := range 1 << f.Slices {
				if got, want := fit(p, uint8(mask)), most(f, p, uint8(mask)); got != want {
					t.Fatalf("%s %s beside %08b: %d, want %d", name, p.Name, mask, got, want)
				}
			}
		}
	}
}

func most(f gpu.Family, p gpu.Profile, mask uint8) int {
	best := 0
	var grow func(set []gpu.Placement, taken uint8)
	grow = func(set []gpu.Placement, taken uint8) {
		best = max(best, len(set))
		for _, pl := range p.Placements() {
			if len(set) > 0 && pl.Start <= set[len(set)-1].Start {
				continue
			}
			if next := append(slices.Clip(set), pl); taken&pl.Mask() == 0 && f.Legal(next) == nil {
				grow(next, taken|pl.Mask())
			}
		}
	}
	grow(nil, mask)
	return best
}

func TestStart(t *testing.T) {
	for _, c := range []struct {
		wants   []string
		mask    uint8
		profile string
		start   int // −1 = no place
		growth  float64
	}{
		// Beside a 1g at 0: starts 1 to 3 keep room for one 3g (F = (0.125+0.25)/2),
		// 4 to 6 for none ((0.125+0.75)/2); F before = ((7−6)/8 + (7−4)/8)/2 = 0.25.
		{[]string{"1g.10gb", "3g.40gb"}, 0x01, "1g.10gb", 3, 0.1875 - 0.25},
		// 4g needs 0 to 3: the 3g goes to 4. F before = ((8−4)/8 + 0)/2, after 4g fits: 0 and 3g fits: 0.
		{[]string{"3g.40gb", "4g.40gb"}, 0, "3g.40gb", 4, -0.25},
		{[]string{"3g.40gb"}, 0x11, "3g.40gb", -1, 0},
		{[]string{"1g.10gb"}, 0x7f, "1g.10gb", -1, 0},                    // slice 7 is no start
		{[]string{"1g.10gb", "1g.20gb"}, 0x3f, "1g.20gb", 6, -0.125 / 2}, // before ((2−1)/8 + 0)/2, after 0
	} {
		g := NewGeometry(lookup(t, "A100-80GB"), wantsOf(t, "A100-80GB", c.wants...))
		start, growth, ok := g.Start(c.mask, c.profile)
		if ok != (c.start >= 0) || ok && (start != c.start || math.Abs(growth-c.growth) > 1e-12) {
			t.Errorf("%v: %s beside %08b at %d growing %v, %v; want %d growing %v", c.wants, c.profile, c.mask, start, growth, ok, c.start, c.growth)
		}
	}
}

func healthy(family string, n int) []GPU {
	var gpus []GPU
	for i := range n {
		gpus = append(gpus, GPU{Index: i, Server: i / 8, Family: family, Health: gpu.Health{OK: true}})
	}
	return gpus
}

func TestPlace(t *testing.T) {
	for _, c := range []struct {
		name    string
		wants   []string
		taken   []uint8
		sick    int // −1 = none
		profile string
		gpu     int
		start   int
	}{
		// The half-full GPU loses no place for a 3g by a 1g more, the empty one does.
		{"fills the broken half", []string{"3g.40gb"}, []uint8{0, 0x01}, -1, "1g.10gb", 1, 3},
		// Both grow by 0 − …: 4..7 of gpu 1 is the exact hole (F 0 → 0), an empty GPU keeps another place too: equal; the fuller one wins.
		{"of equals the fullest", []string{"3g.40gb"}, []uint8{0, 0x0f}, -1, "3g.40gb", 1, 4},
		{"not on a sick GPU", []string{"3g.40gb"}, []uint8{0, 0x0f}, 1, "3g.40gb", 0, 4},
		{"nowhere", []string{"3g.40gb"}, []uint8{0x11, 0x88}, -1, "3g.40gb", -1, 0},
	} {
		gpus := healthy(a100, len(c.taken))
		if c.sick >= 0 {
			gpus[c.sick].Health.OK = false
		}
		geo := NewGeometries(gpus, wantsOf(t, a100, c.wants...))
		spot, ok := geo.Place(gpus, c.taken, shapeOf(t, a100, c.profile))
		if ok != (c.gpu >= 0) || ok && (spot.GPU != c.gpu || spot.Place.Start != c.start || spot.Place.Profile != c.profile) {
			t.Errorf("%s: %+v, %v; want gpu %d at %d", c.name, spot, ok, c.gpu, c.start)
		}
	}
}

// A shape that is no profile of a family takes its least that holds it, and GPUs
// of other families are judged by their own tables.
func TestPlaceAcrossFamilies(t *testing.T) {
	gpus := []GPU{{Index: 3, Health: gpu.Health{OK: true}}, // no MIG
		{Index: 4, Family: "A30-24GB", Health: gpu.Health{OK: true}},
		{Index: 9, Family: "H100-80GB", Health: gpu.Health{OK: true}}}
	want := []Want{{Shape: gpu.Shape{ComputeSlices: 2, MemorySlices: 2, Bytes: 15 << 30}, Count: 1}}
	geo := NewGeometries(gpus, want)
	spot, ok := geo.Place(gpus, make([]uint8, 3), want[0].Shape)
	// 15 GiB: a whole A30 (4g.24gb), growing by 0 − 0; on the H100 a 2g.20gb, of which
	// three fit: F goes from (8−6)/8 to (6−4)/8. Equal, and nothing taken: the first.
	if !ok || spot.GPU != 4 || spot.Place != (gpu.Placement{Profile: "4g.24gb", Size: 4}) {
		t.Errorf("got %+v, %v", spot, ok)
	}
	if got, want := geo.Fragmentation(gpus, []uint8{0, 0xf, 0}), (0+0.25)/2; math.Abs(got-want) > 1e-12 {
		t.Errorf("fragmentation %v, want %v", got, want)
	}
}

func TestTaken(t *testing.T) {
	all := []Slice{slice(t, a100, 0, "3g.40gb", 4), slice(t, a100, 1, "1g.10gb", 6), slice(t, a100, 7, "1g.10gb", 0)}
	all[1].Phase = Ready
	gpus := healthy(a100, 2)
	if got := Taken(gpus, all, func(Slice) bool { return true }); !slices.Equal(got, []uint8{0xf0, 0x40}) {
		t.Errorf("all: %08b", got)
	}
	if got := Taken(gpus, all, func(s Slice) bool { return s.Phase != Free }); !slices.Equal(got, []uint8{0, 0x40}) {
		t.Errorf("in use: %08b", got)
	}
}

// F is a share, and choosing by it places more than the first place does, on
// the whole of many random fills: 24 instances of 2.75 memory slices on average
// on 64.
func TestPlaceFitsMoreThanFirstFit(t *testing.T) {
	const a100, seed = "A100-80GB", 7
	names := []string{"1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb"}
	wants := wantsOf(t, a100, names...)
	gpus := healthy(a100, 8)
	geo := NewGeometries(gpus, wants)
	f := lookup(t, a100)
	ours, first := 0, 0
	for round := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, round))
		mine, theirs := make([]uint8, len(gpus)), make([]uint8, len(gpus))
		for range 24 {
			p := names[rng.IntN(len(names))]
			if spot, ok := geo.Place(gpus, mine, shapeOf(t, a100, p)); ok {
				if mine[spot.GPU]&spot.Place.Mask() != 0 {
					t.Fatalf("overlap; replay with round %d", round)
				}
				mine[spot.GPU] |= spot.Place.Mask()
				ours += spot.Place.Size
			}
			for i := range theirs {
				if at := f.Place(theirs[i], p); len(at) > 0 {
					prof, _ := f.Profile(p)
					theirs[i] |= gpu.Mask(at[0], prof.Memory)
					first += prof.Memory
					break
				}
			}
		}
		for _, m := range mine {
			if x := geo[a100].Frag(m); x < -1e-12 || x > 1 {
				t.Fatalf("F(%08b) = %v", m, x)
			}
		}
	}
	if ours <= first {
		t.Errorf("placed %d memory slices, first fit %d (seed %d)", ours, first, seed)
	}
	t.Logf("placed %d memory slices, first fit %d", ours, first)
}
