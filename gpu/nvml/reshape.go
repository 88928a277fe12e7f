//go:build cgo

package nvml

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"aloft/gpu"
)

var _ gpu.Shaper = (*inventory)(nil)

// Reshape destroys what differs from the layout, compute instances before their
// GPU instance, and creates what is missing, large first and each at its start:
// left to itself the driver scatters small instances. It needs root or the
// mig/config capability, and MIG mode on.
//
// UNTESTED ON A REAL GPU: it was written from NVML's documentation and known
// reports, and is tested against NVIDIA's mock of an A100.
func (inv *inventory) Reshape(ctx context.Context, index int, layout []gpu.Placement) ([]gpu.Slice, error) {
	if err := inv.take(ctx); err != nil {
		return nil, fmt.Errorf("reshape gpu %d: %w", index, err)
	}
	defer inv.give()
	if index < 0 || index >= len(inv.cards) {
		return nil, fmt.Errorf("reshape gpu %d: there are %d", index, len(inv.cards))
	}
	c := inv.cards[index]
	err := c.reshape(ctx, layout)
	c.refresh(time.Now()) // whatever came of it
	if err != nil {
		err = fmt.Errorf("reshape gpu %d: %w", index, err)
	}
	return slices.Clone(c.device.Slices), err
}

func (c *card) reshape(ctx context.Context, layout []gpu.Placement) error {
	if err := c.walk(); err != nil { // an administrator may have been at it
		return err
	}
	family, ok := gpu.Lookup(c.device.Family)
	switch {
	case !ok:
		return fmt.Errorf("no table of the placements of %q", c.device.Model)
	case !c.device.MIG:
		return errors.New("MIG is off, and turning it on needs an idle GPU and, on Ampere, a reset")
	case !c.device.Health.OK:
		return errors.New(c.device.Health.Reason)
	}
	gone, fresh, err := family.Change(c.device.Slices, layout)
	if err != nil {
		return err
	}
	if err := c.idle(gone); err != nil {
		return err
	}
	c.walked = time.Time{} // from here on the partition is another one
	for _, s := range gone {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := c.destroy(c.handleOf(s)); err != nil {
			return fmt.Errorf("destroy %s: %w", s.ID, err)
		}
	}
	for _, pl := range fresh {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		p, _ := family.Profile(pl.Profile) // legal: Change has seen to it
		if err := c.create(p, pl); err != nil {
			return fmt.Errorf("create %s at %d: %w", pl.Profile, pl.Start, err)
		}
	}
	return nil
}

func (c *card) handleOf(s gpu.Slice) nvml.Device {
	return c.slices[slices.IndexFunc(c.device.Slices, func(have gpu.Slice) bool { return have.UUID == s.UUID })]
}

// idle refuses, before anything is changed, when a process runs on what has to
// go. The driver also refuses for handles that are open without a process.
func (c *card) idle(gone []gpu.Slice) error {
	for _, s := range gone {
		procs, ret := c.handleOf(s).GetComputeRunningProcesses()
		if ret != nvml.SUCCESS {
			return failed("list processes of "+s.ID, ret)
		}
		if len(procs) > 0 {
			return fmt.Errorf("%s has %d processes: %w", s.ID, len(procs), gpu.ErrInUse)
		}
	}
	return nil
}

// destroy takes a GPU instance apart: its compute instances first.
func (c *card) destroy(mig nvml.Device) error {
	id, ret := mig.GetGpuInstanceId()
	if ret != nvml.SUCCESS {
		return failed("read GPU instance id", ret)
	}
	gi, ret := c.handle.GetGpuInstanceById(id)
	if ret != nvml.SUCCESS {
		return failed(fmt.Sprintf("open GPU instance %d", id), ret)
	}
	for profile := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, ret := gi.GetComputeInstanceProfileInfo(profile, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_INVALID_ARGUMENT {
			continue
		}
		if ret != nvml.SUCCESS {
			return failed("read compute instance profile", ret)
		}
		all, ret := gi.GetComputeInstances(&info)
		if ret != nvml.SUCCESS {
			return failed("list compute instances", ret)
		}
		for _, ci := range all {
			if ret := ci.Destroy(); ret != nvml.SUCCESS {
				return refused("destroy compute instance", ret)
			}
		}
	}
	if ret := gi.Destroy(); ret != nvml.SUCCESS {
		return refused("destroy GPU instance", ret)
	}
	return nil
}

// refused names what IN_USE means, with or without a process to be seen.
func refused(what string, ret nvml.Return) error {
	if ret == nvml.ERROR_IN_USE {
		return fmt.Errorf("%s: %w (a handle may be open in a monitor such as DCGM): %w", what, gpu.ErrInUse, ret)
	}
	return failed(what, ret)
}

// computeProfile is the enum of the compute instance that takes all of a GPU
// instance. There are others of as many slices (one for NVL products, which an
// A100 refuses), so that the number alone does not tell.
var computeProfile = map[int]int{
	1: nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE,
	2: nvml.COMPUTE_INSTANCE_PROFILE_2_SLICE,
	3: nvml.COMPUTE_INSTANCE_PROFILE_3_SLICE,
	4: nvml.COMPUTE_INSTANCE_PROFILE_4_SLICE,
	7: nvml.COMPUTE_INSTANCE_PROFILE_7_SLICE,
}

// create makes a GPU instance at its start, with one compute instance that takes
// all of it; if the second cannot be had the first goes again.
func (c *card) create(p gpu.Profile, pl gpu.Placement) error {
	info, ret := c.handle.GetGpuInstanceProfileInfo(p.Enum)
	if ret != nvml.SUCCESS {
		return failed("read GPU instance profile", ret)
	}
	gi, ret := c.handle.CreateGpuInstanceWithPlacement(&info, &nvml.GpuInstancePlacement{Start: uint32(pl.Start), Size: uint32(pl.Size)})
	switch {
	case ret == nvml.ERROR_INSUFFICIENT_RESOURCES:
		// The code says the same when there is no room and when it is there already:
		// only the state tells them apart.
		if gi = c.find(&info, pl); gi == nil {
			return failed("no room for the GPU instance", ret)
		}
	case ret != nvml.SUCCESS:
		return failed("create GPU instance", ret)
	}
	compute, ret := gi.GetComputeInstanceProfileInfo(computeProfile[p.Compute], nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
	if ret != nvml.SUCCESS {
		return undo(gi, failed("read compute instance profile", ret))
	}
	_, ret = gi.CreateComputeInstance(&compute)
	if ret == nvml.ERROR_INSUFFICIENT_RESOURCES {
		if all, seen := gi.GetComputeInstances(&compute); seen == nvml.SUCCESS && len(all) > 0 {
			return nil // it is there
		}
	}
	if ret != nvml.SUCCESS {
		return undo(gi, failed("create compute instance", ret))
	}
	return nil
}

// undo destroys a GPU instance that nobody could use.
func undo(gi nvml.GpuInstance, err error) error {
	if ret := gi.Destroy(); ret != nvml.SUCCESS {
		return errors.Join(err, failed("destroy the GPU instance again", ret))
	}
	return err
}

// find looks for a GPU instance just there; nil = none.
func (c *card) find(info *nvml.GpuInstanceProfileInfo, pl gpu.Placement) nvml.GpuInstance {
	all, ret := c.handle.GetGpuInstances(info)
	if ret != nvml.SUCCESS {
		return nil
	}
	for _, gi := range all {
		if have, ret := gi.GetInfo(); ret == nvml.SUCCESS && int(have.Placement.Start) == pl.Start {
			return gi
		}
	}
	return nil
}
