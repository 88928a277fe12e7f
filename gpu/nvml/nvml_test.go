//go:build cgo

package nvml

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/gpus"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"

	"aloft/gpu"
)

// fake is NVIDIA's mock server with what it lacks: MIG devices, processes,
// lookup by id. Its profile ids (it uses the enum) and its Hopper geometry are
// wrong, so instances are created from our own table.
type fake struct {
	*server.Server
	ret nvml.Return // of Init
}

func (f *fake) Init() nvml.Return {
	if f.ret != nvml.SUCCESS {
		return f.ret
	}
	return f.Server.Init()
}

func newFake(t *testing.T, configs ...gpus.Config) *fake {
	t.Helper()
	s, err := server.New(server.WithGPUs(configs...))
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{Server: s}
	for i := range configs {
		f.dev(i).GetComputeRunningProcessesFunc = processes(0)
	}
	return f
}

func (f *fake) dev(i int) *server.Device { return f.Devices[i].(*server.Device) }

func processes(n int) func() ([]nvml.ProcessInfo, nvml.Return) {
	return func() ([]nvml.ProcessInfo, nvml.Return) { return make([]nvml.ProcessInfo, n), nvml.SUCCESS }
}

// partition gives a mock GPU instances by entries like "3g.40gb@4", with a hole
// before each MIG device, as after destroyed ones. Memory used is i+1 GiB and
// processes i+1, by entry.
func partition(t *testing.T, d *server.Device, family string, entries ...string) []*mock.Device {
	t.Helper()
	d.SetMigMode(nvml.DEVICE_MIG_ENABLE)
	f, ok := gpu.Lookup(family)
	if !ok {
		t.Fatalf("no family %s", family)
	}
	var migs []*mock.Device
	byID := map[int]nvml.GpuInstance{}
	for i, e := range entries {
		name, _, _ := strings.Cut(e, "@")
		p, ok := f.Profile(name)
		if !ok {
			t.Fatalf("no profile %s", name)
		}
		var start uint32
		if _, err := fmt.Sscanf(e, name+"@%d", &start); err != nil {
			t.Fatal(err)
		}
		gi, _ := d.CreateGpuInstanceWithPlacement(
			&nvml.GpuInstanceProfileInfo{Id: uint32(p.ID)},
			&nvml.GpuInstancePlacement{Start: start, Size: uint32(p.Memory)})
		info, _ := gi.GetInfo()
		byID[int(info.Id)] = gi
		uuid := fmt.Sprintf("MIG-%08d-0000-0000-0000-%012d", d.Index, i)
		migs = append(migs, &mock.Device{
			GetUUIDFunc:          func() (string, nvml.Return) { return uuid, nvml.SUCCESS },
			GetGpuInstanceIdFunc: func() (int, nvml.Return) { return int(info.Id), nvml.SUCCESS },
			GetAttributesFunc: func() (nvml.DeviceAttributes, nvml.Return) {
				return nvml.DeviceAttributes{GpuInstanceSliceCount: uint32(p.Compute), MemorySizeMB: uint64(p.Bytes >> 20)}, nvml.SUCCESS
			},
			GetMemoryInfoFunc: func() (nvml.Memory, nvml.Return) {
				return nvml.Memory{Total: uint64(p.Bytes), Used: uint64(i+1) << 30, Free: uint64(i+1) << 20}, nvml.SUCCESS
			},
			GetComputeRunningProcessesFunc: processes(i + 1),
		})
	}
	d.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 2*len(migs) + 1, nvml.SUCCESS }
	d.GetMigDeviceHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i%2 == 0 {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return migs[i/2], nvml.SUCCESS
	}
	d.GetGpuInstanceByIdFunc = func(id int) (nvml.GpuInstance, nvml.Return) {
		if gi, ok := byID[id]; ok {
			return gi, nvml.SUCCESS
		}
		return nil, nvml.ERROR_NOT_FOUND
	}
	return migs
}

func mustOpen(t *testing.T, f *fake) *inventory {
	t.Helper()
	inv, err := open(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { inv.Close() })
	return inv.(*inventory)
}

func list(t *testing.T, inv gpu.Inventory) []gpu.Device {
	t.Helper()
	devices, err := inv.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return devices
}

func show(devices []gpu.Device) string {
	var b strings.Builder
	for _, d := range devices {
		fmt.Fprintf(&b, "%d %s %q mig=%v ok=%v%s\n", d.Index, d.Model, d.Family, d.MIG, d.Health.OK, d.Health.Reason)
		for _, s := range d.Slices {
			fmt.Fprintf(&b, "  %s %s at %d\n", s.ID, s.Shape.Profile, s.Start)
		}
	}
	return b.String()
}

