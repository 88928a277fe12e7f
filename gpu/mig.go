package gpu

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Family is a MIG-capable product: what it can be cut into, and where.
type Family struct {
	Name     string // for example "A100-80GB"
	Compute  int    // compute slices: 7, or 4
	Slices   int    // memory slices, the placement axis: 8, or 4
	Bytes    int64  // what a process may use with MIG off, rounded down
	Profiles []Profile
}

// Profile is a kind of MIG instance of one family.
type Profile struct {
	Name    string // NVIDIA's name, for example "3g.40gb" or "1g.10gb+me"
	Enum    int    // NVML_GPU_INSTANCE_PROFILE_*; what profile queries take
	ID      int    // what creation takes and nvidia-smi prints; not the enum
	Compute int
	Memory  int // memory slices; 3g takes 4 and 7g takes 8
	Starts  []int
	Max     int   // instances on one GPU
	Bytes   int64 // usable memory
}

// Placement is an instance's place on its GPU's axis of memory slices.
type Placement struct {
	Profile string
	Start   int
	Size    int // memory slices
}

// Mask has one bit for each memory slice that the placement takes.
func (p Placement) Mask() uint8 { return Mask(p.Start, p.Size) }

// Mask has the bits start to start+size-1 set. Two instances collide exactly
// when their masks do: on every family of the table compute never runs out
// before memory does.
func Mask(start, size int) uint8 { return uint8((1<<size - 1) << start) }

// Lookup finds a family by name.
func Lookup(family string) (Family, bool) {
	i := slices.IndexFunc(families, func(f Family) bool { return f.Name == family })
	if i < 0 {
		return Family{}, false
	}
	return families[i], true
}

// Families lists the names that Lookup knows.
func Families() []string {
	names := make([]string, len(families))
	for i, f := range families {
		names[i] = f.Name
	}
	return names
}

// Profile finds a profile by NVIDIA's name.
func (f Family) Profile(name string) (Profile, bool) {
	i := slices.IndexFunc(f.Profiles, func(p Profile) bool { return p.Name == name })
	if i < 0 {
		return Profile{}, false
	}
	return f.Profiles[i], true
}

// ProfileByID finds a profile by the id that the driver reports for an instance.
func (f Family) ProfileByID(id int) (Profile, bool) {
	i := slices.IndexFunc(f.Profiles, func(p Profile) bool { return p.ID == id })
	if i < 0 {
		return Profile{}, false
	}
	return f.Profiles[i], true
}

// ErrUnknownProfile is wrapped when a name is no profile of its family.
var ErrUnknownProfile = errors.New("unknown MIG profile")

func (f Family) profile(name string) (Profile, error) {
	p, ok := f.Profile(name)
	if !ok {
		return p, fmt.Errorf("%w %.40q: %s has %s", ErrUnknownProfile, name, f.Name, strings.Join(f.names(), " "))
	}
	return p, nil
}

func (f Family) names() []string {
	var names []string
	for _, p := range f.Profiles {
		names = append(names, p.Name)
	}
	return names
}

// Shape is the profile as a kind of slice.
func (f Family) shape(p Profile) Shape {
	return Shape{Profile: p.Name, ComputeSlices: p.Compute, MemorySlices: p.Memory, Bytes: p.Bytes, Axis: f.axis()}
}

func (f Family) axis() int {
	if f.Slices == 8 {
		return 0
	}
	return f.Slices
}

// Full is the profile name of a whole GPU without MIG.
const Full = "full"

// FullShape is a whole GPU without MIG; its weight is 1.
func FullShape(bytes int64) Shape {
	return Shape{Profile: Full, ComputeSlices: 7, MemorySlices: 8, Bytes: bytes}
}

// ShapeOf returns the shape of a profile, or of the whole GPU for Full.
func ShapeOf(family, profile string) (Shape, error) {
	f, ok := Lookup(family)
	if !ok {
		return Shape{}, fmt.Errorf("unknown MIG family %.40q: known are %s", family, strings.Join(Families(), " "))
	}
	if profile == Full {
		return Shape{Profile: Full, ComputeSlices: f.Compute, MemorySlices: f.Slices, Bytes: f.Bytes, Axis: f.axis()}, nil
	}
	p, err := f.profile(profile)
	if err != nil {
		return Shape{}, err
	}
	return f.shape(p), nil
}

// Placements lists every legal place of the profile, by start.
func (p Profile) Placements() []Placement {
	all := make([]Placement, len(p.Starts))
	for i, s := range p.Starts {
		all[i] = p.at(s)
	}
	return all
}

func (p Profile) at(start int) Placement {
	return Placement{Profile: p.Name, Start: start, Size: p.Memory}
}

// media tells the profiles that take the GPU's media engines, of which there is
// one set.
func (p Profile) media() bool { return strings.HasSuffix(p.Name, "+me") }

// Place lists the legal starts of the profile that are free under the mask of
// the taken memory slices. Limits by count (one "+me") are Legal's to check.
func (f Family) Place(taken uint8, profile string) []int {
	p, _ := f.Profile(profile)
	var free []int
	for _, pl := range p.Placements() {
		if taken&pl.Mask() == 0 {
			free = append(free, pl.Start)
		}
	}
	return free
}

// Legal says what is wrong with a set of instances on one GPU: an unknown
// profile, an illegal start or size, too many of a kind, an overlap.
func (f Family) Legal(set []Placement) error {
	count, media := map[string]int{}, ""
	for i, pl := range set {
		p, err := f.profile(pl.Profile)
		if err != nil {
			return err
		}
		if pl.Size != p.Memory {
			return fmt.Errorf("%s takes %d memory slices on %s, not %d", p.Name, p.Memory, f.Name, pl.Size)
		}
		if !slices.Contains(p.Starts, pl.Start) {
			return fmt.Errorf("%s cannot start at %d on %s: legal starts are %s", p.Name, pl.Start, f.Name, ints(p.Starts))
		}
		if count[p.Name]++; count[p.Name] > p.Max {
			return fmt.Errorf("more than %d of %s on one %s", p.Max, p.Name, f.Name)
		}
		if p.media() {
			if media != "" {
				return fmt.Errorf("%s and %s on one %s: it has one set of media engines", media, p.Name, f.Name)
			}
			media = p.Name
		}
		for _, other := range set[:i] {
			if pl.Mask()&other.Mask() != 0 {
				return fmt.Errorf("%s at %d overlaps %s at %d on %s", p.Name, pl.Start, other.Profile, other.Start, f.Name)
			}
		}
	}
	return nil
}

func ints(list []int) string {
	var b []byte
	for i, n := range list {
		if i > 0 {
			b = append(b, ' ')
		}
		b = strconv.AppendInt(b, int64(n), 10)
	}
	return string(b)
}

// SliceID is the name of the n-th slice, by start, of a GPU.
func SliceID(gpu, n int) string { return fmt.Sprintf("g%d/s%d", gpu, n) }

// ErrUnknownSlice is wrapped by an Inventory asked for a slice it does not have.
var ErrUnknownSlice = errors.New("unknown slice")
