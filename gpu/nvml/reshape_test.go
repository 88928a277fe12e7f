//go:build cgo

package nvml

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/gpus"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"

	"aloft/gpu"
	"aloft/gpu/simulated"
)

// board is a mock A100 whose instances can be made and unmade, with the checks
// that the mock leaves out: no overlap, no GPU instance destroyed under its
// compute instances, and ids as a driver gives them.
type board struct {
	*server.Device
	family    gpu.Family
	log       []string               // what was asked of the driver, in order
	processes map[int]int            // by GPU instance
	refuse    map[string]nvml.Return // by log entry
}

func newBoard(t *testing.T) (*board, *inventory) {
	t.Helper()
	f := newFake(t, gpus.A100_SXM4_80GB)
	b := &board{Device: f.dev(0), processes: map[int]int{}, refuse: map[string]nvml.Return{}}
	b.family, _ = gpu.Lookup("A100-80GB")
	b.SetMigMode(nvml.DEVICE_MIG_ENABLE)
	create := b.CreateGpuInstanceWithPlacementFunc
	b.CreateGpuInstanceWithPlacementFunc = func(info *nvml.GpuInstanceProfileInfo, at *nvml.GpuInstancePlacement) (nvml.GpuInstance, nvml.Return) {
		p := b.profile(int(info.Id))
		entry := fmt.Sprintf("+%s@%d", p.Name, at.Start)
		if ret := b.asked(entry); ret != nvml.SUCCESS {
			return nil, ret
		}
		for _, gi := range b.instances() {
			have := gi.Info.Placement
			if gpu.Mask(int(have.Start), int(have.Size))&gpu.Mask(int(at.Start), int(at.Size)) != 0 {
				return nil, nvml.ERROR_INSUFFICIENT_RESOURCES
			}
		}
		made, ret := create(info, at)
		b.wire(made.(*server.GpuInstance), p, entry[1:])
		return made, ret
	}
	b.GetGpuInstanceByIdFunc = func(id int) (nvml.GpuInstance, nvml.Return) {
		for _, gi := range b.instances() {
			if int(gi.Info.Id) == id {
				return gi, nvml.SUCCESS
			}
		}
		return nil, nvml.ERROR_NOT_FOUND
	}
	b.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 7, nvml.SUCCESS }
	b.GetMigDeviceHandleByIndexFunc = b.mig
	return b, mustOpen(t, f)
}

func (b *board) asked(entry string) nvml.Return {
	b.log = append(b.log, entry)
	return b.refuse[entry] // SUCCESS is 0
}

func (b *board) profile(enum int) gpu.Profile {
	return b.family.Profiles[slices.IndexFunc(b.family.Profiles, func(p gpu.Profile) bool { return p.Enum == enum })]
}

func (b *board) instances() []*server.GpuInstance {
	var all []*server.GpuInstance
	for gi := range b.GpuInstances {
		all = append(all, gi)
	}
	slices.SortFunc(all, func(x, y *server.GpuInstance) int { return cmp.Compare(x.Info.Id, y.Info.Id) })
	return all
}

// wire makes an instance of the mock behave like a driver's.
func (b *board) wire(gi *server.GpuInstance, p gpu.Profile, name string) {
	gi.GetInfoFunc = func() (nvml.GpuInstanceInfo, nvml.Return) {
		info := gi.Info
		info.ProfileId = uint32(p.ID)
		return info, nvml.SUCCESS
	}
	destroy := gi.DestroyFunc
	gi.DestroyFunc = func() nvml.Return {
		if ret := b.asked("-" + name); ret != nvml.SUCCESS {
			return ret
		}
		if len(gi.ComputeInstances) > 0 {
			return nvml.ERROR_IN_USE
		}
		return destroy()
	}
	create := gi.CreateComputeInstanceFunc
	gi.CreateComputeInstanceFunc = func(info *nvml.ComputeInstanceProfileInfo) (nvml.ComputeInstance, nvml.Return) {
		if ret := b.asked("+ci " + name); ret != nvml.SUCCESS {
			return nil, ret
		}
		if int(info.SliceCount) != p.Compute {
			return nil, nvml.ERROR_INVALID_ARGUMENT
		}
		return create(info)
	}
}

