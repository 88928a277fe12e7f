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

// walkEvery is how long a GPU's partition is believed before its MIG devices
// are walked again. A walk can take seconds on a busy driver;
// only an administrator's hand changes a partition behind us, and a slice that
// vanished is noticed at its next use.
const walkEvery = 30 * time.Second

// library is what we need of NVML itself.
type library interface {
	Init() nvml.Return
	Shutdown() nvml.Return
	DeviceGetCount() (int, nvml.Return)
	DeviceGetHandleByIndex(int) (nvml.Device, nvml.Return)
	Extensions() nvml.ExtendedInterface
}

// newestSymbol came with R450, the first driver with MIG. Calling a symbol that
// the library lacks would end the process: it is bound at the call.
const newestSymbol = "nvmlDeviceGetGpuInstanceById"

// inventory holds the handles. All NVML calls are made by the holder of turn:
// the library is not at its best under concurrent MIG calls.
type inventory struct {
	turn  chan struct{} // a lock that a context can stop waiting for
	lib   library
	cards []*card
	open  bool
}

var _ gpu.Inventory = (*inventory)(nil)

// card is one GPU with its handles.
type card struct {
	handle nvml.Device
	device gpu.Device // as of the last walk
	slices []nvml.Device
	walked time.Time // zero: walk before the next use
}

// Open opens the driver's library. Without a driver the error wraps ErrNoDriver.
func Open() (gpu.Inventory, error) { return open(nvml.New()) }

func open(lib library) (gpu.Inventory, error) {
	switch ret := lib.Init(); ret {
	case nvml.SUCCESS:
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return nil, fmt.Errorf("%w: libnvidia-ml.so.1 is not installed", ErrNoDriver)
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return nil, fmt.Errorf("%w: its kernel module is not loaded", ErrNoDriver)
	default:
		return nil, failed("open NVML", ret)
	}
	if err := lib.Extensions().LookupSymbol(newestSymbol); err != nil {
		lib.Shutdown()
		return nil, fmt.Errorf("the NVIDIA driver is older than R450: %w", err)
	}
	inv := &inventory{turn: make(chan struct{}, 1), lib: lib, open: true}
	if err := inv.find(); err != nil {
		lib.Shutdown()
		return nil, err
	}
	return inv, nil
}

// find gets the handles of all GPUs and what never changes about them.
func (inv *inventory) find() error {
	count, ret := inv.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return failed("count GPUs", ret)
	}
	for i := range count {
		h, ret := inv.lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			return failed(fmt.Sprintf("open gpu %d", i), ret)
		}
		c := &card{handle: h}
		if err := c.identify(i); err != nil {
			return err
		}
		inv.cards = append(inv.cards, c)
	}
	return nil
}

func (c *card) identify(index int) error {
	name, ret := c.handle.GetName()
	if ret != nvml.SUCCESS {
		return failed(fmt.Sprintf("read name of gpu %d", index), ret)
	}
	uuid, ret := c.handle.GetUUID()
	if ret != nvml.SUCCESS {
		return failed(fmt.Sprintf("read UUID of gpu %d", index), ret)
	}
	mem, ret := c.handle.GetMemoryInfo()
	if ret != nvml.SUCCESS {
		return failed(fmt.Sprintf("read memory of gpu %d", index), ret)
	}
	bytes := int64(mem.Total)
	c.device = gpu.Device{Index: index, Model: name, Family: gpu.FamilyOf(name, bytes), UUID: uuid, Bytes: bytes}
	return nil
}

// List returns the GPUs; a GPU that cannot be read is there, unhealthy, with
// the reason.
func (inv *inventory) List(ctx context.Context) ([]gpu.Device, error) {
	if err := inv.take(ctx); err != nil {
		return nil, fmt.Errorf("list GPUs: %w", err)
	}
	defer inv.give()
	devices := make([]gpu.Device, len(inv.cards))
	for i, c := range inv.cards {
		c.refresh(time.Now())
		devices[i] = c.device
		devices[i].Slices = slices.Clone(c.device.Slices)
	}
	return devices, nil
}

// refresh walks the card if its partition is old, and asks for a sign of life
// if not.
func (c *card) refresh(now time.Time) {
	var err error
	if now.Sub(c.walked) >= walkEvery {
		if err = c.walk(); err == nil {
			c.walked = now
			return
		}
	} else if _, ret := c.handle.GetMemoryInfo(); ret != nvml.SUCCESS {
		err = failed("read memory", ret)
	}
	if err != nil {
		c.device.Health = gpu.Health{Reason: err.Error()}
		c.walked = time.Time{}
	}
}

// Usage reads a slice's memory and processes. Of a whole GPU the memory
// includes what the driver keeps for itself.
func (inv *inventory) Usage(ctx context.Context, slice string) (gpu.Usage, error) {
	if err := inv.take(ctx); err != nil {
		return gpu.Usage{}, fmt.Errorf("usage of %.40q: %w", slice, err)
	}
	defer inv.give()
	c, i := inv.locate(slice)
	if c == nil {
		return gpu.Usage{}, fmt.Errorf("usage: %w %.40q", gpu.ErrUnknownSlice, slice)
	}
	mem, ret := c.slices[i].GetMemoryInfo()
	if ret != nvml.SUCCESS {
		c.walked = time.Time{} // the instance may be another one by now
		return gpu.Usage{}, failed("read memory of "+slice, ret)
	}
	procs, ret := c.slices[i].GetComputeRunningProcesses()
	if ret != nvml.SUCCESS {
		c.walked = time.Time{}
		return gpu.Usage{}, failed("list processes of "+slice, ret)
	}
	return gpu.Usage{At: time.Now(), UsedBytes: int64(mem.Used), FreeBytes: int64(mem.Free), Processes: len(procs)}, nil
}

// locate finds a slice's card and place in it, walking only cards never walked
// or in doubt.
func (inv *inventory) locate(slice string) (*card, int) {
	for _, c := range inv.cards {
		if c.walked.IsZero() {
			c.refresh(time.Now())
		}
		i := slices.IndexFunc(c.device.Slices, func(s gpu.Slice) bool { return s.ID == slice })
		if i >= 0 {
			return c, i
		}
	}
	return nil, 0
}

// Close shuts the library down; the inventory is of no use afterwards.
func (inv *inventory) Close() error {
	inv.turn <- struct{}{}
	defer inv.give()
	if !inv.open {
		return nil
	}
	inv.open = false
	if ret := inv.lib.Shutdown(); ret != nvml.SUCCESS {
		return failed("close NVML", ret)
	}
	return nil
}

var errClosed = errors.New("NVML is closed")

func (inv *inventory) take(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case inv.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if !inv.open {
		inv.give()
		return errClosed
	}
	return nil
}

func (inv *inventory) give() { <-inv.turn }

func failed(what string, ret nvml.Return) error { return fmt.Errorf("%s: %w", what, ret) }
