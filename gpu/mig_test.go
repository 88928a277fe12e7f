package gpu

import (
	"errors"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
)

func family(t testing.TB, name string) Family {
	t.Helper()
	f, ok := Lookup(name)
	if !ok {
		t.Fatalf("no family %s", name)
	}
	return f
}

// plain drops the profiles that differ by media engines, and on request the
// small one with double memory: the sets that the oracle was computed for.
func (f Family) plain(doubleMemory bool) Family {
	f.Profiles = slices.DeleteFunc(slices.Clone(f.Profiles), func(p Profile) bool {
		return p.media() || !doubleMemory && p.Compute == 1 && p.Memory == 2
	})
	return f
}

// states lists every legal set of instances, each once.
func (f Family) states() [][]Placement {
	var places []Placement
	for _, p := range f.Profiles {
		places = append(places, p.Placements()...)
	}
	var all [][]Placement
	var grow func(set []Placement, from int)
	grow = func(set []Placement, from int) {
		all = append(all, set)
		for i := from; i < len(places); i++ {
			if next := append(slices.Clip(set), places[i]); f.Legal(next) == nil {
				grow(next, i+1)
			}
		}
	}
	grow(nil, 0)
	return all
}

func (f Family) maximal(set []Placement) bool {
	taken := taken(set)
	for _, p := range f.Profiles {
		if len(f.Place(taken, p.Name)) > 0 {
			return false
		}
	}
	return true
}

func taken(set []Placement) (mask uint8) {
	for _, p := range set {
		mask |= p.Mask()
	}
	return mask
}

func multiset(set []Placement) string {
	var names []string
	for _, p := range set {
		names = append(names, p.Profile)
	}
	sort.Strings(names)
	return strings.Join(names, " ")
}

// TestOracle counts the placement space; the numbers were counted by
// hand elsewhere, and the 19 is NVIDIA's published list of A100 configurations.
func TestOracle(t *testing.T) {
	for _, c := range []struct {
		family                                   string
		double                                   bool
		states, maximal, maxMultisets, multisets int
	}{
		{"A100-80GB", false, 298, 19, 14, 38},
		{"A100-80GB", true, 723, 78, 38, 78},
		{"A100-40GB", true, 723, 78, 38, 78},
		{"H100-80GB", true, 723, 78, 38, 78},
		{"H100-94GB", true, 723, 78, 38, 78},
		{"H200-141GB", true, 723, 78, 38, 78},
		{"B200-180GB", true, 723, 78, 38, 78},
		{"A30-24GB", true, 26, 5, 4, 10}, // 10: {} 1 11 111 1111 2 12 112 22 4
	} {
		f := family(t, c.family).plain(c.double)
		states := f.states()
		kinds, maxKinds, maximal := map[string]bool{}, map[string]bool{}, 0
		for _, set := range states {
			kinds[multiset(set)] = true
			if f.maximal(set) {
				maximal++
				maxKinds[multiset(set)] = true
			}
			compute := 0
			for _, pl := range set {
				p, _ := f.Profile(pl.Profile)
				compute += p.Compute
			}
			if compute > f.Compute {
				t.Errorf("%s %s: %d compute slices of %d", c.family, describe(set), compute, f.Compute)
			}
		}
		got := []int{len(states), maximal, len(maxKinds), len(kinds)}
		if want := []int{c.states, c.maximal, c.maxMultisets, c.multisets}; !slices.Equal(got, want) {
			t.Errorf("%s double=%v: states, maximal, distinct maximal, distinct = %v, want %v", c.family, c.double, got, want)
		}
	}
}

// TestLayoutIsExact: a multiset has a layout exactly when a legal state holds it.
func TestLayoutIsExact(t *testing.T) {
	for _, name := range []string{"A100-80GB", "A30-24GB"} {
		f := family(t, name)
		possible := map[string]bool{}
		for _, set := range f.states() {
			possible[multiset(set)] = true
		}
		var try func(names []string, from int)
		try = func(names []string, from int) {
			set, err := f.Layout(names)
			sorted := slices.Sorted(slices.Values(names))
			if want := possible[strings.Join(sorted, " ")]; (err == nil) != want {
				t.Errorf("%s %v: %v, possible: %v", name, names, err, want)
			}
			if err == nil && (f.Legal(set) != nil || multiset(set) != strings.Join(sorted, " ")) {
				t.Errorf("%s %v: laid out as %s", name, names, describe(set))
			}
			if err != nil || len(names) == f.Slices {
				return
			}
			for i := from; i < len(f.Profiles); i++ {
				try(append(slices.Clip(names), f.Profiles[i].Name), i)
			}
		}
		try(nil, 0)
	}
}

