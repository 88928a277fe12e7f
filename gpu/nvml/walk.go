//go:build cgo

package nvml

import (
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"aloft/gpu"
)

// instance is one MIG device as the driver tells it.
type instance struct {
	handle nvml.Device
	uuid   string
	shape  gpu.Shape
	start  int // -1: the driver would not say
}

// walk reads the card's partition and leaves it in c.device and c.slices. On an
// error the old ones stay.
func (c *card) walk() error {
	mode, _, ret := c.handle.GetMigMode()
	switch {
	case ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.SUCCESS && mode != nvml.DEVICE_MIG_ENABLE:
		if _, ret := c.handle.GetMemoryInfo(); ret != nvml.SUCCESS {
			return failed("read memory", ret)
		}
		c.whole()
		return nil
	case ret != nvml.SUCCESS:
		return failed("read MIG mode", ret)
	}
	found, err := c.instances()
	if err != nil {
		return err
	}
	health := gpu.Health{OK: true}
	if err := c.settle(found); err != nil {
		// Serving and lending on slices that we misunderstand would hurt both.
		health = gpu.Health{Reason: "partition not understood: " + err.Error()}
	}
	slices.SortStableFunc(found, func(a, b instance) int { return a.start - b.start })
	before := c.device.Slices
	c.device.MIG, c.device.Health, c.device.Slices, c.slices = true, health, nil, nil
	for _, in := range found {
		c.slices = append(c.slices, in.handle)
		c.device.Slices = append(c.device.Slices, gpu.Slice{UUID: in.uuid, GPU: c.device.Index, Start: in.start, Shape: in.shape})
	}
	gpu.Name(c.device.Index, before, c.device.Slices) // what was there keeps its name
	return nil
}

func (c *card) whole() {
	shape := gpu.FullShape(c.device.Bytes)
	if s, err := gpu.ShapeOf(c.device.Family, gpu.Full); err == nil {
		s.Bytes = c.device.Bytes
		shape = s
	}
	d := &c.device
	d.MIG, d.Health = false, gpu.Health{OK: true}
	d.Slices = []gpu.Slice{{ID: gpu.SliceID(d.Index, 0), UUID: d.UUID, GPU: d.Index, Shape: shape}}
	c.slices = []nvml.Device{c.handle}
}

// instances lists the card's MIG devices. Indexes may have holes.
func (c *card) instances() ([]instance, error) {
	count, ret := c.handle.GetMaxMigDeviceCount()
	if ret != nvml.SUCCESS {
		return nil, failed("count MIG devices", ret)
	}
	var found []instance
	for i := range count {
		h, ret := c.handle.GetMigDeviceHandleByIndex(i)
		if ret == nvml.ERROR_NOT_FOUND {
			continue
		}
		if ret != nvml.SUCCESS {
			return nil, failed(fmt.Sprintf("open MIG device %d", i), ret)
		}
		in, err := c.instance(h)
		if err != nil {
			return nil, fmt.Errorf("MIG device %d: %w", i, err)
		}
		found = append(found, in)
	}
	return found, nil
}

func (c *card) instance(h nvml.Device) (instance, error) {
	in := instance{handle: h, start: -1}
	var ret nvml.Return
	if in.uuid, ret = h.GetUUID(); ret != nvml.SUCCESS {
		return in, failed("read UUID", ret)
	}
	attr, ret := h.GetAttributes()
	if ret != nvml.SUCCESS {
		return in, failed("read attributes", ret)
	}
	in.shape = c.shapeByAttributes(attr)
	id, ret := h.GetGpuInstanceId()
	if ret != nvml.SUCCESS {
		return in, failed("read GPU instance id", ret)
	}
	gi, ret := c.handle.GetGpuInstanceById(id)
	if ret == nvml.ERROR_NO_PERMISSION || ret == nvml.ERROR_NOT_SUPPORTED {
		return in, nil // placements are for privileged users: settle finds a possible one
	}
	if ret != nvml.SUCCESS {
		return in, failed(fmt.Sprintf("open GPU instance %d", id), ret)
	}
	info, ret := gi.GetInfo()
	if ret != nvml.SUCCESS {
		return in, failed(fmt.Sprintf("read GPU instance %d", id), ret)
	}
	in.start = int(info.Placement.Start)
	if f, ok := gpu.Lookup(c.device.Family); ok {
		if p, ok := f.ProfileByID(int(info.ProfileId)); ok {
			in.shape, _ = gpu.ShapeOf(f.Name, p.Name)
		}
		return in, nil
	}
	in.shape.MemorySlices = int(info.Placement.Size)
	return in, nil
}

// shapeByAttributes names an instance by what it has. A profile of the family's
// table with as many slices and about as much memory is that one; another
// product's is named as NVIDIA would.
func (c *card) shapeByAttributes(a nvml.DeviceAttributes) gpu.Shape {
	compute, bytes := int(a.GpuInstanceSliceCount), int64(a.MemorySizeMB)<<20
	f, _ := gpu.Lookup(c.device.Family)
	for _, p := range f.Profiles {
		if p.Compute == compute && bytes > p.Bytes*3/4 && bytes < p.Bytes*4/3 {
			s, _ := gpu.ShapeOf(f.Name, p.Name)
			return s
		}
	}
	gib := (bytes + 1<<30 - 1) >> 30
	memory := max(1, int((8*bytes+c.device.Bytes/2)/max(1, c.device.Bytes))) // nearest eighth
	return gpu.Shape{Profile: fmt.Sprintf("%dg.%dgb", compute, gib), ComputeSlices: compute, MemorySlices: memory, Bytes: bytes}
}

// settle fills unknown starts with possible ones and checks the partition
// against the family's table, which is the truth about geometry. Of a product
// without a table nothing can be checked.
func (c *card) settle(found []instance) error {
	f, ok := gpu.Lookup(c.device.Family)
	if !ok {
		for i := range found {
			found[i].start = max(found[i].start, 0)
		}
		return nil
	}
	var set []gpu.Placement
	for _, in := range found {
		if in.start >= 0 {
			set = append(set, gpu.Placement{Profile: in.shape.Profile, Start: in.start, Size: in.shape.MemorySlices})
		}
	}
	if err := f.Legal(set); err != nil {
		for i := range found {
			found[i].start = max(found[i].start, 0)
		}
		return err
	}
	return fillStarts(f, found)
}

// fillStarts gives every instance without a start one that is possible beside
// the others.
func fillStarts(f gpu.Family, found []instance) error {
	var entries []string
	var unknown []int
	for i, in := range found {
		if in.start >= 0 {
			entries = append(entries, fmt.Sprintf("%s@%d", in.shape.Profile, in.start))
		} else {
			entries = append(entries, in.shape.Profile)
			unknown = append(unknown, i)
			found[i].start = 0
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	set, err := f.Layout(entries)
	if err != nil {
		return err
	}
	set = set[len(found)-len(unknown):] // given starts come first
	for _, i := range unknown {
		n := slices.IndexFunc(set, func(p gpu.Placement) bool { return p.Profile == found[i].shape.Profile })
		found[i].start = set[n].Start
		set = slices.Delete(set, n, n+1)
	}
	return nil
}
