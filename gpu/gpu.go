// Package gpu names the unit of capacity that serving and jobs both use: a
// slice, one MIG instance or a whole GPU, with its shape; and the geometry of a
// MIG GPU as data (profiles, legal placements).
//
// It decides nothing and starts nothing. gpu/nvml reads real devices,
// gpu/simulated models one, gpu/proc confines a process to a slice.
package gpu

import (
	"context"
	"time"
)

// Shape is a kind of slice: a MIG profile such as "2g.20gb", or a whole GPU.
type Shape struct {
	Profile       string // NVIDIA's name; "full" for a GPU without MIG
	ComputeSlices int    // of 7 (4 on A30)
	MemorySlices  int    // of 8 (4 on A30); also the length on the placement axis
	Bytes         int64  // usable memory
	Axis          int    // memory slices of the whole GPU where that is not 8: 4 on A30, else 0
}

// Weight is the slice's dominant share of its GPU: max(compute/7, memory/8). What
// is summed over slices is this, or Parts, never their number (KAI #987).
func (s Shape) Weight() float64 {
	compute, memory := s.Parts()
	return max(compute, memory)
}

// Parts are the parts of its GPU's compute and memory slices that the slice has.
func (s Shape) Parts() (compute, memory float64) {
	if s.Axis == 4 { // A30: 4 compute and 4 memory slices
		return float64(s.ComputeSlices) / 4, float64(s.MemorySlices) / 4
	}
	return float64(s.ComputeSlices) / 7, float64(s.MemorySlices) / 8
}

// Slice is one MIG instance or a whole GPU.
type Slice struct {
	ID    string // stable name within the node, for example "g0/s3"
	UUID  string // what CUDA_VISIBLE_DEVICES takes; changes when re-created
	GPU   int    // index of the GPU
	Start int    // first memory slice on the placement axis
	Shape Shape
}

// Device is one GPU with its present partition.
type Device struct {
	Index   int
	Model   string // product name, for example "NVIDIA A100-SXM4-80GB"
	Family  string // key into the MIG tables, for example "A100-80GB"; "" = no MIG
	UUID    string
	Bytes   int64
	MIG     bool
	Health  Health
	Slices  []Slice
	Modeled bool // simulated: shown wherever a user meets it
}

// Health of a device; unhealthy slices are neither lent nor served from.
type Health struct {
	OK     bool
	Reason string // for example "XID 79: GPU fell off the bus"
}

// Usage is a momentary reading of one slice.
type Usage struct {
	At        time.Time
	UsedBytes int64
	FreeBytes int64 // what a new process could take
	Processes int
}

// Free is the measured free memory; ok is false where nothing was measured:
// simulated GPUs have no memory.
func (u Usage) Free() (bytes int64, ok bool) { return u.FreeBytes, u.UsedBytes+u.FreeBytes > 0 }

// Inventory lists the node's GPUs and reads one slice's use. Implementations
// cache handles: List is cheap enough for every plan.
type Inventory interface {
	List(ctx context.Context) ([]Device, error)
	Usage(ctx context.Context, slice string) (Usage, error)
	Close() error
}

// Shaper changes what instances a GPU has. Implementations destroy only what
// differs and is free, create large instances before small ones, each at its
// start, and say what is there afterwards, also when they fail half-way.
type Shaper interface {
	Reshape(ctx context.Context, gpu int, layout []Placement) ([]Slice, error)
}