func TestLayout(t *testing.T) {
	for _, c := range []struct{ family, entries, want string }{
		{"A100-80GB", "", "nothing"},
		{"A100-80GB", "1g.10gb 1g.10gb 2g.20gb 3g.40gb", "3g.40gb@4 2g.20gb@0 1g.10gb@2 1g.10gb@3"}, // 3g at 0 leaves no second 1g: 7 is no start
		{"A100-80GB", "3g.40gb 4g.40gb", "4g.40gb@0 3g.40gb@4"},
		{"A100-80GB", "1g.10gb@6 3g.40gb@0 1g.10gb", "1g.10gb@6 3g.40gb@0 1g.10gb@4"},
		{"H200-141GB", "7g.141gb", "7g.141gb@0"},
		{"A30-24GB", "2g.12gb 1g.6gb 1g.6gb", "2g.12gb@0 1g.6gb@2 1g.6gb@3"},
	} {
		for range 3 {
			set, err := family(t, c.family).Layout(strings.Fields(c.entries))
			if got := describe(set); err != nil || got != c.want {
				t.Errorf("%s: %s, %v; want %s", c.entries, got, err, c.want)
			}
		}
	}
}

func TestLayoutRefusals(t *testing.T) {
	for _, c := range []struct{ family, entries, want string }{
		{"A100-80GB", "4g.40gb 4g.40gb", "4g.40gb does not fit on A100-80GB beside 4g.40gb@0: legal starts are 0, at most 1"},
		{"A100-80GB", "1g.10gb 7g.80gb", "1g.10gb does not fit on A100-80GB beside 7g.80gb@0: legal starts are 0 1 2 3 4 5 6, at most 7"},
		{"A100-80GB", "3g.40gb@2", "3g.40gb cannot start at 2 on A100-80GB: legal starts are 0 4"},
		{"A100-80GB", "3g.40gb@0 2g.20gb@2", "2g.20gb at 2 overlaps 3g.40gb at 0 on A100-80GB"},
		{"A100-80GB", "3g.40gb@0 3g.40gb@0", "3g.40gb at 0 overlaps 3g.40gb at 0 on A100-80GB"},
		{"A100-80GB", "1g.10gb+me 1g.10gb+me", "at most 1"},
		{"A30-24GB", "1g.6gb+me@0 2g.12gb+me@2", "1g.6gb+me and 2g.12gb+me on one A30-24GB: it has one set of media engines"},
		{"A100-80GB", "3g.40gb@-1", `layout entry "3g.40gb@-1": want a start such as 3g.40gb@0`},
		{"A100-80GB", "3g.40gb@", "want a start"},
		{"A100-80GB", "3g.20gb", `unknown MIG profile "3g.20gb": A100-80GB has 1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb`},
		{"A100-80GB", strings.Repeat("1g.10gb ", 9), "9 instances: does not fit: A100-80GB has 8 memory slices"},
	} {
		set, err := family(t, c.family).Layout(strings.Fields(c.entries))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %s, %v; want %q", c.entries, describe(set), err, c.want)
		}
	}
}

func TestLegal(t *testing.T) {
	f := family(t, "H100-80GB")
	for _, c := range []struct {
		set  []Placement
		want string
	}{
		{nil, ""},
		{[]Placement{{"3g.40gb", 4, 4}, {"4g.40gb", 0, 4}}, ""},
		{[]Placement{{"3g.40gb", 4, 3}}, "3g.40gb takes 4 memory slices on H100-80GB, not 3"},
		{[]Placement{{"9g.1gb", 0, 1}}, "unknown MIG profile"},
		{[]Placement{{"1g.10gb", 7, 1}}, "cannot start at 7"},
		{[]Placement{{"1g.10gb+me", 0, 1}, {"1g.10gb+me", 1, 1}}, "more than 1 of 1g.10gb+me"},
	} {
		err := f.Legal(c.set)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.set, err, c.want)
		}
	}
}

func TestPlace(t *testing.T) {
	f := family(t, "A100-80GB")
	for _, c := range []struct {
		taken   uint8
		profile string
		want    []int
	}{
		{0, "3g.40gb", []int{0, 4}},
		{Mask(0, 1), "3g.40gb", []int{4}},
		{Mask(4, 2), "2g.20gb", []int{0, 2}},
		{Mask(0, 7), "1g.10gb", nil}, // memory slice 7 is free, and of no use to it
		{Mask(0, 6), "1g.20gb", []int{6}},
		{0, "no", nil},
	} {
		if got := f.Place(c.taken, c.profile); !slices.Equal(got, c.want) {
			t.Errorf("%08b %s: %v, want %v", c.taken, c.profile, got, c.want)
		}
	}
}