func TestInventory(t *testing.T) {
	f := newFake(t, gpus.A100_SXM4_80GB, gpus.H100_SXM5_80GB, gpus.H200_SXM5_141GB, gpus.B200_SXM5_180GB, gpus.A30_PCIE_24GB, gpus.A100_PCIE_40GB)
	partition(t, f.dev(0), "A100-80GB", "1g.10gb@6", "3g.40gb@0", "2g.20gb@4")
	partition(t, f.dev(1), "H100-80GB", "3g.40gb@4", "4g.40gb@0")
	partition(t, f.dev(2), "H200-141GB", "1g.35gb@6", "7g.141gb@0")
	partition(t, f.dev(4), "A30-24GB", "1g.6gb+me@3")
	partition(t, f.dev(5), "A100-40GB")
	want := `0 NVIDIA A100-SXM4-80GB "A100-80GB" mig=true ok=true
  g0/s0 3g.40gb at 0
  g0/s1 2g.20gb at 4
  g0/s2 1g.10gb at 6
1 NVIDIA H100 80GB HBM3 "H100-80GB" mig=true ok=true
  g1/s0 4g.40gb at 0
  g1/s1 3g.40gb at 4
2 NVIDIA H200 141GB HBM3e "H200-141GB" mig=true ok=falsepartition not understood: 7g.141gb at 0 overlaps 1g.35gb at 6 on H200-141GB
  g2/s0 7g.141gb at 0
  g2/s1 1g.35gb at 6
3 NVIDIA B200 180GB HBM3e "B200-180GB" mig=false ok=true
  g3/s0 full at 0
4 NVIDIA A30-PCIE-24GB "A30-24GB" mig=true ok=true
  g4/s0 1g.6gb+me at 3
5 NVIDIA A100-PCIE-40GB "A100-40GB" mig=true ok=true
`
	devices := list(t, mustOpen(t, f))
	if got := show(devices); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	s := devices[0].Slices[0]
	shape, err := gpu.ShapeOf("A100-80GB", "3g.40gb")
	if err != nil || s.Shape != shape || s.UUID != "MIG-00000000-0000-0000-0000-000000000001" || s.GPU != 0 {
		t.Errorf("slice %+v, want shape %+v", s, shape)
	}
	if d := devices[3]; d.Slices[0].UUID != d.UUID || d.Bytes != 180<<30 || d.Slices[0].Shape.Bytes != d.Bytes || d.Slices[0].Shape.Weight() != 1 {
		t.Errorf("whole GPU: %+v", d)
	}
	for _, d := range devices {
		if d.Modeled {
			t.Errorf("gpu %d is called modelled", d.Index)
		}
	}
}

func TestUsage(t *testing.T) {
	f := newFake(t, gpus.A100_SXM4_80GB, gpus.A30_PCIE_24GB)
	migs := partition(t, f.dev(0), "A100-80GB", "1g.10gb@6", "3g.40gb@0")
	f.dev(1).MemoryInfo.Used, f.dev(1).MemoryInfo.Free = 7, 0
	inv := mustOpen(t, f)
	for _, c := range []struct {
		slice string
		bytes int64
		free  int64
		procs int
	}{{"g0/s0", 2 << 30, 2 << 20, 2}, {"g0/s1", 1 << 30, 1 << 20, 1}, {"g1/s0", 7, 0, 0}} {
		u, err := inv.Usage(t.Context(), c.slice)
		if err != nil || u.UsedBytes != c.bytes || u.Processes != c.procs || u.At.IsZero() {
			t.Errorf("%s: %+v, %v; want %d bytes, %d processes", c.slice, u, err, c.bytes, c.procs)
		}
		if free, ok := u.Free(); free != c.free || !ok {
			t.Errorf("%s: %d bytes free, measured %v; want %d", c.slice, free, ok, c.free)
		}
	}
	for _, name := range []string{"g0/s2", "g2/s0", ""} {
		if _, err := inv.Usage(t.Context(), name); !errors.Is(err, gpu.ErrUnknownSlice) {
			t.Errorf("%q: %v", name, err)
		}
	}
	// An instance destroyed behind us: the use fails, and the next look is fresh.
	migs[1].GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_INVALID_ARGUMENT }
	if _, err := inv.Usage(t.Context(), "g0/s0"); !errors.Is(err, nvml.ERROR_INVALID_ARGUMENT) || !strings.Contains(err.Error(), "g0/s0") {
		t.Errorf("vanished slice: %v", err)
	}
	partition(t, f.dev(0), "A100-80GB", "2g.20gb@2")
	if u, err := inv.Usage(t.Context(), list(t, inv)[0].Slices[0].ID); err != nil || u.Processes != 1 {
		t.Errorf("re-created slice: %+v, %v", u, err)
	}
}