// mig is the i-th MIG device: a GPU instance that has a compute instance.
func (b *board) mig(i int) (nvml.Device, nvml.Return) {
	for _, gi := range b.instances() {
		if len(gi.ComputeInstances) == 0 {
			continue
		}
		if i--; i >= 0 {
			continue
		}
		p := b.profile(int(gi.Info.ProfileId))
		id := int(gi.Info.Id)
		return &mock.Device{
			GetUUIDFunc:          func() (string, nvml.Return) { return fmt.Sprintf("MIG-%d", id), nvml.SUCCESS },
			GetGpuInstanceIdFunc: func() (int, nvml.Return) { return id, nvml.SUCCESS },
			GetAttributesFunc: func() (nvml.DeviceAttributes, nvml.Return) {
				return nvml.DeviceAttributes{GpuInstanceSliceCount: uint32(p.Compute), MemorySizeMB: uint64(p.Bytes >> 20)}, nvml.SUCCESS
			},
			GetMemoryInfoFunc:              func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: uint64(p.Bytes)}, nvml.SUCCESS },
			GetComputeRunningProcessesFunc: processes(b.processes[id]),
		}, nvml.SUCCESS
	}
	return nil, nvml.ERROR_NOT_FOUND
}

func placements(t *testing.T, text string) []gpu.Placement {
	t.Helper()
	f, _ := gpu.Lookup("A100-80GB")
	set, err := f.Layout(strings.Fields(text))
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func showSlices(all []gpu.Slice) string {
	var parts []string
	for _, s := range all {
		parts = append(parts, fmt.Sprintf("%s=%s@%d", s.ID, s.Shape.Profile, s.Start))
	}
	return strings.Join(parts, " ")
}

// TestShapersAgree runs one script against both shapers: equal slices with equal
// names after every step, equal refusals.
func TestShapersAgree(t *testing.T) {
	b, real := newBoard(t)
	modelled, err := simulated.New(simulated.Options{GPUs: []simulated.GPU{{Family: "A100-80GB", Layout: []string{"7g.80gb"}}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := modelled.Reshape(t.Context(), 0, nil); err != nil {
		t.Fatal(err)
	}
	for i, step := range []struct{ layout, want, refusal string }{
		{"1g.10gb@6 3g.40gb@0 2g.20gb@4", "g0/s0=3g.40gb@0 g0/s1=2g.20gb@4 g0/s2=1g.10gb@6", ""},
		{"1g.10gb@6 3g.40gb@0 1g.10gb@4 1g.10gb@5", "g0/s0=3g.40gb@0 g0/s3=1g.10gb@4 g0/s4=1g.10gb@5 g0/s2=1g.10gb@6", ""},
		{"4g.40gb@0 3g.40gb@4", "g0/s1=4g.40gb@0 g0/s5=3g.40gb@4", ""},
		{"4g.40gb@0 3g.40gb@4", "g0/s1=4g.40gb@0 g0/s5=3g.40gb@4", ""},
		{"7g.80gb", "g0/s1=4g.40gb@0 g0/s5=3g.40gb@4", "g0/s1 has 1 processes: in use"},
		{"4g.40gb@0", "g0/s1=4g.40gb@0", ""},
	} {
		if i == 4 { // the 4g is in use from here on
			_ = modelled.SetUsage("g0/s1", gpu.Usage{Processes: 1})
			for _, gi := range b.instances() {
				if gi.Info.Placement.Start == 0 {
					b.processes[int(gi.Info.Id)] = 1
				}
			}
		}
		for _, s := range []struct {
			name string
			gpu.Shaper
		}{{"nvml", real}, {"simulated", modelled}} {
			got, err := s.Reshape(t.Context(), 0, placements(t, step.layout))
			if text := fmt.Sprint(err); (err == nil) != (step.refusal == "") || err != nil && !strings.HasSuffix(text, step.refusal) {
				t.Errorf("step %d, %s: %v, want %q", i, s.name, err, step.refusal)
			}
			if showSlices(got) != step.want {
				t.Errorf("step %d, %s: %s, want %s", i, s.name, showSlices(got), step.want)
			}
		}
	}
}

func TestReshapeOrder(t *testing.T) {
	b, inv := newBoard(t)
	if _, err := inv.Reshape(t.Context(), 0, placements(t, "1g.10gb@0 1g.10gb@1 3g.40gb@4")); err != nil {
		t.Fatal(err)
	}
	if want := "+3g.40gb@4 +ci 3g.40gb@4 +1g.10gb@0 +ci 1g.10gb@0 +1g.10gb@1 +ci 1g.10gb@1"; strings.Join(b.log, " ") != want {
		t.Errorf("asked %s, want %s", strings.Join(b.log, " "), want)
	}
	b.log = nil
	if _, err := inv.Reshape(t.Context(), 0, placements(t, "3g.40gb@4 4g.40gb@0")); err != nil {
		t.Fatal(err) // also: had a compute instance been alive, the destroy would have been refused
	}
	if want := "-1g.10gb@0 -1g.10gb@1 +4g.40gb@0 +ci 4g.40gb@0"; strings.Join(b.log, " ") != want {
		t.Errorf("asked %s, want %s", strings.Join(b.log, " "), want)
	}
}

func TestReshapeFailures(t *testing.T) {
	for _, c := range []struct {
		name, refused string
		ret           nvml.Return
		want          string // of the error; "" = none
		left          string
	}{
		// A handle is open somewhere: the instance stays, without a compute instance.
		{"in use without a process", "-1g.10gb@0", nvml.ERROR_IN_USE, "in use", "g0/s1=1g.10gb@1"},
		{"no permission", "+4g.40gb@0", nvml.ERROR_NO_PERMISSION, "create 4g.40gb at 0: create GPU instance", ""},
		{"no room", "+4g.40gb@0", nvml.ERROR_INSUFFICIENT_RESOURCES, "no room for the GPU instance", ""},
		// The GPU instance that got no compute instance is not left behind.
		{"no compute instance", "+ci 4g.40gb@0", nvml.ERROR_UNKNOWN, "create compute instance", ""},
	} {
		b, inv := newBoard(t)
		if _, err := inv.Reshape(t.Context(), 0, placements(t, "1g.10gb@0 1g.10gb@1")); err != nil {
			t.Fatal(err)
		}
		b.refuse[c.refused] = c.ret
		got, err := inv.Reshape(t.Context(), 0, placements(t, "4g.40gb@0"))
		if err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, c.ret) || showSlices(got) != c.left {
			t.Errorf("%s: %s, %v; want %s and %q", c.name, showSlices(got), err, c.left, c.want)
		}
		if c.ret == nvml.ERROR_IN_USE && !errors.Is(err, gpu.ErrInUse) {
			t.Errorf("%s: %v is not ErrInUse", c.name, err)
		}
		if c.name == "no compute instance" && len(b.instances()) != 0 {
			t.Errorf("%s: %d GPU instances left", c.name, len(b.instances()))
		}
	}
}

// TestReshapeFindsWhatIsThere: INSUFFICIENT_RESOURCES also means "already there".
func TestReshapeFindsWhatIsThere(t *testing.T) {
	b, inv := newBoard(t)
	info, _ := b.GetGpuInstanceProfileInfo(b.family.Profiles[0].Enum)
	if _, ret := b.CreateGpuInstanceWithPlacement(&info, &nvml.GpuInstancePlacement{Start: 3, Size: 1}); ret != nvml.SUCCESS {
		t.Fatal(ret) // an instance that another tool left without a compute instance: no MIG device shows it
	}
	got, err := inv.Reshape(t.Context(), 0, placements(t, "1g.10gb@3"))
	if err != nil || showSlices(got) != "g0/s0=1g.10gb@3" {
		t.Errorf("%s, %v", showSlices(got), err)
	}
}

func TestReshapeRefusals(t *testing.T) {
	f := newFake(t, gpus.A100_SXM4_80GB, gpus.Config{Name: "NVIDIA GH200 480GB", MemoryMB: 97871})
	partition(t, f.dev(1), "H100-94GB", "3g.47gb@4")
	inv := mustOpen(t, f)
	for _, c := range []struct {
		gpu  int
		want string
	}{{0, "MIG is off"}, {1, `no table of the placements of "NVIDIA GH200 480GB"`}, {2, "there are 2"}, {-1, "there are 2"}} {
		if _, err := inv.Reshape(t.Context(), c.gpu, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("gpu %d: %v, want %q", c.gpu, err, c.want)
		}
	}
}