func TestShapeAndWeight(t *testing.T) {
	for _, c := range []struct {
		family, profile string
		want            Shape
		weight          float64
	}{
		{"A100-80GB", "3g.40gb", Shape{Profile: "3g.40gb", ComputeSlices: 3, MemorySlices: 4, Bytes: 40192 << 20}, 0.5},
		{"A100-80GB", "1g.10gb", Shape{Profile: "1g.10gb", ComputeSlices: 1, MemorySlices: 1, Bytes: 9728 << 20}, 1.0 / 7},
		{"H100-80GB", Full, Shape{Profile: "full", ComputeSlices: 7, MemorySlices: 8, Bytes: 81152 << 20}, 1},
		{"A30-24GB", "2g.12gb", Shape{Profile: "2g.12gb", ComputeSlices: 2, MemorySlices: 2, Bytes: 11968 << 20, Axis: 4}, 0.5},
		{"A30-24GB", Full, Shape{Profile: "full", ComputeSlices: 4, MemorySlices: 4, Bytes: 24000 << 20, Axis: 4}, 1},
	} {
		got, err := ShapeOf(c.family, c.profile)
		if err != nil || got != c.want || got.Weight() != c.weight {
			t.Errorf("%s %s: %+v weight %v, %v", c.family, c.profile, got, got.Weight(), err)
		}
	}
	if got := FullShape(5).Weight(); got != 1 {
		t.Errorf("whole GPU weighs %v", got)
	}
	if _, err := ShapeOf("A100", "1g.10gb"); err == nil || !strings.Contains(err.Error(), "A30-24GB A100-40GB A100-80GB") {
		t.Errorf("unknown family: %v", err)
	}
	if _, err := ShapeOf("A30-24GB", "1g.10gb"); !errors.Is(err, ErrUnknownProfile) {
		t.Errorf("unknown profile: %v", err)
	}
}

// TestFamilies checks the data against itself.
func TestFamilies(t *testing.T) {
	for _, name := range Families() {
		f := family(t, name)
		ids, enums := map[int]bool{}, map[int]bool{}
		for _, p := range f.Profiles {
			if ids[p.ID] || enums[p.Enum] {
				t.Errorf("%s %s: profile id or enum used twice", name, p.Name)
			}
			ids[p.ID], enums[p.Enum] = true, true
			if g, _, _ := strings.Cut(p.Name, "g."); g != strconv.Itoa(p.Compute) {
				t.Errorf("%s %s: %d compute slices", name, p.Name, p.Compute)
			}
			size, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimSuffix(p.Name[strings.Index(p.Name, ".")+1:], "+me"), "gb"))
			if gib := float64(p.Bytes) / (1 << 30); gib > float64(size)+0.01 || gib < 0.9*float64(size) {
				t.Errorf("%s %s: %.2f GiB", name, p.Name, gib)
			}
			if p.Bytes > f.Bytes || p.Max > len(p.Starts) {
				t.Errorf("%s %s: more than the GPU has", name, p.Name)
			}
			for _, pl := range p.Placements() {
				if pl.Start+pl.Size > f.Slices {
					t.Errorf("%s %s: start %d leaves the axis", name, p.Name, pl.Start)
				}
			}
		}
	}
}

func TestFamilyOf(t *testing.T) {
	for _, c := range []struct {
		model string
		mib   int64
		want  string
	}{
		{"NVIDIA A100-SXM4-80GB", 81920, "A100-80GB"},
		{"NVIDIA A100 80GB PCIe", 81920, "A100-80GB"},
		{"NVIDIA A100-PCIE-40GB", 40960, "A100-40GB"},
		{"NVIDIA A800-SXM4-80GB", 81920, "A100-80GB"},
		{"NVIDIA A30", 24576, "A30-24GB"},
		{"NVIDIA H100 80GB HBM3", 81559, "H100-80GB"},
		{"NVIDIA H100 NVL", 95830, "H100-94GB"},
		{"NVIDIA H200", 143771, "H200-141GB"},
		{"NVIDIA B200", 183359, "B200-180GB"},
		{"NVIDIA L40S", 46068, ""},
		{"NVIDIA A10", 23028, ""},
		{"NVIDIA GH200 480GB", 97871, ""},
		{"", 0, ""},
	} {
		if got := FamilyOf(c.model, c.mib<<20); got != c.want {
			t.Errorf("%s with %d MiB: %q, want %q", c.model, c.mib, got, c.want)
		}
	}
}

func TestHealthAfterXID(t *testing.T) {
	for _, c := range []struct {
		xid  int
		want Health
	}{
		{31, Health{OK: true}},
		{79, Health{Reason: "XID 79: GPU fell off the bus"}},
		{999, Health{Reason: "XID 999: unknown error"}},
	} {
		if got := HealthAfterXID(c.xid); got != c.want {
			t.Errorf("XID %d: %+v", c.xid, got)
		}
	}
}

func FuzzLayout(f *testing.F) {
	f.Add("A100-80GB", "3g.40gb@4 1g.10gb 2g.20gb")
	f.Add("A30-24GB", "1g.6gb+me 2g.12gb@2")
	f.Add("B200-180GB", "1g.23gb@007 1g.23gb@")
	f.Fuzz(func(t *testing.T, name, text string) {
		fam, ok := Lookup(name)
		if !ok {
			return
		}
		entries := strings.Fields(text)
		set, err := fam.Layout(entries)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("an error of several lines: %q", err)
			}
			return
		}
		if len(set) != len(entries) {
			t.Errorf("%d of %d entries placed", len(set), len(entries))
		}
		if err := fam.Legal(set); err != nil {
			t.Errorf("illegal layout of %q: %v", text, err)
		}
	})
}