// TestWalksAreRare: the walk over MIG devices is the slow part.
func TestWalksAreRare(t *testing.T) {
	f := newFake(t, gpus.A100_SXM4_80GB)
	partition(t, f.dev(0), "A100-80GB", "7g.80gb@0")
	inv := mustOpen(t, f)
	walks := func() int { return len(f.dev(0).GetMaxMigDeviceCountCalls()) }
	for range 10 {
		list(t, inv)
		if _, err := inv.Usage(t.Context(), "g0/s0"); err != nil {
			t.Fatal(err)
		}
	}
	if walks() != 1 {
		t.Errorf("%d walks, want 1", walks())
	}
	c := inv.cards[0]
	c.refresh(c.walked.Add(walkEvery - 1))
	if walks() != 1 {
		t.Errorf("walked again after less than %v", walkEvery)
	}
	c.refresh(c.walked.Add(walkEvery))
	if walks() != 2 {
		t.Errorf("%d walks after %v, want 2", walks(), walkEvery)
	}
}

func TestSickGPU(t *testing.T) {
	f := newFake(t, gpus.A100_SXM4_80GB, gpus.A100_SXM4_80GB)
	partition(t, f.dev(0), "A100-80GB", "3g.40gb@0")
	inv := mustOpen(t, f)
	list(t, inv)
	healthy := f.dev(0).GetMemoryInfoFunc
	f.dev(0).GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_GPU_IS_LOST }
	d := list(t, inv)
	if d[0].Health.OK || !strings.Contains(d[0].Health.Reason, "read memory: ") || len(d[0].Slices) != 1 || !d[1].Health.OK {
		t.Errorf("lost gpu: %s", show(d))
	}
	mig := f.dev(0).GetMigModeFunc
	f.dev(0).GetMigModeFunc = func() (int, int, nvml.Return) { return 0, 0, nvml.ERROR_GPU_IS_LOST }
	if d := list(t, inv); d[0].Health.OK || !strings.Contains(d[0].Health.Reason, "read MIG mode") {
		t.Errorf("lost gpu, second look: %s", show(d))
	}
	f.dev(0).GetMemoryInfoFunc, f.dev(0).GetMigModeFunc = healthy, mig
	if d := list(t, inv); !d[0].Health.OK {
		t.Errorf("recovered gpu: %s", show(d))
	}
}

func TestGPUWithoutMIGSupport(t *testing.T) {
	l40s := gpus.Config{Name: "NVIDIA L40S", MemoryMB: 46068}
	f := newFake(t, l40s)
	f.dev(0).GetMigModeFunc = func() (int, int, nvml.Return) { return 0, 0, nvml.ERROR_NOT_SUPPORTED }
	d := list(t, mustOpen(t, f))[0]
	if d.Family != "" || d.MIG || !d.Health.OK || len(d.Slices) != 1 || d.Slices[0].Shape != gpu.FullShape(46068<<20) {
		t.Errorf("%+v", d)
	}
}

// TestProductWithoutTable: the driver's word is all there is.
func TestProductWithoutTable(t *testing.T) {
	f := newFake(t, gpus.Config{Name: "NVIDIA GH200 480GB", MemoryMB: 97871})
	partition(t, f.dev(0), "H100-94GB", "3g.47gb@4", "1g.12gb@0")
	want := "0 NVIDIA GH200 480GB \"\" mig=true ok=true\n  g0/s0 1g.12gb at 0\n  g0/s1 3g.47gb at 4\n"
	d := list(t, mustOpen(t, f))
	if got := show(d); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if s := d[0].Slices[1].Shape; s.ComputeSlices != 3 || s.MemorySlices != 4 {
		t.Errorf("shape %+v", s)
	}
}

// TestUnprivileged: without privilege the driver hides placements; a possible
// one is shown.
func TestUnprivileged(t *testing.T) {
	f := newFake(t, gpus.A100_SXM4_80GB)
	partition(t, f.dev(0), "A100-80GB", "1g.10gb@0", "3g.40gb@4", "1g.20gb@2")
	f.dev(0).GetGpuInstanceByIdFunc = func(int) (nvml.GpuInstance, nvml.Return) { return nil, nvml.ERROR_NO_PERMISSION }
	want := "0 NVIDIA A100-SXM4-80GB \"A100-80GB\" mig=true ok=true\n  g0/s0 3g.40gb at 0\n  g0/s1 1g.20gb at 4\n  g0/s2 1g.10gb at 6\n"
	if got := show(list(t, mustOpen(t, f))); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// TestTwoComputeInstances: one GPU instance cut in two is not two slices.
func TestTwoComputeInstances(t *testing.T) {
	f := newFake(t, gpus.A100_SXM4_80GB)
	partition(t, f.dev(0), "A100-80GB", "3g.40gb@4", "3g.40gb@4")
	if d := list(t, mustOpen(t, f))[0]; d.Health.OK || !strings.Contains(d.Health.Reason, "overlaps") {
		t.Errorf("%+v", d.Health)
	}
}

func TestOpenFailures(t *testing.T) {
	for _, c := range []struct {
		ret      nvml.Return
		noDriver bool
		want     string
	}{
		{nvml.ERROR_LIBRARY_NOT_FOUND, true, "no NVIDIA driver: libnvidia-ml.so.1 is not installed"},
		{nvml.ERROR_DRIVER_NOT_LOADED, true, "no NVIDIA driver: its kernel module is not loaded"},
		{nvml.ERROR_LIB_RM_VERSION_MISMATCH, false, "open NVML: "},
	} {
		_, err := open(&fake{ret: c.ret})
		if err == nil || errors.Is(err, ErrNoDriver) != c.noDriver || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.ret, err, c.want)
		}
	}
	f := newFake(t, gpus.A100_SXM4_80GB)
	f.LookupSymbolFunc = func(string) error { return errors.New("undefined") }
	if _, err := open(f); err == nil || !strings.Contains(err.Error(), "older than R450") {
		t.Errorf("old driver: %v", err)
	}
	f = newFake(t, gpus.A100_SXM4_80GB)
	f.dev(0).GetNameFunc = func() (string, nvml.Return) { return "", nvml.ERROR_UNKNOWN }
	if _, err := open(f); err == nil || !strings.Contains(err.Error(), "read name of gpu 0") {
		t.Errorf("nameless gpu: %v", err)
	}
}

func TestContextAndClose(t *testing.T) {
	inv := mustOpen(t, newFake(t, gpus.A30_PCIE_24GB))
	why := errors.New("shutting down")
	ctx, cancel := context.WithCancelCause(t.Context())
	inv.turn <- struct{}{} // a call that hangs in the driver
	time.AfterFunc(time.Millisecond, func() { cancel(why) })
	if _, err := inv.List(ctx); !errors.Is(err, why) {
		t.Errorf("list behind a hanging call: %v", err)
	}
	inv.give()
	if err := inv.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := inv.Usage(t.Context(), "g0/s0"); !errors.Is(err, errClosed) {
		t.Errorf("usage after close: %v", err)
	}
	if err := inv.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
}

// TestTableAgainstMock compares our geometry with the mock's where the mock is
// right: A100 and A30. Its Hopper and Blackwell placements contradict
// nvidia-smi transcripts.
func TestTableAgainstMock(t *testing.T) {
	for _, c := range []struct {
		family string
		config gpus.Config
	}{{"A100-40GB", gpus.A100_PCIE_40GB}, {"A100-80GB", gpus.A100_SXM4_80GB}, {"A30-24GB", gpus.A30_PCIE_24GB}} {
		f, _ := gpu.Lookup(c.family)
		for _, p := range f.Profiles {
			info, ok := c.config.MIGProfiles.GpuInstanceProfiles[p.Enum]
			if !ok {
				t.Logf("%s: the mock has no %s", c.family, p.Name)
				continue
			}
			var starts []int
			for _, pl := range c.config.MIGProfiles.GpuInstancePlacements[p.Enum] {
				starts = append(starts, int(pl.Start))
				if int(pl.Size) != p.Memory {
					t.Errorf("%s %s: size %d, the mock says %d", c.family, p.Name, p.Memory, pl.Size)
				}
			}
			if !slices.Equal(starts, p.Starts) || int(info.SliceCount) != p.Compute || int(info.InstanceCount) != p.Max {
				t.Errorf("%s %s: starts %v, %d compute, at most %d; the mock says %v, %d, %d",
					c.family, p.Name, p.Starts, p.Compute, p.Max, starts, info.SliceCount, info.InstanceCount)
			}
		}
	}
}

// TestThisMachine reads real GPUs where there are any.
func TestThisMachine(t *testing.T) {
	inv, err := Open()
	if errors.Is(err, ErrNoDriver) {
		if _, statErr := os.Stat("/proc/driver/nvidia"); statErr == nil {
			t.Errorf("the driver is loaded, and yet: %v", err)
		}
		t.Skipf("nothing to read: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer inv.Close()
	for _, d := range list(t, inv) {
		t.Logf("%+v", d)
		if !d.Health.OK || d.Bytes == 0 || !strings.HasPrefix(d.UUID, "GPU-") {
			t.Errorf("gpu %d: %+v", d.Index, d)
		}
		for _, s := range d.Slices {
			u, err := inv.Usage(t.Context(), s.ID)
			if err != nil || u.UsedBytes > s.Shape.Bytes || u.UsedBytes+u.FreeBytes == 0 {
				t.Errorf("%s: %+v, %v", s.ID, u, err)
			}
		}
	}
}
